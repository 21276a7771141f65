//! Endpoints: messages, put, get and atomics to one peer.
//!
//! A connection is made by the first operation. Operations that the transport has no room for are queued
//! in order, up to `TIELINE_QUEUE_BYTES`; beyond that the call says `Again` and nothing was sent.

mod abi;
mod announce;
mod answer;
mod at_once;
mod atomic;
mod by_handle;
mod calls;
mod cancel;
mod close;
mod counters;
mod direct;
mod emulated;
mod end;
mod fast_path;
pub(crate) mod flush;
mod gather;
mod identity;
mod inner;
pub(crate) mod key;
mod known_keys;
mod lanes;
mod native;
mod notify;
mod order;
mod packing;
mod pieces;
mod pointer;
mod post;
mod queries;
mod queue;
pub(crate) mod queued;
mod rails;
mod record;
mod rma;
mod route;
pub(crate) mod shared_copy;
mod short_put;
mod small;
mod status;
mod strided;
mod told;
mod unreachable;
mod untaken;

#[doc(hidden)]
pub use at_once::{AtOnce, AtomicNumbers, BytesThere, Tried};
pub use by_handle::KeyLookup;
pub(crate) use calls::{Circuits, WorkerCalls};
pub use close::Close;
pub use counters::EndpointCounters;
pub use identity::EndpointId;
pub(crate) use inner::{Inner, Lane, Owner, State};
pub use key::RemoteKey;
pub use pointer::RemotePointer;
pub(crate) use post::Posted;
pub use queries::{EndpointLimits, KeyLimits};
pub use record::{AtomicOp, Completion, Width};
pub(crate) use route::{ModulePair, Route};
pub(crate) use status::short;
pub use strided::Blocks;

use crate::explain::Record;
use crate::op::{Kind, Pieces};
use crate::proto::id;
use crate::region::Region;
use crate::registry::abi::PackBuffer;
use crate::request::Outcome;
use crate::{ConnectError, Error, PostError, Status};
use packing::packed_too_much;
use queued::{GatheredMessage, QueuedOp};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

