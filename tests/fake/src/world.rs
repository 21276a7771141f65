//! What a test holds in its hand: the lanes of a world, what becomes of calls, and what came of it all.

use crate::calls::{Act, Call, Rule, Slot};
use crate::network::State;
use crate::{files, sys};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_plugin_api::abi::{Cost, EndpointLimits};
use tieline_plugin_api::{Status, caps, cost_class, event};

/// One domain with one module, and how it behaves.
#[derive(Clone, Debug)]
pub struct Lane {
    /// Its domain is `fake:NAME`, its module `fake:NAME/MODULE`.
    pub name: &'static str,
    /// Lanes of one module, of several domains, are those that a long transfer is shared by. As `name`, if not said.
    pub module: &'static str,
    /// Whose it is: 0 is the provider `fake`, 1 the provider `other`.
    pub provider: usize,
    /// `tieline_plugin_api::caps`
    pub caps: u64,
    /// Higher first.
    pub priority: i32,
    /// Longest short message.
    pub max_short: usize,
    /// Longest packed message.
    pub max_packed: usize,
    /// Of gathered messages; 0: it has none.
    pub max_zcopy: usize,
    /// Pieces that one call takes.
    pub max_iov: u32,
    /// Longest put; 0: no limit.
    pub max_put: usize,
    /// Longest get; 0: no limit.
    pub max_get: usize,
    /// Longest put whose bytes are taken when the call returns; 0: none are.
    pub max_short_put: usize,
    /// How many bits of a word `put_notify` carries.
    pub notify_bits: u32,
    /// What an endpoint says that it carries, where that is less.
    pub limits: EndpointLimits,
    /// Masks: 32 and 64 bits without a result, 32 and 64 bits with one.
    pub atomics: [u32; 4],
    /// Of a thousand calls that post something, so many find no room.
    pub again: u32,
    /// Of a thousand puts and gets, so many are declined.
    pub declines: u32,
    /// Puts and gets of so many bytes and more are declined.
    pub declines_from: usize,
    /// Of a thousand operations that could end later, so many are done when the call returns.
    pub at_once: u32,
    /// What a put or get of 8 bytes costs beyond a message of 8 bytes, as it states, ns.
    pub slow_ns: f64,
    /// Polls until something is carried out, at most.
    pub delay: u64,
    /// Polls from there until it is told, at most.
    pub report: u64,
    /// Events that one poll brings, at most.
    pub batch: usize,
    /// Payloads are lent.
    pub lends: bool,
    /// Numbers of peers are so far apart.
    pub apart: u64,
    /// Both sides make an endpoint, and something else carries their addresses.
    pub to_endpoint: bool,
    /// It carries such addresses, and nothing else.
    pub connects: bool,
    /// Before a sleep it says that there is nothing to look at; otherwise that it cannot be waited for.
    pub sleeps: bool,
}

impl Lane {
    fn bare(name: &'static str, caps: u64) -> Lane {
        Lane {
            name,
            module: name,
            provider: 0,
            caps: caps | caps::NEEDS_POLL | caps::CONNECTED_SEND | caps::PEER_FAILURE,
            priority: 1,
            max_short: 64,
            max_packed: 2048,
            max_zcopy: 0,
            max_iov: 4,
            max_put: 0,
            max_get: 0,
            max_short_put: 0,
            notify_bits: 0,
            limits: EndpointLimits::empty(),
            atomics: [0; 4],
            again: 0,
            declines: 0,
            declines_from: usize::MAX,
            at_once: 0,
            slow_ns: 0.0,
            delay: 0,
            report: 0,
            batch: 16,
            lends: false,
            apart: 1,
            to_endpoint: false,
            connects: false,
            sleeps: false,
        }
    }

    /// Messages and nothing else.
    #[must_use]
    pub fn messages(name: &'static str) -> Lane {
        Lane::bare(name, caps::AM_SHORT | caps::AM_PACKED)
    }

    /// Put, get and all atomics, which end later and need nothing of the target's.
    #[must_use]
    pub fn memory(name: &'static str) -> Lane {
        let does = caps::PUT | caps::GET | caps::ATOMICS | caps::REMOTE_COMPLETION;
        let how = caps::PASSIVE_TARGET | caps::CHECKS_KEYS | caps::TAKES_REGIONS;
        let bare = Lane::bare(name, does | how);
        Lane { atomics: [0xff; 4], max_short: 0, max_packed: 0, ..bare }
    }

