//! Workers: a progress engine and the interfaces opened on it. One thread drives a worker at a time.

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
mod endpoints;
mod flush;
mod help;
mod identity;
mod incoming;
mod inner;
mod leaving;
mod names;
mod owed;
mod peers;
mod polling;
mod progress;
mod rounds;
mod service_state;
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

pub use close::{Loss, Undelivered};
pub use counters::Counters;
pub(crate) use inner::Inner;
pub use names::NameCall;
pub use wait::Waited;

use crate::address::WorkerAddress;
use crate::endpoint::{Endpoint, Inner as EndpointInner, Owner};
use crate::interface::{InterfaceSlot, PeerId};
use crate::message::Message;
use crate::op::Id;
use crate::request::{Outcome, Request};
use crate::setup::Core;
use crate::shared::Lease;
use crate::{CompletionError, ConnectError, Error, Status};
use inner::set_handler;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// A progress engine with the interfaces opened on it. It belongs to one thread at a time.
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
/// # Which calls there are, and when each may be made
///
/// A worker does nothing by itself: no thread of its own runs, and what arrives waits until a call makes progress. All of
/// its methods, and those of its endpoints, are called from the thread that made it; neither can be sent to another, but inside of a
/// [`Movable`](crate::Movable):
///
/// ```compile_fail,E0277
/// fn crosses_threads<T: Send>() {}
/// crosses_threads::<tieline::Worker>();
/// ```
///
/// What other threads may do is to [wake](Worker::waker) it and to hand it [work](Worker::remote); `docs/threads.md` has the ways in
/// which several threads communicate. A [`WaitSet`](crate::WaitSet) waits for several workers of one thread.
///
/// There are five kinds of calls.
///
/// * **Handlers are registered** at any time and in any order: [`on_message`](Worker::on_message),
///   [`on_notification`](Worker::on_notification),
///   [`on_endpoint_failure`](Worker::on_endpoint_failure), [`on_peer_failure`](Worker::on_peer_failure),
///   [`on_peer_left`](Worker::on_peer_left), [`listen`](Worker::listen),
///   [`set_out_of_band`](Worker::set_out_of_band). The next one takes the place of the one before; only a service that is
///   listened for is `Busy` until [`unlisten`](Worker::unlisten). A message that arrives while nobody handles its id is dropped, and
///   so is a notification while nobody handles those; both are counted ([`Counters::unknown_ids`]).
/// * **Operations are posted**: [`connect`](Worker::connect), [`endpoint_to`](Worker::endpoint_to),
///   [`connect_to_service`](Worker::connect_to_service), [`deliver_out_of_band`](Worker::deliver_out_of_band),
///   [`cancel`](Worker::cancel), [`track`](Worker::track), [`begin_flush`](Worker::begin_flush), and everything that an [`Endpoint`] does. These never wait, and no handler runs in them, whatever they find out.
/// * **Progress is made** by [`progress`](Worker::progress), and by what calls it until something has come about:
///   [`wait`](Worker::wait), [`wait_until`](Worker::wait_until), [`wait_for`](Worker::wait_for), [`wait_word`](Worker::wait_word),
///   [`finish`](Worker::finish),
///   [`finish_call`](Worker::finish_call), [`flush`](Worker::flush), [`close_region`](Worker::close_region),
///   [`close`](Worker::close). Handlers run inside of these and nowhere else. [`arm`](Worker::arm) prepares a sleep in between.
/// * **What has ended is taken** by [`take_completed`](Worker::take_completed), for operations that are
///   [tracked](Worker::track), or read off a [counter](Worker::count), or [asked for](Worker::test) one by one.
/// * **The state is read** by all others: these change nothing, and cost little.
///
/// # Inside a handler
///
/// Handlers run one at a time, never one inside another. Nothing of the worker is borrowed then, so that a handler may call
/// whatever it has: post, connect, register handlers, drop endpoints, requests, kept messages, the worker itself. Three things are
/// different from outside. What waits is refused with `Busy`, a flush of an endpoint too. [`progress`](Worker::progress) does
/// nothing and returns 0. So it is in the tasks of a [`Remote`](crate::Remote). A message handler that is registered is in force when the progress call that is running has ended.
/// A [`Message`] is lent for the length of the call: [`keep`](Message::keep) is for longer.
///
/// Two other functions of the application's are run by calls that post, and are no handlers: the packer of
/// [`send_packed`](Endpoint::send_packed), and what [`set_out_of_band`](Worker::set_out_of_band) was given, which is run by any call that
/// has a datagram for it.
///
/// # Order
///
/// Handlers run for the messages of one endpoint in the order in which these were posted. Nothing else is ordered by itself:
/// neither what two endpoints post, nor messages and what reaches memory, nor two puts. A notification comes behind the bytes of its
/// put and of those before ([`Endpoint::put_notify`]); [`Endpoint::fence`] orders what reaches memory; after [`Endpoint::flush`] everything before is complete.
/// `docs/ordering.md` has it in a table.
///
/// # Panics
///
/// A handler or a condition that panics does so through the call that makes progress. The worker stays usable: the event whose
/// handler it was counts as dealt with, those behind it are handed on by the next call. What
/// [`set_out_of_band`](Worker::set_out_of_band) was given panics through a call that makes progress too, the one that it was run by or
/// the next one; a packer through the call that posts. The library itself does not panic.
///
/// # In a forked child
///
/// The worker belongs to the parent. Whatever may fail is `Invalid`, [`progress`](Worker::progress) returns 0, and dropping
/// it, its endpoints, its requests and kept messages tells nobody anything: the parent goes on undisturbed. But until it ends, or
/// executes another program, a child has the parent's sockets, so that peers do not notice when the parent dies before it.
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
/// Endpoints, keys, requests and kept messages that are still held when the worker is dropped are of no use any more, but they
/// keep the worker's interfaces open: these close with the last of them, and hand over what said `Done` no sooner.
pub struct Worker {
    pub(crate) inner: Rc<Inner>,
    /// It is lent to a task, and its drop is not the worker's end.
    lent: bool,
}

