//! Remote keys imported on an endpoint: the lanes to the region, and the best of them.

use super::EndpointState;
use super::fast_path::FastPath;
use super::rails::split;
use super::route::ModulePair;
use crate::Status;
use crate::mem::key::KeyRecord;
use crate::proto::emulate::Target;
use crate::region::Access;
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::rc::Rc;
use tieline_host::abi::RawEndpoint;
use tieline_order::way;
use tieline_plugin_api::{caps, cost_class};

/// A lane to a region. Posting on it needs no further choice.
#[derive(Clone, Copy)]
pub(crate) struct ImportedKey {
    pub(crate) raw: RawEndpoint,
    pub(crate) key: *mut c_void,
    pub(crate) interface: usize,
    /// The part of the key that the lane's provider imported.
    pub(super) part: usize,
    /// Whether the imported key serves other endpoints of its interface, too.
    pub(super) shared: bool,
    /// The lane's rank among the lanes to the peer's memory.
    pub(super) rank: usize,
    pub(super) caps: u64,
    /// Whether the module completes operations within the call.
    pub(super) synchronous: bool,
    /// Whether no better lane can be found any more.
    pub(super) settled: bool,
    pub(super) post: [u32; 2],
    pub(super) fetch: [u32; 2],
    pub(super) max: [usize; 2],
    /// The longest put whose bytes are consumed within the call; 0: none.
    pub(super) max_short_put: usize,
    /// The maximum number of pieces of local memory in one operation.
    pub(super) max_iov: usize,
    /// The number of notification words that the lane can deliver, starting at 0; 0: it delivers none.
    pub(super) words: u64,
}

impl ImportedKey {
    /// Checks whether the kernel copies between the two processes, so that both sides can share the work.
    pub(crate) fn copies_between_processes(&self) -> bool {
        self.synchronous
            && self.caps & caps::LOCAL_ONLY != 0
            && self.caps & caps::OWN_MEMORY_ONLY == 0
    }

    /// Returns the lane's bit in a set of lanes by rank, such as the set of lanes that have declined an operation.
    pub(super) fn mark(&self) -> u64 {
        way::lane(self.rank)
    }

    /// Returns the length of the longest put or get in one operation.
    pub(super) fn most(&self, put: bool) -> usize {
        match self.max[usize::from(!put)] {
            0 => usize::MAX,
            most => most,
        }
    }

    /// Returns a lane that completes operations later, has no limits, and calls no module.
    #[cfg(test)]
    pub(super) fn for_tests() -> ImportedKey {
        ImportedKey {
            raw: RawEndpoint::nowhere(),
            key: std::ptr::null_mut(),
            interface: 0,
            part: 0,
            shared: false,
            rank: 0,
            caps: 0,
            synchronous: false,
            settled: false,
            post: [0; 2],
            fetch: [0; 2],
            max: [0; 2],
            max_short_put: 0,
            max_iov: 1,
            words: 0,
        }
    }

    /// Checks whether the lane loads from and stores to mapped memory.
    pub(crate) fn maps_memory(&self) -> bool {
        self.synchronous && self.caps & caps::OWN_MEMORY_ONLY != 0
    }
}

/// An imported key. Each cell is borrowed only to read or change it. During a borrow a provider may be called to release one of its
/// keys, which calls no other function. Lanes are opened while nothing is borrowed, because that may call the application.
pub(crate) struct KeyInner {
    pub(super) fast: FastPath,
    pub(crate) endpoint: Rc<EndpointState>,
    pub(crate) record: KeyRecord,
    pub(super) best: Cell<Option<ImportedKey>>,
    /// The longest put or get that is sent as a message although the best lane reaches the memory; 0: none.
    pub(super) small: Cell<usize>,
    /// The imported provider keys, with their interfaces.
    pub(super) imported: RefCell<Vec<ImportedKey>>,
    /// The ranks of lanes that are being formed, or whose provider asked for a retry.
    pub(super) unresolved: RefCell<Vec<usize>>,
    /// The number of pointers. Keys of lanes out of use stay mapped until the last pointer is dropped.
    pub(super) pointers: Cell<usize>,
    pub(super) kept: RefCell<Vec<ImportedKey>>,
    /// Whether a peer that helps with a copy gets a key of exactly the bytes to copy, rather than of the whole local region.
    pub(crate) in_parts: Cell<bool>,
    /// Whether this side alone copies transfers with this key.
    pub(crate) alone: Cell<bool>,
    /// The number of operations until providers are asked again, and the length of the present interval.
    ask_in: Cell<u32>,
    asked_after: Cell<u32>,
}

