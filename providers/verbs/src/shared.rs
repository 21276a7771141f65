//! The state that interfaces and connectors share with their domain: the open port and the objects of the domain.

use crate::abi::*;
use crate::buffers::{self, Arena};
use crate::config::Settings;
use crate::devices::{self, PortName, Published};
use crate::gid::{self, Gid, GidKind};
use crate::keys::Seal;
use crate::memory::Registry;
use crate::port::{Local, Port};
use crate::queue_pair::AddressHandle;
use crate::sys::{Device, Pd};
use crate::wake::{Watch, sys::random};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::path::Path;
use std::sync::Arc;
use tieline_plugin_api::{Failure, HostHandle, Status};

/// The maximum number of outstanding reads and atomics of one connection.
const MAX_READS: i32 = 16;

/// The state that the interfaces and connectors of a domain share. Any thread may use this state.
pub(crate) struct DomainState {
    pub(crate) settings: Settings,
    pub(crate) host: HostHandle,
    pub(crate) name: PortName,
    pub(crate) port: Port,
    pub(crate) local: Local,
    pub(crate) seal: Seal,
    pub(crate) registry: Registry,
    /// Memory for the buffers of all interfaces and connectors.
    pub(crate) buffers: Arc<Arena>,
    pub(crate) watch: Arc<Watch>,
    pub(crate) pd: Arc<Pd>,
    pub(crate) device: Arc<Device>,
    pub(crate) max_iov: usize,
    /// The maximum number of pieces of a work request. The header of a message takes one of them.
    pub(crate) pieces: usize,
    /// The maximum number of pieces into which a read scatters.
    pub(crate) max_read_pieces: usize,
    /// The inline length that the next queue pair requests: the setting, or less after a refusal.
    inline: AtomicUsize,
    /// Whether inline payloads must be in one piece: irdma libraries before rdma-core 44 copy only the first piece.
    pub(crate) inlines_one_piece: bool,
    pub(crate) max_message: usize,
    pub(crate) max_cqe: usize,
    /// Whether the device has shared receive queues.
    pub(crate) shares_receives: bool,
    /// The number of reads and atomics of one connection that this device serves concurrently as the responder. Below, the number
    /// that the device keeps in flight as the requester. Both are at most `MAX_READS`.
    pub(crate) reads_served: u8,
    pub(crate) reads_asked: u8,
    pub(crate) has_atomics: bool,
    /// Whether the device's atomics are also atomic towards the processor's.
    pub(crate) has_global_atomics: bool,
    pub(crate) bytes_per_second: f64,
}

/// The kernel drivers under irdma's devices.
const IRDMA: [&str; 4] = ["ice", "i40e", "idpf", "irdma"];

/// The longest inline payload that is assembled in one piece: the upper bound of `TIELINE_VERBS_INLINE`.
pub(crate) const INLINE_MOST: usize = 1024;

/// Checks whether packets can be sent with this GID, as far as the kernel can tell. The GID may belong to a network device that is
/// down or in another network namespace. The check resolves a route to the GID itself.
fn works_here(pd: &Arc<Pd>, port: u8, gid: &Gid) -> bool {
    let Ok(sgid_index) = u8::try_from(gid.index) else { return false };
    let dgid = ibv_gid { raw: gid.raw };
    let grh = ibv_global_route { dgid, sgid_index, hop_limit: 64, ..Default::default() };
    let way = ibv_ah_attr { grh, is_global: 1, port_num: port, ..Default::default() };
    AddressHandle::new(pd, way).is_ok()
}

/// The inline lengths to try, in order, if the device refuses to make a queue pair with the requested length. Drivers have limits
/// of their own and do not report them.
const INLINE_STEPS: [usize; 4] = [96, 64, 48, 0];

/// Returns the number of pieces (16 bytes each) that take the same room as `inline` bytes with their header of 4 bytes, from 4 to
/// 17. Drivers such as mlx5 size every work request for the longer of the two.
pub(crate) fn pieces_beside(inline: usize) -> usize {
    (inline + 4).div_ceil(16).clamp(4, 17)
}

