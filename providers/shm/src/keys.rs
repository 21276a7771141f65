//! The memory that peers access by load and store: regions, their keys, and the table that revokes them.
//!
//! Every region of [`alloc`](tieline_plugin_api::Domain::alloc) is a memory file. Its key holds the domain, the region's number,
//! its length and rights, and an index into the domain's *key table*. This table is a file that peers can read but, since Linux
//! 5.1, not write. Importing a key of another process maps both. Every put, get and atomic compares the number in the table, so a
//! key becomes invalid at the moment its region is revoked, without a message. Loads and stores by a pointer from `key_pointer` are
//! not checked.
//!
//! A *part* of such a region can be registered for reading. It has its own number and entry in the table, and its key names the file
//! of the region. A connected peer gets each file on request, with or without a key, so a part's key gives the peer no further right.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tieline_plugin_api::{Failure, Status, access};

use crate::hello::{Id, Record};
use crate::order;
use crate::sys::{self, Mapping};

/// The length of the packed key of a whole region, in bytes.
const WHOLE_LEN: usize = 1 + 16 + 8 + 4 + 8 + 8;
/// The length of the longest packed key, that of a part.
pub(crate) const KEY_LEN: usize = WHOLE_LEN + 8 + 8;
/// The version of the key of a whole region.
const WHOLE: u8 = 1;
/// The version of the key of a part, which ends with the region's number and the offset.
const PART: u8 = 2;
/// The length of an entry of the table: four words: number, length, rights, offset in the file.
const ENTRY: usize = 32;
/// The maximum number of simultaneous regions of one domain.
const ENTRIES: usize = 16 << 10;
/// The number of entries from which no part is registered. Other modules copy such a message, and `alloc` still finds entries.
const MOST_WITH_PARTS: usize = ENTRIES / 2;
pub(crate) const TABLE_LEN: usize = ENTRIES * ENTRY;
const PER_PAGE: usize = sys::PAGE / ENTRY;

/// A region's packed key as fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) domain: Id,
    /// The number of the region or part, never reused by a domain.
    pub(crate) number: u64,
    pub(crate) slot: u32,
    pub(crate) len: u64,
    pub(crate) access: u64,
    /// The number of the region whose file has the memory.
    pub(crate) segment: u64,
    /// The offset in that file.
    pub(crate) offset: u64,
}

impl Key {
    /// Checks whether the key is that of a part of a region.
    pub(crate) fn is_part(&self) -> bool {
        self.number != self.segment
    }

