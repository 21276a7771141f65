//! The domain `tcp`: any memory of the process. Peers access the memory while this process makes progress.

use std::sync::Arc;

use tieline_net::SharedHub;
use tieline_plugin_api::abi::{Cost, KeyParams, ModuleAttr, RegisterParams, fixed};
use tieline_plugin_api::{
    Absent, Domain, Failure, HostHandle, Revoked, Status, caps, connects, cost_class, role,
};

use crate::address;
use crate::config::Settings;
use crate::endpoint::MAX_ADDRESS;
use crate::frame::MAX_MESSAGE;
use crate::interface::StreamInterface;
use crate::regions::{KEY_LEN, Region, Regions, random};

/// The name of the domain's only module.
pub(crate) const MODULE: &str = "stream";

/// The provider's listener in this process.
static HUB: SharedHub = SharedHub::new();

/// An open domain.
pub struct TcpDomain {
    /// The regions, shared by the domain's interfaces.
    regions: Arc<Regions>,
    settings: Settings,
}

impl TcpDomain {
    pub(crate) fn open(settings: Settings, host: Option<HostHandle>) -> Result<TcpDomain, Failure> {
        Ok(TcpDomain { regions: Arc::new(Regions::new(random()?, host)), settings })
    }
}

fn costs() -> [Cost; cost_class::COUNT] {
    let mut costs = [Cost::default(); cost_class::COUNT];
    let cost = |overhead_ns, latency_ns, bytes_per_second| Cost {
        overhead_ns,
        latency_ns,
        bytes_per_second,
    };
    costs[cost_class::SMALL_MESSAGE] = cost(1_500.0, 4_000.0, 5e9);
    costs[cost_class::BULK_MESSAGE] = cost(2_500.0, 5_000.0, 5e9);
    costs[cost_class::SMALL_RMA] = cost(1_500.0, 10_000.0, 5e9);
    costs[cost_class::BULK_RMA] = cost(5_000.0, 15_000.0, 5e9);
    costs
}

impl Domain for TcpDomain {
    type Interface = StreamInterface;
    type Connector = Absent;
    type Region = Arc<Region>;

    fn modules(&self) -> Vec<ModuleAttr> {
        vec![ModuleAttr {
            name: fixed(MODULE),
            role: role::DATA,
            connects: connects::TO_ENDPOINT,
            caps: caps::AM_SHORT
                | caps::AM_PACKED
                | caps::AM_ZCOPY
                | caps::PUT
                | caps::PUT_NOTIFY
                | caps::GET
                | caps::REMOTE_COMPLETION
                | caps::PEER_FAILURE
                | caps::EVENT_FD
                | caps::NEEDS_POLL
                | caps::CHECKS_KEYS
                | caps::SLOW_POLL
                | caps::ANY_THREAD,
            notify_bits: 32,
            priority: 10,
            max_iov: 64,
            max_short: MAX_MESSAGE,
            max_packed: MAX_MESSAGE,
            max_zcopy: MAX_MESSAGE,
            cost: costs(),
            max_address_len: address::MAX_LEN as u32,
            max_endpoint_address_len: MAX_ADDRESS as u32,
            ..ModuleAttr::empty()
        }]
    }

    fn open_interface(&self, module: &str, _: [u8; 16]) -> Result<StreamInterface, Failure> {
        if module != MODULE {
            return Err(Failure::new(Status::NoDevice, format!("tcp has no module {module:?}")));
        }
        let hub = HUB
            .get(&self.settings.net)
            .map_err(|why| Failure::new(Status::NoDevice, format!("tcp cannot listen: {why}")))?;
        StreamInterface::open(Arc::clone(&self.regions), self.settings.clone(), hub)
    }

    fn register(&self, memory: &RegisterParams) -> Result<Arc<Region>, Failure> {
        let (base, len, access) = memory.host_memory()?;
        self.regions.register(base, len, access)
    }

    fn revoke(&self, region: &Arc<Region>) -> Revoked {
        if region.revoke() { Revoked::Quiet } else { Revoked::Busy }
    }

    fn deregister(&self, region: Arc<Region>) -> Result<(), Failure> {
        self.regions.deregister(&region);
        Ok(())
    }

    fn pack_key(
        &self,
        region: &Arc<Region>,
        key: &KeyParams,
        out: &mut [u8],
    ) -> Result<usize, Failure> {
        key.whole()?;
        let key = self.regions.key(region).pack();
        match out.get_mut(..KEY_LEN) {
            Some(out) => out.copy_from_slice(&key),
            None => return Err(Status::TooLarge.into()),
        }
        Ok(KEY_LEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The core chooses by cost: a class without a cost would look free.
    #[test]
    fn each_class_that_the_module_serves_has_its_cost_and_atomics_have_none() {
        let costs = costs();
        for class in [
            cost_class::SMALL_MESSAGE,
            cost_class::BULK_MESSAGE,
            cost_class::SMALL_RMA,
            cost_class::BULK_RMA,
        ] {
            let Cost { overhead_ns, latency_ns, bytes_per_second } = costs[class];
            assert!(overhead_ns > 0.0 && latency_ns > overhead_ns && bytes_per_second > 1e9);
        }
        assert_eq!(costs[cost_class::ATOMIC].overhead_ns, 0.0, "the core makes them of messages");
    }

    #[test]
    fn a_module_and_a_domain_that_there_are_not_are_refused_by_their_name() {
        let settings = Settings::of(|name| (name == "TIELINE_TCP_INTERFACES").then(|| "lo".into()));
        let domain = TcpDomain::open(settings.unwrap(), None).unwrap();
        let refused = domain.open_interface("ring", [0; 16]).err().unwrap();
        assert_eq!(refused, Failure::new(Status::NoDevice, "tcp has no module \"ring\""));
        let mut room = [0; KEY_LEN];
        let region = domain.register(&RegisterParams::new(room.as_mut_ptr(), KEY_LEN, 0)).unwrap();
        let packed = |out: &mut [u8]| domain.pack_key(&region, &KeyParams::empty(), out);
        assert_eq!(packed(&mut [0; KEY_LEN]), Ok(KEY_LEN));
        assert_eq!(packed(&mut [0; KEY_LEN - 1]).unwrap_err().status, Status::TooLarge);
        assert_eq!(domain.deregister(region), Ok(()));
    }
}
