//! The buffer into which an entry function writes a provider's tables.

use super::abi::guarded::BESIDE;
use super::abi::watched::MARK;
use tieline_plugin_api::abi::ProviderOps;

/// A buffer for the provider's table. The buffer is 4 KiB longer than the table of this core. A provider that ignores the stated
/// size and writes a longer table thus still writes inside the buffer, within this limit.
#[repr(C, align(64))]
pub(crate) struct Room {
    front: [u64; BESIDE],
    pub(crate) ops: ProviderOps,
    _slack: [u8; 4096],
}

impl Room {
    pub(crate) fn new() -> Box<Room> {
        Box::new(Room { front: [MARK; BESIDE], ops: ProviderOps::empty(), _slack: [0; 4096] })
    }

    /// Returns the address of the table. A provider may write more than the table there.
    pub(crate) fn place(&mut self) -> *mut ProviderOps {
        let at = std::ptr::from_mut(self).cast::<u8>();
        at.wrapping_add(std::mem::offset_of!(Room, ops)).cast()
    }

    /// Checks whether the words in front are unchanged.
    pub(crate) fn is_whole(&self) -> bool {
        static MARKS: [u64; BESIDE] = [MARK; BESIDE];
        self.front == MARKS
    }
}
