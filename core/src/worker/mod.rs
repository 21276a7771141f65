//! Workers: a progress engine and the interfaces opened on it. One thread drives a worker at a time.

pub(crate) mod abi;
mod backoff;
mod carried;
pub(crate) mod carrier;
mod close;
mod endpoints;
mod identity;
mod numbers;
mod orphans;
mod owed;
mod peers;
mod progress;
pub(crate) mod services;
#[cfg(test)]
mod tests;
mod wait;
pub(crate) mod wiring;

pub use close::{Loss, Undelivered};

use crate::address::WorkerAddress;
use crate::endpoint::{Endpoint, Inner as EndpointInner, Owner};
use crate::message::{Message, PeerId};
use crate::op::held::{Held, Through, Unfinished};
use crate::op::slab::Slab;
use crate::op::{Id, Table};
use crate::rank::ModuleRef;
use crate::registry::LoadedProvider;
use crate::registry::abi::objects::OpenInterface;
use crate::request::{Outcome, Request};
use crate::setup::{Core, Roles};
use crate::sys::{ForkGuard, Poller, Timer};
use crate::{Error, Status};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use tieline_plugin_api::abi::{Event, ModuleAttr};
use tieline_plugin_api::{caps, connects};

/// What a worker keeps alive while it is there: the context's progress thread, which ends with the last who holds it.
pub(crate) type Lease = dyn Any + Send + Sync;

/// A module opened on a worker.
pub(crate) struct InterfaceSlot {
    pub(crate) provider: Arc<LoadedProvider>,
    pub(crate) domain: String,
    pub(crate) module: String,
    /// `shm/ring`
    pub(crate) path: String,
    pub(crate) priority: i32,
    pub(crate) roles: Roles,
    pub(crate) attr: ModuleAttr,
    pub(crate) interface: OpenInterface,
    /// Why it serves no new endpoint: its device is gone, or its provider broke.
    pub(crate) out_of_use: RefCell<Option<Error>>,
    /// Both sides make an endpoint, and wire-up carries their addresses.
    pub(crate) to_endpoint: bool,
    /// The provider's number of a peer -> the worker's.
    peers: RefCell<numbers::Numbers>,
}

impl InterfaceSlot {
    #[inline]
    pub(crate) fn peer(&self, number: u64) -> PeerId {
        PeerId(self.peers.borrow().peer(number))
    }

    /// Whether what is posted to it will be told the end of.
    pub(crate) fn check_in_use(&self) -> Result<(), Error> {
        self.out_of_use.borrow().clone().map_or(Ok(()), Err)
    }

    /// The provider's numbers of a peer of the worker's.
    fn numbers_of(&self, peer: u32) -> Vec<u64> {
        self.peers.borrow().of(peer)
    }

    /// The error of an operation that the provider ended with a status alone.
    fn failed_completion(&self, status: Status) -> Error {
        Error::new(status, format!("an operation over {} failed", self.path), status.text(), "")
    }
}

type Handler = Box<dyn Fn(&Message<'_>)>;
type FailureHandler = Rc<dyn Fn(PeerId, &Error)>;
type LeftHandler = Rc<dyn Fn(PeerId)>;

/// What a worker has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages with an id that has no handler: dropped.
    pub unknown_ids: u64,
    /// Malformed messages of the library's own protocols: dropped.
    pub malformed: u64,
    /// Messages by which peers asked for puts, gets and atomics that no module does for them.
    pub emulated: u64,
    /// Pieces of peers' large puts and gets that this worker copied for them.
    pub assisted_chunks: u64,
    /// Connections that were formed with peers, by modules that connect to an endpoint.
    pub connections: u64,
    /// Of such, those that did not come about.
    pub failed_connections: u64,
    /// Messages of wire-up that were sent again because no answer came.
    pub wireup_retransmissions: u64,
    /// Requests for a connection that were rejected.
    pub wireup_rejections: u64,
}

