//! The test's view of a world: its lanes, the rules for calls, and the observed results.

use crate::calls::{Act, Call, Rule, Slot};
use crate::network::State;
use crate::{files, sys};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_plugin_api::abi::{Cost, EndpointLimits, Watch};
use tieline_plugin_api::{Status, caps, cost_class, event};

/// A domain with one module, and the behaviour of the module.
#[derive(Clone, Debug)]
pub struct Lane {
    /// The name of the domain `fake:NAME` and of the module `fake:NAME/MODULE`.
    pub name: &'static str,
    /// The name of the module, by default `name`. A long transfer may be striped over several lanes of one module.
    pub module: &'static str,
    /// The provider of the lane: 0 for `fake`, 1 for `other`.
    pub provider: usize,
    /// The capabilities of the lane: `tieline_plugin_api::caps`.
    pub caps: u64,
    /// The priority of the lane; lanes with higher values are preferred.
    pub priority: i32,
    /// The length of the longest short message.
    pub max_short: usize,
    /// The length of the longest packed message.
    pub max_packed: usize,
    /// The length of the longest gathered message; 0 if the lane does not gather.
    pub max_zcopy: usize,
    /// The maximum number of pieces that one call accepts.
    pub max_iov: u32,
    /// The length of the longest put; 0 for no limit.
    pub max_put: usize,
    /// The length of the longest get; 0 for no limit.
    pub max_get: usize,
    /// The length of the longest put whose source buffer is free when the call returns; 0 if there is no such put.
    pub max_short_put: usize,
    /// The number of bits that `put_notify` carries.
    pub notify_bits: u32,
    /// The limits that an endpoint reports, if they are lower than those of the lane.
    pub limits: EndpointLimits,
    /// Masks of atomics: 32 and 64 bits without a result, 32 and 64 bits with one.
    pub atomics: [u32; 4],
    /// The number of calls per thousand posting calls that return `AGAIN`.
    pub again: u32,
    /// The number of declined operations per thousand puts and gets.
    pub declines: u32,
    /// The length from which on puts and gets are declined.
    pub declines_from: usize,
    /// The number of inline completions per thousand operations that could complete later.
    pub at_once: u32,
    /// The stated cost of a put or get of 8 bytes above that of a message of 8 bytes, in nanoseconds.
    pub slow_ns: f64,
    /// The maximum delay that is drawn for an operation, in polls.
    pub delay: u64,
    /// The maximum number of polls that is drawn between the execution of an operation and the report of its completion.
    pub report: u64,
    /// The maximum number of events that one poll delivers.
    pub batch: usize,
    /// Whether payloads are lent to the core until `release`.
    pub lends: bool,
    /// The distance between two peer numbers.
    pub apart: u64,
    /// Whether both sides make an endpoint, and another channel carries the endpoints' addresses.
    pub to_endpoint: bool,
    /// Whether the lane carries only the addresses of such endpoints.
    pub connects: bool,
    /// Whether `arm` reports that there is nothing to poll. If this is false, `arm` reports that the interface does not support
    /// sleeping.
    pub sleeps: bool,
    /// Whether interfaces have a list of words, which may be empty. The core polls the only active interface without a list by one
    /// call.
    pub lists: bool,
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
            lists: false,
        }
    }

    /// Makes a lane that carries only messages.
    #[must_use]
    pub fn messages(name: &'static str) -> Lane {
        Lane::bare(name, caps::AM_SHORT | caps::AM_PACKED)
    }

    /// Makes a lane with put, get and all atomics, which complete later and need no progress at the target.
    #[must_use]
    pub fn memory(name: &'static str) -> Lane {
        let does = caps::PUT | caps::GET | caps::ATOMICS | caps::REMOTE_COMPLETION;
        let how = caps::PASSIVE_TARGET | caps::CHECKS_KEYS | caps::TAKES_REGIONS;
        let bare = Lane::bare(name, does | how);
        Lane { atomics: [0xff; 4], max_short: 0, max_packed: 0, ..bare }
    }

    /// Makes a lane with messages and memory operations.
    #[must_use]
    pub fn whole(name: &'static str) -> Lane {
        let (messages, memory) = (Lane::messages(name), Lane::memory(name));
        let (max_short, max_packed) = (messages.max_short, messages.max_packed);
        Lane { caps: messages.caps | memory.caps, max_short, max_packed, ..memory }
    }

    /// Makes a connection-only module of the provider `other`, over which endpoints of other lanes are connected.
    #[must_use]
    pub fn connector(name: &'static str) -> Lane {
        Lane { connects: true, provider: 1, ..Lane::bare(name, 0) }
    }

    /// Allows a worker to sleep on the lane, which never wakes the worker.
    #[must_use]
    pub fn sleeping(self) -> Lane {
        Lane { sleeps: true, ..self }
    }

    /// Gives the lane's interfaces lists of words, which are empty at first.
    #[must_use]
    pub fn listing(self) -> Lane {
        Lane { lists: true, ..self }
    }

    /// Returns the stated costs: the same for all classes, except for small puts and gets.
    pub(crate) fn cost(&self) -> [Cost; cost_class::COUNT] {
        let cost = Cost { overhead_ns: 10.0, latency_ns: 100.0, bytes_per_second: 1e9 };
        let mut costs = [cost; cost_class::COUNT];
        costs[cost_class::SMALL_RMA].overhead_ns += self.slow_ns;
        costs
    }

    pub(crate) fn does_memory(&self) -> bool {
        self.caps & (caps::PUT | caps::GET | caps::ATOMICS) != 0
    }

    /// Removes the atomics of the lane.
    #[must_use]
    pub fn without_atomics(self) -> Lane {
        Lane { caps: self.caps & !caps::ATOMICS, atomics: [0; 4], ..self }
    }

    /// Adds these capabilities to the lane.
    #[must_use]
    pub fn with(self, caps: u64) -> Lane {
        Lane { caps: self.caps | caps, ..self }
    }

    /// Makes puts, gets and atomics complete inline.
    #[must_use]
    pub fn synchronous(self) -> Lane {
        Lane { caps: self.caps | caps::SYNCHRONOUS, ..self }
    }

    /// Makes the lane's puts notify the target, with words of `notify_bits` bits.
    #[must_use]
    pub fn telling(self, notify_bits: u32) -> Lane {
        Lane { caps: self.caps | caps::PUT_NOTIFY, notify_bits, ..self }
    }

    /// Makes the lane connect endpoints, whose addresses another channel carries.
    #[must_use]
    pub fn over_circuits(self) -> Lane {
        Lane { to_endpoint: true, ..self }
    }

    /// Moves the lane to the provider `other`.
    #[must_use]
    pub fn on_other_provider(self) -> Lane {
        Lane { provider: 1, ..self }
    }

    /// Makes the lane slow: delays of up to `polls` polls are drawn for an operation, and again for the report of its completion.
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
    /// The words that interfaces list, and the number of those that they list.
    words: [AtomicU64; World::WORDS],
    listed: AtomicUsize,
    /// The number of polls of all interfaces.
    polls: AtomicU64,
    /// The number of threads that have stopped in a call, and whether they may go on.
    stopped: Mutex<(usize, bool)>,
    changed: Condvar,
}

