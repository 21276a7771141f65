//! Carrying out the actions of the wire-up machine.

use super::State;
use super::circuits::module_text;
use crate::address::WorkerAddress;
use crate::endpoint::ModulePair;
use crate::wireup::{Action, Claim, ConnectionKey, Reason, ReasonKind};
use crate::worker::WorkerState;
use crate::{Error, Status};
use std::rc::{Rc, Weak};

/// The maximum number of datagrams that one circuit keeps while its carrier does not accept them. Further datagrams are dropped;
/// the machine retransmits its messages.
const OUTBOX: usize = 8;

impl WorkerState {
    /// Carries out all actions of the machine.
    pub(super) fn carry_out(self: &Rc<Self>) {
        if !self.shared.same_process() {
            return; // a forked child does not act in its parent's name
        }
        loop {
            let action = self.wiring.machine.borrow_mut().take_action();
            match action {
                Some(action) => self.act(action),
                None => break,
            }
        }
        self.set_wiring_timer();
    }

    /// Sets the timer of wire-up to the earlier of the machine's next call and the next report of a doubtful failure.
    pub(in crate::worker) fn set_wiring_timer(&self) {
        let next = self.wiring.machine.borrow().next_timer().unwrap_or(u64::MAX);
        let doubted = self.doubted.borrow().iter().map(|doubt| doubt.until).min();
        self.wiring.timer.set(next.min(doubted.unwrap_or(u64::MAX)));
    }

    pub(super) fn act(self: &Rc<Self>, action: Action) {
        let now = self.wiring.now();
        match action {
            Action::Create { key, identity } => {
                let outcome = self.create_for_peer(&key, &identity);
                let mut machine = self.wiring.machine.borrow_mut();
                match outcome {
                    Ok(address) => machine.created(now, &key, &address),
                    Err(error) => machine.refused(now, &key, &identity, &error.to_string()),
                }
            }
            Action::Bind { key, address } => {
                let number = self.wiring.by_key.borrow().get(&key).copied();
                let bound = match number {
                    Some(number) => self.bind_circuit(number, &address),
                    None => Err((Status::Closed, Status::Closed.text().into())),
                };
                let outcome = bound.as_ref().copied().map_err(|(_, words)| words.as_str());
                self.wiring.machine.borrow_mut().bound(now, &key, outcome);
            }
            Action::Ready { key } => self.stands(&key),
            Action::Renumbered { from, to } => self.renumbered(&from, to),
            Action::Failed { key, reason } => self.wire_up_ended(&key, Some(&reason)),
            Action::Send { key, datagram } => {
                let number = self.wiring.by_key.borrow().get(&key).copied();
                if let Some(number) = number {
                    self.send_for(number, datagram);
                }
            }
            Action::Answer { identity, datagram } => {
                // The worker has no state for this connection, so a loss of the answer is harmless: the peer requests again.
                let Ok(peer) = WorkerAddress::parse(&identity) else { return };
                let slots =
                    self.shared.interfaces.iter().enumerate().filter(|(_, s)| s.to_endpoint);
                let ways = slots.flat_map(|(index, slot)| {
                    let theirs = peer.entry.candidates.iter().enumerate();
                    let reached = theirs.filter(|(_, c)| {
                        c.provider == slot.provider.name
                            && c.module == slot.module
                            && slot.interface.reachable(&c.address).is_ok()
                    });
                    reached.map(move |(there, _)| (index, there))
                });
                let mut transports = ways
                    .filter_map(|(index, there)| self.choose_transport(&peer, index, there).ok());
                if let Some(transport) = transports.next() {
                    let _ = self.send_datagram(&peer, &transport, &datagram);
                }
            }
        }
    }

    /// Replaces an unfinished connection, over which no data was sent, by another one.
    pub(super) fn renumbered(self: &Rc<Self>, from: &ConnectionKey, to: Claim) {
        let number = self.wiring.by_key.borrow_mut().remove(from);
        let old = number.and_then(|number| self.wiring.circuits.borrow_mut().remove(&number));
        let (Some(number), Some(old)) = (number, old) else { return };
        let _ = self.forget_number(&self.shared.interfaces[old.pair.interface], number);
        self.close_circuit(number, old.owned);
        let users: Vec<_> = old.users.iter().filter_map(Weak::upgrade).collect();
        for user in &users {
            let _ = self.wiring.by_user.borrow_mut().remove(&(user.index, old.pair.interface));
        }
        let now = self.wiring.now();
        let number = match to {
            Claim::Existing(key) => self.wiring.by_key.borrow().get(&key).copied(),
            Claim::New(key) => {
                let made = self.new_circuit(Some(key.clone()), old.pair, old.peer, old.transport);
                let mut machine = self.wiring.machine.borrow_mut();
                match made {
                    Ok((number, address)) => {
                        machine.created(now, &key, &address);
                        Some(number)
                    }
                    Err(error) => {
                        machine.not_created(now, &key, &error.to_string());
                        None
                    }
                }
            }
        };
        // Endpoints without a circuit request one again.
        for endpoint in users {
            if let Some(number) = number {
                self.add_user(number, &endpoint);
            }
            self.make_busy(&endpoint);
        }
    }

