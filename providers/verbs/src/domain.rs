//! A domain: one port of one device.

use crate::cm::{self, RDMACM, RdmaCm};
use crate::config::Settings;
use crate::devices::PortName;
use crate::interface::VerbsInterface;
use crate::memory::Region;
use crate::rc::{self, RcInterface};
use crate::shared::DomainState;
use crate::ud::{self, UdInterface};
use std::path::Path;
use std::sync::Arc;
use tieline_plugin_api::abi::{Cost, KeyParams, ModuleAttr, RegisterParams, fixed};
use tieline_plugin_api::{
    Domain, Failure, HostHandle, Status, atomic_op, caps, connects, cost_class, register_flags,
    role,
};

/// The name of the module for reliable connections.
pub const RC: &str = "rc";
/// The name of the module for datagrams.
pub const UD: &str = "ud";

/// An open domain.
pub struct VerbsDomain {
    pub(crate) state: Arc<DomainState>,
}

impl VerbsDomain {
    pub(crate) fn open(
        class: &Path,
        name: PortName,
        settings: Settings,
        host: HostHandle,
    ) -> Result<VerbsDomain, Failure> {
        let state = DomainState::open(class, name, settings, host)?;
        Ok(VerbsDomain { state: Arc::new(state) })
    }

    fn rc(&self) -> ModuleAttr {
        let mut caps = caps::ANY_THREAD
            | caps::AM_SHORT
            | caps::AM_PACKED
            | caps::AM_ZCOPY
            | caps::PUT
            | caps::PUT_NOTIFY
            | caps::GET
            | caps::REMOTE_COMPLETION
            | caps::PASSIVE_TARGET
            | caps::PEER_FAILURE
            | caps::EVENT_FD
            | caps::NEEDS_POLL
            | caps::TAKES_REGIONS
            | caps::RMA_LIST
            | caps::NO_EVENT;
        let mut atomics = 0;
        if self.state.has_atomics {
            caps |= caps::ATOMICS;
            if !self.state.has_global_atomics {
                caps |= caps::DEVICE_ATOMICS;
            }
            atomics = 1 << atomic_op::ADD | 1 << atomic_op::COMPARE_SWAP;
        }
        let segment = self.state.settings.segment;
        let bandwidth = self.state.bytes_per_second;
        let cost =
            |overhead_ns, latency_ns| Cost { overhead_ns, latency_ns, bytes_per_second: bandwidth };
        let mut attr = ModuleAttr {
            name: fixed(RC),
            role: role::DATA,
            connects: connects::TO_ENDPOINT,
            caps,
            notify_bits: 32,
            priority: 60,
            max_iov: self.state.max_iov as u32,
            max_short: segment,
            max_packed: segment,
            max_zcopy: segment,
            max_put: self.state.max_message,
            max_get: self.state.max_message,
            max_short_put: self.state.max_short_put(),
            atomic_post64: atomics,
            atomic_fetch64: atomics,
            max_address_len: rc::INTERFACE_ADDRESS_LEN as u32,
            max_endpoint_address_len: rc::ENDPOINT_ADDRESS_LEN as u32,
            ..ModuleAttr::empty()
        };
        attr.cost[cost_class::SMALL_MESSAGE] = cost(100.0, 800.0);
        attr.cost[cost_class::BULK_MESSAGE] = cost(400.0, 800.0);
        attr.cost[cost_class::SMALL_RMA] = cost(100.0, 700.0);
        attr.cost[cost_class::BULK_RMA] = cost(150.0, 700.0);
        attr.cost[cost_class::ATOMIC] =
            Cost { overhead_ns: 100.0, latency_ns: 1500.0, bytes_per_second: 0.0 };
        attr
    }

    fn ud(&self) -> ModuleAttr {
        let mut attr = ModuleAttr {
            name: fixed(UD),
            role: role::DATA,
            connects: connects::TO_INTERFACE,
            caps: caps::AM_SHORT
                | caps::AM_PACKED
                | caps::EVENT_FD
                | caps::NEEDS_POLL
                | caps::ANY_THREAD,
            priority: 10,
            max_short: ud::max_message(self.state.port.mtu),
            max_packed: ud::max_message(self.state.port.mtu),
            max_address_len: ud::ADDRESS_LEN as u32,
            max_identity_len: ud::MAX_IDENTITY as u32,
            ..ModuleAttr::empty()
        };
        let cost = Cost {
            overhead_ns: 500.0,
            latency_ns: 1500.0,
            bytes_per_second: self.state.bytes_per_second / 4.0,
        };
        attr.cost[cost_class::SMALL_MESSAGE] = cost;
        attr.cost[cost_class::BULK_MESSAGE] = cost;
        attr
    }
}

impl Domain for VerbsDomain {
    type Interface = VerbsInterface;
    type Connector = RdmaCm;
    type Region = Region;

    fn modules(&self) -> Vec<ModuleAttr> {
        vec![self.rc(), self.ud(), cm::attributes()]
    }

    fn open_interface(&self, module: &str, _worker: [u8; 16]) -> Result<VerbsInterface, Failure> {
        match module {
            RC => RcInterface::open(self.state.clone()).map(VerbsInterface::Rc),
            UD => UdInterface::open(self.state.clone()).map(VerbsInterface::Ud),
            other => Err(Failure::new(
                Status::NoDevice,
                format!(
                    "{} has no module `{other}`, only `{RC}` and `{UD}`",
                    self.state.name.domain()
                ),
            )),
        }
    }

    fn open_connector(&self, module: &str, _worker: [u8; 16]) -> Result<RdmaCm, Failure> {
        if module == RDMACM {
            return RdmaCm::open(self.state.clone());
        }
        let domain = self.state.name.domain();
        let text = format!("{domain} has no connection-only module `{module}`, only `{RDMACM}`");
        Err(Failure::new(Status::NoDevice, text))
    }

    fn register(&self, memory: &RegisterParams) -> Result<Region, Failure> {
        if memory.flags & register_flags::DMABUF != 0 {
            return self.state.registry.register_dmabuf(memory);
        }
        let (base, len, access) = memory.host_memory()?;
        let relaxed = memory.flags & register_flags::RELAXED_ORDERING != 0;
        self.state.registry.register(base, len, access, relaxed)
    }

    fn deregister(&self, region: Region) -> Result<(), Failure> {
        self.state.registry.deregister(region);
        Ok(())
    }

    fn pack_key(&self, region: &Region, key: &KeyParams, out: &mut [u8]) -> Result<usize, Failure> {
        key.whole()?;
        self.state.registry.pack_key(region, out)
    }
}
