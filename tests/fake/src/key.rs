//! The imported keys of the provider.

use crate::calls::Slot;
use crate::provider::ask;
use crate::world::World;
use tieline_plugin_api::{Failure, Status, caps};

/// An imported key of a peer's registration.
pub struct FakeKey {
    pub(crate) world: &'static World,
    pub(crate) lane: usize,
    pub(crate) interface: usize,
    /// The endpoint of the key; `None` if the key serves all endpoints of the interface.
    pub(crate) endpoint: Option<usize>,
    pub(crate) region: u64,
}

impl FakeKey {
    pub(crate) fn new(
        world: &'static World,
        lane: usize,
        interface: usize,
        endpoint: Option<usize>,
        bytes: &[u8],
    ) -> Result<FakeKey, Failure> {
        let region = u64::from_le_bytes(bytes.try_into().map_err(|_| Status::KeyRejected)?);
        let mut state = world.state();
        if state.memory.get(&region).is_none_or(|memory| memory.lane != lane) {
            return Err(Failure::new(Status::KeyRejected, "there is no such registration"));
        }
        if endpoint.is_some() == (state.lanes[lane].caps & caps::INTERFACE_KEYS != 0) {
            state.fault("a key was imported where the module does not want it");
        }
        state.keys += 1;
        Ok(FakeKey { world, lane, interface, endpoint, region })
    }
}

impl Drop for FakeKey {
    fn drop(&mut self) {
        {
            let mut state = self.world.state();
            state.keys -= 1;
            if self.endpoint.is_some_and(|endpoint| !state.endpoints[endpoint].open) {
                state.fault("a key was dropped after its endpoint");
            }
            if !state.interfaces[self.interface].open {
                state.fault("a key was dropped after its interface");
            }
        }
        let slot = if self.endpoint.is_some() { Slot::DropKey } else { Slot::DropShared };
        let _ = ask(self.world, self.lane, self.interface, slot);
    }
}
