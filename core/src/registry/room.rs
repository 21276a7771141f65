//! The buffer that an entry function writes a provider's tables into.

use tieline_plugin_api::abi::ProviderOps;

/// Room for the provider's table: larger than any minor's, so that a provider which ignores the size that
/// it was given still writes inside.
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
