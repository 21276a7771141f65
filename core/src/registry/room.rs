//! The buffer into which an entry function writes a provider's tables.

use tieline_plugin_api::abi::ProviderOps;

/// A buffer for the provider's table. The buffer is larger than the table of any minor version, so a provider that ignores the
/// stated size still writes inside the buffer.
#[repr(C, align(64))]
pub(super) struct Room {
    pub(super) ops: ProviderOps,
    _slack: [u8; 4096],
}

impl Room {
    pub(super) fn new() -> Box<Room> {
        Box::new(Room { ops: ProviderOps::empty(), _slack: [0; 4096] })
    }
}
