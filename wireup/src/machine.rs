//! The state machine, and the calls of the local side. `receive.rs` handles the messages of peers.

use super::message::{MAX_ADDRESS, MAX_IDENTITY};
use super::record::PeerRecord;
use super::{
    Action, Claim, ConnectionKey, Limits, Phase, Reason, ReasonKind, WireupCounters, WorkerId,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tieline_plugin_api::address_hash;

/// The state machine of all connections of one worker. Every `now` is a time in nanoseconds on one monotonic clock of
/// the caller.
#[derive(Clone, Debug)]
pub struct Machine {
    pub(super) me: WorkerId,
    pub(super) epoch: u64,
    pub(super) identity: Vec<u8>,
    pub(super) limits: Limits,
    pub(super) connections: BTreeMap<ConnectionKey, Connection>,
    pub(super) peers: BTreeMap<WorkerId, PeerRecord>,
    /// The next due time of each unfinished connection, with exactly one entry for each.
    pub(super) timers: BTreeSet<(u64, ConnectionKey)>,
    pub(super) actions: VecDeque<Action>,
    pub(super) refusals: VecDeque<(ConnectionKey, ReasonKind, String)>,
    pub(super) early: usize,
    /// The number of pairs in `peers` without a live connection.
    pub(super) idle_pairs: usize,
    /// The highest number of the evicted pairs; new connections use higher numbers.
    pub(super) floor: u32,
    /// The count of changes, by which the pair that was idle longest is evicted first.
    pub(super) changes: u64,
    pub(super) counters: WireupCounters,
}

/// The state of one connection.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) phase: Phase,
    /// Whether the local side uses the connection.
    pub(super) claimed: bool,
    /// Whether the connection counts as early: the peer began it, it is not claimed, and it is not ready.
    pub(super) early: bool,
    /// The local endpoint's address, while it may have to be sent.
    pub(super) address: Vec<u8>,
    /// The address of the peer's endpoint, from the time it is known until the local endpoint is bound.
    pub(super) theirs: Option<Vec<u8>>,
    /// The hash of the local endpoint's address, kept for the life of the connection.
    pub(super) our_hash: u64,
    /// The hash of the address of the peer's endpoint, kept for the life of the connection.
    pub(super) their_hash: u64,
    /// Whether the peer is known to be bound to the local address, from its message or from its data.
    pub(super) peer_bound: bool,
    pub(super) began: u64,
    pub(super) deadline: u64,
    pub(super) retry: Option<u64>,
    pub(super) interval: u64,
    /// The earlier of `deadline` and `retry`, as stored in `timers`.
    pub(super) timer: Option<u64>,
    /// The number of losses of the wire-up transport since the last message of the peer.
    pub(super) losses: u32,
    pub(super) renumbered: u8,
    /// The number of times that the current message was sent, for error texts.
    pub(super) sent: u32,
    /// The last message of the peer and its time, for error texts.
    pub(super) heard: Option<(u64, LastWord)>,
}

/// The last message of a peer about a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LastWord {
    Request,
    Reply,
    InWork,
    Busy(String),
}

impl Connection {
    pub(super) fn new(now: u64, deadline: u64, first_retry: u64) -> Connection {
        Connection {
            phase: Phase::Making,
            claimed: false,
            early: false,
            address: Vec::new(),
            theirs: None,
            our_hash: 0,
            their_hash: 0,
            peer_bound: false,
            began: now,
            deadline,
            retry: None,
            interval: first_retry,
            timer: None,
            losses: 0,
            renumbered: 0,
            sent: 0,
            heard: None,
        }
    }
}

impl Machine {
    /// Makes the machine of worker `me` in its epoch `epoch`, which is at least 1: a later life of the same worker has a higher
    /// epoch. Peers get the bytes `identity`, for example the worker's address; see [`Machine::set_identity`].
    pub fn new(me: WorkerId, epoch: u64, identity: Vec<u8>, limits: Limits) -> Machine {
        let mut machine = Machine {
            me,
            epoch: epoch.max(1),
            identity: Vec::new(),
            limits,
            connections: BTreeMap::new(),
            peers: BTreeMap::new(),
            timers: BTreeSet::new(),
            actions: VecDeque::new(),
            refusals: VecDeque::new(),
            early: 0,
            idle_pairs: 0,
            floor: 0,
            changes: 0,
            counters: WireupCounters::default(),
        };
        machine.set_identity(identity);
        machine
    }

