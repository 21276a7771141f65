//! The types of an endpoint's pending work: queued operations, waiting answers, shared copies.

use super::EndpointState;
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
    /// The time of the first failed attempt, if an earlier connection failed to carry it; see `worker/answering.rs`.
    pub(crate) owed_since: Option<u64>,
}

/// One queued operation.
pub(crate) enum QueuedOp {
    /// A message with a copied payload, or an internal request.
    Message { id: u16, header: u64, payload: Box<[u8]>, request: Option<Id> },
    /// A message that an earlier lane had accepted and the peer refused with that lane. Its operation has ended, or waits for its
    /// answer.
    Returned { id: u16, header: u64, payload: Box<[u8]> },
    /// A message gathered from regions.
    Gather(GatheredMessage),
    /// A rendezvous message (RTS) whose receiver ends `announced`; `sent` ends when the RTS was sent.
    Announce { announced: Id, sent: Id, payload: Box<[u8]> },
    /// A put over messages.
    Put(EmulatedPut),
    /// Sends a notification to the peer's worker after the puts before it have arrived. `lanes`: those still to be flushed for
    /// locally completed puts, once known.
    Notify { word: u32, request: Id, lanes: Option<u64> },
    /// An operation of the endpoint to the peer's service worker that a barrier holds back here.
    Forward { to: Rc<EndpointState>, op: Option<Box<QueuedOp>> },
    /// Holds back later operations until `request` has ended.
    Barrier { request: Id },
    /// The part of a flush that asks lanes, one bit each by rank, after everything before has been posted.
    FlushLanes { request: Id, lanes: u64 },
    /// A native put or get for which the provider had no room.
    Native(NativeOp),
    /// An atomic for which the provider had no room, or that takes several provider operations.
    Atomic(NativeAtomic),
}

impl QueuedOp {
    /// A request of an internal protocol; its answer ends `question`.
    pub(crate) fn ask(id: u16, question: Id, bytes: Vec<u8>) -> QueuedOp {
        QueuedOp::Message { id, header: question.raw(), payload: bytes.into(), request: None }
    }

    /// An internal message without an answer.
    pub(crate) fn tell(id: u16, bytes: Vec<u8>) -> QueuedOp {
        QueuedOp::Message { id, header: 0, payload: bytes.into(), request: None }
    }

    /// Whether it uses the message lane. Other operations do not wait for a connection to the peer's own worker, which may take as
    /// long to form as a passive target computes.
    pub(super) fn is_message(&self) -> bool {
        use QueuedOp::*;
        matches!(
            self,
            Message { .. } | Returned { .. } | Announce { .. } | Gather(_) | Put(_) | Notify { .. }
        )
    }

    /// The bytes that were copied for it, or that a list of its pieces takes.
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

    /// The operation that fails with this entry.
    pub(crate) fn request(&self) -> Option<Id> {
        match self {
            // A request has no operation other than the one for which it asks.
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
            // A forwarded operation ends with its destination endpoint.
            QueuedOp::Barrier { .. } | QueuedOp::Forward { .. } | QueuedOp::Returned { .. } => None,
        }
    }

    /// An operation besides `request` that ends without a report if this entry is not carried out.
    pub(super) fn unsaid(&self) -> Option<Id> {
        match self {
            // The last piece requests the answer, and it was not sent.
            QueuedOp::Put(op) if op.request != op.answer => Some(op.answer),
            QueuedOp::Announce { sent, .. } => Some(*sent),
            _ => None,
        }
    }

    /// An internal operation besides `request` that no caller holds; it is dropped with this entry.
    pub(crate) fn inner_request(&self) -> Option<Id> {
        match self {
            QueuedOp::Atomic(op) => op.posted_swap,
            _ => None,
        }
    }

    /// The entry without its forwarding.
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

/// A put over messages. The target's answer ends `answer`. If that differs from `request`, sending the last piece ends `request`.
pub(crate) struct EmulatedPut {
    pub(super) memory: Memory,
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) sent: usize,
    pub(super) target: Target,
    pub(super) request: Id,
    pub(super) answer: Id,
    /// The notification in its last piece.
    pub(super) notify: Option<u32>,
}

/// A native put or get that waits for earlier operations or for room in the provider.
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
    /// The lane that an earlier fence relies on, see [`EndpointState::may_leave`].
    pub(super) fenced: u64,
    /// Bytes that have been posted, if it takes several pieces.
    pub(super) posted: usize,
    /// The part of these bytes accepted by lanes that then declined the rest.
    pub(super) taken: usize,
    /// Lanes that have declined it, one bit each by rank.
    pub(super) declined: u64,
    /// Whether the call that posted it has written or read some bytes, which are transferred again.
    pub(super) begun: bool,
    /// Its notification, over a lane that supports it.
    pub(super) notify: Option<u32>,
}

impl NativeOp {
    /// A copy for its place in the queue, used while it is removed and tried.
    pub(super) fn again(&self) -> NativeOp {
        NativeOp { memory: self.memory.clone(), key: self.key.clone(), ..*self }
    }
}

/// An atomic that waits for earlier operations, for room in the provider, or for the result of a compare-and-swap.
pub(crate) struct NativeAtomic {
    pub(super) key: Rc<KeyInner>,
    pub(super) call: AtomicCall,
    pub(super) offset: u64,
    pub(super) fetch: bool,
    pub(super) request: Id,
    /// The lane that an earlier fence relies on, see [`EndpointState::may_leave`].
    pub(super) fenced: u64,
    /// For an operation that the device lacks: the expected value of the 64-bit word. The first guess only reads the value.
    pub(super) guess: u64,
    /// A compare-and-swap that a provider is executing.
    pub(super) posted_swap: Option<Id>,
}

/// A transfer that is shared with a peer and has not ended. Until the helper has finished its last chunks, it may access local
/// memory and update the counters in the slot.
pub(crate) struct SharedCopy {
    pub(super) plan: Plan,
    pub(super) request: Option<Id>,
    pub(super) local: Region,
    pub(super) key: Rc<KeyInner>,
    /// The lane of this side's own part, by rank, and the lanes that had declined the transfer before.
    pub(super) rank: usize,
    pub(super) declined: u64,
    /// The number of chunks copied from the front, until this side's own part has ended.
    pub(super) front: Option<u64>,
    /// The result of that part.
    pub(super) copied: Result<(), Status>,
}

/// The failure of a posted operation, and the interface whose provider returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) status: Status,
    pub(crate) interface: Option<usize>,
}

impl Failed {
    /// A failure of the operation itself, or of the core, not of a provider.
    pub(crate) fn by_nobody(status: Status) -> Failed {
        Failed { status, interface: None }
    }

    /// The failure that this interface's provider returned.
    pub(crate) fn by(interface: usize, status: Status) -> Failed {
        Failed { status, interface: Some(interface) }
    }
}