impl DomainState {
    /// Returns the bytes of a queue pair's queues, calculated like mlx5 does; other drivers need a similar amount. A work request
    /// takes 192 bytes plus its inline data or pieces, rounded up to 64. The queue is rounded up to a power of two (rdma-core,
    /// providers/mlx5/verbs.c:1601 and 1800).
    pub(crate) fn queue_bytes(&self, sends: usize, receives: usize) -> usize {
        let inline = (self.inline.load(Ordering::Relaxed) + 4).next_multiple_of(16);
        let each = (192 + inline.max(self.pieces * 16)).next_multiple_of(64);
        let receiving = if receives > 0 { (receives * 16).next_power_of_two() } else { 0 };
        (sends * each).next_power_of_two() + receiving
    }

    /// Checks whether packets can reach a peer's port, as far as this can be determined without sending one.
    pub(crate) fn reaches(&self, peer: &Port) -> Result<(), Failure> {
        self.port.reaches(peer, self.settings.router)
    }

    /// Returns the address vector for a peer's port.
    pub(crate) fn route(&self, peer: &Port) -> ibv_ah_attr {
        self.port.route(peer, &self.local, &self.settings)
    }

    /// Returns the maximum length of a short put. If a queue pair cannot inline a short put, a buffer carries the data.
    pub(crate) fn max_short_put(&self) -> usize {
        self.settings.inline.min(self.settings.segment).min(self.max_message)
    }

    /// Makes a queue pair with the requested inline length or, if the device refuses that, with the first shorter one of
    /// `INLINE_STEPS` that the device accepts.
    pub(crate) fn with_inline<T>(
        &self,
        mut make: impl FnMut(usize) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let wanted = self.inline.load(Ordering::Relaxed);
        let refused = match make(wanted) {
            Ok(made) => return Ok(made),
            Err(refused) => refused,
        };
        for step in INLINE_STEPS.into_iter().filter(|step| *step < wanted) {
            if let Ok(made) = make(step) {
                // Lack of memory is temporary, so the next queue pair asks for the full length again.
                if refused.status != Status::NoMemory {
                    self.inline.store(step, Ordering::Relaxed);
                }
                return Ok(made);
            }
        }
        Err(refused)
    }

    pub(crate) fn open(
        class: &Path,
        name: PortName,
        settings: Settings,
        host: HostHandle,
    ) -> Result<DomainState, Failure> {
        if let Some(text) = devices::foreign(class, &name.device) {
            return Err(Failure::new(Status::NoDevice, text));
        }
        let driver = devices::driver(class, &name.device);
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
        let pd = Pd::new(device.clone())?;
        let works = |gid: &Gid| works_here(&pd, name.port, gid);
        let (wanted, subnets) = (settings.gid_index, settings.subnets.as_slice());
        let gid = gid::choose(&gids, ethernet, wanted, subnets, works, &name.words())?;
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
            needs_grh: u32::from(port.flags) & IBV_QPF_GRH_REQUIRED != 0,
        };
        let mut seal = Seal::default();
        random(&mut seal)?;
        let registry = Registry::new(pd.clone(), seal, settings.cache, settings.relaxed_ordering);
        let pieces = pieces_beside(settings.inline).min(attr.max_sge.max(2) as usize);
        // Some devices allow fewer pieces for reads (`max_sge_rd`). Devices with separate limits for other operations do not report
        // these limits.
        let max_read_pieces = match usize::try_from(attr.max_sge_rd) {
            Ok(0) | Err(_) => pieces,
            Ok(most) => most.min(pieces),
        };
        let reads = |n: i32| n.clamp(1, MAX_READS) as u8;
        let lid = (!ethernet).then_some(port.lid);
        let published = Published::new(class, &name, lid, gid.index, partition.0);
        let entry = devices::access(class, &name);
        let watch = Watch::new(device.clone(), &name, entry, published, host);
        let bytes_per_second = devices::bytes_per_second(class, &name);
        Ok(DomainState {
            seal,
            buffers: Arc::new(Arena::new(registry.lender.clone(), buffers::MOST)),
            registry,
            watch: Arc::new(watch),
            pd,
            max_iov: pieces - 1,
            pieces,
            max_read_pieces,
            inline: AtomicUsize::new(settings.inline),
            inlines_one_piece: IRDMA.contains(&driver.as_str()),
            max_message: (port.max_msg_sz as usize).clamp(1 << 12, 1 << 30),
            max_cqe: attr.max_cqe.max(1) as usize,
            shares_receives: attr.max_srq > 0,
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
