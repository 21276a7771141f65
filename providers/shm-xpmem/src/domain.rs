//! The domain: registers memory with the kernel module and in the table that peers read.

use std::sync::{Arc, Once};

use tieline_memory_file::Facts;
use tieline_plugin_api::abi::{Cost, KeyParams, ModuleAttr, RegisterParams, fixed};
use tieline_plugin_api::{
    Absent, Domain, Failure, HostHandle, Revoked, Status, access, caps, connects, cost_class,
    log_level, role,
};

use crate::device::Lease;
use crate::interface::XpmemInterface;
use crate::keys::{Owner, Registration};
use crate::probe::{ADDRESS_LEN, Address, Card};
use crate::settings::{Reach, Settings};
use crate::{MODULE, endpoint, model};

/// The memory of this process, as one context exposes it to its peers.
pub struct XpmemDomain {
    owner: Arc<Owner>,
    /// The card, which lives as long as the domain.
    _card: Card,
    address: Address,
    /// The host that receives a one-time note for the operator; `None` in tests.
    host: Option<HostHandle>,
    told: Once,
}

impl XpmemDomain {
    pub(crate) fn new(
        lease: Arc<Lease>,
        settings: Settings,
        host: Option<HostHandle>,
    ) -> Result<XpmemDomain, Failure> {
        let page = settings.page;
        let owner = Arc::new(Owner::new(lease, settings)?);
        let card = Card::new(&owner.lease, &owner.nonce, page)?;
        let address = Address {
            facts: Facts::current_process(),
            nonce: owner.nonce,
            card: card.segment(),
            table: owner.table.descriptor(),
            announcements: owner.announcements.descriptor(),
        };
        Ok(XpmemDomain { owner, _card: card, address, host, told: Once::new() })
    }
}

impl Domain for XpmemDomain {
    type Interface = XpmemInterface;
    type Connector = Absent;
    type Region = Registration;

    fn modules(&self) -> Vec<ModuleAttr> {
        let mut attr = ModuleAttr {
            name: fixed(MODULE),
            role: role::DATA,
            connects: connects::TO_INTERFACE,
            caps: caps::PUT
                | caps::GET
                | caps::REMOTE_COMPLETION
                | caps::PASSIVE_TARGET
                | caps::SYNCHRONOUS
                | caps::LOCAL_ONLY
                | caps::CHECKS_KEYS
                | caps::ANY_THREAD,
            max_iov: endpoint::MAX_IOV,
            max_address_len: ADDRESS_LEN as u32,
            ..ModuleAttr::empty()
        };
        match self.owner.settings.reach {
            Reach::Copy => {
                // A copy takes one system call, which looks up the local pages, and one liveness check of the peer; shm-cma has the
                // same cost. The first access to a window also attaches it and faults its pages in. The priority is therefore below
                // that of shm-cma, and above that of shm-knem, which pins all registered memory. It is above that of every network module.
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
        vec![attr]
    }

    fn open_interface(
        &self,
        module: &str,
        _worker_id: [u8; 16],
    ) -> Result<XpmemInterface, Failure> {
        if module != MODULE {
            return Err(Failure::new(
                Status::NoDevice,
                format!("shm-xpmem has no module `{module}`, only `{MODULE}`"),
            ));
        }
        let (lease, settings) = (self.owner.lease.clone(), &self.owner.settings);
        let costs = model::costs(&*lease.kernel, settings);
        if let (Some(costs), Some(host)) = (costs, self.host) {
            self.told.call_once(|| host.log(log_level::INFO, &costs.to_string()));
        }
        Ok(XpmemInterface::new(lease, settings, costs, self.address))
    }

    fn register(&self, memory: &RegisterParams) -> Result<Registration, Failure> {
        let (base, len, rights) = memory.host_memory()?;
        let start = base.expose_provenance() as u64;
        if start == 0 || start.checked_add(len as u64).is_none() {
            return Err(Failure::new(
                Status::Invalid,
                format!("{len} bytes at address {start:#x} are no memory of this process"),
            ));
        }
        let served = match self.owner.settings.reach {
            Reach::Copy => access::REMOTE_READ | access::REMOTE_WRITE,
            Reach::Direct => access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC,
        };
        let rights = rights & served;
        Registration::new(&self.owner, start, len as u64, rights)
    }

    fn revoke(&self, region: &Registration) -> Revoked {
        region.revoke()
    }

    fn pack_key(
        &self,
        region: &Registration,
        key: &KeyParams,
        out: &mut [u8],
    ) -> Result<usize, Failure> {
        key.whole()?;
        region.pack(out)
    }
}