/// The maximum number of operations between two requests to providers, while a better lane may still be found. The interval grows
/// up to this number.
const ASK_EVERY: u32 = 1024;

/// A peer's region, as addressed through one endpoint. The key holds the endpoint. Clones are cheap and share the same key.
#[derive(Clone)]
pub struct RemoteKey {
    pub(crate) inner: Rc<KeyInner>,
}

impl RemoteKey {
    /// Imports a key of the peer over every lane to its memory that can be opened and accepts the key.
    pub(super) fn import(ep: &Rc<EndpointState>, record: KeyRecord) -> RemoteKey {
        let key = KeyInner {
            fast: FastPath::closed(),
            endpoint: ep.clone(),
            record,
            best: Cell::new(None),
            small: Cell::new(0),
            imported: RefCell::default(),
            unresolved: RefCell::default(),
            pointers: Cell::new(0),
            kept: RefCell::default(),
            in_parts: Cell::default(),
            alone: Cell::default(),
            ask_in: Cell::new(0),
            asked_after: Cell::new(0),
        };
        for rank in 0..ep.route.memory.len() {
            key.import_over(rank);
        }
        key.update_fast_path();
        let inner = Rc::new(key);
        ep.note_key(&inner);
        RemoteKey { inner }
    }

    /// Returns the length of the region in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.inner.record.len
    }

    /// Checks whether the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the address of the region's first byte in the owner's address space, if the owner has put it into the key
    /// ([`Region::remote_key_with_address`](crate::Region::remote_key_with_address),
    /// [`ContextBuilder::keys_with_addresses`](crate::ContextBuilder::keys_with_addresses)). Operations take offsets: an address of the
    /// owner minus this one is the offset.
    #[must_use]
    pub fn address(&self) -> Option<u64> {
        self.inner.record.address
    }

    /// Returns the path that puts and gets with this key use at present: `shm/ring`, `shm-cma/copy`, or `emulated over shm/ring`.
    /// If its connection is still being established, operations wait for it. If the peer has promised to poll often
    /// (`TIELINE_POLLS_OFTEN`), the result may be `shm-cma/copy, up to 2048 bytes emulated over shm/ring`. The path may change while the
    /// key [is settling](RemoteKey::is_settling).
    #[must_use]
    pub fn path(&self) -> String {
        let key = &*self.inner;
        key.resolve();
        let forming = || key.forming(0).map(|rank| key.endpoint.route.memory[rank].interface);
        let emulated = || format!("emulated over {}", key.endpoint.message_path());
        let path = |at: usize| key.endpoint.shared.interfaces[at].path.clone();
        match (key.best.get().map(|native| native.interface).or_else(forming), key.small.get()) {
            (Some(interface), 0) => path(interface),
            (Some(interface), small) => {
                format!("{}, up to {small} bytes {}", path(interface), emulated())
            }
            (None, _) => emulated(),
        }
    }

    /// Checks whether operations complete while the target computes and makes no call. If the target has promised to poll often,
    /// small operations use messages and do not; see [`RemoteKey::path`]. The answer may change while the key [is
    /// settling](RemoteKey::is_settling), as it does after the import.
    #[must_use]
    pub fn reaches_passive_target(&self) -> bool {
        let key = &*self.inner;
        match key.best.get() {
            Some(native) if native.caps & caps::PASSIVE_TARGET != 0 => key.small.get() == 0,
            // The lane needs progress at the peer; that of the service worker is sufficient.
            _ => key.endpoint.has_service(),
        }
    }

    /// Checks whether a provider may still find another path, which may be better. The application makes progress and checks again.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        self.inner.resolve();
        !self.inner.unresolved.borrow().is_empty()
    }
}

