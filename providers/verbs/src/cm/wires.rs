//! All connections of a connector. This module turns connection manager events and completions into [`LinkEvent`]s.

use super::abi::*;
use super::credits::Weight;
use super::dial::Dial;
use super::frame::{self, Kind};
use super::half_open::{self, FULL, HALF_OPEN, Room};
use super::sys::{Channel, CmEvent, Id, device_name};
use super::wire::{Phase, Wire, about, reason, trouble};
use super::{BUFFER, COMPLETIONS, PURPOSE, WINDOW, address, listening};
use crate::abi::*;
use crate::buffers::Pool;
use crate::queue_pair::Cleanup;
use crate::shared::DomainState;
use crate::sys::{Cq, Wc};
use crate::wake::{Sleep, sys::random};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tieline_net::datagrams::{self, LinkEvent, Links, Note};
use tieline_net::{Acceptor, Contact, Key, ListenAddress, LocalAddress};
use tieline_plugin_api::{Failure, Status};

/// The time limit for an incoming peer to prove that it belongs to the job.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit for the other side's device to acknowledge the last frames of a closing connection.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);
/// The interval of timer checks while a timer is active.
const TICK: Duration = Duration::from_millis(50);
/// The limits on events and on batches of completions per call, for fairness.
const EVENTS: usize = 64;
const BATCHES: usize = 16;

/// The state of all connections. The order of the fields drops connections before the objects that they use.
pub(super) struct Wires {
    pub(super) events: VecDeque<LinkEvent>,
    pub(super) contact: Contact,
    pub(super) own: Vec<u8>,
    pub(super) unproven: u64,
    pub(super) dials: HashMap<u64, Dial>,
    pub(super) wires: HashMap<u64, Wire>,
    /// The connection numbers by the key of their id.
    pub(super) ids: HashMap<usize, u64>,
    listeners: Vec<Id>,
    /// The connections with pending frames or credits.
    waiting: BTreeSet<u64>,
    cleanup: Cleanup,
    cq: Cq,
    sends: Pool,
    receives: Pool,
    sleep: Sleep,
    pub(super) channel: Rc<Channel>,
    pub(super) domain: Arc<DomainState>,
    pub(super) local: Vec<LocalAddress>,
    pub(super) key: Key,
    pub(super) secret: Vec<u8>,
    /// The reason why the connector is unusable; `None` if it is usable.
    pub(super) broken: Option<String>,
    batch: Vec<Wc>,
    next: u64,
    ticked: Instant,
}

impl Wires {
    pub(super) fn open(domain: Arc<DomainState>) -> Result<Wires, Failure> {
        let channel = Channel::new()?;
        let local = listening::local_addresses(&domain.name)?;
        let listening = listening::listen(&channel, &domain.name, &local)?;
        Wires::new(domain, channel, local, listening)
    }

    /// Makes the state for the given addresses of this host and the listeners at some of them.
    pub(super) fn new(
        domain: Arc<DomainState>,
        channel: Rc<Channel>,
        local: Vec<LocalAddress>,
        (listeners, addresses): (Vec<Id>, Vec<ListenAddress>),
    ) -> Result<Wires, Failure> {
        let (mut cookie, mut target) = ([0; 16], [0; 16]);
        random(&mut cookie)?;
        random(&mut target)?;
        let (boot_id, net_namespace) = tieline_net::here();
        let contact = Contact { boot_id, net_namespace, cookie, target, addresses };
        let secret = domain.settings.secret.clone();
        let cq = Cq::new(&domain.device, 8 * COMPLETIONS)?;
        let sleep = Sleep::new(&domain.watch, Some(&cq))?;
        sleep.also(channel.fd())?;
        let most = (domain.settings.cm_connections + 2 * HALF_OPEN) * usize::from(WINDOW);
        Ok(Wires {
            events: VecDeque::new(),
            own: address::pack(&contact),
            key: Key::derive(&secret, &contact.cookie),
            secret,
            contact,
            unproven: 0,
            dials: HashMap::new(),
            wires: HashMap::new(),
            ids: HashMap::new(),
            listeners,
            waiting: BTreeSet::new(),
            cq,
            cleanup: Cleanup::default(),
            sends: Pool::new(&domain.buffers, BUFFER, 16, most),
            receives: Pool::new(&domain.buffers, BUFFER, 4 * usize::from(WINDOW), most),
            sleep,
            channel,
            domain,
            local,
            broken: None,
            batch: vec![Wc::default(); crate::sys::WC_BATCH],
            next: 0,
            ticked: Instant::now(),
        })
    }

