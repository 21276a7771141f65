//! The functions that copy, each within the guaranteed range.

#![allow(unsafe_code)]

use crate::sys::Mapping;
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{Packer, Status};

/// Copies an iov piece into a mapping. Returns `false` if the piece does not fit.
#[inline]
pub(crate) fn write_piece(map: &Mapping, offset: u64, piece: Iov) -> bool {
    // SAFETY: by the ABI the core guarantees the pieces of an operation until it has completed.
    unsafe { map.copy_in(offset, piece.base, piece.len) }
}

/// Copies from a mapping into an iov piece. Returns `false` if the piece does not fit.
#[inline]
pub(crate) fn fill_piece(map: &Mapping, offset: u64, piece: Iov) -> bool {
    // SAFETY: by the ABI the core guarantees the pieces of an operation until it has completed.
    unsafe { map.copy_out(offset, piece.base, piece.len) }
}

/// Copies bytes into a mapping. Returns `false` if they do not fit.
#[inline]
pub(crate) fn write(map: &Mapping, offset: u64, bytes: &[u8]) -> bool {
    // SAFETY: the slice is readable.
    unsafe { map.copy_in(offset, bytes.as_ptr(), bytes.len()) }
}

/// Copies an iov piece to the beginning of a buffer. Returns `false` if the piece does not fit.
#[inline]
pub(crate) fn read_piece(piece: Iov, to: &mut [u8]) -> bool {
    let Some(to) = to.get_mut(..piece.len).filter(|to| !to.is_empty()) else {
        return piece.len == 0;
    };
    // SAFETY: by the ABI the core guarantees the piece; `to` has the same length, and only this function accesses it.
    unsafe { std::ptr::copy_nonoverlapping(piece.base, to.as_mut_ptr(), to.len()) };
    true
}

/// Lets the application pack a message of at most `most` bytes into a mapping. Returns the message's length.
#[inline]
pub(crate) fn pack(
    packer: Packer<'_>,
    map: &Mapping,
    offset: u64,
    most: usize,
) -> Result<usize, Status> {
    if !map.is_writable() || !map.holds(offset, most as u64) {
        return Err(Status::Invalid);
    }
    let at = map.as_ptr().wrapping_add(offset as usize);
    // SAFETY: the range is inside the mapping, which is borrowed during the call and may be written. Its bytes are shared without
    // references to them: all other code copies them.
    unsafe { packer.pack_at(at, most) }
}
