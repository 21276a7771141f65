//! Circuits: connections of modules that connect to an endpoint.
//!
//! The state machine in [`crate::wireup`] decides. This file has the state of each circuit. `events.rs` feeds the machine,
//! `actions.rs` carries out its actions with providers and connectors, and `circuits.rs` makes and ends circuits. `answers.rs` has
//! the endpoints for replies, and `sender.rs` checks the senders of datagrams.
//!
//! A circuit belongs to the worker, not to the endpoint that requested it, because the peer may use it as well. It therefore stays
//! when an endpoint is dropped, and serves the next endpoint to the same peer.
//!
//! A circuit's number is the cookie of its provider endpoint. It appears as `peer` in the events of the circuit.

mod actions;
mod answers;
mod circuits;
mod events;
mod sender;
mod shown;
mod table;

pub(crate) use sender::Sender;

use table::Table;

use super::wireup_transports::{WireupTransport, WireupTransports};
use super::{Counters, abi};
use crate::address::WorkerAddress;
use crate::endpoint::{EndpointState, ModulePair};
use crate::interface::LaneLimits;
use crate::registry::abi::OwnedEndpoint;
use crate::wireup::{ConnectionKey, Limits, Machine};
use crate::{Error, Status};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

enum State {
    Forming,
    Ready,
    Dead(Error),
}

/// One connection.
struct Circuit {
    /// None: it leads to this worker itself.
    key: Option<ConnectionKey>,
    pair: ModulePair,
    owned: OwnedEndpoint,
    /// Its limits, requested when it is bound.
    limits: LaneLimits,
    peer: Rc<WorkerAddress>,
    state: State,
    transport: Option<WireupTransport>,
    outbox: VecDeque<Vec<u8>>,
    /// The endpoints that use it.
    users: Vec<Weak<EndpointState>>,
    /// A dropped endpoint has left operations here that completed locally, and their remote completion has not been checked.
    unasked: bool,
    /// The endpoint of replies to the peer over this circuit.
    answers: Option<Rc<EndpointState>>,
    /// The last error of its carrier.
    trouble: String,
    /// The reason why its carrier can never reach this peer, once known: it is not retried.
    hopeless: Option<Status>,
}

impl Circuit {
    /// The endpoints that use it, and the one of its replies.
    fn everybody(&self) -> Vec<Rc<EndpointState>> {
        let users = self.users.iter().filter_map(Weak::upgrade);
        users.chain(self.answers.clone()).collect()
    }

    /// The error with which operations in flight on it end.
    fn error(&self) -> Error {
        match &self.state {
            State::Dead(error) => error.clone(),
            _ => Status::Closed.into(),
        }
    }
}

/// Ends the endpoint of a circuit's replies. Other holders of it, which send answers or flush, then find a failed endpoint rather
/// than a connection that is about to be closed.
fn end(answers: Option<Rc<EndpointState>>, error: Error) {
    if let Some(answers) = answers {
        answers.fail(error);
    }
}

/// A worker's circuits and the state machine that forms them. No cell is borrowed while an endpoint fails or continues, or while
/// the application gets a datagram: both may access the state again. Actions are removed from the machine one by one, and carried
/// out after its borrow has ended.
pub(crate) struct Wiring {
    pub(super) transports: WireupTransports,
    machine: RefCell<Machine>,
    circuits: RefCell<Table>,
    by_key: RefCell<BTreeMap<ConnectionKey, u64>>,
    /// The circuit's number, by the endpoint's index and the interface's.
    by_user: RefCell<BTreeMap<(usize, usize), u64>>,
    /// Circuits to this worker itself that no endpoint uses: their interface and number.
    to_take: RefCell<BTreeSet<(usize, u64)>>,
    /// Circuits with datagrams for which their carrier had no room.
    waiting: RefCell<BTreeSet<u64>>,
    /// Workers and interfaces between which a circuit failed recently, and the time (ns, see `now`) until which they are tried
    /// after all others.
    avoided: RefCell<BTreeMap<([u8; 16], usize), u64>>,
    next_circuit: Cell<u64>,
    /// Numbers of closed circuits that are not reused yet, so that late events cannot reach a newer circuit.
    closed_circuits: RefCell<VecDeque<u64>>,
    /// The start of the time of `now`.
    clock: Instant,
    /// The time of the machine's next call, in ns; `u64::MAX`: never.
    timer: Cell<u64>,
}

