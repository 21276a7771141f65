//! The application's memory, copied, and the room that it packs into.

#![allow(unsafe_code)]

use super::Pool;
use core::ptr;
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{Packer, Status};

/// Room in a buffer that was taken from its pool and is not posted: who has its number has it alone.
pub(crate) struct Room {
    at: *mut u8,
    len: usize,
}

impl Room {
    /// `len` bytes behind the first `skip` of a buffer, which is neither posted nor given back before they are packed.
    pub(crate) fn of(pool: &mut Pool, buffer: u32, skip: usize, len: usize) -> Room {
        let room = &mut pool.bytes_mut(buffer)[skip..skip + len];
        Room { at: room.as_mut_ptr(), len }
    }

    /// Lets the application pack. No pool is borrowed meanwhile.
    pub(crate) fn pack(self, packer: Packer<'_>) -> Result<usize, Status> {
        // SAFETY: inside the buffer, as the slice was; a pool keeps its memory as long as it lives, and its owner, whose endpoint
        // this call is of, lives. Nobody refers to a buffer that somebody has taken.
        unsafe { packer.pack_at(self.at, self.len) }
    }
}

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
