//! Workers: a progress engine and the interfaces opened on it. One thread drives a worker at a time.

pub(crate) mod abi;
mod wait;

use crate::address::{Candidate, WorkerAddress};
use crate::context::{Core, Lease};
use crate::emulate;
use crate::endpoint::{Endpoint, Inner as EndpointInner, Route};
use crate::message::{Message, PeerId};
use crate::rank::ModuleRef;
use crate::registry::LoadedProvider;
use crate::registry::abi::objects::OpenInterface;
use crate::request::{Outcome, Request, Requests};
use crate::sys::{ForkGuard, Poller};
use crate::{Error, Status};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use tieline_plugin_api::abi::{Event, ModuleAttr};
use tieline_plugin_api::{caps, event, event_flags};

/// What a module is used for on this worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roles {
    pub(crate) message: bool,
    pub(crate) memory: bool,
}

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
    /// Whether progress polls it.
    polled: bool,
    /// The provider's number of a peer -> the worker's.
    peers: RefCell<Vec<u32>>,
}

impl InterfaceSlot {
    #[inline]
    pub(crate) fn peer(&self, number: u64) -> PeerId {
        PeerId(self.peers.borrow().get(number as usize).copied().unwrap_or(u32::MAX))
    }
}

type Handler = Box<dyn Fn(&Message<'_>)>;
type FailureHandler = Rc<dyn Fn(PeerId, &Error)>;

/// Somebody who has written to this worker.
struct Peer {
    address: Option<WorkerAddress>,
    /// The endpoint that answers go through.
    reply: Option<Rc<EndpointInner>>,
    /// What was wrong with what it sent.
    bad: u64,
}

/// What a worker has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages with an id that has no handler: dropped.
    pub unknown_ids: u64,
    /// Malformed messages of the library's own protocols: dropped.
    pub malformed: u64,
    /// Pieces of peers' large puts and gets that this worker copied for them.
    pub assisted_chunks: u64,
}

pub(crate) struct Inner {
    pub(crate) core: Arc<Core>,
    _lease: Option<Arc<Lease>>,
    pub(crate) id: [u8; 16],
    guard: ForkGuard,
    in_progress: Cell<bool>,
    has_work: Cell<bool>,
    /// Somebody asked for a key that a provider still fetches; its arrival is no event.
    settling: Cell<bool>,
    handlers: RefCell<Vec<Option<Handler>>>,
    late_handlers: RefCell<Vec<(u16, Handler)>>,
    on_failure: RefCell<Option<FailureHandler>>,
    peers: RefCell<Vec<Peer>>,
    pub(crate) requests: RefCell<Requests>,
    endpoints: RefCell<Vec<Option<Weak<EndpointInner>>>>,
    busy: RefCell<VecDeque<Rc<EndpointInner>>>,
    pub(crate) assist: crate::assist::Desk,
    counters: Cell<Counters>,
    poller: Poller,
    /// Last, so that everything above that points into providers goes first.
    pub(crate) interfaces: Vec<InterfaceSlot>,
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
/// while worker.progress() == 0 {}
/// # Ok(()) }
/// ```
pub struct Worker {
    pub(crate) inner: Rc<Inner>,
}

impl Worker {
    pub(crate) fn open(core: Arc<Core>, lease: Option<Arc<Lease>>) -> Result<Worker, Error> {
        core.check_process("a context")?;
        let id = crate::sys::random_id()?;
        let poller = Poller::new()?;
        let mut interfaces: Vec<InterfaceSlot> = Vec::new();
        let mut refused = None;
        for module in &core.modules {
            let domain = &core.domains[module.domain];
            let interface = match domain.domain.open_interface(&module.name, id) {
                Ok(interface) => interface,
                // The others may do without it; the report says why it is missing.
                Err(error) => {
                    core.note(format!("{} is not used: {error}", module.path));
                    refused = Some(error);
                    continue;
                }
            };
            if let Some(fd) = interface.event_fd() {
                poller.add(fd)?;
            }
            interfaces.push(InterfaceSlot {
                provider: domain.provider.clone(),
                domain: domain.name.clone(),
                module: module.name.clone(),
                path: module.path.clone(),
                priority: module.attr.priority,
                roles: module.roles,
                attr: module.attr,
                polled: module.attr.caps & caps::NEEDS_POLL != 0,
                interface,
                peers: RefCell::default(),
            });
        }
        if let (Some(error), false) = (refused, interfaces.iter().any(|i| i.roles.message)) {
            return Err(error);
        }
        let inner = Inner {
            core,
            _lease: lease,
            id,
            guard: ForkGuard::new()?,
            in_progress: Cell::new(false),
            has_work: Cell::new(false),
            settling: Cell::new(false),
            handlers: RefCell::default(),
            late_handlers: RefCell::default(),
            on_failure: RefCell::default(),
            peers: RefCell::default(),
            requests: RefCell::default(),
            endpoints: RefCell::default(),
            busy: RefCell::default(),
            assist: crate::assist::Desk::default(),
            counters: Cell::default(),
            poller,
            interfaces,
        };
        Ok(Worker { inner: Rc::new(inner) })
    }

