//! Lines are made, used and let go.

use super::{Line, State, end};
use crate::address::WorkerAddress;
use crate::endpoint::{Inner as EndpointInner, Lines, Owner, Way};
use crate::interface::InterfaceSlot;
use crate::op::held::Through;
use crate::registry::abi::RawEndpoint;
use crate::registry::abi::events::BATCH;
use crate::shared::End;
use crate::wireup::{Claim, ConnectionKey};
use crate::worker::carriers::Carrier;
use crate::worker::{Inner, abi};
use crate::{Error, Status};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

/// Numbers of closed lines that rest before they are used again: no batch of events is that long.
const RESTING: usize = 4 * BATCH;

/// How long a way to a peer that has failed is the last to be tried, ns, and how many such ways are kept in mind.
const AVOIDED_FOR: u64 = 60_000_000_000;
const AVOIDED: usize = 4096;

/// What both sides call the two modules of a connection: the one of the lower worker number first.
pub(super) fn module_text(
    slot: &InterfaceSlot,
    me: &[u8; 16],
    peer: &WorkerAddress,
    there: usize,
) -> String {
    let candidate = &peer.party.candidates[there];
    let mine = format!("{}/{}", slot.domain, slot.module);
    let theirs = format!("{}/{}", candidate.domain, candidate.module);
    let provider = &slot.provider.name;
    if *me < peer.party.worker {
        format!("{provider}|{mine}|{theirs}")
    } else {
        format!("{provider}|{theirs}|{mine}")
    }
}

impl Lines for Inner {
    fn wire(self: Rc<Self>, endpoint: &EndpointInner, way: Way) -> Result<RawEndpoint, Error> {
        let peer = endpoint.address.party.worker;
        let known = self.wiring.by_user.borrow().get(&(endpoint.index, way.interface)).copied();
        if let Some(number) = known {
            return self.line_state(number);
        }
        let user =
            self.endpoint_at(endpoint.index).ok_or_else(|| Error::from_status(Status::Closed))?;
        if peer == self.shared.id {
            let number = self.line_to_ourselves(&endpoint.address, way)?;
            self.add_user(number, &user);
            return self.line_state(number);
        }
        let slot = &self.shared.interfaces[way.interface];
        let module = module_text(slot, &self.shared.id, &endpoint.address, way.candidate);
        if endpoint.owner != Owner::Application {
            // Answers go through whatever line there is, best the one that the peer began last.
            let known = self.newest_line(peer, &module);
            if let Some(number) = known {
                self.add_user(number, &user);
                return self.line_state(number);
            }
        }
        let carrier = self.choose_carrier(&endpoint.address, way.interface, way.candidate)?;
        let identity = self.identity()?;
        let claim = {
            let mut machine = self.wiring.machine.borrow_mut();
            machine.set_identity(identity);
            machine.connect(self.wiring.now(), peer, &module)
        };
        let number = match claim
            .map_err(|reason| self.reason(&endpoint.address, ("", None), &reason))?
        {
            Claim::Existing(key) => {
                // It may be that our side of it is still to be made.
                self.carry_out();
                let number = self.wiring.by_key.borrow().get(&key).copied();
                number.ok_or_else(|| Error::from_status(Status::Again))?
            }
            Claim::New(key) => {
                let address = Rc::new(endpoint.address.clone());
                match self.new_line(Some(key.clone()), way, address, Some(carrier)) {
                    Ok((number, bytes)) => {
                        let now = self.wiring.now();
                        self.wiring.machine.borrow_mut().created(now, &key, &bytes);
                        number
                    }
                    Err(error) => {
                        let now = self.wiring.now();
                        self.wiring.machine.borrow_mut().not_created(now, &key, &error.to_string());
                        self.carry_out();
                        return Err(error);
                    }
                }
            }
        };
        self.add_user(number, &user);
        if endpoint.owner != Owner::Application {
            if let Some(key) = self.key_of(number) {
                self.wiring.machine.borrow_mut().unclaim(&key);
            }
        }
        self.carry_out();
        self.line_state(number)
    }

    fn line_forms(&self, endpoint: &EndpointInner, interface: usize) -> bool {
        let number = self.line_over(endpoint, interface);
        let lines = self.wiring.lines.borrow();
        let line = number.and_then(|number| lines.get(&number));
        line.is_some_and(|line| matches!(line.state, State::Forming))
    }

    fn line_over(&self, endpoint: &EndpointInner, interface: usize) -> Option<u64> {
        self.wiring.by_user.borrow().get(&(endpoint.index, interface)).copied()
    }

    fn lines_of(&self, endpoint: &EndpointInner) -> Vec<u64> {
        let (first, last) = ((endpoint.index, 0), (endpoint.index, usize::MAX));
        self.wiring.by_user.borrow().range(first..=last).map(|(_, number)| *number).collect()
    }

