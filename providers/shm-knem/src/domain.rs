//! The domain: registers memory with the driver and in the table that peers read.

use std::sync::Arc;

use tieline_memory_file::Facts;
use tieline_plugin_api::abi::{Cost, KeyParams, ModuleAttr, RegisterParams, fixed};
use tieline_plugin_api::{
    Absent, Domain, Failure, Revoked, Status, access, caps, connects, cost_class, role,
};

use crate::interface::KnemInterface;
use crate::keys::{Owner, Registration};
use crate::probe::{ADDRESS_LEN, Address, Card};
use crate::sys::Kernel;
use crate::{MODULE, endpoint};

/// The memory of this process, as one context exposes it to its peers.
pub struct KnemDomain {
    owner: Arc<Owner>,
    card: Card,
    address: Address,
}

impl KnemDomain {
    pub(crate) fn new(kernel: Arc<dyn Kernel>) -> Result<KnemDomain, Failure> {
        let owner = Arc::new(Owner::new(kernel)?);
        let card = Card::new(&owner)?;
        let address = Address {
            facts: Facts::current_process(),
            nonce: owner.nonce,
            card: card.cookie(),
            table: owner.table.descriptor(),
            announcements: owner.announcements.descriptor(),
        };
        Ok(KnemDomain { owner, card, address })
    }
}

impl Domain for KnemDomain {
    type Interface = KnemInterface;
    type Connector = Absent;
    type Region = Registration;

    fn modules(&self) -> Vec<ModuleAttr> {
        // A copy takes one system call and two liveness checks of the peer; UCX also uses 1200 ns for knem. The copy itself runs at
        // memcpy's speed, because the target's pages are already pinned.
        let rma = Cost { overhead_ns: 1400.0, latency_ns: 0.0, bytes_per_second: 11e9 };
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
            // The priority is below that of shm-cma, which needs no registration, and above that of every network module.
            priority: 65,
            max_iov: endpoint::MAX_IOV,
            max_address_len: ADDRESS_LEN as u32,
            ..ModuleAttr::empty()
        };
        attr.cost[cost_class::SMALL_RMA] = rma;
        attr.cost[cost_class::BULK_RMA] = rma;
        vec![attr]
    }

    fn open_interface(&self, module: &str, _worker_id: [u8; 16]) -> Result<KnemInterface, Failure> {
        if module != MODULE {
            return Err(Failure::new(
                Status::NoDevice,
                format!("shm-knem has no module `{module}`, only `{MODULE}`"),
            ));
        }
        let _ = &self.card; // the card lives as long as the domain
        Ok(KnemInterface::new(self.owner.clone(), self.address))
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
        let rights = rights & (access::REMOTE_READ | access::REMOTE_WRITE);
        Ok(Registration::new(&self.owner, start, len as u64, rights))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::double::Played;
    use tieline_plugin_api::Interface;

    fn domain() -> KnemDomain {
        KnemDomain::new(Arc::new(Played::default())).unwrap()
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
        // Every copy is one system call, whatever its size.
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
        assert_eq!(open.address().len(), ADDRESS_LEN);
        assert!(open.memory().base_bytes >= domain.owner.table.bytes() as u64);
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
