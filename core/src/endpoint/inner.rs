//! The state of an endpoint. It, its operations, its keys and what it asks of its worker name each other. What is done with it
//! (posting, flushing, ending) stands above these four, which use only what stands below: records, order, rails, the route.

use super::calls::WorkerCalls;
use super::counters::EndpointCounters;
use super::key::{KeyInner, RemoteKey};
use super::known_keys::KnownKeys;
use super::order::Order;
use super::queued::{Failed, QueuedOp, Waiting};
use super::route::{ModulePair, Route};
use crate::address::WorkerAddress;
use crate::interface::LaneLimits;
use crate::op::{Id, Kind};
use crate::registry::abi::{PackBuffer, RawEndpoint};
use crate::request::{Outcome, Request};
use crate::shared::{Shared, Unanswered};
use crate::{Error, Status};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;
use tieline_plugin_api::OK;

/// Where an endpoint stands. Only `Ready` takes the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    New,
    Queueing,
    Failed,
    Closed,
}

/// Whose an endpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Application,
    /// The library's own, for emulated operations and answers.
    Library,
    /// It carries the answers to what came over one circuit, and nothing else.
    Circuit,
}

/// An opened lane of this endpoint.
#[derive(Clone, Copy)]
pub(crate) struct Lane {
    pub(crate) interface: usize,
    pub(crate) raw: RawEndpoint,
    pub(crate) limits: LaneLimits,
    /// Closed with this endpoint; a circuit of the worker's is not.
    pub(super) owned: bool,
}

/// Where an endpoint stands with packing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Packing {
    #[default]
    No,
    Yes,
    /// It packs, and is to leave its circuits when it has packed.
    Leaves,
}

/// Who holds an endpoint: handles of the application's, by which it has a name, and the library's own, operations and keys.
#[derive(Default)]
pub(super) struct Handles {
    pub(super) count: Cell<u32>,
    /// The worker names it to whom messages come from, and says when it has failed.
    pub(super) named: Cell<bool>,
}

/// An endpoint, as its operations, its keys and its worker have it. A cell is borrowed for a look or a change, and meanwhile neither a packer
/// of the application's runs nor is dropped what an operation held: both may come back here, and end the endpoint. Providers may be
/// called: they call nobody but packers.
pub(crate) struct Inner {
    pub(crate) state: Cell<State>,
    pub(crate) message: Cell<RawEndpoint>,
    pub(crate) max_short: Cell<usize>,
    pub(super) max_packed: Cell<usize>,
    /// The longest message that the message lane, once it is open, gathers from where it lies.
    pub(super) max_zcopy: Cell<usize>,
    pub(crate) shared: Rc<Shared>,
    pub(super) worker: Rc<dyn WorkerCalls>,
    /// Its number, which is also the cookie of its lanes.
    pub(crate) id: Id,
    /// Its place among the worker's endpoints, and the owner of its operations.
    pub(crate) index: usize,
    pub(crate) address: WorkerAddress,
    pub(crate) route: Route,
    pub(crate) owner: Owner,
    /// Who holds it.
    pub(super) handles: Handles,
    /// The application's word.
    pub(super) word: Cell<u64>,
    /// Whether an application's packer writes into a buffer of its message lane.
    pub(super) packing: Cell<Packing>,
    /// Keys of other endpoints go through its lanes.
    pub(super) reaches_memory: Cell<bool>,
    pub(super) lanes: RefCell<Vec<Lane>>,
    /// Lanes that nothing goes over any more; see `turned_away`.
    pub(super) past_lanes: RefCell<Vec<Lane>>,
    /// Why an earlier message lane was refused, for the error where none of the others can be opened.
    pub(super) refused_before: RefCell<Option<String>>,
    /// Messages that the peer has not taken, while the lane that had taken them ends.
    pub(super) returned: RefCell<Vec<QueuedOp>>,
    pub(super) queue: RefCell<VecDeque<QueuedOp>>,
    pub(super) queued_bytes: Cell<usize>,
    /// Bytes that were copied for messages that are announced.
    pub(super) announced_bytes: Arc<AtomicUsize>,
    /// What the peer asked, to be answered before anything of ours.
    pub(super) answers: RefCell<VecDeque<Waiting>>,
    pub(crate) busy: Cell<bool>,
    pub(super) error: RefCell<Option<Error>>,
    /// The endpoint to the peer's service worker, when it has one.
    pub(super) control: RefCell<Option<Rc<Inner>>>,
    /// Of such an endpoint: the place of the one that goes through it, while that is there.
    pub(super) user: Cell<Option<usize>>,
    /// There is no way to it since then: the peer's own worker serves.
    pub(super) unserved: Cell<Option<Instant>>,
    /// Its worker closes, and looks whether more is sent; see `watch_for_more`.
    pub(super) watched: Cell<bool>,
    /// The application has closed it, behind what it had posted: it posts nothing more, and no fast path is taken.
    pub(super) closing: Cell<bool>,
    /// Another endpoint goes on with what was open here when it failed: nothing of it is lost.
    pub(crate) handed_over: Cell<bool>,
    /// Those before it that failed, and through whose lanes keys may still go.
    pub(super) past_controls: RefCell<Vec<Rc<Inner>>>,
    /// What order flush and fence have to keep.
    pub(super) order: Order,
    /// Keys that were imported here, whose lanes a broken provider is taken out of.
    pub(super) keys: RefCell<Vec<Weak<KeyInner>>>,
    /// Keys that the peer was asked for by their handles.
    pub(super) known_keys: KnownKeys<RemoteKey>,
    /// What the peer's worker has yet to answer of what is small, once something was.
    pub(super) unanswered: OnceCell<Rc<Unanswered>>,
    /// Large transfers in a row with which the peer did not help.
    pub(crate) unhelped: Cell<u32>,
    pub(super) counters: Cell<EndpointCounters>,
}

