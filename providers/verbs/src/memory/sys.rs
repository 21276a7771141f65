//! The region handle of a piece.

#![allow(unsafe_code)]

use super::Region;
use tieline_plugin_api::abi::Iov;

/// Returns the region in which the core says a piece lies.
#[inline]
pub(super) fn region(piece: &Iov) -> Option<&Region> {
    // SAFETY: the handle is null, or by the ABI that of a region of this domain. `register` made the handle from a `Region`, which
    // stays until the operation has ended.
    unsafe { piece.region.cast::<Region>().as_ref() }
}
