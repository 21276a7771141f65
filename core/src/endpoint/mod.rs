//! Endpoints: messages, put, get and atomics to one peer.
//!
//! A connection is made by the first operation. Operations that the transport has no room for are queued
//! in order, up to `TIELINE_QUEUE_BYTES`; beyond that the call says `Again` and nothing was sent.

mod abi;
mod answer;
pub(crate) mod assist;
mod atomic;
mod calls;
mod emulated;
mod end;
pub(crate) mod flush;
pub(crate) mod key;
mod packing;
mod post;
pub(crate) mod queue;
mod rails;
mod rma;
mod route;
mod unreachable;

pub use key::RemoteKey;
pub use rma::{AtomicOp, Completion, Width};

use crate::address::WorkerAddress;
use crate::explain::Record;
use crate::op::held::Through;
use crate::op::{Id, Kind};
use crate::proto::id;
use crate::region::Region;
use crate::registry::abi::{PackBuffer, RawEndpoint};
use crate::request::{Outcome, Request};
use crate::shared::Shared;
use crate::{Error, Status};
pub(crate) use calls::WorkerCalls;
use packing::packed_too_much;
pub(crate) use queue::Waiting;
use queue::{Failed, Task};
pub(crate) use route::{Route, Way};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::rc::{Rc, Weak};
use tieline_plugin_api::OK;

/// Where an endpoint stands. Only `Ready` takes the short way.
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
    /// It carries the answers to what came over one line, and nothing else.
    Line,
}

/// An opened lane of this endpoint.
pub(crate) struct Lane {
    pub(crate) interface: usize,
    pub(crate) raw: RawEndpoint,
    /// Closed with this endpoint; a line of the worker's is not.
    owned: bool,
}

pub(crate) struct Inner {
    pub(crate) state: Cell<State>,
    pub(crate) message: Cell<RawEndpoint>,
    pub(crate) max_short: Cell<usize>,
    max_packed: Cell<usize>,
    pub(crate) shared: Rc<Shared>,
    worker: Rc<dyn WorkerCalls>,
    /// Its number, which is also the cookie of its lanes.
    pub(crate) id: Id,
    /// Its place among the worker's endpoints, and the owner of its operations.
    pub(crate) index: usize,
    pub(crate) address: WorkerAddress,
    pub(crate) route: Route,
    pub(crate) owner: Owner,
    /// Whether an application's packer writes into a buffer of its message lane.
    packing: Cell<packing::Packing>,
    /// Keys of other endpoints go through its lanes.
    reaches_memory: Cell<bool>,
    lanes: RefCell<Vec<Lane>>,
    queue: RefCell<VecDeque<Task>>,
    queued_bytes: Cell<usize>,
    /// What the peer asked, to be answered before anything of ours.
    answers: RefCell<VecDeque<Waiting>>,
    pub(crate) busy: Cell<bool>,
    error: RefCell<Option<Error>>,
    /// The endpoint to the peer's service worker, when it has one.
    control: RefCell<Option<Rc<Inner>>>,
    /// Those before it that failed, and through whose lanes keys may still go.
    past_controls: RefCell<Vec<Rc<Inner>>>,
    /// What order flush and fence have to keep.
    order: flush::Order,
    /// Keys that were imported here, whose ways a broken provider is taken out of.
    keys: RefCell<Vec<Weak<key::KeyInner>>>,
    /// Large transfers in a row with which the peer did not help.
    pub(crate) lonely: Cell<u32>,
}

/// A connection to one peer. Clones are the same endpoint; the last one dropped closes it: what said `Done` still arrives,
/// and what is queued is sent first. What is pending beyond that ends with `Canceled`, or goes on without the endpoint and
/// ends well, where the connection stays.
#[derive(Clone)]
pub struct Endpoint {
    pub(crate) inner: Rc<Inner>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({})", self.inner.name())
    }
}

/// How often a message that finds no room is tried again before it is copied into the queue: about the time
/// in which a receiver that is awake makes room.
const RETRIES: usize = 64;
/// Queued operations that one slow send tries to get rid of first.
const DRAIN: usize = 16;