impl Worker {
    pub(crate) fn open(core: Arc<Core>, lease: Option<Arc<Lease>>) -> Result<Worker, Error> {
        let inner = Rc::new(Inner::open(core, lease)?);
        inner.enter();
        let senders: Weak<Inner> = Rc::downgrade(&inner);
        let _ = inner.shared.senders.set(senders);
        Ok(Worker { inner, lent: false })
    }

    /// The worker as a task gets it: one whose drop ends nothing.
    fn lent(inner: Rc<Inner>) -> Worker {
        Worker { inner, lent: true }
    }

    /// The bytes that lead a peer here. Carry them to it unchanged, by a channel that only the job can read: where no secret is set
    /// (`TIELINE_SECRET`) whoever has them may connect.
    ///
    /// # Errors
    /// `TooLarge` where it does not fit an address.
    pub fn address(&self) -> Result<Vec<u8>, Error> {
        self.inner.shared.core.check_process("a worker")?;
        self.inner.identity()
    }

    /// Registers what to do with messages of one id. The handler runs inside [`Worker::progress`], on its
    /// thread; it may send, but not make progress. A message that is too long for its lane comes without a payload, and with an
    /// [`Announcement`](crate::Announcement) to take it by ([`Message::announcement`]): what lies in a payload is as long as it is there.
    /// It takes the place of the one before it, which is dropped, with what it held: at once, or, in a handler, when that
    /// progress call has ended.
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
            self.inner.shared.note_work();
        }
        Ok(())
    }

    /// Registers what to do when a peer's [`Endpoint::put_notify`] has come: its word, behind all bytes of the put. The handler runs
    /// inside [`Worker::progress`], on its thread, as message handlers do. One that is registered in a handler is in force at once.
    ///
    /// # Errors
    /// `Closed` when the worker is.
    pub fn on_notification(&self, handler: impl Fn(PeerId, u32) + 'static) -> Result<(), Error> {
        self.inner.check_open()?;
        let before = self.inner.on_notification.replace(Some(Rc::new(handler)));
        drop(before);
        Ok(())
    }

    /// Registers what to do when a peer is gone that has written to us or that we have a connection to: a connection says that
    /// nobody is at its other end any more, or the last way between the two has failed. It is called once, with the first reason,
    /// however many connections there were; and again only if the peer has come back in between. A peer is a worker: where
    /// a process with several ends, each is told of. One that closes its connections is not gone, nor is one of whose several
    /// devices one failed, or of whose connections one had something wrong with it. Of a process on this host it is called
    /// when the endpoints to that peer that see the process have ended too: who merely says that it was that peer ends none of them.
    pub fn on_peer_failure(&self, handler: impl Fn(PeerId, &Error) + 'static) {
        if self.inner.check_open().is_ok() {
            let before = self.inner.on_failure.replace(Some(Rc::new(handler)));
            drop(before);
        }
    }

    /// The failure of the last peer: a peer has failed, and since then no peer has a connection to this worker and no endpoint leads to a
    /// live one. A wait that runs out of time then waits for nobody that is connected. `None` after a peer connects or leaves.
    #[must_use]
    pub fn last_peer_failure(&self) -> Option<Error> {
        let failure = self.inner.peers.borrow().last_failure().cloned()?;
        let leads = |endpoint: &Rc<EndpointInner>| endpoint.is_named() && endpoint.is_alive();
        let none_leads = !self.inner.all_endpoints().iter().any(leads);
        none_leads.then_some(failure)
    }

    /// Registers what to do when an endpoint has failed that the application holds, however it came by it: once for each, with the
    /// reason that [`Endpoint::error`] gives, inside of a call that makes progress. Its operations have ended by then (memory that a
    /// device may still touch is the region's to tell: [`Region::close`](crate::Region::close)). That the peer itself is gone may be
    /// told before or afterwards, or not at all; an endpoint that has sent nothing does not notice. It is told also where a post has
    /// returned the failure before. It is not called where the peer has left in good order: [`Worker::on_peer_left`] tells that, and the
    /// endpoint ends with `Closed`. What the handler brings about is told by the next call.
    pub fn on_endpoint_failure(&self, handler: impl Fn(&Endpoint, &ConnectError) + 'static) {
        if self.inner.check_open().is_ok() {
            let before = self.inner.on_endpoint_failure.replace(Some(Rc::new(handler)));
            drop(before);
        }
    }

    /// Registers what to do when a peer has left in good order: it has closed the last connection between the two, at the latest by
    /// closing or dropping its worker, whatever else it holds. It is called also for a peer to which only an endpoint leads. Everything that it had sent before has been handed on by then, and nothing more comes
    /// from it unless it connects anew. It is not called for a peer that is gone: that is [`Worker::on_peer_failure`].
    pub fn on_peer_left(&self, handler: impl Fn(PeerId) + 'static) {
        if self.inner.check_open().is_ok() {
            let before = self.inner.on_left.replace(Some(Rc::new(handler)));
            drop(before);
        }
    }

    /// An endpoint that leads to the worker with this address. The connection itself is made by the first
    /// operation.
    ///
    /// # Errors
    /// [`ConnectError::Correct`] for bytes that are no address; [`ConnectError::Configure`], with the reason for each module,
    /// when there is no path. How the connection that the first operation makes comes to nothing, that operation says.
    pub fn connect(&self, address: &[u8]) -> Result<Endpoint, ConnectError> {
        let address = WorkerAddress::parse(address).inspect_err(|error| {
            if let Some(journal) = self.inner.shared.core.journal() {
                journal.tell_of_failure(None, &error.to_string());
            }
        })?;
        let inner = self.inner.open_endpoint(address, Owner::Application)?;
        Ok(Endpoint::new(inner))
    }

    /// An endpoint that leads to a peer that has written to us: one that [`connect`](Worker::connect) made and that is held still, or
    /// one that the worker answers this peer over, and keeps as long as it knows the peer. That one is the same every time, and is
    /// not closed when it is dropped.
    ///
    /// # Errors
    /// As [`Worker::connect`].
    pub fn endpoint_to(&self, peer: PeerId) -> Result<Endpoint, ConnectError> {
        let inner = self.inner.reply_endpoint(peer.0)?;
        Ok(Endpoint::new(inner))
    }

    /// An endpoint to a peer that the application holds and that has not failed: of several the one that was made first. It costs the
    /// same however many endpoints lead to others.
    #[must_use]
    pub fn known_endpoint(&self, peer: PeerId) -> Option<Endpoint> {
        if !self.inner.shared.same_process() {
            return None;
        }
        Some(Endpoint::new(self.inner.known_endpoint(peer.0)?))
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
    /// How the operation ended; [`CompletionError::Pending`] where it could not be waited for, as inside a handler. There it is that
    /// for a `Done` too, whose value is lost unless it was taken out before.
    pub fn finish(&self, outcome: Outcome) -> Result<u64, CompletionError> {
        self.inner.shared.check_no_handler("finish").map_err(CompletionError::Pending)?;
        match outcome {
            Outcome::Done(value) => Ok(value),
            Outcome::Pending(mut request) => match self.take_plain(&request) {
                Some(value) => {
                    request.id = Id::NONE;
                    Ok(value)
                }
                None => self.finish_pending(&request),
            },
        }
    }

    #[inline(never)] // what has ended need not pay for it
    fn finish_pending(&self, request: &Request) -> Result<u64, CompletionError> {
        self.check_asked(request)?;
        self.inner.finish(request)
    }

    /// The value of an operation of this worker's that has ended well already, and beside which there is nothing.
    #[inline]
    fn take_plain(&self, request: &Request) -> Option<u64> {
        let shared = &self.inner.shared;
        if !Rc::ptr_eq(shared, &request.shared) || !shared.same_process() {
            return None;
        }
        shared.ops.borrow_mut().take_plain(request.id)
    }

    /// The result of an operation of this worker, once it has one.
    #[must_use]
    pub fn test(&self, request: &Request) -> Option<Result<u64, CompletionError>> {
        if let Err(error) = self.check_asked(request) {
            return Some(Err(error));
        }
        let result = self.inner.shared.ops.borrow_mut().result(request.id)?;
        Some(result.map_err(CompletionError::from))
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
        self.inner.shared.interfaces.iter().filter_map(used).collect()
    }

    /// What the worker has counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.inner.counted()
    }

    /// How many operations are pending.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.inner.shared.ops.borrow().open_count()
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
