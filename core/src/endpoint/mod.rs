//! Endpoints: messages, put, get and atomics to one peer.
//!
//! The first use establishes the connection. Operations that the transport does not accept immediately are queued in order. If the
//! pending operations and their copies reach `TIELINE_QUEUE_BYTES`, a call returns `Again`.

mod abi;
mod admit;
mod announce;
mod answer;
mod at_once;
mod atomic;
mod backlog;
mod by_address;
mod by_handle;
mod cancel;
mod close;
mod counters;
mod direct;
mod emulated;
mod end;
mod fast_path;
mod fetch;
pub(crate) mod flush;
pub(crate) mod full_fence;
mod gather;
mod headed;
mod identity;
mod inner;
pub(crate) mod key;
mod known_keys;
mod lane;
mod lanes;
mod list;
mod list_later;
mod message_lane;
mod native;
pub(crate) mod notice;
mod notify;
mod packing;
mod pieces;
mod plan;
mod pointer;
mod post;
mod queries;
mod queue;
pub(crate) mod queued;
mod rails;
mod record;
mod rma;
mod route;
mod service;
pub(crate) mod shared_copy;
mod short_put;
mod small;
mod status;
mod strided;
mod told;
mod unreachable;
mod untaken;
mod whole;

#[doc(hidden)]
pub use at_once::{AtOnce, AtomicNumbers, BytesThere, Tried};
pub use by_handle::KeyLookup;
pub use close::Close;
pub use counters::EndpointCounters;
pub use headed::SendOptions;
pub use identity::EndpointId;
pub(crate) use inner::{EndpointState, Owner, State};
pub use key::RemoteKey;
pub(crate) use lane::Lane;
pub use list::{Descriptor, PreparedList};
pub use notice::After;
pub use pointer::RemotePointer;
pub(crate) use post::Posted;
pub use queries::{EndpointLimits, KeyLimits};
pub use record::{AtomicOp, Completion, Width};
pub(crate) use route::{ModulePair, Route};
pub(crate) use service::ServiceWorker;
pub use strided::Blocks;

use crate::explain::Record;
use crate::mem::pieces::Pieces;
use crate::message::head::HeaderBytes;
use crate::proto::id;
use crate::region::Region;
use crate::request::Outcome;
use crate::{ConnectError, Error, PostError, Status};
use packing::packed_too_much;
use queued::{GatheredMessage, QueuedOp};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use tieline_host::abi::PackBuffer;
use tieline_order::Kind;

/// A route to one peer, for messages, puts, gets and atomics.
///
/// An endpoint opens lanes on first use: a lane is a module that carries messages, or puts, gets and atomics, to this peer.
///
/// Clones share one endpoint, and its remote keys hold the endpoint as well. The endpoint is closed when the last of its clones and
/// keys is dropped. Messages that returned `Done` still arrive, unless the connection fails, and queued operations are sent first.
/// Other pending operations end with `Canceled`, or complete normally without the endpoint if the connection stays.
///
/// # Calls, and when each is allowed
///
/// An endpoint belongs to the thread of its worker and needs the worker's progress; see [`Worker`](crate::Worker). No method waits
/// for the peer, and no method runs a handler. All methods may be called inside a handler, except [`flush`](Endpoint::flush),
/// [`flush_messages`](Endpoint::flush_messages) and a [`close`](Endpoint::close) that flushes: these return `Busy` there.
///
/// * **Messages** of any length: [`send`](Endpoint::send) and [`send_packed`](Endpoint::send_packed) copy the payload.
///   [`send_regions`](Endpoint::send_regions) reads the regions until the operation has ended.
/// * **Memory operations**: [`put`](Endpoint::put), [`get`](Endpoint::get), [`put_pieces`](Endpoint::put_pieces),
///   [`get_pieces`](Endpoint::get_pieces), [`put_strided`](Endpoint::put_strided), [`get_strided`](Endpoint::get_strided) and the
///   atomics; [`put_raw`](Endpoint::put_raw) and [`get_raw`](Endpoint::get_raw) of memory in no region; lists of many puts or gets
///   with one completion ([`put_list`](Endpoint::put_list), [`get_list`](Endpoint::get_list)). Memory operations take a key made on this endpoint by [`import_key`](Endpoint::import_key) or
///   [`key_by_handle`](Endpoint::key_by_handle); a key of another endpoint is `KeyRejected`. The operation holds its local regions
///   open until it has ended: the application may drop them before, but should not change their bytes.
/// * **Notifications**: [`put_notify`](Endpoint::put_notify) is a put that notifies the peer's worker when the put's bytes have
///   arrived. [`notify`](Endpoint::notify) is a message that follows any operations.
/// * **Order**: [`fence`](Endpoint::fence), [`flush`](Endpoint::flush), [`flush_messages`](Endpoint::flush_messages).
/// * **Closing**: [`close`](Endpoint::close), after the posted operations or immediately; or dropping the last handle.
///
/// # Results of a call
///
/// * `Done`: the operation is complete. For an eager message, the transport has accepted it.
/// * `Pending`: the worker's progress completes it, and [`Worker::finish`](crate::Worker::finish) or
///   [`Worker::test`](crate::Worker::test) returns the result. Dropping the request does not cancel the operation; a flush then
///   reports its failure.
/// * `Again`: the limit of pending operations or of queued bytes is reached. Make progress and post again.
/// * Any other error: the operation was not posted, except as [`PostError`] says. If the endpoint has ended,
///   [`error`](Endpoint::error) returns the reason.
///
/// When an endpoint has failed, all pending operations end with its error, and new posts are refused with it. A new endpoint may
/// find another route to the peer.
pub struct Endpoint {
    pub(crate) inner: Rc<EndpointState>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({})", self.inner.name())
    }
}