    /// Sets the identity bytes that later messages carry about this worker. Bytes beyond [`MAX_IDENTITY`] are truncated.
    pub fn set_identity(&mut self, mut identity: Vec<u8>) {
        identity.truncate(MAX_IDENTITY);
        self.identity = identity;
    }

    /// Claims a connection to `peer` over `module`: the unclaimed live one with the lowest number, otherwise a new one.
    pub fn connect(&mut self, now: u64, peer: WorkerId, module: &str) -> Result<Claim, Reason> {
        if peer == self.me {
            let text = "a worker does not connect to itself through a module that connects to an \
                        endpoint; use one that connects to an interface";
            return Err(Reason::new(ReasonKind::Itself, text));
        }
        if module.is_empty() || module.len() > 255 {
            let text =
                format!("the module's name has {} bytes; 1 to 255 are allowed", module.len());
            return Err(Reason::new(ReasonKind::Local, text));
        }
        if let Some(key) = self.claim(peer, module) {
            let deadline = now.saturating_add(self.limits.deadline);
            self.postpone(&key, now, deadline);
            return Ok(Claim::Existing(key));
        }
        if self.connections.len() >= self.limits.max_connections {
            let text = format!(
                "this worker has {} connections, which is its limit",
                self.connections.len()
            );
            return Err(Reason::new(ReasonKind::Busy, text));
        }
        let deadline = now.saturating_add(self.limits.deadline);
        self.begin(now, deadline, peer, module, 0).map(Claim::New)
    }

    /// Records that the caller has made the endpoint of an [`Action::Create`] or a [`Claim::New`]; `address` is the endpoint's
    /// address.
    pub fn created(&mut self, now: u64, key: &ConnectionKey, address: &[u8]) {
        if address.len() > MAX_ADDRESS {
            let why = format!(
                "the endpoint's address has {} bytes; at most {MAX_ADDRESS} are allowed",
                address.len()
            );
            return self.not_created(now, key, &why);
        }
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.phase != Phase::Making {
            return;
        }
        connection.address = address.to_vec();
        connection.our_hash = address_hash(address);
        match connection.theirs.take() {
            Some(theirs) => self.bind(key, theirs),
            None => {
                connection.phase = Phase::Asked;
                self.say_first(now, key);
            }
        }
    }

    /// Records that the caller could not make the endpoint. The connection fails, and the peer gets a rejection.
    pub fn not_created(&mut self, now: u64, key: &ConnectionKey, why: &str) {
        if self.phase(key) == Some(Phase::Making) {
            let text = format!("the endpoint of {key} could not be made: {why}");
            self.fail(now, key, ReasonKind::Local, text, Some((ReasonKind::Rejected, why)));
        }
    }

    /// Records that the caller could not make the endpoint of an [`Action::Create`]. The machine sends the rejection to the
    /// `identity` of that action, because no connection of this side leads to the peer.
    pub fn refused(&mut self, now: u64, key: &ConnectionKey, identity: &[u8], why: &str) {
        if self.phase(key) == Some(Phase::Making) {
            let datagram = self.rejection(key, ReasonKind::Rejected, why);
            self.actions.push_back(Action::Answer { identity: identity.to_vec(), datagram });
            let text = format!("the endpoint of {key} could not be made: {why}");
            self.fail(now, key, ReasonKind::Local, text, None);
        }
    }

