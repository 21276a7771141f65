//! Registered memory, and the table through which peers' emulated operations reach it.
//!
//! ```no_run
//! # fn main() -> Result<(), tieline::Error> {
//! let context = tieline::Context::open()?;
//! let region = context.alloc(4096)?; // zeroed, shared from birth: local peers load and store
//! region.write(0, b"hello")?;
//! let key = region.remote_key()?;    // bytes for a peer: `endpoint.import_key(&key)`
//! # Ok(()) }
//! ```
//!
//! A region belongs to its context and is usable from all of its workers. It is deregistered when the
//! last clone is dropped: from then on, every remote operation on it is refused.

use crate::context::Core;
use crate::key::KeyRecord;
use crate::sys::{OwnedBuffer, Span};
use crate::{Error, Status};
use once_cell::sync::OnceCell;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ops::{BitOr, Range};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use tieline_plugin_api::access;

/// What peers may do with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(u64);

impl Access {
    /// Peers may get.
    pub const READ: Access = Access(access::REMOTE_READ);
    /// Peers may put.
    pub const WRITE: Access = Access(access::REMOTE_WRITE);
    /// Peers may do atomics.
    pub const ATOMIC: Access = Access(access::REMOTE_ATOMIC);
    /// All three.
    pub const ALL: Access =
        Access(access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC);
    /// None: only a local buffer for puts and gets.
    pub const LOCAL: Access = Access(0);

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn from_bits(bits: u64) -> Access {
        Access(bits & Access::ALL.0)
    }

    fn without_atomics(self) -> Access {
        Access(self.0 & !access::REMOTE_ATOMIC)
    }

    pub(crate) fn allows(self, needed: Access) -> bool {
        self.0 & needed.0 == needed.0
    }
}

impl BitOr for Access {
    type Output = Access;
    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

/// Who owns the bytes of a region.
pub(crate) enum Backing {
    /// A domain's `alloc`; freed by its deregistration.
    Domain,
    /// A buffer that the application handed over.
    Owned(#[allow(dead_code)] OwnedBuffer), // held for its drop
    /// The application's own memory, which it promised to keep mapped.
    Borrowed,
}

/// A domain's registration of a region.
pub(crate) struct Registration {
    pub(crate) domain: usize,
    pub(crate) handle: usize,
}

pub(crate) struct Inner {
    pub(crate) core: Arc<Core>,
    pub(crate) id: u64,
    pub(crate) generation: u64,
    pub(crate) span: Span,
    pub(crate) access: Access,
    pub(crate) registrations: Vec<Registration>,
    /// The domain whose device executes atomics on it; none: processors do.
    pub(crate) device_atomics: Option<usize>,
    /// Its remote key, packed when it is first asked for.
    pub(crate) packed: OnceCell<Vec<u8>>,
    pub(crate) backing: Backing,
}

/// Registered memory. Clones are the same region.
#[derive(Clone)]
pub struct Region {
    pub(crate) inner: Arc<Inner>,
}

impl Region {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.span.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first byte. Peers may read and write the memory at any time, so a Rust reference to it needs
    /// the caller's own synchronisation; [`Region::read`], [`Region::write`] and the atomic views do not.
    /// Memory of `Context::alloc` is not mapped in a forked child.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.inner.span.base()
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// `OutOfRange`.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        self.check_mapped()?;
        self.inner.span.read(offset, out).map_err(|s| self.outside(s, offset, out.len()))
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// `OutOfRange`.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), Error> {
        self.check_mapped()?;
        self.inner.span.write(offset, data).map_err(|s| self.outside(s, offset, data.len()))
    }

    /// A copy of a range.
    ///
    /// # Errors
    /// `OutOfRange`.
    pub fn to_vec(&self, range: Range<usize>) -> Result<Vec<u8>, Error> {
        let mut out = vec![0; range.end.saturating_sub(range.start)];
        self.read(range.start, &mut out)?;
        Ok(out)
    }

    /// The 64-bit word at an offset that is a multiple of 8. Remote atomics are atomic towards it, unless a
    /// device executes them (`TIELINE_ATOMICS=device`).
    ///
    /// # Errors
    /// `OutOfRange`, `Misaligned`.
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64, Error> {
        self.check_mapped()?;
        self.inner.span.word64(offset).map_err(|s| self.outside(s, offset, 8))
    }

    /// The 32-bit word at an offset that is a multiple of 4.
    ///
    /// # Errors
    /// `OutOfRange`, `Misaligned`.
    pub fn atomic_u32(&self, offset: usize) -> Result<&AtomicU32, Error> {
        self.check_mapped()?;
        self.inner.span.word32(offset).map_err(|s| self.outside(s, offset, 4))
    }

    /// The bytes with which a peer addresses this region; see `Endpoint::import_key`.
    ///
    /// # Errors
    /// When a provider cannot make its part of the key.
    pub fn remote_key(&self) -> Result<Vec<u8>, Error> {
        self.packed_key().cloned()
    }

    pub(crate) fn packed_key(&self) -> Result<&Vec<u8>, Error> {
        self.inner.packed.get_or_try_init(|| self.pack_key())
    }

