//! The interface: an address, and the test whether a peer can be reached. The interface has no events.

use crate::endpoint::CmaEndpoint;
use crate::keys;
use crate::probe::{self, Address};
use crate::sys;
use std::sync::Arc;
use tieline_memory_file::{Announcements, Held};
use tieline_plugin_api::{Events, Failure, Interface, MemoryReport, Status};

/// The module `copy`, opened for one worker.
pub struct CmaInterface {
    address: Address,
    announcements: Option<Arc<Announcements>>,
    held: Held,
}

impl CmaInterface {
    /// Opens the module. If Yama requires it, the process is opened to its peers here and not when the provider is loaded: only an
    /// interface means that the core has selected this lane.
    pub(crate) fn new(
        address: Address,
        announcements: Option<Arc<Announcements>>,
        may_set_ptracer: bool,
    ) -> CmaInterface {
        if may_set_ptracer && probe::yama_scope() == Some(1) {
            sys::let_anyone_attach();
        }
        CmaInterface { address, announcements, held: Held::default() }
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
        Ok(CmaEndpoint::new(peer, accessor, self.held.by_endpoint()))
    }

    fn poll(&self, _events: &mut Events<'_>) -> Result<(), Status> {
        Ok(())
    }

    /// Returns the memory report. Every interface reports the domain's file and the process's key table.
    fn memory(&self) -> MemoryReport {
        let file = self.announcements.as_ref().map_or(0, |all| all.bytes());
        self.held.report(size_of::<CmaInterface>() + file + keys::table_bytes())
    }
}