impl KeyInner {
    /// Tries again the lanes that were being formed or whose provider had requested a retry.
    #[cold]
    pub(super) fn resolve(&self) {
        if !self.endpoint.shared.same_process() || self.unresolved.borrow().is_empty() {
            return;
        }
        let waiting = std::mem::take(&mut *self.unresolved.borrow_mut());
        for rank in waiting {
            self.import_over(rank);
        }
        self.update_fast_path();
    }

    /// Asks providers again at intervals while operations are posted: a target without progress may never answer.
    pub(super) fn resolve_now_and_then(&self) {
        match self.ask_in.get() {
            0 => {
                let pause = (self.asked_after.get() * 2 + 1).min(ASK_EVERY);
                self.asked_after.set(pause);
                self.ask_in.set(pause);
                self.resolve();
            }
            left => self.ask_in.set(left - 1),
        }
    }

    /// Opens the fast path over the best lane, once no better one can be found, and determines which operations use messages
    /// instead.
    pub(super) fn update_fast_path(&self) {
        let waiting = self.unresolved.borrow();
        if !waiting.is_empty() {
            self.endpoint.shared.settling.set(true);
        }
        if let Some(best) = self.best.get() {
            let settled = waiting.iter().all(|&rank| rank > best.rank);
            self.best.set(Some(ImportedKey { settled, ..best }));
        }
        let ep = &self.endpoint;
        self.small.set(self.best.get().map_or(0, |native| ep.small(native.interface)));
        let best = self.best.get().filter(|_| !ep.closing.get());
        self.fast.set(best, self.small.get() > 0, ep.shared.core.assist_size);
        if !self.record.access.allows(Access::WRITE) {
            self.fast.short_puts.set(0);
        }
        self.fast.asks.set(!waiting.is_empty());
    }

    fn import_over(&self, rank: usize) {
        let ep = &*self.endpoint;
        let pair: ModulePair = ep.route.memory[rank];
        let slot = &ep.shared.interfaces[pair.interface];
        if slot.out_of_use.borrow().is_some() {
            return;
        }
        let theirs = &ep.address.entry.candidates[pair.candidate].domain;
        let found =
            self.record.parts.iter().enumerate().find(|(_, (provider, domain, _))| {
                *provider == slot.provider.name && domain == theirs
            });
        let Some((part, (_, _, bytes))) = found else { return };
        let retry = || self.unresolved.borrow_mut().push(rank);
        let (raw, limits) = match ep.memory_lane(pair) {
            Ok(lane) => (lane.raw, lane.limits),
            Err(error) if error.status() == Status::Again => return retry(),
            Err(_) => return,
        };
        let shared = slot.attr.caps & caps::INTERFACE_KEYS != 0;
        let imported = match shared {
            true => slot.import_shared(self.record.context, bytes),
            false => raw.import_key(bytes),
        };
        match imported {
            Ok(key) => {
                let a = &slot.attr;
                // The key determines the executor of atomics: processors, or one device alone. Masks of operations count only
                // together with `caps::ATOMICS`. Without that capability, the executor is unknown.
                let by_device = a.caps & caps::DEVICE_ATOMICS != 0;
                let executes = a.caps & caps::ATOMICS != 0
                    && match self.record.device_atomics {
                        Some(home) => by_device && home == part,
                        None => !by_device,
                    };
                let masks = |masks: [u32; 2]| if executes { masks } else { [0; 2] };
                // A notification must reach the peer's own worker, so the lane must lead to that worker.
                let tells = a.caps & caps::PUT_NOTIFY != 0 && ep.lanes.has(pair.interface, &raw);
                let native = ImportedKey {
                    raw,
                    key,
                    interface: pair.interface,
                    part,
                    shared,
                    rank,
                    caps: a.caps,
                    synchronous: a.caps & caps::SYNCHRONOUS != 0,
                    settled: false,
                    post: masks([a.atomic_post32, a.atomic_post64]),
                    fetch: masks([a.atomic_fetch32, a.atomic_fetch64]),
                    max: [limits.max_put, limits.max_get],
                    max_short_put: limits.max_short_put,
                    max_iov: a.max_iov as usize,
                    words: if tells { 1 << a.notify_bits.min(32) } else { 0 },
                };
                self.imported.borrow_mut().push(native);
                if self.best.get().is_none_or(|best| rank < best.rank) {
                    self.best.set(Some(native));
                }
            }
            Err(code) if Status::from_code(code) == Status::Again => retry(),
            Err(code) => slot.provider.heard(code),
        }
    }