/// The way to one peer. Clones are the same endpoint, and its keys hold it too; the last of them dropped closes it: what said `Done`
/// still arrives, and what is queued is sent first. What is pending beyond that ends with `Canceled`, or goes on without the endpoint and
/// ends well, where the connection stays.
///
/// # Which calls there are, and when each may be made
///
/// An endpoint belongs to the thread of its worker, and needs its worker's progress: [`Worker`](crate::Worker) says what that is.
/// None of its methods waits, and none runs a handler. All may be called inside one, but for [`flush`](Endpoint::flush),
/// [`flush_messages`](Endpoint::flush_messages) and a [`close`](Endpoint::close) that flushes, which are `Busy` there.
///
/// * **Messages** of any length: [`send`](Endpoint::send) and [`send_packed`](Endpoint::send_packed) copy,
///   [`send_regions`](Endpoint::send_regions) reads the regions until it has ended.
/// * **Memory**: [`put`](Endpoint::put), [`get`](Endpoint::get), [`put_pieces`](Endpoint::put_pieces),
///   [`get_pieces`](Endpoint::get_pieces), [`put_strided`](Endpoint::put_strided), [`get_strided`](Endpoint::get_strided) and the atomics take a key that
///   [`import_key`](Endpoint::import_key) or [`key_by_handle`](Endpoint::key_by_handle) made on this endpoint; another endpoint's is
///   `KeyRejected`. Local regions are used until
///   the operation has ended, and are kept open for as long: they may be dropped, and should not be changed.
/// * **Notifications**: [`put_notify`](Endpoint::put_notify) is a put that tells the peer's worker when its bytes are there.
/// * **Order**: [`fence`](Endpoint::fence), [`flush`](Endpoint::flush), [`flush_messages`](Endpoint::flush_messages).
/// * **The end**: [`close`](Endpoint::close), behind what was posted or at once; or the drop of the last handle.
///
/// # What a call says
///
/// `Done`: it has ended, or, a message, is in the transport's hands. `Pending`: the worker's progress ends it, and
/// [`Worker::finish`](crate::Worker::finish) or [`Worker::test`](crate::Worker::test) tells how; dropping the request changes nothing of
/// that, and the next flush reports a failure that nobody asked for. `Again`: nothing was posted, since as much is queued as may
/// be; make progress and post it anew. Any other error: nothing was posted either, and [`error`](Endpoint::error) says whether the
/// endpoint is finished. Once it is, everything that was pending ends with that reason, and whatever is posted is
/// refused with it; a new endpoint may find another way to the peer.
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
    /// Sends a message of any length: `id` chooses the handler at the peer, `header` and `payload` are handed to it.
    /// The payload is copied. `Done`: it is under way. `Pending`: it is queued, in order.
    ///
    /// What is longer than [`max_message`](Endpoint::max_message) is announced, in its place among the other messages. The peer's handler
    /// gets an [`Announcement`](crate::Announcement) and says where its bytes go; it is `Pending` until then, and ends well when what the
    /// receiver wanted of them is there: all, only their beginning, or nothing. Until the peer's application has taken it or refused it
    /// ([`CompletionError::Refused`](crate::CompletionError::Refused), also where its transfer has failed) it stays pending, whatever else is
    /// sent; no fence and no flush waits for that, but closing the worker does. A worker keeps 65,536 that wait there of one peer, and 32
    /// MiB of their keys, and refuses what is beyond.
    ///
    /// [`Worker::cancel`](crate::Worker::cancel) asks for it back. With the endpoint it ends: who drops the endpoint, closes it with
    /// [`Close::Cancel`], or closes the worker, takes back what nobody has taken. The peer is told so at once, but who has begun to
    /// take it may read memory that is gone: that fails there, and over `verbs` the connection ends with it, for both sides.
    ///
    /// # Errors
    /// [`PostError::Retry`] when the queue is full: nothing was sent, so make progress and send again. So it is while copies of
    /// long messages take as much (`TIELINE_QUEUE_BYTES`); one that is alone may have any length. [`PostError::Correct`]
    /// for an id of the library's, and for a long message to a peer whose version knows none or whose announcement is longer than a message
    /// of its lane. [`PostError::Release`] where no memory can be registered. [`PostError::Reconnect`] when the endpoint has ended, and with
    /// the reason.
    #[inline]
    pub fn send(&self, id: u16, header: u64, payload: &[u8]) -> Result<Outcome, PostError> {
        match self.send_at_once(id, header, payload) {
            AtOnce::Done => Ok(Outcome::Done(0)),
            AtOnce::NotTried => self.inner.send_slow(id, header, payload),
            AtOnce::Refused(Tried(code), ()) => self.inner.send_refused(code, id, header, payload),
        }
    }

    /// Sends a message that `pack` writes straight into the transport's buffer: it gets room for
    /// `max_len` bytes and returns how many it wrote.
    ///
    /// # Errors
    /// As [`Endpoint::send`]; [`PostError::Correct`] also for more than [`Endpoint::max_message`], and when `pack` returns more than
    /// `max_len`: nothing is sent then.
    pub fn send_packed(
        &self,
        id: u16,
        header: u64,
        max_len: usize,
        pack: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<Outcome, PostError> {
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
                Err(Status::Invalid) if pack.is_none() => {
                    return Err(packed_too_much(max_len).into());
                }
                Err(status) => return Err(ep.message_failed(status).into()),
            }
        }
        let Some(pack) = pack else {
            // The provider ran the callback and then had no room: its promise is broken.
            return Err(ep.message_failed(Status::ProviderFailed).into());
        };
        if !ep.has_room(max_len) {
            return Err(ep.refused(Status::Again));
        }
        let mut bytes = vec![0; max_len];
        let mut buffer = PackBuffer::new(&mut bytes);
        buffer.put_with(max_len, pack).map_err(|_| packed_too_much(max_len))?;
        let len = buffer.len();
        bytes.truncate(len);
        ep.queue_message(id, header, bytes.into()).map_err(|error| ep.refused(error))
    }

    /// Sends a message gathered from pieces of regions, which must not change until it is done. A transport that can takes them
    /// from where they lie. What is longer than [`max_message`](Endpoint::max_message) is announced, as by [`Endpoint::send`]: one piece
    /// is read by the peer from where it lies, and nothing else of its region; more of them are copied.
    ///
    /// # Errors
    /// As [`Endpoint::send`]; [`PostError::Correct`] also for a range outside its region.
    pub fn send_regions(
        &self,
        id: u16,
        header: u64,
        pieces: &[(&Region, Range<usize>)],
    ) -> Result<Outcome, PostError> {
        let ep = &*self.inner;
        let mut len = 0usize;
        for (region, range) in pieces {
            ep.check_local(region)?;
            let n = range.end.checked_sub(range.start).ok_or(Status::Invalid)?;
            let _ = region.inner.span.range(range.start, n)?;
            len = len.saturating_add(n);
        }
        ep.check_id(id)?;
        let _ = ep.ready_or_opened()?;
        let pieces = pieces.iter().map(|(region, range)| (*region, range.clone()));
        let pieces = Rc::new(Pieces::new(pieces));
        if len > ep.most() {
            let announced = ep.announce_pieces(id, header, &pieces, len);
            return announced.map_err(|error| ep.refused(error));
        }
        if !ep.has_room(pieces.size()) {
            return Err(ep.refused(Status::Again));
        }
        let request = ep.open(Kind::Native).map_err(|status| ep.refused(status))?;
        ep.post(QueuedOp::Gather(GatheredMessage { id, header, pieces, len, request }));
        Ok(ep.outcome(request)?)
    }

    /// The longest message that this endpoint carries at once; longer ones are announced. Before its connection stands it may be less than
    /// afterwards. Where the module that was to carry its messages is given up before the first was sent, and another device or provider takes over,
    /// it may be less from then on: what is queued and too long for that ends as `TooLarge`.
    ///
    /// # Errors
    /// [`PostError::Reconnect`] when the endpoint has ended, or no connection comes about.
    pub fn max_message(&self) -> Result<usize, PostError> {
        let ep = &*self.inner;
        let _ = ep.ready_or_opened()?;
        Ok(ep.most())
    }

    /// Completes when every put, get and atomic posted before is complete at the target, and every message
    /// posted before is in the transport's hands, in order.
    ///
    /// # Errors
    /// As [`Endpoint::send`]; [`PostError::Correct`] in a handler. What it completes with is the first failure of what it
    /// waited for. Transports tell failures of puts that had completed locally together: a flush may tell one of a put that was
    /// posted behind it, before it asked, or by another endpoint over the same connection; that put's own flush tells it too.
    pub fn flush(&self) -> Result<Outcome, PostError> {
        self.inner.flush().map_err(|error| self.inner.refused(error))
    }

    /// Completes when the peer's handlers have run for every message posted before: a round trip.
    ///
    /// # Errors
    /// As [`Endpoint::flush`].
    pub fn flush_messages(&self) -> Result<Outcome, PostError> {
        let ep = &*self.inner;
        ep.check_open()?;
        ep.shared.check_no_handler("a flush")?;
        let request = ep.open(Kind::Ping).map_err(|status| ep.refused(status))?;
        ep.post(QueuedOp::ask(id::PING, request, Vec::new()));
        Ok(ep.outcome(request)?)
    }

    /// Orders every put, get and atomic posted before ahead of those posted after.
    ///
    /// # Errors
    /// [`PostError::Reconnect`] when the endpoint has ended. It waits for nothing, and a handler may call it.
    pub fn fence(&self) -> Result<(), PostError> {
        Ok(self.inner.fence()?)
    }

    /// Makes a peer's key usable on this endpoint: the bytes of the peer's `Region::remote_key`. Each call reads them anew and may map the
    /// memory anew: who is given the same bytes again keeps the first [`RemoteKey`], which clones cheaply.
    ///
    /// # Errors
    /// [`PostError::Correct`] when the bytes are damaged or belong to another process than this endpoint's peer;
    /// [`PostError::Reconnect`] when the endpoint has ended.
    pub fn import_key(&self, bytes: &[u8]) -> Result<RemoteKey, PostError> {
        let ep = &self.inner;
        ep.check_alive()?;
        Ok(RemoteKey::import(ep, ep.key_of_peer(bytes)?))
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
        self.inner.path()
    }

    /// What would serve this peer and does not, in a line each: what the peer has and this side left out or was refused, and what does
    /// not reach it, with the reason. Empty where nothing is missing.
    #[must_use]
    pub fn hindrances(&self) -> Vec<String> {
        self.inner.hindrances()
    }

    /// What was decided for this peer, module by module.
    #[must_use]
    pub fn report(&self) -> Vec<Record> {
        self.inner.route.records.clone()
    }

    /// The reason why this endpoint has ended, if it has, and what it takes to have another one to this peer.
    #[must_use]
    pub fn error(&self) -> Option<ConnectError> {
        self.inner.error.borrow().clone().map(ConnectError::from)
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
    // ---- messages that do not take the fast path ----

    #[cold]
    fn send_refused(
        &self,
        code: i32,
        id: u16,
        header: u64,
        payload: &[u8],
    ) -> Result<Outcome, PostError> {
        let sent = match Status::from_code(code) {
            Status::Again => patiently(|| self.message_now(id, header, payload)),
            status => Err(status),
        };
        self.sent_or_queued(sent, id, header, payload)
    }

    #[cold]
    fn send_slow(&self, id: u16, header: u64, payload: &[u8]) -> Result<Outcome, PostError> {
        self.check_id(id)?;
        let _ = self.ready_or_opened()?;
        if payload.len() > self.most() {
            let announced = self.announce_bytes(id, header, payload);
            return announced.map_err(|error| self.refused(error));
        }
        if self.state.get() == State::Queueing {
            // What is queued goes first; then this message needs no copy.
            let _ = self.run_queue(DRAIN);
        }
        let sent = match self.ready_or_opened()? {
            true => patiently(|| self.message_now(id, header, payload)),
            false => Err(Status::Again),
        };
        self.sent_or_queued(sent, id, header, payload)
    }

    fn sent_or_queued(
        &self,
        sent: Result<(), Status>,
        id: u16,
        header: u64,
        payload: &[u8],
    ) -> Result<Outcome, PostError> {
        match sent {
            Ok(()) => Ok(Outcome::Done(0)),
            Err(Status::Again) if self.has_room(payload.len()) => {
                self.queue_message(id, header, payload.into()).map_err(|error| self.refused(error))
            }
            Err(Status::Again) => Err(self.refused(Status::Again)),
            Err(status) => Err(self.message_failed(status).into()),
        }
    }

    fn queue_message(&self, id: u16, header: u64, payload: Box<[u8]>) -> Result<Outcome, Error> {
        let request = self.shared.ops.borrow_mut().open_queued(self.index)?;
        self.post(QueuedOp::Message { id, header, payload, request: Some(request) });
        self.outcome(request)
    }

    fn check_id(&self, id: u16) -> Result<(), Error> {
        self.check_open()?;
        if id > MAX_MESSAGE_ID {
            return Err(Error::new(
                Status::Invalid,
                format!("message id {id:#x}"),
                format!("ids above {MAX_MESSAGE_ID:#x} belong to the library"),
                "use a smaller id",
            ));
        }
        Ok(())
    }

    fn check_message(&self, id: u16, len: usize) -> Result<(), Error> {
        self.check_id(id)?;
        let _ = self.ready_or_opened()?;
        let max = self.most();
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
        let _ = self.message_lane_opened()?;
        if self.watched.get() && self.state.get() == State::Queueing && self.queue_len() == 0 {
            self.state.set(self.ready());
        }
        Ok(self.state.get() == State::Ready)
    }
}