    /// Records that the caller has connected the endpoint to the address of an [`Action::Bind`], or could not, with the reason.
    pub fn bound(&mut self, now: u64, key: &ConnectionKey, outcome: Result<(), &str>) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.phase != Phase::Binding {
            return;
        }
        if let Err(why) = outcome {
            let text = format!("the endpoint of {key} could not be connected: {why}");
            return self.fail(now, key, ReasonKind::Local, text, Some((ReasonKind::Rejected, why)));
        }
        connection.phase = Phase::Bound;
        if connection.peer_bound {
            self.ready(key);
            self.send_ready(key);
        } else {
            self.say_first(now, key);
        }
    }

    /// Releases a claim. The connection stays, and the next [`Machine::connect`] may claim it.
    pub fn unclaim(&mut self, key: &ConnectionKey) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.claimed = false;
        self.changes += 1;
        let changes = self.changes;
        if let Some(pair) = self.pair(key) {
            let _ = pair.unclaimed.insert(key.n);
            pair.touched = changes;
        }
    }

    /// Removes the state of a connection whose endpoint the caller has dropped. A peer that knows an unfinished connection gets a
    /// rejection. The endpoints of a ready connection notify each other.
    pub fn close(&mut self, _now: u64, key: &ConnectionKey) {
        let Some(connection) = self.connections.get(key) else { return };
        let nobody_knows = connection.phase == Phase::Making && connection.theirs.is_none();
        if connection.phase != Phase::Ready && !nobody_knows {
            self.send_reject(key, ReasonKind::Closed, "the peer closed it before it was ready");
        }
        let _ = self.remove(key);
    }

    /// Records that the wire-up transport to the peer broke, so that the last message may be lost. The machine repeats the message
    /// sooner than planned, with a longer wait after each further break.
    pub fn transport_lost(&mut self, now: u64, key: &ConnectionKey) {
        let (first, last) = (self.limits.first_retry, self.limits.last_retry);
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(retry) = connection.retry else { return };
        let wait = first.saturating_mul(1 << connection.losses.min(30)).min(last);
        connection.losses += 1;
        connection.retry = Some(retry.min(now.saturating_add(wait)));
        self.set_timer(key);
    }

    /// Records that no transport leads to the peer, for the reason `why`: the connection fails unless it is ready.
    pub fn transport_hopeless(&mut self, now: u64, key: &ConnectionKey, why: &str) {
        if self.phase(key).is_some_and(|phase| phase != Phase::Ready) {
            let text = format!("{key} cannot be formed: {why}");
            self.fail(now, key, ReasonKind::Transport, text, None);
        }
    }

    /// Records that data of the peer arrived over the endpoint, so that the peer must have bound it. This call is optional: it
    /// saves a round trip if the peer's last message is late or lost.
    pub fn data_arrived(&mut self, _now: u64, key: &ConnectionKey) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        match connection.phase {
            Phase::Binding => connection.peer_bound = true,
            Phase::Bound => self.ready(key),
            Phase::Making | Phase::Asked | Phase::Ready => {}
        }
    }

    /// Repeats messages and ends connections that are due by `now`.
    pub fn tick(&mut self, now: u64) {
        while let Some((at, key)) = self.timers.first().cloned() {
            if at > now {
                return;
            }
            let Some(connection) = self.connections.get_mut(&key) else {
                let _ = self.timers.remove(&(at, key));
                continue;
            };
            if connection.deadline <= now {
                self.time_out(now, &key);
                continue;
            }
            connection.interval =
                connection.interval.saturating_mul(2).clamp(1, self.limits.last_retry.max(1));
            self.counters.retransmissions += 1;
            self.say(now, &key);
        }
    }

    /// Returns the time at which [`Machine::tick`] next has work; `None` if no connection is unfinished.
    #[inline]
    pub fn next_timer(&self) -> Option<u64> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Returns the next action. The caller takes and executes all actions, in this order, after every call.
    #[inline]
    pub fn take_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the phase of a connection; `None` if there is no connection of that name.
    #[inline]
    pub fn phase(&self, key: &ConnectionKey) -> Option<Phase> {
        self.connections.get(key).map(|connection| connection.phase)
    }

    /// Returns the number of connections, in any phase.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.connections.len()
    }

    /// Returns the counts so far.
    #[inline]
    pub fn counters(&self) -> &WireupCounters {
        &self.counters
    }
}