    /// Returns the descriptor that is readable when [`Wires::progress`] has work, after [`Wires::arm`] returned `true`.
    pub(super) fn fd(&self) -> i32 {
        self.sleep.raw()
    }

    /// Prepares to sleep. Returns `false` if there is work to do first.
    pub(super) fn arm(&mut self, has_links: bool) -> bool {
        self.read_async_events(); // unread events keep the descriptor readable
        let urgent = !self.dials.is_empty() || self.wires.values().any(|w| w.deadline.is_some());
        let outstanding = self.wires.values().any(Wire::has_outstanding);
        self.sleep.wake_every(match (urgent, outstanding || has_links) {
            (true, _) => Some(TICK),
            (false, true) => Some(10 * TICK),
            (false, false) => None,
        });
        self.cq.drain_channel();
        let armed = self.cq.arm().is_ok();
        self.drain();
        armed && self.events.is_empty()
    }

    /// Makes progress. Returns `true` if a tick has passed.
    pub(super) fn progress(&mut self) -> bool {
        for _ in 0..EVENTS {
            match self.channel.next() {
                Ok(Some(event)) => self.manager_event(event),
                Ok(None) => break,
                Err(failure) => {
                    self.fail_all(failure.status, &failure.text);
                    break;
                }
            }
        }
        self.drain();
        let now = Instant::now();
        let ticks = now - self.ticked >= TICK;
        if ticks {
            self.ticked = now;
            self.slow_progress(now);
        }
        ticks
    }

    /// Processes completions and sends pending frames.
    pub(super) fn drain(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        for _ in 0..BATCHES {
            let count = match self.cq.poll(&mut batch) {
                Ok(count) => count,
                Err(failure) => {
                    self.fail_all(failure.status, &failure.text);
                    0
                }
            };
            if count == 0 {
                self.cleanup.fetched(0, true);
                break;
            }
            for wc in &batch[..count] {
                self.completed(wc);
            }
        }
        self.batch = batch;
        for wire in self.waiting.clone() {
            self.pump(wire);
        }
    }

    fn completed(&mut self, wc: &Wc) {
        let (number, buffer, is_send) = about(wc.wr_id);
        let Some(wire) = self.wires.get_mut(&number) else { return }; // the connection is closed, and its buffers are released
        if wc.status != IBV_WC_SUCCESS {
            let (status, words) = trouble(wc.status);
            return self.lost(number, status, &words);
        }
        if is_send {
            wire.sent(buffer, &mut self.sends);
            if matches!(wire.phase, Phase::Finishing) && wire.is_quiet() {
                self.destroy(number);
                self.events.push_back(LinkEvent::Finished { link: number });
            }
            return;
        }
        let bytes = self.receives.bytes(buffer, wc.byte_len as usize).to_vec();
        let posted = wire.post_again(number, buffer, &self.receives);
        let read = frame::read(&bytes).and_then(|(kind, credits, payload)| {
            wire.credits.received(credits)?;
            Ok((kind, payload))
        });
        match (posted, read) {
            (Err(failure), _) => self.lost(number, failure.status, &failure.text),
            (_, Err(why)) => self.lost(number, Status::BadData, &why),
            (Ok(()), Ok((kind, payload))) => self.frame_received(number, kind, payload),
        }
        let _ = self.waiting.insert(number); // credits may be due, or may have arrived
    }

