//! The table through which peers' emulated operations access a context's regions, and which resolves key handles.

use crate::Status;
use crate::mem::access::Access;
use crate::sys::Exposed;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use tieline_order::admission::{Grant, Refused};

/// The number of a region that is not in any table.
pub(super) const UNREGISTERED: u64 = u64::MAX;

/// The regions of a context, by number and generation.
#[derive(Default)]
pub(crate) struct Table {
    slots: RwLock<Slots>,
    /// The secret that makes generations unpredictable, so that a key forged to name another region is refused.
    secret: RandomState,
    inserted: AtomicU64,
}

#[derive(Default)]
struct Slots {
    entries: Vec<Entry>,
    free: Vec<usize>,
    /// The keys by handle.
    keys: HashMap<u64, Arc<[u8]>>,
    /// The keys by number, each with the index of its region.
    numbers: HashMap<u64, (usize, Arc<[u8]>)>,
}

struct Entry {
    generation: u64,
    open: Option<(Exposed, Access)>,
    /// Whether the region is unreachable for the time being.
    is_paused: bool,
    handle: Option<u64>,
    /// Whether the region is published under a number.
    published: bool,
}

impl Table {
    /// Adds a region, and returns its number and its generation. Peers can reach the region from this call on.
    pub(crate) fn insert(&self, bytes: Exposed, access: Access) -> (u64, u64) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let index = match slots.free.pop() {
            Some(index) => index,
            None => {
                slots.entries.push(Entry {
                    generation: 0,
                    open: None,
                    is_paused: false,
                    handle: None,
                    published: false,
                });
                slots.entries.len() - 1
            }
        };
        let entry = &mut slots.entries[index];
        entry.generation = self.secret.hash_one(self.inserted.fetch_add(1, Ordering::Relaxed));
        (entry.open, entry.is_paused) = (Some((bytes, access)), false);
        (index as u64, entry.generation)
    }

    /// Makes a region unreachable, or reachable again. When the function returns, no access to a region that was made unreachable
    /// is in progress.
    pub(super) fn pause(&self, id: u64, is_paused: bool) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = slots.entries.get_mut(id as usize) {
            entry.is_paused = is_paused;
        }
    }

    /// Refuses atomics that peers request by message from this call on, because a device executes all of them.
    pub(crate) fn leave_atomics_to_device(&self, id: u64) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = slots.entries.get_mut(id as usize) {
            entry.open = entry.open.take().map(|(bytes, rights)| (bytes, rights.without_atomics()));
        }
    }

    /// Removes a region. When the function returns, the region is unreachable and no access is in progress. The function is called
    /// once per region.
    pub(super) fn remove(&self, id: u64) {
        if id == UNREGISTERED {
            // The region is not in the table, so accesses to other regions need not be awaited.
            return;
        }
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let index = id as usize;
        if let Some(entry) = slots.entries.get_mut(index) {
            entry.open = None;
            let handle = entry.handle.take();
            if std::mem::take(&mut entry.published) {
                slots.numbers.retain(|_, (of, _)| *of != index);
            }
            slots.free.push(index);
            let key = handle.and_then(|handle| slots.keys.remove(&handle));
            drop(slots);
            drop(key);
        }
    }

    /// Returns the handle of a region with this key; calls `next` if the region has no handle yet. `None`: the region is
    /// unreachable.
    pub(super) fn handle(
        &self,
        id: u64,
        generation: u64,
        key: &[u8],
        next: impl FnOnce() -> u64,
    ) -> Option<u64> {
        let known = {
            let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
            slots.open(id, generation)?.handle
        };
        if known.is_some() {
            return known;
        }
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        // A second check, because another thread may have changed the table between the two locks.
        let handle = match slots.open(id, generation)?.handle {
            Some(handle) => handle,
            None => next(),
        };
        slots.entries[id as usize].handle = Some(handle);
        let _ = slots.keys.entry(handle).or_insert_with(|| key.into());
        Some(handle)
    }

    /// Publishes a region with this key under a number. `Busy`: another region has the number; `Closed`: the region is unreachable.
    pub(super) fn publish(
        &self,
        id: u64,
        generation: u64,
        number: u64,
        key: &[u8],
    ) -> Result<(), Status> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let _ = slots.open(id, generation).ok_or(Status::Closed)?;
        let index = id as usize;
        let (of, _) = slots.numbers.entry(number).or_insert_with(|| (index, key.into()));
        if *of != index {
            return Err(Status::Busy);
        }
        slots.entries[index].published = true;
        Ok(())
    }

    /// Removes a number of a region. `false`: the region does not have it.
    pub(super) fn unpublish(&self, id: u64, generation: u64, number: u64) -> bool {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let own = slots.open(id, generation).is_some()
            && slots.numbers.get(&number).is_some_and(|(of, _)| *of == id as usize);
        own && slots.numbers.remove(&number).is_some()
    }

    /// Returns the key that is published under a number.
    pub(crate) fn key_of_number(&self, number: u64) -> Option<Arc<[u8]>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.numbers.get(&number).map(|(_, key)| key.clone())
    }

    /// Returns the key of a handle.
    pub(crate) fn key_of(&self, handle: u64) -> Option<Arc<[u8]>> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner).keys.get(&handle).cloned()
    }

    /// Runs a function while the table is locked.
    #[cfg(test)]
    pub(crate) fn locked(&self, run: impl FnOnce()) {
        let _slots = self.slots.write().unwrap();
        run();
    }

    /// Runs `access` on a peer's range; the region cannot disappear during the call.
    pub(crate) fn reach<T, E: From<Status>>(
        &self,
        id: u64,
        generation: u64,
        range: (u64, u64),
        needed: Access,
        access: impl FnOnce(&Exposed, usize) -> Result<T, E>,
    ) -> Result<T, E> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let index = usize::try_from(id).map_err(|_| Status::KeyRejected)?;
        let entry = slots.entries.get(index).ok_or(Status::KeyRejected)?;
        let (bytes, rights) = entry.open.as_ref().ok_or(Status::KeyRejected)?;
        if entry.generation != generation || entry.is_paused {
            return Err(Status::KeyRejected.into());
        }
        let (offset, len) = range;
        let grant = Grant { rights: rights.bits(), len: bytes.span().len() as u64 };
        grant.check(needed.bits(), offset, len).map_err(Refused::status)?;
        access(bytes, offset as usize)
    }
}