    pub(crate) fn pack(&self) -> Vec<u8> {
        let is_whole = !self.is_part();
        let mut out = Vec::with_capacity(KEY_LEN);
        out.push(if is_whole { WHOLE } else { PART });
        out.extend(self.domain);
        out.extend(self.number.to_le_bytes());
        out.extend(self.slot.to_le_bytes());
        out.extend(self.len.to_le_bytes());
        out.extend(self.access.to_le_bytes());
        if !is_whole {
            out.extend(self.segment.to_le_bytes());
            out.extend(self.offset.to_le_bytes());
        }
        out
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Key> {
        let (fields, part) = bytes.split_at_checked(WHOLE_LEN)?;
        let word =
            |from: &[u8], at: usize| from.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let number = word(fields, 17)?;
        let (segment, offset) = match (bytes[0], part.len()) {
            (WHOLE, 0) => (number, 0),
            (PART, 16) => (word(part, 0)?, word(part, 8)?),
            _ => return None,
        };
        let key = Key {
            domain: fields[1..17].try_into().ok()?,
            number,
            slot: u32::from_le_bytes(fields[25..29].try_into().ok()?),
            len: word(fields, 29)?,
            access: word(fields, 37)?,
            segment,
            offset,
        };
        // A part is for reading.
        let has_rights = segment == number || key.access & !access::REMOTE_READ == 0;
        let valid = number != 0 && segment != 0 && (key.slot as usize) < ENTRIES && has_rights;
        valid.then_some(key)
    }

    /// Returns the offset of the key's entry in the table.
    #[inline]
    pub(crate) fn entry(&self) -> usize {
        self.slot as usize * ENTRY
    }

    /// Checks whether the table entry matches the key.
    pub(crate) fn matches(&self, table: &Mapping) -> bool {
        let field = |n: usize| table.word(self.entry() + n * 8).map(|w| w.load(order::CHECK_KEY));
        field(0) == Some(self.number)
            && field(1) == Some(self.len)
            && field(2) == Some(self.access)
            && field(3) == Some(self.offset)
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
    #[cfg(test)]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        self.map.word(offset).unwrap()
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
    /// The numbers of the regions by their address.
    places: BTreeMap<usize, u64>,
}

impl Table {
    fn revoke(&mut self, region: &Region) {
        let key = &region.key;
        if self.regions.remove(&key.number).is_some() {
            let _ = self.places.remove(&region.map.as_ptr().addr());
        }
        // Its own entry belongs to the region until the region is freed.
        if let Some(word) = self.map.word(key.entry()) {
            word.store(0, Ordering::SeqCst);
        }
        order::after_end();
    }

    /// Takes an entry for a new region or part.
    fn take_slot(&mut self) -> Result<u32, Failure> {
        match self.free.pop() {
            Some(slot) => Ok(slot),
            None if self.used < ENTRIES => {
                if self.used > 0 && self.used % PER_PAGE == 0 {
                    self.map.populate(self.used * ENTRY, sys::PAGE)?;
                }
                self.used += 1;
                Ok(self.used as u32 - 1)
            }
            None => {
                let text = format!("a domain has at most {ENTRIES} regions at a time");
                Err(Failure::new(Status::NoMemory, text))
            }
        }
    }

    /// Writes the entry of a key, which makes the key valid.
    fn write(&self, key: &Key) {
        let fields = [(1, key.len), (2, key.access), (3, key.offset), (0, key.number)];
        for (n, value) in fields {
            if let Some(word) = self.map.word(key.entry() + n * 8) {
                word.store(value, order::PUBLISH_KEY);
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
            let (free, regions, places) = (Vec::new(), HashMap::new(), BTreeMap::new());
            let map = Arc::new(map);
            *guard = Some(Table { fd, map, free, used: 0, regions, places });
        }
        let Some(table) = guard.as_mut() else { return Err(Status::NoMemory.into()) };
        let slot = table.take_slot()?;
        let (len, access, number) = (len as u64, rights, segment);
        let key = Key { domain, number, slot, len, access, segment, offset: 0 };
        table.write(&key);
        let _ = table.places.insert(map.as_ptr().addr(), segment);
        let _ = table.regions.insert(segment, Export { fd, map: map.clone() });
        Ok(Region { key, map })
    }

    /// Registers a part of a region for reading.
    pub(crate) fn register(
        &self,
        domain: Id,
        (base, len): (*mut u8, usize),
        rights: u64,
    ) -> Result<Region, Failure> {
        let other = || {
            let text = "shm registers only memory of its own alloc, and only for reading";
            Failure::new(Status::Unsupported, text)
        };
        if rights & !access::REMOTE_READ != 0 {
            return Err(other());
        }
        let mut guard = lock(&self.table);
        let table = guard.as_mut().ok_or_else(other)?;
        let (&at, &segment) = table.places.range(..=base.addr()).next_back().ok_or_else(other)?;
        let map = table.regions.get(&segment).ok_or_else(other)?.map.clone();
        let offset = (base.addr() - at) as u64;
        if len == 0 || !map.holds(offset, len as u64) {
            return Err(other());
        }
        if table.used - table.free.len() >= MOST_WITH_PARTS {
            let text = format!(
                "the key table has {MOST_WITH_PARTS} entries, and the others are kept for whole regions"
            );
            return Err(Failure::new(Status::NoMemory, text));
        }
        let (slot, len, access) = (table.take_slot()?, len as u64, rights);
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let key = Key { domain, number, slot, len, access, segment, offset };
        table.write(&key);
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
        let (domain, number, slot, len) = ([7; 16], 5, 3, 1 << 40);
        let key = Key { domain, number, slot, len, access: 9, segment: 5, offset: 0 };
        let bytes = key.pack();
        assert_eq!(bytes.len(), WHOLE_LEN);
        assert_eq!(Key::parse(&bytes), Some(key));
        let last = Key { slot: ENTRIES as u32 - 1, ..key };
        assert_eq!(Key::parse(&last.pack()), Some(last));
        assert_eq!(Key::parse(&Key { slot: ENTRIES as u32, ..key }.pack()), None);
        assert_eq!(
            Key::parse(&Key { number: 0, segment: 0, ..key }.pack()),
            None,
            "no region has it"
        );
        assert_eq!(Key::parse(&[&[PART], &bytes[1..]].concat()), None);
        assert_eq!(Key::parse(&[&[PART + 1], &bytes[1..]].concat()), None);
        assert_eq!(Key::parse(&bytes[1..]), None);
        assert_eq!(Key::parse(&[&bytes[..], &[0]].concat()), None);
        let part = Key { number: 6, access: access::REMOTE_READ, offset: 4096, ..key };
        let bytes = part.pack();
        assert_eq!(bytes.len(), KEY_LEN);
        assert_eq!(Key::parse(&bytes), Some(part));
        assert_eq!(Key::parse(&bytes[..WHOLE_LEN]), None);
        let writes = Key { access: access::REMOTE_WRITE, ..part };
        assert_eq!(Key::parse(&writes.pack()), None, "a part is for reading");
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
    fn parts_leave_half_of_the_key_table_to_regions() {
        let exports = Exports::default();
        let region = exports.alloc([7; 16], 64, access::REMOTE_READ).unwrap();
        let part = || exports.register([7; 16], (region.base(), 8), access::REMOTE_READ);
        lock(&exports.table).as_mut().unwrap().used = MOST_WITH_PARTS - 1;
        let last = part().unwrap();
        assert_eq!(part().err().unwrap().status, Status::NoMemory);
        assert!(exports.alloc([7; 16], 1, access::REMOTE_READ).is_ok());
        exports.free(&last);
        assert_eq!(part().err().unwrap().status, Status::NoMemory, "the new region has the place");
        exports.free(&region);
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
