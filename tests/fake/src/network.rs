//! The state of all interfaces: messages in flight and registered memory. The module `operations` contains memory operations and
//! flushes.

mod operations;

pub(crate) use operations::{Kind, Op};

use crate::calls::{Act, Call, Rule, Slot, Verdict};
use crate::connector::Post;
use crate::sys::Piece;
use crate::world::Lane;
use std::collections::{BTreeMap, VecDeque};
use tieline_plugin_api::abi::{EndpointLimits, Event};
use tieline_plugin_api::caps::{SYNCHRONOUS, TAKES_REGIONS};
use tieline_plugin_api::{Events, Status, event, event_flags};

/// The random number generator of a world: xorshift.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        if bound == 0 { 0 } else { (self.0 >> 11) % bound }
    }

    fn per_mille_chance(&mut self, many: u32) -> bool {
        self.below(1000) < u64::from(many)
    }
}

pub(crate) struct Interface {
    pub(crate) lane: usize,
    pub(crate) open: bool,
    /// The number that the interface assigns to the next peer that connects.
    next_peer: u64,
    pub(crate) injected: VecDeque<Parcel>,
    /// The payloads that the events of the last poll point to. The payloads of the preceding poll have been overwritten.
    handed: Vec<Box<[u8]>>,
    grave: Vec<Box<[u8]>>,
    /// The pending flushes of all endpoints of the interface.
    flushes: Vec<operations::FlushAll>,
}

pub(crate) struct Parcel {
    kind: u32,
    id: u32,
    status: i32,
    peer: u64,
    header: u64,
    cookie: u64,
    payload: Box<[u8]>,
    due: u64,
}

pub(crate) struct Endpoint {
    pub(crate) interface: usize,
    pub(crate) to: usize,
    /// The endpoint to which this endpoint is connected, on a lane that connects endpoints.
    partner: Option<usize>,
    /// The number by which the target interface knows this peer.
    pub(crate) peer: u64,
    cookie: u64,
    pub(crate) open: bool,
    pub(crate) limits: EndpointLimits,
    pub(crate) packing: usize,
    failed: Option<Status>,
    /// The number of fences that were posted.
    epoch: u64,
    pub(crate) wire: VecDeque<Parcel>,
    pub(crate) ops: Vec<Op>,
    /// The number of operations that were accepted.
    taken: u64,
    /// The failures of operations that had completed locally, each with the number of its operation. The next flush after an
    /// operation reports the operation's failure, once.
    late: Vec<(u64, Status)>,
}

pub(crate) struct Memory {
    pub(crate) lane: usize,
    pub(crate) piece: Piece,
    pub(crate) access: u64,
}

pub(crate) struct State {
    pub(crate) lanes: Vec<Lane>,
    chance: Chance,
    tick: u64,
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) posts: Vec<Post>,
    pub(crate) memory: BTreeMap<u64, Memory>,
    next_memory: u64,
    /// The number of local pieces whose call named this registration.
    pub(crate) named: usize,
    pub(crate) keys: usize,
    pub(crate) lent: BTreeMap<u64, Box<[u8]>>,
    next_lent: u64,
    /// The released payloads, which were overwritten.
    grave: Vec<Box<[u8]>>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) calls: Vec<Call>,
    pub(crate) faults: Vec<String>,
    pub(crate) meanwhile: Option<fn()>,
}

/// The byte that overwrites memory whose lifetime has ended.
const GONE: u8 = 0xdd;
/// The partner of an endpoint that is not connected.
const NOWHERE: usize = usize::MAX;
const GRAVES: usize = 4096;

impl State {
    pub(crate) fn new(seed: u64, lanes: Vec<Lane>) -> State {
        State {
            lanes,
            chance: Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            tick: 0,
            interfaces: Vec::new(),
            endpoints: Vec::new(),
            posts: Vec::new(),
            memory: BTreeMap::new(),
            next_memory: 1,
            named: 0,
            keys: 0,
            lent: BTreeMap::new(),
            next_lent: 1,
            grave: Vec::new(),
            rules: Vec::new(),
            calls: Vec::new(),
            faults: Vec::new(),
            meanwhile: None,
        }
    }

