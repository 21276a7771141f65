//! The events of circuits: arriving datagrams, expired timers, failed carriers and failed circuits.

use super::{Sender, State};
use crate::address::WorkerAddress;
use crate::shared::End;
use crate::wireup::{self, ConnectionKey, Reason, ReasonKind};
use crate::worker::WorkerState;
use crate::worker::abi::{Polls, each_of};
use crate::worker::arrivals::remedy_for_status;
use crate::worker::wireup_transports::WireupTransport;
use crate::{Error, Status};
use std::rc::Rc;
use tieline_host::abi::events::payload;
use tieline_plugin_api::{address_hash, event};

impl WorkerState {
    /// Advances wire-up and services: handles the events of connectors and expired timers.
    pub(in crate::worker) fn poll_wiring(self: &Rc<Self>, polls: &mut Polls<'_>) -> usize {
        let mut count = 0;
        for index in 0..self.wiring.transports.connectors.len() {
            let slot = &self.wiring.transports.connectors[index];
            let polled = each_of(&slot.connector, polls, |event| match event.kind {
                event::DATAGRAM => {
                    let sender = Sender::At(event.header);
                    let _ = self.on_datagram(payload(event), sender);
                }
                event::PEER_LEFT => {
                    let words = String::from_utf8_lossy(payload(event)).into_owned();
                    let status = Status::from_code(event.status);
                    let hash = event.header;
                    self.transport_left(index, |to| address_hash(to) == hash, status, &words);
                }
                _ => self.bump(|c| c.malformed += 1),
            });
            match polled {
                Ok(events) => count += events,
                Err(Status::ProviderFailed) => self.connector_broke(index),
                Err(status) => {
                    let words = slot.provider.last_error();
                    self.shared
                        .core
                        .note(format!("{} does not work: {status}: {words}", slot.scheme));
                }
            }
        }
        if self.wiring.is_due() {
            self.wiring.machine.borrow_mut().tick(self.wiring.now());
            self.end_doubts();
            self.carry_out();
        }
        self.tick_services();
        count
    }

    /// Processes a datagram from any carrier, if its sender is entitled to its content.
    pub(crate) fn on_datagram(
        self: &Rc<Self>,
        datagram: &[u8],
        sender: Sender<'_>,
    ) -> Result<(), String> {
        let spoken = wireup::spoken(datagram).map_err(|malformed| malformed.to_string());
        let taken = spoken.and_then(|spoken| {
            self.check_sender(&spoken, sender)?;
            self.forget_trouble(&spoken.from);
            let now = self.wiring.now();
            let taken = self.wiring.machine.borrow_mut().receive(now, datagram);
            taken.map_err(|malformed| malformed.to_string())
        });
        self.carry_out();
        if taken.is_err() {
            self.bump(|c| c.malformed += 1);
        }
        taken
    }

    /// Clears the carrier errors of circuits to a worker, because a datagram of that worker has arrived.
    fn forget_trouble(&self, worker: &[u8; 16]) {
        let first = ConnectionKey { peer: *worker, module: "".into(), n: 0 };
        let by_key = self.wiring.by_key.borrow();
        let of_it = by_key.range(first..).take_while(|(key, _)| key.peer == *worker);
        let mut circuits = self.wiring.circuits.borrow_mut();
        for (_, number) in of_it {
            if let Some(circuit) = circuits.get_mut(number) {
                circuit.trouble.clear();
            }
        }
    }

    /// Handles a connector whose provider broke its contract: it forms no more connections.
    #[cold]
    fn connector_broke(self: &Rc<Self>, index: usize) {
        let slot = &self.wiring.transports.connectors[index];
        if slot.broke.replace(true) {
            return;
        }
        if let Some(fd) = slot.watched {
            self.poller.remove(fd);
        }
        let words = slot.provider.poisoned_by();
        self.shared.core.note(format!("{} is not used any more: {words}", slot.scheme));
        self.transport_left(index, |_| true, Status::ProviderFailed, &words);
        // The provider may have interfaces as well.
        self.take_out_broken();
    }

    /// Handles a route to these addresses that failed or never existed.
    fn transport_left(
        self: &Rc<Self>,
        connector: usize,
        there: impl Fn(&[u8]) -> bool,
        status: Status,
        words: &str,
    ) {
        // With these statuses a retry would probably have the same result, or is the application's decision.
        let hopeless = [
            Status::Permission,
            Status::PeerFailed,
            Status::Unsupported,
            Status::NoMemory,
            Status::ProviderFailed,
        ];
        let hopeless = Some(status).filter(|status| hopeless.contains(status));
        let mut concerned = Vec::new();
        for circuit in self.wiring.circuits.borrow_mut().values_mut() {
            let Some(WireupTransport::Connector(index, address)) = &circuit.transport else {
                continue;
            };
            if *index == connector && there(address) {
                let scheme = &self.wiring.transports.connectors[connector].scheme;
                circuit.trouble = format!("{scheme}: {words}");
                circuit.hopeless = hopeless;
                if let (State::Forming, Some(key)) = (&circuit.state, &circuit.key) {
                    concerned.push((key.clone(), circuit.trouble.clone()));
                }
            }
        }
        let now = self.wiring.now();
        for (key, trouble) in concerned {
            let mut machine = self.wiring.machine.borrow_mut();
            match hopeless.is_some() {
                true => machine.transport_hopeless(now, &key, &trouble),
                false => machine.transport_lost(now, &key),
            }
        }
        self.carry_out();
    }

