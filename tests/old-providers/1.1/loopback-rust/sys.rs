//! The three functions that copy bytes through raw pointers.

#![allow(unsafe_code)]

use core::{ptr, slice};
use tieline_plugin_api::RmaOp;
use tieline_plugin_api::abi::Iov;

/// Returns the bytes of a piece of a message.
pub(crate) fn piece(piece: &Iov) -> &[u8] {
    if piece.len == 0 {
        return &[];
    }
    // SAFETY: the caller of a post keeps its pieces readable and unchanged until the call has returned.
    unsafe { slice::from_raw_parts(piece.base, piece.len) }
}

/// Copies the local pieces to `remote`.
pub(crate) fn scatter(op: &RmaOp<'_>, mut remote: *mut u8) {
    for piece in op.iov {
        // SAFETY: the table has checked that `op.len` bytes from `remote` lie in a live region, which its owner keeps mapped. The
        // pieces belong to the poster, and add up to `op.len`. The pieces may overlap.
        unsafe {
            ptr::copy(piece.base, remote, piece.len);
            remote = remote.add(piece.len);
        }
    }
}

/// Copies from `remote` to the local pieces.
pub(crate) fn gather(op: &RmaOp<'_>, mut remote: *mut u8) {
    for piece in op.iov {
        // SAFETY: the table has checked that `op.len` bytes from `remote` lie in a live region, which its owner keeps mapped. The
        // pieces belong to the poster, and add up to `op.len`. The pieces may overlap.
        unsafe {
            ptr::copy(remote, piece.base, piece.len);
            remote = remote.add(piece.len);
        }
    }
}
