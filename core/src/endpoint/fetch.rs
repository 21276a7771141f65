//! The fetch of a rendezvous message's bytes within the call, over the best lane. The provider's key serves this get, and later ones
//! of messages with the same key.

use super::record::{Completion, rma_op};
use super::route::ModulePair;
use super::{Endpoint, EndpointState, RemoteKey};
use crate::mem::key::{KeyRecord, KeyView, is_short, region_of_rts};
use crate::{Error, PostError, Status};
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use tieline_host::abi::RawEndpoint;
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{OK, caps};

/// A key of a lane that serves gets of rendezvous messages.
pub(super) struct KeyForOnce {
    pub(super) raw: RawEndpoint,
    pub(super) key: *mut c_void,
}

/// A key that is kept after its get. A sender sends the same key, or a reference to it, with messages of the same bytes.
struct KeptKey {
    /// The key in the RTS, in the form without version and checksum.
    bytes: Vec<u8>,
    interface: usize,
    /// The number of bytes that the key grants and that the lane gets at once.
    most: usize,
    key: KeyForOnce,
    /// The time of the last use, as the number of keys that were looked up.
    used: Cell<u32>,
}

impl KeptKey {
    /// Checks whether a key in an RTS is this one, or refers to it.
    fn is(&self, key: &[u8]) -> bool {
        match is_short(key) {
            true => region_of_rts(key) == region_of_rts(&self.bytes),
            false => self.bytes == key,
        }
    }
}

/// The keys of the peer's last rendezvous messages, each at a place that the number of its region determines.
#[derive(Default)]
pub(super) struct KeptKeys {
    keys: RefCell<Vec<Option<KeptKey>>>,
    time: Cell<u32>,
}

/// The number of places.
const PLACES: usize = 64;
/// The number of look-ups for which an unused key keeps its place. Its sender may refer to it until then.
const WORTH_KEEPING: u32 = 1024;

impl KeptKeys {
    /// Returns the place of a key; `None`: keys of this form are not kept.
    fn place(bytes: &[u8]) -> Option<usize> {
        let [lowest, ..] = region_of_rts(bytes)?;
        Some(usize::from(*lowest) % PLACES)
    }

    /// Returns whether the key was kept.
    fn keep(&self, kept: KeptKey) -> bool {
        let Some(place) = Self::place(&kept.bytes) else { return false };
        let mut keys = self.keys.borrow_mut();
        if keys.is_empty() {
            keys.resize_with(PLACES, || None);
        }
        let is_used = |before: &KeptKey| self.unused_for(before) < WORTH_KEEPING;
        if keys[place].as_ref().is_some_and(is_used) {
            return false;
        }
        let before = keys[place].replace(kept);
        drop(keys);
        drop(before);
        true
    }

    fn unused_for(&self, kept: &KeptKey) -> u32 {
        self.time.get().wrapping_sub(kept.used.get())
    }

    /// Returns the bytes of the key that is kept for this one.
    fn bytes(&self, key: &[u8]) -> Option<Vec<u8>> {
        let keys = self.keys.borrow();
        let kept = keys.get(Self::place(key)?)?.as_ref().filter(|kept| kept.is(key))?;
        Some(kept.bytes.clone())
    }

    /// Drops the keys, whose lanes are still open. A provider whose functions must not be called gets no call.
    fn clear(&self, is_silent: impl Fn(usize) -> bool) {
        for kept in self.keys.take().into_iter().flatten() {
            if is_silent(kept.interface) {
                std::mem::forget(kept.key);
            }
        }
    }
}

/// The capabilities of a lane that fetches within the call, for one endpoint and without the target.
const AT_ONCE: u64 = caps::SYNCHRONOUS | caps::PASSIVE_TARGET;

impl Endpoint {
    /// Imports the key of an RTS for a message of this length.
    pub(crate) fn import_announced(
        &self,
        bytes: &[u8],
        len: usize,
    ) -> Result<RemoteKey, PostError> {
        let ep = &self.inner;
        ep.check_alive()?;
        let kept = if is_short(bytes) { ep.kept_keys.bytes(bytes) } else { None };
        let bytes = kept.as_deref().unwrap_or(bytes);
        let record = KeyRecord::parse_announced(bytes, ep.address.context, len as u64)?;
        Ok(RemoteKey::import(ep, ep.checked_key(record)?))
    }
}

