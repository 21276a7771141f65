//! The machine: what the caller's side of a connection does. What peers do is in `receive.rs`.

use super::message::{Body, Header, MAX_ADDRESS, MAX_IDENTITY, cut, encode};
use super::record::{Pair, Peer};
use super::{
    Action, Claim, ConnectionKey, Counters, Limits, Phase, Reason, ReasonKind, WorkerId, short,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tieline_plugin_api::address_hash;

/// How far a number may lie beyond the highest one used.
pub(super) const WINDOW: u32 = 1 << 20;
/// Peers and modules that are remembered without a live connection.
pub(super) const MAX_IDLE_PAIRS: usize = 8192;
/// Rejections whose words are kept, to say the same when the request comes again.
const MAX_REFUSALS: usize = 64;

/// All connections of one worker.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(super) me: WorkerId,
    pub(super) epoch: u64,
    pub(super) identity: Vec<u8>,
    pub(super) limits: Limits,
    pub(super) connections: BTreeMap<ConnectionKey, Connection>,
    pub(super) peers: BTreeMap<WorkerId, Peer>,
    /// When which unfinished connection wants attention; exactly one entry for each of them.
    pub(super) timers: BTreeSet<(u64, ConnectionKey)>,
    pub(super) actions: VecDeque<Action>,
    pub(super) refusals: VecDeque<(ConnectionKey, ReasonKind, String)>,
    pub(super) early: usize,
    /// Pairs in `peers`, and those of them without a live connection.
    pub(super) idle_pairs: usize,
    /// Numbers up to this were used with peers that are no longer remembered.
    pub(super) floor: u32,
    /// Counts changes, so that the pair that rested longest is forgotten first.
    pub(super) changes: u64,
    pub(super) counters: Counters,
}

/// The state of one connection.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) phase: Phase,
    /// Somebody here wants it.
    pub(super) claimed: bool,
    /// It counts as early: the peer began it, nobody has claimed it, and it is not ready.
    pub(super) early: bool,
    /// Our endpoint's address, while it may have to be sent.
    pub(super) address: Vec<u8>,
    /// The peer's endpoint's address, from when it is known until it is bound.
    pub(super) theirs: Option<Vec<u8>>,
    /// Hashes of both, for good.
    pub(super) our_hash: u64,
    pub(super) their_hash: u64,
    /// The peer has said that it is bound to our address.
    pub(super) peer_bound: bool,
    pub(super) began: u64,
    pub(super) deadline: u64,
    pub(super) retry: Option<u64>,
    pub(super) interval: u64,
    /// The earlier of `deadline` and `retry`, as it stands in `timers`.
    pub(super) timer: Option<u64>,
    /// Losses of the carrier since something was heard.
    pub(super) losses: u32,
    pub(super) renumbered: u8,
    /// For words: how often the present message was sent, and what came last.
    pub(super) sent: u32,
    pub(super) heard: Option<(u64, Heard)>,
}