    /// Everything.
    #[must_use]
    pub fn whole(name: &'static str) -> Lane {
        let (messages, memory) = (Lane::messages(name), Lane::memory(name));
        let (max_short, max_packed) = (messages.max_short, messages.max_packed);
        Lane { caps: messages.caps | memory.caps, max_short, max_packed, ..memory }
    }

    /// A connection-only module of the provider `other`, over which others' connections are formed.
    #[must_use]
    pub fn connector(name: &'static str) -> Lane {
        Lane { connects: true, provider: 1, ..Lane::bare(name, 0) }
    }

    /// A worker may sleep on it, and is not woken.
    #[must_use]
    pub fn sleeping(self) -> Lane {
        Lane { sleeps: true, ..self }
    }

    /// What it states of its costs: the same for all classes, but for small puts and gets.
    pub(crate) fn cost(&self) -> [Cost; cost_class::COUNT] {
        let cost = Cost { overhead_ns: 10.0, latency_ns: 100.0, bytes_per_second: 1e9 };
        let mut costs = [cost; cost_class::COUNT];
        costs[cost_class::SMALL_RMA].overhead_ns += self.slow_ns;
        costs
    }

    pub(crate) fn does_memory(&self) -> bool {
        self.caps & (caps::PUT | caps::GET | caps::ATOMICS) != 0
    }

    /// Without atomics.
    #[must_use]
    pub fn without_atomics(self) -> Lane {
        Lane { caps: self.caps & !caps::ATOMICS, atomics: [0; 4], ..self }
    }

    /// With more that it can do.
    #[must_use]
    pub fn with(self, caps: u64) -> Lane {
        Lane { caps: self.caps | caps, ..self }
    }

    /// Puts, gets and atomics end with the call.
    #[must_use]
    pub fn synchronous(self) -> Lane {
        Lane { caps: self.caps | caps::SYNCHRONOUS, ..self }
    }

    /// Its puts tell the target, by words of so many bits.
    #[must_use]
    pub fn telling(self, notify_bits: u32) -> Lane {
        Lane { caps: self.caps | caps::PUT_NOTIFY, notify_bits, ..self }
    }

    /// It connects to an endpoint.
    #[must_use]
    pub fn over_circuits(self) -> Lane {
        Lane { to_endpoint: true, ..self }
    }

    /// Of the provider `other`.
    #[must_use]
    pub fn of_the_other(self) -> Lane {
        Lane { provider: 1, ..self }
    }

    /// Slow: up to so many polls until something is done, and as many until it is told.
    #[must_use]
    pub fn late(self, polls: u64) -> Lane {
        Lane { delay: polls, report: polls, ..self }
    }
}

/// The network of one process.
pub struct World {
    pub(crate) stamp: u64,
    pub(crate) process: u32,
    state: Mutex<State>,
    /// Threads that have stopped in a call, and whether they may go on.
    stopped: Mutex<(usize, bool)>,
    changed: Condvar,
}

/// After so long a thread that waits for another one gives up: the test has failed.
const PATIENCE: Duration = Duration::from_secs(20);
/// The same for one that waits inside a call, and may be called again.
pub(crate) const PATIENCE_OF_A_CALL: Duration = Duration::from_secs(5);