    /// The bytes that lead a peer here. Carry them to it unchanged, by any means.
    ///
    /// # Errors
    /// When a provider cannot say its part.
    pub fn address(&self) -> Result<Vec<u8>, Error> {
        self.inner.identity()
    }

    /// Registers what to do with messages of one id. The handler runs inside [`Worker::progress`], on its
    /// thread; it may send, but not make progress.
    ///
    /// # Errors
    /// `Invalid` for an id of the library's own range.
    pub fn on_message(
        &self,
        id: u16,
        handler: impl Fn(&Message<'_>) + 'static,
    ) -> Result<(), Error> {
        if id > crate::endpoint::MAX_MESSAGE_ID {
            return Err(Error::new(
                Status::Invalid,
                format!("a handler for message id {id:#x}"),
                "ids from 0xf000 on belong to the library",
                "use a smaller id",
            ));
        }
        if let Ok(mut handlers) = self.inner.handlers.try_borrow_mut() {
            set_handler(&mut handlers, id, Box::new(handler));
        } else {
            // Called from a handler: it takes effect when that progress call returns.
            self.inner.late_handlers.borrow_mut().push((id, Box::new(handler)));
            self.inner.note_work();
        }
        Ok(())
    }

    /// Registers what to do when a peer that has written to us is gone.
    pub fn on_peer_failure(&self, handler: impl Fn(PeerId, &Error) + 'static) {
        *self.inner.on_failure.borrow_mut() = Some(Rc::new(handler));
    }

    /// An endpoint that leads to the worker with this address. The connection itself is made by the first
    /// operation.
    ///
    /// # Errors
    /// `BadData` for bytes that are no address; `Unreachable`, with the reason for each module, when
    /// there is no path.
    pub fn connect(&self, address: &[u8]) -> Result<Endpoint, Error> {
        let address = WorkerAddress::parse(address)?;
        let inner = self.inner.connect_internal(address)?;
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
        match outcome {
            Outcome::Done(value) => Ok(value),
            Outcome::Pending(request) => self.inner.finish(&request),
        }
    }

    /// The result of an operation, once it has one.
    #[must_use]
    pub fn test(&self, request: &Request) -> Option<Result<u64, Error>> {
        self.inner.requests.borrow_mut().take(request.id)
    }

    /// Waits until everything posted on every endpoint is complete; see [`Endpoint::flush`].
    ///
    /// # Errors
    /// The first failure of what it waited for.
    pub fn flush(&self) -> Result<(), Error> {
        let open: Vec<Rc<EndpointInner>> =
            self.inner.endpoints.borrow().iter().flatten().filter_map(Weak::upgrade).collect();
        let mut first = Ok(());
        for inner in open {
            let flushed = Endpoint { inner }.flush().and_then(|outcome| self.finish(outcome));
            if let Err(error) = flushed {
                first = first.and(Err(error));
            }
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
        self.inner.counters.get()
    }

    /// How many operations are pending.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.inner.requests.borrow().open_count()
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

impl Drop for Worker {
    fn drop(&mut self) {
        // Endpoints that the application still holds keep the interfaces alive; they fail from here on.
        let error = Error::new(
            Status::Closed,
            "the worker is closed",
            "its Worker was dropped",
            "keep the worker as long as its endpoints",
        );
        let busy = std::mem::take(&mut *self.inner.busy.borrow_mut());
        let peers = std::mem::take(&mut *self.inner.peers.borrow_mut());
        let open: Vec<Rc<EndpointInner>> =
            self.inner.endpoints.borrow().iter().flatten().filter_map(Weak::upgrade).collect();
        for endpoint in open {
            endpoint.fail(error.clone());
        }
        drop((busy, peers));
        self.inner.handlers.borrow_mut().clear();
        *self.inner.on_failure.borrow_mut() = None;
        self.inner.assist.close();
    }
}

/// Says on the way out that no progress call is running.
struct Leave<'a>(&'a Cell<bool>);

impl Drop for Leave<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.same_process() {
            // Closed in a forked child, they would say good-bye in the parent's name.
            std::mem::forget(std::mem::take(&mut self.interfaces));
        }
    }
}

fn set_handler(handlers: &mut Vec<Option<Handler>>, id: u16, handler: Handler) {
    let index = usize::from(id);
    if handlers.len() <= index {
        handlers.resize_with(index + 1, || None);
    }
    handlers[index] = Some(handler);
}

impl Inner {
    #[inline]
    pub(crate) fn same_process(&self) -> bool {
        self.guard.same_process()
    }

