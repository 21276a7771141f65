//! One rule for every listener: which connections may be in their handshake at once, and which one makes room.
//!
//! * Connections in their handshake are bounded in total and for each source: [`RESERVE`] and [`RESERVE_PER_SOURCE`], and one more for each
//!   process that is expected ([`Admission::expect`]).
//! * A source is an IPv4 address, the first 64 bits of an IPv6 address, or this host.
//! * If there is no room, the oldest connection makes it, once it is [`HOLD`] old. Its age counts from its arrival: bytes renew nothing.
//! * The source at its bound makes room itself; else the source with the most connections does.
//! * A connection that has proven itself makes no room for one that has not.
//! * If all are younger, listeners wait. Once [`CROWD`] connections wait in the kernel ([`is_crowded`](crate::is_crowded)), a listener takes
//!   them at once, and closes those without room. The kernel drops calls to a full queue, and an honest peer would lose seconds.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Connections that may be in their handshake, beside one for each expected process.
pub const RESERVE: usize = 256;

/// As many of them may come from one source: others always find room.
pub const RESERVE_PER_SOURCE: usize = 192;

/// So old a connection makes room for another one. An honest peer ends its handshake in a fraction of this.
pub const HOLD: Duration = Duration::from_millis(100);

/// Connections in the kernel's queue that are a crowd.
pub const CROWD: usize = 1024;

/// How soon a listener without room looks again whether a crowd has come.
pub const LOOK: Duration = Duration::from_millis(10);

/// A source that holds a smaller part of the room than this never makes room early.
const SMALL_PART: usize = 8;

/// The origin of connections that share a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// A socket of this host that is no TCP connection.
    Local,
    /// An IPv4 address.
    V4(u32),
    /// The first 64 bits of an IPv6 address: one host has all the others.
    V6(u64),
}

impl From<IpAddr> for Source {
    fn from(ip: IpAddr) -> Source {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Source::V4(ip.to_bits()),
            IpAddr::V6(ip) => Source::V6((ip.to_bits() >> 64) as u64),
        }
    }
}

/// The fate of an accepted connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<K> {
    /// There is room.
    Enters,
    /// It enters, and this one goes.
    Instead(K),
    /// It is closed.
    TurnedAway,
}

/// The connections of a listener that have not proven themselves, or not said who they are.
#[derive(Debug)]
pub struct Admission<K> {
    expected: usize,
    entries: HashMap<K, Entry>,
    all: Row<K>,
    sources: HashMap<Source, Row<K>>,
    /// By the number of its connections.
    weights: BTreeSet<(usize, Source)>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    source: Source,
    since: Instant,
    proven: bool,
}

/// Connections by age: first those that have proven nothing.
#[derive(Debug)]
struct Row<K> {
    unproven: BTreeSet<(Instant, K)>,
    proven: BTreeSet<(Instant, K)>,
}

impl<K: Copy + Ord> Row<K> {
    fn new() -> Row<K> {
        Row { unproven: BTreeSet::new(), proven: BTreeSet::new() }
    }

    fn len(&self) -> usize {
        self.unproven.len() + self.proven.len()
    }

    fn of(&mut self, proven: bool) -> &mut BTreeSet<(Instant, K)> {
        if proven { &mut self.proven } else { &mut self.unproven }
    }

    fn oldest(&self) -> Option<(Instant, K)> {
        let firsts = [self.unproven.first(), self.proven.first()];
        firsts.into_iter().flatten().min().copied()
    }

    /// The one that makes room: the oldest that has had its time. One with a proof makes none for one without.
    fn makes_room(&self, now: Instant, for_proven: bool) -> Option<K> {
        let proven = self.proven.first().filter(|_| for_proven);
        let due = |entry: &&(Instant, K)| now >= entry.0 + HOLD;
        [self.unproven.first(), proven].into_iter().flatten().find(due).map(|(_, key)| *key)
    }
}

impl<K> Default for Admission<K>
where
    K: Copy + Ord + Hash,
{
    fn default() -> Admission<K> {
        Admission {
            expected: 0,
            entries: HashMap::new(),
            all: Row::new(),
            sources: HashMap::new(),
            weights: BTreeSet::new(),
        }
    }
}

