//! Making, using and closing circuits.

use super::{Circuit, State, end};
use crate::address::WorkerAddress;
use crate::endpoint::flush::ask_for;
use crate::endpoint::{EndpointState, ModulePair, Owner, Posted};
use crate::interface::{InterfaceSlot, LaneLimits};
use crate::shared::End;
use crate::wireup::{Claim, ConnectionKey};
use crate::worker::arrivals::speaks_of_peer;
use crate::worker::wireup_transports::WireupTransport;
use crate::worker::{WorkerState, abi};
use crate::{Error, PeerId, Status};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use tieline_host::abi::events::BATCH;
use tieline_host::abi::{OwnedEndpoint, RawEndpoint};
use tieline_order::Kind;
use tieline_order::held::Through;

/// The number of closed circuits whose numbers are not reused yet. It exceeds the length of a batch of events.
const RESTING: usize = 4 * BATCH;

/// The time in ns for which a route to a peer is tried last after a failure, and the maximum number of such routes.
const AVOIDED_FOR: u64 = 60_000_000_000;
const AVOIDED: usize = 4096;

/// Returns the name that both sides use for the two modules of a connection: the module of the worker with the lower id comes
/// first.
pub(super) fn module_text(
    slot: &InterfaceSlot,
    me: &[u8; 16],
    peer: &WorkerAddress,
    there: usize,
) -> String {
    let candidate = &peer.entry.candidates[there];
    let mine = format!("{}/{}", slot.domain, slot.module);
    let theirs = format!("{}/{}", candidate.domain, candidate.module);
    let provider = &slot.provider.name;
    if *me < peer.entry.worker {
        format!("{provider}|{mine}|{theirs}")
    } else {
        format!("{provider}|{theirs}|{mine}")
    }
}