pub(crate) struct Inner {
    pub(crate) core: Arc<Core>,
    _lease: Option<Arc<Lease>>,
    pub(crate) id: [u8; 16],
    guard: ForkGuard,
    /// Its `Worker` was dropped: nothing new begins, whoever still holds it.
    closed: Cell<bool>,
    in_progress: Cell<bool>,
    has_work: Cell<bool>,
    /// The application has been told that the context's progress thread has stopped.
    heard_of_service: Cell<bool>,
    /// Somebody asked for a key that a provider still fetches; its arrival is no event.
    settling: Cell<bool>,
    handlers: RefCell<Vec<Option<Handler>>>,
    late_handlers: RefCell<Vec<(u16, Handler)>>,
    on_failure: RefCell<Option<FailureHandler>>,
    on_left: RefCell<Option<LeftHandler>>,
    peers: RefCell<peers::Peers>,
    /// Interfaces that every progress call polls, and those that are asked less often.
    fast: Vec<usize>,
    slow: Vec<usize>,
    /// Progress calls until the slow ones are polled, and polls that they are still asked every time.
    slow_in: Cell<u32>,
    hot: Cell<u32>,
    pause: Cell<u32>,
    timer: Timer,
    pub(crate) wiring: wiring::Wiring,
    services: services::Desk,
    /// Every operation that has not ended.
    pub(crate) ops: RefCell<Table>,
    /// Those of endpoints that are gone.
    orphans: orphans::Orphans,
    endpoints: RefCell<Slab<(), Weak<EndpointInner>>>,
    /// What a handler left of its batch when it panicked, by interface.
    left_over: RefCell<VecDeque<(usize, Vec<Event>)>>,
    has_left_over: Cell<bool>,
    /// Answers that no way leads to the asker for at the moment.
    owed: owed::Owed,
    busy: RefCell<VecDeque<Rc<EndpointInner>>>,
    pub(crate) assist: crate::assist::Desk,
    counters: Cell<Counters>,
    poller: Poller,
    backoff: backoff::Backoff,
    /// Last, so that everything above that points into providers goes first.
    pub(crate) interfaces: Vec<InterfaceSlot>,
    /// Where each of them is, in its own words: beside them, since a poll looks at as little as it can.
    said: Vec<identity::Said>,
    /// Memory of ended operations that providers may still touch; what is left goes when the interfaces are closed.
    held: RefCell<Held>,
}

/// A progress engine with the interfaces opened on it. It belongs to the thread that made it.
///
/// ```no_run
/// # fn main() -> Result<(), tieline::Error> {
/// let context = tieline::Context::open()?;
/// let worker = context.worker()?;
/// worker.on_message(7, |m| println!("{} bytes from {}", m.payload().len(), m.peer()))?;
/// let me = worker.connect(&worker.address()?)?; // a worker may write to itself
/// let sent = me.send(7, 0, b"hello")?;
/// worker.finish(sent)?;
/// worker.wait(None)?;
/// # Ok(()) }
/// ```
///
/// # The end
///
/// Dropping a worker, or an endpoint of it, means the same over every transport. What said `Done` is kept: a message that a
/// transport has taken reaches a peer that lives and makes progress. What is pending when a worker is dropped ends with
/// `Closed`, and may be lost: [`Worker::close`] first delivers it, or says what it could not. What is queued on an endpoint that
/// is dropped is sent by its worker; what was posted ends with `Canceled`, or as it does where the connection stays.
/// Dropping does not wait for peers' applications, but it may wait for room on the way to them, at most
/// `TIELINE_CLOSE_TIMEOUT` (1 s) for each interface; what finds none by then is lost.
///
/// Endpoints, keys and requests that are still held when the worker is dropped are of no use any more, but they keep the
/// worker's interfaces open: these close with the last of them.
pub struct Worker {
    pub(crate) inner: Rc<Inner>,
}