impl<K: Copy + Ord + Hash> Admission<K> {
    /// Expects so many processes, which may all come at once and from one source.
    pub fn expect(&mut self, processes: usize) {
        self.expected = processes;
    }

    /// One more is there.
    pub fn insert(&mut self, key: K, source: Source, since: Instant, proven: bool) {
        self.remove(key);
        let _ = self.entries.insert(key, Entry { source, since, proven });
        let _ = self.all.of(proven).insert((since, key));
        let row = self.sources.entry(source).or_insert_with(Row::new);
        let _ = self.weights.remove(&(row.len(), source));
        let _ = row.of(proven).insert((since, key));
        let _ = self.weights.insert((row.len(), source));
    }

    /// This one has proven itself: it makes no room for those that have not.
    pub fn prove(&mut self, key: K) {
        if let Some(Entry { source, since, .. }) = self.entries.get(&key).copied() {
            self.insert(key, source, since, true);
        }
    }

    /// This one is through, or gone.
    pub fn remove(&mut self, key: K) {
        let Some(Entry { source, since, proven }) = self.entries.remove(&key) else { return };
        let _ = self.all.of(proven).remove(&(since, key));
        let Some(row) = self.sources.get_mut(&source) else { return };
        let _ = self.weights.remove(&(row.len(), source));
        let _ = row.of(proven).remove(&(since, key));
        if row.len() > 0 {
            let _ = self.weights.insert((row.len(), source));
        } else {
            drop(self.sources.remove(&source));
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Since when the oldest is there.
    #[must_use]
    pub fn oldest(&self) -> Option<Instant> {
        self.all.oldest().map(|(since, _)| since)
    }

    /// The oldest, if it was there by then.
    #[must_use]
    pub fn oldest_by(&self, by: Instant) -> Option<K> {
        self.all.oldest().filter(|(since, _)| *since <= by).map(|(_, key)| key)
    }

    /// The one that goes where the system has no descriptor for another connection.
    #[must_use]
    pub fn makes_room(&self, now: Instant) -> Option<K> {
        self.all.makes_room(now, false)
    }

    fn is_full(&self) -> bool {
        self.len() >= self.expected.saturating_add(RESERVE)
    }

    fn is_source_full(&self, count: usize) -> bool {
        count >= self.expected.saturating_add(RESERVE_PER_SOURCE)
    }

    /// The source with the most connections, and their number.
    fn heaviest(&self) -> Option<(usize, &Row<K>)> {
        let (count, source) = self.weights.last()?;
        Some((*count, self.sources.get(source)?))
    }

    /// When somebody can make room; none: there is room.
    #[must_use]
    pub fn room_at(&self) -> Option<Instant> {
        let of = |row: &Row<K>| row.oldest().map(|(since, _)| since + HOLD);
        if self.is_full() {
            return of(&self.all);
        }
        let (count, row) = self.heaviest()?;
        if self.is_source_full(count) { of(row) } else { None }
    }

    /// Whether listeners are to be asked now. `crowd`: whether one waits there, which is asked where it matters.
    pub fn accepts(&self, now: Instant, crowd: impl FnOnce() -> bool) -> bool {
        self.room_at().is_none_or(|at| now >= at) || crowd()
    }

    /// Decides about an accepted connection. `proven`: it has nothing to prove.
    #[must_use]
    pub fn admit(&self, source: Source, now: Instant, proven: bool) -> Verdict<K> {
        let instead = |key: Option<K>| key.map_or(Verdict::TurnedAway, Verdict::Instead);
        let own = self.sources.get(&source);
        let count = own.map_or(0, Row::len);
        if self.is_source_full(count) {
            return instead(own.and_then(|row| row.makes_room(now, proven)));
        }
        if !self.is_full() {
            return Verdict::Enters;
        }
        let heavier = self.heaviest().filter(|(most, _)| *most > count + 1);
        if let Some(key) = heavier.and_then(|(_, row)| row.makes_room(now, proven)) {
            return Verdict::Instead(key);
        }
        if let Some(key) = self.all.makes_room(now, proven) {
            return Verdict::Instead(key);
        }
        // A source with a large part of the room has taken it from the others: it makes room at any age.
        let large = heavier.filter(|(most, _)| most * SMALL_PART > self.len());
        instead(large.and_then(|(_, row)| row.unproven.first()).map(|(_, key)| *key))
    }
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