/// The last thing that a peer said about a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Heard {
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
    /// A worker `me` in its life `epoch` (later lives have higher ones, none has 0), known to peers by `identity`.
    pub(crate) fn new(me: WorkerId, epoch: u64, identity: Vec<u8>, limits: Limits) -> Machine {
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
            counters: Counters::default(),
        };
        machine.set_identity(identity);
        machine
    }

    /// What messages say of this worker from now on; what is longer than [`MAX_IDENTITY`] is cut off.
    pub(crate) fn set_identity(&mut self, mut identity: Vec<u8>) {
        identity.truncate(MAX_IDENTITY);
        self.identity = identity;
    }

    /// The local side wants a connection: the lowest live one that nobody has claimed, else a new one.
    pub(crate) fn connect(
        &mut self,
        now: u64,
        peer: WorkerId,
        module: &str,
    ) -> Result<Claim, Reason> {
        if peer == self.me {
            let text = "a worker does not connect to itself through a module that connects to an \
                        endpoint; use one that connects to an interface";
            return Err(Reason::new(ReasonKind::Itself, text));
        }
        if module.is_empty() || module.len() > 255 {
            let text =
                format!("the module's name has {} bytes; 1 to 255 are possible", module.len());
            return Err(Reason::new(ReasonKind::Local, text));
        }
        if let Some(key) = self.claim(peer, module) {
            let deadline = now.saturating_add(self.limits.deadline);
            self.postpone(&key, now, deadline);
            return Ok(Claim::Existing(key));
        }
        if self.connections.len() >= self.limits.max_connections {
            let text = format!(
                "this worker has {} connections, as many as it may have",
                self.connections.len()
            );
            return Err(Reason::new(ReasonKind::Busy, text));
        }
        let deadline = now.saturating_add(self.limits.deadline);
        self.begin(now, deadline, peer, module, 0).map(Claim::New)
    }

    /// The endpoint of a `Create`, of a `Claim::New` is made and has this address.
    pub(crate) fn created(&mut self, now: u64, key: &ConnectionKey, address: &[u8]) {
        if address.len() > MAX_ADDRESS {
            let why = format!(
                "the endpoint's address has {} bytes; {MAX_ADDRESS} are possible",
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

    /// The endpoint could not be made; the peer is told if it has asked.
    pub(crate) fn not_created(&mut self, now: u64, key: &ConnectionKey, why: &str) {
        if self.phase(key) == Some(Phase::Making) {
            let text = format!("the endpoint of {key} could not be made: {why}");
            self.fail(now, key, ReasonKind::Local, text, Some((ReasonKind::Rejected, why)));
        }
    }

    /// The endpoint is connected to the address of a `Bind`, or could not be.
    pub(crate) fn bound(&mut self, now: u64, key: &ConnectionKey, outcome: Result<(), &str>) {
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

    /// The application let go of it. The connection stays and may be claimed again.
    pub(crate) fn unclaim(&mut self, key: &ConnectionKey) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.claimed = false;
        self.changes += 1;
        let changes = self.changes;
        if let Some(pair) = self.pair(key) {
            let _ = pair.unclaimed.insert(key.n);
            pair.touched = changes;
        }
    }

    /// The local endpoint is gone. The peer is told unless both were ready: then the endpoints tell each other.
    pub(crate) fn close(&mut self, _now: u64, key: &ConnectionKey) {
        let Some(connection) = self.connections.get(key) else { return };
        let nobody_knows = connection.phase == Phase::Making && connection.theirs.is_none();
        if connection.phase != Phase::Ready && !nobody_knows {
            self.send_reject(key, ReasonKind::Closed, "the peer closed it before it was ready");
        }
        let _ = self.remove(key);
    }

    /// The carrier to the peer broke: what was sent may be lost. It is sent again, soon at first, then less so.
    pub(crate) fn carrier_lost(&mut self, now: u64, key: &ConnectionKey) {
        let (first, last) = (self.limits.first_retry, self.limits.last_retry);
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(retry) = connection.retry else { return };
        let wait = first.saturating_mul(1 << connection.losses.min(30)).min(last);
        connection.losses += 1;
        connection.retry = Some(retry.min(now.saturating_add(wait)));
        self.set_timer(key);
    }

    /// There is no way to the peer, for the reason `why`.
    pub(crate) fn carrier_hopeless(&mut self, now: u64, key: &ConnectionKey, why: &str) {
        if self.phase(key).is_some_and(|phase| phase != Phase::Ready) {
            let text = format!("{key} cannot be formed: {why}");
            self.fail(now, key, ReasonKind::Carrier, text, None);
        }
    }

    /// Data of the peer came in over the endpoint: it has bound. Not needed, but it spares a round when the
    /// peer's last message is late or lost.
    pub(crate) fn data_arrived(&mut self, _now: u64, key: &ConnectionKey) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        match connection.phase {
            Phase::Binding => connection.peer_bound = true,
            Phase::Bound => self.ready(key),
            Phase::Making | Phase::Asked | Phase::Ready => {}
        }
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: u64) {
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

    /// When `tick` has something to do.
    pub(crate) fn next_timer(&self) -> Option<u64> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// The next thing to do; taken until there is none, after every call.
    pub(crate) fn take_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// How far a connection is; `None` if there is none of that name.
    pub(crate) fn phase(&self, key: &ConnectionKey) -> Option<Phase> {
        self.connections.get(key).map(|connection| connection.phase)
    }

    /// How many connections there are, in any phase.
    pub(crate) fn len(&self) -> usize {
        self.connections.len()
    }

    /// What happened so far.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Gives the lowest unclaimed connection to the local side.
    fn claim(&mut self, peer: WorkerId, module: &str) -> Option<ConnectionKey> {
        let pair = self.peers.get_mut(&peer)?.pairs.get_mut(module)?;
        let n = pair.unclaimed.pop_first()?;
        let key = ConnectionKey { peer, module: module.into(), n };
        let connection = self.connections.get_mut(&key)?;
        connection.claimed = true;
        self.no_longer_early(&key);
        Some(key)
    }

    /// An unfinished connection that was claimed just now has time until `deadline`, at least.
    fn postpone(&mut self, key: &ConnectionKey, now: u64, deadline: u64) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.phase != Phase::Ready {
            connection.began = now;
            connection.deadline = connection.deadline.max(deadline);
            self.set_timer(key);
        }
    }

    /// A new claimed connection with a number of at least `at_least`.
    fn begin(
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

    /// The highest number ever used with a peer.
    pub(super) fn highest(&self, peer: &WorkerId, module: &str) -> u32 {
        let pair = self.peers.get(peer).and_then(|p| p.pairs.get(module));
        pair.map_or(0, |pair| pair.used.highest())
    }

    /// Takes in a connection in phase `Making`; its deadline runs.
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

    /// Forgets a connection, except that its number is used up.
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

    fn pair(&mut self, key: &ConnectionKey) -> Option<&mut Pair> {
        self.peers.get_mut(&key.peer)?.pairs.get_mut(&key.module)
    }

    fn no_longer_early(&mut self, key: &ConnectionKey) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if std::mem::take(&mut connection.early) {
            self.early -= 1;
            if let Some(peer) = self.peers.get_mut(&key.peer) {
                peer.early -= 1;
            }
        }
    }

    /// When too many peers are remembered that we have nothing with, the quarter that rested longest is not.
    fn forget_idle_pairs(&mut self) {
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

    /// Writes the connection's next moment into `timers`.
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

    /// Both addresses are known: the caller connects the endpoint.
    pub(super) fn bind(&mut self, key: &ConnectionKey, address: Vec<u8>) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.phase = Phase::Binding;
        connection.their_hash = address_hash(&address);
        connection.retry = None;
        self.set_timer(key);
        self.actions.push_back(Action::Bind { key: key.clone(), address });
    }

    /// Both are bound.
    pub(super) fn ready(&mut self, key: &ConnectionKey) {
        self.no_longer_early(key);
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.phase = Phase::Ready;
        connection.address = Vec::new();
        connection.heard = None;
        connection.retry = None;
        self.set_timer(key);
        self.counters.ready += 1;
        self.actions.push_back(Action::Ready { key: key.clone() });
    }

    /// Begins to send what the phase asks for.
    fn say_first(&mut self, now: u64, key: &ConnectionKey) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.interval = self.limits.first_retry;
            connection.sent = 0;
            self.say(now, key);
        }
    }

    /// Sends what the phase asks for, and again after the interval.
    fn say(&mut self, now: u64, key: &ConnectionKey) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.retry = Some(now.saturating_add(connection.interval));
        self.set_timer(key);
        self.send_address(key);
    }

    /// REQUEST while the peer's address is not known, REPLY when it is bound.
    pub(super) fn send_address(&mut self, key: &ConnectionKey) {
        let header = self.header(key);
        let Some(connection) = self.connections.get(key) else { return };
        let (identity, address) = (&self.identity[..], &connection.address[..]);
        let body = match connection.phase {
            Phase::Asked => Body::Request { identity, address },
            Phase::Bound => Body::Reply { identity, address, bound_to: connection.their_hash },
            Phase::Making | Phase::Binding | Phase::Ready => return,
        };
        let datagram = encode(&header, &body);
        if let Some(connection) = self.connections.get_mut(key) {
            connection.sent += 1;
        }
        self.actions.push_back(Action::Send { key: key.clone(), datagram });
    }

    pub(super) fn send_ready(&mut self, key: &ConnectionKey) {
        let Some(connection) = self.connections.get(key) else { return };
        let body = Body::Ready { mine: connection.our_hash, yours: connection.their_hash };
        self.send(key, &body);
    }

    fn send_reject(&mut self, key: &ConnectionKey, kind: ReasonKind, text: &str) {
        self.counters.rejected += 1;
        let next = self.next(key);
        self.send(key, &Body::Reject { kind, next, text });
    }

    pub(super) fn send(&mut self, key: &ConnectionKey, body: &Body<'_>) {
        let datagram = encode(&self.header(key), body);
        self.actions.push_back(Action::Send { key: key.clone(), datagram });
    }

    /// The lowest number that would be new here.
    pub(super) fn next(&self, key: &ConnectionKey) -> u32 {
        self.highest(&key.peer, &key.module).saturating_add(1)
    }

    fn header<'a>(&self, key: &'a ConnectionKey) -> Header<'a> {
        Header {
            from: self.me,
            to: key.peer,
            from_epoch: self.epoch,
            to_epoch: self.peers.get(&key.peer).map_or(0, |peer| peer.epoch),
            module: &key.module,
            n: key.n,
        }
    }

    fn time_out(&mut self, now: u64, key: &ConnectionKey) {
        let Some(c) = self.connections.get(key) else { return };
        let waited = seconds(now.saturating_sub(c.began));
        let done = match c.phase {
            Phase::Making => "the local endpoint was not made in time".to_string(),
            Phase::Binding => "the local endpoint was not connected in time".to_string(),
            Phase::Asked => format!("the request was sent {}", times(c.sent)),
            _ => format!("it is bound here, which the peer was told {}", times(c.sent)),
        };
        let heard = match &c.heard {
            None => "nothing was heard of the peer".to_string(),
            Some((at, what)) => {
                let what = match what {
                    Heard::Request => "its request".to_string(),
                    Heard::Reply => "its reply".to_string(),
                    Heard::InWork => "that it is making its endpoint".to_string(),
                    Heard::Busy(text) => format!("that it is busy ({text})"),
                };
                format!("last heard of the peer: {what}, {} ago", seconds(now.saturating_sub(*at)))
            }
        };
        let text = format!("{key} is not ready after {waited}: {done}; {heard}");
        let tell = (ReasonKind::Closed, "the peer gave up waiting");
        self.fail(now, key, ReasonKind::TimedOut, text, Some(tell));
    }

    /// Ends a connection; `tell` is what the peer hears, if it is to hear something.
    pub(super) fn fail(
        &mut self,
        _now: u64,
        key: &ConnectionKey,
        kind: ReasonKind,
        text: String,
        tell: Option<(ReasonKind, &str)>,
    ) {
        if let Some((kind, text)) = tell {
            self.send_reject(key, kind, text);
            if kind == ReasonKind::Rejected {
                self.refusals.push_back((key.clone(), kind, cut(text, 255).to_string()));
                if self.refusals.len() > MAX_REFUSALS {
                    let _ = self.refusals.pop_front();
                }
            }
        }
        if self.remove(key).is_some() {
            self.counters.failed += 1;
            let reason = Reason { kind, text };
            self.actions.push_back(Action::Failed { key: key.clone(), reason });
        }
    }

    /// The peer's side of an unfinished connection is gone: whoever wants one gets another, from `next` on.
    pub(super) fn start_over(&mut self, now: u64, key: &ConnectionKey, next: u32, why: &str) {
        let Some(c) = self.connections.get(key) else { return };
        let (deadline, began, renumbered) = (c.deadline, c.began, c.renumbered);
        if !c.claimed || c.phase == Phase::Ready || renumbered >= self.limits.max_renumbered {
            let text = match renumbered {
                0 => format!("{key} is closed: {why}"),
                _ => format!(
                    "{key} is closed: {why}; it was begun anew {}",
                    times(renumbered.into())
                ),
            };
            return self.fail(now, key, ReasonKind::Closed, text, None);
        }
        let _ = self.remove(key);
        let to = match self.claim(key.peer, &key.module) {
            Some(key) => Ok(Claim::Existing(key)),
            None => self.begin(now, deadline, key.peer, &key.module, next).map(Claim::New),
        };
        match to {
            Ok(to) => {
                self.counters.renumbered += 1;
                self.postpone(to.key(), began, deadline);
                if let Some(connection) = self.connections.get_mut(to.key()) {
                    connection.renumbered = renumbered + 1;
                }
                self.actions.push_back(Action::Renumbered { from: key.clone(), to });
            }
            Err(reason) => {
                self.counters.failed += 1;
                self.actions.push_back(Action::Failed { key: key.clone(), reason });
            }
        }
    }
}

fn times(count: u32) -> String {
    match count {
        1 => "once".to_string(),
        n => format!("{n} times"),
    }
}

fn seconds(ns: u64) -> String {
    format!("{:.1} s", ns as f64 / 1e9)
}