/// The number of attempts of a slow send before the message is copied into the queue: about the time in which a receiver that polls
/// receives one.
const RETRIES: usize = 64;
/// The number of queued operations that one slow send tries to post first.
const DRAIN: usize = 16;

/// The largest message id that an application may use.
pub const MAX_MESSAGE_ID: u16 = id::FIRST - 1;

impl Endpoint {
    /// Sends a message of any length. `id` selects the handler at the peer; the handler receives `header` and `payload`. The
    /// payload is copied.
    ///
    /// `Done`: the transport has accepted the message. `Pending`: the message is queued, in order, or is a rendezvous message.
    ///
    /// A message longer than [`max_message`](Endpoint::max_message) is sent as a rendezvous message (RTS), in order with the other
    /// messages. The peer's handler gets a [`Rendezvous`](crate::Rendezvous) and chooses the destination of its bytes. The
    /// operation stays `Pending` until the peer's application has received or refused the message. The operation completes when the
    /// receiver has the bytes that it requested: all of them, the first part, or none. If the receiver refuses the message, has no
    /// handler for it, has reached its limit, or fails to transfer the bytes, the operation ends with
    /// [`CompletionError::Refused`](crate::CompletionError::Refused). If the connection fails, it ends with
    /// [`CompletionError::Unknown`](crate::CompletionError::Unknown). Fences and flushes do not wait for the receiver, but
    /// [`Worker::close`](crate::Worker::close) does. A receiving worker keeps at most 65,536 waiting rendezvous messages per peer
    /// and 32 MiB of their keys, and refuses further ones. `TIELINE_ANNOUNCED` and `TIELINE_ANNOUNCED_BYTES` bound those of all
    /// peers together, beyond a small share of each peer.
    ///
    /// [`Worker::cancel`](crate::Worker::cancel) tries to withdraw a rendezvous message. Dropping the endpoint, closing it with
    /// [`Close::Cancel`] or closing the worker withdraws every message that the peer has not received, and ends the operation. The
    /// peer is notified immediately if the lane accepts a message. A receiver whose transfer has begun may still read the memory. If
    /// the connection goes on, as between workers over `verbs`, the worker therefore keeps the memory registered until the receiver
    /// answers, and [`Region::close`](crate::Region::close) returns `Busy` until then. Otherwise the receiver's transfer fails.
    ///
    /// # Errors
    /// [`PostError::Retry`] if the queue is full, or if copies of long messages occupy `TIELINE_QUEUE_BYTES`: make progress and
    /// send again. While the endpoint holds no other copy, a long message may have any length. [`PostError::Correct`] for an id of
    /// the library's range. The same variant is returned for a long message if the peer's version does not support rendezvous
    /// messages, or if the RTS is too long for the lane. [`PostError::Release`] if no memory can be registered.
    /// [`PostError::Reconnect`] with the reason if the endpoint has ended.
    #[inline]
    pub fn send(&self, id: u16, header: u64, payload: &[u8]) -> Result<Outcome, PostError> {
        match self.send_at_once(id, header, payload) {
            AtOnce::Done => Ok(Outcome::Done(0)),
            AtOnce::NotTried => self.inner.send_slow(id, header, payload),
            AtOnce::Refused(Tried(code), ()) => self.inner.send_refused(code, id, header, payload),
        }
    }