    fn end_lines(self: Rc<Self>, endpoint: &EndpointInner, error: &Error) {
        let mut keys = Vec::new();
        for number in self.lines_of(endpoint) {
            let mut lines = self.wiring.lines.borrow_mut();
            let Some(line) = lines.get_mut(&number) else { continue };
            let used = line.users.iter().filter_map(Weak::upgrade).any(|user| user.is_alive());
            if !used && !matches!(line.state, State::Dead(_)) {
                line.state = State::Dead(error.clone());
                keys.extend(line.key.clone());
            }
        }
        for key in keys {
            self.wiring.machine.borrow_mut().close(self.wiring.now(), &key);
            self.carry_out();
            let _ = self.wiring.by_key.borrow_mut().remove(&key);
        }
    }

    fn drop_dead_lines_of(&self, endpoint: &EndpointInner) {
        let mut lines = self.lines_of(endpoint);
        lines.retain(|number| {
            let all = self.wiring.lines.borrow();
            all.get(number).is_some_and(|line| matches!(line.state, State::Dead(_)))
        });
        lines.into_iter().for_each(|number| self.drop_failed(number));
    }

    fn release_lines(&self, endpoint: &EndpointInner) {
        let at = std::ptr::from_ref(endpoint);
        let numbers = self.lines_of(endpoint);
        for interface in 0..self.shared.interfaces.len() {
            let _ = self.wiring.by_user.borrow_mut().remove(&(endpoint.index, interface));
        }
        for number in numbers {
            let key = {
                let mut lines = self.wiring.lines.borrow_mut();
                let Some(line) = lines.get_mut(&number) else { continue };
                line.users.retain(|user| user.as_ptr() != at && user.strong_count() > 0);
                match line.state {
                    _ if !line.users.is_empty() => continue,
                    State::Dead(_) => None,
                    _ => Some(line.key.clone()),
                }
            };
            match key {
                None => self.drop_line(number),
                Some(Some(key)) => self.wiring.machine.borrow_mut().unclaim(&key),
                Some(None) => {} // to ourselves
            }
        }
    }
}

impl Inner {
    /// The last of the lines to a peer that stand, or that form.
    fn newest_line(&self, peer: [u8; 16], module: &str) -> Option<u64> {
        let key = |n| ConnectionKey { peer, module: module.into(), n };
        let by_key = self.wiring.by_key.borrow();
        let lines = self.wiring.lines.borrow();
        let all = || by_key.range(key(0)..=key(u32::MAX)).rev().map(|(_, number)| *number);
        let state = |number: &u64| lines.get(number).map(|line| &line.state);
        all()
            .find(|number| matches!(state(number), Some(State::Ready)))
            .or_else(|| all().find(|number| matches!(state(number), Some(State::Forming))))
    }

    /// Makes a provider endpoint and its line; returns the line's number and the endpoint's address.
    pub(super) fn new_line(
        &self,
        key: Option<ConnectionKey>,
        way: Way,
        peer: Rc<WorkerAddress>,
        carrier: Option<Carrier>,
    ) -> Result<(u64, Vec<u8>), Error> {
        let slot = &self.shared.interfaces[way.interface];
        let number = self.new_number();
        let handle = match slot.interface.connect(&[], &[], number) {
            Ok(handle) => handle,
            Err(error) => {
                self.wiring.closed_lines.borrow_mut().push_back(number);
                return Err(error);
            }
        };
        let raw = slot.interface.endpoint(handle);
        let address = match raw.address() {
            Ok(address) => address,
            Err(status) => {
                self.close_line(number, raw);
                return Err(Error::new(
                    status,
                    format!("an endpoint of {} has no address", slot.path),
                    slot.provider.last_error(),
                    "",
                ));
            }
        };
        self.note_peer(slot, number, self.peer_number(&peer));
        if let Some(key) = &key {
            let _ = self.wiring.by_key.borrow_mut().insert(key.clone(), number);
        }
        let line = Line {
            key,
            way,
            raw,
            peer,
            state: State::Forming,
            carrier,
            outbox: VecDeque::new(),
            users: Vec::new(),
            answers: None,
            trouble: String::new(),
            hopeless: None,
        };
        let _ = self.wiring.lines.borrow_mut().insert(number, line);
        Ok((number, address))
    }

    /// A number that no line has. Those of closed lines come back, so that what is kept by number stays small.
    fn new_number(&self) -> u64 {
        let mut closed = self.wiring.closed_lines.borrow_mut();
        if closed.len() > RESTING {
            if let Some(number) = closed.pop_front() {
                return number;
            }
        }
        let number = self.wiring.next_line.get();
        self.wiring.next_line.set(number + 1);
        number
    }