impl Wiring {
    pub(super) fn new(
        worker: [u8; 16],
        transports: WireupTransports,
        deadline: Duration,
    ) -> Wiring {
        let deadline = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4);
        let limits = Limits { deadline, ..Limits::default() };
        // Always epoch 1: a worker has a new random id each time it is opened, so an id never has a second epoch.
        Wiring {
            transports,
            machine: RefCell::new(Machine::new(worker, 1, Vec::new(), limits)),
            circuits: RefCell::default(),
            by_key: RefCell::default(),
            by_user: RefCell::default(),
            to_take: RefCell::default(),
            waiting: RefCell::default(),
            avoided: RefCell::default(),
            next_circuit: Cell::new(0),
            closed_circuits: RefCell::default(),
            clock: Instant::now(),
            timer: Cell::new(u64::MAX),
        }
    }

    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// A circuit to this worker itself over this interface that no endpoint uses.
    fn one_to_take(&self, interface: usize) -> Option<u64> {
        let to_take = self.to_take.borrow();
        to_take.range((interface, 0)..=(interface, u64::MAX)).next().map(|(_, number)| *number)
    }

    /// Whether a retransmission or a timeout is due. While none is pending, no poll reads the clock.
    pub(super) fn is_due(&self) -> bool {
        let at = self.timer.get();
        at != u64::MAX && at <= self.now()
    }

    /// The time until the next retransmission or timeout.
    pub(super) fn next_timer(&self) -> Option<Duration> {
        match self.timer.get() {
            u64::MAX => None,
            at => Some(Duration::from_nanos(at.saturating_sub(self.now()))),
        }
    }

    /// Adds the counters of wire-up.
    pub(super) fn count(&self, counters: &mut Counters) {
        let machine = self.machine.borrow();
        let seen = machine.counters();
        counters.connections = seen.ready;
        counters.failed_connections = seen.failed;
        counters.wireup_retransmissions = seen.retransmissions;
        counters.wireup_rejections = seen.rejected;
    }

    /// Whether there are no circuits: none formed, forming, or dead and still held.
    pub(super) fn is_idle(&self) -> bool {
        self.circuits.borrow().is_empty()
    }

    /// Whether a carrier had no room for a datagram.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    /// The circuits that stand.
    pub(super) fn standing(&self) -> Vec<u64> {
        let circuits = self.circuits.borrow();
        let stands = |circuit: &Circuit| matches!(circuit.state, State::Ready);
        circuits.iter().filter(|(_, circuit)| stands(circuit)).map(|(number, _)| *number).collect()
    }

    /// The provider of this interface broke its contract: none of its functions is called again, neither for circuits nor for
    /// datagrams.
    pub(super) fn fail_interface(&self, interface: usize) {
        let mut circuits = self.circuits.borrow_mut();
        circuits
            .values_mut()
            .filter(|c| c.pair.interface == interface)
            .for_each(|c| c.owned.fail());
        self.transports.fail(interface);
    }

    /// Removes all endpoints of replies. The worker is about to close.
    pub(super) fn take_answers(&self) -> Vec<Rc<EndpointState>> {
        self.circuits
            .borrow_mut()
            .values_mut()
            .filter_map(|circuit| circuit.answers.take())
            .collect()
    }

    #[cfg(test)]
    pub(super) fn circuits_with_answers(&self) -> Vec<u64> {
        let circuits = self.circuits.borrow();
        circuits
            .iter()
            .filter(|(_, circuit)| circuit.answers.is_some())
            .map(|(number, _)| *number)
            .collect()
    }

    /// Ends every circuit. They have no users any more.
    pub(super) fn close(&self) {
        let all = self.circuits.borrow_mut().take();
        for circuit in all {
            abi::close(circuit.owned);
        }
        self.transports.close();
    }

    /// In a forked child: nothing is closed.
    pub(super) fn forget(&mut self) {
        let _ = self.circuits.borrow_mut().take();
        self.transports.forget();
    }
}
