//! The domain: registers memory in the process's key table.

use crate::interface::CmaInterface;
use crate::keys::{self, Card, Cookie, Registration};
use crate::probe::{ADDRESS_LEN, Address};
use crate::{MODULE, endpoint};
use std::sync::Arc;
use tieline_memory_file::{Announcements, Facts};
use tieline_plugin_api::abi::{Cost, KeyParams, ModuleAttr, RegisterParams, fixed};
use tieline_plugin_api::{
    Absent, Domain, Failure, Revoked, Status, caps, connects, cost_class, role,
};

/// The memory of this process, as one context exposes it to its peers.
pub struct CmaDomain {
    cookie: Cookie,
    facts: Facts,
    /// A key-table entry for peers to read before the first access.
    card: Registration,
    /// The file on which peers announce their accesses; `None` if memory files are forbidden. Peers then have no access.
    announcements: Option<Arc<Announcements>>,
    may_set_ptracer: bool,
}

impl CmaDomain {
    /// Opens the domain. `may_set_ptracer` allows the domain to open this process to others of the same user if Yama's
    /// `ptrace_scope` is 1 (`TIELINE_SHM_CMA_PTRACER`).
    ///
    /// # Errors
    /// The kernel supplies no random numbers.
    pub fn new(may_set_ptracer: bool) -> Result<CmaDomain, Failure> {
        let cookie = keys::cookie()?;
        let announcements = match Announcements::new(&cookie) {
            Ok(announcements) => Some(Arc::new(announcements)),
            Err(failure) if failure.status == Status::Unsupported => None,
            Err(failure) => return Err(failure),
        };
        let card = Card { descriptor: announcements.as_ref().map(|all| all.descriptor()) };
        Ok(CmaDomain {
            cookie,
            facts: Facts::current_process(),
            card: card.register(&cookie),
            announcements,
            may_set_ptracer,
        })
    }
}

impl Domain for CmaDomain {
    type Interface = CmaInterface;
    type Connector = Absent;
    type Region = Registration;

    fn modules(&self) -> Vec<ModuleAttr> {
        // A put takes two small system calls, a get takes one. The copy itself runs at memcpy's speed minus the cost of pinning
        // pages.
        let rma = Cost { overhead_ns: 1000.0, latency_ns: 0.0, bytes_per_second: 12e9 };
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
            // Above every network module, and below shm, which needs no system call.
            priority: 70,
            max_iov: endpoint::MAX_IOV,
            max_address_len: ADDRESS_LEN as u32,
            ..ModuleAttr::empty()
        };
        attr.cost[cost_class::SMALL_RMA] = rma;
        attr.cost[cost_class::BULK_RMA] = rma;
        vec![attr]
    }

    fn open_interface(&self, module: &str, _worker_id: [u8; 16]) -> Result<CmaInterface, Failure> {
        if module != MODULE {
            return Err(Failure::new(
                Status::NoDevice,
                format!("shm-cma has no module `{module}`, only `{MODULE}`"),
            ));
        }
        let address =
            Address { facts: self.facts, cookie: self.cookie, cookie_at: self.card.address() };
        Ok(CmaInterface::new(address, self.announcements.clone(), self.may_set_ptracer))
    }

    fn register(&self, memory: &RegisterParams) -> Result<Registration, Failure> {
        let (base, len, access) = memory.host_memory()?;
        let start = base.expose_provenance() as u64;
        if start == 0 || start.checked_add(len as u64).is_none() {
            return Err(Failure::new(
                Status::Invalid,
                format!("{len} bytes at address {start:#x} are no memory of this process"),
            ));
        }
        let announcements = self.announcements.clone();
        Ok(Registration::new(&self.cookie, start, len as u64, access, announcements))
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
