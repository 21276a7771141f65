//! The table of registered regions, and remote keys.
//!
//! A key names a domain, a slot of its table, and a random tag that is unique to the registration. Code that accesses a region for
//! a peer pins it for one copy or one non-blocking system call. Deregistering revokes the region and then waits for the pins. After
//! that no code accesses the region any more, not even a transfer that had begun.

mod sys;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tieline_plugin_api::{Failure, HostHandle, Status, log_level};

use crate::frame::KeyPart;

/// The length of a packed key.
pub(crate) const KEY_LEN: usize = 24;

const REVOKED: u32 = 1 << 31;

/// A registered piece of memory.
#[derive(Debug)]
pub struct Region {
    base: usize,
    len: usize,
    access: u64,
    tag: u64,
    index: u32,
    /// The number of current pins, and [`REVOKED`].
    pins: AtomicU32,
    faulted: AtomicBool,
}

/// The right to access a region's memory, until it is dropped.
#[derive(Debug)]
pub(crate) struct Pin {
    region: Arc<Region>,
}

impl Region {
    /// Pins the region. Returns `None` if the region is revoked.
    pub(crate) fn pin(self: &Arc<Region>) -> Option<Pin> {
        let pin = Pin { region: Arc::clone(self) };
        let before = self.pins.fetch_add(1, Ordering::AcqRel);
        (before & REVOKED == 0).then_some(pin) // dropping the pin undoes the count
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.pins.load(Ordering::Acquire) & REVOKED != 0
    }

    /// Revokes the region, which prevents further pins. Returns whether no pin exists.
    pub(crate) fn revoke(&self) -> bool {
        self.pins.fetch_or(REVOKED, Ordering::AcqRel) & !REVOKED == 0
    }

    fn await_pins(&self) {
        let mut spins = 0u32;
        while self.pins.load(Ordering::Acquire) != REVOKED {
            spins += 1;
            if spins < 100 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // Orders the access ahead of what this thread loads and stores later. Another thread may load from the region.
        fence(Ordering::AcqRel);
        let _ = self.region.pins.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The regions of one domain.
#[derive(Debug)]
pub(crate) struct Regions {
    domain: u64,
    host: Option<Host>,
    slots: Mutex<Slots>,
}

/// The host that receives the report of a fault.
struct Host(HostHandle);

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Host")
    }
}

#[derive(Debug, Default)]
struct Slots {
    regions: Vec<Option<Arc<Region>>>,
    free: Vec<u32>,
}

impl Regions {
    pub(crate) fn new(domain: u64, host: Option<HostHandle>) -> Regions {
        Regions { domain, host: host.map(Host), slots: Mutex::default() }
    }

    pub(crate) fn domain(&self) -> u64 {
        self.domain
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn register(
        &self,
        base: *mut u8,
        len: usize,
        access: u64,
    ) -> Result<Arc<Region>, Failure> {
        let base = base.expose_provenance();
        if base.checked_add(len).is_none() || base == 0 && len > 0 {
            return Err(Failure::new(Status::Invalid, "the region does not lie in memory"));
        }
        let tag = random()?;
        let mut slots = self.slots();
        let index = match slots.free.pop() {
            Some(index) => index,
            None => {
                slots.regions.push(None);
                u32::try_from(slots.regions.len() - 1)
                    .map_err(|_| Failure::from(Status::NoMemory))?
            }
        };
        let region = Arc::new(Region {
            base,
            len,
            access,
            tag,
            index,
            pins: AtomicU32::new(0),
            faulted: AtomicBool::new(false),
        });
        slots.regions[index as usize] = Some(Arc::clone(&region));
        Ok(region)
    }

    /// Ends a registration. After the return, no code accesses the memory any more.
    pub(crate) fn deregister(&self, region: &Region) {
        {
            let mut slots = self.slots();
            slots.regions[region.index as usize] = None;
            slots.free.push(region.index);
        }
        let _ = region.revoke();
        region.await_pins();
    }

    /// Returns the region that a peer designates, if the key permits this access to the range.
    pub(crate) fn find(
        &self,
        key: &KeyPart,
        offset: u64,
        len: u64,
        right: u64,
    ) -> Result<Arc<Region>, Status> {
        if key.domain != self.domain {
            return Err(Status::KeyRejected);
        }
        let slots = self.slots();
        let region = slots
            .regions
            .get(key.index as usize)
            .and_then(Option::as_ref)
            .filter(|region| region.tag == key.tag && region.access & right == right)
            .filter(|region| !region.is_revoked())
            .ok_or(Status::KeyRejected)?;
        match offset.checked_add(len) {
            Some(end) if end <= region.len as u64 => Ok(Arc::clone(region)),
            _ => Err(Status::OutOfRange),
        }
    }

    /// Handles a peer's access that found no memory at this offset: reports it to the host, once for each region.
    #[cold]
    pub(crate) fn note_fault(&self, region: &Region, at: u64) {
        let Some(Host(host)) = &self.host else { return };
        if !region.faulted.swap(true, Ordering::Relaxed) {
            let (len, base) = (region.len, region.base);
            host.log(
                log_level::WARN,
                &format!(
                    "a peer's access to registered memory was refused: of the {len} bytes at {base:#x}, byte {at} is unmapped, \
                     protected or beyond the end of its file. Keep memory as it was registered until its region is closed"
                ),
            );
        }
    }

    pub(crate) fn key(&self, region: &Region) -> Key {
        Key { domain: self.domain, tag: region.tag, index: region.index }
    }
}

pub(crate) fn random() -> Result<u64, Failure> {
    let mut bytes = [0; 8];
    tieline_net::random(&mut bytes).map_err(|e| Failure::from_io("random bytes", &e))?;
    Ok(u64::from_le_bytes(bytes))
}

/// A remote key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    pub(crate) domain: u64,
    pub(crate) tag: u64,
    pub(crate) index: u32,
}

impl Key {
    pub(crate) fn pack(&self) -> [u8; KEY_LEN] {
        let mut out = [0; KEY_LEN];
        out[..8].copy_from_slice(&self.domain.to_le_bytes());
        out[8..16].copy_from_slice(&self.tag.to_le_bytes());
        out[16..20].copy_from_slice(&self.index.to_le_bytes());
        let sum = sum(&out[..20]);
        out[20..].copy_from_slice(&sum);
        out
    }

