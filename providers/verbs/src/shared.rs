//! What interfaces share with their domain: the opened port, and everything that hangs from it.

use crate::abi::*;
use crate::buffers::{self, Arena};
use crate::config::Settings;
use crate::devices::{self, PortName};
use crate::gid::{self, GidKind};
use crate::keys::Seal;
use crate::memory::Registry;
use crate::port::{Local, Port};
use crate::sys::{Device, Pd};
use crate::wake::{Watch, sys::random};
use std::path::Path;
use std::sync::Arc;
use tieline_plugin_api::{Failure, HostHandle, Status};

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
    /// Where the buffers of all interfaces lie.
    pub(crate) buffers: Arc<Arena>,
    pub(crate) watch: Arc<Watch>,
    pub(crate) pd: Arc<Pd>,
    pub(crate) device: Arc<Device>,
    pub(crate) max_iov: usize,
    pub(crate) max_message: usize,
    pub(crate) max_cqe: usize,
    /// Reads and atomics that this device answers at once, and that it keeps in flight.
    pub(crate) reads_served: u8,
    pub(crate) reads_asked: u8,
    pub(crate) has_atomics: bool,
    /// They are atomic towards the processor's too.
    pub(crate) has_global_atomics: bool,
    pub(crate) bytes_per_second: f64,
}

impl DomainState {
    pub(crate) fn open(
        class: &Path,
        name: PortName,
        settings: Settings,
        host: HostHandle,
    ) -> Result<DomainState, Failure> {
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
        let registry = Registry::new(pd.clone(), seal, settings.cache);
        let reads = |n: i32| n.clamp(1, MAX_READS) as u8;
        let bytes_per_second = devices::bytes_per_second(class, &name);
        Ok(DomainState {
            seal,
            buffers: Arc::new(Arena::new(registry.lender.clone(), buffers::MOST)),
            registry,
            watch: Arc::new(Watch::new(device.clone(), &name, devices::access(class, &name), host)),
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
        })
    }
}