/// The largest message id that an application may use.
pub const MAX_MESSAGE_ID: u16 = id::FIRST - 1;

impl Endpoint {
    /// Sends a message: `id` chooses the handler at the peer, `header` and `payload` are handed to it.
    /// The payload is copied. `Done`: it is under way. `Pending`: it is queued, in order.
    ///
    /// # Errors
    /// `Again` when the queue is full (nothing was sent: make progress), `TooLarge`, `PeerFailed` and
    /// the other reasons for which an endpoint is finished.
    #[inline]
    pub fn send(&self, id: u16, header: u64, payload: &[u8]) -> Result<Outcome, Error> {
        let ep = &*self.inner;
        if ep.state.get() == State::Ready
            && payload.len() <= ep.max_short.get()
            && id <= MAX_MESSAGE_ID
            && ep.shared.same_process()
        {
            let code = ep.message.get().am_short(u32::from(id), header, payload);
            if code == OK {
                return Ok(Outcome::Done(0));
            }
            return ep.send_refused(code, id, header, payload);
        }
        ep.send_slow(id, header, payload)
    }

    /// Sends a message that `pack` writes straight into the transport's buffer: it gets room for
    /// `max_len` bytes and returns how many it wrote.
    ///
    /// # Errors
    /// As [`Endpoint::send`]; `Invalid`, and nothing is sent, when `pack` returns more than `max_len`.
    pub fn send_packed(
        &self,
        id: u16,
        header: u64,
        max_len: usize,
        pack: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<Outcome, Error> {
        let ep = &*self.inner;
        ep.check_message(id, max_len)?;
        let mut pack = Some(pack);
        if ep.ready_or_opened()? {
            let packing = ep.begin_packing();
            let result = ep.pack_now(id, header, max_len, |out| {
                let pack = pack.take().ok_or(Status::Invalid)?;
                out.put_with(max_len, pack)
            });
            drop(packing);
            match result {
                Ok(()) => return Ok(Outcome::Done(0)),
                Err(Status::Again) => {}
                // Nothing was sent.
                Err(Status::Invalid) if pack.is_none() => return Err(packed_too_much(max_len)),
                Err(status) => return Err(ep.failed(ep.by_message_lane(status))),
            }
        }
        let Some(pack) = pack else {
            // The provider ran the callback and then had no room: its promise is broken.
            return Err(ep.failed(ep.by_message_lane(Status::ProviderFailed)));
        };
        if !ep.has_room(max_len) {
            return Err(Status::Again.into());
        }
        let mut bytes = vec![0; max_len];
        let mut buffer = PackBuffer::new(&mut bytes);
        buffer.put_with(max_len, pack).map_err(|_| packed_too_much(max_len))?;
        let len = buffer.len();
        bytes.truncate(len);
        ep.queue_message(id, header, bytes.into())
    }

    /// Sends a message gathered from pieces of regions, which must not change until it is done.
    ///
    /// # Errors
    /// As [`Endpoint::send`], and `OutOfRange`.
    pub fn send_regions(
        &self,
        id: u16,
        header: u64,
        pieces: &[(&Region, Range<usize>)],
    ) -> Result<Outcome, Error> {
        let ep = &*self.inner;
        let mut len = 0usize;
        for (region, range) in pieces {
            ep.check_local(region)?;
            let n = range.end.checked_sub(range.start).ok_or(Status::Invalid)?;
            let _ = region.inner.span.range(range.start, n)?;
            len = len.saturating_add(n);
        }
        ep.check_message(id, len)?;
        let pieces = pieces.iter().map(|(region, range)| (region.hold(), range.clone()));
        let request = ep.open(Kind::Send)?;
        ep.enqueue(Task::Gather { id, header, pieces: pieces.collect(), len, request });
        ep.outcome(request)
    }

    /// The longest message that this endpoint carries.
    ///
    /// # Errors
    /// When there is no path to the peer.
    pub fn max_message(&self) -> Result<usize, Error> {
        let ep = &*self.inner;
        let _ = ep.ready_or_opened()?;
        Ok(ep.max_packed.get().max(ep.max_short.get()))
    }

    /// Completes when every put, get and atomic posted before is complete at the target, and every message
    /// posted before is in the transport's hands, in order.
    ///
    /// # Errors
    /// The first failure of what it waited for.
    pub fn flush(&self) -> Result<Outcome, Error> {
        self.inner.flush()
    }

    /// Completes when the peer's handlers have run for every message posted before: a round trip.
    ///
    /// # Errors
    /// As [`Endpoint::flush`].
    pub fn flush_messages(&self) -> Result<Outcome, Error> {
        let ep = &*self.inner;
        ep.check_alive()?;
        ep.shared.check_no_handler("a flush")?;
        let request = ep.open(Kind::Ping)?;
        ep.enqueue(Task::ask(id::PING, request, Vec::new()));
        ep.outcome(request)
    }

    /// Orders every put, get and atomic posted before ahead of those posted after.
    ///
    /// # Errors
    /// As [`Endpoint::flush`].
    pub fn fence(&self) -> Result<(), Error> {
        self.inner.fence()
    }

    /// The module that carries messages to this peer: `shm/ring`.
    #[must_use]
    pub fn message_path(&self) -> String {
        self.inner.message_path()
    }

    /// What was composed for this peer, in a line: `{message verbs:mlx5_0/rc, RMA verbs:mlx5_0/rc, atomic emulated,
    /// connect verbs:mlx5_0/ud}`. Where several modules serve one purpose, memory decides: a key says which it is.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{{message {}, {}}}", self.inner.message_path(), self.inner.route.composed)
    }

