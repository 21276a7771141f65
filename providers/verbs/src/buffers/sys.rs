//! The application's memory, copied.

#![allow(unsafe_code)]

use core::ptr;
use tieline_plugin_api::abi::Iov;

/// Copies the application's pieces one after the other to `to`.
///
/// The pieces are memory of the caller of the data call, borrowed for the call (the ABI's promise).
pub(crate) fn gather(iov: &[Iov], mut to: &mut [u8]) {
    for piece in iov.iter().filter(|piece| piece.len > 0) {
        let (here, rest) = to.split_at_mut(piece.len.min(to.len()));
        // SAFETY: the application's piece is readable for its length; `here` is no longer and is ours alone.
        unsafe { ptr::copy_nonoverlapping(piece.base, here.as_mut_ptr(), here.len()) };
        to = rest;
    }
}
