//! The interface: an address, and the question whether a peer's can be reached. It has no events.

use std::sync::Arc;

use tieline_plugin_api::{Events, Failure, Interface, MemoryReport, Status};

use crate::endpoint::KnemEndpoint;
use crate::probe::{self, Address};
use crate::sys::Kernel;

/// The module `copy`, opened for one worker.
pub struct KnemInterface {
    kernel: Arc<dyn Kernel>,
    address: Address,
}

impl KnemInterface {
    pub(crate) fn new(kernel: Arc<dyn Kernel>, address: Address) -> KnemInterface {
        KnemInterface { kernel, address }
    }
}

impl Interface for KnemInterface {
    type Endpoint = KnemEndpoint;

    fn address(&self) -> Vec<u8> {
        self.address.encode()
    }

    fn reachable(&self, address: &[u8]) -> Result<(), Failure> {
        probe::reach(&self.kernel, &self.address.facts, &Address::decode(address)?).map(drop)
    }

    fn connect(
        &self,
        address: &[u8],
        _identity: &[u8],
        _cookie: u64,
    ) -> Result<KnemEndpoint, Failure> {
        let peer = probe::reach(&self.kernel, &self.address.facts, &Address::decode(address)?)?;
        Ok(KnemEndpoint::new(self.kernel.clone(), peer))
    }

    fn poll(&self, _events: &mut Events<'_>) -> Result<(), Status> {
        Ok(())
    }

    fn memory(&self) -> MemoryReport {
        MemoryReport { base_bytes: size_of::<KnemInterface>() as u64, ..MemoryReport::default() }
    }
}
