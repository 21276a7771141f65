//! A domain: one device of a libfabric provider.

use crate::abi::{FI_SOCKADDR_IN, FI_SOCKADDR_IN6};
use crate::address::MAX_ADDRESS;
use crate::atomics::Masks;
use crate::config::Settings;
use crate::engine::{MAX_IDENTITY, longest_transfer, most_pieces};
use crate::interface::OfiInterface;
use crate::load;
use crate::memory::{Region, Registry};
use crate::offers::{Offer, core_name};
use crate::selftest::Found;
use crate::sys;
use std::sync::Arc;
use tieline_net::SharedHub;
use tieline_plugin_api::abi::{Cost, KeyParams, ModuleAttr, RegisterParams, fixed};
use tieline_plugin_api::{
    Absent, Domain, Failure, Revoked, Status, caps, connects, cost_class, role,
};

/// The name of the module.
pub const RDM: &str = "rdm";

/// The provider's listener in this process, for peers that watch its interfaces.
static HUB: SharedHub = SharedHub::new();

/// An open domain.
pub struct OfiDomain {
    pub(crate) registry: Arc<Registry>,
    offer: Offer,
    settings: Settings,
    /// Whether the completion queues of the domain have a descriptor that wakes a waiting process.
    waits: bool,
    /// The reason why the domain offers messages only although libfabric claims more.
    pub(crate) broken_promise: Option<String>,
    /// The supported atomics, and a description of those that libfabric claims without supporting them.
    atomics: Masks,
    pub(crate) broken_atomics: Option<String>,
}

impl OfiDomain {
    pub(crate) fn open(offer: Offer, settings: Settings) -> Result<OfiDomain, Failure> {
        // The trial comes first, because the process may not survive opening the device.
        let found = load::keeping_signals(|| crate::selftest::found(&offer, &settings));
        if let Some(words) = found.deadly {
            return Err(Failure::new(Status::NoDevice, format!("{}: {words}", offer.domain)));
        }
        let domain = load::keeping_signals(|| sys::Domain::open(&offer.info))?;
        // Other providers may have a descriptor that is only written while a thread polls (psm3; source: psmx3_cq.c).
        let wakes = ["tcp", "sockets", "verbs", "cxi", "efa"];
        let waits = wakes.contains(&core_name(&offer.provider))
            && sys::Cq::open(&domain, 64, true).is_ok_and(|cq| cq.fd().is_some());
        let apart = offer.is_apart();
        let registry = Arc::new(Registry::new(domain, apart, settings.failure_timeout)?);
        let Found { lies: broken_promise, atomics, broken_atomics, .. } = found;
        Ok(OfiDomain { registry, offer, settings, waits, broken_promise, atomics, broken_atomics })
    }

    fn is_ip(&self) -> bool {
        [FI_SOCKADDR_IN, FI_SOCKADDR_IN6].contains(&self.offer.info.address_format())
    }

    /// Returns the priority. For a device that tcp or the module rc of verbs also drives, it is below their priority. All are below
    /// 65, the lowest priority within a host.
    fn priority(&self) -> u32 {
        match core_name(&self.offer.provider) {
            "cxi" | "efa" | "opx" => 55,
            "verbs" => 20,
            "tcp" if self.offer.provider == "tcp" => 5,
            "tcp" => 4,
            "sockets" => 3,
            _ => 6,
        }
    }
}

impl Domain for OfiDomain {
    type Interface = OfiInterface;
    type Connector = Absent;
    type Region = Region;

    fn modules(&self) -> Vec<ModuleAttr> {
        let mut caps = caps::AM_SHORT | caps::AM_PACKED | caps::NEEDS_POLL | caps::ANY_THREAD;
        // PASSIVE_TARGET is missing for every transport, because a peer must poll to answer a connection request.
        if self.offer.delivery && self.broken_promise.is_none() {
            caps |= caps::PUT | caps::GET | caps::REMOTE_COMPLETION;
            if self.atomics.are_enough() {
                caps |= caps::ATOMICS | caps::DEVICE_ATOMICS;
            }
        }
        if self.settings.watch.is_some() {
            caps |= caps::PEER_FAILURE;
        }
        if self.waits {
            caps |= caps::EVENT_FD;
        }
        if self.is_ip() {
            caps |= caps::SLOW_POLL;
        }
        if self.registry.needs_descriptors() {
            caps |= caps::TAKES_REGIONS;
        }
        let longest = longest_transfer(&self.offer.info);
        let mut attr = ModuleAttr {
            name: fixed(RDM),
            role: role::DATA,
            connects: connects::TO_INTERFACE,
            caps,
            priority: self.priority() as _,
            max_iov: most_pieces(&self.offer.info) as u32,
            max_short: self.settings.eager,
            max_packed: self.settings.eager,
            atomic_post32: self.atomics.post32,
            atomic_post64: self.atomics.post64,
            atomic_fetch32: self.atomics.fetch32,
            atomic_fetch64: self.atomics.fetch64,
            max_put: longest,
            max_get: longest,
            // A short put is copied into a slot while it is posted.
            max_short_put: self.settings.eager.min(longest),
            max_address_len: MAX_ADDRESS as u32,
            max_identity_len: MAX_IDENTITY as u32,
            ..ModuleAttr::empty()
        };
        // An operation over sockets costs microseconds. The costs of devices are not measured with this provider.
        let (overhead_ns, latency_ns) =
            if self.is_ip() { (3000.0, 20_000.0) } else { (300.0, 2000.0) };
        let bytes_per_second = if self.is_ip() { 1e9 } else { 1e10 };
        for class in [
            cost_class::SMALL_MESSAGE,
            cost_class::BULK_MESSAGE,
            cost_class::SMALL_RMA,
            cost_class::BULK_RMA,
            cost_class::ATOMIC,
        ] {
            attr.cost[class] = Cost { overhead_ns, latency_ns, bytes_per_second };
        }
        vec![attr]
    }

    fn open_interface(&self, module: &str, _worker: [u8; 16]) -> Result<OfiInterface, Failure> {
        if module != RDM {
            let text = format!("{} has no module `{module}`, only `{RDM}`", self.offer.domain);
            return Err(Failure::new(Status::NoDevice, text));
        }
        let hub = self.settings.watch.as_ref().map(|watch| HUB.get(&watch.net)).transpose();
        let hub = hub.map_err(|why| {
            let text = format!(
                "{why}, and so cannot be watched by peers (TIELINE_OFI_WATCH=off does without)"
            );
            Failure::new(Status::NoDevice, text)
        })?;
        // EFA opens libfabric's shm provider internally, and opx installs signal handlers when its fabric opens. Neither may change
        // the process's signals.
        load::keeping_signals(|| {
            OfiInterface::open(
                &self.registry,
                &self.offer,
                &self.settings,
                self.waits,
                self.atomics,
                hub.as_ref(),
            )
        })
    }

    fn register(&self, memory: &RegisterParams) -> Result<Region, Failure> {
        let (base, len, access) = memory.host_memory()?;
        self.registry.register(base, len, access)
    }

    fn revoke(&self, region: &Region) -> Revoked {
        self.registry.revoke(region)
    }

    fn deregister(&self, region: Region) -> Result<(), Failure> {
        self.registry.deregister(region)
    }

    fn pack_key(&self, region: &Region, key: &KeyParams, out: &mut [u8]) -> Result<usize, Failure> {
        key.whole()?;
        self.registry.pack_key(region, out)
    }
}
