//! The mechanism: registers memory in the process's key table, and copies by system calls.

use crate::keys::{self, Card, KEYS, Registration};
use crate::probe::{self, MAGIC};
use crate::{CmaEndpoint, sys};
use std::sync::{Arc, OnceLock};
use tieline_memory_file::{Accessor, Announcements, Facts, Held, Nonce};
use tieline_plugin_api::abi::{Cost, ModuleAttr};
use tieline_plugin_api::{Failure, MemoryReport, Revoked, Status, caps, cost_class, memory_caps};
use tieline_single_copy::{Address, Keys, Mechanism, SingleCopyDomain, SingleCopyInterface};

/// The domain: the memory of this process, as one context exposes it to its peers.
pub type CmaDomain = SingleCopyDomain<Cma>;
/// The module `copy`, opened for one worker.
pub type CmaInterface = SingleCopyInterface<Cma>;

/// Copies by `process_vm_writev` and `process_vm_readv`.
pub struct Cma {
    nonce: Nonce,
    /// The address of the interfaces, made for the first of them.
    address: OnceLock<Address<0>>,
    /// A key-table entry for peers to read before the first access.
    card: Registration,
    /// The file on which peers announce their accesses; `None` if memory files are forbidden. Peers then have no access.
    announcements: Option<Arc<Announcements>>,
    may_set_ptracer: bool,
}

/// Makes the mechanism. The value allows it to open this process to others of the same user if Yama's `ptrace_scope` is 1
/// (`TIELINE_SHM_CMA_PTRACER`). Fails if the kernel supplies no random numbers, memory or descriptor.
impl TryFrom<bool> for Cma {
    type Error = Failure;

    fn try_from(may_set_ptracer: bool) -> Result<Cma, Failure> {
        let nonce = keys::cookie()?;
        let announcements = match Announcements::new(&nonce) {
            Ok(announcements) => Some(Arc::new(announcements)),
            Err(failure) if failure.status == Status::Unsupported => None,
            Err(failure) => return Err(failure),
        };
        let card = Card { descriptor: announcements.as_ref().map(|all| all.descriptor()) };
        let card = card.register(&nonce);
        Ok(Cma { nonce, address: OnceLock::new(), card, announcements, may_set_ptracer })
    }
}

impl Cma {
    fn own_address(&self) -> &Address<0> {
        self.address.get_or_init(|| {
            let facts = Facts::current_process();
            Address { facts, nonce: self.nonce, card: self.card.address(), files: [] }
        })
    }
}

impl Mechanism for Cma {
    const MODULE: &'static str = crate::MODULE;
    const KEYS: Keys = KEYS;
    const ADDRESS_LEN: usize = Address::<0>::LEN;
    // The kernel permits the copies or refuses them, whatever keys a process has.
    const MEMORY_CAPS: u64 = memory_caps::KEYS_ADD_NO_RIGHT;
    type Region = Registration;
    type Peer = (Address<0>, Accessor);
    type Endpoint = CmaEndpoint;
    type Local = Held;

    fn describe(&self, attr: &mut ModuleAttr) {
        // Above every network module, and below shm, which needs no system call.
        attr.priority = 70;
        attr.caps |= caps::RMA_LIST;
        // A small put takes two system calls, a small get takes one. The copy itself runs at about memcpy's speed minus the cost of
        // pinning pages.
        let rma = Cost { overhead_ns: 1000.0, latency_ns: 0.0, bytes_per_second: 12e9 };
        attr.cost[cost_class::SMALL_RMA] = rma;
        attr.cost[cost_class::BULK_RMA] = rma;
    }

    fn register(&self, start: u64, len: u64, rights: u64) -> Result<Registration, Failure> {
        let announcements = self.announcements.clone();
        Ok(Registration::new(&self.nonce, start, len, rights, announcements))
    }

    fn revoke(&self, region: &Registration) -> Revoked {
        region.revoke()
    }

    fn pack(&self, region: &Registration, out: &mut [u8]) -> Result<(), Failure> {
        region.pack(out);
        Ok(())
    }

    /// If Yama requires it, the process is opened to its peers here and not when the provider is loaded. Only an interface means
    /// that the core has selected this lane.
    fn open(&self) -> Held {
        if self.may_set_ptracer && probe::yama_scope() == Some(1) {
            sys::let_anyone_attach();
        }
        Held::default()
    }

    fn address(&self) -> Vec<u8> {
        self.own_address().encode(MAGIC)
    }

    fn reach(&self, address: &[u8]) -> Result<(Address<0>, Accessor), Failure> {
        let peer = Address::decode(crate::DOMAIN, MAGIC, address)?;
        Ok((peer, probe::reach(&self.own_address().facts, &peer)?))
    }

    fn connect(&self, held: &Held, (peer, accessor): (Address<0>, Accessor)) -> CmaEndpoint {
        CmaEndpoint::new(peer, accessor, held.by_endpoint())
    }

    /// Returns the memory report. Every interface reports the domain's file and the process's key table.
    fn memory(&self, held: &Held, base: usize) -> MemoryReport {
        let file = self.announcements.as_ref().map_or(0, |all| all.bytes());
        held.report(base + file + keys::table_bytes())
    }
}
