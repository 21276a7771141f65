//! Circuits: connections of modules that connect to an endpoint.
//!
//! The state machine in [`crate::wireup`] makes the decisions. This file contains the state of each circuit. `events.rs` feeds the
//! machine, `actions.rs` carries out its actions with providers and connectors, and `circuits.rs` makes and ends circuits.
//! `answers.rs` contains the endpoints for replies, `sender.rs` checks the senders of datagrams, `shown.rs` publishes the circuits
//! that are being formed, and `table.rs` stores the circuits.
//!
//! A circuit belongs to the worker, not to the endpoint that requested it, because the peer may use it as well. A circuit that has
//! not failed therefore stays when an endpoint is dropped, and serves the next endpoint to the same peer.
//!
//! A circuit's number is the cookie of its provider endpoint. The events of the circuit contain the number as `peer`.

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
use crate::wireup::{ConnectionKey, Limits, Machine};
use crate::{Error, Status};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};
use tieline_host::abi::OwnedEndpoint;

enum State {
    Forming,
    Ready,
    Dead(Error),
}

/// One connection of a worker.
struct Circuit {
    /// The circuit's name in the state machine; `None`: the circuit leads to this worker itself.
    key: Option<ConnectionKey>,
    pair: ModulePair,
    owned: OwnedEndpoint,
    /// The limits of the circuit, requested when the circuit is bound and when it is ready.
    limits: LaneLimits,
    peer: Rc<WorkerAddress>,
    state: State,
    transport: Option<WireupTransport>,
    outbox: VecDeque<Vec<u8>>,
    /// The endpoints that use the circuit.
    users: Vec<Weak<EndpointState>>,
    /// Whether a dropped endpoint has left operations on the circuit that completed locally and whose remote completion has not
    /// been checked.
    unasked: bool,
    /// The endpoint of replies to the peer over this circuit.
    answers: Option<Rc<EndpointState>>,
    /// The last error of the circuit's carrier.
    trouble: String,
    /// The status of the last failure of the circuit's carrier, if a retry would not help.
    hopeless: Option<Status>,
}

impl Circuit {
    /// Returns the endpoints that use the circuit, and the endpoint of its replies.
    fn everybody(&self) -> Vec<Rc<EndpointState>> {
        let users = self.users.iter().filter_map(Weak::upgrade);
        users.chain(self.answers.clone()).collect()
    }

    /// Returns the error with which operations in flight on the circuit end.
    fn error(&self) -> Error {
        match &self.state {
            State::Dead(error) => error.clone(),
            _ => Status::Closed.into(),
        }
    }
}

/// Ends the endpoint of a circuit's replies. Its other holders, which send answers or flush, then find a failed endpoint rather
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
    /// The circuits' numbers, by the endpoint's index and the interface's.
    by_user: RefCell<BTreeMap<(usize, usize), u64>>,
    /// The circuits to this worker itself that no endpoint uses: interface and number.
    to_take: RefCell<BTreeSet<(usize, u64)>>,
    /// The circuits with datagrams that their carrier has not accepted.
    waiting: RefCell<BTreeSet<u64>>,
    /// The routes (see `way`) on which a connection failed recently, and the time (ns, see `now`) until which they are tried after
    /// all others.
    avoided: RefCell<BTreeMap<([u8; 16], usize), u64>>,
    next_circuit: Cell<u64>,
    /// The numbers of closed circuits that are not reused yet, so that late events cannot reach a newer circuit.
    closed_circuits: RefCell<VecDeque<u64>>,
    /// The origin of the time that `now` returns.
    clock: Instant,
    /// The time of the machine's next call or of the next postponed report, in ns; `u64::MAX`: never.
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
        // The epoch is always 1: a worker has a new random id each time it is opened, so an id never has a second epoch.
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

    /// Returns a circuit to this worker itself over this interface that no endpoint uses.
    fn one_to_take(&self, interface: usize) -> Option<u64> {
        let to_take = self.to_take.borrow();
        to_take.range((interface, 0)..=(interface, u64::MAX)).next().map(|(_, number)| *number)
    }

    /// Checks whether a retransmission, a timeout or a postponed report is due. While none is pending, the call does not read the
    /// clock.
    pub(super) fn is_due(&self) -> bool {
        let at = self.timer.get();
        at != u64::MAX && at <= self.now()
    }

    /// Returns the time until the next retransmission, timeout or postponed report.
    pub(super) fn next_timer(&self) -> Option<Duration> {
        match self.timer.get() {
            u64::MAX => None,
            at => Some(Duration::from_nanos(at.saturating_sub(self.now()))),
        }
    }

    /// Sets the counters of wire-up.
    pub(super) fn count(&self, counters: &mut Counters) {
        let machine = self.machine.borrow();
        let seen = machine.counters();
        counters.connections = seen.ready;
        counters.failed_connections = seen.failed;
        counters.wireup_retransmissions = seen.retransmissions;
        counters.wireup_rejections = seen.rejected;
    }

    /// Checks whether there are no circuits: none formed, forming, or dead and still held.
    pub(super) fn is_idle(&self) -> bool {
        self.circuits.borrow().is_empty()
    }

    /// Checks whether datagrams wait for a carrier that did not accept them.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    /// Returns the connected circuits.
    pub(super) fn standing(&self) -> Vec<u64> {
        let circuits = self.circuits.borrow();
        let stands = |circuit: &Circuit| matches!(circuit.state, State::Ready);
        circuits.iter().filter(|(_, circuit)| stands(circuit)).map(|(number, _)| *number).collect()
    }

    /// Disables the circuits and carriers over this interface, whose provider broke its contract: none of its functions is called
    /// again.
    pub(super) fn fail_interface(&self, interface: usize) {
        let mut circuits = self.circuits.borrow_mut();
        circuits
            .values_mut()
            .filter(|c| c.pair.interface == interface)
            .for_each(|c| c.owned.fail());
        self.transports.fail(interface);
    }

    /// Takes all endpoints of replies of a worker that is being closed.
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

    /// Closes the circuits, which have no users any more, and the carriers.
    pub(super) fn close(&self) {
        let all = self.circuits.borrow_mut().take();
        for circuit in all {
            abi::close(circuit.owned);
        }
        self.transports.close();
    }

    /// Leaves all circuits and carriers open in a forked child.
    pub(super) fn forget(&mut self) {
        let _ = self.circuits.borrow_mut().take();
        self.transports.forget();
    }
}