    /// The bytes of this worker's address.
    pub(crate) fn identity(&self) -> Result<Vec<u8>, Error> {
        WorkerAddress {
            context: self.core.id,
            worker: self.id,
            place: self.core.place.clone(),
            candidates: self.candidates()?,
            service: self.core.service_address(&self.id),
        }
        .pack()
    }

    pub(crate) fn candidates(&self) -> Result<Vec<Candidate>, Error> {
        let candidate = |slot: &InterfaceSlot| {
            Ok(Candidate {
                provider: slot.provider.name.clone(),
                domain: slot.domain.clone(),
                module: slot.module.clone(),
                priority: slot.priority,
                address: slot.interface.address()?,
            })
        };
        self.interfaces.iter().map(candidate).collect()
    }

    /// Makes an endpoint to an address.
    pub(crate) fn connect_internal(
        self: &Rc<Self>,
        address: WorkerAddress,
    ) -> Result<Rc<EndpointInner>, Error> {
        self.core.check_process("a worker")?;
        let route = Route::choose(self, &address);
        if route.message.is_none() {
            return Err(route.unreachable(&address));
        }
        let mut endpoints = self.endpoints.borrow_mut();
        let index = endpoints.iter().position(Option::is_none).unwrap_or(endpoints.len());
        let inner = Rc::new(EndpointInner::new(self.clone(), index, address, route));
        let weak = Some(Rc::downgrade(&inner));
        match endpoints.get_mut(index) {
            Some(place) => *place = weak,
            None => endpoints.push(weak),
        }
        Ok(inner)
    }

    pub(crate) fn remove_endpoint(&self, index: usize) {
        if let Some(place) = self.endpoints.borrow_mut().get_mut(index) {
            *place = None;
        }
    }

    /// The endpoint that answers to a peer go through: one that the application has, or one of our own.
    pub(crate) fn reply_endpoint(self: &Rc<Self>, peer: u32) -> Result<Rc<EndpointInner>, Error> {
        let unknown = || {
            Error::new(
                Status::Invalid,
                "an unknown peer",
                "no peer of this worker has that number",
                "",
            )
        };
        let address = {
            let mut peers = self.peers.borrow_mut();
            let entry = peers.get_mut(peer as usize).ok_or_else(unknown)?;
            if let Some(reply) = entry.reply.as_ref().filter(|r| r.check_alive().is_ok()) {
                return Ok(reply.clone());
            }
            entry.address.clone().ok_or_else(unknown)?
        };
        let existing = self
            .endpoints
            .borrow()
            .iter()
            .flatten()
            .filter_map(Weak::upgrade)
            .find(|e| e.address.worker == address.worker && e.check_alive().is_ok());
        let endpoint = match existing {
            Some(endpoint) => endpoint,
            None => self.connect_internal(address)?,
        };
        if let Some(entry) = self.peers.borrow_mut().get_mut(peer as usize) {
            entry.reply = Some(endpoint.clone());
        }
        Ok(endpoint)
    }

    /// The place of a module among the interfaces, if it could be opened.
    pub(crate) fn interface(&self, at: &ModuleRef) -> Option<usize> {
        self.interfaces.iter().position(|slot| {
            slot.provider.name == at.provider
                && slot.domain == at.domain
                && slot.module == at.module
        })
    }

    /// Keeps the failure of an operation that had completed locally for its endpoint's next flush.
    pub(crate) fn late_failure(&self, token: u64, error: &Error) {
        let index = self.requests.borrow_mut().late_endpoint(token);
        if let Some(endpoint) = index.and_then(|index| self.endpoint(index)) {
            endpoint.note_late(error);
        }
    }

    // ---- progress ----