    /// Sends a message that `pack` writes directly into the transport's buffer. `pack` gets a buffer of `max_len` bytes and returns
    /// the number of bytes that it wrote. If the transport does not accept the message immediately, `pack` writes into a buffer of
    /// the library, and the message is queued. If the queue is full, `pack` is not called.
    ///
    /// # Errors
    /// The errors of [`Endpoint::send`]. [`PostError::Correct`] also if `max_len` exceeds [`Endpoint::max_message`], or if `pack`
    /// returns more than `max_len`; in both cases nothing is sent.
    pub fn send_packed(
        &self,
        id: u16,
        header: u64,
        max_len: usize,
        pack: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<Outcome, PostError> {
        self.pack_or_queue(id, header, max_len, pack, true)
    }

    /// Sends like [`Endpoint::send_packed`]. `queues`: the message waits in the queue if the transport does not accept it.
    pub(super) fn pack_or_queue(
        &self,
        id: u16,
        header: u64,
        max_len: usize,
        pack: impl FnOnce(&mut [u8]) -> usize,
        queues: bool,
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
                // The packer wrote too much, so nothing was sent.
                Err(Status::Invalid) if pack.is_none() => {
                    return Err(packed_too_much(max_len).into());
                }
                Err(status) => return Err(ep.message_failed(status).into()),
            }
        }
        let Some(pack) = pack else {
            // The provider called the packer and then reported that it does not accept the message, which breaks its contract.
            return Err(ep.message_failed(Status::ProviderFailed).into());
        };
        if !queues || !ep.has_room(max_len) {
            return Err(ep.refused(Status::Again));
        }
        let mut bytes = vec![0; max_len];
        let mut buffer = PackBuffer::new(&mut bytes);
        buffer.put_with(max_len, pack).map_err(|_| packed_too_much(max_len))?;
        let len = buffer.len();
        bytes.truncate(len);
        ep.queue_message(id, header, bytes.into()).map_err(|error| ep.refused(error))
    }

    /// Sends a message gathered from pieces of regions. The pieces must not change until the operation has ended. A transport that
    /// supports this reads the pieces in place.
    ///
    /// A message longer than [`max_message`](Endpoint::max_message) is a rendezvous message, as for [`Endpoint::send`]. The peer
    /// reads a single piece in place and cannot access the rest of its region. Several pieces are copied into one buffer.
    ///
    /// # Errors
    /// The errors of [`Endpoint::send`]. [`PostError::Correct`] also for a range outside its region.
    pub fn send_regions(
        &self,
        id: u16,
        header: u64,
        pieces: &[(&Region, Range<usize>)],
    ) -> Result<Outcome, PostError> {
        let ep = &*self.inner;
        let len = ep.len_of_pieces(id, pieces)?;
        if len > ep.most() {
            let announced = ep.announce_pieces(id, header, HeaderBytes::default(), pieces, len);
            return announced.map_err(|error| ep.refused(error));
        }
        let pieces = pieces.iter().map(|(region, range)| (*region, range.clone()));
        let pieces = Rc::new(Pieces::new(pieces));
        if !ep.has_room(pieces.size()) {
            return Err(ep.refused(Status::Again));
        }
        let request = ep.open(Kind::Native).map_err(|status| ep.refused(status))?;
        ep.post(QueuedOp::Gather(GatheredMessage { id, header, pieces, len, request }));
        Ok(ep.outcome(request)?)
    }

    /// Returns the length in bytes of the longest message that this endpoint sends eagerly. Longer ones are rendezvous messages.
    /// The call opens the message lane.
    ///
    /// The value may be smaller before the connection is established than afterwards. If the message module is abandoned before the
    /// first message was sent, another device or provider replaces it, and the value may become smaller. A queued message that is
    /// too long for the replacement ends as `TooLarge`.
    ///
    /// # Errors
    /// [`PostError::Reconnect`] if the endpoint has ended, or no connection can be established.
    #[inline]
    pub fn max_message(&self) -> Result<usize, PostError> {
        let ep = &*self.inner;
        if ep.state.get() != State::Ready || !ep.shared.same_process() {
            let _ = ep.ready_or_opened()?;
        }
        Ok(ep.most())
    }

    /// Posts a flush. The flush completes when every put, get and atomic posted before is complete at the target, and the transport
    /// has accepted every message posted before, in order.
    ///
    /// # Errors
    /// The errors of [`Endpoint::send`]. [`PostError::Correct`] inside a handler.
    ///
    /// The flush completes with the first failure among the operations for which it waited. A transport reports the failures of
    /// locally completed puts for all of these puts together. A flush may therefore report the failure of a put by another endpoint
    /// over the same connection, or of a put that was posted after the flush, but before the transport was asked. The flush after
    /// that put reports the failure as well.
    ///
    /// The flush also completes with the first failure of earlier operations whose requests were dropped. It does not repeat a failure
    /// that another result has reported before the flush was posted: that of the operation or of an earlier flush.
    pub fn flush(&self) -> Result<Outcome, PostError> {
        full_fence::full_fence();
        self.inner.flush().map_err(|error| self.inner.refused(error))
    }

    /// Posts a flush of messages. The flush completes when the peer's handlers have run for every message posted before. It costs
    /// one message and its answer.
    ///
    /// # Errors
    /// The errors of [`Endpoint::flush`].
    pub fn flush_messages(&self) -> Result<Outcome, PostError> {
        let ep = &*self.inner;
        ep.check_open()?;
        ep.shared.check_no_handler("a flush")?;
        let request = ep.open(Kind::Ping).map_err(|status| ep.refused(status))?;
        ep.post(QueuedOp::ask(id::PING, request, Vec::new()));
        Ok(ep.outcome(request)?)
    }

    /// Orders all puts, gets and atomics posted before this call ahead of those posted after it. The call does not wait, and may be
    /// made inside a handler.
    ///
    /// # Errors
    /// [`PostError::Reconnect`] if the endpoint has ended.
    pub fn fence(&self) -> Result<(), PostError> {
        Ok(self.inner.fence()?)
    }

    /// Imports a peer's key: the bytes that [`Region::remote_key`](crate::Region::remote_key) returned at the peer. The result is
    /// usable on this endpoint only.
    ///
    /// Each call parses the bytes again and may map the memory again. If the same bytes can arrive repeatedly, keep the first
    /// [`RemoteKey`]; its clones are cheap.
    ///
    /// # Errors
    /// [`PostError::Correct`] if the bytes are damaged or belong to another process than this endpoint's peer.
    /// [`PostError::Reconnect`] if the endpoint has ended.
    pub fn import_key(&self, bytes: &[u8]) -> Result<RemoteKey, PostError> {
        let ep = &self.inner;
        ep.check_alive()?;
        Ok(RemoteKey::import(ep, ep.key_of_peer(bytes)?))
    }

    /// Returns the module that carries messages to this peer, for example `shm/ring`.
    #[must_use]
    pub fn message_path(&self) -> String {
        self.inner.message_path()
    }

    /// Returns the composition for this peer in one line: `{message verbs:mlx5_0/rc, RMA verbs:mlx5_0/rc, atomic emulated, connect
    /// verbs:mlx5_0/ud}`. If several modules serve one role, the kind of memory determines the module; [`RemoteKey::path`] names
    /// the module of a key.
    #[must_use]
    pub fn path(&self) -> String {
        self.inner.path()
    }

    /// Returns the modules that could serve this peer but do not, one line each, with the reason. These are modules of the peer
    /// that are missing on this side, providers that this side could not use, and modules that do not reach the peer. The list is
    /// empty if no such module exists.
    #[must_use]
    pub fn hindrances(&self) -> Vec<String> {
        self.inner.hindrances()
    }

    /// Returns the decisions about this peer, module by module.
    #[must_use]
    pub fn report(&self) -> Vec<Record> {
        self.inner.route.records.clone()
    }

    /// Returns the reason why this endpoint has ended, and what the application can do to get another endpoint to this peer. `None`
    /// until the endpoint has ended.
    #[must_use]
    pub fn error(&self) -> Option<ConnectError> {
        self.inner.error.borrow().clone().map(ConnectError::from)
    }
}