/// The time after which a thread stops waiting for another one, and the test fails.
const PATIENCE: Duration = Duration::from_secs(20);
/// The limit for a thread that waits inside a call, which may repeat the call.
pub(crate) const PATIENCE_OF_A_CALL: Duration = Duration::from_secs(5);

impl World {
    /// The number of words that interfaces can list, one more than the core accepts.
    pub const WORDS: usize = 9;

    /// Makes every interface list the first `count` words after a poll without events. The test then changes a word for each event.
    pub fn list_words(&self, count: usize) {
        self.listed.store(count, Ordering::Relaxed);
    }

    /// Changes a word.
    pub fn change_word(&self, number: usize) {
        let _ = self.words[number].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of polls of all interfaces so far.
    #[must_use]
    pub fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Ends a poll of an interface: counts it, and lists the words.
    pub(crate) fn polled(&self, watch: &Watch, events: usize) {
        let _ = self.polls.fetch_add(1, Ordering::Relaxed);
        watch.clear();
        if events == 0 {
            let listed = &self.words[..self.listed.load(Ordering::Relaxed)];
            watch.set(listed.iter().map(|word| (word, word.load(Ordering::Relaxed))));
        }
    }

    /// Makes a world with these lanes; `seed` initialises its generator. The world is never freed, because a loaded provider may
    /// access it at any time.
    #[must_use]
    pub fn new(seed: u64, lanes: Vec<Lane>) -> &'static World {
        let state = Mutex::new(State::new(seed, lanes));
        let (stopped, changed) = (Mutex::new((0, false)), Condvar::new());
        let (stamp, process) = (crate::STAMP, std::process::id());
        let words = [const { AtomicU64::new(0) }; World::WORDS];
        let (listed, polls) = (AtomicUsize::new(0), AtomicU64::new(0));
        let world = World { stamp, process, state, words, listed, polls, stopped, changed };
        Box::leak(Box::new(world))
    }

