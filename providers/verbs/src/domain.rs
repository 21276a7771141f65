//! A domain: one port of one device.

use crate::abi::*;
use crate::cm::{self, RDMACM, RdmaCm};
use crate::config::Settings;
use crate::devices::{self, PortName};
use crate::gid::{self, GidKind};
use crate::interface::VerbsInterface;
use crate::keys::Seal;
use crate::memory::{Region, Registry};
use crate::port::{Local, Port};
use crate::rc::{self, RcInterface};
use crate::sys::{Device, Pd};
use crate::ud::{self, UdInterface};
use crate::wake::{Watch, sys::random};
use std::path::Path;
use std::sync::Arc;
use tieline_plugin_api::abi::{Cost, ModuleAttr, fixed};
use tieline_plugin_api::{
    Domain, Failure, HostHandle, Status, atomic_op, caps, connects, cost_class, role,
};

/// Name of the module of reliable connections.
pub const RC: &str = "rc";
/// Name of the module of datagrams.
pub const UD: &str = "ud";

/// Pieces of an operation at most, whatever the device could do.
const MAX_IOV: usize = 16;
/// Reads and atomics in flight on one connection at most.
const MAX_READS: i32 = 16;

/// What the interfaces of a domain share. Any thread.
pub(crate) struct DomainState {
    pub(crate) settings: Settings,
    pub(crate) host: HostHandle,
    pub(crate) name: PortName,
    pub(crate) port: Port,
    pub(crate) local: Local,
    pub(crate) seal: Seal,
    pub(crate) registry: Registry,
    pub(crate) watch: Arc<Watch>,
    pub(crate) pd: Arc<Pd>,
    pub(crate) device: Arc<Device>,
    pub(crate) max_iov: usize,
    pub(crate) max_message: usize,
    pub(crate) max_cqe: usize,
    /// Reads and atomics that this device answers at once, and that it keeps in flight.
    pub(crate) reads_served: u8,
    pub(crate) reads_asked: u8,
    has_atomics: bool,
    /// They are atomic towards the processor's too.
    has_global_atomics: bool,
    bytes_per_second: f64,
}

/// An open domain.
pub struct VerbsDomain {
    state: Arc<DomainState>,
}

impl VerbsDomain {
    pub(crate) fn open(
        class: &Path,
        name: PortName,
        settings: Settings,
        host: HostHandle,
    ) -> Result<VerbsDomain, Failure> {
        let state = devices::state(class, &name);
        if state != "ACTIVE" {
            let text = format!(
                "{} is {state}, not ACTIVE: bring up its network device (`rdma link` names it), or see the cable and the \
                 switch",
                name.words()
            );
            return Err(Failure::new(Status::NoDevice, text));
        }
        let partition = devices::partition(class, &name, settings.partition_key)?;
        let device = Device::open(&name.device)?;
        let (attr, port) = (device.attributes()?, device.port(name.port)?);
        let ethernet = u32::from(port.link_layer) == IBV_LINK_LAYER_ETHERNET;
        let gids = devices::gids(class, &name);
        let gid = gid::choose(&gids, ethernet, settings.gid_index, &name.words())?;
        let mtu = match settings.path_mtu {
            None => port.active_mtu as u8,
            Some(bytes) => ((bytes / 128).ilog2() as u8).min(port.active_mtu as u8),
        };
        let here = Port {
            ethernet,
            v2: ethernet && gid.kind == GidKind::RoceV2,
            mtu: mtu.clamp(1, 5),
            lid: port.lid,
            partition: partition.1,
            gid: gid.raw,
        };
        let local = Local {
            number: name.port,
            gid_index: u8::try_from(gid.index).unwrap_or(u8::MAX),
            partition_index: partition.0,
        };
        let mut seal = Seal::default();
        random(&mut seal)?;
        let pd = Pd::new(device.clone())?;
        let reads = |n: i32| n.clamp(1, MAX_READS) as u8;
        let bytes_per_second = devices::bytes_per_second(class, &name);
        let state = DomainState {
            seal,
            registry: Registry::new(pd.clone(), seal, settings.cache),
            watch: Arc::new(Watch::new(device.clone(), name.port, devices::access(class, &name))),
            pd,
            max_iov: (attr.max_sge.max(2) as usize - 1).min(MAX_IOV),
            max_message: (port.max_msg_sz as usize).clamp(1 << 12, 1 << 30),
            max_cqe: attr.max_cqe.max(1) as usize,
            reads_served: reads(attr.max_qp_rd_atom),
            reads_asked: reads(attr.max_qp_init_rd_atom),
            has_atomics: attr.atomic_cap != IBV_ATOMIC_NONE,
            has_global_atomics: attr.atomic_cap == IBV_ATOMIC_GLOB,
            bytes_per_second,
            settings,
            host,
            name,
            port: here,
            local,
            device,
        };
        Ok(VerbsDomain { state: Arc::new(state) })
    }
}

impl DomainState {
    fn rc(&self) -> ModuleAttr {
        let mut caps = caps::AM_SHORT
            | caps::AM_PACKED
            | caps::AM_ZCOPY
            | caps::PUT
            | caps::GET
            | caps::REMOTE_COMPLETION
            | caps::PASSIVE_TARGET
            | caps::PEER_FAILURE
            | caps::EVENT_FD
            | caps::NEEDS_POLL;
        let mut atomics = 0;
        if self.has_atomics {
            caps |= caps::ATOMICS;
            if !self.has_global_atomics {
                caps |= caps::DEVICE_ATOMICS;
            }
            atomics = 1 << atomic_op::ADD | 1 << atomic_op::COMPARE_SWAP;
        }
        let segment = self.settings.segment;
        let bandwidth = self.bytes_per_second;
        let cost =
            |overhead_ns, latency_ns| Cost { overhead_ns, latency_ns, bytes_per_second: bandwidth };
        let mut attr = ModuleAttr {
            name: fixed(RC),
            role: role::DATA,
            connects: connects::TO_ENDPOINT,
            caps,
            priority: 60,
            max_iov: self.max_iov as u32,
            max_short: segment,
            max_packed: segment,
            max_zcopy: segment,
            max_put: self.max_message,
            max_get: self.max_message,
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
            caps: caps::AM_SHORT | caps::EVENT_FD | caps::NEEDS_POLL,
            priority: 10,
            max_short: ud::max_message(self.port.mtu),
            max_address_len: ud::ADDRESS_LEN as u32,
            max_identity_len: ud::MAX_IDENTITY as u32,
            ..ModuleAttr::empty()
        };
        let cost = Cost {
            overhead_ns: 500.0,
            latency_ns: 1500.0,
            bytes_per_second: self.bytes_per_second / 4.0,
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
        vec![self.state.rc(), self.state.ud(), cm::attributes()]
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

    fn register(&self, base: *mut u8, len: usize, access: u64) -> Result<Region, Failure> {
        self.state.registry.register(base, len, access)
    }

    fn deregister(&self, region: Region) -> Result<(), Failure> {
        self.state.registry.deregister(region);
        Ok(())
    }

    fn pack_key(&self, region: &Region, out: &mut [u8]) -> Result<usize, Failure> {
        self.state.registry.pack_key(region, out)
    }
}
