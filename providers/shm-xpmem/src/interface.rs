//! The interface: an address, and the test whether a peer can be reached. The interface has no events.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use tieline_memory_file::Nonce;
use tieline_plugin_api::{Events, Failure, Interface, MemoryReport, Status};

use crate::device::Lease;
use crate::endpoint::XpmemEndpoint;
use crate::model::Costs;
use crate::probe::{self, Address};
use crate::settings::Settings;

/// The module `attach`, opened for one worker.
pub struct XpmemInterface {
    lease: Arc<Lease>,
    settings: Settings,
    /// The measured costs on this machine, if accesses may be declined.
    costs: Option<Costs>,
    address: Address,
    /// The owners that the interface's endpoints reach.
    peers: RefCell<Vec<Weak<Nonce>>>,
}

impl XpmemInterface {
    pub(crate) fn new(
        lease: Arc<Lease>,
        settings: &Settings,
        costs: Option<Costs>,
        address: Address,
    ) -> XpmemInterface {
        let (settings, peers) = (settings.clone(), RefCell::default());
        XpmemInterface { lease, settings, costs, address, peers }
    }

    fn reach(&self, address: &[u8]) -> Result<probe::Peer, Failure> {
        probe::reach(
            &self.lease,
            self.settings.page,
            &self.address.facts,
            &Address::decode(address)?,
        )
    }
}

impl Interface for XpmemInterface {
    type Endpoint = XpmemEndpoint;

    fn address(&self) -> Vec<u8> {
        self.address.encode()
    }

    fn reachable(&self, address: &[u8]) -> Result<(), Failure> {
        self.reach(address).map(drop)
    }

    fn connect(
        &self,
        address: &[u8],
        _identity: &[u8],
        _cookie: u64,
    ) -> Result<XpmemEndpoint, Failure> {
        let peer = self.reach(address)?;
        let name = Rc::new(peer.nonce);
        let mut peers = self.peers.borrow_mut();
        peers.retain(|peer| peer.strong_count() > 0);
        peers.push(Rc::downgrade(&name));
        // A declined access is served by another lane. That lane is better than messages only if the kernel can copy between these
        // two processes.
        let costs = self.costs.filter(|_| peer.kernel_copies);
        Ok(XpmemEndpoint::new(self.lease.clone(), &self.settings, costs, peer, name))
    }

    fn poll(&self, _events: &mut Events<'_>) -> Result<(), Status> {
        Ok(())
    }

    /// Returns the memory report. Attachments are reported as memory of their owners, mapped in this process.
    fn memory(&self) -> MemoryReport {
        let mut peers: Vec<Nonce> =
            self.peers.borrow().iter().filter_map(Weak::upgrade).map(|peer| *peer).collect();
        peers.sort_unstable();
        peers.dedup();
        let attached = peers.iter().map(|peer| self.lease.attachments.of(peer)).sum();
        MemoryReport {
            base_bytes: size_of::<XpmemInterface>() as u64,
            peer_bytes: attached,
            peers: peers.len() as u64,
            ..MemoryReport::default()
        }
    }
}
