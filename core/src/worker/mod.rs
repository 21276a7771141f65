//! Workers: progress engines, each with the interfaces opened on it. One thread at a time uses a worker.

mod abi;
mod announced;
mod answering;
mod arrivals;
mod backoff;
mod barrier;
mod calls;
mod cancel;
mod close;
mod completed;
mod counters;
mod delivering;
mod endpoints;
mod flush;
mod help;
mod identity;
mod incoming;
mod inner;
mod keyed_hash;
mod leaving;
mod names;
mod naming;
mod notices;
mod owed;
mod peers;
mod polling;
mod progress;
mod rounds;
mod schedule;
pub(crate) mod services;
mod shown;
mod status;
mod taking;
#[cfg(test)]
mod tests;
pub(crate) mod threads;
mod wait;
mod watched;
mod wireup_transport;
mod wireup_transports;
mod wiring;

pub(crate) use backoff::{Backoff, Step, Wait};
pub use close::{Loss, Undelivered};
pub use counters::Counters;
pub(crate) use inner::WorkerState;
pub use names::NameCall;
pub use wait::Waited;

use crate::address::WorkerAddress;
use crate::endpoint::{Endpoint, EndpointState, Owner};
use crate::interface::{InterfaceSlot, PeerId};
use crate::message::Message;
use crate::request::{Outcome, Request};
use crate::setup::Core;
use crate::shared::Lease;
use crate::{CompletionError, ConnectError, Error, Status};
use inner::{Modules, set_handler};
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// A progress engine with the interfaces opened on it. A worker belongs to one thread at a time.
///
/// ```no_run
/// # fn main() -> Result<(), tieline::Error> {
/// let context = tieline::Context::open()?;
/// let worker = context.worker()?;
/// worker.on_message(7, |m| println!("{} bytes from {}", m.payload().len(), m.peer()))?;
/// let me = worker.connect(&worker.address()?)?; // a worker may connect to itself
/// let sent = me.send(7, 0, b"hello")?;
/// worker.finish(sent)?;
/// worker.wait(None)?;
/// # Ok(()) }
/// ```
///
/// # Calls, and when each is allowed
///
/// A worker has no thread of its own: incoming messages and pending completions wait until a call makes progress. All methods of a
/// worker and of its endpoints must be called from one thread at a time. Neither type is `Send`; only a [`Movable`](crate::Movable)
/// moves a worker to another thread, together with all of its objects:
///
/// ```compile_fail,E0277
/// fn crosses_threads<T: Send>() {}
/// crosses_threads::<tieline::Worker>();
/// ```
///
/// Other threads can [wake](Worker::waker) the worker and submit [tasks](Worker::remote) to it; `docs/threads.md` describes how
/// several threads communicate. A [`WaitSet`](crate::WaitSet) waits for several workers of one thread.
///
/// Most calls of a worker are of five kinds. The others make or take back an object, such as [`waker`](Worker::waker),
/// [`name`](Worker::name) and [`unlisten`](Worker::unlisten).
///
/// * **Register handlers**, in any order: [`on_message`](Worker::on_message), [`on_notification`](Worker::on_notification),
///   [`on_endpoint_failure`](Worker::on_endpoint_failure), [`on_peer_failure`](Worker::on_peer_failure),
///   [`on_peer_left`](Worker::on_peer_left), [`listen`](Worker::listen), [`set_out_of_band`](Worker::set_out_of_band). A new
///   handler replaces the previous one. The exception is `listen`: it returns `Busy` for a service that already has a listener,
///   until [`unlisten`](Worker::unlisten). An eager message without a handler for its id is dropped, a rendezvous message without a
///   handler is refused, and a notification without a handler is dropped. All three are counted ([`Counters::unknown_ids`]).
/// * **Post operations**: [`connect`](Worker::connect), [`endpoint_to`](Worker::endpoint_to),
///   [`connect_to_service`](Worker::connect_to_service), [`ask_name`](Worker::ask_name),
///   [`deliver_out_of_band`](Worker::deliver_out_of_band), [`cancel`](Worker::cancel), [`track`](Worker::track),
///   [`count`](Worker::count), [`begin_flush`](Worker::begin_flush), and all methods of [`Endpoint`]. The calls of this kind never
///   wait for a peer and never run a handler, even if they detect a failure.
/// * **Make progress**: [`progress`](Worker::progress), and the calls that repeat it until a condition holds:
///   [`wait`](Worker::wait), [`wait_until`](Worker::wait_until), [`wait_for`](Worker::wait_for), [`wait_word`](Worker::wait_word),
///   [`finish`](Worker::finish), [`finish_call`](Worker::finish_call), [`flush`](Worker::flush),
///   [`close_region`](Worker::close_region), [`endpoint_by_name`](Worker::endpoint_by_name), [`barrier`](Worker::barrier),
///   [`progress_until`](Worker::progress_until), [`close`](Worker::close), and the progress and waits of a
///   [`WaitSet`](crate::WaitSet). Handlers run inside these calls and nowhere else. [`arm`](Worker::arm) prepares a sleep between
///   two such calls.
/// * **Collect completions**: [`take_completed`](Worker::take_completed) for [tracked](Worker::track) operations, a
///   [counter](Worker::count), or [`test`](Worker::test) for a single operation.
/// * **Read state**: [`address`](Worker::address), [`memory`](Worker::memory), [`counters`](Worker::counters),
///   [`pending`](Worker::pending), [`status`](Worker::status), [`known_endpoint`](Worker::known_endpoint),
///   [`last_peer_failure`](Worker::last_peer_failure), [`check_movable`](Worker::check_movable), [`fd`](Worker::fd).
///
/// # Inside a handler
///
/// Handlers run one at a time and never nest. A handler may post, connect, register handlers, and drop endpoints, requests, kept
/// messages or the worker itself. Inside a handler, four rules apply:
///
/// * Calls that wait, and flushes, fail with `Busy`. There are two exceptions: [`close_region`](Worker::close_region) tries once,
///   and [`progress_until`](Worker::progress_until) must not be called.
/// * [`progress`](Worker::progress) does nothing and returns 0.
/// * A message handler registered inside a handler takes effect at the latest when the running progress call returns. After a
///   panic, the next call does this.
/// * A [`Message`] is valid only during the handler's call; [`keep`](Message::keep) extends the life of its payload.
///
/// The same rules apply to the tasks of a [`Remote`](crate::Remote).
///
/// Two other functions of the application run inside calls that post, and are not handlers: the packer of
/// [`send_packed`](Endpoint::send_packed), and the function given to [`set_out_of_band`](Worker::set_out_of_band). A call that has
/// a datagram for this channel runs the latter function.
///
/// # Order
///
/// Handlers run for the messages of one endpoint in the order in which the messages were posted. There is no other implicit order:
/// not between two endpoints, not between messages and memory operations, and not between two puts. A notification is delivered
/// after the bytes of its put and of earlier puts that have not failed ([`Endpoint::put_notify`]). [`Endpoint::fence`] orders
/// memory operations. When an [`Endpoint::flush`] has completed successfully, all earlier puts, gets and atomics are complete at
/// the target. `docs/ordering.md` has a table.
///
/// # Panics
///
/// A panic in a handler or a condition unwinds through the call that makes progress. The worker stays usable. The event of that
/// handler counts as dispatched, and the next call dispatches the events after it. A panic of the function given to
/// [`set_out_of_band`](Worker::set_out_of_band) also unwinds through a call that makes progress: the one that ran it, or the next
/// one. A panic of a packer unwinds through the call that posts.
///
/// # In a forked child
///
/// The worker belongs to the parent. In the child, calls of the worker that return a `Result` fail with `Invalid`, except that
/// [`finish`](Worker::finish) returns the value of an `Outcome::Done`. [`progress`](Worker::progress) does nothing. Dropping the
/// worker, its endpoints, requests or kept messages has no effect on peers or on the parent. However, the child holds the parent's
/// sockets until it exits or executes another program. If the parent dies first, peers may not notice its death until the child has
/// closed the sockets.
///
/// # Closing and dropping
///
/// Dropping a worker or an endpoint has the same meaning over every transport. A message that returned `Done` reaches a peer that
/// is alive and makes progress, unless the connection fails or the time limit below expires. Operations that are pending when the
/// worker is dropped end with `Closed` and may be lost. [`Worker::close`] first delivers pending operations, and reports those that
/// it could not deliver. If an endpoint is dropped, its worker sends the queued operations of that endpoint. Operations that a
/// transport already holds complete normally if the worker keeps their connection open; otherwise they end with `Canceled`.
///
/// Dropping does not wait for the applications of peers. Dropping may wait for the transport to accept messages, at most
/// `TIELINE_CLOSE_TIMEOUT` (by default 1 s) for each interface. Messages that the transport has not accepted in this time are lost.
///
/// Endpoints, keys and requests that outlive the worker are unusable; kept messages stay readable. All of these objects keep the
/// worker's interfaces open. The interfaces close when the last of these objects is dropped. Messages that returned `Done` may be
/// delivered only then.
pub struct Worker {
    pub(crate) inner: Rc<WorkerState>,
    /// Whether the worker is lent to a task, so that dropping this handle does not close the worker.
    lent: bool,
}

