//! The domain `shm`: memory that other processes of this host access by load and store.

use std::sync::{Arc, Mutex, Once, OnceLock};

use tieline_plugin_api::abi::{AllocParams, Cost, KeyParams, ModuleAttr, RegisterParams, fixed};
use tieline_plugin_api::{
    Absent, Allocation, Domain, Failure, HostHandle, Revoked, Status, caps, connects, cost_class,
    role,
};

use crate::config::Settings;
use crate::hello::{MAX_ADDRESS, MAX_IDENTITY};
use crate::interface::RingInterface;
use crate::keys::{Exports, Region};
use crate::pool::MAX_CHUNK;
use crate::shared::DomainState;
use crate::sys;

/// The longest payload of `am_short`, in bytes.
const MAX_SHORT: usize = 8 << 10;
/// The name of the domain's only module.
pub(crate) const MODULE: &str = "ring";

/// An open domain.
pub struct ShmDomain {
    state: Arc<DomainState>,
    settings: Settings,
}

impl ShmDomain {
    pub(crate) fn open(settings: Settings, log: HostHandle) -> Result<ShmDomain, Failure> {
        let state = DomainState {
            id: sys::random()?,
            host: OnceLock::new(),
            exports: Exports::default(),

            log: Some(log),
            warned: Once::new(),
            lacked: Mutex::default(),
        };
        Ok(ShmDomain { state: Arc::new(state), settings })
    }
}

fn costs() -> [Cost; cost_class::COUNT] {
    let mut costs = [Cost::default(); cost_class::COUNT];
    let cost = |overhead_ns, latency_ns, bytes_per_second| Cost {
        overhead_ns,
        latency_ns,
        bytes_per_second,
    };
    costs[cost_class::SMALL_MESSAGE] = cost(10.0, 60.0, 5e9);
    costs[cost_class::BULK_MESSAGE] = cost(60.0, 100.0, 30e9);
    costs[cost_class::SMALL_RMA] = cost(5.0, 50.0, 10e9);
    costs[cost_class::BULK_RMA] = cost(10.0, 50.0, 30e9);
    costs[cost_class::ATOMIC] = cost(20.0, 50.0, 0.0);
    costs
}

impl Domain for ShmDomain {
    type Interface = RingInterface;
    type Connector = Absent;
    type Region = Region;

    fn modules(&self) -> Vec<ModuleAttr> {
        let atomics = 0xff; // every operation of `atomic_op`
        vec![ModuleAttr {
            name: fixed(MODULE),
            role: role::DATA,
            connects: connects::TO_INTERFACE,
            caps: caps::AM_SHORT
                | caps::AM_PACKED
                | caps::AM_ZCOPY
                | caps::PUT
                | caps::PUT_NOTIFY
                | caps::GET
                | caps::RMA_LIST
                | caps::ATOMICS
                | caps::REMOTE_COMPLETION
                | caps::PASSIVE_TARGET
                | caps::PEER_FAILURE
                | caps::EVENT_FD
                | caps::NEEDS_POLL
                | caps::LOCAL_ONLY
                | caps::OWN_MEMORY_ONLY
                | caps::CHECKS_KEYS
                | caps::SYNCHRONOUS
                | caps::KEY_POINTER
                | caps::CONNECTED_SEND
                | caps::ANY_THREAD,
            notify_bits: 32,
            // Above every network module: within one host, shared memory is faster than a device.
            priority: 80,
            max_iov: 16,
            max_short: MAX_SHORT,
            max_packed: MAX_CHUNK,
            max_zcopy: MAX_CHUNK,
            atomic_post32: atomics,
            atomic_post64: atomics,
            atomic_fetch32: atomics,
            atomic_fetch64: atomics,
            cost: costs(),
            max_address_len: MAX_ADDRESS as u32,
            max_identity_len: MAX_IDENTITY as u32,
            ..ModuleAttr::empty()
        }]
    }

    fn open_interface(&self, module: &str, _worker: [u8; 16]) -> Result<RingInterface, Failure> {
        if module != MODULE {
            return Err(Failure::new(Status::NoDevice, format!("shm has no module {module:?}")));
        }
        RingInterface::open(self.state.clone(), self.settings.clone())
    }

    fn alloc(&self, wanted: &AllocParams) -> Result<Allocation<Region>, Failure> {
        let (len, access) = wanted.host_memory()?;
        let region = self.state.exports.alloc(self.state.id, len, access)?;
        Ok(Allocation { base: region.base(), len, region })
    }

    fn register(&self, memory: &RegisterParams) -> Result<Region, Failure> {
        let (base, len, access) = memory.host_memory()?;
        self.state.exports.register(self.state.id, (base, len), access)
    }

    fn revoke(&self, region: &Region) -> Revoked {
        self.state.exports.revoke(region);
        // The mappings of peers lead only to this region's file, so there is nothing to wait for.
        Revoked::Quiet
    }

    fn deregister(&self, region: Region) -> Result<(), Failure> {
        self.state.exports.free(&region);
        Ok(())
    }

    fn pack_key(&self, region: &Region, key: &KeyParams, out: &mut [u8]) -> Result<usize, Failure> {
        key.whole()?;
        let key = region.key().pack();
        match out.get_mut(..key.len()) {
            Some(out) => out.copy_from_slice(&key),
            None => return Err(Status::TooLarge.into()),
        }
        Ok(key.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_ranks_above_all_others_that_providers_state() {
        let domain =
            ShmDomain { state: crate::hostile_tests::domain(1), settings: Settings::defaults() };
        let modules = domain.modules();
        let priorities: Vec<i32> = modules.iter().map(|module| module.priority).collect();
        // The next one is shm-xpmem with direct access, which has 75. verbs/rc, the highest network module, has 60.
        assert_eq!(priorities, [80]);
    }
}