    /// Handles an arrived frame.
    fn frame_received(&mut self, number: u64, kind: Kind, payload: &[u8]) {
        let Some(wire) = self.wires.get_mut(&number) else { return };
        match (&wire.phase, kind) {
            (_, Kind::Credits) | (Phase::Finishing, _) => {}
            (Phase::Accepting(_), Kind::Handshake) => self.prove(number, payload),
            (Phase::Dialling { answered: true, .. }, Kind::Handshake) => {
                self.proven(number, payload)
            }
            (Phase::Up, Kind::Part) => {
                if let Err(why) = wire.reader.part(payload) {
                    self.lost(number, Status::BadData, &why);
                }
            }
            (Phase::Up, Kind::Datagram) => match wire.reader.last(payload) {
                Ok(bytes) => self.events.push_back(LinkEvent::Datagram { link: number, bytes }),
                Err(why) => self.lost(number, Status::BadData, &why),
            },
            (Phase::Up, Kind::Note(note)) => {
                self.events.push_back(LinkEvent::Note { link: number, note });
            }
            (_, kind) => {
                let why = format!("the peer broke the protocol: {kind} is not expected");
                self.lost(number, Status::BadData, &why);
            }
        }
    }

    /// Sends the pending frames of a connection.
    pub(super) fn pump(&mut self, number: u64) {
        let Some(wire) = self.wires.get_mut(&number) else {
            let _ = self.waiting.remove(&number);
            return;
        };
        match wire.pump(number, &mut self.sends) {
            Ok(true) => {
                let _ = self.waiting.remove(&number);
            }
            Ok(false) => {
                let _ = self.waiting.insert(number);
            }
            Err(failure) => return self.lost(number, failure.status, &failure.text),
        }
        if wire.full && wire.has_room() && wire.credits.allows(Weight::Data) {
            wire.full = false;
            self.events.push_back(LinkEvent::Room { link: number });
        }
    }

    fn manager_event(&mut self, event: CmEvent) {
        if let Some(id) = event.request {
            return self.connection_requested(id, &event.private);
        }
        let Some(&number) = self.ids.get(&event.key) else {
            if event.kind == RDMA_CM_EVENT_DEVICE_REMOVAL {
                self.listeners.retain(|listener| listener.key() != event.key);
                self.removed();
            }
            return;
        };
        match event.kind {
            RDMA_CM_EVENT_ADDR_RESOLVED
            | RDMA_CM_EVENT_ROUTE_RESOLVED
            | RDMA_CM_EVENT_CONNECT_RESPONSE => self.step(number, event.kind, &event.private),
            RDMA_CM_EVENT_DISCONNECTED => {
                self.drain(); // earlier arrivals are processed first
                let words = "the peer has closed it, or its process ended";
                self.lost(number, Status::PeerFailed, words);
            }
            RDMA_CM_EVENT_DEVICE_REMOVAL => self.removed(),
            RDMA_CM_EVENT_ADDR_ERROR
            | RDMA_CM_EVENT_ROUTE_ERROR
            | RDMA_CM_EVENT_CONNECT_ERROR
            | RDMA_CM_EVENT_UNREACHABLE => {
                let (status, words) = reason(event.kind, event.status);
                self.lost(number, status, &words);
            }
            RDMA_CM_EVENT_REJECTED => self.rejected(number, event.status, &event.private),
            // `RDMA_CM_EVENT_ESTABLISHED`: the first frame shows this, too. `RDMA_CM_EVENT_TIMEWAIT_EXIT`: no state depends on it.
            _ => {}
        }
    }