impl Slots {
    /// Returns the entry of a reachable region.
    fn open(&self, id: u64, generation: u64) -> Option<&Entry> {
        let entry = self.entries.get(usize::try_from(id).ok()?)?;
        (entry.generation == generation && entry.open.is_some()).then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Span;

    #[test]
    fn a_handle_stands_for_its_regions_key_until_the_region_is_removed() {
        let table = Table::default();
        let mut memory = vec![0u8; 16];
        let span = Span::from_owned(&mut memory);
        let (id, old) = table.insert(Exposed::new(span, false), Access::ALL);
        let first = table.handle(id, old, &[1], || 5).unwrap();
        assert_eq!((first, table.handle(id, old, &[1], || 6)), (5, Some(5)));
        assert_eq!(table.key_of(first).as_deref(), Some(&[1][..]));
        assert_eq!(table.handle(id, old ^ 1, &[1], || 6), None);
        table.remove(id);
        assert_eq!((table.key_of(first), table.handle(id, old, &[1], || 6)), (None, None));
        let (again, new) = table.insert(Exposed::new(span, false), Access::ALL);
        assert_eq!(id, again);
        assert_eq!(table.handle(id, old, &[1], || 6), None, "its number is another region's");
        let second = table.handle(id, new, &[2], || 6).unwrap();
        assert_eq!(second, 6);
        assert_eq!((table.key_of(first), table.key_of(second).as_deref()), (None, Some(&[2][..])));
        assert_eq!(table.slots.read().unwrap().keys.len(), 1);
    }

    #[test]
    fn number_stands_for_one_region_at_a_time_until_the_region_is_removed() {
        let table = Table::default();
        let mut memory = vec![0u8; 16];
        let span = Span::from_owned(&mut memory);
        let [first, second] =
            [(); 2].map(|()| table.insert(Exposed::new(span, false), Access::ALL));
        for _ in 0..2 {
            assert_eq!(table.publish(first.0, first.1, 7, &[1]), Ok(()));
        }
        assert_eq!(table.publish(first.0, first.1, 8, &[1]), Ok(()));
        assert_eq!(table.publish(second.0, second.1, 7, &[2]), Err(Status::Busy));
        assert_eq!(table.publish(first.0, first.1 ^ 1, 9, &[1]), Err(Status::Closed));
        assert!(!table.unpublish(second.0, second.1, 7) && table.unpublish(first.0, first.1, 7));
        assert!(!table.unpublish(first.0, first.1, 7));
        assert_eq!(table.publish(second.0, second.1, 7, &[2]), Ok(()));
        assert_eq!(table.key_of_number(7).as_deref(), Some(&[2][..]));
        table.remove(first.0);
        let numbers = [7, 8, 9].map(|number| table.key_of_number(number).is_some());
        assert_eq!(numbers, [true, false, false]);
        table.remove(second.0);
        assert!(table.slots.read().unwrap().numbers.is_empty());
    }

    #[test]
    fn unregistered_region_is_removed_while_another_is_in_use() {
        let table = Arc::new(Table::default());
        let mut memory = vec![0u8; 16];
        let (id, generation) =
            table.insert(Exposed::new(Span::from_owned(&mut memory), false), Access::ALL);
        let (other, (tell, hear)) = (table.clone(), std::sync::mpsc::channel());
        let inside = table.reach(id, generation, (0, 1), Access::READ, |_, _| {
            let _ = std::thread::spawn(move || {
                other.remove(UNREGISTERED);
                let _ = tell.send(());
            });
            Ok::<_, Status>(hear.recv_timeout(std::time::Duration::from_secs(60)))
        });
        assert_eq!(inside, Ok(Ok(())), "it waited for who is inside");
    }

    #[test]
    fn a_removed_region_is_refused_also_when_its_number_is_used_again() {
        let table = Table::default();
        let mut memory = vec![0u8; 16];
        let span = Span::from_owned(&mut memory);
        let (id, old) = table.insert(Exposed::new(span, false), Access::ALL);
        table.remove(id);
        let (again, new) = table.insert(Exposed::new(span, false), Access::READ);
        assert_eq!(id, again);
        let reach = |generation, needed, range| {
            table.reach(id, generation, range, needed, |_, _| Ok::<_, Status>(()))
        };
        assert_eq!(reach(old, Access::READ, (0, 1)), Err(Status::KeyRejected));
        assert_eq!(reach(new, Access::READ, (0, 16)), Ok(()));
        assert_eq!(reach(new, Access::WRITE, (0, 1)), Err(Status::KeyRejected));
        assert_eq!(reach(new, Access::READ, (1, 16)), Err(Status::OutOfRange));
        assert_eq!(reach(new, Access::READ, (u64::MAX, 2)), Err(Status::OutOfRange));
        table.pause(id, true);
        assert_eq!(reach(new, Access::READ, (0, 16)), Err(Status::KeyRejected));
        table.pause(id, false);
        assert_eq!(reach(new, Access::READ, (0, 16)), Ok(()));
        assert_eq!(
            table.reach(99, 1, (0, 0), Access::READ, |_, _| Ok::<_, Status>(())),
            Err(Status::KeyRejected)
        );
    }
}
