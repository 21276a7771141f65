//! The memory that peers access by load and store: regions, their keys, and the table that revokes them.
//!
//! Every region of [`alloc`](tieline_plugin_api::Domain::alloc) is a memory file. Its key holds the domain, the region's number,
//! its length and rights, and an index into the domain's *key table*. This table is a file that peers can read but, since Linux
//! 5.1, not write. Importing a key of another process maps both. Every put, get and atomic compares the number in the table, so a
//! key becomes invalid at the moment its region is revoked, without a message. Loads and stores by a pointer from `key_pointer` are
//! not checked.

use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tieline_plugin_api::{Failure, Status, access};

use crate::hello::{Id, Record};
use crate::sys::{self, Mapping};

/// The length of a packed key, in bytes.
pub(crate) const KEY_LEN: usize = 1 + 16 + 8 + 4 + 8 + 8;
const KEY_VERSION: u8 = 1;
/// The length of an entry of the table: four words: number, length, rights, zero.
const ENTRY: usize = 32;
/// The maximum number of simultaneous regions of one domain.
const ENTRIES: usize = 16 << 10;
pub(crate) const TABLE_LEN: usize = ENTRIES * ENTRY;
const PER_PAGE: usize = sys::PAGE / ENTRY;

/// A region's packed key as fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) domain: Id,
    /// The region's number, never reused by a domain.
    pub(crate) segment: u64,
    pub(crate) slot: u32,
    pub(crate) len: u64,
    pub(crate) access: u64,
}

impl Key {
    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut out = vec![KEY_VERSION];
        out.extend(self.domain);
        out.extend(self.segment.to_le_bytes());
        out.extend(self.slot.to_le_bytes());
        out.extend(self.len.to_le_bytes());
        out.extend(self.access.to_le_bytes());
        out
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Key> {
        let bytes: &[u8; KEY_LEN] = bytes.try_into().ok()?;
        let word = |at: usize| bytes[at..at + 8].try_into().ok().map(u64::from_le_bytes);
        let key = Key {
            domain: bytes[1..17].try_into().ok()?,
            segment: word(17)?,
            slot: u32::from_le_bytes(bytes[25..29].try_into().ok()?),
            len: word(29)?,
            access: word(37)?,
        };
        let valid = bytes[0] == KEY_VERSION && key.segment != 0 && (key.slot as usize) < ENTRIES;
        valid.then_some(key)
    }

    /// Returns the offset of the key's entry in the table.
    #[inline]
    pub(crate) fn entry(&self) -> usize {
        self.slot as usize * ENTRY
    }

    /// Checks whether the table entry matches the key.
    pub(crate) fn matches(&self, table: &Mapping) -> bool {
        let field = |n: usize| table.word(self.entry() + n * 8).map(|w| w.load(Ordering::Acquire));
        field(0) == Some(self.segment)
            && field(1) == Some(self.len)
            && field(2) == Some(self.access)
    }
}

/// A region of this process.
pub struct Region {
    key: Key,
    map: Arc<Mapping>,
}

impl Region {
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }
    pub(crate) fn base(&self) -> *mut u8 {
        self.map.as_ptr()
    }
}

struct Export {
    fd: OwnedFd,
    map: Arc<Mapping>,
}

struct Table {
    fd: OwnedFd,
    map: Arc<Mapping>,
    free: Vec<u32>,
    used: usize,
    regions: HashMap<u64, Export>,
}

