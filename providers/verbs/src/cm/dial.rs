//! Outgoing connections. A dial tries the routes to a peer one after the other.

use super::abi::*;
use super::frame::Kind;
use super::half_open::FULL;
use super::sys::{Id, device_name};
use super::wire::{Phase, Wire, reason};
use super::wires::Wires;
use super::{PURPOSE, address};
use crate::wake::sys::random;
use std::collections::VecDeque;
use std::net::{SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};
use tieline_net::datagrams::LinkEvent;
use tieline_net::{Contact, Dialler, Hello, Key, Refusal, Route, routes};
use tieline_plugin_api::{Failure, Status};

/// The time limit for the kernel's address or route resolution.
const RESOLVE_MS: i32 = 2000;
/// The number of retries of a dial because the other host still holds an earlier connection.
const STALE: usize = 3;
/// The delay before the next request to a listener that refused one for lack of room.
const PAUSE: Duration = Duration::from_millis(250);

/// An outgoing connection attempt to a peer.
pub(super) struct Dial {
    peer: Vec<u8>,
    contact: Contact,
    routes: VecDeque<Route>,
    /// The failures of the routes tried so far.
    why: Vec<String>,
    status: Status,
    /// The number of retries of the current route because the peer's host held an earlier connection.
    stale: usize,
    /// The time of the next request; `Some` if the listener had no room.
    again_at: Option<Instant>,
    deadline: Instant,
}

impl Wires {
    /// Starts a dial and returns its number.
    pub(super) fn begin(&mut self, peer: &[u8]) -> u64 {
        let number = self.number();
        let begun = address::parse(peer).and_then(|contact| match &self.broken {
            Some(words) => Err(Failure::new(Status::NoDevice, words.clone())),
            None => routes(&self.local, &contact)
                .map(|routes| (contact, routes))
                .map_err(|why| Failure::new(Status::Unreachable, why)),
        });
        match begun {
            Ok((contact, routes)) => {
                let dial = Dial {
                    peer: peer.to_vec(),
                    contact,
                    routes: routes.into(),
                    why: Vec::new(),
                    status: Status::Unreachable,
                    stale: 0,
                    again_at: None,
                    deadline: Instant::now() + self.domain.settings.connect,
                };
                let _ = self.dials.insert(number, dial);
                self.try_next(number);
            }
            Err(Failure { status, text }) => {
                self.events.push_back(LinkEvent::DialFailed { dial: number, status, words: text });
            }
        }
        number
    }

    /// Tries the next route, or reports the failure.
    fn try_next(&mut self, number: u64) {
        loop {
            let Some(dial) = self.dials.get_mut(&number) else { return };
            let now = Instant::now();
            let goes_on = now < dial.deadline && self.broken.is_none();
            let route = dial.routes.pop_front().filter(|_| goes_on);
            let Some(route) = route else {
                if dial.why.is_empty() {
                    let late = "there was no time left (TIELINE_CONNECT_TIMEOUT)";
                    dial.why.push(self.broken.as_deref().unwrap_or(late).into());
                }
                let (status, words) = (dial.status, dial.why.join("; "));
                let _ = self.dials.remove(&number);
                return self.events.push_back(LinkEvent::DialFailed {
                    dial: number,
                    status,
                    words,
                });
            };
            // The remaining time is divided equally among the remaining routes.
            let share = (dial.deadline - now) / (dial.routes.len() as u32 + 1);
            if let Err(failure) = self.try_route(number, &route, now + share) {
                let Some(dial) = self.dials.get_mut(&number) else { return };
                dial.status = failure.status;
                dial.why.push(format!("{}: {}", route.remote, failure.text));
            } else {
                if let Some(dial) = self.dials.get_mut(&number) {
                    dial.routes.push_front(route); // the current route stays first while it is tried
                }
                return;
            }
        }
    }

    fn try_route(&mut self, number: u64, route: &Route, deadline: Instant) -> Result<(), Failure> {
        let invalid = |why: String| Failure::new(Status::Invalid, why);
        let dial = self.dials.get(&number).ok_or(Status::Invalid)?;
        let key = Key::derive(&self.secret, &dial.contact.cookie);
        let hello = Hello::new(PURPOSE, dial.contact.target, &self.own).map_err(invalid)?;
        let mut nonce = [0; 32];
        random(&mut nonce)?;
        let dialler = Dialler::new(key, &hello, nonce);
        let id = Id::new(&self.channel)?;
        if self.domain.settings.traffic_class != 0 {
            id.set_traffic_class(self.domain.settings.traffic_class)?;
        }
        id.resolve_address(source(route), route.remote, RESOLVE_MS)?;
        let link = self.number();
        let _ = self.ids.insert(id.key(), link);
        let wire =
            Wire::new(id, Phase::Dialling { dial: number, dialler, answered: false }, deadline);
        let _ = self.wires.insert(link, wire);
        Ok(())
    }

    /// Handles a step of the connection manager.
    pub(super) fn step(&mut self, link: u64, kind: u32, private: &[u8]) {
        let done = match kind {
            RDMA_CM_EVENT_ADDR_RESOLVED => self.address_resolved(link),
            RDMA_CM_EVENT_ROUTE_RESOLVED => self.route_resolved(link),
            _ => self.answered(link, private),
        };
        if let Err(failure) = done {
            self.lost(link, failure.status, &failure.text);
        }
    }

