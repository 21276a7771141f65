//! The machine's tables: connections, used numbers, and timers.

use super::machine::{Connection, Machine};
use super::record::Pair;
use super::{ConnectionKey, Phase, Reason, ReasonKind, WorkerId, short};

/// The maximum distance of a number from the highest used one.
pub(super) const WINDOW: u32 = 1 << 20;
/// The maximum number of pairs of a peer and a module that are remembered without a live connection.
pub(super) const MAX_IDLE_PAIRS: usize = 8192;

impl Machine {
    /// Claims the lowest unclaimed connection for the local side.
    pub(super) fn claim(&mut self, peer: WorkerId, module: &str) -> Option<ConnectionKey> {
        let pair = self.peers.get_mut(&peer)?.pairs.get_mut(module)?;
        let n = pair.unclaimed.pop_first()?;
        let key = ConnectionKey { peer, module: module.into(), n };
        let connection = self.connections.get_mut(&key)?;
        connection.claimed = true;
        self.no_longer_early(&key);
        Some(key)
    }

    /// Extends the deadline of a newly claimed, unfinished connection to at least `deadline`.
    pub(super) fn postpone(&mut self, key: &ConnectionKey, now: u64, deadline: u64) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.phase != Phase::Ready {
            connection.began = now;
            connection.deadline = connection.deadline.max(deadline);
            self.set_timer(key);
        }
    }

    /// Makes a new claimed connection. Its number is new on this side, and at least `at_least` unless that is more than half a
    /// window away.
    pub(super) fn begin(
        &mut self,
        now: u64,
        deadline: u64,
        peer: WorkerId,
        module: &str,
        at_least: u32,
    ) -> Result<ConnectionKey, Reason> {
        let highest = self.highest(&peer, module);
        let Some(n) = highest.max(self.floor).checked_add(1) else {
            let text = format!(
                "all numbers for connections to worker {} are used up; restart this worker",
                short(&peer)
            );
            return Err(Reason::new(ReasonKind::Busy, text));
        };
        let n = n.max(at_least.min(n.saturating_add(WINDOW / 2)));
        let key = ConnectionKey { peer, module: module.into(), n };
        let mut connection = Connection::new(now, deadline, self.limits.first_retry);
        connection.claimed = true;
        self.insert(key.clone(), connection);
        Ok(key)
    }

    /// Returns the highest number used with a peer over a module, or 0 if the pair is not remembered: `floor` is at least every
    /// number of a forgotten pair.
    pub(super) fn highest(&self, peer: &WorkerId, module: &str) -> u32 {
        let pair = self.peers.get(peer).and_then(|p| p.pairs.get(module));
        pair.map_or(0, |pair| pair.used.highest())
    }

    /// Adds a connection in phase `Making` and starts its deadline.
    pub(super) fn insert(&mut self, key: ConnectionKey, connection: Connection) {
        self.changes += 1;
        let early = connection.early;
        let peer = self.peers.entry(key.peer).or_default();
        let known = peer.pairs.contains_key(&key.module);
        let pair = peer.pairs.entry(key.module.clone()).or_default();
        if known && pair.live == 0 {
            self.idle_pairs -= 1;
        }
        pair.used.insert(key.n);
        pair.live += 1;
        pair.touched = self.changes;
        if !connection.claimed {
            let _ = pair.unclaimed.insert(key.n);
        }
        if early {
            peer.early += 1;
            self.early += 1;
            self.counters.early += 1;
        }
        let _ = self.connections.insert(key.clone(), connection);
        self.set_timer(&key);
    }

    /// Removes a connection; its number stays used.
    pub(super) fn remove(&mut self, key: &ConnectionKey) -> Option<Connection> {
        self.no_longer_early(key);
        let connection = self.connections.remove(key)?;
        if let Some(at) = connection.timer {
            let _ = self.timers.remove(&(at, key.clone()));
        }
        self.changes += 1;
        let changes = self.changes;
        if let Some(pair) = self.pair(key) {
            let _ = pair.unclaimed.remove(&key.n);
            pair.live -= 1;
            pair.touched = changes;
            if pair.live == 0 {
                self.idle_pairs += 1;
                self.forget_idle_pairs();
            }
        }
        Some(connection)
    }

    pub(super) fn pair(&mut self, key: &ConnectionKey) -> Option<&mut Pair> {
        self.peers.get_mut(&key.peer)?.pairs.get_mut(&key.module)
    }

    pub(super) fn no_longer_early(&mut self, key: &ConnectionKey) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if std::mem::take(&mut connection.early) {
            self.early -= 1;
            if let Some(peer) = self.peers.get_mut(&key.peer) {
                peer.early -= 1;
            }
        }
    }

    /// Evicts the quarter of the idle pairs that was idle longest, if too many pairs without a live connection are remembered.
    pub(super) fn forget_idle_pairs(&mut self) {
        if self.idle_pairs <= MAX_IDLE_PAIRS {
            return;
        }
        let all = self.peers.values().flat_map(|peer| peer.pairs.values());
        let mut rested: Vec<u64> = all.filter(|p| p.live == 0).map(|p| p.touched).collect();
        rested.sort_unstable();
        let until = rested[rested.len() / 4];
        let (mut floor, mut forgotten) = (self.floor, 0);
        for peer in self.peers.values_mut() {
            peer.pairs.retain(|_, pair| {
                let stays = pair.live > 0 || pair.touched > until;
                if !stays {
                    floor = floor.max(pair.used.highest());
                    forgotten += 1;
                }
                stays
            });
        }
        self.peers.retain(|_, peer| !peer.pairs.is_empty());
        self.floor = floor;
        self.idle_pairs -= forgotten;
    }

    /// Writes the connection's next due time into `timers`.
    pub(super) fn set_timer(&mut self, key: &ConnectionKey) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let wanted = match connection.phase {
            Phase::Ready => None,
            _ => Some(connection.retry.map_or(connection.deadline, |r| r.min(connection.deadline))),
        };
        if connection.timer == wanted {
            return;
        }
        if let Some(at) = std::mem::replace(&mut connection.timer, wanted) {
            let _ = self.timers.remove(&(at, key.clone()));
        }
        if let Some(at) = wanted {
            let _ = self.timers.insert((at, key.clone()));
        }
    }
}
