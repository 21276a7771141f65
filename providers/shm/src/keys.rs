//! Memory that peers reach by load and store: regions, their keys, and the table that revokes them.
//!
//! Every region of [`alloc`](tieline_plugin_api::Domain::alloc) is a memory file. Its key names the domain,
//! the region's number, its length and rights, and a place in the domain's *key table*, a page that peers
//! can read but not write. Importing a key maps both; every operation then compares the number in the table,
//! so that a key stops working at the moment its region is deregistered, without a message.

use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tieline_plugin_api::abi::Atomic;
use tieline_plugin_api::{Failure, Posted, Posting, RmaOp, Status, access, atomic_op};

use crate::hello::{Id, Record};
use crate::sys::{self, Mapping};

/// The length of a packed key.
pub(crate) const KEY_LEN: usize = 1 + 16 + 8 + 4 + 8 + 8;
const KEY_VERSION: u8 = 1;
/// An entry of the table: four words: number, length, rights, zero.
const ENTRY: usize = 32;
/// Most regions of one domain at a time.
const ENTRIES: usize = 16 << 10;
const TABLE_LEN: usize = ENTRIES * ENTRY;
const PER_PAGE: usize = sys::PAGE / ENTRY;

/// A region's packed key as fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) domain: Id,
    /// The region's number, never used twice by a domain.
    pub(crate) segment: u64,
    slot: u32,
    len: u64,
    access: u64,
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

    fn entry(&self) -> usize {
        self.slot as usize * ENTRY
    }

    /// Whether the table says the same as the key.
    fn matches(&self, table: &Mapping) -> bool {
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

/// The regions of this process that peers may reach.
#[derive(Default)]
pub(crate) struct Exports {
    table: Mutex<Option<Table>>,
    numbers: AtomicU64,
}

impl Exports {
    /// Makes a region.
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

    /// Ends a region: every key of it stops working now.
    pub(crate) fn free(&self, region: &Region) {
        if let Some(table) = lock(&self.table).as_mut() {
            if table.regions.remove(&region.key.segment).is_some() {
                if let Some(word) = table.map.word(region.key.entry()) {
                    word.store(0, Ordering::SeqCst);
                }
                table.free.push(region.key.slot);
            }
        }
    }

    /// Answers a peer's request for a region's memory.
    pub(crate) fn answer(&self, socket: &OwnedFd, segment: u64) {
        let guard = lock(&self.table);
        let found = guard.as_ref().and_then(|t| t.regions.get(&segment).map(|r| (t, r)));
        let sent = match found {
            Some((table, region)) => {
                // Sealed against new writers: a peer must not ask for write access.
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
        drop(sent); // a full socket: the peer asks again
    }

    /// A region of this very process.
    fn local(&self, segment: u64) -> Option<Arc<Import>> {
        let guard = lock(&self.table);
        let table = guard.as_ref()?;
        let region = table.regions.get(&segment)?;
        Some(Arc::new(Import { map: region.map.clone(), table: table.map.clone() }))
    }
}

/// A peer's region, mapped, with its table.
struct Import {
    map: Arc<Mapping>,
    table: Arc<Mapping>,
}

/// The peers' regions that this process has mapped, shared by all its interfaces.
#[derive(Default)]
pub(crate) struct Imports {
    state: Mutex<ImportState>,
}

#[derive(Default)]
struct ImportState {
    regions: HashMap<(Id, u64), Arc<Import>>,
    tables: HashMap<Id, Weak<Mapping>>,
}

impl Imports {
    /// Maps what a peer sent; `false` when it is not what it claims to be.
    #[allow(clippy::too_many_arguments)] // the fields of one record
    pub(crate) fn add(
        &self,
        domain: &Id,
        segment: u64,
        memory: &OwnedFd,
        len: u64,
        table: &OwnedFd,
        table_len: u64,
        writable: bool,
    ) -> bool {
        let mut state = lock(&self.state);
        let known = state.tables.get(domain).and_then(Weak::upgrade);
        let table = match known {
            Some(table) => Some(table),
            None if table_len == TABLE_LEN as u64 => {
                sys::map_peer_control(table, TABLE_LEN, false).map(Arc::new)
            }
            None => None,
        };
        let len = usize::try_from(len).unwrap_or(0);
        let (Some(table), Some(map)) = (table, sys::map_peer(memory, len, writable)) else {
            return false;
        };
        let _ = state.tables.insert(*domain, Arc::downgrade(&table));
        let import = Arc::new(Import { map: Arc::new(map), table });
        let _ = state.regions.insert((*domain, segment), import);
        true
    }

    fn get(&self, key: &Key) -> Option<Arc<Import>> {
        lock(&self.state).regions.get(&(key.domain, key.segment)).cloned()
    }

    /// A key is dropped: unmaps the region with the last one.
    fn release(&self, key: &Key) {
        let mut state = lock(&self.state);
        let place = (key.domain, key.segment);
        if state.regions.get(&place).is_some_and(|import| Arc::strong_count(import) <= 2) {
            let _ = state.regions.remove(&place);
        }
        state.tables.retain(|_, table| table.strong_count() > 0);
    }
}

/// A remote key in use.
pub struct ImportedKey {
    key: Key,
    import: Arc<Import>,
    domain: Arc<crate::domain::DomainState>,
}

impl Drop for ImportedKey {
    fn drop(&mut self) {
        self.domain.imports.release(&self.key);
    }
}

impl ImportedKey {
    /// Looks the region up; `Err(Again)`: it must be asked for.
    pub(crate) fn find(
        key: Key,
        domain: &Arc<crate::domain::DomainState>,
    ) -> Result<ImportedKey, Failure> {
        let import = if key.domain == domain.id {
            domain.exports.local(key.segment).ok_or_else(revoked)?
        } else {
            domain.imports.get(&key).ok_or(Status::Again)?
        };
        let this = ImportedKey { key, import, domain: domain.clone() };
        // The owner has given its entry memory; a forged key may name one that has none.
        this.import.table.populate(key.entry() / sys::PAGE * sys::PAGE, sys::PAGE)?;
        let inside = this.import.map.holds(0, key.len);
        if inside && key.matches(&this.import.table) { Ok(this) } else { Err(revoked()) }
    }

    /// The checks of every operation: rights, revocation, range.
    #[inline]
    fn check(&self, offset: u64, len: u64, right: u64) -> Result<(), Status> {
        if self.key.access & right == 0 {
            return Err(Status::KeyRejected);
        }
        let now = self.import.table.word(self.key.entry());
        if now.map(|word| word.load(Ordering::Acquire)) != Some(self.key.segment) {
            return Err(Status::KeyRejected);
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.key.len => Ok(()),
            _ => Err(Status::OutOfRange),
        }
    }

    #[inline]
    pub(crate) fn put(&self, op: &RmaOp<'_>) -> Posted {
        self.check(op.offset, op.len as u64, access::REMOTE_WRITE)?;
        let mut offset = op.offset;
        for piece in op.iov {
            let left = op.offset + op.len as u64 - offset;
            if piece.len as u64 > left || !self.import.map.copy_in(offset, piece.base, piece.len) {
                return Err(Status::Invalid);
            }
            offset += piece.len as u64;
        }
        Ok(Posting::Done)
    }

    #[inline]
    pub(crate) fn get(&self, op: &RmaOp<'_>) -> Posted {
        self.check(op.offset, op.len as u64, access::REMOTE_READ)?;
        let mut offset = op.offset;
        for piece in op.iov {
            let left = op.offset + op.len as u64 - offset;
            if piece.len as u64 > left || !self.import.map.copy_out(offset, piece.base, piece.len) {
                return Err(Status::Invalid);
            }
            offset += piece.len as u64;
        }
        Ok(Posting::Done)
    }

    #[inline]
    pub(crate) fn atomic(&self, op: &Atomic, result: &mut u64) -> Posted {
        if op.width != 4 && op.width != 8 || op.op > atomic_op::MAX {
            return Err(Status::Unsupported);
        }
        self.check(op.offset, u64::from(op.width), access::REMOTE_ATOMIC)?;
        if op.offset % u64::from(op.width) != 0 {
            return Err(Status::Misaligned);
        }
        let map = &self.import.map;
        if !map.is_writable() {
            return Err(Status::KeyRejected);
        }
        let offset = op.offset as usize;
        *result = if op.width == 8 {
            apply64(map.word(offset).ok_or(Status::OutOfRange)?, op)
        } else {
            u64::from(apply32(map.half_word(offset).ok_or(Status::OutOfRange)?, op))
        };
        Ok(Posting::Done)
    }
}

macro_rules! apply {
    ($name:ident, $atomic:ty, $int:ty) => {
        #[inline]
        fn $name(word: &$atomic, op: &Atomic) -> $int {
            let operand = op.operand as $int;
            match op.op {
                atomic_op::ADD => word.fetch_add(operand, Ordering::AcqRel),
                atomic_op::AND => word.fetch_and(operand, Ordering::AcqRel),
                atomic_op::OR => word.fetch_or(operand, Ordering::AcqRel),
                atomic_op::XOR => word.fetch_xor(operand, Ordering::AcqRel),
                atomic_op::SWAP => word.swap(operand, Ordering::AcqRel),
                atomic_op::MIN => word.fetch_min(operand, Ordering::AcqRel),
                atomic_op::MAX => word.fetch_max(operand, Ordering::AcqRel),
                _ => {
                    let compare = op.compare as $int;
                    match word.compare_exchange(
                        compare,
                        operand,
                        Ordering::AcqRel,
                        Ordering::Acquire,
                    ) {
                        Ok(before) | Err(before) => before,
                    }
                }
            }
        }
    };
}
apply!(apply64, AtomicU64, u64);
apply!(apply32, AtomicU32, u32);

fn revoked() -> Failure {
    Failure::new(
        Status::KeyRejected,
        "the key is forged, or its region was deregistered: ask the owner for a fresh one",
    )
}