    /// What was decided for this peer, module by module.
    #[must_use]
    pub fn report(&self) -> Vec<Record> {
        self.inner.route.records.clone()
    }

    /// The reason why this endpoint is finished, if it is.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        self.inner.error.borrow().clone()
    }
}

/// Tries until there is room or patience ends.
fn patiently(mut send: impl FnMut() -> Result<(), Status>) -> Result<(), Status> {
    for _ in 0..RETRIES {
        match send() {
            Err(Status::Again) => std::hint::spin_loop(),
            result => return result,
        }
    }
    Err(Status::Again)
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
        let attr = route.message().map(|way| shared.interfaces[way.interface].attr);
        Inner {
            state: Cell::new(State::New),
            message: Cell::new(RawEndpoint::nowhere()),
            max_short: Cell::new(attr.map_or(0, |attr| attr.max_short)),
            max_packed: Cell::new(attr.map_or(0, |attr| attr.max_packed)),
            shared,
            worker,
            id,
            index: id.place(),
            address,
            route,
            owner,
            packing: Cell::default(),
            reaches_memory: Cell::new(false),
            lanes: RefCell::default(),
            queue: RefCell::default(),
            queued_bytes: Cell::new(0),
            answers: RefCell::default(),
            busy: Cell::new(false),
            error: RefCell::default(),
            control: RefCell::default(),
            past_controls: RefCell::default(),
            order: flush::Order::default(),
            keys: RefCell::default(),
            lonely: Cell::new(0),
        }
    }

    // ---- the slow ways of a message ----

    #[cold]
    fn send_refused(
        &self,
        code: i32,
        id: u16,
        header: u64,
        payload: &[u8],
    ) -> Result<Outcome, Error> {
        let sent = match Status::from_code(code) {
            Status::Again => patiently(|| self.short_now(id, header, payload)),
            status => Err(status),
        };
        match sent {
            Ok(()) => Ok(Outcome::Done(0)),
            Err(Status::Again) => self.queue_message(id, header, payload.into()),
            Err(status) => Err(self.failed(self.by_message_lane(status))),
        }
    }

    #[cold]
    fn send_slow(&self, id: u16, header: u64, payload: &[u8]) -> Result<Outcome, Error> {
        self.check_message(id, payload.len())?;
        if self.state.get() == State::Queueing {
            // What is queued goes first; then this message needs no copy.
            let _ = self.run_queue(DRAIN);
        }
        if self.ready_or_opened()? {
            let sent = patiently(|| {
                if payload.len() <= self.max_short.get() {
                    return self.short_now(id, header, payload);
                }
                self.pack_now(id, header, payload.len(), |out| out.put(payload))
            });
            match sent {
                Ok(()) => return Ok(Outcome::Done(0)),
                Err(Status::Again) => {}
                Err(status) => return Err(self.failed(self.by_message_lane(status))),
            }
        }
        if !self.has_room(payload.len()) {
            return Err(Status::Again.into());
        }
        self.queue_message(id, header, payload.into())
    }

    fn queue_message(&self, id: u16, header: u64, payload: Box<[u8]>) -> Result<Outcome, Error> {
        if !self.has_room(payload.len()) {
            return Err(Status::Again.into());
        }
        let request = self.open(Kind::Send)?;
        self.enqueue(Task::Message { id, header, payload, request: Some(request) });
        self.outcome(request)
    }

    /// How an operation stands right after it was posted.
    pub(crate) fn outcome(&self, id: Id) -> Result<Outcome, Error> {
        let ended = self.shared.ops.borrow_mut().take(id);
        match ended {
            Some(result) => {
                self.shared.ops.borrow_mut().forget(id);
                result.map(Outcome::Done)
            }
            None => Ok(Outcome::Pending(Request { shared: self.shared.clone(), id })),
        }
    }

    /// Opens an operation of this endpoint. `Again`: it has as many as it may.
    pub(crate) fn open(&self, kind: Kind) -> Result<Id, Status> {
        self.shared.ops.borrow_mut().open(self.index, kind)
    }

    fn check_message(&self, id: u16, len: usize) -> Result<(), Error> {
        self.check_alive()?;
        if id > MAX_MESSAGE_ID {
            return Err(Error::new(
                Status::Invalid,
                format!("message id {id:#x}"),
                format!("ids above {MAX_MESSAGE_ID:#x} belong to the library"),
                "use a smaller id",
            ));
        }
        let _ = self.ready_or_opened()?;
        let max = self.max_packed.get().max(self.max_short.get());
        if len > max {
            return Err(Error::new(
                Status::TooLarge,
                format!("a message of {len} bytes"),
                format!("{} carries at most {max}", self.message_path()),
                "split it, or put it into the peer's memory",
            ));
        }
        Ok(())
    }

    /// `true` when a message may be sent right now; `false` when it has to queue.
    fn ready_or_opened(&self) -> Result<bool, Error> {
        self.check_alive()?;
        if self.state.get() == State::New {
            match self.open_message_lane() {
                Ok(()) => {}
                Err(error) if error.status() == Status::Again => return Ok(false),
                Err(error) => {
                    self.fail(error.clone());
                    return Err(error);
                }
            }
        }
        Ok(self.state.get() == State::Ready)
    }

    /// Posts a short message to the lane; the queue is not looked at.
    pub(crate) fn short_now(&self, id: u16, header: u64, payload: &[u8]) -> Result<(), Status> {
        match self.message.get().am_short(u32::from(id), header, payload) {
            OK => Ok(()),
            code => Err(Status::from_code(code)),
        }
    }

    /// Posts a message of the core's own, whichever way the lane takes one so short; the queue is not looked at.
    pub(crate) fn control_now(&self, id: u16, header: u64, payload: &[u8]) -> Result<(), Status> {
        if payload.len() <= self.max_short.get() {
            return self.short_now(id, header, payload);
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
    fn note_key(&self, key: &Rc<key::KeyInner>) {
        let mut keys = self.keys.borrow_mut();
        if keys.len() == keys.capacity() {
            keys.retain(|key| key.strong_count() > 0);
        }
        keys.push(Rc::downgrade(key));
    }

    /// The lanes that close with it: lines are the worker's.
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
            Some(way) => self.shared.interfaces[way.interface].path.clone(),
            None => "no message module".into(),
        }
    }
}
