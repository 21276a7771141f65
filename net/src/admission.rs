//! The rule of a hub and of the bootstrap's server: which connections may be in their handshake concurrently, and which one makes
//! room.
//!
//! * Connections in their handshake are limited in total and per source: [`RESERVE`] and [`RESERVE_PER_SOURCE`], and one more for
//!   each expected process ([`Admission::expect`]).
//! * A source is an IPv4 address, the first 64 bits of an IPv6 address, or this host.
//! * If there is no room, the oldest unproven connection is closed, once it is [`HOLD`] old. A proven newcomer may displace a
//!   proven connection of that age, too. The age counts from the arrival; received bytes do not renew it.
//! * If the newcomer's source is at its limit, only connections of that source are considered. Otherwise connections of the largest
//!   source come first, if it has at least two more than the newcomer's source. All others come next.
//! * At the total limit with no connection old enough, a larger source with more than an eighth of all makes room. Its oldest
//!   unproven connection is closed at any age.
//! * A proven connection is not closed for an unproven one.
//! * Without room, listeners wait until the oldest connection is old enough. If a crowd waits in the kernel
//!   ([`is_crowded`](crate::is_crowded)), they accept connections immediately and close those without room. The kernel drops
//!   connections to a full queue, and an honest peer would lose seconds.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The limit on connections in their handshake, besides one for each expected process.
pub const RESERVE: usize = 256;

/// The limit per source, besides one for each expected process.
pub const RESERVE_PER_SOURCE: usize = 192;

/// The age from which a connection may be closed for another one. Only connections of a large source may be closed earlier.
pub const HOLD: Duration = Duration::from_millis(100);

/// The number of connections in the kernel's queue from which on they are a crowd. In a queue that is shorter than four times this
/// number, a quarter suffices.
pub const CROWD: usize = 1024;

/// The longest time until a listener without room checks again for a crowd.
pub const LOOK: Duration = Duration::from_millis(10);

/// The divisor of the total: a source with more than this part of all connections is large.
const SMALL_PART: usize = 8;

/// The origin of connections that share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// A socket of this host that is not a TCP connection.
    Local,
    /// An IPv4 address.
    V4(u32),
    /// The first 64 bits of an IPv6 address: one host may own all addresses with these bits.
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
    /// The connection is accepted: there is room.
    Enters,
    /// The connection is accepted, and this other one is closed.
    Instead(K),
    /// The connection is closed.
    TurnedAway,
}

/// The connections of a listener that have not proven or identified themselves yet.
#[derive(Debug)]
pub struct Admission<K> {
    expected: usize,
    entries: HashMap<K, Entry>,
    all: Row<K>,
    sources: HashMap<Source, Row<K>>,
    /// The sources by the number of their connections.
    weights: BTreeSet<(usize, Source)>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    source: Source,
    since: Instant,
    proven: bool,
}

/// The connections of one source, or of all, by age.
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

    /// Returns the connection that makes room: the oldest unproven one past its time. If there is none, a proven newcomer displaces
    /// the oldest proven one past its time.
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
    /// Sets the number of expected processes, which may all connect at the same time and from one source.
    pub fn expect(&mut self, processes: usize) {
        self.expected = processes;
    }

    /// Adds a connection, or replaces the entry of `key`.
    pub fn insert(&mut self, key: K, source: Source, since: Instant, proven: bool) {
        self.remove(key);
        let _ = self.entries.insert(key, Entry { source, since, proven });
        let _ = self.all.of(proven).insert((since, key));
        let row = self.sources.entry(source).or_insert_with(Row::new);
        let _ = self.weights.remove(&(row.len(), source));
        let _ = row.of(proven).insert((since, key));
        let _ = self.weights.insert((row.len(), source));
    }

    /// Marks a connection as proven: it is not closed for unproven ones.
    pub fn prove(&mut self, key: K) {
        if let Some(Entry { source, since, .. }) = self.entries.get(&key).copied() {
            self.insert(key, source, since, true);
        }
    }

    /// Removes a connection, if it is there.
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

    /// Returns the number of connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Checks whether there is no connection.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the arrival time of the oldest connection.
    #[must_use]
    pub fn oldest(&self) -> Option<Instant> {
        self.all.oldest().map(|(since, _)| since)
    }

    /// Returns the oldest connection, if it arrived by the given time.
    #[must_use]
    pub fn oldest_by(&self, by: Instant) -> Option<K> {
        self.all.oldest().filter(|(since, _)| *since <= by).map(|(_, key)| key)
    }

    /// Returns the connection to close when the system has no descriptor for another one; `None` if no unproven connection is
    /// [`HOLD`] old.
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

    /// Returns the connections of the source with the most, and their number.
    fn heaviest(&self) -> Option<(usize, &Row<K>)> {
        let (count, source) = self.weights.last()?;
        Some((*count, self.sources.get(source)?))
    }

    /// Returns the time at which the oldest connection (of the source at its limit, or of all) is [`HOLD`] old; `None` if there is
    /// room.
    #[must_use]
    pub fn room_at(&self) -> Option<Instant> {
        let of = |row: &Row<K>| row.oldest().map(|(since, _)| since + HOLD);
        if self.is_full() {
            return of(&self.all);
        }
        let (count, row) = self.heaviest()?;
        if self.is_source_full(count) { of(row) } else { None }
    }

    /// Checks whether connections are accepted now. `crowd` returns whether a crowd waits at a listener, and is called only if that
    /// matters.
    pub fn accepts(&self, now: Instant, crowd: impl FnOnce() -> bool) -> bool {
        self.room_at().is_none_or(|at| now >= at) || crowd()
    }

    /// Decides about an accepted connection. `proven` states that it needs no proof.
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
        // The oldest unproven connection of a large source is closed at any age.
        let large = heavier.filter(|(most, _)| most * SMALL_PART > self.len());
        instead(large.and_then(|(_, row)| row.unproven.first()).map(|(_, key)| *key))
    }
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