impl Worker {
    pub(crate) fn open(core: Arc<Core>, lease: Option<Arc<Lease>>) -> Result<Worker, Error> {
        core.check_process("a context")?;
        let id = crate::sys::random_id()?;
        // What the worker itself needs comes first: a provider that takes the last descriptor must not cost all others.
        let poller = Poller::new()?;
        let timer = Timer::new()?;
        poller.add(timer.as_raw_fd())?;
        let mut interfaces: Vec<InterfaceSlot> = Vec::new();
        let mut words = Vec::new();
        let mut refused = None;
        for module in &core.modules {
            let domain = &core.memory.domains[module.domain];
            let opened = domain.domain.open_interface(&module.name, id).and_then(|interface| {
                interface.event_fd().map_or(Ok(()), |fd| poller.add(fd))?;
                let said = identity::Said::first(interface.address()?);
                Ok((interface, said))
            });
            let (interface, said) = match opened {
                Ok(opened) => opened,
                // The others may do without it; the report says why it is missing.
                Err(error) => {
                    core.note(format!("{} is not used: {error}", module.path));
                    refused = Some(error);
                    continue;
                }
            };
            words.push(said);
            interfaces.push(InterfaceSlot {
                provider: domain.provider.clone(),
                domain: domain.name.clone(),
                module: module.name.clone(),
                path: module.path.clone(),
                priority: module.attr.priority,
                roles: module.roles,
                attr: module.attr,
                to_endpoint: module.attr.connects & connects::TO_INTERFACE == 0,
                interface,
                out_of_use: RefCell::default(),
                peers: RefCell::default(),
            });
        }
        if let (Some(error), false) = (refused, interfaces.iter().any(|i| i.roles.message)) {
            return Err(error);
        }
        let carriers = carrier::Carriers::open(&core, id, &poller);
        let wiring = wiring::Wiring::new(id, carriers, core.connect_timeout);
        let services = services::Desk::new(core.connect_timeout);
        let polled = |slow: bool| {
            let asks = move |caps: u64| {
                caps & caps::NEEDS_POLL != 0 && (caps & caps::SLOW_POLL != 0) == slow
            };
            let all = interfaces.iter().enumerate();
            all.filter(|(_, slot)| asks(slot.attr.caps)).map(|(index, _)| index).collect::<Vec<_>>()
        };
        let (fast, slow) = (polled(false), polled(true));
        let backoff = backoff::Backoff::new(core.spin.clone());
        let operations = core.queue_bytes / crate::endpoint::queue::OPERATION_BYTES;
        let inner = Inner {
            core,
            _lease: lease,
            id,
            guard: ForkGuard::new()?,
            closed: Cell::new(false),
            in_progress: Cell::new(false),
            has_work: Cell::new(false),
            heard_of_service: Cell::new(false),
            settling: Cell::new(false),
            handlers: RefCell::default(),
            late_handlers: RefCell::default(),
            on_failure: RefCell::default(),
            on_left: RefCell::default(),
            peers: RefCell::default(),
            fast,
            slow,
            slow_in: Cell::new(0),
            hot: Cell::new(0),
            pause: Cell::new(1),
            timer,
            wiring,
            services,
            ops: RefCell::new(Table::new(operations)),
            orphans: orphans::Orphans::default(),
            endpoints: RefCell::default(),
            left_over: RefCell::default(),
            has_left_over: Cell::new(false),
            owed: owed::Owed::default(),
            busy: RefCell::default(),
            assist: crate::assist::Desk::default(),
            counters: Cell::default(),
            poller,
            backoff,
            interfaces,
            said: words,
            held: RefCell::default(),
        };
        Ok(Worker { inner: Rc::new(inner) })
    }

    /// The bytes that lead a peer here. Carry them to it unchanged, by any means.
    ///
    /// # Errors
    /// `TooLarge` where it does not fit an address.
    pub fn address(&self) -> Result<Vec<u8>, Error> {
        self.inner.identity()
    }

