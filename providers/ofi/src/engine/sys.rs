//! The memory into which the application packs a message.

#![allow(unsafe_code)]

use super::buffers::Slots;
use tieline_plugin_api::{Packer, Status};

/// Memory in a slot that is taken and not posted; the holder of the slot's number has exclusive access.
pub(crate) struct Room {
    at: *mut u8,
    len: usize,
}

impl Room {
    /// Returns `len` bytes after the first `skip` of a slot. The slot is neither posted nor released before these bytes are packed.
    pub(super) fn of(slots: &mut Slots, slot: u32, skip: usize, len: usize) -> Room {
        let room = &mut slots.bytes_mut(slot, skip + len)[skip..];
        Room { at: room.as_mut_ptr(), len: room.len() }
    }

    /// Runs the application's packer. No borrow is held during the call.
    pub(crate) fn pack(self, packer: Packer<'_>) -> Result<usize, Status> {
        // SAFETY: the range is inside the slot, as the slice was. Slots are never moved nor freed while the engine lives, and the
        // engine's owner lives, because this call is of its endpoint. No other reference to a taken slot exists.
        unsafe { packer.pack_at(self.at, self.len) }
    }
}