    #[inline]
    pub(crate) fn progress(self: &Rc<Self>) -> usize {
        if !self.same_process() || self.in_progress.replace(true) {
            return 0;
        }
        // Also when a handler panics.
        let _progress = Leave(&self.in_progress);
        let mut count = 0;
        for index in 0..self.interfaces.len() {
            if self.interfaces[index].polled {
                count += self.poll(index);
            }
        }
        if self.has_work.get() {
            count += self.work();
        }
        count
    }

    #[inline]
    fn poll(self: &Rc<Self>, index: usize) -> usize {
        let slot = &self.interfaces[index];
        let mut batch = abi::Batch::new();
        let count = match slot.interface.poll(batch.slots()) {
            Ok(0) => return 0,
            Ok(count) => count,
            Err(status) => {
                self.interface_failed(slot, status);
                return 1;
            }
        };
        let handlers = self.handlers.borrow();
        for event in batch.events(count) {
            if event.kind == event::MESSAGE {
                if let Some(Some(handler)) = handlers.get(event.id as usize) {
                    let message = Message::new(event, self, index);
                    handler(&message);
                    if event.flags & event_flags::LENT != 0 {
                        message.give_back();
                    }
                    continue;
                }
            }
            self.other_event(slot, event);
        }
        count
    }

    #[cold]
    fn other_event(self: &Rc<Self>, slot: &InterfaceSlot, event: &Event) {
        match event.kind {
            event::MESSAGE => {
                let lent = event.flags & event_flags::LENT != 0;
                let id = event.id as u16;
                if id >= emulate::id::FIRST && event.id <= u32::from(u16::MAX) {
                    let peer = slot.peer(event.peer).0;
                    emulate::handle(self, id, event.header, peer, abi::payload(event));
                } else {
                    self.bump(|c| c.unknown_ids += 1);
                }
                if lent {
                    slot.interface.release(event.cookie);
                }
            }
            event::COMPLETION => {
                let result = match event.status {
                    0 => Ok(event.header),
                    code => Err(Error::from_status(Status::from_code(code))),
                };
                let _ = self.requests.borrow_mut().part(event.cookie, result);
            }
            event::PEER_ARRIVED => self.peer_arrived(slot, event),
            event::PEER_LEFT => self.peer_left(slot, event),
            event::ENDPOINT_FAILED => {
                let words = String::from_utf8_lossy(abi::payload(event)).into_owned();
                let status = Status::from_code(event.status);
                let endpoint = self.endpoint(event.cookie as usize);
                if let Some(endpoint) = endpoint {
                    let what = format!("{} is gone", endpoint.address.label());
                    let why = if words.is_empty() { status.text().to_string() } else { words };
                    let error = Error::new(status, what, why, "");
                    endpoint.fail(error.clone());
                    if status == Status::PeerFailed {
                        self.peer_failed(endpoint.address.context, &error);
                    }
                }
            }
            _ => self.bump(|c| c.malformed += 1),
        }
    }

    fn endpoint(&self, index: usize) -> Option<Rc<EndpointInner>> {
        self.endpoints.borrow().get(index)?.as_ref()?.upgrade()
    }

    fn peer_arrived(&self, slot: &InterfaceSlot, event: &Event) {
        let address = WorkerAddress::parse(abi::payload(event)).ok();
        if address.is_none() {
            self.bump(|c| c.malformed += 1);
        }
        let mut peers = self.peers.borrow_mut();
        let known = address.as_ref().and_then(|address| {
            peers
                .iter()
                .position(|p| p.address.as_ref().is_some_and(|a| a.worker == address.worker))
        });
        let index = known.unwrap_or_else(|| {
            peers.push(Peer { address, reply: None, bad: 0 });
            peers.len() - 1
        });
        let mut numbers = slot.peers.borrow_mut();
        let number = event.peer as usize;
        // Providers number densely; a wild number is not worth memory.
        if number < numbers.len() + 65_536 {
            if numbers.len() <= number {
                numbers.resize(number + 1, u32::MAX);
            }
            numbers[number] = index as u32;
        }
    }

    fn peer_left(self: &Rc<Self>, slot: &InterfaceSlot, event: &Event) {
        let peer = slot.peer(event.peer);
        if event.status == 0 {
            return;
        }
        let status = Status::from_code(event.status);
        let address = match self.peers.borrow().get(peer.0 as usize) {
            Some(entry) => entry.address.clone(),
            None => return,
        };
        let label = address.as_ref().map_or_else(|| peer.to_string(), WorkerAddress::label);
        let words = String::from_utf8_lossy(abi::payload(event)).into_owned();
        let why = if words.is_empty() { status.text().to_string() } else { words };
        let error = Error::new(status, format!("{label} is gone"), why, "");
        if let (Status::PeerFailed, Some(address)) = (status, &address) {
            self.peer_failed(address.context, &error);
        }
        let handler = self.on_failure.borrow().clone();
        if let Some(handler) = handler {
            handler(peer, &error);
        }
    }