    /// Returns the settings by which a context finds this world and no other device.
    #[must_use]
    pub fn settings(&'static self) -> Vec<(&'static str, String)> {
        let mut settings = vec![
            ("TIELINE_PROVIDER_PATH", files::directory().display().to_string()),
            ("TIELINE_PROVIDERS", "fake,other".into()),
            // The provider's files are trusted, and a child process that tried them would find no world.
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
        // A lock is poisoned only by a failed test, which may still read the state: the core's packers run without the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resumes the threads that have stopped in a call. Later calls do not stop.
    pub fn go_on(&self) {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.changed.notify_all();
    }

    /// Waits until a thread has stopped in a call. Returns whether a thread has stopped.
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

    /// Adds a rule. The first rule that matches a call decides about the call.
    pub fn rule(&self, rule: Rule) {
        self.state().rules.push(rule);
    }

    /// Removes all rules.
    pub fn forget_rules(&self) {
        self.state().rules.clear();
    }

    /// Changes the parameters of a lane, at any time.
    pub fn change(&self, lane: &str, change: impl Fn(&mut Lane)) {
        self.state().lanes.iter_mut().filter(|l| l.name == lane).for_each(change);
    }

    /// Releases the operations that were held.
    pub fn release_held(&self) {
        self.state().release_held();
    }

    /// Returns the calls that the core made to a slot, in order. Polls that were not refused are not recorded.
    #[must_use]
    pub fn calls(&self, slot: Slot) -> Vec<Call> {
        self.state().calls.iter().filter(|call| call.slot == slot).copied().collect()
    }

    /// Checks whether a call of this slot was refused, or panicked.
    #[must_use]
    pub fn was_refused(&self, slot: Slot) -> bool {
        self.state().calls.iter().any(|call| call.slot == slot && call.refused)
    }

    /// Returns the calls of an interface and its endpoints, without close calls and accepted polls.
    #[must_use]
    pub fn calls_at(&self, interface: usize) -> Vec<Slot> {
        let closes = [Slot::CloseEndpoint, Slot::CloseInterface, Slot::DropKey];
        let own = |call: &&Call| call.interface == interface && !closes.contains(&call.slot);
        self.state().calls.iter().filter(own).map(|call| call.slot).collect()
    }

    /// Returns the number of the interface of the `nth` worker (in the order of opening) on a lane.
    ///
    /// # Panics
    /// Panics if there is no such interface.
    #[must_use]
    pub fn interface(&self, nth: usize, lane: &str) -> usize {
        let state = self.state();
        let mut of_lane =
            state.interfaces.iter().enumerate().filter(|(_, i)| state.lanes[i.lane].name == lane);
        of_lane.nth(nth).expect("an interface of that lane").0
    }

    /// Checks whether the application has to carry addresses of endpoints.
    #[must_use]
    pub fn has_circuits(&self) -> bool {
        let state = self.state();
        let any = |of: fn(&Lane) -> bool| state.lanes.iter().any(of);
        any(|lane| lane.to_endpoint) && !any(|lane| lane.connects)
    }

    /// Delivers a forged message at interface `at`, which appears to come from the peer whose interface is `from`.
    ///
    /// # Panics
    /// Panics if that peer never connected there.
    pub fn forge(&self, from: usize, at: usize, id: u32, header: u64, payload: &[u8]) {
        assert!(self.try_forge(from, at, id, header, payload), "that peer never connected");
    }

    /// Delivers a forged message as [`World::forge`] does, if that peer has connected there. Returns whether the peer has
    /// connected.
    pub fn try_forge(&self, from: usize, at: usize, id: u32, header: u64, payload: &[u8]) -> bool {
        let mut state = self.state();
        let peer = state.peer_number(from, at);
        if let Some(peer) = peer {
            state.inject(at, event::MESSAGE, id, 0, peer, header, 0, payload);
        }
        peer.is_some()
    }

    /// Delivers connection events of `many` peers with malformed addresses at an interface.
    pub fn strangers(&self, at: usize, many: u64) {
        let mut state = self.state();
        for peer in 0..many {
            state.inject(at, event::PEER_ARRIVED, 0, 0, 1 << 32 | peer, 0, 0, b"nonsense");
        }
    }

    /// Delivers a put notification with this word from an unknown peer number.
    pub fn notify_from_nobody(&self, at: usize, word: u64) {
        self.state().inject(at, event::NOTIFIED, 0, 0, 1 << 40, word, 0, &[]);
    }

    /// Delivers a message as [`World::forge`] does, from an unknown peer number.
    pub fn forge_from_nobody(&self, at: usize, id: u32, header: u64, payload: &[u8]) {
        self.state().inject(at, event::MESSAGE, id, 0, 1 << 40, header, 0, payload);
    }

    /// Calls `call` in every poll, so that a thread that waits with one worker can make progress on other workers.
    pub fn meanwhile(&self, call: fn()) {
        self.state().meanwhile = Some(call);
    }

    /// Returns the names of the lanes.
    #[must_use]
    pub fn lanes(&self) -> Vec<&'static str> {
        self.state().lanes.iter().map(|lane| lane.name).collect()
    }

    fn data_lanes(&self) -> Vec<&'static str> {
        let state = self.state();
        state.lanes.iter().filter(|lane| !lane.connects).map(|lane| lane.name).collect()
    }

