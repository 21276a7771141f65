//! The domain `tcp`: any memory of the process, which peers reach through this process's progress.

use std::sync::Arc;

use tieline_net::SharedHub;
use tieline_plugin_api::abi::{Cost, KeyParams, ModuleAttr, RegisterParams, fixed};
use tieline_plugin_api::{
    Absent, Domain, Failure, Revoked, Status, caps, connects, cost_class, role,
};

use crate::address;
use crate::config::Settings;
use crate::endpoint::MAX_ADDRESS;
use crate::frame::MAX_MESSAGE;
use crate::interface::StreamInterface;
use crate::regions::{KEY_LEN, Region, Regions, random};

/// The name of the one module.
pub(crate) const MODULE: &str = "stream";

/// The listener of this process.
static HUB: SharedHub = SharedHub::new();

/// An open domain.
pub struct TcpDomain {
    /// What its interfaces share.
    regions: Arc<Regions>,
    settings: Settings,
}

impl TcpDomain {
    pub(crate) fn open(settings: Settings) -> Result<TcpDomain, Failure> {
        Ok(TcpDomain { regions: Arc::new(Regions::new(random()?)), settings })
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
        let (base, len, access) = memory.of_host()?;
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