impl EndpointState {
    /// Gets the first `len` bytes of a region into a range of a local region, `to`. `alone`: the peer is not asked to copy a part.
    /// Returns whether the key is kept for the next message. `None`: no lane fetches the bytes within the call, or the attempt failed;
    /// the caller imports the key and posts a get.
    pub(crate) fn fetch_at_once(
        &self,
        key: &[u8],
        to: *mut u8,
        len: usize,
        alone: bool,
    ) -> Result<Option<bool>, Error> {
        if !self.may_try_memory() {
            return Ok(None);
        }
        if let Some((interface, code)) = self.fetch_again(key, to, len, alone) {
            return self.fetched(interface, code, true);
        }
        let Some(view) = KeyView::parse(key) else { return Ok(None) };
        if view.context != self.address.context || !view.is_readable(len) {
            return Ok(None);
        }
        // A lane that has requested the memory and does not have it yet may serve the next message.
        let mut is_best = true;
        for pair in &self.route.memory {
            let slot = &self.shared.interfaces[pair.interface];
            if slot.out_of_use.borrow().is_some() {
                continue;
            }
            let theirs = &self.address.entry.candidates[pair.candidate].domain;
            let Some(part) = view.part(&slot.provider.name, theirs) else { continue };
            let has = slot.attr.caps;
            let fits = has & (AT_ONCE | caps::INTERFACE_KEYS) == AT_ONCE;
            if !fits || !self.may_fetch_alone(pair.interface, len, alone) {
                return Ok(None);
            }
            let lane = match self.memory_lane(*pair) {
                Ok(lane) => lane,
                Err(error) if error.status() == Status::Again => return Ok(None),
                Err(_) => continue,
            };
            let most = match lane.limits.max_get {
                0 => usize::MAX,
                most => most,
            };
            if len > most {
                return Ok(None);
            }
            let imported = match lane.raw.import_key(part) {
                Ok(key) => KeyForOnce { raw: lane.raw, key },
                Err(code) if Status::from_code(code) == Status::Again => {
                    is_best = false;
                    continue;
                }
                Err(code) => {
                    slot.provider.heard(code);
                    continue;
                }
            };
            let code = get_with(&imported, to, len);
            let mut is_kept = false;
            if code == Status::ProviderFailed as i32 {
                // None of the provider's functions is called any more.
                std::mem::forget(imported);
            } else if code == OK && is_best && lane.owned && KeptKeys::place(key).is_some() {
                let (bytes, interface, key) = (key.to_vec(), pair.interface, imported);
                let most = most.min(view.readable_len());
                let used = Cell::new(self.kept_keys.time.get());
                is_kept = self.kept_keys.keep(KeptKey { bytes, interface, most, key, used });
            }
            return self.fetched(pair.interface, code, is_kept);
        }
        Ok(None)
    }

    /// Checks whether a module of this worker reads the peer's memory within a call, and so probably one of the peer's worker does.
    pub(super) fn reads_at_once(&self) -> bool {
        let at_once = |pair: &ModulePair| {
            self.shared.interfaces[pair.interface].attr.caps & AT_ONCE == AT_ONCE
        };
        self.may_try_memory() && self.route.memory.iter().any(at_once)
    }

    /// Gets the bytes with the key of an earlier message, if this message has the same one. Returns the interface and the provider's
    /// result.
    fn fetch_again(
        &self,
        key: &[u8],
        to: *mut u8,
        len: usize,
        alone: bool,
    ) -> Option<(usize, i32)> {
        let place = KeptKeys::place(key)?;
        let now = self.kept_keys.time.get().wrapping_add(1);
        self.kept_keys.time.set(now);
        let mut keys = self.kept_keys.keys.borrow_mut();
        let kept = keys.get(place)?.as_ref().filter(|kept| len <= kept.most && kept.is(key))?;
        kept.used.set(now);
        let interface = kept.interface;
        let is_out = self.shared.interfaces[interface].out_of_use.borrow().is_some();
        if is_out || !self.may_fetch_alone(interface, len, alone) {
            return None;
        }
        let code = get_with(&kept.key, to, len);
        if code != OK {
            let kept = keys[place].take();
            if code == Status::ProviderFailed as i32 {
                std::mem::forget(kept);
            }
        }
        Some((interface, code))
    }

    /// Checks whether this side alone copies a message of this length over a lane that completes the get within the call.
    fn may_fetch_alone(&self, interface: usize, len: usize, alone: bool) -> bool {
        let maps = self.shared.interfaces[interface].attr.caps & caps::OWN_MEMORY_ONLY != 0;
        let shares = !maps && len >= self.shared.core.assist_size;
        (alone || !shares) && len > self.small(interface)
    }

    /// Handles the result of a get.
    fn fetched(&self, interface: usize, code: i32, is_kept: bool) -> Result<Option<bool>, Error> {
        if code == Status::ProviderFailed as i32 {
            let error = self.failure_over(Status::ProviderFailed, Some(interface));
            self.worker.provider_failed(interface);
            return Err(error);
        }
        Ok((code == OK).then_some(is_kept))
    }

    /// Drops the keys that are kept for later messages, before the endpoint's lanes are closed.
    pub(super) fn drop_kept_keys(&self) {
        let slots = &self.shared.interfaces;
        let is_child = !self.shared.same_process();
        self.kept_keys.clear(|interface| is_child || slots[interface].provider.poisoned());
    }
}

fn get_with(key: &KeyForOnce, to: *mut u8, len: usize) -> i32 {
    let iov = Iov::new(to, len);
    key.get(&rma_op(&iov, key.key, 0, 0, Completion::Remote))
}
