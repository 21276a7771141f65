//! The room that the application packs a message into.

#![allow(unsafe_code)]

use super::buffers::Slots;
use tieline_plugin_api::{Packer, Status};

/// Room in a slot that was taken and is not posted: who has its number has it alone.
pub(crate) struct Room {
    at: *mut u8,
    len: usize,
}

impl Room {
    /// `len` bytes behind the first `skip` of a slot, which is neither posted nor given back before they are packed.
    pub(super) fn of(slots: &mut Slots, slot: u32, skip: usize, len: usize) -> Room {
        let room = &mut slots.bytes_mut(slot, skip + len)[skip..];
        Room { at: room.as_mut_ptr(), len: room.len() }
    }

    /// Lets the application pack. Nothing is borrowed meanwhile.
    pub(crate) fn pack(self, packer: Packer<'_>) -> Result<usize, Status> {
        // SAFETY: inside the slot, as the slice was; slots are never moved nor freed while the engine lives, and its owner, whose
        // endpoint this call is of, lives. Nobody refers to a slot that somebody has taken.
        unsafe { packer.pack_at(self.at, self.len) }
    }
}
