//! Copies of the application's memory into buffers, and the part of a buffer into which the application packs a message.

#![allow(unsafe_code)]

use super::Pool;
use core::ptr;
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{Packer, Status};

/// Room in a buffer that is taken from its pool and not posted. The holder of the buffer's number has exclusive use.
pub(crate) struct Room {
    at: *mut u8,
    len: usize,
}

impl Room {
    /// Returns `len` bytes after the first `skip` of a buffer. The buffer must be neither posted nor returned before these bytes
    /// are packed.
    pub(crate) fn of(pool: &mut Pool, buffer: u32, skip: usize, len: usize) -> Room {
        let room = &mut pool.bytes_mut(buffer)[skip..skip + len];
        Room { at: room.as_mut_ptr(), len }
    }

    /// Runs the application's packer. No pool is borrowed meanwhile.
    pub(crate) fn pack(self, packer: Packer<'_>) -> Result<usize, Status> {
        // SAFETY: the range is inside the buffer, as the slice was. A pool keeps its memory as long as it lives; its owner is the
        // interface of the endpoint in this call, which lives. No other reference to a taken buffer exists.
        unsafe { packer.pack_at(self.at, self.len) }
    }
}

/// Copies the application's pieces back to back into `to`, as far as they fit.
///
/// The pieces are memory of the data call's caller, borrowed for the call (guaranteed by the ABI).
pub(crate) fn gather(iov: &[Iov], mut to: &mut [u8]) {
    for piece in iov.iter().filter(|piece| piece.len > 0) {
        let (here, rest) = to.split_at_mut(piece.len.min(to.len()));
        // SAFETY: the application's piece is readable for its length; `here` is no longer than the piece, and only this function
        // accesses it.
        unsafe { ptr::copy_nonoverlapping(piece.base, here.as_mut_ptr(), here.len()) };
        to = rest;
    }
}