/// Calls `send` until the lane accepts the message, at most [`RETRIES`] times.
fn patiently(mut send: impl FnMut() -> Result<(), Status>) -> Result<(), Status> {
    for _ in 0..RETRIES {
        match send() {
            Err(Status::Again) => std::hint::spin_loop(),
            result => return result,
        }
    }
    Err(Status::Again)
}

impl EndpointState {
    /// Checks the pieces of a message of this id, opens the message lane, and returns the length of all pieces.
    fn len_of_pieces(
        &self,
        id: u16,
        pieces: &[(&Region, Range<usize>)],
    ) -> Result<usize, PostError> {
        let mut len = 0usize;
        for (region, range) in pieces {
            self.check_local(region)?;
            let n = range.end.checked_sub(range.start).ok_or(Status::Invalid)?;
            let _ = region.inner.span.range(range.start, n)?;
            len = len.saturating_add(n);
        }
        self.check_id(id)?;
        let _ = self.is_ready_or_opens()?;
        Ok(len)
    }

    #[cold]
    fn send_refused(
        &self,
        code: i32,
        id: u16,
        header: u64,
        payload: &[u8],
    ) -> Result<Outcome, PostError> {
        self.refused_or_queued(code, id, header, payload, true)
    }

    #[cold]
    fn send_slow(&self, id: u16, header: u64, payload: &[u8]) -> Result<Outcome, PostError> {
        self.send_or_queue(id, header, payload, true)
    }