impl Inner {
    pub(crate) fn new(
        shared: Rc<Shared>,
        worker: Rc<dyn WorkerCalls>,
        id: Id,
        address: WorkerAddress,
        route: Route,
        owner: Owner,
    ) -> Inner {
        let attr = |pair: ModulePair| &shared.interfaces[pair.interface].attr;
        // Until its connection stands a message may have to go by the reserve: see `compose::Path`.
        let domain = |pair: &ModulePair| &*shared.interfaces[pair.interface].domain;
        let first = route.message();
        let alike = |pair: &&ModulePair| first.is_some_and(|first| domain(pair) == domain(&first));
        let each =
            route.messages().iter().filter(alike).map(|pair| LaneLimits::of_module(attr(*pair)));
        let limits = each.reduce(LaneLimits::for_messages_of_either);
        Inner {
            state: Cell::new(State::New),
            message: Cell::new(RawEndpoint::nowhere()),
            max_short: Cell::new(limits.map_or(0, |limits| limits.max_short)),
            max_packed: Cell::new(limits.map_or(0, |limits| limits.max_packed)),
            max_zcopy: Cell::new(0),
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
            lanes: RefCell::default(),
            past_lanes: RefCell::default(),
            refused_before: RefCell::default(),
            returned: RefCell::default(),
            queue: RefCell::default(),
            queued_bytes: Cell::new(0),
            announced_bytes: Arc::default(),
            answers: RefCell::default(),
            busy: Cell::new(false),
            error: RefCell::default(),
            control: RefCell::default(),
            user: Cell::new(None),
            unserved: Cell::new(None),
            watched: Cell::new(false),
            closing: Cell::new(false),
            handed_over: Cell::new(false),
            past_controls: RefCell::default(),
            order: Order::default(),
            keys: RefCell::default(),
            known_keys: KnownKeys::default(),
            unanswered: OnceCell::new(),
            unhelped: Cell::new(0),
            counters: Cell::default(),
        }
    }

    /// The state of one that may send at once.
    pub(super) fn ready(&self) -> State {
        if self.closing.get() { State::Queueing } else { State::Ready }
    }