    /// A worker that writes to itself needs nobody to carry its address.
    fn line_to_ourselves(&self, address: &WorkerAddress, way: Way) -> Result<u64, Error> {
        let left = self.wiring.lines.borrow().iter().find_map(|(number, line)| {
            let free = line.key.is_none() && line.users.is_empty();
            (free && line.way.interface == way.interface).then_some(*number)
        });
        if let Some(number) = left {
            return Ok(number);
        }
        let (number, bytes) = self.new_line(None, way, Rc::new(address.clone()), None)?;
        let raw = self.wiring.lines.borrow().get(&number).map(|line| line.raw);
        let code = raw.map_or(0, |raw| raw.connect(&bytes));
        let state = match code {
            code if code < 0 => State::Dead(self.line_error(address, Status::from_code(code), "")),
            _ => State::Ready,
        };
        if let Some(line) = self.wiring.lines.borrow_mut().get_mut(&number) {
            line.state = state;
        }
        Ok(number)
    }

    /// The interface of a line, and its provider endpoint.
    pub(in crate::worker) fn raw_of_line(&self, number: u64) -> Option<(usize, RawEndpoint)> {
        let lines = self.wiring.lines.borrow();
        lines.get(&number).map(|line| (line.way.interface, line.raw))
    }

    /// What a person calls a line.
    pub(in crate::worker) fn line_name(&self, number: u64) -> Option<String> {
        let lines = self.wiring.lines.borrow();
        let line = lines.get(&number)?;
        let path = &self.shared.interfaces[line.way.interface].path;
        Some(format!("{} through {path}", line.peer.label()))
    }

    /// Whether another line to a worker stands, in another domain than this module's: then the worker lives. What is out of
    /// use stands as it was left, and says nothing.
    pub(in crate::worker) fn stands_elsewhere(
        &self,
        worker: [u8; 16],
        slot: &InterfaceSlot,
    ) -> bool {
        self.wiring.lines.borrow().values().any(|line| {
            let other = &self.shared.interfaces[line.way.interface];
            line.peer.party.worker == worker
                && matches!(line.state, State::Ready)
                && other.domain != slot.domain
                && other.out_of_use.borrow().is_none()
        })
    }

    /// This way to a worker failed: for a while it is tried after all others.
    pub(super) fn avoid(&self, worker: [u8; 16], interface: usize) {
        let now = self.wiring.now();
        let mut lost = self.wiring.lost.borrow_mut();
        if lost.len() >= AVOIDED {
            lost.retain(|_, until| *until > now);
        }
        if lost.len() < AVOIDED {
            let _ = lost.insert((worker, interface), now.saturating_add(AVOIDED_FOR));
        }
    }

    /// Until when this way to a worker is avoided, because it failed lately; 0 where it is not.
    pub(crate) fn avoided_until(&self, worker: [u8; 16], interface: usize) -> u64 {
        let until = self.wiring.lost.borrow().get(&(worker, interface)).copied();
        until.filter(|until| *until > self.wiring.now()).unwrap_or(0)
    }

    fn line_state(&self, number: u64) -> Result<RawEndpoint, Error> {
        match self.wiring.lines.borrow().get(&number) {
            Some(Line { state: State::Ready, raw, .. }) => Ok(*raw),
            Some(Line { state: State::Dead(error), .. }) => Err(error.clone()),
            Some(_) => Err(Error::from_status(Status::Again)),
            None => Err(Error::from_status(Status::Closed)),
        }
    }

    fn key_of(&self, number: u64) -> Option<ConnectionKey> {
        self.wiring.lines.borrow().get(&number)?.key.clone()
    }

    pub(super) fn add_user(&self, number: u64, user: &Rc<EndpointInner>) {
        if let Some(line) = self.wiring.lines.borrow_mut().get_mut(&number) {
            let at = (user.index, line.way.interface);
            let _ = self.wiring.by_user.borrow_mut().insert(at, number);
            if !line.users.iter().any(|known| known.as_ptr() == Rc::as_ptr(user)) {
                line.users.push(Rc::downgrade(user));
            }
        }
    }

    pub(super) fn drop_line(&self, number: u64) {
        let line = self.wiring.lines.borrow_mut().remove(&number);
        if let Some(mut line) = line {
            let error = line.error();
            self.shared.end_orphans(End::Line(number), &error);
            end(line.answers.take(), error);
            let _ = self.forget_number(&self.shared.interfaces[line.way.interface], number);
            self.close_line(number, line.raw);
        }
    }

    /// From here on no provider touches what was posted on it, and its number may be used again. Nothing that is alive has a
    /// copy of `raw`.
    pub(super) fn close_line(&self, number: u64, raw: RawEndpoint) {
        abi::close(raw);
        let _ = self.wiring.waiting.borrow_mut().remove(&number);
        self.wiring.closed_lines.borrow_mut().push_back(number);
        self.shared.provider_closed(Through::Line(number));
    }
}
