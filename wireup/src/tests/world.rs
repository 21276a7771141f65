//! Workers in memory for tests: machines, their callers, and the datagrams between them. Every step of the tests checks the
//! invariants.

use crate::{Action, Claim, ConnectionKey, Limits, Machine, Phase, Reason, WorkerId};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

pub(super) const MODULE: &str = "tcp";

/// One worker and its caller.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub(super) me: u8,
    pub(super) epoch: u64,
    pub(super) now: u64,
    pub(super) machine: Machine,
    pub(super) endpoints: BTreeMap<ConnectionKey, Endpoint>,
    /// Whether endpoints for the application's requests are made immediately; otherwise the test makes them, as for `Create`.
    pub(super) prompt: bool,
    /// Every connection of this epoch.
    pub(super) ever: BTreeSet<ConnectionKey>,
    /// The steps that the caller has yet to make.
    pub(super) to_make: BTreeSet<ConnectionKey>,
    pub(super) to_bind: BTreeSet<ConnectionKey>,
    /// The connections that the application uses.
    pub(super) wanted: BTreeSet<ConnectionKey>,
    pub(super) failed: Vec<(ConnectionKey, Reason)>,
}

#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Endpoint {
    pub(super) address: Vec<u8>,
    pub(super) theirs: Vec<u8>,
    pub(super) ready: bool,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) sides: Vec<Side>,
    /// The datagrams in flight, as a set: the order has no meaning, and a duplicate is a separate fault.
    pub(super) wire: BTreeSet<(u8, Vec<u8>)>,
    /// The maximum number of datagrams in flight; further ones are lost.
    pub(super) capacity: usize,
    /// Every endpoint address that was ever bound, with the address to which it was bound.
    pub(super) bindings: BTreeSet<(Vec<u8>, Vec<u8>)>,
    /// Whether a side has closed, crashed, refused or timed out.
    pub(super) troubled: bool,
}

pub(super) fn id(who: u8) -> WorkerId {
    [who; 16]
}

/// Returns an endpoint address that no other endpoint has, in any epoch.
fn address(me: u8, epoch: u64, key: &ConnectionKey) -> Vec<u8> {
    let mut out = vec![me, epoch as u8, key.peer[0]];
    out.extend(key.n.to_le_bytes());
    out
}

/// Returns the owner of an endpoint, and the owner's epoch.
fn owner(address: &[u8]) -> (u8, u64) {
    (address[0], u64::from(address[1]))
}

impl Side {
    pub(super) fn new(me: u8, epoch: u64, limits: Limits) -> Side {
        Side {
            me,
            epoch,
            now: 0,
            machine: Machine::new(id(me), epoch, vec![me], limits),
            endpoints: BTreeMap::new(),
            prompt: true,
            ever: BTreeSet::new(),
            to_make: BTreeSet::new(),
            to_bind: BTreeSet::new(),
            wanted: BTreeSet::new(),
            failed: Vec::new(),
        }
    }

    fn begin(&mut self, key: &ConnectionKey) {
        assert!(self.ever.insert(key.clone()), "{key} was there before in this life");
        let endpoint =
            Endpoint { address: address(self.me, self.epoch, key), ..Endpoint::default() };
        assert!(self.endpoints.insert(key.clone(), endpoint).is_none(), "two of {key}");
        let _ = self.to_make.insert(key.clone());
    }

    fn end(&mut self, key: &ConnectionKey) {
        assert!(self.endpoints.remove(key).is_some(), "{key} ended without having been");
        let _ = (self.to_make.remove(key), self.to_bind.remove(key), self.wanted.remove(key));
    }

    fn adopt(&mut self, claim: Claim) {
        let key = claim.key().clone();
        match claim {
            Claim::New(key) => {
                self.begin(&key);
                if self.prompt {
                    let _ = self.to_make.remove(&key);
                    self.machine.created(self.now, &key, &self.endpoints[&key].address);
                }
            }
            Claim::Existing(key) => assert!(self.endpoints.contains_key(&key)),
        }
        assert!(self.wanted.insert(key), "one connection for two");
    }
}

impl World {
    pub(super) fn new(workers: u8, limits: &Limits) -> World {
        World {
            sides: (0..workers).map(|me| Side::new(me, 1, limits.clone())).collect(),
            wire: BTreeSet::new(),
            capacity: usize::MAX,
            bindings: BTreeSet::new(),
            troubled: false,
        }
    }

    pub(super) fn connect(&mut self, who: u8, peer: u8) {
        let side = &mut self.sides[usize::from(who)];
        let claim = side.machine.connect(side.now, id(peer), MODULE).expect("within the limits");
        side.adopt(claim);
        self.drain(who);
    }

