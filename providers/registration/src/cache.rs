//! The existing registrations, their users, and their eviction when a limit is reached.
//!
//! An operation on memory that the application did not register needs a registration from its posting to its completion. Only for
//! that time has the application promised that the memory stays in place. Concurrent operations on the same memory can share one
//! registration.
//!
//! An operation on a part of the memory promises that part only. A registration is therefore reused only while operations on all of
//! its memory have followed each other without a gap. After the last of these operations has ended, the memory may be unmapped and
//! another mapping created at the same address. The device would still access the *old* pages, and a library without hooks is not
//! notified. If the program promises not to unmap ([`Limits::keep`]), registrations are kept longer, and the least recently used
//! ones are evicted when a limit is reached.
//!
//! This module only does the bookkeeping. It holds values and returns those to be destroyed, so no system call is made under its
//! lock.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

/// The limits of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Whether the cache keeps unused registrations for the next operation.
    pub keep: bool,
    /// The maximum number of bytes of all registrations in the cache.
    pub bytes: usize,
    /// The maximum number of registrations.
    pub entries: usize,
}

/// The identity of an entry: the address of its first byte, and a number that is never reused.
type EntryId = (u64, u64);

/// A use of an entry, which its user releases once.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Ticket {
    id: EntryId,
    /// Whether the operation covers all of the entry's memory.
    whole: bool,
}

struct Entry<T> {
    end: u64,
    written: bool,
    users: usize,
    /// The number of users whose operations cover all of the memory and not a part.
    vouching: usize,
    /// Whether the entry is not found any more, and ends with its last user.
    doomed: bool,
    /// The entry's number in the order of idle ones.
    idle_since: u64,
    value: T,
}

/// The cached registrations.
pub(crate) struct Cache<T> {
    limits: Limits,
    entries: BTreeMap<EntryId, Entry<T>>,
    /// The entries without users, the longest unused first.
    idle: BTreeMap<u64, EntryId>,
    bytes: u64,
    /// The length of the longest entry since the cache was last empty: an entry that overlaps an address begins at most this far
    /// before it.
    longest: u64,
    clock: u64,
}

impl<T> Cache<T> {
    pub(crate) fn new(limits: Limits) -> Cache<T> {
        let (entries, idle) = (BTreeMap::new(), BTreeMap::new());
        Cache { limits, entries, idle, bytes: 0, longest: 0, clock: 0 }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Returns the entries that overlap `start..end`.
    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (EntryId, &Entry<T>)> {
        let from = start.saturating_sub(self.longest);
        let all = self.entries.range((from, 0)..(end, 0));
        all.filter(move |(_, entry)| entry.end > start).map(|(id, entry)| (*id, entry))
    }

    /// Finds an entry that contains all of `start..end`, and that the device may write if requested. Adds a user to the entry.
    pub(crate) fn find(&mut self, start: u64, end: u64, written: bool) -> Option<(Ticket, &T)> {
        let fits = |(id, entry): &(EntryId, &Entry<T>)| {
            !entry.doomed && id.0 <= start && end <= entry.end && (entry.written || !written)
        };
        let id = self.overlapping(start, end).find(fits)?.0;
        let entry = self.entries.get_mut(&id)?;
        if entry.users == 0 {
            let _ = self.idle.remove(&entry.idle_since);
        }
        let whole = id.0 == start && entry.end == end;
        entry.users += 1;
        entry.vouching += usize::from(whole);
        Some((Ticket { id, whole }, &entry.value))
    }

    /// Makes room for `len` more bytes. Returns the evicted values, and whether there is room.
    pub(crate) fn make_room(&mut self, len: u64) -> (Vec<T>, bool) {
        let mut gone = Vec::new();
        if len > self.limits.bytes as u64 {
            return (gone, false);
        }
        loop {
            let fits = self.entries.len() < self.limits.entries
                && self.bytes + len <= self.limits.bytes as u64;
            let oldest = self.idle.first_key_value().map(|(_, id)| *id);
            match oldest {
                _ if fits => return (gone, true),
                Some(id) => gone.extend(self.remove(id)),
                None => return (gone, false),
            }
        }
    }

    /// Adds a new registration of `start..end` with one user. There must be room (see [`Cache::make_room`]).
    pub(crate) fn insert(&mut self, start: u64, end: u64, written: bool, value: T) -> Ticket {
        let id = (start, self.tick());
        let entry =
            Entry { end, written, users: 1, vouching: 1, doomed: false, idle_since: 0, value };
        let _ = self.entries.insert(id, entry);
        self.bytes += end - start;
        self.longest = self.longest.max(end - start);
        Ticket { id, whole: true }
    }

    /// Ends a use of an entry. Returns the value if it is to be destroyed.
    pub(crate) fn release(&mut self, ticket: Ticket) -> Option<T> {
        let now = self.tick();
        let entry = self.entries.get_mut(&ticket.id)?;
        entry.users -= 1;
        entry.vouching -= usize::from(ticket.whole);
        // If no operation covers all of the memory, the rest may be unmapped, and another mapping created there.
        entry.doomed |= !self.limits.keep && entry.vouching == 0;
        if entry.users > 0 {
            return None;
        }
        if entry.doomed {
            return self.remove(ticket.id);
        }
        entry.idle_since = now;
        let _ = self.idle.insert(now, ticket.id);
        None
    }

    /// Forgets the registrations of this memory, which may be unmapped: they are not found any more. Returns the unused ones, which
    /// are to be destroyed.
    pub(crate) fn forget(&mut self, start: u64, end: u64) -> Vec<T> {
        let ids: Vec<EntryId> = self.overlapping(start, end).map(|(id, _)| id).collect();
        let mut gone = Vec::new();
        for id in ids {
            match self.entries.get_mut(&id) {
                Some(entry) if entry.users > 0 => entry.doomed = true,
                _ => gone.extend(self.remove(id)),
            }
        }
        gone
    }

    /// Removes every entry without users.
    pub(crate) fn forget_idle(&mut self) -> Vec<T> {
        let ids: Vec<EntryId> = self.idle.values().copied().collect();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    fn remove(&mut self, id: EntryId) -> Option<T> {
        let entry = self.entries.remove(&id)?;
        let _ = self.idle.remove(&entry.idle_since);
        self.bytes -= entry.end - id.0;
        if self.entries.is_empty() {
            self.longest = 0;
        }
        Some(entry.value)
    }
}