    /// Decides the result of a call, and records the call unless it is an accepted poll.
    pub(crate) fn call(&mut self, lane: usize, mut call: Call) -> Verdict {
        let name = self.lanes[lane].name;
        let mut verdict = Verdict::Go;
        for rule in &mut self.rules {
            let fits = rule.slot == call.slot
                && rule.times > 0
                && rule.lane.is_none_or(|lane| lane == name)
                && rule.interface.is_none_or(|interface| interface == call.interface)
                && rule.id.is_none_or(|id| id == call.id);
            if !fits {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            rule.times = rule.times.saturating_sub(u64::from(rule.times != u64::MAX));
            verdict = Verdict::Act(rule.act);
            break;
        }
        let again = self.lanes[lane].again;
        if verdict == Verdict::Go
            && Slot::POSTING.contains(&call.slot)
            && self.chance.per_mille_chance(again)
        {
            verdict = Verdict::Act(Act::Refuse(Status::Again));
        }
        let lane = &self.lanes[lane];
        if verdict == Verdict::Go && matches!(call.slot, Slot::Put | Slot::PutNotify | Slot::Get) {
            let (declines, from) = (lane.declines, lane.declines_from);
            if call.len >= from || (declines > 0 && self.chance.per_mille_chance(declines)) {
                verdict = Verdict::Act(Act::Refuse(Status::Declined));
            }
        }
        call.refused = matches!(verdict, Verdict::Act(Act::Refuse(_) | Act::Panic));
        if !matches!(call.slot, Slot::Poll | Slot::Collect) || call.refused {
            self.calls.push(call);
        }
        verdict
    }

    pub(crate) fn fault(&mut self, what: impl Into<String>) {
        let what = what.into();
        if self.faults.len() < 64 && !self.faults.contains(&what) {
            self.faults.push(what);
        }
    }

    pub(crate) fn lane_of(&self, endpoint: usize) -> &Lane {
        &self.lanes[self.interfaces[self.endpoints[endpoint].interface].lane]
    }

    /// Returns the smaller of the limits of a lane and of one of its endpoints; 0 if neither has a limit.
    pub(crate) fn most(
        &self,
        endpoint: usize,
        of_lane: fn(&Lane) -> usize,
        of_endpoint: fn(&EndpointLimits) -> usize,
    ) -> usize {
        let both = [of_lane(self.lane_of(endpoint)), of_endpoint(&self.endpoints[endpoint].limits)];
        both.into_iter().filter(|most| *most != 0).min().unwrap_or(0)
    }

    fn soon(&mut self, most: u64) -> u64 {
        self.tick + self.chance.below(most + 1)
    }

    // ---- Interfaces and endpoints ----

    pub(crate) fn open_interface(&mut self, lane: usize) -> usize {
        self.interfaces.push(Interface {
            lane,
            open: true,
            // If peer numbers are far apart, the first number is not 0, because 0 also occurs on lanes with adjacent numbers.
            next_peer: self.lanes[lane].apart - 1,
            injected: VecDeque::new(),
            handed: Vec::new(),
            grave: Vec::new(),
            flushes: Vec::new(),
        });
        self.interfaces.len() - 1
    }

    pub(crate) fn close_interface(&mut self, interface: usize) {
        if self.endpoints.iter().any(|e| e.open && e.interface == interface) {
            self.fault("an interface was closed before its endpoints");
        }
        self.interfaces[interface].open = false;
        for at in 0..self.endpoints.len() {
            if self.endpoints[at].open && self.endpoints[at].to == interface {
                self.break_endpoint(at, Status::Closed, "the peer closed it");
            }
        }
    }

    pub(crate) fn connect(
        &mut self,
        interface: usize,
        to: usize,
        cookie: u64,
        who: &[u8],
    ) -> usize {
        let peer = self.interfaces[to].next_peer;
        self.interfaces[to].next_peer += self.lanes[self.interfaces[to].lane].apart;
        let endpoint = self.place(interface, to, peer, cookie);
        self.send(endpoint, event::PEER_ARRIVED, 0, 0, who);
        endpoint
    }

    pub(crate) fn begin(&mut self, interface: usize, cookie: u64) -> usize {
        self.place(interface, NOWHERE, 0, cookie)
    }

    fn place(&mut self, interface: usize, to: usize, peer: u64, cookie: u64) -> usize {
        self.endpoints.push(Endpoint {
            interface,
            to,
            partner: None,
            peer,
            cookie,
            open: true,
            limits: EndpointLimits::empty(),
            packing: 0,
            failed: None,
            epoch: 0,
            wire: VecDeque::new(),
            ops: Vec::new(),
            taken: 0,
            late: Vec::new(),
        });
        self.endpoints.len() - 1
    }

    pub(crate) fn bind(&mut self, endpoint: usize, to: usize) -> Result<(), Status> {
        self.usable(endpoint)?;
        let lane = |at: usize| self.interfaces[self.endpoints[at].interface].lane;
        if to >= self.endpoints.len() || lane(to) != lane(endpoint) {
            return Err(Status::BadData);
        }
        let (there, peer) = (self.endpoints[to].interface, self.endpoints[to].cookie);
        let bound = &mut self.endpoints[endpoint];
        (bound.to, bound.peer, bound.partner) = (there, peer, Some(to));
        Ok(())
    }

    pub(crate) fn close_endpoint(&mut self, endpoint: usize) {
        if !std::mem::replace(&mut self.endpoints[endpoint].open, false) {
            self.fault("an endpoint was closed twice");
        }
        if self.endpoints[endpoint].packing > 0 {
            self.fault("an endpoint was closed while it packs");
        }
        // After this line the world neither touches the application's memory nor reports completions of this endpoint.
        self.endpoints[endpoint].ops.clear();
        let at = self.endpoints[endpoint].interface;
        let of_it = |p: &Parcel| p.kind == event::ENDPOINT_FAILED && p.peer == endpoint as u64;
        self.interfaces[at].injected.retain(|parcel| !of_it(parcel));
        if self.endpoints[endpoint].failed.is_some() {
            return;
        }
        let Some(partner) = self.endpoints[endpoint].partner else {
            if self.endpoints[endpoint].to != NOWHERE {
                self.send(endpoint, event::PEER_LEFT, 0, 0, &[]);
            }
            return;
        };
        // The event follows the messages that were sent before.
        self.send(endpoint, event::ENDPOINT_FAILED, 0, 0, &[]);
        let cookie = self.endpoints[partner].cookie;
        if let Some(farewell) = self.endpoints[endpoint].wire.back_mut() {
            (farewell.status, farewell.cookie) = (Status::Closed as i32, cookie);
        }
    }

    pub(crate) fn hang_up(&mut self, interface: usize, peer: u64) {
        let of_peer = |e: &Endpoint| e.open && e.to == interface && e.peer == peer;
        if let Some(endpoint) = self.endpoints.iter().position(of_peer) {
            self.break_endpoint(endpoint, Status::Closed, "the peer hung up");
        }
    }

    pub(crate) fn peer_number(&self, from: usize, at: usize) -> Option<u64> {
        let found = self.endpoints.iter().rev().find(|e| e.interface == from && e.to == at);
        found.map(|endpoint| endpoint.peer)
    }

    fn break_endpoint(&mut self, endpoint: usize, status: Status, words: &str) {
        let (interface, cookie) = {
            let endpoint = &mut self.endpoints[endpoint];
            if endpoint.failed.replace(status).is_some() {
                return;
            }
            endpoint.wire.clear();
            (endpoint.interface, endpoint.cookie)
        };
        let (kind, number) = (event::ENDPOINT_FAILED, endpoint as u64);
        self.inject(interface, kind, 0, status as i32, number, 0, cookie, words.as_bytes());
    }

    pub(crate) fn break_endpoints(&mut self, from: usize, to: usize, status: Status, words: &str) {
        for at in 0..self.endpoints.len() {
            let endpoint = &self.endpoints[at];
            if endpoint.open && endpoint.interface == from && endpoint.to == to {
                self.break_endpoint(at, status, words);
            }
        }
    }

    // ---- Messages ----

    /// Puts a message on the wire of an endpoint, after the messages that were sent before.
    pub(crate) fn send(
        &mut self,
        endpoint: usize,
        kind: u32,
        id: u32,
        header: u64,
        payload: &[u8],
    ) {
        let due = self.soon(self.lane_of(endpoint).delay);
        let endpoint = &mut self.endpoints[endpoint];
        let (status, peer, payload) = (0, endpoint.peer, payload.into());
        endpoint.wire.push_back(Parcel { kind, id, status, peer, header, cookie: 0, payload, due });
    }

    pub(crate) fn on_the_way(&self, id: u32) -> Option<Vec<u8>> {
        let mut on_wires = self.endpoints.iter().flat_map(|endpoint| &endpoint.wire);
        on_wires.rfind(|parcel| parcel.id == id).map(|parcel| parcel.payload.to_vec())
    }

    pub(crate) fn usable(&mut self, endpoint: usize) -> Result<(), Status> {
        if !self.endpoints[endpoint].open {
            self.fault("a closed endpoint was used");
        }
        match self.endpoints[endpoint].failed {
            Some(status) => Err(status),
            None => Ok(()),
        }
    }

    pub(crate) fn connected(&mut self, endpoint: usize) -> Result<(), Status> {
        self.usable(endpoint)?;
        if self.endpoints[endpoint].to == NOWHERE { Err(Status::Again) } else { Ok(()) }
    }

    /// Checks whether an endpoint's messages can be delivered: on a lane that connects endpoints, the endpoint must be connected.
    fn has_ear(&self, from: &Endpoint) -> bool {
        let hears = |at: usize| self.endpoints[at].open && self.endpoints[at].to != NOWHERE;
        from.partner.is_none_or(hears)
    }

    #[allow(clippy::too_many_arguments)] // an event, field by field
    pub(crate) fn inject(
        &mut self,
        at: usize,
        kind: u32,
        id: u32,
        status: i32,
        peer: u64,
        header: u64,
        cookie: u64,
        payload: &[u8],
    ) {
        let (payload, due) = (payload.into(), 0);
        let parcel = Parcel { kind, id, status, peer, header, cookie, payload, due };
        self.interfaces[at].injected.push_back(parcel);
    }

    /// Delivers events that are due at an interface, up to the room and the lane's batch.
    pub(crate) fn poll(&mut self, interface: usize, events: &mut Events<'_>) {
        let lane = self.lanes[self.interfaces[interface].lane].clone();
        {
            let interface = &mut self.interfaces[interface];
            interface.grave = std::mem::take(&mut interface.handed);
            interface.grave.iter_mut().for_each(|bytes| bytes.fill(GONE));
        }
        self.step(interface);
        while events.room() > 0 && events.len() < lane.batch {
            if let Some(parcel) = self.interfaces[interface].injected.pop_front() {
                self.hand_out(interface, parcel, lane.lends, events);
                continue;
            }
            if self.chance.below(2) == 0 {
                if let Some(ended) = self.completion(interface) {
                    push_end(events, ended);
                    continue;
                }
            }
            let tick = self.tick;
            let due = |e: &Endpoint| {
                e.to == interface
                    && e.wire.front().is_some_and(|p| p.due <= tick)
                    && self.has_ear(e)
            };
            let waiting: Vec<usize> =
                (0..self.endpoints.len()).filter(|&at| due(&self.endpoints[at])).collect();
            if waiting.is_empty() {
                match self.completion(interface) {
                    Some(ended) => push_end(events, ended),
                    None => return,
                }
                continue;
            }
            let from = waiting[self.chance.below(waiting.len() as u64) as usize];
            if let Some(parcel) = self.endpoints[from].wire.pop_front() {
                self.hand_out(interface, parcel, lane.lends, events);
            }
        }
    }

    fn hand_out(&mut self, at: usize, parcel: Parcel, lends: bool, events: &mut Events<'_>) {
        let Parcel { kind, id, status, peer, header, mut cookie, payload, .. } = parcel;
        let (data, len) = (payload.as_ptr(), payload.len());
        let mut flags = 0;
        if lends && kind == event::MESSAGE {
            flags = event_flags::LENT;
            cookie = self.next_lent;
            self.next_lent += 1;
            let _ = self.lent.insert(cookie, payload);
        } else {
            self.interfaces[at].handed.push(payload);
        }
        let _ = events.push(Event {
            kind,
            id,
            status,
            flags,
            peer,
            header,
            data,
            len,
            cookie,
            ..Event::empty()
        });
    }

    pub(crate) fn release(&mut self, token: u64) {
        match self.lent.remove(&token) {
            Some(mut bytes) => {
                bytes.fill(GONE);
                self.grave.push(bytes);
                let many = self.grave.len().saturating_sub(GRAVES);
                drop(self.grave.drain(..many));
            }
            None => self.fault("a payload was given back that was not lent, or twice"),
        }
    }

    // ---- Memory ----

    pub(crate) fn register(&mut self, lane: usize, piece: Piece, access: u64) -> u64 {
        let number = self.next_memory;
        self.next_memory += 1;
        let _ = self.memory.insert(number, Memory { lane, piece, access });
        number
    }

    /// Records that a local piece names this registration. The name is a hint: only a lane that requests it may receive it, and the
    /// piece must lie in the registration.
    pub(crate) fn named_as(&mut self, lane: usize, number: u64, piece: Piece) {
        if number == 0 {
            return;
        }
        self.named += 1;
        let memory = self.memory.get(&number);
        if memory.is_none_or(|m| m.lane != lane || !piece.lies_in(m.piece)) {
            self.fault("a piece does not lie in the region that it carries");
        }
        let caps = self.lanes[lane].caps;
        if caps & TAKES_REGIONS == 0 || caps & SYNCHRONOUS != 0 {
            self.fault("a piece carries a region for a module that takes none");
        }
    }

    pub(crate) fn deregister(&mut self, number: u64) {
        let Some(gone) = self.memory.remove(&number) else { return };
        let mut used = false;
        for endpoint in self.endpoints.iter_mut().filter(|endpoint| endpoint.open) {
            if self.interfaces[endpoint.interface].lane != gone.lane {
                continue;
            }
            let touches = |op: &Op| op.pieces().iter().any(|piece| piece.meets(gone.piece));
            let before = endpoint.ops.len();
            endpoint.ops.retain(|op| !touches(op));
            used |= endpoint.ops.len() < before;
        }
        if used {
            self.fault("memory was given up while an operation had it");
        }
    }
}

/// Writes the completion event of an operation. A failed operation has an error text and a device's error code, and a failed list the
/// index of its part.
fn push_end(events: &mut Events<'_>, (cookie, result, id): (u64, Result<u64, Status>, u32)) {
    let Err(status) = result else {
        let _ = events.push_completion(cookie, result);
        return;
    };
    let (status, header) = (status as i32, crate::FAILED_CODE);
    let (data, len) = (crate::FAILED_WORDS.as_ptr(), crate::FAILED_WORDS.len());
    let kind = event::COMPLETION;
    let _ = events.push(Event { kind, id, status, header, data, len, cookie, ..Event::empty() });
}