    /// Handles a connection request.
    fn connection_requested(&mut self, id: Id, private: &[u8]) {
        let here = (self.domain.name.device.clone(), self.domain.name.port);
        if self.broken.is_some() || id.device(device_name) != Some(here) {
            return id.reject(b"");
        }
        let mut nonce = [0; 32];
        if random(&mut nonce).is_err() {
            return id.reject(b"");
        }
        let mut acceptor = Acceptor::new(self.key.clone(), nonce);
        let begun = private.get(..acceptor.expects()).map(|start| acceptor.receive(start));
        let challenge = acceptor.output().to_vec();
        if !matches!(begun, Some(Ok(None))) || challenge.is_empty() {
            self.unproven += 1;
            return id.reject(&challenge); // the peer reports a version mismatch from these bytes
        }
        acceptor.sent(challenge.len());
        let half_open =
            self.wires.iter().filter_map(|(number, w)| Some((*number, w.silent_since?)));
        match half_open::room(half_open, Instant::now()) {
            Room::Free => {}
            Room::Of(silent) => self.abort(silent),
            Room::Full => return id.reject(FULL),
        }
        let number = self.number();
        let _ = self.ids.insert(id.key(), number);
        let wire = Wire::new(id, Phase::Accepting(acceptor), Instant::now() + HANDSHAKE_TIMEOUT);
        let _ = self.wires.insert(number, wire);
        let accepted = self.prepare(number).and_then(|qpn| {
            let wire = self.wires.get_mut(&number).ok_or(Status::Invalid)?;
            wire.connect(&self.domain.settings)?;
            wire.id.accept(qpn, &challenge)
        });
        if accepted.is_err() {
            if let Some(wire) = self.wires.get(&number) {
                wire.id.reject(b"");
            }
            self.destroy(number);
        }
    }

    /// Makes the queue pair of a connection.
    pub(super) fn prepare(&mut self, number: u64) -> Result<u32, Failure> {
        let needed = (self.wires.len() + 1) * COMPLETIONS + self.cleanup.stale();
        if needed > self.cq.capacity() {
            self.cq.resize(needed.next_power_of_two())?;
        }
        let wire = self.wires.get_mut(&number).ok_or(Status::Invalid)?;
        wire.prepare(number, &self.domain.pd, &self.cq, &mut self.receives)
    }

    /// Processes the identity and the proof of an incoming peer.
    pub(super) fn prove(&mut self, number: u64, mut bytes: &[u8]) {
        let Some(wire) = self.wires.get_mut(&number) else { return };
        let Phase::Accepting(acceptor) = &mut wire.phase else { return };
        wire.silent_since = Some(Instant::now());
        let mut hello = Ok(None);
        while let (false, Ok(None)) = (bytes.is_empty(), &hello) {
            let (now, rest) = bytes.split_at(acceptor.expects().min(bytes.len()));
            if now.is_empty() {
                break;
            }
            hello = acceptor.receive(now);
            bytes = rest;
        }
        let hello = match hello {
            Ok(None) => return, // the rest of the proof is in the next frame
            Ok(Some(hello)) => hello,
            Err(_) => {
                let refusal = acceptor.output().to_vec();
                self.unproven += 1;
                wire.put(Kind::Handshake, &refusal);
                return self.finish(number);
            }
        };
        let peer = hello.payload().to_vec();
        let known = hello.purpose == PURPOSE
            && hello.target == self.contact.target
            && peer != self.own
            && address::parse(&peer).is_ok();
        acceptor.answer(if known { Ok(()) } else { Err(tieline_net::Refusal::UnknownTarget) });
        let answer = acceptor.output().to_vec();
        wire.put(Kind::Handshake, &answer);
        if !known {
            return self.finish(number);
        }
        wire.phase = Phase::Up;
        (wire.silent_since, wire.deadline) = (None, None);
        self.pump(number);
        self.events.push_back(LinkEvent::Up { link: number, peer, dial: None });
    }

    fn read_async_events(&mut self) {
        for event in self.sleep.async_events() {
            if event.kind == IBV_EVENT_DEVICE_FATAL {
                self.removed();
            }
        }
    }

    /// Runs the timers.
    fn slow_progress(&mut self, now: Instant) {
        self.read_async_events();
        let failure = self.domain.settings.failure;
        let late: Vec<u64> = self
            .wires
            .iter()
            .filter(|(_, wire)| {
                wire.deadline.is_some_and(|deadline| deadline <= now)
                    || wire.has_outstanding() && now - wire.progress >= failure
            })
            .map(|(number, _)| *number)
            .collect();
        self.try_again(now);
        for number in late {
            match self.wires.get(&number).map(|wire| &wire.phase) {
                Some(Phase::Finishing | Phase::Accepting(_)) => self.abort(number),
                _ => self.lost(number, Status::TimedOut, "there was no answer in time"),
            }
        }
    }