    fn pack_key(&self) -> Result<Vec<u8>, Error> {
        let inner = &self.inner;
        let mut parts = Vec::new();
        let home = |r: &Registration| Some(r.domain) == inner.device_atomics;
        let device_atomics = inner.registrations.iter().position(home);
        for registration in &inner.registrations {
            let slot = &inner.core.domains[registration.domain];
            let bytes = slot.domain.pack_key(registration.handle as *mut _)?;
            parts.push((slot.provider.name.clone(), slot.name.clone(), bytes));
        }
        KeyRecord {
            context: inner.core.id,
            region: inner.id,
            generation: inner.generation,
            len: self.len() as u64,
            access: inner.access,
            parts,
            device_atomics,
        }
        .pack()
    }

    /// Whether local peers reach it by load and store: memory of `Context::alloc` where a provider offers that.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self.inner.backing, Backing::Domain)
    }

    /// Memory of a domain is not mapped in a forked child.
    #[inline]
    fn check_mapped(&self) -> Result<(), Error> {
        if self.is_shared() { self.inner.core.check_process("a region") } else { Ok(()) }
    }

    #[cold]
    fn outside(&self, status: Status, offset: usize, len: usize) -> Error {
        Error::new(
            status,
            format!(
                "bytes {offset}..{} of a region of {} bytes",
                offset.saturating_add(len),
                self.len()
            ),
            status.text(),
            "use a range inside the region, aligned for atomics",
        )
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // First the table, so that no emulated operation starts any more; then the domains, whose keys stop working.
        self.core.regions.remove(self.id);
        if !self.core.same_process() {
            return;
        }
        for registration in &self.registrations {
            let slot = &self.core.domains[registration.domain];
            if let Err(error) = slot.domain.deregister(registration.handle as *mut _) {
                self.core.note(format!("deregistering memory in {}: {error}", slot.name));
            }
        }
    }
}

/// The regions of a context, by number and generation.
#[derive(Default)]
pub(crate) struct Table {
    slots: RwLock<Slots>,
    /// Makes generations that nobody can guess: a key that was forged to name another region is refused.
    secret: RandomState,
    inserted: AtomicU64,
}

#[derive(Default)]
struct Slots {
    entries: Vec<Entry>,
    free: Vec<usize>,
}

struct Entry {
    generation: u64,
    open: Option<(Span, Access)>,
}

impl Table {
    /// Takes a number and its generation. The region is reachable from here on.
    pub(crate) fn insert(&self, span: Span, access: Access) -> (u64, u64) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let index = match slots.free.pop() {
            Some(index) => index,
            None => {
                slots.entries.push(Entry { generation: 0, open: None });
                slots.entries.len() - 1
            }
        };
        let entry = &mut slots.entries[index];
        entry.generation = self.secret.hash_one(self.inserted.fetch_add(1, Ordering::Relaxed));
        entry.open = Some((span, access));
        (index as u64, entry.generation)
    }

    /// From now on nobody executes atomics that peers ask for by message: a device does them all.
    pub(crate) fn leave_atomics_to_device(&self, id: u64) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = slots.entries.get_mut(id as usize) {
            entry.open = entry.open.take().map(|(span, rights)| (span, rights.without_atomics()));
        }
    }

    fn remove(&self, id: u64) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let index = id as usize;
        if let Some(entry) = slots.entries.get_mut(index) {
            entry.open = None;
            slots.free.push(index);
        }
    }

    /// Runs `access` on a peer's range; the region cannot go away meanwhile.
    pub(crate) fn reach<T>(
        &self,
        id: u64,
        generation: u64,
        range: (u64, u64),
        needed: Access,
        access: impl FnOnce(&Span, usize) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let index = usize::try_from(id).map_err(|_| Status::KeyRejected)?;
        let entry = slots.entries.get(index).ok_or(Status::KeyRejected)?;
        let (span, rights) = entry.open.as_ref().ok_or(Status::KeyRejected)?;
        if entry.generation != generation || !rights.allows(needed) {
            return Err(Status::KeyRejected);
        }
        let (offset, len) = range;
        match offset.checked_add(len) {
            Some(end) if end <= span.len() as u64 => access(span, offset as usize),
            _ => Err(Status::OutOfRange),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_region_is_refused_also_when_its_number_is_used_again() {
        let table = Table::default();
        let mut memory = vec![0u8; 16];
        let span = Span::of_owned(&mut memory);
        let (id, old) = table.insert(span, Access::ALL);
        table.remove(id);
        let (again, new) = table.insert(span, Access::READ);
        assert_eq!(id, again);
        let reach =
            |generation, needed, range| table.reach(id, generation, range, needed, |_, _| Ok(()));
        assert_eq!(reach(old, Access::READ, (0, 1)), Err(Status::KeyRejected));
        assert_eq!(reach(new, Access::READ, (0, 16)), Ok(()));
        assert_eq!(reach(new, Access::WRITE, (0, 1)), Err(Status::KeyRejected));
        assert_eq!(reach(new, Access::READ, (1, 16)), Err(Status::OutOfRange));
        assert_eq!(reach(new, Access::READ, (u64::MAX, 2)), Err(Status::OutOfRange));
        assert_eq!(
            table.reach(99, 1, (0, 0), Access::READ, |_, _| Ok(())),
            Err(Status::KeyRejected)
        );
    }
}