impl Worker {
    pub(crate) fn open(core: Arc<Core>, lease: Option<Arc<Lease>>) -> Result<Worker, Error> {
        let inner = Rc::new(WorkerState::open(core, lease, Modules::All)?);
        inner.enter();
        Ok(Worker::of(inner))
    }

    /// Opens a worker without the modules that are bound to the thread that opens them. The exiting thread says no goodbye for it.
    pub(crate) fn open_movable(core: Arc<Core>, lease: Arc<Lease>) -> Result<Worker, Error> {
        let inner = Rc::new(WorkerState::open(core, Some(lease), Modules::OfAnyThread)?);
        Ok(Worker::of(inner))
    }

    fn of(inner: Rc<WorkerState>) -> Worker {
        let worker: Weak<WorkerState> = Rc::downgrade(&inner);
        let _ = inner.inbox.worker.set(worker);
        Worker { inner, lent: false }
    }

    /// Makes the worker handle that a task receives. Its drop does not close the worker.
    fn lent(inner: Rc<WorkerState>) -> Worker {
        Worker { inner, lent: true }
    }

    /// Returns this worker's address: the bytes that a peer passes to [`connect`](Worker::connect).
    ///
    /// Carry the bytes unchanged, over a channel that only the job can read. Without a secret (`TIELINE_SECRET`), a process that
    /// has the bytes and reaches one of the interfaces may connect.
    ///
    /// # Errors
    /// `TooLarge` if the worker's interfaces do not fit into one address; `Invalid` in a forked child.
    pub fn address(&self) -> Result<Vec<u8>, Error> {
        self.inner.shared.check_process("a worker")?;
        self.inner.note_address();
        self.inner.identity()
    }