    fn address_resolved(&mut self, link: u64) -> Result<(), Failure> {
        let wire = self.wires.get(&link).ok_or(Status::Invalid)?;
        let (name, port) = wire.id.device(device_name).unwrap_or_default();
        let here = &self.domain.name;
        if (&name, port) != (&here.device, here.port) {
            let text =
                format!("the way there leaves from {name} port {port}, not from {}", here.words());
            return Err(Failure::new(Status::Unreachable, text));
        }
        wire.id.resolve_route(RESOLVE_MS)
    }

    fn route_resolved(&mut self, link: u64) -> Result<(), Failure> {
        let qpn = self.prepare(link)?;
        let wire = self.wires.get_mut(&link).ok_or(Status::Invalid)?;
        let Phase::Dialling { dialler, .. } = &mut wire.phase else { return Ok(()) };
        let start = dialler.output().to_vec();
        dialler.sent(start.len());
        wire.id.connect(qpn, &start)
    }

    /// Handles an acceptance of the other side: answers its challenge with the proof.
    fn answered(&mut self, link: u64, private: &[u8]) -> Result<(), Failure> {
        let wire = self.wires.get_mut(&link).ok_or(Status::Invalid)?;
        wire.connect(&self.domain.settings)?;
        wire.id.establish()?;
        let Phase::Dialling { dialler, answered, .. } = &mut wire.phase else { return Ok(()) };
        let challenge = private.get(..dialler.expects()).unwrap_or_default();
        let _ = dialler.receive(challenge).map_err(refused)?;
        let proof = dialler.output().to_vec();
        dialler.sent(proof.len());
        *answered = true;
        wire.put(Kind::Handshake, &proof);
        self.pump(link);
        Ok(())
    }

    /// Retries the dials whose listener had no room.
    pub(super) fn try_again(&mut self, now: Instant) {
        let due = |dial: &Dial| dial.again_at.is_some_and(|at| at <= now);
        let due: Vec<(u64, bool)> = self
            .dials
            .iter()
            .filter(|(_, dial)| due(dial))
            .map(|(number, dial)| (*number, now < dial.deadline))
            .collect();
        for (number, in_time) in due {
            if let Some(dial) = self.dials.get_mut(&number) {
                dial.again_at = None;
            }
            match in_time {
                true => self.try_next(number),
                false => self.failed(number, Status::Unreachable, &Refusal::Busy.to_string()),
            }
        }
    }

    /// Handles a rejection, whose private data says whether the other side has no room or speaks another version.
    pub(super) fn rejected(&mut self, link: u64, status: i32, private: &[u8]) {
        if let (true, Some(Phase::Dialling { dial, .. })) =
            (private.starts_with(FULL), self.wires.get(&link).map(|w| &w.phase))
        {
            let number = *dial;
            self.destroy(link);
            if let Some(dial) = self.dials.get_mut(&number) {
                dial.again_at = Some(Instant::now() + PAUSE);
            }
            return;
        }
        let (mut status, mut words) = reason(RDMA_CM_EVENT_REJECTED, status);
        if let Some(Phase::Dialling { dialler, .. }) =
            self.wires.get_mut(&link).map(|w| &mut w.phase)
        {
            let said = private.get(..dialler.expects()).filter(|said| said.starts_with(b"TLN"));
            if let Some(Err(refusal)) = said.map(|said| dialler.receive(said)) {
                Failure { status, text: words } = refused(refusal);
            }
        }
        self.lost(link, status, &words);
    }

    /// Handles the other side's verdict on the proof of this side.
    pub(super) fn proven(&mut self, link: u64, bytes: &[u8]) {
        let Some(wire) = self.wires.get_mut(&link) else { return };
        let Phase::Dialling { dial, dialler, .. } = &mut wire.phase else { return };
        let number = *dial;
        let now = &bytes[..dialler.expects().min(bytes.len())];
        match dialler.receive(now) {
            Ok(true) => {
                wire.phase = Phase::Up;
                wire.deadline = None;
                if let Some(dial) = self.dials.remove(&number) {
                    let event = LinkEvent::Up { link, peer: dial.peer, dial: Some(number) };
                    self.events.push_back(event);
                }
            }
            Ok(false) => {}
            Err(refusal) => {
                let Failure { status, text } = refused(refusal);
                self.lost(link, status, &text);
            }
        }
    }

    /// Handles the failure of the current route: retries the route if the peer's host holds an earlier connection (up to `STALE`
    /// times), otherwise tries the next route.
    pub(super) fn failed(&mut self, number: u64, status: Status, words: &str) {
        let Some(dial) = self.dials.get_mut(&number) else { return };
        if status == Status::Busy && dial.stale < STALE {
            dial.stale += 1; // the retry uses a new queue pair with another number
        } else if let Some(route) = dial.routes.pop_front() {
            dial.status = status;
            dial.stale = 0;
            dial.why.push(format!("{} ({}): {words}", route.remote, route.why));
        }
        self.try_next(number);
    }
}

fn refused(refusal: Refusal) -> Failure {
    let status = match refusal {
        Refusal::WrongSecret => Status::Permission,
        Refusal::UnknownTarget => Status::PeerFailed,
        _ => Status::Unreachable,
    };
    Failure::new(status, refusal.to_string())
}

/// Returns the source address of a route, which binds the id to this device.
fn source(route: &Route) -> SocketAddr {
    match &route.local {
        Some(local) if local.scope_id != 0 => match local.ip {
            std::net::IpAddr::V6(ip) => SocketAddrV6::new(ip, 0, 0, local.scope_id).into(),
            ip => SocketAddr::new(ip, 0),
        },
        Some(local) => SocketAddr::new(local.ip, 0),
        // A remote address that belongs to this host.
        None => SocketAddr::new(route.remote.ip(), 0),
    }
}
