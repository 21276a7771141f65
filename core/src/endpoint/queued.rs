//! The types of what an endpoint has still to do: queued operations, waiting answers, shared copies.

use super::Inner;
use super::key::KeyInner;
use super::record::Completion;
use crate::Status;
use crate::op::{Id, Memory, Pieces};
use crate::proto::emulate::{Answer, AtomicCall, Target};
use crate::proto::id;
use crate::proto::shared_copy::Plan;
use crate::region::Region;
use std::rc::Rc;

/// An answer that waits for room.
pub(crate) struct Waiting {
    pub(crate) answer: Answer,
    /// Since when it could not be given, where it was tried before over a connection that failed; see `worker/answering.rs`.
    pub(crate) owed_since: Option<u64>,
}

/// One queued operation.
pub(crate) enum QueuedOp {
    /// A message whose payload was copied, or a question of the core's own.
    Message { id: u16, header: u64, payload: Box<[u8]>, request: Option<Id> },
    /// A message that an earlier lane had taken, and the peer refused with that lane. Its operation has ended, or waits for its answer.
    Returned { id: u16, header: u64, payload: Box<[u8]> },
    /// A message gathered from regions.
    Gather(GatheredMessage),
    /// The announcement of a message whose receiver ends `announced`; `sent` ends when it has left.
    Announce { announced: Id, sent: Id, payload: Box<[u8]> },
    /// A put over messages.
    Put(EmulatedPut),
    /// Tells the peer's worker a word, once the puts before it are there. `lanes`: those that have yet to be asked whether what
    /// completed locally is, once that is known.
    Notify { word: u32, request: Id, lanes: Option<u64> },
    /// An operation of the endpoint to the peer's service worker that a barrier holds back here.
    Forward { to: Rc<Inner>, op: Option<Box<QueuedOp>> },
    /// Holds back what follows until `request` has ended.
    Barrier { request: Id },
    /// The part of a flush that asks lanes, a bit for each by rank, when everything before has been posted.
    FlushLanes { request: Id, lanes: u64 },
    /// A native put or get that the provider had no room for.
    Native(NativeOp),
    /// An atomic that the provider had no room for, or that takes several of its operations.
    Atomic(NativeAtomic),
}

impl QueuedOp {
    /// A question of the core's own protocols; its answer ends `question`.
    pub(crate) fn ask(id: u16, question: Id, bytes: Vec<u8>) -> QueuedOp {
        QueuedOp::Message { id, header: question.raw(), payload: bytes.into(), request: None }
    }

    /// A message of the core's own that nobody answers.
    pub(crate) fn tell(id: u16, bytes: Vec<u8>) -> QueuedOp {
        QueuedOp::Message { id, header: 0, payload: bytes.into(), request: None }
    }

    /// Whether it goes over the message lane. What does not, waits for no connection to the peer's own worker,
    /// which may be forming for as long as a passive target computes.
    pub(super) fn is_message(&self) -> bool {
        use QueuedOp::*;
        matches!(
            self,
            Message { .. } | Returned { .. } | Announce { .. } | Gather(_) | Put(_) | Notify { .. }
        )
    }

    /// Bytes that were copied for it, or that a list of its pieces takes.
    pub(super) fn copied(&self) -> usize {
        match self {
            QueuedOp::Message { payload, .. }
            | QueuedOp::Returned { payload, .. }
            | QueuedOp::Announce { payload, .. } => payload.len(),
            QueuedOp::Gather(op) => op.pieces.size(),
            QueuedOp::Put(op) => op.memory.room(op.len),
            QueuedOp::Native(op) => op.memory.room(op.len),
            _ => 0,
        }
    }

    /// The operation that fails with this op.
    pub(crate) fn request(&self) -> Option<Id> {
        match self {
            // A question has no request beside the operation that it asks for.
            QueuedOp::Message { id, header, request: None, .. } if *id >= id::FIRST => {
                Id::from_raw(*header)
            }
            QueuedOp::Message { request, .. } => *request,
            QueuedOp::Announce { announced, .. } => Some(*announced),
            QueuedOp::FlushLanes { request, .. } | QueuedOp::Notify { request, .. } => {
                Some(*request)
            }
            QueuedOp::Gather(op) => Some(op.request),
            QueuedOp::Put(op) => Some(op.request),
            QueuedOp::Native(op) => Some(op.request),
            QueuedOp::Atomic(op) => Some(op.request),
            // A forwarded operation ends with the endpoint that it goes to.
            QueuedOp::Barrier { .. } | QueuedOp::Forward { .. } | QueuedOp::Returned { .. } => None,
        }
    }

    /// An operation beside `request` that ends, and tells nobody, where this op is not carried out.
    pub(super) fn unsaid(&self) -> Option<Id> {
        match self {
            // The last piece asks for it, which was not sent.
            QueuedOp::Put(op) if op.request != op.answer => Some(op.answer),
            QueuedOp::Announce { sent, .. } => Some(*sent),
            _ => None,
        }
    }

