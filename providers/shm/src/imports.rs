//! Regions of peers that this process has mapped, and the operations on them.
//!
//! A peer's statements are trusted only for that peer: imports belong to the *connection* on which they arrived. Statements of
//! another peer about itself, including the domain in its address, never lead to these imports.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use tieline_memory_file::{apply32, apply64};
use tieline_plugin_api::abi::{Atomic, Iov};
use tieline_plugin_api::{Failure, Posted, Posting, RmaOp, Status, access, atomic_op};

use crate::copies;
use crate::kept::{Word, Words};
use crate::keys::{Exports, Key, TABLE_LEN};
use crate::order;
use crate::sys::{self, Mapping};

/// A mapped region of a peer, with the peer's key table.
struct Import {
    /// The key with which the region was requested.
    key: Key,
    map: Arc<Mapping>,
    table: Arc<Mapping>,
}

impl Import {
    /// Checks whether the owner still has the region.
    fn is_live(&self) -> bool {
        // The owner has backed its entry with memory; a forged key may name an entry without memory.
        let page = self.key.entry() / sys::PAGE * sys::PAGE;
        self.table.populate(page, sys::PAGE).is_ok() && self.key.matches(&self.table)
    }
}

/// The maximum number of regions of a connection without a key in this process. The requester of such a region has dropped the key
/// before the answer arrived, or will request it again.
const MOST_UNCLAIMED: usize = 4096;
/// The number of regions that are kept without checking which are unused.
const FEW: usize = 16;

/// The mapped regions of one connection's peer. Only the methods of this type borrow its cells.
#[derive(Default)]
pub(crate) struct Imports {
    regions: RefCell<HashMap<u64, Rc<Import>>>,
    /// The number of regions at which the next [`Imports::tidy`] takes effect.
    room: Cell<usize>,
    table: RefCell<Weak<Mapping>>,
}

impl Imports {
    /// Maps the received files. Returns `false` if they are not what the peer claims, or cannot be mapped.
    pub(crate) fn add(
        &self,
        key: Key,
        (memory, len): (&OwnedFd, u64),
        (table, table_len): (&OwnedFd, u64),
        writable: bool,
    ) -> bool {
        let table = match self.table.borrow().upgrade() {
            Some(known) => Some(known),
            None if table_len == TABLE_LEN as u64 => {
                sys::map_peer_control(table, TABLE_LEN, false).map(Arc::new)
            }
            None => None,
        };
        let len = usize::try_from(len).unwrap_or(0);
        let (Some(table), Some(map)) = (table, sys::map_peer(memory, len, writable)) else {
            return false;
        };
        *self.table.borrow_mut() = Arc::downgrade(&table);
        self.tidy();
        let import = Rc::new(Import { key, map: Arc::new(map), table });
        let _ = self.regions.borrow_mut().insert(key.segment, import);
        true
    }

    /// Unmaps regions without a key that their owner has ended, whenever the number of regions has doubled. Regions that their
    /// owner still has are kept for their requester, up to [`MOST_UNCLAIMED`]: if many requesters retried in turn, none would find
    /// its region. Beyond that number, all regions without a key are unmapped.
    fn tidy(&self) {
        let mut regions = self.regions.borrow_mut();
        if regions.len() < self.room.get().max(FEW) {
            return;
        }
        regions.retain(|_, import| Rc::strong_count(import) > 1 || import.is_live());
        if regions.values().filter(|import| Rc::strong_count(import) == 1).count() > MOST_UNCLAIMED
        {
            regions.retain(|_, import| Rc::strong_count(import) > 1);
        }
        self.room.set(2 * regions.len());
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.regions.borrow().len()
    }

    /// Checks whether the peer has sent this region.
    pub(crate) fn holds(&self, segment: u64) -> bool {
        self.regions.borrow().contains_key(&segment)
    }

    /// Records that a key is dropped, and unmaps the region with its last key.
    fn release(&self, segment: u64) {
        let mut regions = self.regions.borrow_mut();
        if regions.get(&segment).is_some_and(|import| Rc::strong_count(import) <= 2) {
            let _ = regions.remove(&segment);
        }
    }
}

/// A remote key in use.
pub struct ImportedKey {
    key: Key,
    /// The table's word for the key: that of its region while the region exists.
    entry: Word,
    /// The part of the region's memory that the key grants.
    words: Words,
    import: Rc<Import>,
    /// The imports of the key's connection.
    imports: Rc<Imports>,
}

impl Drop for ImportedKey {
    fn drop(&mut self) {
        self.imports.release(self.key.segment);
    }
}

