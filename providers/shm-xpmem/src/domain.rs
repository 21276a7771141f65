//! The mechanism: registers memory with the kernel module and in the table that peers read.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Once};

use tieline_memory_file::Nonce;
use tieline_plugin_api::abi::{Cost, ModuleAttr};
use tieline_plugin_api::{
    Failure, HostHandle, MemoryReport, Revoked, access, caps, cost_class, log_level,
};
use tieline_single_copy::{Address, Keys, Mechanism, SingleCopyDomain, SingleCopyInterface};

use crate::device::Lease;
use crate::keys::{KEYS, Owner, Registration};
use crate::model::Costs;
use crate::probe::{self, Card, MAGIC, Peer};
use crate::settings::{Reach, Settings};
use crate::{XpmemEndpoint, model};

/// The domain: the memory of this process, as one context exposes it to its peers.
pub type XpmemDomain = SingleCopyDomain<Xpmem>;
/// The module `attach`, opened for one worker.
pub type XpmemInterface = SingleCopyInterface<Xpmem>;

/// Attaches memory by the kernel module xpmem.
pub struct Xpmem {
    owner: Arc<Owner>,
    /// The card, which lives as long as the domain.
    _card: Card,
    address: Address<2>,
    /// The host that receives a one-time note for the operator; `None` in tests.
    host: Option<HostHandle>,
    told: Once,
}

/// The own state of an interface.
pub struct Local {
    /// The measured costs on this machine, if accesses may be declined.
    costs: Option<Costs>,
    /// The owners that the interface's endpoints reach.
    peers: RefCell<Vec<Weak<Nonce>>>,
}

/// The parts from which the mechanism is made.
pub(crate) type Parts = (Arc<Lease>, Settings, Option<HostHandle>);

impl TryFrom<Parts> for Xpmem {
    type Error = Failure;

    fn try_from((lease, settings, host): Parts) -> Result<Xpmem, Failure> {
        let page = settings.page;
        let owner = Arc::new(Owner::new(lease, settings)?);
        let card = Card::new(&owner.lease, &owner.shared.nonce, page)?;
        let address = owner.shared.address(card.segment() as u64);
        Ok(Xpmem { owner, _card: card, address, host, told: Once::new() })
    }
}

impl Mechanism for Xpmem {
    const MODULE: &'static str = crate::MODULE;
    const KEYS: Keys = KEYS;
    const ADDRESS_LEN: usize = Address::<2>::LEN;
    type Region = Registration;
    type Peer = Peer;
    type Endpoint = XpmemEndpoint;
    type Local = Local;

    fn describe(&self, attr: &mut ModuleAttr) {
        match self.owner.settings.reach {
            Reach::Copy => {
                // A copy takes one system call, which looks up the local pages, and one liveness check of the peer; shm-cma costs
                // about the same. The first access to a window also attaches it and faults its pages in. The priority is therefore
                // below that of shm-cma, and above that of shm-knem, which pins memory. It is above that of every network module.
                let rma = Cost { overhead_ns: 1200.0, latency_ns: 0.0, bytes_per_second: 11e9 };
                attr.cost[cost_class::SMALL_RMA] = rma;
                attr.cost[cost_class::BULK_RMA] = rma;
                attr.priority = 68;
            }
            Reach::Direct => {
                attr.caps |= caps::ATOMICS | caps::KEY_POINTER | caps::DIES_WITH_OWNER;
                let all = 0xff; // every operation of `atomic_op`
                (attr.atomic_post32, attr.atomic_post64) = (all, all);
                (attr.atomic_fetch32, attr.atomic_fetch64) = (all, all);
                let cost = |overhead_ns, bytes_per_second| Cost {
                    overhead_ns,
                    latency_ns: 50.0,
                    bytes_per_second,
                };
                attr.cost[cost_class::SMALL_RMA] = cost(30.0, 12e9);
                attr.cost[cost_class::BULK_RMA] = cost(100.0, 12e9);
                attr.cost[cost_class::ATOMIC] = cost(40.0, 0.0);
                attr.priority = 75;
            }
        }
    }

    fn register(&self, start: u64, len: u64, rights: u64) -> Result<Registration, Failure> {
        let served = match self.owner.settings.reach {
            Reach::Copy => access::REMOTE_READ | access::REMOTE_WRITE,
            Reach::Direct => access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC,
        };
        Registration::new(&self.owner, start, len, rights & served)
    }

    fn revoke(&self, region: &Registration) -> Revoked {
        region.revoke()
    }

    fn pack(&self, region: &Registration, out: &mut [u8]) -> Result<(), Failure> {
        region.pack(out);
        Ok(())
    }

    fn open(&self) -> Local {
        let costs = model::costs(&*self.owner.lease.kernel, &self.owner.settings);
        if let (Some(costs), Some(host)) = (costs, self.host) {
            self.told.call_once(|| host.log(log_level::INFO, &costs.to_string()));
        }
        Local { costs, peers: RefCell::default() }
    }

    fn address(&self) -> Vec<u8> {
        self.address.encode(MAGIC)
    }

    fn reach(&self, address: &[u8]) -> Result<Peer, Failure> {
        let Owner { lease, settings, .. } = &*self.owner;
        probe::reach(lease, settings.page, &self.address.facts, address)
    }

    fn connect(&self, local: &Local, peer: Peer) -> XpmemEndpoint {
        let name = Rc::new(peer.theirs.nonce);
        let mut peers = local.peers.borrow_mut();
        peers.retain(|peer| peer.strong_count() > 0);
        peers.push(Rc::downgrade(&name));
        // A declined access is served by another lane. That lane is better than messages only if the kernel can copy between these
        // two processes.
        let costs = local.costs.filter(|_| peer.kernel_copies);
        XpmemEndpoint::new(self.owner.lease.clone(), &self.owner.settings, costs, peer, name)
    }

    /// Returns the memory report. Attachments are reported as memory of their owners, mapped in this process.
    fn memory(&self, local: &Local, base: usize) -> MemoryReport {
        let mut peers: Vec<Nonce> =
            local.peers.borrow().iter().filter_map(Weak::upgrade).map(|peer| *peer).collect();
        peers.sort_unstable();
        peers.dedup();
        let attached = peers.iter().map(|peer| self.owner.lease.attachments.of(peer)).sum();
        MemoryReport {
            base_bytes: base as u64,
            peer_bytes: attached,
            peers: peers.len() as u64,
            ..MemoryReport::default()
        }
    }
}