    /// Returns the lane to the device that executes this region's atomics.
    pub(super) fn device(&self) -> Option<ImportedKey> {
        let home = self.record.device_atomics?;
        let executes = |n: &&ImportedKey| n.part == home && n.fetch != [0; 2];
        self.imported.borrow().iter().find(executes).copied()
    }

    /// Returns the best lane whose connection is being formed, if all usable lanes have declined. A transfer waits for it, because
    /// forming takes a bounded time, and many messages would be slower.
    pub(super) fn forming(&self, declined: u64) -> Option<usize> {
        if self.next(declined).is_some() {
            return None;
        }
        let ep = &*self.endpoint;
        let forms = |rank: &usize| {
            let interface = ep.route.memory[*rank].interface;
            let over = |ep: &EndpointState| ep.worker.circuit_forms(ep, interface);
            over(ep) || ep.open_service().is_some_and(|service| over(&service))
        };
        let asked = |rank: &usize| declined & way::lane(*rank) != 0;
        self.unresolved.borrow().iter().copied().filter(|rank| !asked(rank) && forms(rank)).min()
    }

    /// Checks whether a provider asked for a retry, so that more lanes may be found.
    pub(super) fn may_find_more(&self) -> bool {
        !self.unresolved.borrow().is_empty()
    }

    /// Returns a lane as `lane` does. If there is none, asks the providers again that had requested a retry, and returns the next
    /// lane.
    pub(super) fn lane_now(&self, rank: usize, declined: u64) -> Option<ImportedKey> {
        self.lane(rank, declined).or_else(|| {
            self.resolve();
            self.next(declined)
        })
    }

    /// Asks the providers again that had requested a retry, and returns the best usable lane.
    pub(crate) fn native_now(&self) -> Option<ImportedKey> {
        self.resolve();
        self.best.get()
    }

    /// Checks whether there is another lane than this one.
    pub(super) fn has_another(&self, native: &ImportedKey) -> bool {
        self.imported.borrow().iter().any(|other| other.rank != native.rank)
    }

    /// Returns the best lane for an operation that these lanes have declined.
    pub(super) fn next(&self, declined: u64) -> Option<ImportedKey> {
        if declined == 0 {
            return self.best.get();
        }
        self.best_of(|native| native.mark() & declined == 0)
    }

    /// Returns the lane of the lowest rank among those that fit.
    pub(super) fn best_of(&self, fits: impl Fn(&ImportedKey) -> bool) -> Option<ImportedKey> {
        let imported = self.imported.borrow();
        imported.iter().filter(|native| fits(native)).min_by_key(|native| native.rank).copied()
    }

    /// Returns the lane of this rank if it is usable and has not declined, otherwise the best lane that has not.
    pub(super) fn lane(&self, rank: usize, declined: u64) -> Option<ImportedKey> {
        let same = |native: &&ImportedKey| native.rank == rank && native.mark() & declined == 0;
        let same = self.imported.borrow().iter().find(same).copied();
        same.or_else(|| self.next(declined))
    }