    /// Sends the datagrams that carriers had not accepted; returns whether some remain.
    pub(in crate::worker) fn send_waiting_datagrams(&self) -> bool {
        let waiting = std::mem::take(&mut *self.wiring.waiting.borrow_mut());
        for number in waiting {
            loop {
                let next = {
                    let mut circuits = self.wiring.circuits.borrow_mut();
                    circuits.get_mut(&number).and_then(|circuit| circuit.outbox.pop_front())
                };
                let Some(datagram) = next else { break };
                self.send_for(number, datagram);
                if self.wiring.waiting.borrow().contains(&number) {
                    break; // the carrier still does not accept the datagram
                }
            }
        }
        !self.wiring.waiting.borrow().is_empty()
    }

    /// Handles a circuit that has failed or that the peer has closed.
    pub(in crate::worker) fn circuit_failed(
        self: &Rc<Self>,
        number: u64,
        status: Status,
        words: &str,
    ) {
        let (users, peer, interface, key, error) = {
            let mut circuits = self.wiring.circuits.borrow_mut();
            let Some(circuit) = circuits.get_mut(&number) else { return };
            let error = self.circuit_error(&circuit.peer, status, words);
            circuit.state = State::Dead(error.clone());
            (
                circuit.everybody(),
                circuit.peer.clone(),
                circuit.pair.interface,
                circuit.key.clone(),
                error,
            )
        };
        // The number is removed before the circuit is released, which shows whether the circuit was the last connection from the
        // peer.
        let from = self.forget_number(&self.shared.interfaces[interface], number);
        let gone = !self.is_here(from);
        if let Some(key) = key {
            self.wiring.machine.borrow_mut().close(self.wiring.now(), &key);
            self.carry_out();
            let _ = self.wiring.by_key.borrow_mut().remove(&key);
        }
        for endpoint in &users {
            endpoint.circuit_failed(interface, &error);
        }
        if status == Status::Closed && !gone {
            self.doubt(&users, from);
        }
        drop(users);
        self.shared.end_orphans(End::Circuit(number), &error);
        self.end_answers(number);
        self.drop_unused(number);
        if status == Status::Closed {
            if gone {
                self.tell_of_leaving(from);
            }
            return;
        }
        // If the circuit ended because a key was refused, the route is still usable.
        if status != Status::KeyRejected {
            self.avoid(peer.entry.worker, interface);
        }
        let slot = &self.shared.interfaces[interface];
        if self.stands_elsewhere(peer.entry.worker, slot, status) {
            // The peer is alive, and only this connection to it has failed.
            self.shared.core.note(format!(
                "{} to {} failed ({error}); other connections continue",
                slot.path,
                peer.label()
            ));
            return;
        }
        let id = crate::PeerId(self.peer_number(&peer));
        self.peer_lost(id, &error);
    }

    pub(in crate::worker) fn circuit_error(
        &self,
        peer: &WorkerAddress,
        status: Status,
        words: &str,
    ) -> Error {
        let why = if words.is_empty() { status.text() } else { words };
        let what = match status {
            Status::PeerFailed => format!("{} is gone", peer.label()),
            Status::Closed => format!("{} closed the connection", peer.label()),
            _ => format!("the connection to {} failed", peer.label()),
        };
        Error::new(status, what, why, remedy_for_status(status))
    }

    /// Returns the reason why a connection was not formed.
    pub(super) fn reason(
        &self,
        peer: &WorkerAddress,
        (trouble, hopeless): (&str, Option<Status>),
        reason: &Reason,
    ) -> Error {
        let (status, fix) = match reason.kind {
            ReasonKind::TimedOut => (
                Status::TimedOut,
                "see that the peer makes progress, or raise TIELINE_CONNECT_TIMEOUT",
            ),
            ReasonKind::Busy => (Status::Busy, "open fewer connections at once, or try later"),
            ReasonKind::Closed => (Status::Closed, ""),
            ReasonKind::NoSuchWorker => (Status::PeerFailed, "exchange addresses again"),
            ReasonKind::Version => (Status::Unsupported, "use the same version on both sides"),
            ReasonKind::Transport if hopeless == Some(Status::PeerFailed) => {
                (Status::PeerFailed, "exchange addresses again if the process was restarted")
            }
            ReasonKind::Transport if hopeless == Some(Status::Permission) => {
                (Status::Permission, "give all processes the same TIELINE_SECRET")
            }
            ReasonKind::Transport if hopeless == Some(Status::Unsupported) => (
                Status::Unsupported,
                "use versions of Tieline and of this provider that go together on both sides",
            ),
            ReasonKind::Transport if hopeless == Some(Status::NoMemory) => (
                Status::NoMemory,
                "the reason says what ran out; where it is open files, `ulimit -n` is their limit",
            ),
            _ => (Status::Unreachable, "`tieline info --why` shows what each side has"),
        };
        // If the carrier has an error, the error is the probable cause, and a missing answer is a consequence.
        let (why, fix) = match trouble {
            trouble if reason.text.contains(trouble) => (reason.text.clone(), fix),
            trouble if reason.kind == ReasonKind::TimedOut => (
                format!("{trouble}; {}", reason.text),
                "TIELINE_CONNECT_TIMEOUT is how long it may take",
            ),
            trouble => (format!("{trouble}; {}", reason.text), fix),
        };
        Error::new(status, format!("no connection to {} came about", peer.label()), why, fix)
    }
}