    /// Makes this side of a connection that the peer began.
    pub(super) fn create_for_peer(
        &self,
        key: &ConnectionKey,
        identity: &[u8],
    ) -> Result<Vec<u8>, Error> {
        let peer = WorkerAddress::parse(identity)?;
        let nonsense = |why: &str| {
            Error::new(Status::BadData, "a request for a connection that makes no sense", why, "")
        };
        if peer.entry.worker != key.peer {
            return Err(nonsense("its sender's address is another worker's"));
        }
        for (index, slot) in
            self.shared.interfaces.iter().enumerate().filter(|(_, s)| s.to_endpoint)
        {
            for there in 0..peer.entry.candidates.len() {
                if module_text(slot, &self.shared.id, &peer, there) != *key.module {
                    continue;
                }
                let theirs = &peer.entry.candidates[there].address;
                slot.interface.reachable(theirs).map_err(Error::from)?;
                let transport = self.choose_transport(&peer, index, there)?;
                let pair = ModulePair { interface: index, candidate: there };
                let made =
                    self.new_circuit(Some(key.clone()), pair, Rc::new(peer), Some(transport))?;
                return Ok(made.1);
            }
        }
        Err(nonsense(&format!("there is no module here that fits `{}`", key.module)))
    }

    /// Handles a connection that has become ready. The connection is used unless its limits, requested again, are too small.
    fn stands(self: &Rc<Self>, key: &ConnectionKey) {
        let number = self.wiring.by_key.borrow().get(key).copied();
        let limits = number.map_or(Ok(()), |number| self.ask_limits(number));
        let too_little = limits.err().map(|(_, text)| {
            self.wiring.machine.borrow_mut().close(self.wiring.now(), key);
            Reason { kind: ReasonKind::Rejected, text }
        });
        self.wire_up_ended(key, too_little.as_ref());
    }

    /// Handles a connection that has become ready, or that has failed finally.
    pub(super) fn wire_up_ended(self: &Rc<Self>, key: &ConnectionKey, reason: Option<&Reason>) {
        let number = self.wiring.by_key.borrow().get(key).copied();
        let Some(number) = number else { return };
        let (users, formed) = {
            let mut circuits = self.wiring.circuits.borrow_mut();
            let Some(circuit) = circuits.get_mut(&number) else { return };
            let formed = !matches!(circuit.state, State::Forming);
            circuit.outbox.clear();
            circuit.state = match reason {
                None => State::Ready,
                Some(reason) => {
                    let trouble = (&*circuit.trouble, circuit.hopeless);
                    State::Dead(self.reason(&circuit.peer, trouble, reason))
                }
            };
            match reason.map(|reason| reason.kind) {
                None => {
                    let (worker, interface) = (circuit.peer.entry.worker, circuit.pair.interface);
                    let _ = self.wiring.avoided.borrow_mut().remove(&self.way(worker, interface));
                    let peer = self.shared.interfaces[interface].peer(number);
                    self.peers.borrow_mut().stands(peer.0);
                    self.tell_name_to(peer.0);
                }
                Some(ReasonKind::TimedOut | ReasonKind::Transport) => {
                    self.avoid(circuit.peer.entry.worker, circuit.pair.interface);
                }
                Some(_) => {}
            }
            (circuit.everybody(), formed)
        };
        if reason.is_some() {
            let _ = self.wiring.by_key.borrow_mut().remove(key);
            if !formed {
                self.close_unformed(number);
            }
        }
        for endpoint in &users {
            self.make_busy(endpoint);
        }
        if reason.is_some() {
            self.end_answers(number);
            self.drop_unused(number);
        }
    }

    pub(super) fn send_for(&self, number: u64, datagram: Vec<u8>) {
        let found = {
            let circuits = self.wiring.circuits.borrow();
            let Some(circuit) = circuits.get(&number) else { return };
            circuit.transport.clone().map(|transport| (circuit.peer.clone(), transport))
        };
        let Some((peer, transport)) = found else { return };
        let sent = self.send_datagram(&peer, &transport, &datagram);
        let mut circuits = self.wiring.circuits.borrow_mut();
        let Some(circuit) = circuits.get_mut(&number) else { return };
        match sent {
            Ok(()) => {}
            Err(Status::Again) => {
                if circuit.outbox.len() < OUTBOX {
                    circuit.outbox.push_back(datagram);
                }
                let _ = self.wiring.waiting.borrow_mut().insert(number);
                self.shared.note_work();
            }
            Err(status) => {
                circuit.trouble = format!("{}: {}", self.transport_name(&transport), status.text());
            }
        }
    }
}
