//! Messages that are longer than their lane carries at once, as their receiver has them before it takes them.

use crate::endpoint::Endpoint;
use crate::interface::PeerId;
use crate::proto::Origin;
use crate::region::Region;
use crate::request::Outcome;
use crate::shared::Shared;
use crate::{Error, PostError};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;
use std::rc::{Rc, Weak};

/// What becomes of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    #[default]
    Waiting,
    /// Its bytes are under way here.
    Taking,
    /// The sender has, or will have, our word.
    Over,
    /// The sender has left, and what it announced is gone with it.
    Left,
}

/// An announced message, as the worker knows it.
pub(crate) struct Announced {
    pub(crate) from: Origin,
    /// The sender's number of it.
    pub(crate) token: u64,
    pub(crate) id: u16,
    pub(crate) header: u64,
    pub(crate) len: usize,
    pub(crate) key: RefCell<Box<[u8]>>,
    pub(crate) stage: Cell<Stage>,
}

/// The worker, as an announcement calls it.
pub(crate) trait Taker {
    /// Posts the transfer of its first bytes into this memory.
    fn take(
        self: Rc<Self>,
        announced: &Rc<Announced>,
        local: &Region,
        range: Range<usize>,
    ) -> Result<Outcome, PostError>;

    /// Nobody takes it.
    fn refuse(self: Rc<Self>, announced: &Announced);
}

/// A message that was announced, since it is longer than its lane carries at once: its bytes are with the sender until they are taken.
///
/// It comes to the handler of its id in its place among the other messages ([`Message::announcement`](crate::Message::announcement)), and
/// can be kept beyond the handler, for any time. Then it is taken, into memory of the receiver's choice, or refused; dropped
/// without either it is refused. Who sent it waits for that with its memory, and hears it.
///
/// While it is kept it stands among those of its sender that the worker keeps, which are bounded (`TIELINE_ANNOUNCED`), and holds the worker's interfaces open, also
/// when the worker was closed, as requests do. Nothing tells that its sender took it back or has left: who takes it hears that.
///
/// ```
/// # fn main() -> Result<(), tieline::Error> {
/// # use std::{cell::RefCell, rc::Rc};
/// # let context = tieline::Context::open()?;
/// # let worker = context.worker()?;
/// let arrived = Rc::new(RefCell::new(None));
/// let slot = arrived.clone();
/// worker.on_message(7, move |message| *slot.borrow_mut() = message.announcement())?;
/// let me = worker.connect(&worker.address()?)?;
/// let sent = me.send(7, 0, &vec![5; 1 << 20])?;
/// let announced = worker.wait_for(|| arrived.borrow_mut().take(), None)?.unwrap();
/// let buffer = context.lend(vec![0; announced.len()])?;
/// let taken = announced.take_into(&buffer, 0..buffer.len())?;
/// worker.finish(taken)?;
/// worker.finish(sent)?;
/// # assert_eq!(buffer.into_buffer()?[..], [5; 1 << 20]);
/// # Ok(()) }
/// ```
#[must_use = "dropped, it is refused"]
pub struct Announcement {
    inner: Rc<Announced>,
    shared: Rc<Shared>,
    worker: Weak<dyn Taker>,
    /// Nothing is left to be said of it.
    over: bool,
}

impl Announcement {
    pub(crate) fn new(
        inner: Rc<Announced>,
        shared: Rc<Shared>,
        worker: Weak<dyn Taker>,
    ) -> Announcement {
        Announcement { inner, shared, worker, over: false }
    }

    /// The id that it was sent with.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.inner.id
    }

    /// The header that it was sent with.
    #[must_use]
    pub fn header(&self) -> u64 {
        self.inner.header
    }

    /// How long the message is, as its sender says: whoever that is, so bound what is allocated for it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// Whether it has no bytes, which a sender of this library announces of none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Who sent it.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        PeerId(self.inner.from.peer)
    }

    /// The endpoint back to whoever sent it; see [`Message::endpoint`](crate::Message::endpoint).
    #[must_use]
    pub fn endpoint(&self) -> Option<Endpoint> {
        super::endpoint_to(&self.shared, self.peer())
    }

    /// Takes the message's first bytes, as many as the range has, into a region: it may have been [lent](crate::Context::lend). The
    /// bytes come by the lane that suits, and all are there when the operation is complete. A device brings them without this side's or
    /// the sender's application. Where the kernel copies between the two, a take goes on in this worker's progress, and the sender
    /// may be asked to copy a part of a long one: it gets a key of exactly the range, to write it, until the operation has ended, and one
    /// that is stopped in the middle of its copy holds the take until it goes on or its process ends. Nothing else of the region is
    /// written. Then the sender's operation ends, too: it does not hear how much was taken. A range of no bytes drops what the message
    /// holds, and ends it well.
    ///
    /// The operation ends as `Canceled` where the sender has taken the message back, or dropped its endpoint: some bytes of the range may
    /// have been written then, as after any failure. It cannot be [cancelled](crate::Worker::cancel). It goes over an open endpoint of the
    /// application's that leads to the sender, if there is one, whose flush then waits for it. It ends with that endpoint where it fails or
    /// is closed with [`Close::Cancel`](crate::Close::Cancel); dropping it ends nothing, since the operation keeps it.
    ///
    /// # Errors
    /// [`Untaken`], with the announcement and a [`PostError`]: [`PostError::Retry`] where no more can be pending,
    /// [`PostError::Correct`] for a range that is longer than the message, or outside of its region, and where what the sender announced
    /// makes no sense, and [`PostError::Reconnect`] where the worker is closed, the sender has left, or the way to it has failed. Nothing is
    /// pending then, and nothing was refused; of a long range some bytes may have been written.
    pub fn take_into(self, local: &Region, range: Range<usize>) -> Result<Outcome, Untaken> {
        let mut this = self;
        let taken = match this.worker.upgrade() {
            Some(worker) => worker.take(&this.inner, local, range),
            None => Err(Error::from_status(crate::Status::Closed).into()),
        };
        match taken {
            Ok(outcome) => {
                this.over = true;
                Ok(outcome)
            }
            Err(error) => Err(Untaken { announcement: this, error }),
        }
    }

    /// Does not take it: the sender's operation ends, as refused.
    pub fn refuse(self) {}
}

impl Drop for Announcement {
    fn drop(&mut self) {
        let worker = self.worker.upgrade().filter(|_| !self.over && self.shared.same_process());
        if let Some(worker) = worker {
            worker.refuse(&self.inner);
        }
    }
}

impl fmt::Debug for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Announcement({}, {} bytes from {})", self.id(), self.len(), self.peer())
    }
}

/// An announced message that could not be taken now.
pub struct Untaken {
    /// The message, to be taken again or refused.
    pub announcement: Announcement,
    /// Why.
    pub error: PostError,
}

impl fmt::Debug for Untaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Untaken({:?}, {:?})", self.announcement, self.error)
    }
}

impl fmt::Display for Untaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Untaken {}

impl From<Untaken> for Error {
    fn from(not: Untaken) -> Error {
        not.error.into()
    }
}
