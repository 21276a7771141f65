//! The mechanism: registers memory with the driver and in the table that peers read.

use std::sync::Arc;

use tieline_memory_file::Held;
use tieline_plugin_api::abi::{Cost, ModuleAttr};
use tieline_plugin_api::{Failure, MemoryReport, Revoked, access, cost_class};
use tieline_single_copy::{
    Address, Keys, Mechanism, SingleCopyDomain, SingleCopyInterface, TablePeer,
};

use crate::KnemEndpoint;
use crate::keys::{KEYS, Owner, Registration};
use crate::probe::{self, Card, MAGIC};
use crate::sys::Kernel;

/// The domain: the memory of this process, as one context exposes it to its peers.
pub type KnemDomain = SingleCopyDomain<Knem>;
/// The module `copy`, opened for one worker.
pub type KnemInterface = SingleCopyInterface<Knem>;

/// Copies by the kernel module knem.
pub struct Knem {
    owner: Arc<Owner>,
    /// The card, which lives as long as the domain.
    _card: Card,
    address: Address<2>,
}

impl TryFrom<Arc<dyn Kernel>> for Knem {
    type Error = Failure;

    fn try_from(kernel: Arc<dyn Kernel>) -> Result<Knem, Failure> {
        let owner = Arc::new(Owner::new(kernel)?);
        let card = Card::new(&owner)?;
        let address = owner.shared.address(card.cookie());
        Ok(Knem { owner, _card: card, address })
    }
}

impl Mechanism for Knem {
    const MODULE: &'static str = crate::MODULE;
    const KEYS: Keys = KEYS;
    const ADDRESS_LEN: usize = Address::<2>::LEN;
    type Region = Registration;
    type Peer = TablePeer<3>;
    type Endpoint = KnemEndpoint;
    type Local = Held;

    fn describe(&self, attr: &mut ModuleAttr) {
        // The priority is below that of shm-cma, which needs no registration, and above that of every network module.
        attr.priority = 65;
        // A copy takes one system call per batch and two liveness checks of the peer; UCX assumes 1200 ns for knem. The copy itself
        // runs at about memcpy's speed, because the target's pages are already pinned.
        let rma = Cost { overhead_ns: 1400.0, latency_ns: 0.0, bytes_per_second: 11e9 };
        attr.cost[cost_class::SMALL_RMA] = rma;
        attr.cost[cost_class::BULK_RMA] = rma;
    }

    fn register(&self, start: u64, len: u64, rights: u64) -> Result<Registration, Failure> {
        let rights = rights & (access::REMOTE_READ | access::REMOTE_WRITE);
        Ok(Registration::new(&self.owner, start, len, rights))
    }

    fn revoke(&self, region: &Registration) -> Revoked {
        region.revoke()
    }

    fn pack(&self, region: &Registration, out: &mut [u8]) -> Result<(), Failure> {
        region.pack(out)
    }

    fn open(&self) -> Held {
        Held::default()
    }

    fn address(&self) -> Vec<u8> {
        self.address.encode(MAGIC)
    }

    fn reach(&self, address: &[u8]) -> Result<TablePeer<3>, Failure> {
        probe::reach(&*self.owner.kernel, &self.address.facts, address)
    }

    fn connect(&self, held: &Held, peer: TablePeer<3>) -> KnemEndpoint {
        KnemEndpoint::new(self.owner.kernel.clone(), peer, held.by_endpoint())
    }

    /// Returns the memory report. Every interface reports the domain's files.
    fn memory(&self, held: &Held, base: usize) -> MemoryReport {
        let shared = &self.owner.shared;
        held.report(base + shared.table.bytes() + shared.announcements.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MODULE;
    use crate::double::Played;
    use tieline_plugin_api::abi::RegisterParams;
    use tieline_plugin_api::{Domain, Interface, Status, caps, connects, role};

    fn domain() -> KnemDomain {
        let kernel: Arc<dyn Kernel> = Arc::new(Played::default());
        KnemDomain::new(kernel).unwrap()
    }

    #[test]
    fn module_has_only_the_capabilities_of_synchronous_copies() {
        let modules = domain().modules();
        let [module] = &modules[..] else { panic!("{} modules", modules.len()) };
        let claimed = [
            caps::PUT,
            caps::GET,
            caps::REMOTE_COMPLETION,
            caps::PASSIVE_TARGET,
            caps::SYNCHRONOUS,
            caps::LOCAL_ONLY,
            caps::CHECKS_KEYS,
            caps::ANY_THREAD,
        ];
        assert_eq!(claimed.iter().fold(module.caps, |left, one| left & !one), 0);
        assert!(claimed.iter().all(|one| module.caps & one == *one));
        assert_eq!((module.role, module.connects), (role::DATA, connects::TO_INTERFACE));
        // shm-cma has 70, and verbs/rc, the highest network module, 60.
        assert_eq!(module.priority, 65);
        // A contiguous copy of any size takes one call of the driver.
        for class in [cost_class::SMALL_RMA, cost_class::BULK_RMA] {
            let cost = module.cost[class];
            assert!(cost.overhead_ns > 1000.0 && cost.bytes_per_second > 1e9, "{class}");
        }
    }

    #[test]
    fn unknown_module_is_refused_by_name_and_own_one_has_no_events() {
        let domain = domain();
        let refused = domain.open_interface("ring", [0; 16]).err().unwrap();
        assert_eq!(refused.status, Status::NoDevice);
        assert!(refused.text.contains("`ring`"), "{refused:?}");
        let open = domain.open_interface(MODULE, [0; 16]).unwrap();
        assert_eq!(open.address().len(), 84);
        assert!(open.memory().base_bytes > 4096, "with the table");
    }

    #[test]
    fn memory_at_no_address_and_memory_beyond_the_last_one_are_not_registered() {
        let domain = domain();
        let register = |base: usize, len: usize| {
            let base = std::ptr::without_provenance_mut(base);
            domain.register(&RegisterParams::new(base, len, access::REMOTE_READ)).map(drop)
        };
        let status = |base, len| register(base, len).map_err(|failure| failure.status);
        assert_eq!(status(0, 64), Err(Status::Invalid));
        assert_eq!(status(usize::MAX - 62, 64), Err(Status::Invalid));
        assert_eq!(status(4096, 64), Ok(()));
    }
}
