//! The region that a piece carries.

#![allow(unsafe_code)]

use super::Region;
use tieline_plugin_api::abi::Iov;

/// The region that the core says a piece lies in.
#[inline]
pub(super) fn region(piece: &Iov) -> Option<&Region> {
    // SAFETY: null, or by the ABI the handle of a region of this domain, which `register` has made of a `Region` and which
    // stays until the operation has ended.
    unsafe { piece.region.cast::<Region>().as_ref() }
}