    /// Sends a message that the transport did not accept inline. `queues`: the message waits in the queue if necessary.
    fn refused_or_queued(
        &self,
        code: i32,
        id: u16,
        header: u64,
        payload: &[u8],
        queues: bool,
    ) -> Result<Outcome, PostError> {
        let sent = match Status::from_code(code) {
            Status::Again => patiently(|| self.message_now(id, header, payload)),
            status => Err(status),
        };
        self.sent_or_queued(sent, id, header, payload, queues)
    }

    /// Sends a message that could not be tried inline. `queues`: the message waits in the queue if the transport does not accept it,
    /// and a long message becomes a rendezvous message.
    fn send_or_queue(
        &self,
        id: u16,
        header: u64,
        payload: &[u8],
        queues: bool,
    ) -> Result<Outcome, PostError> {
        self.check_id(id)?;
        let _ = self.ready_or_opened()?;
        if !queues {
            self.check_message(id, payload.len())?;
        } else if payload.len() > self.most() {
            let announced = self.announce_bytes(id, header, HeaderBytes::default(), payload);
            return announced.map_err(|error| self.refused(error));
        }
        if self.state.get() == State::Queueing {
            // Queued messages are sent first; if all were sent, this message needs no copy.
            let _ = self.run_queue(DRAIN);
        }
        let sent = match self.ready_or_opened()? {
            true => patiently(|| self.message_now(id, header, payload)),
            false => Err(Status::Again),
        };
        self.sent_or_queued(sent, id, header, payload, queues)
    }

    fn sent_or_queued(
        &self,
        sent: Result<(), Status>,
        id: u16,
        header: u64,
        payload: &[u8],
        queues: bool,
    ) -> Result<Outcome, PostError> {
        match sent {
            Ok(()) => Ok(Outcome::Done(0)),
            Err(Status::Again) if queues && self.has_room(payload.len()) => {
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

    /// Returns `true` if a message may be sent immediately, `false` if it has to be queued.
    fn ready_or_opened(&self) -> Result<bool, Error> {
        self.check_alive()?;
        self.is_ready_or_opens()
    }

    /// Does the same as `ready_or_opened`, on an endpoint that is alive.
    fn is_ready_or_opens(&self) -> Result<bool, Error> {
        let _ = self.message_lane_opened()?;
        if self.watched.get() && self.state.get() == State::Queueing && self.queue_len() == 0 {
            self.state.set(self.ready());
        }
        Ok(self.state.get() == State::Ready)
    }
}