    /// Returns the shares of a transfer in proportion to bandwidth: one share for every domain whose module of the same name
    /// reaches the region as `best` does.
    pub(super) fn rails(&self, best: &ImportedKey, offset: u64, len: usize) -> Vec<(usize, usize)> {
        let slots = &self.endpoint.shared.interfaces;
        let first = &slots[best.interface];
        let imported = self.imported.borrow();
        let alike = imported.iter().filter(|native| {
            let slot = &slots[native.interface];
            slot.provider.name == first.provider.name
                && slot.module == first.module
                && slot.out_of_use.borrow().is_none()
        });
        let speed = |native: &ImportedKey| {
            slots[native.interface].attr.cost[cost_class::BULK_RMA].bytes_per_second
        };
        let rails: Vec<(usize, f64)> = alike.map(|native| (native.rank, speed(native))).collect();
        let speeds: Vec<f64> = rails.iter().map(|(_, speed)| *speed).collect();
        let shares = split(&speeds, offset, len);
        let shares: Vec<(usize, usize)> =
            rails.iter().map(|(rank, _)| *rank).zip(shares).filter(|(_, len)| *len > 0).collect();
        if shares.is_empty() { vec![(best.rank, len)] } else { shares }
    }

    /// Releases an imported key that is no longer used.
    pub(super) fn give_back(&self, native: ImportedKey) {
        if !native.shared {
            return native.let_go();
        }
        let slot = &self.endpoint.shared.interfaces[native.interface];
        slot.drop_shared(self.record.context, &self.record.parts[native.part].2);
    }

    /// Returns the lane of this rank, or the best one, among the lanes that complete within the call.
    pub(super) fn at_once(&self, rank: Option<usize>) -> Option<ImportedKey> {
        self.best_of(|native| native.synchronous && rank.is_none_or(|rank| native.rank == rank))
    }

    /// Stops using the lanes over an interface that is out of use. `broken`: none of the provider's functions is called, so its
    /// keys are not released.
    pub(super) fn retire(&self, interface: usize, broken: bool) {
        if broken {
            for keys in [&self.imported, &self.kept] {
                keys.borrow_mut().retain(|native| native.interface != interface);
            }
        }
        let ways = &self.endpoint.route.memory;
        self.unresolved.borrow_mut().retain(|rank| ways[*rank].interface != interface);
        self.let_go_of(|at, _| at == interface);
    }

    /// Releases the provider's keys of these lanes.
    pub(super) fn let_go_of(&self, is_lost: impl Fn(usize, &RawEndpoint) -> bool) {
        let lost = |native: &ImportedKey| is_lost(native.interface, &native.raw);
        let mut imported = self.imported.borrow_mut();
        imported.iter().filter(|native| lost(native)).for_each(|native| self.let_go(native));
        imported.retain(|native| !lost(native));
        drop(imported);
        self.best.set(self.best_of(|_| true));
        self.update_fast_path();
    }

    /// Copies a piece over the lane of this rank, or the best lane that copies within the call, without help.
    pub(crate) fn copy(
        &self,
        rank: Option<usize>,
        put: bool,
        base: *mut u8,
        len: usize,
        offset: u64,
    ) -> Result<(), Status> {
        let native = self.at_once(rank).ok_or(Status::Unreachable)?;
        self.endpoint.post_at_once(put, base, len, &native, offset, &mut 0)
    }

    pub(super) fn target(&self, offset: u64) -> Target {
        Target { region: self.record.region, generation: self.record.generation, offset }
    }

    /// Replaces a lane that failed, for this key, by the next best one.
    pub(super) fn downgrade(&self, native: &ImportedKey, status: Status) {
        let known = self.imported.borrow().iter().any(|n| n.rank == native.rank);
        self.imported.borrow_mut().retain(|n| n.rank != native.rank);
        if known && status != Status::ProviderFailed {
            self.let_go(native);
        }
        let best = self.best_of(|_| true);
        self.best.set(best);
        self.update_fast_path();
        self.endpoint.shared.core.note(format!(
            "{} to {} stopped working ({status}); from now on: {}",
            self.endpoint.shared.interfaces[native.interface].path,
            self.endpoint.address.label(),
            best.map_or_else(
                || format!("emulated over {}", self.endpoint.message_path()),
                |n| self.endpoint.shared.interfaces[n.interface].path.clone()
            ),
        ));
    }
}

impl Drop for KeyInner {
    fn drop(&mut self) {
        for native in self.imported.borrow_mut().drain(..) {
            if self.endpoint.shared.same_process() {
                self.give_back(native);
            }
        }
    }
}

#[cfg(test)]
mod tests;