    /// An operation beside `request` that nobody asks for when this op is given up.
    pub(crate) fn inner_request(&self) -> Option<Id> {
        match self {
            QueuedOp::Atomic(op) => op.posted_swap,
            _ => None,
        }
    }

    /// What is to be done in the end.
    pub(super) fn not_forwarded(self) -> QueuedOp {
        match self {
            QueuedOp::Forward { op: Some(op), .. } => op.not_forwarded(),
            op => op,
        }
    }

    /// The operation that ends when it has been sent.
    pub(super) fn ends_when_sent(&self) -> Option<Id> {
        match self {
            QueuedOp::Put(op) if op.request != op.answer => Some(op.request),
            QueuedOp::Message { request, .. } => *request,
            QueuedOp::Announce { sent, .. } => Some(*sent),
            QueuedOp::FlushLanes { request, .. } | QueuedOp::Notify { request, .. } => {
                Some(*request)
            }
            _ => None,
        }
    }
}

/// A message of pieces of regions, as one range.
pub(crate) struct GatheredMessage {
    pub(super) id: u16,
    pub(super) header: u64,
    pub(super) pieces: Rc<Pieces>,
    pub(super) len: usize,
    pub(super) request: Id,
}

/// A put over messages. The target answers `answer`; when that is another one, `request` ends with the last piece sent.
pub(crate) struct EmulatedPut {
    pub(super) memory: Memory,
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) sent: usize,
    pub(super) target: Target,
    pub(super) request: Id,
    pub(super) answer: Id,
    /// What its last piece tells the target.
    pub(super) notify: Option<u32>,
}

/// A native put or get that waits for its turn, or for room in the provider.
pub(crate) struct NativeOp {
    pub(crate) put: bool,
    pub(crate) memory: Memory,
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) key: Rc<KeyInner>,
    pub(crate) offset: u64,
    pub(crate) completion: Completion,
    pub(crate) request: Id,
    /// The lane to the peer's memory, by rank.
    pub(super) rank: usize,
    /// The lane that a fence before it relies on, see [`Inner::may_leave`].
    pub(super) fenced: u64,
    /// Bytes that have been posted, where it takes several pieces.
    pub(super) posted: usize,
    /// Those among them that lanes took which then declined the rest.
    pub(super) taken: usize,
    /// Lanes that have declined it, a bit for each by rank.
    pub(super) declined: u64,
    /// Whether the call that posted it has written, or read, some of it: that is done anew.
    pub(super) begun: bool,
    /// What it tells the target, by a lane that does so.
    pub(super) notify: Option<u32>,
}

impl NativeOp {
    /// The same, for its place in the queue when it is taken from there to be tried.
    pub(super) fn again(&self) -> NativeOp {
        NativeOp { memory: self.memory.clone(), key: self.key.clone(), ..*self }
    }
}

/// An atomic that waits for its turn, for room in the provider, or for the outcome of a compare-and-swap.
pub(crate) struct NativeAtomic {
    pub(super) key: Rc<KeyInner>,
    pub(super) call: AtomicCall,
    pub(super) offset: u64,
    pub(super) fetch: bool,
    pub(super) request: Id,
    /// The lane that a fence before it relies on, see [`Inner::may_leave`].
    pub(super) fenced: u64,
    /// For an operation that the device lacks: what the 64-bit word is taken to be; the first guess only finds out.
    pub(super) guess: u64,
    /// A compare-and-swap that a provider has.
    pub(super) posted_swap: Option<Id>,
}

/// A transfer of ours that is shared with a peer, and has not ended: until the helper is through with its last chunks it may read or write
/// our memory, and count in the slot.
pub(crate) struct SharedCopy {
    pub(super) plan: Plan,
    pub(super) request: Option<Id>,
    pub(super) local: Region,
    pub(super) key: Rc<KeyInner>,
    /// The lane that our own part takes, by rank, and those that had declined the transfer before.
    pub(super) rank: usize,
    pub(super) declined: u64,
    /// Chunks that are copied from the front, until our own part has ended.
    pub(super) front: Option<u64>,
    /// What that ended with.
    pub(super) copied: Result<(), Status>,
}

/// Why something failed that was posted, and the interface whose provider said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) status: Status,
    pub(crate) interface: Option<usize>,
}

impl Failed {
    /// The operation's own fault, or the core's: no provider is to blame.
    pub(crate) fn by_nobody(status: Status) -> Failed {
        Failed { status, interface: None }
    }

    /// What this interface's provider answered.
    pub(crate) fn by(interface: usize, status: Status) -> Failed {
        Failed { status, interface: Some(interface) }
    }
}
