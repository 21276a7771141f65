//! The types of an endpoint's pending work: queued operations, waiting answers, shared copies.

use super::key::KeyInner;
use super::record::Completion;
use crate::Status;
use crate::mem::local::Memory;
use crate::mem::pieces::Pieces;
use crate::proto::emulate::{Answer, AtomicCall};
use crate::proto::id;
use crate::proto::shared_copy::Plan;
use crate::region::Region;
use std::rc::Rc;
use tieline_order::Id;

/// An answer that the message lane has not accepted yet.
pub(crate) struct Waiting {
    pub(crate) answer: Answer,
    /// The time of the first failed attempt, if an earlier connection failed to carry the answer; see `worker/answering.rs`.
    pub(crate) owed_since: Option<u64>,
}

/// One queued operation.
pub(crate) enum QueuedOp {
    /// A message with a copied payload, or an internal message. Sending it ends `request`. The receiver's answer to a rendezvous
    /// message (RTS) or another request ends the operation with the number `header`.
    Message { id: u16, header: u64, payload: Box<[u8]>, request: Option<Id> },
    /// A message that an earlier lane had accepted, and whose lane the peer then refused. The operation of the message has ended,
    /// or waits for the answer.
    Returned { id: u16, header: u64, payload: Box<[u8]> },
    /// A message gathered from regions.
    Gather(GatheredMessage),
    /// A notification to the peer's worker, sent after the puts before it have arrived. `lanes`: the lanes still to be flushed for
    /// locally completed puts, once known.
    Notify { word: u32, request: Id, lanes: Option<u64> },
    /// A barrier that holds back later operations until `request` has ended.
    Barrier { request: Id },
    /// The part of a flush that flushes lanes (one bit each, by rank) after every earlier operation has been posted.
    FlushLanes { request: Id, lanes: u64 },
    /// A put or get.
    Native(NativeOp),
    /// A native atomic.
    Atomic(NativeAtomic),
}

impl QueuedOp {
    /// Makes a request of an internal protocol; the answer ends `question`.
    pub(crate) fn ask(id: u16, question: Id, bytes: Vec<u8>) -> QueuedOp {
        QueuedOp::Message { id, header: question.raw(), payload: bytes.into(), request: None }
    }

    /// Makes an internal message that has no answer.
    pub(crate) fn tell(id: u16, bytes: Vec<u8>) -> QueuedOp {
        QueuedOp::Message { id, header: 0, payload: bytes.into(), request: None }
    }

    /// Checks whether the entry is a request of emulation of which nothing was sent. The peer's service worker executes it if there
    /// is one.
    pub(super) fn is_emulated(&self) -> bool {
        match self {
            QueuedOp::Native(op) => op.answer.is_some() && op.posted == 0,
            QueuedOp::Message { id, request: None, .. } => {
                matches!(*id, id::ATOMIC | id::KEY | id::KEY_NUMBERED)
            }
            _ => false,
        }
    }

    /// Checks whether the entry uses the message lane. Other operations do not wait for a connection to the peer's own worker:
    /// while that worker computes, the connection is not formed.
    pub(super) fn is_message(&self) -> bool {
        use QueuedOp::*;
        match self {
            Native(op) => op.answer.is_some(),
            _ => matches!(self, Message { .. } | Returned { .. } | Gather(_) | Notify { .. }),
        }
    }

    /// Returns the number of bytes that were copied for the entry, or that the list of its pieces takes.
    pub(super) fn copied(&self) -> usize {
        match self {
            QueuedOp::Message { payload, .. } | QueuedOp::Returned { payload, .. } => payload.len(),
            QueuedOp::Gather(op) => op.pieces.size(),
            QueuedOp::Native(op) => op.memory.room(op.len),
            _ => 0,
        }
    }

    /// Returns the operation that fails with this entry.
    pub(crate) fn request(&self) -> Option<Id> {
        match self {
            // A request ends only the operation whose answer it requests. The header of HEADED is the application's.
            QueuedOp::Message { id, header, .. } if *id >= id::FIRST && *id != id::HEADED => {
                Id::from_raw(*header)
            }
            QueuedOp::Message { request, .. } => *request,
            QueuedOp::FlushLanes { request, .. } | QueuedOp::Notify { request, .. } => {
                Some(*request)
            }
            QueuedOp::Gather(op) => Some(op.request),
            QueuedOp::Native(op) => Some(op.request),
            QueuedOp::Atomic(op) => Some(op.request),
            QueuedOp::Barrier { .. } | QueuedOp::Returned { .. } => None,
        }
    }

    /// Returns an operation besides `request` that ends without a report if this entry is not carried out.
    pub(super) fn unsaid(&self) -> Option<Id> {
        match self {
            // The last message of a put requests the answer, and that message was not sent.
            QueuedOp::Native(op) => op.answer.filter(|answer| *answer != op.request),
            QueuedOp::Message {
                id: id::ANNOUNCE | id::ANNOUNCE_HEADED | id::DELIVER,
                request,
                ..
            } => *request,
            _ => None,
        }
    }