impl WorkerState {
    /// Returns the provider endpoint of a circuit for `endpoint` over `pair`, and the circuit's limits. Begins to form the circuit
    /// if none exists. `Again`: the circuit is being formed, and the endpoint continues when the circuit is connected.
    pub(crate) fn wire(
        self: Rc<Self>,
        endpoint: &EndpointState,
        pair: ModulePair,
    ) -> Result<(RawEndpoint, LaneLimits), Error> {
        let peer = endpoint.address.entry.worker;
        let known = self.wiring.by_user.borrow().get(&(endpoint.index, pair.interface)).copied();
        if let Some(number) = known {
            return self.circuit_state(number);
        }
        let user =
            self.endpoint_at(endpoint.index).ok_or_else(|| Error::from_status(Status::Closed))?;
        if peer == self.shared.id {
            let number = self.circuit_to_ourselves(&endpoint.address, pair)?;
            self.ask_for_the_gone(number, endpoint)?;
            self.add_user(number, &user);
            return self.circuit_state(number);
        }
        let slot = &self.shared.interfaces[pair.interface];
        let module = module_text(slot, &self.shared.id, &endpoint.address, pair.candidate);
        if endpoint.owner != Owner::Application {
            // Replies use any existing circuit, preferably the peer's newest one.
            let known = self.newest_circuit(peer, &module);
            if let Some(number) = known {
                self.ask_for_the_gone(number, endpoint)?;
                self.add_user(number, &user);
                return self.circuit_state(number);
            }
        }
        let transport = self.choose_transport(&endpoint.address, pair.interface, pair.candidate)?;
        let identity = self.identity_to_carry()?;
        let claim = {
            let mut machine = self.wiring.machine.borrow_mut();
            machine.set_identity(identity);
            machine.connect(self.wiring.now(), peer, &module)
        };
        let number = match claim
            .map_err(|reason| self.reason(&endpoint.address, ("", None), &reason))?
        {
            Claim::Existing(key) => {
                // This side of the circuit may not have been made yet.
                self.carry_out();
                let number = self.wiring.by_key.borrow().get(&key).copied();
                let number = number.ok_or_else(|| Error::from_status(Status::Again))?;
                if let Err(no_room) = self.ask_for_the_gone(number, endpoint) {
                    self.wiring.machine.borrow_mut().unclaim(&key);
                    return Err(no_room);
                }
                number
            }
            Claim::New(key) => {
                let address = Rc::new(endpoint.address.clone());
                match self.new_circuit(Some(key.clone()), pair, address, Some(transport)) {
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
        self.circuit_state(number)
    }

    /// Checks whether this endpoint's circuit over an interface is being formed.
    pub(crate) fn circuit_forms(&self, endpoint: &EndpointState, interface: usize) -> bool {
        let number = self.circuit_over(endpoint, interface);
        let circuits = self.wiring.circuits.borrow();
        let circuit = number.and_then(|number| circuits.get(&number));
        circuit.is_some_and(|circuit| matches!(circuit.state, State::Forming))
    }

    /// Returns the circuit that an endpoint uses over an interface.
    pub(crate) fn circuit_over(&self, endpoint: &EndpointState, interface: usize) -> Option<u64> {
        self.wiring.by_user.borrow().get(&(endpoint.index, interface)).copied()
    }

    /// Checks whether another endpoint uses the same circuit over an interface.
    pub(crate) fn is_shared(&self, endpoint: &EndpointState, interface: usize) -> bool {
        let number = self.circuit_over(endpoint, interface);
        let circuits = self.wiring.circuits.borrow();
        let circuit = number.and_then(|number| circuits.get(&number));
        let lives = |user: &&Weak<EndpointState>| user.strong_count() > 0;
        circuit.is_some_and(|circuit| circuit.users.iter().filter(lives).count() > 1)
    }

    /// Notes before an endpoint is dropped that no flush has checked its operations on a circuit, and flushes the circuit.
    pub(crate) fn leave_unasked(&self, number: u64, endpoint: &EndpointState) {
        if let Some(circuit) = self.wiring.circuits.borrow_mut().get_mut(&number) {
            circuit.unasked = true;
        }
        // If the circuit does not accept the flush at present, its next user flushes it.
        let _ = self.ask_for_the_gone(number, endpoint);
    }

    /// Returns the circuits that an endpoint uses.
    pub(crate) fn circuits_of(&self, endpoint: &EndpointState) -> Vec<u64> {
        let (first, last) = ((endpoint.index, 0), (endpoint.index, usize::MAX));
        self.wiring.by_user.borrow().range(first..=last).map(|(_, number)| *number).collect()
    }

    /// Abandons the circuits of a failed endpoint unless other endpoints use them.
    pub(crate) fn end_circuits(self: Rc<Self>, endpoint: &EndpointState, error: &Error) {
        let mut keys = Vec::new();
        for number in self.circuits_of(endpoint) {
            let mut circuits = self.wiring.circuits.borrow_mut();
            let Some(circuit) = circuits.get_mut(&number) else { continue };
            let used = circuit.users.iter().filter_map(Weak::upgrade).any(|user| user.is_alive());
            if !used && !matches!(circuit.state, State::Dead(_)) {
                circuit.state = State::Dead(error.clone());
                keys.extend(circuit.key.clone());
            }
        }
        for key in keys {
            self.wiring.machine.borrow_mut().close(self.wiring.now(), &key);
            self.carry_out();
            let _ = self.wiring.by_key.borrow_mut().remove(&key);
        }
    }

    /// Releases the dead circuits of an endpoint whose packer has returned; an endpoint keeps its circuits while its packer runs.
    pub(crate) fn drop_dead_circuits_of(&self, endpoint: &EndpointState) {
        let mut circuits = self.circuits_of(endpoint);
        circuits.retain(|number| {
            let all = self.wiring.circuits.borrow();
            all.get(number).is_some_and(|circuit| matches!(circuit.state, State::Dead(_)))
        });
        circuits.into_iter().for_each(|number| self.drop_failed(number));
    }

    /// Releases the circuits of a dropped endpoint; usable circuits stay for the next endpoint.
    pub(crate) fn release_circuits(&self, endpoint: &EndpointState) {
        let at = std::ptr::from_ref(endpoint);
        let numbers = self.circuits_of(endpoint);
        for interface in 0..self.shared.interfaces.len() {
            let _ = self.wiring.by_user.borrow_mut().remove(&(endpoint.index, interface));
        }
        for number in numbers {
            // If the circuit does not accept the flush at present, its next user flushes it.
            let _ = self.ask_for_the_gone(number, endpoint);
            let key = {
                let mut circuits = self.wiring.circuits.borrow_mut();
                let Some(circuit) = circuits.get_mut(&number) else { continue };
                circuit.users.retain(|user| user.as_ptr() != at && user.strong_count() > 0);
                match circuit.state {
                    _ if !circuit.users.is_empty() => continue,
                    State::Dead(_) => None,
                    _ => Some((circuit.key.clone(), circuit.pair.interface)),
                }
            };
            match key {
                None => self.drop_circuit(number),
                Some((Some(key), _)) => self.wiring.machine.borrow_mut().unclaim(&key),
                Some((None, interface)) => {
                    let _ = self.wiring.to_take.borrow_mut().insert((interface, number));
                }
            }
        }
    }
}

impl WorkerState {
    /// Flushes a circuit for operations that a dropped endpoint has left on the circuit. A circuit reports each failure once, to
    /// the next flush, and the failure of such a put must not reach another endpoint. `Again`: the circuit does not accept the
    /// flush at present.
    fn ask_for_the_gone(&self, number: u64, by: &EndpointState) -> Result<(), Error> {
        let found = self.wiring.circuits.borrow().get(&number).and_then(|circuit| {
            let stands = matches!(circuit.state, State::Ready);
            (stands && circuit.unasked).then_some((circuit.pair.interface, circuit.owned.get()))
        });
        let Some((interface, raw)) = found else { return Ok(()) };
        if self.shared.interfaces[interface].check_in_use().is_err() {
            return Ok(());
        }
        let ask = self.shared.ops.borrow_mut().open_late(by.index, Kind::Native)?;
        let posted = by.posted(ask, interface, raw.flush(ask.raw()), 0);
        match posted {
            Ok(Posted::Pending) => {
                let all = self.all_endpoints();
                ask_for(&self.shared, all.iter(), ask, interface, &raw);
                self.shared.orphan_one(ask, interface, number);
            }
            // The users of the circuit get its error.
            _ => self.shared.with_ops(|ops| ops.withdraw(ask)),
        }
        if matches!(posted, Ok(Posted::NoRoom)) {
            return Err(Error::from_status(Status::Again));
        }
        if let Some(circuit) = self.wiring.circuits.borrow_mut().get_mut(&number) {
            circuit.unasked = false;
        }
        Ok(())
    }

    /// Returns the newest circuit to a peer that is ready, or else the newest one that is forming.
    fn newest_circuit(&self, peer: [u8; 16], module: &str) -> Option<u64> {
        let key = |n| ConnectionKey { peer, module: module.into(), n };
        let by_key = self.wiring.by_key.borrow();
        let circuits = self.wiring.circuits.borrow();
        let all = || by_key.range(key(0)..=key(u32::MAX)).rev().map(|(_, number)| *number);
        let state = |number: &u64| circuits.get(number).map(|circuit| &circuit.state);
        all()
            .find(|number| matches!(state(number), Some(State::Ready)))
            .or_else(|| all().find(|number| matches!(state(number), Some(State::Forming))))
    }

    /// Makes a provider endpoint and its circuit, and returns the circuit's number and the endpoint's address.
    pub(super) fn new_circuit(
        &self,
        key: Option<ConnectionKey>,
        pair: ModulePair,
        peer: Rc<WorkerAddress>,
        transport: Option<WireupTransport>,
    ) -> Result<(u64, Vec<u8>), Error> {
        let slot = &self.shared.interfaces[pair.interface];
        let number = self.new_number();
        let handle = match slot.interface.connect(&[], &[], number) {
            Ok(handle) => handle,
            Err(error) => {
                self.wiring.closed_circuits.borrow_mut().push_back(number);
                return Err(error);
            }
        };
        let owned = slot.interface.endpoint(handle);
        let address = match owned.get().address() {
            Ok(address) => address,
            Err(status) => {
                self.close_circuit(number, owned);
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
        let circuit = Circuit {
            key,
            pair,
            owned,
            limits: LaneLimits::from_module(&slot.attr),
            peer,
            state: State::Forming,
            transport,
            outbox: VecDeque::new(),
            users: Vec::new(),
            unasked: false,
            answers: None,
            trouble: String::new(),
            hopeless: None,
        };
        let _ = self.wiring.circuits.borrow_mut().insert(number, circuit);
        Ok((number, address))
    }

    /// Returns a free number. Numbers of closed circuits are reused later, so that tables indexed by number stay small.
    fn new_number(&self) -> u64 {
        let mut closed = self.wiring.closed_circuits.borrow_mut();
        if closed.len() > RESTING {
            if let Some(number) = closed.pop_front() {
                return number;
            }
        }
        let number = self.wiring.next_circuit.get();
        self.wiring.next_circuit.set(number + 1);
        number
    }

    /// Returns a circuit to this worker itself that no endpoint uses, or makes one. It needs no carrier for its address.
    fn circuit_to_ourselves(
        &self,
        address: &WorkerAddress,
        pair: ModulePair,
    ) -> Result<u64, Error> {
        while let Some(number) = self.wiring.one_to_take(pair.interface) {
            let dead = |circuit: &Circuit| matches!(circuit.state, State::Dead(_));
            if !self.wiring.circuits.borrow().get(&number).is_some_and(dead) {
                return Ok(number);
            }
            // The circuit died with a reply while no endpoint used it.
            self.drop_circuit(number);
        }
        let (number, bytes) = self.new_circuit(None, pair, Rc::new(address.clone()), None)?;
        let state = match self.bind_circuit(number, &bytes) {
            Ok(()) => State::Ready,
            Err((status, words)) => {
                self.close_unformed(number);
                State::Dead(self.circuit_error(address, status, &words))
            }
        };
        if let Some(circuit) = self.wiring.circuits.borrow_mut().get_mut(&number) {
            circuit.state = state;
        }
        Ok(number)
    }

    /// Connects a circuit's endpoint to the peer's, and requests the circuit's limits. A circuit whose limits are too small is not
    /// used.
    pub(super) fn bind_circuit(&self, number: u64, address: &[u8]) -> Result<(), (Status, String)> {
        let Some((_, raw)) = self.raw_of_circuit(number) else {
            return Err((Status::Closed, Status::Closed.text().into()));
        };
        let code = raw.connect(address);
        if code < 0 {
            let status = Status::from_code(code);
            return Err((status, status.text().into()));
        }
        self.ask_limits(number)
    }

    /// Requests the limits of a circuit's endpoint: when it is bound, and again when it is ready, because some providers determine
    /// the limits only then.
    pub(super) fn ask_limits(&self, number: u64) -> Result<(), (Status, String)> {
        let Some((interface, raw)) = self.raw_of_circuit(number) else { return Ok(()) };
        let limits = self.shared.interfaces[interface].limits(&raw);
        let limits = limits.map_err(|error| (error.status(), error.to_string()))?;
        if let Some(circuit) = self.wiring.circuits.borrow_mut().get_mut(&number) {
            circuit.limits = limits;
        }
        Ok(())
    }

    /// Closes the provider endpoint of a circuit that could not be formed. No data was sent over the circuit, and its peer must not
    /// wait for the circuit's end. The requester may still read the circuit's state.
    pub(super) fn close_unformed(&self, number: u64) {
        let owned = match self.wiring.circuits.borrow_mut().get_mut(&number) {
            Some(circuit) => std::mem::replace(&mut circuit.owned, OwnedEndpoint::nowhere()),
            None => return,
        };
        abi::close(owned);
    }

    /// Returns the interface of a circuit, and its provider endpoint.
    pub(in crate::worker) fn raw_of_circuit(&self, number: u64) -> Option<(usize, RawEndpoint)> {
        let circuits = self.wiring.circuits.borrow();
        circuits.get(&number).map(|circuit| (circuit.pair.interface, circuit.owned.get()))
    }

    /// Returns the name of a circuit for display.
    pub(in crate::worker) fn circuit_name(&self, number: u64) -> Option<String> {
        let circuits = self.wiring.circuits.borrow();
        let circuit = circuits.get(&number)?;
        let path = &self.shared.interfaces[circuit.pair.interface].path;
        Some(format!("{} through {path}", circuit.peer.label()))
    }

    /// Checks whether another circuit to a worker is connected, so that the worker counts as alive. If `status` concerns the peer
    /// itself, that circuit must be in another domain than this module, because other circuits of the same device may detect the
    /// failure late. Circuits of interfaces out of use do not count.
    pub(in crate::worker) fn stands_elsewhere(
        &self,
        worker: [u8; 16],
        slot: &InterfaceSlot,
        status: Status,
    ) -> bool {
        self.wiring.circuits.borrow().values().any(|circuit| {
            let other = &self.shared.interfaces[circuit.pair.interface];
            circuit.peer.entry.worker == worker
                && matches!(circuit.state, State::Ready)
                && (other.domain != slot.domain || !speaks_of_peer(status))
                && other.out_of_use.borrow().is_none()
        })
    }

    /// Returns the number of circuits of a peer that carry nothing: they are still forming, or have failed and are held.
    pub(in crate::worker) fn ways_that_stand_not(&self, peer: PeerId) -> u32 {
        let circuits = self.wiring.circuits.borrow();
        let of_it = circuits.iter().filter(|(number, circuit)| {
            let slot = &self.shared.interfaces[circuit.pair.interface];
            !matches!(circuit.state, State::Ready) && slot.peer(**number) == peer
        });
        u32::try_from(of_it.count()).unwrap_or(u32::MAX)
    }

    /// Returns the key of a route to a worker. All modules of one domain count as one route.
    pub(super) fn way(&self, worker: [u8; 16], interface: usize) -> ([u8; 16], usize) {
        let interfaces = &self.shared.interfaces;
        let domain = &interfaces[interface].domain;
        (worker, interfaces.iter().position(|slot| slot.domain == *domain).unwrap_or(interface))
    }

    /// Records that this route to a worker failed, so that it is tried last for a while. The number of records is bounded.
    pub(crate) fn avoid(&self, worker: [u8; 16], interface: usize) {
        let way = self.way(worker, interface);
        let now = self.wiring.now();
        let mut avoided = self.wiring.avoided.borrow_mut();
        if avoided.len() >= AVOIDED {
            avoided.retain(|_, until| *until > now);
        }
        if avoided.len() < AVOIDED {
            let _ = avoided.insert(way, now.saturating_add(AVOIDED_FOR));
        }
    }

    /// Returns the time until which this route to a worker is avoided after a failure; 0 if it is not avoided.
    pub(crate) fn avoided_until(&self, worker: [u8; 16], interface: usize) -> u64 {
        let avoided = self.wiring.avoided.borrow();
        if avoided.is_empty() {
            return 0;
        }
        let until = avoided.get(&self.way(worker, interface)).copied();
        until.filter(|until| *until > self.wiring.now()).unwrap_or(0)
    }

    fn circuit_state(&self, number: u64) -> Result<(RawEndpoint, LaneLimits), Error> {
        match self.wiring.circuits.borrow().get(&number) {
            Some(Circuit { state: State::Ready, owned, limits, .. }) => Ok((owned.get(), *limits)),
            Some(Circuit { state: State::Dead(error), .. }) => Err(error.clone()),
            Some(_) => Err(Error::from_status(Status::Again)),
            None => Err(Error::from_status(Status::Closed)),
        }
    }

    fn key_of(&self, number: u64) -> Option<ConnectionKey> {
        self.wiring.circuits.borrow().get(&number)?.key.clone()
    }

    pub(super) fn add_user(&self, number: u64, user: &Rc<EndpointState>) {
        if let Some(circuit) = self.wiring.circuits.borrow_mut().get_mut(&number) {
            let at = (user.index, circuit.pair.interface);
            let _ = self.wiring.by_user.borrow_mut().insert(at, number);
            if circuit.key.is_none() {
                let _ = self.wiring.to_take.borrow_mut().remove(&(at.1, number));
            }
            if !circuit.users.iter().any(|known| known.as_ptr() == Rc::as_ptr(user)) {
                circuit.users.push(Rc::downgrade(user));
            }
        }
    }

    pub(super) fn drop_circuit(&self, number: u64) {
        let circuit = self.wiring.circuits.borrow_mut().remove(&number);
        if let Some(mut circuit) = circuit {
            let error = circuit.error();
            let _ = self.wiring.to_take.borrow_mut().remove(&(circuit.pair.interface, number));
            self.shared.end_orphans(End::Circuit(number), &error);
            end(circuit.answers.take(), error);
            let slot = &self.shared.interfaces[circuit.pair.interface];
            let from = self.forget_number(slot, number);
            self.close_circuit(number, circuit.owned);
            self.may_have_left(from);
        }
    }

    /// Closes a circuit's provider endpoint. After this call the provider does not access memory of the circuit's operations, and
    /// the number may be reused later. The caller has ensured that no usable object has a copy of the endpoint.
    pub(super) fn close_circuit(&self, number: u64, owned: OwnedEndpoint) {
        abi::close(owned);
        let _ = self.wiring.waiting.borrow_mut().remove(&number);
        self.wiring.closed_circuits.borrow_mut().push_back(number);
        self.shared.provider_closed(Through::Circuit(number));
    }
}