    pub(super) fn make(&mut self, who: u8, key: &ConnectionKey, outcome: Result<(), &str>) {
        let side = &mut self.sides[usize::from(who)];
        assert!(side.to_make.remove(key));
        match outcome {
            Ok(()) => side.machine.created(side.now, key, &side.endpoints[key].address),
            Err(why) if side.wanted.contains(key) => side.machine.not_created(side.now, key, why),
            Err(why) => side.machine.refused(side.now, key, &key.peer[..1], why),
        }
        self.drain(who);
    }

    pub(super) fn bind(&mut self, who: u8, key: &ConnectionKey, outcome: Result<(), &str>) {
        let side = &mut self.sides[usize::from(who)];
        assert!(side.to_bind.remove(key));
        if outcome.is_ok() {
            let endpoint = &side.endpoints[key];
            let _ = self.bindings.insert((endpoint.address.clone(), endpoint.theirs.clone()));
        }
        side.machine.bound(side.now, key, outcome);
        self.drain(who);
    }

    pub(super) fn close(&mut self, who: u8, key: &ConnectionKey) {
        self.troubled = true;
        let side = &mut self.sides[usize::from(who)];
        side.machine.close(side.now, key);
        side.end(key);
        self.drain(who);
    }

    pub(super) fn crash(&mut self, who: u8) {
        self.troubled = true;
        let side = &mut self.sides[usize::from(who)];
        *side = Side::new(who, side.epoch + 1, side.machine.limits.clone());
    }

    pub(super) fn deliver(&mut self, to: u8, datagram: &[u8]) {
        let side = &mut self.sides[usize::from(to)];
        side.machine.receive(side.now, datagram).expect("a message");
        self.drain(to);
    }

    pub(super) fn tick(&mut self, who: u8, passed: u64) {
        let side = &mut self.sides[usize::from(who)];
        side.now += passed;
        side.machine.tick(side.now);
        self.drain(who);
    }

    fn drain(&mut self, who: u8) {
        let side = &mut self.sides[usize::from(who)];
        while let Some(action) = side.machine.take_action() {
            match action {
                Action::Create { key, identity } => {
                    assert_eq!(identity, [key.peer[0]]);
                    side.begin(&key);
                }
                Action::Bind { key, address } => {
                    let (peer, life) = owner(&address);
                    assert_eq!(id(peer), key.peer);
                    let known = side.machine.peers[&key.peer].epoch;
                    assert_eq!(life, known, "{key} binds an address of another life");
                    let endpoint = side.endpoints.get_mut(&key).expect("an endpoint to bind");
                    assert!(endpoint.theirs.is_empty(), "{key} is bound twice");
                    assert!(!side.to_make.contains(&key), "{key} is bound before it is made");
                    endpoint.theirs = address;
                    let _ = side.to_bind.insert(key);
                }
                Action::Ready { key } => {
                    let endpoint = side.endpoints.get_mut(&key).expect("an endpoint");
                    assert!(!endpoint.ready, "{key} is ready twice");
                    endpoint.ready = true;
                    let met = (endpoint.theirs.clone(), endpoint.address.clone());
                    assert!(
                        self.bindings.contains(&met),
                        "{key} is ready before its peer is bound"
                    );
                }
                Action::Renumbered { from, to } => {
                    assert!(side.wanted.contains(&from), "only what is wanted begins anew");
                    side.end(&from);
                    side.adopt(to);
                }
                Action::Failed { key, reason } => {
                    self.troubled = true;
                    side.end(&key);
                    assert!(!reason.text.is_empty());
                    side.failed.push((key, reason));
                }
                Action::Send { key, datagram } => {
                    if self.wire.len() < self.capacity {
                        let _ = self.wire.insert((key.peer[0], datagram));
                    }
                }
                Action::Answer { identity, datagram } => {
                    if self.wire.len() < self.capacity {
                        let _ = self.wire.insert((identity[0], datagram));
                    }
                }
            }
        }
        side.check();
    }

    /// Runs one step without further faults: callers answer, datagrams arrive, time passes. Returns `false` if no step is possible.
    pub(super) fn settle_once(&mut self) -> bool {
        for who in 0..self.sides.len() as u8 {
            let side = &self.sides[usize::from(who)];
            if let Some(key) = side.to_make.first().cloned() {
                self.make(who, &key, Ok(()));
                return true;
            }
            if let Some(key) = side.to_bind.first().cloned() {
                self.bind(who, &key, Ok(()));
                return true;
            }
        }
        if let Some((to, datagram)) = self.wire.pop_first() {
            self.deliver(to, &datagram);
            return true;
        }
        let wait = |side: &Side| side.machine.next_timer().map(|at| at.saturating_sub(side.now));
        let Some(passed) = self.sides.iter().filter_map(wait).min() else { return false };
        for who in 0..self.sides.len() as u8 {
            self.tick(who, passed);
        }
        true
    }