    /// Checks whether this is the RTS of a rendezvous message.
    pub(super) fn announces(&self, announced: Id) -> bool {
        match self {
            QueuedOp::Message { id, header, .. } | QueuedOp::Returned { id, header, .. } => {
                matches!(*id, id::ANNOUNCE | id::ANNOUNCE_HEADED) && *header == announced.raw()
            }
            _ => false,
        }
    }

    /// Returns an internal operation besides `request` that no caller holds and that is dropped with this entry.
    pub(crate) fn inner_request(&self) -> Option<Id> {
        match self {
            QueuedOp::Atomic(op) => op.posted_swap,
            _ => None,
        }
    }

    /// Returns the operation that ends when the entry has been sent.
    pub(super) fn ends_when_sent(&self) -> Option<Id> {
        match self {
            QueuedOp::Native(op) => op.answer.filter(|a| *a != op.request).map(|_| op.request),
            QueuedOp::Message { request, .. } => *request,
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

/// A put or get that is being posted, or waits for earlier operations, a connection or the provider, or that messages carry.
pub(crate) struct NativeOp {
    pub(crate) put: bool,
    pub(crate) memory: Memory,
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) key: Rc<KeyInner>,
    pub(crate) offset: u64,
    pub(crate) completion: Completion,
    pub(crate) request: Id,
    /// The rank of the preferred lane to the peer's memory.
    pub(super) rank: usize,
    /// The lane on which an earlier fence relies; see `EndpointState::may_leave`.
    pub(super) fenced: u64,
    /// The number of bytes posted so far, if the operation takes several pieces.
    pub(super) posted: usize,
    /// The number of posted bytes on lanes that declined the rest of the operation.
    pub(super) taken: usize,
    /// The lanes that have declined the operation, one bit each by rank.
    pub(super) declined: u64,
    /// Whether the call that posted it may have written or read some bytes, which are transferred again.
    pub(super) begun: bool,
    /// The notification word, for a lane that supports notifications or for the last message.
    pub(super) notify: Option<u32>,
    /// The operation that the target's answer ends, if messages carry the transfer. If this is not `request`, sending the last
    /// message ends `request`.
    pub(super) answer: Option<Id>,
}

impl NativeOp {
    /// Makes a transfer between `len` bytes of local memory from `at` on and the region of a key, from `offset` on.
    pub(super) fn new(
        put: bool,
        (memory, at, len): (Memory, usize, usize),
        (key, offset): (Rc<KeyInner>, u64),
        request: Id,
    ) -> NativeOp {
        NativeOp {
            put,
            memory,
            at,
            len,
            key,
            offset,
            completion: Completion::Remote,
            request,
            rank: 0,
            fenced: 0,
            posted: 0,
            taken: 0,
            declined: 0,
            begun: false,
            notify: None,
            answer: None,
        }
    }

    /// Returns a copy for the operation's place in the queue; the original is removed and tried.
    pub(super) fn again(&self) -> NativeOp {
        NativeOp { memory: self.memory.clone(), key: self.key.clone(), ..*self }
    }
}

/// An atomic that waits for earlier operations, for the provider to accept it, or for the result of a compare-and-swap.
pub(crate) struct NativeAtomic {
    pub(super) key: Rc<KeyInner>,
    pub(super) call: AtomicCall,
    pub(super) offset: u64,
    pub(super) fetch: bool,
    pub(super) request: Id,
    /// The lane on which an earlier fence relies; see `EndpointState::may_leave`.
    pub(super) fenced: u64,
    /// The expected value of the 64-bit word, for an operation that the device does not support: 0 at first, then the last value
    /// found.
    pub(super) guess: u64,
    /// A compare-and-swap that a provider is executing.
    pub(super) posted_swap: Option<Id>,
}

/// A transfer that a peer shares and that has not ended. Until the helper has finished its last chunks, it may access local memory
/// and update the counters in the slot.
pub(crate) struct SharedCopy {
    pub(super) plan: Plan,
    pub(super) request: Option<Id>,
    pub(super) local: Region,
    pub(super) key: Rc<KeyInner>,
    /// The lane of this side's own part, by rank, and the lanes that had declined the transfer before.
    pub(super) rank: usize,
    pub(super) declined: u64,
    /// The number of chunks that this side has copied from the front; `None` after its own part has ended.
    pub(super) front: Option<u64>,
    /// The result of this side's own part.
    pub(super) copied: Result<(), Status>,
}

/// The failure of a posted operation, and the interface whose provider returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) status: Status,
    pub(crate) interface: Option<usize>,
}

impl Failed {
    /// Makes a failure of the operation itself, or of the core, for which no provider is responsible.
    pub(crate) fn by_nobody(status: Status) -> Failed {
        Failed { status, interface: None }
    }

    /// Makes the failure that this interface's provider returned.
    pub(crate) fn by(interface: usize, status: Status) -> Failed {
        Failed { status, interface: Some(interface) }
    }
}
