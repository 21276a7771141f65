//! The state of an endpoint. The state refers to the endpoint's operations, keys and worker, and they refer to the state.

use super::backlog::Backlog;
use super::counters::EndpointCounters;
use super::fetch::KeptKeys;
use super::key::{KeyInner, RemoteKey};
use super::known_keys::KnownKeys;
use super::lane::Lanes;
use super::message_lane::MessageLane;
use super::queued::{Failed, QueuedOp, Waiting};
use super::route::{ModulePair, Route};
use super::service::ServiceWorker;
use crate::address::WorkerAddress;
use crate::interface::LaneLimits;
use crate::mem::region::PartsOfTransient;
use crate::request::{Outcome, Request};
use crate::shared::{Shared, Unanswered};
use crate::worker::WorkerState;
use crate::{Error, Status};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use tieline_host::abi::{PackBuffer, RawEndpoint};
use tieline_order::{Id, Kind, Order};

/// The state of an endpoint. Messages take their fast path only in `Ready`; puts, gets and atomics also in `New`, while nothing is
/// queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    New,
    Queueing,
    Failed,
    Closed,
}

/// The owner of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Application,
    /// The library: an internal endpoint for emulated operations and answers.
    Library,
    /// A circuit: the endpoint carries only the answers to requests that came over that circuit.
    Circuit,
}

/// The packing state of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Packing {
    #[default]
    No,
    Yes,
    /// A packer is running, and the endpoint leaves its circuits when the packer returns.
    Leaves,
}

/// The handles of an endpoint: those of the application, and the worker's internal ones. Keys hold the endpoint without a handle.
#[derive(Default)]
pub(super) struct Handles {
    pub(super) count: Cell<u32>,
    /// Whether the application holds the endpoint: then the worker returns it for messages from its peer, and reports its failure.
    pub(super) named: Cell<bool>,
}

/// The state of an endpoint that its operations, its keys and its worker use. Each cell is borrowed only to read or change it.
/// During a borrow no packer of the application runs, and no object held by an operation is dropped: both may access the endpoint
/// again and end it. During a borrow providers may be called: the only functions that they call are packers.
pub(crate) struct EndpointState {
    pub(crate) state: Cell<State>,
    pub(super) message: MessageLane,
    pub(crate) shared: Rc<Shared>,
    pub(super) worker: Rc<WorkerState>,
    /// The endpoint's number, which is also the cookie of the lanes that it owns. A lane over a circuit has the circuit's number.
    pub(crate) id: Id,
    /// The endpoint's index among the worker's endpoints, which also names the owner of its operations.
    pub(crate) index: usize,
    pub(crate) address: WorkerAddress,
    pub(crate) route: Route,
    pub(crate) owner: Owner,
    /// The holders of the endpoint.
    pub(super) handles: Handles,
    /// The word stored by the application.
    pub(super) word: Cell<u64>,
    /// Whether a packer of the application is writing into a buffer of its message lane.
    pub(super) packing: Cell<Packing>,
    /// Whether keys of this endpoint use lanes to the peer's service worker.
    pub(super) reaches_memory: Cell<bool>,
    pub(super) lanes: Lanes,
    /// The reason why an earlier message lane was refused, for the error if no other lane can be opened.
    pub(super) refused_before: RefCell<Option<String>>,
    /// The messages that the peer has not received, while the lane that had accepted them ends.
    pub(super) returned: RefCell<Vec<QueuedOp>>,
    pub(super) queue: Backlog,
    /// The number of bytes that copies for open rendezvous messages occupy.
    pub(super) announced_bytes: Arc<AtomicUsize>,
    /// The answers to the peer's requests, which progress sends before the endpoint's queued operations.
    pub(super) answers: RefCell<VecDeque<Waiting>>,
    pub(crate) busy: Cell<bool>,
    pub(super) error: RefCell<Option<Error>>,
    /// The peer's service worker, if the peer has one.
    pub(super) service_worker: OnceCell<Rc<ServiceWorker>>,
    /// The service worker to which this endpoint leads for other endpoints.
    pub(super) leads_to: OnceCell<Weak<ServiceWorker>>,
    /// The requests of emulation for the peer's service worker.
    pub(super) requests: Backlog,
    /// Whether the worker is closing and checks for further sends; see `watch_for_more`.
    pub(super) watched: Cell<bool>,
    /// Whether the application has closed the endpoint after the operations posted before. A closed endpoint accepts no posts apart
    /// from flushes, and no fast path is taken.
    pub(super) closing: Cell<bool>,
    /// Whether this endpoint to a service worker failed before anything was sent to it.
    pub(crate) lost_nothing: Cell<bool>,
    /// The order that flush and fence have to keep.
    pub(super) order: Order,
    /// The keys imported on this endpoint, from which the lanes of a broken provider are removed.
    pub(super) keys: RefCell<Vec<Weak<KeyInner>>>,
    /// The keys of the peer's last rendezvous messages.
    pub(super) kept_keys: KeptKeys,
    /// The parts of transient registrations that were sent to this peer, for the next messages from the same memory.
    pub(crate) sent_parts: PartsOfTransient,
    /// The keys that were requested from the peer by their handles.
    pub(super) known_keys: KnownKeys<RemoteKey>,
    /// The small operations that the peer's worker has not answered yet; empty before the first one.
    pub(super) unanswered: OnceCell<Rc<Unanswered>>,
    /// The number of consecutive large transfers without help of the peer.
    pub(crate) unhelped: Cell<u32>,
    pub(super) counters: Cell<EndpointCounters>,
}