impl World {
    /// A world with these lanes, whose chance begins with `seed`. It is never freed: what is loaded may look at it
    /// at any time.
    #[must_use]
    pub fn new(seed: u64, lanes: Vec<Lane>) -> &'static World {
        let state = Mutex::new(State::new(seed, lanes));
        let (stopped, changed) = (Mutex::new((0, false)), Condvar::new());
        let (stamp, process) = (crate::STAMP, std::process::id());
        Box::leak(Box::new(World { stamp, process, state, stopped, changed }))
    }

    /// What a context has to be told to play here, and only here.
    #[must_use]
    pub fn settings(&'static self) -> Vec<(&'static str, String)> {
        let mut settings = vec![
            ("TIELINE_PROVIDER_PATH", files::directory().display().to_string()),
            ("TIELINE_PROVIDERS", "fake,other".into()),
            // The files are ours, and a child would find no world to play in.
            ("TIELINE_PROBE", "off".into()),
            ("TIELINE_FAKE_WORLD", sys::setting(self)),
            ("TIELINE_OTHER_WORLD", sys::setting(self)),
        ];
        if self.state().lanes.iter().any(|lane| lane.connects) {
            settings.push(("TIELINE_CONNECT", "other,oob".into()));
        }
        settings
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // The core may panic in its packers, never while this is held; a test that failed may still look.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Threads that have stopped in a call go on, and later ones do not stop.
    pub fn go_on(&self) {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.changed.notify_all();
    }

    /// Waits until a thread has stopped in a call; whether one has.
    #[must_use]
    pub fn await_stop(&self) -> bool {
        self.await_stop_for(PATIENCE)
    }

    pub(crate) fn await_stop_for(&self, patience: Duration) -> bool {
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(stopped, patience, |stopped| stopped.0 == 0);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    pub(crate) fn stop(&self) {
        let mut stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        stopped.0 += 1;
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(stopped, PATIENCE, |stopped| !stopped.1);
        drop(waited);
    }

    /// From now on `rule` decides about the calls that it names; the first rule that fits a call counts.
    pub fn rule(&self, rule: Rule) {
        self.state().rules.push(rule);
    }

    /// No rule counts any more.
    pub fn forget_rules(&self) {
        self.state().rules.clear();
    }

    /// How chance treats a lane may be changed at any time.
    pub fn change(&self, lane: &str, change: impl Fn(&mut Lane)) {
        self.state().lanes.iter_mut().filter(|l| l.name == lane).for_each(change);
    }

    /// What was held back goes on.
    pub fn release_held(&self) {
        self.state().release_held();
    }

    /// The calls that the core made, in order.
    #[must_use]
    pub fn calls(&self, slot: Slot) -> Vec<Call> {
        self.state().calls.iter().filter(|call| call.slot == slot).copied().collect()
    }

    /// Whether a call of this slot was refused, or panicked.
    #[must_use]
    pub fn was_refused(&self, slot: Slot) -> bool {
        self.state().calls.iter().any(|call| call.slot == slot && call.refused)
    }

    /// What was called of an interface and its endpoints, but for what closes them and polls that were not refused.
    #[must_use]
    pub fn calls_at(&self, interface: usize) -> Vec<Slot> {
        let closes = [Slot::CloseEndpoint, Slot::CloseInterface, Slot::DropKey];
        let own = |call: &&Call| call.interface == interface && !closes.contains(&call.slot);
        self.state().calls.iter().filter(own).map(|call| call.slot).collect()
    }

    /// The interface of the `nth` worker (in the order of opening) on a lane.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn interface(&self, nth: usize, lane: &str) -> usize {
        let state = self.state();
        let mut of_lane =
            state.interfaces.iter().enumerate().filter(|(_, i)| state.lanes[i.lane].name == lane);
        of_lane.nth(nth).expect("an interface of that lane").0
    }

    /// Whether the application has to carry addresses of endpoints.
    #[must_use]
    pub fn has_circuits(&self) -> bool {
        let state = self.state();
        let any = |of: fn(&Lane) -> bool| state.lanes.iter().any(of);
        any(|lane| lane.to_endpoint) && !any(|lane| lane.connects)
    }

    /// Something arrives at interface `at` that looks like a message of the peer whose interface is `from`, and that
    /// nobody sent.
    ///
    /// # Panics
    /// When that peer never connected there.
    pub fn forge(&self, from: usize, at: usize, id: u32, header: u64, payload: &[u8]) {
        assert!(self.try_forge(from, at, id, header, payload), "that peer never connected");
    }

    /// [`World::forge`], if that peer ever connected there.
    pub fn try_forge(&self, from: usize, at: usize, id: u32, header: u64, payload: &[u8]) -> bool {
        let mut state = self.state();
        let peer = state.peer_number(from, at);
        if let Some(peer) = peer {
            state.inject(at, event::MESSAGE, id, 0, peer, header, 0, payload);
        }
        peer.is_some()
    }

    /// So many peers arrive at an interface whose addresses make no sense.
    pub fn strangers(&self, at: usize, many: u64) {
        let mut state = self.state();
        for peer in 0..many {
            state.inject(at, event::PEER_ARRIVED, 0, 0, 1 << 32 | peer, 0, 0, b"nonsense");
        }
    }

    /// A put_notify arrives at an interface from a peer whose number nobody has, with this word.
    pub fn notify_from_nobody(&self, at: usize, word: u64) {
        self.state().inject(at, event::NOTIFIED, 0, 0, 1 << 40, word, 0, &[]);
    }

    /// [`World::forge`] from a peer whose number nobody has.
    pub fn forge_from_nobody(&self, at: usize, id: u32, header: u64, payload: &[u8]) {
        self.state().inject(at, event::MESSAGE, id, 0, 1 << 40, header, 0, payload);
    }

    /// `call` is called in every poll: while one worker of a thread waits, the others go on.
    pub fn meanwhile(&self, call: fn()) {
        self.state().meanwhile = Some(call);
    }

    /// The names of its lanes.
    #[must_use]
    pub fn lanes(&self) -> Vec<&'static str> {
        self.state().lanes.iter().map(|lane| lane.name).collect()
    }

    fn data_lanes(&self) -> Vec<&'static str> {
        let state = self.state();
        state.lanes.iter().filter(|lane| !lane.connects).map(|lane| lane.name).collect()
    }

    /// The numbers of the operations that providers have of the `nth` worker, on any lane.
    #[must_use]
    pub fn cookies(&self, nth: usize) -> Vec<u64> {
        let of_worker: Vec<usize> =
            self.data_lanes().iter().map(|lane| self.interface(nth, lane)).collect();
        let state = self.state();
        let endpoints = state.endpoints.iter().filter(|e| of_worker.contains(&e.interface));
        let cookies = endpoints.flat_map(|endpoint| endpoint.ops.iter().map(|op| op.cookie));
        cookies.filter(|cookie| *cookie != 0).collect()
    }

    /// A completion arrives at an interface.
    pub fn complete(&self, at: usize, cookie: u64, result: Result<u64, Status>) {
        let status = result.err().map_or(0, |status| status as i32);
        self.state().inject(at, event::COMPLETION, 0, status, 0, result.unwrap_or(0), cookie, &[]);
    }

    /// The endpoints of interface `from` that lead to interface `to` fail: an event says so, with these words. What
    /// was posted on them may still be carried out until they are closed, and is not told any more.
    pub fn break_endpoints(&self, from: usize, to: usize, status: Status, words: &str) {
        self.state().break_endpoints(from, to, status, words);
    }

    /// Interface `at` is told that the peer whose interface is `from` has left.
    ///
    /// # Panics
    /// When that peer never connected there.
    pub fn leave(&self, from: usize, at: usize, status: i32, words: &str) {
        let mut state = self.state();
        let peer = state.peer_number(from, at).expect("a peer that has connected");
        state.inject(at, event::PEER_LEFT, 0, status, peer, 0, 0, words.as_bytes());
    }

    /// What the core did that the binary interface does not allow.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        self.state().faults.clone()
    }

    /// How many local pieces said which registration they lie in.
    #[must_use]
    pub fn named(&self) -> usize {
        self.state().named
    }

    /// What is still there: open interfaces, open endpoints, imported keys, registrations, lent payloads.
    #[must_use]
    pub fn left(&self) -> [usize; 5] {
        let state = self.state();
        [
            state.interfaces.iter().filter(|i| i.open).count(),
            state.endpoints.iter().filter(|e| e.open).count(),
            state.keys,
            state.memory.len(),
            state.lent.len(),
        ]
    }

    /// Operations that providers have accepted and not told the end of.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.state().endpoints.iter().map(|endpoint| endpoint.ops.len()).sum()
    }

    /// The payload of a message of this id that has been sent and not been handed to anybody, the last one.
    #[must_use]
    pub fn on_the_way(&self, id: u32) -> Option<Vec<u8>> {
        self.state().on_the_way(id)
    }

    /// Messages and events that have not been handed to the core.
    #[must_use]
    pub fn undelivered(&self) -> usize {
        let state = self.state();
        let on_wires: usize = state.endpoints.iter().map(|e| e.wire.len()).sum();
        on_wires + state.interfaces.iter().map(|i| i.injected.len()).sum::<usize>()
    }

    /// Holds every operation of this slot from now on.
    pub fn hold(&self, slot: Slot) {
        self.rule(Rule::every(slot, Act::Hold));
    }
}