    /// A process is gone: every endpoint that leads to it ends.
    pub(crate) fn peer_failed(&self, context: [u8; 16], error: &Error) {
        let lost: Vec<Rc<EndpointInner>> = self
            .endpoints
            .borrow()
            .iter()
            .flatten()
            .filter_map(Weak::upgrade)
            .filter(|e| e.address.context == context)
            .collect();
        for endpoint in lost {
            endpoint.fail(error.clone());
        }
    }

    /// The provider of an endpoint broke its contract.
    pub(crate) fn provider_failed(&self, endpoint: &EndpointInner) {
        if let Some(way) = endpoint.route.message {
            let slot = &self.interfaces[way.interface];
            slot.provider.poison("a data call returned PROVIDER_FAILED");
            self.interface_failed(slot, Status::ProviderFailed);
        }
    }

    /// An interface is finished: every endpoint whose messages go through it ends.
    #[cold]
    fn interface_failed(&self, slot: &InterfaceSlot, status: Status) {
        if status == Status::ProviderFailed && !slot.provider.poisoned() {
            slot.provider.poison("poll failed");
        }
        let error = Error::new(
            status,
            format!("{} is out of use", slot.path),
            format!("{}: {}", status.text(), slot.provider.last_error()),
            format!("leave the provider out with TIELINE_PROVIDERS=^{}", slot.provider.name),
        );
        let users: Vec<Rc<EndpointInner>> =
            self.endpoints.borrow().iter().flatten().filter_map(Weak::upgrade).collect();
        for endpoint in users {
            let way = endpoint.route.message;
            let uses = way.is_some_and(|w| self.interfaces[w.interface].path == slot.path);
            if uses {
                endpoint.fail(error.clone());
            }
        }
    }

    // ---- work of our own ----

    /// Something is queued on this endpoint.
    pub(crate) fn make_busy(&self, endpoint: &EndpointInner) {
        if !endpoint.busy.replace(true) {
            if let Some(endpoint) = self.endpoint(endpoint.index) {
                self.busy.borrow_mut().push_back(endpoint);
            }
        }
        self.has_work.set(true);
    }

    pub(crate) fn note_work(&self) {
        self.has_work.set(true);
    }

    pub(crate) fn note_settling(&self) {
        self.settling.set(true);
    }

    /// One round over the endpoints with something queued, each getting its turn; then shared copies.
    #[cold]
    fn work(self: &Rc<Self>) -> usize {
        let mut count = 0;
        let round = self.busy.borrow().len();
        for _ in 0..round {
            let Some(endpoint) = self.busy.borrow_mut().pop_front() else { break };
            let (done, left) = endpoint.run_queue(16);
            count += done;
            if left {
                self.busy.borrow_mut().push_back(endpoint);
            } else {
                endpoint.busy.set(false);
            }
        }
        count += crate::assist::run(self);
        for (id, handler) in self.late_handlers.borrow_mut().drain(..) {
            set_handler(&mut self.handlers.borrow_mut(), id, handler);
        }
        self.has_work.set(!self.busy.borrow().is_empty() || self.assist.is_busy());
        count
    }

    // ---- what peers got wrong ----

    pub(crate) fn bump(&self, count: impl FnOnce(&mut Counters)) {
        let mut counters = self.counters.get();
        count(&mut counters);
        self.counters.set(counters);
    }

    pub(crate) fn count_bad(&self, peer: u32, status: Status) {
        if status != Status::BadData {
            return;
        }
        self.bump(|c| c.malformed += 1);
        if let Some(peer) = self.peers.borrow_mut().get_mut(peer as usize) {
            peer.bad += 1;
        }
    }

    /// An answer counts only when it comes from the process that was asked.
    pub(crate) fn check_answer(&self, token: u64, peer: u32) -> Result<(), Status> {
        let asked = self.requests.borrow_mut().get(token).map(|slot| slot.endpoint);
        let asked = asked.and_then(|index| self.endpoint(index)).ok_or(Status::BadData)?;
        let peers = self.peers.borrow();
        let from = peers.get(peer as usize).and_then(|p| p.address.as_ref());
        match from {
            Some(from) if from.context == asked.address.context => Ok(()),
            _ => Err(Status::BadData),
        }
    }
}