    /// Parses a key. Returns `None` for a wrong length or sum. The sum detects accidents; at an access, the tag detects forgeries.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Key> {
        let bytes: &[u8; KEY_LEN] = bytes.try_into().ok()?;
        let u64_at = |at: usize| {
            let mut part = [0; 8];
            part.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(part)
        };
        if sum(&bytes[..20]) != bytes[20..] {
            return None;
        }
        let index = u32::from_le_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]);
        Some(Key { domain: u64_at(0), tag: u64_at(8), index })
    }

    pub(crate) fn part(&self, total: u64) -> KeyPart {
        KeyPart { domain: self.domain, tag: self.tag, index: self.index, total }
    }
}

fn sum(bytes: &[u8]) -> [u8; 4] {
    let hash = tieline_plugin_api::address_hash(bytes);
    ((hash ^ hash >> 32) as u32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_plugin_api::access;

    #[test]
    fn a_key_opens_its_region_until_it_is_deregistered() {
        let regions = Regions::new(7, None);
        let mut memory = [0u8; 100];
        let region = regions.register(memory.as_mut_ptr(), 100, access::REMOTE_READ).unwrap();
        let key = regions.key(&region);
        assert_eq!(Key::parse(&key.pack()), Some(key));
        let find = |offset, len, right| regions.find(&key.part(0), offset, len, right).map(drop);
        assert_eq!(find(0, 100, access::REMOTE_READ), Ok(()));
        assert_eq!(find(100, 0, access::REMOTE_READ), Ok(()));
        assert_eq!(find(1, 100, access::REMOTE_READ), Err(Status::OutOfRange));
        assert_eq!(find(u64::MAX, 2, access::REMOTE_READ), Err(Status::OutOfRange));
        assert_eq!(find(0, 1, access::REMOTE_WRITE), Err(Status::KeyRejected));
        assert!(region.pin().is_some());
        regions.deregister(&region);
        assert!(region.pin().is_none());
        assert_eq!(find(0, 1, access::REMOTE_READ), Err(Status::KeyRejected));
        let next = regions.register(memory.as_mut_ptr(), 100, access::REMOTE_READ).unwrap();
        assert_eq!(next.index, region.index);
        assert_eq!(find(0, 1, access::REMOTE_READ), Err(Status::KeyRejected));
    }

    #[test]
    fn revoked_region_is_not_found_and_keeps_its_slot_until_deregistered() {
        let regions = Regions::new(7, None);
        let register = || {
            let base = std::ptr::without_provenance_mut(4096);
            regions.register(base, 8, access::REMOTE_WRITE).unwrap()
        };
        let region = register();
        let key = regions.key(&region);
        let find = || regions.find(&key.part(0), 0, 8, access::REMOTE_WRITE).map(drop);
        let pin = region.pin();
        assert!(!region.revoke(), "somebody is inside");
        assert_eq!((find(), region.pin().is_none()), (Err(Status::KeyRejected), true));
        drop(pin);
        assert!(region.revoke());
        assert_ne!(register().index, region.index);
        regions.deregister(&region);
        assert_eq!(register().index, region.index);
    }

    #[test]
    fn deregister_waits_for_who_is_touching_the_memory() {
        let regions = Regions::new(7, None);
        let region = regions.register(std::ptr::without_provenance_mut(4096), 8, 0).unwrap();
        let pin = region.pin();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| regions.deregister(&region));
            while region.pins.load(Ordering::Acquire) & REVOKED == 0 {
                std::thread::yield_now();
            }
            assert!(!waiter.is_finished());
            drop(pin);
            waiter.join().unwrap();
        });
        assert!(region.pin().is_none());
    }

    #[test]
    fn a_key_with_any_bit_changed_is_no_key() {
        let good = Key { domain: 1, tag: 2, index: 3 }.pack();
        for bit in 0..KEY_LEN * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Key::parse(&bytes), None);
        }
    }
}