    /// Registers the handler for messages with one id. The handler runs inside the calls that make progress, on the calling thread.
    /// The handler may post, but must not wait.
    ///
    /// A message that is longer than its sender's [`Endpoint::max_message`] is a rendezvous message: it arrives without a payload,
    /// and with a [`Rendezvous`](crate::Rendezvous) to receive it by ([`Message::rendezvous`]). The payload of any other message is
    /// complete when the handler runs.
    ///
    /// The handler replaces the previous handler of this id. The previous handler is dropped with everything that it captured:
    /// immediately, or, if this method is called inside a handler, in the running or the next progress call.
    ///
    /// # Errors
    /// `Invalid` for an id in the library's own range; `Closed` if the worker is closed.
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
            // Inside a message handler, the registration takes effect in `work`.
            self.inner.late_handlers.borrow_mut().push((id, Box::new(handler)));
            self.inner.shared.note_work();
        }
        Ok(())
    }

    /// Registers the handler for notifications of peers' [`Endpoint::put_notify`]. The handler gets the peer and the notification's
    /// word. It runs after all bytes of the put have arrived. Like message handlers, it runs inside the calls that make progress,
    /// on the calling thread. A notification handler that is registered inside a handler takes effect immediately.
    ///
    /// # Errors
    /// `Closed` if the worker is closed.
    pub fn on_notification(&self, handler: impl Fn(PeerId, u32) + 'static) -> Result<(), Error> {
        self.inner.check_open()?;
        let before = self.inner.on_notification.replace(Some(Rc::new(handler)));
        drop(before);
        Ok(())
    }

    /// Registers the handler for peers that have failed. A peer is a worker that has sent messages to this worker or has a
    /// connection with it. The workers of progress threads are not reported.
    ///
    /// The handler runs if a connection reports that its other end is gone, or if the last route between the two workers has
    /// failed. The handler runs once per failure, with the first reason, regardless of the number of connections. The handler runs
    /// again only if the peer has reconnected in between. If a process with several workers dies, the handler runs once for each of
    /// them that is a peer.
    ///
    /// The handler does not run if a peer closes its connections in good order, if one of the peer's several devices fails, or if
    /// one of several connections is faulty. For a peer on this host the handler runs only after the endpoints that observe the
    /// peer's process have failed as well. A third party that claims to be that peer therefore cannot end these endpoints.
    pub fn on_peer_failure(&self, handler: impl Fn(PeerId, &Error) + 'static) {
        if self.inner.check_open().is_ok() {
            let before = self.inner.on_failure.replace(Some(Rc::new(handler)));
            drop(before);
        }
    }

    /// Returns the failure of the last peer if no peer remains: a peer has failed, no other peer has a connection to this worker,
    /// and no usable endpoint of the application exists. A program whose wait has timed out can report this failure as the reason.
    /// `None` after another peer has connected or has left in good order.
    #[must_use]
    pub fn last_peer_failure(&self) -> Option<Error> {
        let failure = self.inner.peers.borrow().last_failure().cloned()?;
        let leads = |endpoint: &Rc<EndpointState>| endpoint.is_named() && endpoint.is_alive();
        let none_leads = !self.inner.all_endpoints().iter().any(leads);
        none_leads.then_some(failure)
    }

    /// Registers the handler for endpoints that have failed. The handler runs once for each failed endpoint that the application
    /// holds when the handler runs, regardless of how the application obtained the endpoint. The handler's error is the one that
    /// [`Endpoint::error`] returns. The handler runs inside a call that makes progress.
    ///
    /// When the handler runs, the endpoint's operations have ended. A device may still access their memory;
    /// [`Region::close`](crate::Region::close) reports when the access is over. The failure of the peer itself may be reported
    /// earlier, later, or not at all. An endpoint that has sent nothing does not detect a failure. The handler also runs if a post
    /// has returned the same failure before. Closing this worker is not a failure of its endpoints.
    ///
    /// The handler does not run if the peer has left in good order: then [`Worker::on_peer_left`] reports it, and the endpoint ends
    /// with `Closed`. Failures caused by the handler itself are reported by the next call that makes progress.
    pub fn on_endpoint_failure(&self, handler: impl Fn(&Endpoint, &ConnectError) + 'static) {
        if self.inner.check_open().is_ok() {
            let before = self.inner.on_endpoint_failure.replace(Some(Rc::new(handler)));
            drop(before);
        }
    }

    /// Registers the handler for peers that have left in good order. A peer leaves by closing its last connection with this worker,
    /// at the latest by closing or dropping its own worker, regardless of the objects that it still holds. The handler also runs
    /// for a peer to which only an endpoint leads.
    ///
    /// When the handler runs, all messages that the peer had sent have been dispatched. Nothing more arrives from the peer unless
    /// it reconnects. The handler does not run for a peer that has failed: see [`Worker::on_peer_failure`].
    pub fn on_peer_left(&self, handler: impl Fn(PeerId) + 'static) {
        if self.inner.check_open().is_ok() {
            let before = self.inner.on_left.replace(Some(Rc::new(handler)));
            drop(before);
        }
    }

    /// Returns an endpoint to the worker with this address. The connection is established when the endpoint is first used.
    ///
    /// # Errors
    /// [`ConnectError::Correct`] for bytes that are not an address, for a closed worker, and in a forked child.
    /// [`ConnectError::Configure`] if there is no route, with the reason for each module. [`ConnectError::Release`] for more than
    /// 16 million endpoints. If the connection cannot be established later, the endpoint ends, and its operations fail with the
    /// reason.
    pub fn connect(&self, address: &[u8]) -> Result<Endpoint, ConnectError> {
        let address = WorkerAddress::parse(address).inspect_err(|error| {
            if let Some(journal) = self.inner.shared.core.journal() {
                journal.tell_of_failure(None, &error.to_string());
            }
        })?;
        let inner = self.inner.open_endpoint(address, Owner::Application)?;
        Ok(Endpoint::new(inner))
    }

    /// Returns an endpoint to a peer that has sent messages to this worker, or to which an endpoint of this worker leads.
    ///
    /// The endpoint is one made by [`connect`](Worker::connect) that the application still holds, or the worker's own endpoint for
    /// answers to this peer. The worker keeps its own endpoint until the endpoint fails, the peer is forgotten or the worker is
    /// closed. Dropping the handle does not close that endpoint.
    ///
    /// # Errors
    /// The errors of [`Worker::connect`]; [`ConnectError::Correct`] for a number that no peer of this worker has, or whose address
    /// is unknown.
    pub fn endpoint_to(&self, peer: PeerId) -> Result<Endpoint, ConnectError> {
        let inner = self.inner.reply_endpoint(peer.0)?;
        Ok(Endpoint::new(inner))
    }

    /// Returns an endpoint to `peer` that the application holds and that has not failed. If there are several, returns the oldest
    /// one.
    #[must_use]
    pub fn known_endpoint(&self, peer: PeerId) -> Option<Endpoint> {
        if !self.inner.shared.same_process() {
            return None;
        }
        Some(Endpoint::new(self.inner.known_endpoint(peer.0)?))
    }

    /// Makes progress: polls the interfaces that are due, runs handlers, advances operations within a budget per endpoint, and
    /// returns the number of events. Inside a handler and in a forked child the call does nothing and returns 0.
    #[inline]
    pub fn progress(&self) -> usize {
        self.inner.progress()
    }

    /// Waits for an operation and returns its value: the result of a fetching atomic, otherwise 0. The call makes progress
    /// meanwhile.
    ///
    /// # Errors
    /// The error of the operation. [`CompletionError::Pending`] if the call cannot wait, for example inside a handler. Inside a
    /// handler the call also fails for `Outcome::Done`, and the value is lost: read it from the outcome before the call.
    pub fn finish(&self, outcome: Outcome) -> Result<u64, CompletionError> {
        self.inner.shared.check_no_handler("finish").map_err(CompletionError::Pending)?;
        match outcome {
            Outcome::Done(value) => Ok(value),
            Outcome::Pending(request) => match self.take_plain(&request) {
                Some(value) => {
                    request.end();
                    Ok(value)
                }
                None => self.finish_pending(request),
            },
        }
    }

    #[inline(never)] // keeps the path of completed operations short
    fn finish_pending(&self, request: Request) -> Result<u64, CompletionError> {
        self.check_asked(&request)?;
        self.inner.finish(request)
    }

    /// Returns the value of an operation of this worker that has succeeded and that nothing else observes: no flush, counter or
    /// completion list.
    #[inline]
    fn take_plain(&self, request: &Request) -> Option<u64> {
        let shared = &self.inner.shared;
        if !Rc::ptr_eq(shared, &request.shared) || !shared.same_process() {
            return None;
        }
        shared.ops.borrow_mut().take_plain(request.id)
    }

    /// Returns the result of an operation of this worker, or `None` while it is pending. The call makes no progress, and may be
    /// repeated after the operation has ended.
    #[must_use]
    pub fn test(&self, request: &Request) -> Option<Result<u64, CompletionError>> {
        if let Err(error) = self.check_asked(request) {
            return Some(Err(error));
        }
        let result = self.inner.shared.ops.borrow_mut().result(request.id)?;
        Some(result.map_err(CompletionError::from))
    }

    /// Returns the memory that the worker's interfaces hold, for those that report it.
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
        self.inner.shared.interfaces.iter().filter_map(used).collect()
    }

    /// Returns the worker's counters of events.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.inner.counted()
    }

    /// Returns the number of pending operations, including the library's own and the parts of split operations.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.inner.shared.ops.borrow().open_count()
    }
}

/// The memory that one interface holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// The name of the module, for example `shm/ring`.
    pub path: String,
    /// The number of bytes that do not depend on the number of peers.
    pub base_bytes: u64,
    /// The number of peers.
    pub peers: u64,
    /// The number of bytes for all peers together.
    pub peer_bytes: u64,
    /// The number of bytes of committed message buffers.
    pub buffer_bytes: u64,
}
