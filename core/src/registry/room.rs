//! The buffer that an entry function writes a provider's tables into.

use tieline_plugin_api::abi::ProviderOps;

/// Room for the provider's table. It is larger than the table of any minor, so a provider that ignores the given size still writes
/// inside it.
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