    pub(super) fn settle(&mut self) {
        for _ in 0..1_000_000 {
            if !self.settle_once() {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    /// Checks the invariants at the end, when no step is possible.
    pub(super) fn check_at_rest(&self) {
        for side in &self.sides {
            for (key, endpoint) in &side.endpoints {
                assert!(endpoint.ready, "worker {}: {key} hangs", side.me);
                let peer = &self.sides[usize::from(key.peer[0])];
                let theirs =
                    peer.endpoints.get(&ConnectionKey { peer: id(side.me), ..key.clone() });
                match theirs {
                    Some(theirs) => {
                        let same = theirs.ready && theirs.theirs == endpoint.address;
                        assert!(
                            same || owner(&endpoint.theirs).1 < peer.epoch,
                            "{key}: the other end is elsewhere"
                        );
                    }
                    None => assert!(self.troubled, "{key} has lost its peer without trouble"),
                }
            }
            for key in &side.wanted {
                assert!(side.endpoints.contains_key(key));
            }
        }
    }

    /// Checks the invariants between two sides.
    pub(super) fn check_pairs(&self) {
        for side in &self.sides {
            for (key, endpoint) in side.endpoints.iter().filter(|(_, e)| e.ready) {
                let peer = &self.sides[usize::from(key.peer[0])];
                let theirs =
                    peer.endpoints.get(&ConnectionKey { peer: id(side.me), ..key.clone() });
                if let Some(theirs) = theirs.filter(|theirs| theirs.ready) {
                    assert_eq!(endpoint.theirs, theirs.address, "{key}");
                    assert_eq!(theirs.theirs, endpoint.address, "{key}");
                }
            }
        }
    }

    /// Hashes the world so that two worlds with the same hash behave the same: texts and counters are left out, and time is
    /// relative.
    pub(super) fn hash(&self, out: &mut impl Hasher) {
        self.wire.hash(out);
        self.bindings.hash(out);
        self.troubled.hash(out);
        for side in &self.sides {
            (side.epoch, &side.to_make, &side.to_bind, &side.wanted).hash(out);
            side.endpoints.hash(out);
            let m = &side.machine;
            for (key, c) in &m.connections {
                (key, c.phase, c.claimed, c.early, &c.theirs, c.peer_bound).hash(out);
                (c.renumbered, c.interval, c.losses, c.our_hash, c.their_hash).hash(out);
                if c.phase != Phase::Ready {
                    (c.deadline - side.now, c.retry.map(|at| at - side.now)).hash(out);
                }
            }
            for (peer, p) in &m.peers {
                (peer, p.epoch, p.early).hash(out);
                for (module, pair) in &p.pairs {
                    (module, &pair.used, &pair.unclaimed, pair.live).hash(out);
                }
            }
            for (key, kind, _) in &m.refusals {
                (key, kind).hash(out);
            }
        }
    }
}

impl Side {
    /// Checks that the machine's tables agree with each other and with the caller's.
    fn check(&self) {
        let m = &self.machine;
        assert!(
            m.connections.keys().eq(self.endpoints.keys()),
            "the caller knows other connections"
        );
        let unfinished = m.connections.values().filter(|c| c.phase != Phase::Ready).count();
        assert_eq!(m.timers.len(), unfinished, "one timer for each that is unfinished");
        let early = m.connections.values().filter(|c| c.early).count();
        assert_eq!(m.early, early);
        assert_eq!(m.peers.values().map(|p| p.early).sum::<usize>(), early);
        let pairs = || m.peers.values().flat_map(|p| p.pairs.values());
        assert_eq!(pairs().filter(|pair| pair.live == 0).count(), m.idle_pairs);
        assert_eq!(pairs().map(|pair| pair.live).sum::<usize>(), m.len());
        let unclaimed = m.connections.values().filter(|c| !c.claimed).count();
        assert_eq!(pairs().map(|pair| pair.unclaimed.len()).sum::<usize>(), unclaimed);
        for (key, c) in &m.connections {
            let at = c.timer.map(|at| m.timers.contains(&(at, key.clone())));
            assert_eq!(at, (c.phase != Phase::Ready).then_some(true));
            assert_eq!(self.to_make.contains(key), c.phase == Phase::Making);
            assert_eq!(self.to_bind.contains(key), c.phase == Phase::Binding);
            assert_eq!(self.endpoints[key].ready, c.phase == Phase::Ready);
            assert_eq!(self.wanted.contains(key), c.claimed);
        }
    }
}