    /// How an operation stands right after it was posted.
    pub(crate) fn outcome(&self, id: Id) -> Result<Outcome, Error> {
        let ended = self.shared.ops.borrow_mut().take(id);
        match ended {
            Some(result) => result.map(Outcome::Done),
            None => Ok(Outcome::Pending(Request::new(self.shared.clone(), id))),
        }
    }

    /// Opens an operation of this endpoint. `Again`: it has as many as it may.
    pub(crate) fn open(&self, kind: Kind) -> Result<Id, Status> {
        self.shared.ops.borrow_mut().open(self.index, kind)
    }

    /// Posts a message as the lane takes one of this length; the queue is not looked at.
    pub(crate) fn message_now(&self, id: u16, header: u64, payload: &[u8]) -> Result<(), Status> {
        if payload.len() <= self.max_short.get() {
            return match self.message.get().am_short(u32::from(id), header, payload) {
                OK => Ok(()),
                code => Err(Status::from_code(code)),
            };
        }
        self.pack_now(id, header, payload.len(), |out| out.put(payload))
    }

    /// Posts a packed message to the lane; the queue is not looked at.
    pub(crate) fn pack_now(
        &self,
        id: u16,
        header: u64,
        max: usize,
        mut pack: impl FnMut(&mut PackBuffer<'_>) -> Result<(), Status>,
    ) -> Result<(), Status> {
        self.message.get().am_packed(u32::from(id), header, max, &mut pack).map(|_| ())
    }

    /// The longest message.
    pub(super) fn most(&self) -> usize {
        self.max_packed.get().max(self.max_short.get())
    }

    /// How much one packed message carries behind a head of the library's own. What is registered as a module of
    /// packed messages has room for more than any head; one without them carries nothing in pieces.
    pub(crate) fn most_behind(&self, head: usize) -> Result<usize, Status> {
        self.max_packed.get().checked_sub(head).filter(|&n| n > 0).ok_or(Status::Unsupported)
    }

    // ---- failure ----

    pub(crate) fn is_alive(&self) -> bool {
        !matches!(self.state.get(), State::Failed | State::Closed)
    }

    /// A key that goes through the lanes of this endpoint.
    pub(super) fn note_key(&self, key: &Rc<KeyInner>) {
        let mut keys = self.keys.borrow_mut();
        if keys.len() == keys.capacity() {
            keys.retain(|key| key.strong_count() > 0);
        }
        keys.push(Rc::downgrade(key));
    }

    /// The lanes that close with it: circuits are the worker's.
    pub(crate) fn own_lanes(&self) -> Vec<(usize, RawEndpoint)> {
        let lanes = self.lanes.borrow();
        lanes.iter().filter(|lane| lane.owned).map(|lane| (lane.interface, lane.raw)).collect()
    }

    /// What a person calls it.
    pub(crate) fn name(&self) -> String {
        format!("{} through {}", self.address.label(), self.message_path())
    }

    /// What a person calls the message lane.
    pub(crate) fn message_path(&self) -> String {
        match self.route.message() {
            Some(pair) => self.shared.interfaces[pair.interface].path.clone(),
            None => "no message module".into(),
        }
    }

    /// The endpoint to the peer's service worker that there is.
    pub(super) fn open_control(&self) -> Option<Rc<Inner>> {
        self.control.borrow().clone()
    }

    /// What the message lane answered.
    pub(crate) fn by_message_lane(&self, status: Status) -> Failed {
        Failed { status, interface: self.route.message().map(|pair| pair.interface) }
    }

    /// Its lanes over an interface, of which there is one at most.
    pub(super) fn raws_over(&self, interface: usize) -> impl Iterator<Item = RawEndpoint> + use<> {
        let lanes = self.lanes.borrow();
        let raw = lanes.iter().find(|lane| lane.interface == interface).map(|lane| lane.raw);
        raw.into_iter()
    }

    /// Whether a lane over this interface is open.
    pub(crate) fn has_lane(&self, interface: usize) -> bool {
        self.lanes.borrow().iter().any(|lane: &Lane| lane.interface == interface)
    }
}