    /// Closes a connection that is not in use, without waiting for outstanding frames.
    fn abort(&mut self, number: u64) {
        match self.wires.get(&number).map(|wire| &wire.phase) {
            Some(Phase::Finishing) => self.events.push_back(LinkEvent::Finished { link: number }),
            _ => self.unproven += 1,
        }
        self.destroy(number);
    }

    fn removed(&mut self) {
        let words = format!("the device {} was removed", self.domain.name.device);
        self.fail_all(Status::NoDevice, &words);
    }

    /// Fails all connections and makes the connector unusable.
    fn fail_all(&mut self, status: Status, words: &str) {
        if self.broken.is_some() {
            return;
        }
        self.broken = Some(words.to_string());
        let mut numbers: Vec<u64> = self.wires.keys().copied().collect();
        numbers.sort_unstable();
        for number in numbers {
            self.lost(number, status, words);
        }
        self.listeners.clear();
    }

    /// Handles the end of a connection: queues the event for it, or continues the dial to which it belonged.
    pub(super) fn lost(&mut self, number: u64, status: Status, words: &str) {
        let Some(wire) = self.wires.get(&number) else { return };
        let dial = match &wire.phase {
            Phase::Dialling { dial, .. } => Some(*dial),
            _ => None,
        };
        let event = match &wire.phase {
            Phase::Up => Some(LinkEvent::Lost { link: number, status, words: words.to_string() }),
            Phase::Finishing => Some(LinkEvent::Finished { link: number }),
            _ => None,
        };
        self.destroy(number);
        self.events.extend(event);
        if let Some(dial) = dial {
            self.failed(dial, status, words);
        }
    }

    /// Closes a connection and releases its buffers.
    pub(super) fn destroy(&mut self, number: u64) {
        let Some(wire) = self.wires.remove(&number) else { return };
        let _ = self.ids.remove(&wire.id.key());
        let _ = self.waiting.remove(&number);
        wire.close(&mut self.sends, &mut self.receives, &mut self.cleanup);
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next = (self.next + 1) & 0x3fff_ffff;
        self.next
    }

    /// Sends a goodbye on the given connections, and waits up to `timeout` for the other sides' devices to acknowledge it.
    pub(super) fn say_goodbye(&mut self, links: &[u64], timeout: Duration) {
        for &link in links {
            self.note(link, Note::Gone);
        }
        let until = Instant::now() + timeout;
        while links.iter().any(|link| self.wires.get(link).is_some_and(|w| !w.is_quiet())) {
            self.drain();
            if Instant::now() >= until {
                return;
            }
            std::thread::yield_now();
        }
    }
}

impl Links for Wires {
    fn dial(&mut self, peer: &[u8]) -> u64 {
        self.begin(peer)
    }

    fn has_room(&self, link: u64) -> bool {
        self.wires.get(&link).is_some_and(|w| w.has_room() && w.credits.allows(Weight::Data))
    }

    fn unreachable(&self) -> &'static str {
        "the peer cannot be reached"
    }

    fn when(&self, phase: datagrams::Phase) -> String {
        let closes = phase != datagrams::Phase::Open;
        if closes { " while the connection closes".into() } else { String::new() }
    }

    fn send(&mut self, link: u64, datagram: &[u8]) {
        if let Some(wire) = self.wires.get_mut(&link) {
            for (kind, payload) in frame::cut(datagram) {
                wire.put(kind, payload);
            }
            wire.full = true; // the sender waits for an `LinkEvent::Room`
            self.pump(link);
        }
    }

    fn note(&mut self, link: u64, note: Note) {
        if let Some(wire) = self.wires.get_mut(&link) {
            wire.put(Kind::Note(note), b"");
            self.pump(link);
        }
    }

    fn close(&mut self, link: u64) {
        self.destroy(link);
    }

    fn finish(&mut self, link: u64) {
        let Some(wire) = self.wires.get_mut(&link) else { return };
        wire.phase = Phase::Finishing;
        wire.deadline = Some(Instant::now() + FINISH_TIMEOUT);
        self.pump(link);
        if self.wires.get(&link).is_some_and(Wire::is_quiet) {
            self.destroy(link);
            self.events.push_back(LinkEvent::Finished { link });
        }
    }
}
