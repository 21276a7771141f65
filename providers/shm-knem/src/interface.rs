//! The interface: an address, and the test whether a peer can be reached. The interface has no events.

use std::sync::Arc;

use tieline_memory_file::Held;
use tieline_plugin_api::{Events, Failure, Interface, MemoryReport, Status};

use crate::endpoint::KnemEndpoint;
use crate::keys::Owner;
use crate::probe::{self, Address};

/// The module `copy`, opened for one worker.
pub struct KnemInterface {
    owner: Arc<Owner>,
    address: Address,
    held: Held,
}

impl KnemInterface {
    pub(crate) fn new(owner: Arc<Owner>, address: Address) -> KnemInterface {
        KnemInterface { owner, address, held: Held::default() }
    }
}

impl Interface for KnemInterface {
    type Endpoint = KnemEndpoint;

    fn address(&self) -> Vec<u8> {
        self.address.encode()
    }

    fn reachable(&self, address: &[u8]) -> Result<(), Failure> {
        let address = Address::decode(address)?;
        probe::reach(&self.owner.kernel, &self.address.facts, &address).map(drop)
    }

    fn connect(
        &self,
        address: &[u8],
        _identity: &[u8],
        _cookie: u64,
    ) -> Result<KnemEndpoint, Failure> {
        let kernel = &self.owner.kernel;
        let peer = probe::reach(kernel, &self.address.facts, &Address::decode(address)?)?;
        Ok(KnemEndpoint::new(kernel.clone(), peer, self.held.by_endpoint()))
    }

    fn poll(&self, _events: &mut Events<'_>) -> Result<(), Status> {
        Ok(())
    }

    /// Returns the memory report. Every interface reports the domain's files.
    fn memory(&self) -> MemoryReport {
        let files = self.owner.table.bytes() + self.owner.announcements.bytes();
        self.held.report(size_of::<KnemInterface>() + files)
    }
}
