//! The receiving side of rendezvous messages (announced messages), until they are received.

use super::head::HeaderBytes;
use crate::endpoint::Endpoint;
use crate::interface::PeerId;
use crate::proto::Origin;
use crate::region::Region;
use crate::request::Outcome;
use crate::shared::Shared;
use crate::worker::WorkerState;
use crate::{Error, PostError};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;
use std::rc::{Rc, Weak};

/// The state of a rendezvous message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    #[default]
    Waiting,
    /// The transfer of the message's bytes is in progress.
    Taking,
    /// The sender has been notified of the end, or will be.
    Over,
    /// The sender has left, and its memory is gone.
    Left,
}

/// A rendezvous message as stored by the worker.
pub(crate) struct Announced {
    pub(crate) from: Origin,
    /// The number that the sender assigned to the message.
    pub(crate) token: u64,
    pub(crate) id: u16,
    pub(crate) header: u64,
    pub(crate) len: usize,
    pub(crate) header_bytes: HeaderBytes,
    /// The length of the key in bytes, also after the key has been dropped.
    pub(crate) key_len: usize,
    pub(crate) key: RefCell<Vec<u8>>,
    pub(crate) stage: Cell<Stage>,
}

/// A received rendezvous message (RTS). The message was longer than its lane can carry, so its bytes stay at the sender until they
/// are received.
///
/// The handler of its id gets it in order with the other messages ([`Message::rendezvous`](crate::Message::rendezvous)). The
/// announcement can be kept beyond the handler, without a time limit. Then [`Rendezvous::receive_into`] receives it into memory of
/// the receiver's choice, or [`Rendezvous::refuse`] refuses it. Dropping it refuses it, too. Until then the sender's memory stays
/// in use, unless the sender withdraws the message. The sender learns the result.
///
/// An announcement counts against the maximum number of messages that have not ended, per sender and in total
/// (`TIELINE_ANNOUNCED`). An announcement holds the worker's interfaces open, even after the worker was closed, as requests do. If
/// the sender withdraws the message or leaves, the receiver is not notified; `receive_into` reports it.
///
/// ```
/// # fn main() -> Result<(), tieline::Error> {
/// # use std::{cell::RefCell, rc::Rc};
/// # let context = tieline::Context::open()?;
/// # let worker = context.worker()?;
/// let arrived = Rc::new(RefCell::new(None));
/// let slot = arrived.clone();
/// worker.on_message(7, move |message| *slot.borrow_mut() = message.rendezvous())?;
/// let me = worker.connect(&worker.address()?)?;
/// let sent = me.send(7, 0, &vec![5; 1 << 20])?;
/// let announced = worker.wait_for(|| arrived.borrow_mut().take(), None)?.unwrap();
/// let buffer = context.register_transient(vec![0; announced.len()])?;
/// let taken = announced.receive_into(&buffer, 0..buffer.len())?;
/// worker.finish(taken)?;
/// worker.finish(sent)?;
/// # assert_eq!(buffer.into_buffer()?[..], [5; 1 << 20]);
/// # Ok(()) }
/// ```
#[must_use = "dropped, it is refused"]
pub struct Rendezvous {
    inner: Rc<Announced>,
    shared: Rc<Shared>,
    worker: Weak<WorkerState>,
    /// Whether the sender has been answered, or needs no answer.
    over: bool,
}

impl Rendezvous {
    pub(crate) fn new(
        inner: Rc<Announced>,
        shared: Rc<Shared>,
        worker: Weak<WorkerState>,
    ) -> Rendezvous {
        Rendezvous { inner, shared, worker, over: false }
    }