impl EndpointState {
    pub(crate) fn new(
        shared: Rc<Shared>,
        worker: Rc<WorkerState>,
        id: Id,
        address: WorkerAddress,
        route: Route,
        owner: Owner,
    ) -> EndpointState {
        let attr = |pair: ModulePair| &shared.interfaces[pair.interface].attr;
        // Before its connection is formed, a message may have to use the reserve lane: see `compose::Path`.
        let domain = |pair: &ModulePair| &*shared.interfaces[pair.interface].domain;
        let first = route.message();
        let alike = |pair: &&ModulePair| first.is_some_and(|first| domain(pair) == domain(&first));
        let each =
            route.messages().iter().filter(alike).map(|pair| LaneLimits::from_module(attr(*pair)));
        let limits = each.reduce(LaneLimits::for_messages_of_either);
        EndpointState {
            state: Cell::new(State::New),
            message: MessageLane::unopened(limits),
            shared,
            worker,
            id,
            index: id.place(),
            address,
            route,
            owner,
            handles: Handles::default(),
            word: Cell::new(0),
            packing: Cell::default(),
            reaches_memory: Cell::new(false),
            lanes: Lanes::default(),
            refused_before: RefCell::default(),
            returned: RefCell::default(),
            queue: Backlog::default(),
            announced_bytes: Arc::default(),
            answers: RefCell::default(),
            busy: Cell::new(false),
            error: RefCell::default(),
            service_worker: OnceCell::new(),
            leads_to: OnceCell::new(),
            requests: Backlog::default(),
            watched: Cell::new(false),
            closing: Cell::new(false),
            lost_nothing: Cell::new(false),
            order: Order::default(),
            keys: RefCell::default(),
            kept_keys: KeptKeys::default(),
            sent_parts: PartsOfTransient::default(),
            known_keys: KnownKeys::default(),
            unanswered: OnceCell::new(),
            unhelped: Cell::new(0),
            counters: Cell::default(),
        }
    }

    /// Returns the state of an endpoint with an open message lane and an empty queue.
    pub(super) fn ready(&self) -> State {
        if self.closing.get() { State::Queueing } else { State::Ready }
    }

    /// Returns the outcome of an operation right after it was posted.
    pub(crate) fn outcome(&self, id: Id) -> Result<Outcome, Error> {
        let ended = self.shared.ops.borrow_mut().take(id);
        match ended {
            Some(result) => result.map(Outcome::Done),
            None => Ok(Outcome::Pending(Request::new(self.shared.clone(), id))),
        }
    }

    /// Opens an operation of this endpoint. `Again`: the endpoint already has its maximum number of open operations.
    pub(crate) fn open(&self, kind: Kind) -> Result<Id, Status> {
        self.shared.ops.borrow_mut().open(self.index, kind)
    }

    /// Posts a message in the form that the lane supports for its length. The queue is not checked.
    pub(crate) fn message_now(&self, id: u16, header: u64, payload: &[u8]) -> Result<(), Status> {
        self.message.post(id, header, payload)
    }

    /// Posts a packed message to the lane. The queue is not checked.
    pub(crate) fn pack_now(
        &self,
        id: u16,
        header: u64,
        max: usize,
        pack: impl FnMut(&mut PackBuffer<'_>) -> Result<(), Status>,
    ) -> Result<(), Status> {
        self.message.pack(id, header, max, pack)
    }

    /// Returns the length of the longest eager message.
    pub(super) fn most(&self) -> usize {
        self.message.most()
    }

    /// Returns the maximum payload of one packed message after an internal header of `head` bytes. In every registered module with
    /// packed messages the payload exceeds the header. A module without packed messages cannot carry messages in pieces.
    pub(crate) fn most_behind(&self, head: usize) -> Result<usize, Status> {
        self.message.max_packed().checked_sub(head).filter(|&n| n > 0).ok_or(Status::Unsupported)
    }

    pub(crate) fn is_alive(&self) -> bool {
        !matches!(self.state.get(), State::Failed | State::Closed)
    }

    /// Records a key that uses the lanes of this endpoint.
    pub(super) fn note_key(&self, key: &Rc<KeyInner>) {
        let mut keys = self.keys.borrow_mut();
        if keys.len() == keys.capacity() {
            keys.retain(|key| key.strong_count() > 0);
        }
        keys.push(Rc::downgrade(key));
    }

    /// Returns the keys imported on this endpoint that still exist.
    pub(super) fn live_keys(&self) -> Vec<Rc<KeyInner>> {
        self.keys.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns the lanes that are closed with the endpoint. Circuits belong to the worker.
    pub(crate) fn own_lanes(&self) -> Vec<(usize, RawEndpoint)> {
        let lanes = self.lanes.all().into_iter().filter(|lane| lane.owned);
        lanes.map(|lane| (lane.interface, lane.raw)).collect()
    }

    /// Returns the endpoint's name for display.
    pub(crate) fn name(&self) -> String {
        format!("{} through {}", self.address.label(), self.message_path())
    }

    /// Returns the name of the message lane for display.
    pub(crate) fn message_path(&self) -> String {
        match self.route.message() {
            Some(pair) => self.shared.interfaces[pair.interface].path.clone(),
            None => "no message module".into(),
        }
    }

    /// Attributes a failure to the message lane.
    pub(crate) fn by_message_lane(&self, status: Status) -> Failed {
        Failed { status, interface: self.route.message().map(|pair| pair.interface) }
    }

    /// Checks whether a lane over this interface is open.
    pub(crate) fn has_lane(&self, interface: usize) -> bool {
        self.lanes.over(interface).is_some()
    }
}