    /// Returns the cookies of the operations of the `nth` worker that are in flight, on any lane.
    #[must_use]
    pub fn cookies(&self, nth: usize) -> Vec<u64> {
        let of_worker: Vec<usize> =
            self.data_lanes().iter().map(|lane| self.interface(nth, lane)).collect();
        let state = self.state();
        let endpoints = state.endpoints.iter().filter(|e| of_worker.contains(&e.interface));
        let cookies = endpoints.flat_map(|endpoint| endpoint.ops.iter().map(|op| op.cookie));
        cookies.filter(|cookie| *cookie != 0).collect()
    }

    /// Delivers a forged completion at an interface.
    pub fn complete(&self, at: usize, cookie: u64, result: Result<u64, Status>) {
        let status = result.err().map_or(0, |status| status as i32);
        self.state().inject(at, event::COMPLETION, 0, status, 0, result.unwrap_or(0), cookie, &[]);
    }

    /// Fails the endpoints of interface `from` that lead to interface `to`, with an event that contains the text `words`.
    /// Operations posted on them may still be carried out until they are closed, but their completions are not reported.
    pub fn break_endpoints(&self, from: usize, to: usize, status: Status, words: &str) {
        self.state().break_endpoints(from, to, status, words);
    }

    /// Reports to interface `at` that the peer whose interface is `from` has left.
    ///
    /// # Panics
    /// Panics if that peer never connected there.
    pub fn leave(&self, from: usize, at: usize, status: i32, words: &str) {
        let mut state = self.state();
        let peer = state.peer_number(from, at).expect("a peer that has connected");
        state.inject(at, event::PEER_LEFT, 0, status, peer, 0, 0, words.as_bytes());
    }

    /// Returns the violations of the binary interface by the core: the first 64 different ones.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        self.state().faults.clone()
    }

    /// Returns the number of local pieces whose call named the registration that contains them.
    #[must_use]
    pub fn named(&self) -> usize {
        self.state().named
    }

    /// Returns the numbers of objects that still exist: open interfaces, open endpoints, imported keys, registrations, lent
    /// payloads.
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

    /// Returns the number of accepted operations whose completion has not been reported.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.state().endpoints.iter().map(|endpoint| endpoint.ops.len()).sum()
    }

    /// Returns the payload of the last message of this id that is in flight.
    #[must_use]
    pub fn on_the_way(&self, id: u32) -> Option<Vec<u8>> {
        self.state().on_the_way(id)
    }

    /// Returns the number of messages and events that have not been delivered to the core.
    #[must_use]
    pub fn undelivered(&self) -> usize {
        let state = self.state();
        let on_wires: usize = state.endpoints.iter().map(|e| e.wire.len()).sum();
        on_wires + state.interfaces.iter().map(|i| i.injected.len()).sum::<usize>()
    }

    /// Holds later operations of this slot.
    pub fn hold(&self, slot: Slot) {
        self.rule(Rule::every(slot, Act::Hold));
    }
}