impl Table {
    fn revoke(&mut self, region: &Region) {
        if self.regions.remove(&region.key.segment).is_some() {
            if let Some(word) = self.map.word(region.key.entry()) {
                word.store(0, Ordering::SeqCst);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change below is complete before anything can panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn new_file(name: &CStr, len: usize, reserve: usize) -> Result<(OwnedFd, Mapping), Failure> {
    let fd = sys::memory_file(name, len)?;
    sys::reserve(&fd, 0, reserve)?;
    let map = Mapping::new(fd.as_fd(), len, true)?;
    Ok((fd, map))
}

/// The regions of a domain that peers may access.
#[derive(Default)]
pub(crate) struct Exports {
    table: Mutex<Option<Table>>,
    numbers: AtomicU64,
}

impl Exports {
    /// Allocates a region.
    pub(crate) fn alloc(&self, domain: Id, len: usize, rights: u64) -> Result<Region, Failure> {
        let rounded = len.checked_next_multiple_of(sys::PAGE).filter(|&l| l > 0 && l < 1 << 62);
        let Some(rounded) = rounded else {
            return Err(Failure::new(Status::Invalid, format!("no region can have {len} bytes")));
        };
        let (fd, map) = new_file(c"tieline-shm-region", rounded, rounded)?;
        if rights & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) == 0 {
            sys::seal(&fd, sys::SEAL_WRITERS)?;
        }
        let map = Arc::new(map);
        let segment = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let mut guard = lock(&self.table);
        if guard.is_none() {
            let (fd, map) = new_file(c"tieline-shm-keys", TABLE_LEN, sys::PAGE)?;
            sys::seal(&fd, sys::SEAL_WRITERS)?;
            let (free, regions) = (Vec::new(), HashMap::new());
            *guard = Some(Table { fd, map: Arc::new(map), free, used: 0, regions });
        }
        let Some(table) = guard.as_mut() else { return Err(Status::NoMemory.into()) };
        let slot = match table.free.pop() {
            Some(slot) => slot,
            None if table.used < ENTRIES => {
                if table.used > 0 && table.used % PER_PAGE == 0 {
                    table.map.populate(table.used * ENTRY, sys::PAGE)?;
                }
                table.used += 1;
                table.used as u32 - 1
            }
            None => {
                let text = format!("a domain has at most {ENTRIES} regions at a time");
                return Err(Failure::new(Status::NoMemory, text));
            }
        };
        let key = Key { domain, segment, slot, len: len as u64, access: rights };
        for (n, value) in [(1, key.len), (2, rights), (0, segment)] {
            if let Some(word) = table.map.word(key.entry() + n * 8) {
                word.store(value, Ordering::Release);
            }
        }
        let _ = table.regions.insert(segment, Export { fd, map: map.clone() });
        Ok(Region { key, map })
    }

    /// Invalidates every key of a region immediately, for puts, gets and atomics. The region's place in the table remains in use.
    pub(crate) fn revoke(&self, region: &Region) {
        if let Some(table) = lock(&self.table).as_mut() {
            table.revoke(region);
        }
    }

    /// Ends a region. The caller ends each region once.
    pub(crate) fn free(&self, region: &Region) {
        if let Some(table) = lock(&self.table).as_mut() {
            table.revoke(region);
            table.free.push(region.key.slot);
        }
    }

    /// Answers a peer's request for a region's memory. Returns `false` if the answer could not be sent and must be retried.
    #[must_use]
    pub(crate) fn answer(&self, socket: &OwnedFd, segment: u64) -> bool {
        let guard = lock(&self.table);
        let found = guard.as_ref().and_then(|t| t.regions.get(&segment).map(|r| (t, r)));
        let sent = match found {
            Some((table, region)) => {
                // A region without remote writes has a file that is sealed against new writers, so a peer cannot obtain write
                // access.
                let record = Record::KeyReply {
                    segment,
                    len: region.map.len() as u64,
                    table_len: TABLE_LEN as u64,
                    writable: !sys::is_write_sealed(&region.fd),
                };
                sys::send(socket, &record.pack(), &[region.fd.as_fd(), table.fd.as_fd()])
            }
            None => {
                let record = Record::KeyReply { segment, len: 0, table_len: 0, writable: false };
                sys::send(socket, &record.pack(), &[])
            }
        };
        // Possibly too many descriptors of this user are in flight. If the peer has ended, the next poll notices that.
        !sent.is_err_and(|error| sys::is_temporary(&error))
    }

    /// Returns a region of this process: its memory and the table.
    pub(crate) fn local(&self, segment: u64) -> Option<(Arc<Mapping>, Arc<Mapping>)> {
        let guard = lock(&self.table);
        let table = guard.as_ref()?;
        let region = table.regions.get(&segment)?;
        Some((region.map.clone(), table.map.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written_and_one_beyond_the_table_is_none() {
        let key = Key { domain: [7; 16], segment: 5, slot: 3, len: 1 << 40, access: 9 };
        let bytes = key.pack();
        assert_eq!(bytes.len(), KEY_LEN);
        assert_eq!(Key::parse(&bytes), Some(key));
        let last = Key { slot: ENTRIES as u32 - 1, ..key };
        assert_eq!(Key::parse(&last.pack()), Some(last));
        assert_eq!(Key::parse(&Key { slot: ENTRIES as u32, ..key }.pack()), None);
        assert_eq!(Key::parse(&Key { segment: 0, ..key }.pack()), None, "no region has it");
        assert_eq!(Key::parse(&[&[KEY_VERSION + 1], &bytes[1..]].concat()), None);
        assert_eq!(Key::parse(&bytes[1..]), None);
        assert_eq!(Key::parse(&[&bytes[..], &[0]].concat()), None);
    }

    #[test]
    fn key_table_fills_completely_and_freed_entry_is_reused_next() {
        let exports = Exports::default();
        let alloc = || exports.alloc([7; 16], 1, access::REMOTE_READ);
        assert_eq!(alloc().unwrap().key.slot, 0);
        lock(&exports.table).as_mut().unwrap().used = ENTRIES - 2;
        let regions = [alloc().unwrap(), alloc().unwrap()];
        assert_eq!(regions.each_ref().map(|r| r.key.slot as usize), [ENTRIES - 2, ENTRIES - 1]);
        let full = alloc().err().unwrap();
        assert_eq!(full.status, Status::NoMemory);
        assert!(full.text.contains("at most 16384 regions"), "{}", full.text);
        exports.free(&regions[0]);
        assert_eq!(alloc().unwrap().key.slot as usize, ENTRIES - 2);
    }

    #[test]
    fn a_region_is_whole_pages_and_no_longer_than_any_can_be() {
        let exports = Exports::default();
        for len in [0, 1 << 62, usize::MAX] {
            let refused = exports.alloc([7; 16], len, access::REMOTE_READ).err().unwrap();
            assert_eq!(refused.status, Status::Invalid);
            assert_eq!(refused.text, format!("no region can have {len} bytes"));
        }
        for (len, pages) in [(1, 1), (sys::PAGE, 1), (sys::PAGE + 1, 2)] {
            let region = exports.alloc([7; 16], len, access::REMOTE_READ).unwrap();
            assert_eq!((region.key.len, region.map.len()), (len as u64, pages * sys::PAGE));
        }
    }
}