impl ImportedKey {
    /// Looks up the region among those of a connection, or among this process's own `exports` if the connection leads back to it.
    /// `Err(Again)` means that the region must be requested.
    pub(crate) fn find(
        key: Key,
        imports: &Rc<Imports>,
        own: Option<&Exports>,
    ) -> Result<ImportedKey, Failure> {
        let import = match own {
            Some(exports) => {
                let (map, table) = exports.local(key.segment).ok_or_else(revoked)?;
                Rc::new(Import { key, map, table })
            }
            None => imports.regions.borrow().get(&key.segment).cloned().ok_or(Status::Again)?,
        };
        let entry = Word::of(&import.table, key.entry()).ok_or_else(revoked)?;
        let grants = |right: u64| key.access & right != 0;
        let (read, write) = (grants(access::REMOTE_READ), grants(access::REMOTE_WRITE));
        // A key that is longer than its region is refused below.
        let len = key.len.min((import.map.len() as u64).saturating_sub(key.offset));
        let words = Words::of(&import.map, key.offset, len, read && !key.is_part(), write)
            .ok_or_else(revoked)?;
        let this = ImportedKey { key, entry, words, import, imports: imports.clone() };
        // The owner has backed its entry with memory; a forged key may name an entry without memory.
        let page = key.entry() / sys::PAGE * sys::PAGE;
        this.import.table.populate(page, sys::PAGE)?;
        let inside = this.import.map.holds(key.offset, key.len);
        if inside && key.matches(&this.import.table) { Ok(this) } else { Err(revoked()) }
    }

    /// Checks whether the region's owner has not revoked it.
    #[inline(always)]
    fn is_valid(&self) -> bool {
        self.entry.get().load(order::CHECK_KEY) == self.key.number
    }

    /// Checks rights, revocation and range of an operation.
    #[inline(always)] // the short path of put and get
    fn check(&self, offset: u64, len: u64, right: u64) -> Result<(), Status> {
        if self.key.access & right == 0 {
            return Err(Status::KeyRejected);
        }
        if !self.is_valid() {
            return Err(Status::KeyRejected);
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.key.len => Ok(()),
            _ => Err(Status::OutOfRange),
        }
    }

    /// Returns the address of a mapped range, valid while the key exists. Loads and stores cannot be checked individually, so the
    /// key must grant both rights.
    pub(crate) fn pointer(&self, offset: u64, len: u64) -> Result<*mut u8, Failure> {
        let map = &self.import.map;
        let both = access::REMOTE_READ | access::REMOTE_WRITE;
        if self.key.access & both != both || !map.is_writable() {
            let text = "a pointer needs a key that grants reading and writing";
            return Err(Failure::new(Status::KeyRejected, text));
        }
        self.check(offset, len, both)?;
        Ok(map.as_ptr().wrapping_add(offset as usize))
    }

    #[inline]
    pub(crate) fn put(&self, op: &RmaOp<'_>) -> Posted {
        // A single word, as for counters and flags, avoids a function call. If the access is refused here, the call repeats the
        // checks and returns the reason.
        if let [piece] = op.iov {
            if piece.len == op.len && self.is_valid() && self.words.put(op.offset, piece) {
                order::after_put();
                return Ok(Posting::Done);
            }
        }
        self.put_pieces(op.iov, op.offset, op.len)
    }

    #[inline(never)]
    fn put_pieces(&self, iov: &[Iov], offset: u64, len: usize) -> Posted {
        let posted = self.pieces(access::REMOTE_WRITE, iov, offset, len, copies::write_piece);
        order::after_put();
        posted
    }

    /// Checks the access, and copies each piece with `copy`.
    #[inline]
    fn pieces(
        &self,
        right: u64,
        iov: &[Iov],
        mut offset: u64,
        len: usize,
        copy: impl Fn(&Mapping, u64, Iov) -> bool,
    ) -> Posted {
        self.check(offset, len as u64, right)?;
        offset += self.key.offset;
        let end = offset + len as u64;
        for piece in iov {
            let left = end - offset;
            if piece.len as u64 > left || !copy(&self.import.map, offset, *piece) {
                return Err(Status::Invalid);
            }
            offset += piece.len as u64;
        }
        Ok(Posting::Done)
    }

    #[inline]
    pub(crate) fn get(&self, op: &RmaOp<'_>) -> Posted {
        if let [piece] = op.iov {
            if piece.len == op.len && self.is_valid() && self.words.get(op.offset, piece) {
                order::after_get();
                return Ok(Posting::Done);
            }
        }
        self.get_pieces(op.iov, op.offset, op.len)
    }

    #[inline(never)]
    fn get_pieces(&self, iov: &[Iov], offset: u64, len: usize) -> Posted {
        self.get_by(iov, offset, len, copies::fill_piece)
    }

    /// Gets pieces by a copy function. The memory of a part stays its owner's after the part has ended, and may get new contents. The
    /// bytes are therefore those of the part only if it has not ended before the last byte was read.
    pub(crate) fn get_by(
        &self,
        iov: &[Iov],
        offset: u64,
        len: usize,
        copy: impl Fn(&Mapping, u64, Iov) -> bool,
    ) -> Posted {
        let posted = self.pieces(access::REMOTE_READ, iov, offset, len, copy);
        order::after_get();
        if self.key.is_part() && !self.is_valid() {
            return Err(Status::KeyRejected);
        }
        posted
    }

    #[inline]
    pub(crate) fn atomic(&self, op: &Atomic, result: &mut u64) -> Posted {
        if op.width != 4 && op.width != 8 || op.op > atomic_op::MAX {
            return Err(Status::Unsupported);
        }
        self.check(op.offset, u64::from(op.width), access::REMOTE_ATOMIC)?;
        if op.offset & u64::from(op.width - 1) != 0 {
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

fn revoked() -> Failure {
    Failure::new(
        Status::KeyRejected,
        "the key is forged, or its region was deregistered: ask the owner for a fresh one",
    )
}