    /// Registers what to do with messages of one id. The handler runs inside [`Worker::progress`], on its
    /// thread; it may send, but not make progress.
    ///
    /// # Errors
    /// `Invalid` for an id of the library's own range; `Closed` when the worker is.
    pub fn on_message(
        &self,
        id: u16,
        handler: impl Fn(&Message<'_>) + 'static,
    ) -> Result<(), Error> {
        self.inner.check_open()?;
        if id > crate::endpoint::MAX_MESSAGE_ID {
            return Err(Error::new(
                Status::Invalid,
                format!("a handler for message id {id:#x}"),
                "ids from 0xf000 on belong to the library",
                "use a smaller id",
            ));
        }
        if let Ok(mut handlers) = self.inner.handlers.try_borrow_mut() {
            let before = set_handler(&mut handlers, id, Box::new(handler));
            drop(handlers);
            drop(before);
        } else {
            // Called from a handler: it takes effect when that progress call returns.
            self.inner.late_handlers.borrow_mut().push((id, Box::new(handler)));
            self.inner.note_work();
        }
        Ok(())
    }

    /// Registers what to do when a peer is gone that has written to us or that we have a connection to: its process
    /// has ended, or the last way between the two has failed. It is called once, with the first reason, however
    /// many connections there were; and again only if the peer has come back in between. A peer that closes its
    /// connections is not gone, nor is one of whose several devices one failed.
    pub fn on_peer_failure(&self, handler: impl Fn(PeerId, &Error) + 'static) {
        if self.inner.check_open().is_ok() {
            *self.inner.on_failure.borrow_mut() = Some(Rc::new(handler));
        }
    }

    /// Registers what to do when a peer has left in good order: it has closed the last connection over which it wrote to us, at
    /// the latest by dropping its worker. Everything that it had sent before has been handed on by then, and nothing more comes
    /// from it unless it connects anew. It is not called for a peer that is gone: that is [`Worker::on_peer_failure`].
    pub fn on_peer_left(&self, handler: impl Fn(PeerId) + 'static) {
        if self.inner.check_open().is_ok() {
            *self.inner.on_left.borrow_mut() = Some(Rc::new(handler));
        }
    }

    /// An endpoint that leads to the worker with this address. The connection itself is made by the first
    /// operation.
    ///
    /// # Errors
    /// `BadData` for bytes that are no address; `Unreachable`, with the reason for each module, when
    /// there is no path.
    pub fn connect(&self, address: &[u8]) -> Result<Endpoint, Error> {
        let address = WorkerAddress::parse(address)?;
        let inner = self.inner.open_endpoint(address, Owner::Application)?;
        Ok(Endpoint { inner })
    }

    /// An endpoint that leads to a peer that has written to us.
    ///
    /// # Errors
    /// As [`Worker::connect`].
    pub fn endpoint_to(&self, peer: PeerId) -> Result<Endpoint, Error> {
        let inner = self.inner.reply_endpoint(peer.0)?;
        Ok(Endpoint { inner })
    }

    /// Moves everything on that can be moved on, runs handlers, and returns how many events there were.
    /// Inside a handler it does nothing.
    #[inline]
    pub fn progress(&self) -> usize {
        self.inner.progress()
    }

    /// Waits for an operation and returns its value.
    ///
    /// # Errors
    /// The operation's error; `Busy` inside a handler.
    pub fn finish(&self, outcome: Outcome) -> Result<u64, Error> {
        self.inner.check_no_handler("finish")?;
        match outcome {
            Outcome::Done(value) => Ok(value),
            Outcome::Pending(request) => self.inner.finish(&request),
        }
    }

    /// The result of an operation of this worker, once it has one.
    #[must_use]
    pub fn test(&self, request: &Request) -> Option<Result<u64, Error>> {
        match self.inner.check_owner(request) {
            Ok(()) => self.inner.ops.borrow_mut().take(request.id),
            Err(error) => Some(Err(error)),
        }
    }

    /// Waits until everything that is posted on every endpoint now is complete; see [`Endpoint::flush`]. All of them are
    /// flushed at once. An endpoint that has failed before is left out: its operations have ended, and what had
    /// completed locally there may be lost, as its own error says.
    ///
    /// # Errors
    /// The first failure of what it waited for; `Busy` inside a handler.
    pub fn flush(&self) -> Result<(), Error> {
        self.inner.check_no_handler("a flush")?;
        let mut first = Ok(());
        let mut posted = VecDeque::new();
        for inner in self.inner.all_endpoints() {
            if !inner.is_alive() {
                continue;
            }
            // While it has as many operations as it may, some must end first.
            let flush = || match inner.flush() {
                Err(error) if error.status() == Status::Again => None,
                result => Some(result),
            };
            match self.inner.wait_for(None, false, flush)? {
                // One that was dropped while something waited for room is held, or it would end with its last task.
                Some(Ok(outcome @ Outcome::Pending(_))) => {
                    posted.push_back((inner.clone(), outcome))
                }
                Some(Err(error)) => first = first.and(Err(error)),
                Some(Ok(Outcome::Done(_))) | None => {}
            }
        }
        for (inner, outcome) in posted {
            if let Err(error) = self.finish(outcome) {
                first = first.and(Err(error));
            }
            drop(inner);
        }
        first
    }

    /// Memory that the worker's interfaces hold, by module.
    #[must_use]
    pub fn memory(&self) -> Vec<MemoryUse> {
        let used = |slot: &InterfaceSlot| {
            let m = slot.interface.memory()?;
            Some(MemoryUse {
                path: slot.path.clone(),
                base_bytes: m.base_bytes,
                peers: m.peers,
                peer_bytes: m.peer_bytes,
                buffer_bytes: m.buffer_bytes,
            })
        };
        self.inner.interfaces.iter().filter_map(used).collect()
    }

    /// What the worker has counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = self.inner.counters.get();
        self.inner.wiring.count(&mut counters);
        counters
    }

    /// How many operations are pending.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.inner.ops.borrow().open_count()
    }
}

/// Memory that one interface holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// The module.
    pub path: String,
    /// Bytes that do not depend on the number of peers.
    pub base_bytes: u64,
    /// Peers.
    pub peers: u64,
    /// Bytes for all of them together.
    pub peer_bytes: u64,
    /// Bytes of message buffers that have been committed.
    pub buffer_bytes: u64,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.same_process() {
            self.release_left_over();
            self.wiring.close();
        } else {
            // Closed in a forked child, they would say good-bye in the parent's name.
            self.wiring.forget();
            std::mem::forget(std::mem::take(&mut self.interfaces));
        }
    }
}

