//! Which registrations there are, who uses them, and which go when a bound is reached.
//!
//! An operation on such memory needs a registration from its posting to its completion, and for just that time the
//! application has promised that the memory stays where it is. So operations on the same memory that are under way at
//! once share one registration. An operation on a part of it promises that part alone: a registration is found only while
//! operations on all of its memory have followed each other without a break. Once the last of them has ended, the memory may be unmapped and something else mapped
//! at the same address; the device would go on reaching the *old* pages, and nothing tells a library that
//! installs no hooks. A registration that is kept beyond that point is therefore only right where the program promises
//! not to unmap ([`Limits::keep`]); then the least recently used go first when a bound is reached.
//!
//! This is the bookkeeping alone: it holds values and gives back those that are to be destroyed, so that no system call
//! is made under its lock.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Unused registrations stay, for the next operation.
    pub keep: bool,
    /// Bytes of all registrations in here.
    pub bytes: usize,
    /// How many there are.
    pub entries: usize,
}

/// Names an entry: its first byte and a number that is never used again.
type EntryId = (u64, u64);

/// A use of an entry, to be given back once.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Ticket {
    id: EntryId,
    /// The operation is one on all of the entry's memory.
    whole: bool,
}

struct Entry<T> {
    end: u64,
    written: bool,
    users: usize,
    /// Those of them that vouch for all of the memory, not for a part.
    vouching: usize,
    /// Not found any more, and gone when the last user is.
    doomed: bool,
    /// Its number in the order of idle ones.
    idle_since: u64,
    value: T,
}

/// The registrations.
pub(crate) struct Cache<T> {
    limits: Limits,
    entries: BTreeMap<EntryId, Entry<T>>,
    /// The entries without users, longest unused first.
    idle: BTreeMap<u64, EntryId>,
    bytes: u64,
    /// No entry is longer: what overlaps an address begins at most this far before it.
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

    /// The entries that overlap `start..end`.
    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (EntryId, &Entry<T>)> {
        let from = start.saturating_sub(self.longest);
        let all = self.entries.range((from, 0)..(end, 0));
        all.filter(move |(_, entry)| entry.end > start).map(|(id, entry)| (*id, entry))
    }

    /// An entry that holds all of `start..end`, and may be written by the device if that is asked for.
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

    /// Makes room for `len` more bytes: what had to go, and whether there is room now.
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

    /// Takes in a new registration of `start..end` with one user. There must be room (see [`Cache::make_room`]).
    pub(crate) fn insert(&mut self, start: u64, end: u64, written: bool, value: T) -> Ticket {
        let id = (start, self.tick());
        let entry =
            Entry { end, written, users: 1, vouching: 1, doomed: false, idle_since: 0, value };
        let _ = self.entries.insert(id, entry);
        self.bytes += end - start;
        self.longest = self.longest.max(end - start);
        Ticket { id, whole: true }
    }

    /// A user is done; the value, when it is to be destroyed.
    pub(crate) fn release(&mut self, ticket: Ticket) -> Option<T> {
        let now = self.tick();
        let entry = self.entries.get_mut(&ticket.id)?;
        entry.users -= 1;
        entry.vouching -= usize::from(ticket.whole);
        // What no operation vouches for may be unmapped now, and something else mapped there.
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

    /// Memory that may be unmapped now: what is registered there is not found any more.
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

    /// Everything that has no user.
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
