//! The interface: an address, and the question whether a peer's can be reached. It has no events.

use crate::endpoint::CmaEndpoint;
use crate::probe::{self, Address};
use crate::sys;
use tieline_plugin_api::{Events, Failure, Interface, MemoryReport, Status};

/// The module `copy`, opened for one worker.
pub struct CmaInterface {
    address: Address,
}

impl CmaInterface {
    /// Opens the module. Here, and not when the provider is loaded, the process is opened to its peers where
    /// Yama wants that: an interface means that the core has chosen this lane.
    pub(crate) fn new(address: Address, may_set_ptracer: bool) -> CmaInterface {
        if may_set_ptracer && probe::yama_scope() == Some(1) {
            sys::let_anyone_attach();
        }
        CmaInterface { address }
    }
}

impl Interface for CmaInterface {
    type Endpoint = CmaEndpoint;

    fn address(&self) -> Vec<u8> {
        self.address.encode()
    }

    fn reachable(&self, address: &[u8]) -> Result<(), Failure> {
        probe::reach(&self.address.facts, &Address::decode(address)?).map(drop)
    }

    fn connect(
        &self,
        address: &[u8],
        _identity: &[u8],
        _cookie: u64,
    ) -> Result<CmaEndpoint, Failure> {
        let peer = Address::decode(address)?;
        let accessor = probe::reach(&self.address.facts, &peer)?;
        Ok(CmaEndpoint::new(peer, accessor))
    }

    fn poll(&self, _events: &mut Events<'_>) -> Result<(), Status> {
        Ok(())
    }

    fn memory(&self) -> MemoryReport {
        MemoryReport { base_bytes: size_of::<CmaInterface>() as u64, ..MemoryReport::default() }
    }
}