/// Puts a handler in its place; what was there before is the caller's to drop, once nothing is borrowed.
fn set_handler(handlers: &mut Vec<Option<Handler>>, id: u16, handler: Handler) -> Option<Handler> {
    let index = usize::from(id);
    if handlers.len() <= index {
        handlers.resize_with(index + 1, || None);
    }
    handlers[index].replace(handler)
}

impl Inner {
    #[inline]
    pub(crate) fn same_process(&self) -> bool {
        self.guard.same_process()
    }

    /// The worker's number of a peer, which may be new.
    fn peer_number(&self, address: &WorkerAddress) -> u32 {
        let (number, forgotten) = self.peers.borrow_mut().number(address);
        drop(forgotten);
        number
    }

    /// A number for a peer whose address makes no sense.
    fn nobodys_number(&self) -> u32 {
        let (number, forgotten) = self.peers.borrow_mut().add(None);
        drop(forgotten);
        number
    }

    /// A number of an interface's means that peer from now on.
    fn note_peer(&self, slot: &InterfaceSlot, number: u64, peer: u32) {
        let before = slot.peers.borrow_mut().note(number, peer);
        let forgotten = {
            let mut peers = self.peers.borrow_mut();
            peers.arrived(peer);
            peers.left(before)
        };
        drop(forgotten);
    }

    /// A number of an interface's means nobody any more. Returns whom it meant, where nothing else leads here from it.
    fn forget_number(&self, slot: &InterfaceSlot, number: u64) -> Option<PeerId> {
        let before = slot.peers.borrow_mut().forget(number);
        let (forgotten, gone) = {
            let mut peers = self.peers.borrow_mut();
            let was = peers.is_here(before);
            (peers.left(before), was && !peers.is_here(before))
        };
        drop(forgotten);
        gone.then_some(PeerId(before))
    }

    /// A peer has closed one of its connections in good order; where that was the last one, the application hears it.
    #[cold]
    fn closed_in_good_order(&self, slot: &InterfaceSlot, number: u64) {
        self.tell_of_leaving(self.forget_number(slot, number));
    }

    /// Tells the application that a peer has left in good order.
    #[cold]
    fn tell_of_leaving(&self, gone: Option<PeerId>) {
        let handler = self.on_left.borrow().clone();
        if let (Some(peer), Some(handler)) = (gone, handler) {
            handler(peer);
        }
    }

    /// The place of a module among the interfaces, if it could be opened.
    pub(crate) fn interface(&self, at: &ModuleRef) -> Option<usize> {
        self.interfaces.iter().position(|slot| {
            slot.provider.name == at.provider
                && slot.domain == at.domain
                && slot.module == at.module
        })
    }

    // ---- operations ----

    /// Changes the table of operations. What thereby ends may hold an application's buffer, whose drop may do anything:
    /// it is let go when nothing is borrowed.
    #[inline]
    pub(crate) fn with_ops<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let (result, mut freed, due) = {
            let mut ops = self.ops.borrow_mut();
            (change(&mut ops), ops.take_freed(), ops.has_due())
        };
        if due {
            self.note_work();
        }
        while let Some(landing) = freed {
            drop(landing);
            freed = self.ops.borrow_mut().take_freed();
        }
        result
    }

    /// One event of an operation has come.
    #[inline]
    pub(crate) fn part(&self, id: Id, result: Result<u64, Error>) {
        let _ = self.with_ops(|ops| ops.part(id, result));
    }

    /// Keeps the memory of an operation that has ended here while a provider may still touch it.
    pub(crate) fn hold(&self, op: Unfinished, through: Vec<Through>) {
        self.held.borrow_mut().keep(op, through);
    }

    /// From here on no provider touches what was posted on this.
    pub(crate) fn provider_closed(&self, what: Through) {
        // Dropped when nothing is borrowed: it may hold an application's buffer.
        let free = self.held.borrow_mut().closed(what);
        drop(free);
    }

    fn check_owner(self: &Rc<Self>, request: &Request) -> Result<(), Error> {
        if request.is_of(self) {
            return Ok(());
        }
        Err(Error::new(
            Status::Invalid,
            "an operation of another worker",
            "only the worker that it was posted on knows it",
            "ask that worker",
        ))
    }

    /// What waits for something has no place in a handler: it would wait for the call that it is in.
    #[inline]
    pub(crate) fn check_no_handler(&self, what: &str) -> Result<(), Error> {
        if self.in_progress.get() { Err(inside_a_handler(what)) } else { Ok(()) }
    }
}

#[cold]
fn inside_a_handler(what: &str) -> Error {
    Error::new(
        Status::Busy,
        format!("{what} inside a handler"),
        "handlers run inside progress",
        "return from the handler first",
    )
}