    /// Returns the message id.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.inner.id
    }

    /// Returns the 8-byte header.
    #[must_use]
    pub fn header(&self) -> u64 {
        self.inner.header
    }

    /// Returns the header bytes, as [`Message::header_bytes`](crate::Message::header_bytes) does.
    #[must_use]
    pub fn header_bytes(&self) -> &[u8] {
        &self.inner.header_bytes
    }

    /// Returns the length in bytes that the sender states. The length is not trustworthy: bound the memory that you allocate for
    /// the message.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// Checks whether the length is 0. Senders of this library make no rendezvous message of length 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the sender.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        PeerId(self.inner.from.peer)
    }

    /// Returns the application's endpoint to the sender; see [`Message::endpoint`](crate::Message::endpoint).
    #[must_use]
    pub fn endpoint(&self) -> Option<Endpoint> {
        self.worker.upgrade()?.known_endpoint(self.inner.from.peer).map(Endpoint::new)
    }

    /// Receives the message's first `range.len()` bytes into a range of a region. The region may be a transient registration
    /// ([`Context::register_transient`](crate::Context::register_transient)). When the operation has succeeded, all bytes of the
    /// range have arrived. The library chooses the lane. Nothing outside the range is written.
    ///
    /// A device transfers the bytes without the sender's application. If the kernel copies between the two processes, this worker's
    /// progress advances the operation, and the sender may be asked to copy a part of a long one. If the sender copies, it gets a
    /// key of exactly the range, until the operation has ended. If the sender's process is stopped in the middle of its copy, the
    /// operation waits until that process continues or ends.
    ///
    /// The sender's operation ends when this worker's answer arrives; the sender does not learn the number of bytes received. An
    /// empty range discards the message's bytes and completes the sender's operation successfully.
    ///
    /// The operation ends as `Canceled` if the sender has withdrawn the message or dropped its endpoint. As after any failure, some
    /// bytes of the range may have been written. A receive cannot be [canceled](crate::Worker::cancel).
    ///
    /// If the application holds an open endpoint to the sender, the operation uses it, and a flush of that endpoint waits for the
    /// operation. The operation ends if that endpoint fails or is closed with [`Close::Cancel`](crate::Close::Cancel). Dropping the
    /// endpoint does not end the operation, because the operation holds it.
    ///
    /// # Errors
    /// [`NotReceived`] returns the announcement, with a [`PostError`]. [`PostError::Retry`]: the maximum number of operations is
    /// pending. [`PostError::Correct`]: the range is longer than the message or outside its region, or the sender's announcement is
    /// malformed. [`PostError::Reconnect`]: the worker is closed, the sender has left, or the route to it has failed. On an error
    /// nothing is pending, and some bytes of a long range may have been written. The message was not answered, unless memory of one
    /// of the two sides is missing (`Permission`).
    pub fn receive_into(self, local: &Region, range: Range<usize>) -> Result<Outcome, NotReceived> {
        self.receive_into_pieces(&[(local, range)])
    }

    /// Receives the message's first bytes into pieces of regions, in sequence: as many bytes as the pieces have together. For the
    /// rest, the call is like [`Rendezvous::receive_into`].
    ///
    /// # Errors
    /// The errors of [`Rendezvous::receive_into`]. [`PostError::Retry`] also if the list would have to be queued and the queue is
    /// full.
    pub fn receive_into_pieces(
        self,
        pieces: &[(&Region, Range<usize>)],
    ) -> Result<Outcome, NotReceived> {
        let mut this = self;
        let taken = match this.worker.upgrade() {
            Some(worker) => worker.take_announced(&this.inner, pieces),
            None => Err(Error::from_status(crate::Status::Closed).into()),
        };
        match taken {
            Ok(outcome) => {
                this.over = true;
                Ok(outcome)
            }
            Err(error) => Err(NotReceived { announcement: this, error }),
        }
    }

    /// Receives the message's first `len` bytes into memory that is not registered, if a transport copies them within the call.
    /// Otherwise the message is returned unchanged.
    ///
    /// # Safety
    /// The `len` bytes at `to` are valid for writes, and nothing else accesses them during the call.
    #[doc(hidden)]
    #[allow(unsafe_code)] // the caller upholds the contract
    pub unsafe fn receive_at_once(self, to: *mut u8, len: usize) -> Result<(), Rendezvous> {
        let mut this = self;
        let worker = this.worker.upgrade();
        this.over = worker.is_some_and(|worker| worker.take_at_once(&this.inner, to, len));
        if this.over { Ok(()) } else { Err(this) }
    }

    /// Does the same as [`Rendezvous::receive_into`], of which this is the earlier name.
    ///
    /// # Errors
    /// The errors of [`Rendezvous::receive_into`].
    #[deprecated(since = "0.2.0", note = "renamed to `receive_into`")]
    pub fn take_into(self, local: &Region, range: Range<usize>) -> Result<Outcome, NotReceived> {
        self.receive_into(local, range)
    }

    /// Refuses the message. The sender's operation ends with [`CompletionError::Refused`](crate::CompletionError::Refused).
    pub fn refuse(self) {}
}

/// The earlier name of [`Rendezvous`].
#[deprecated(since = "0.2.0", note = "renamed to `Rendezvous`")]
pub type Announcement = Rendezvous;

/// The earlier name of [`NotReceived`].
#[deprecated(since = "0.2.0", note = "renamed to `NotReceived`")]
pub type Untaken = NotReceived;

impl Drop for Rendezvous {
    fn drop(&mut self) {
        let worker = self.worker.upgrade().filter(|_| self.shared.same_process());
        if let Some(worker) = worker {
            if !self.over {
                worker.refuse_one(&self.inner);
            }
            worker.reuse_announced(&self.inner);
        }
    }
}

impl fmt::Debug for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rendezvous({}, {} bytes from {})", self.id(), self.len(), self.peer())
    }
}

/// The error of [`Rendezvous::receive_into`]: the message could not be received at this time.
pub struct NotReceived {
    /// The message, to be received again or refused.
    pub announcement: Rendezvous,
    /// The reason.
    pub error: PostError,
}

impl fmt::Debug for NotReceived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NotReceived({:?}, {:?})", self.announcement, self.error)
    }
}

impl fmt::Display for NotReceived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for NotReceived {}

impl From<NotReceived> for Error {
    fn from(not: NotReceived) -> Error {
        not.error.into()
    }
}
