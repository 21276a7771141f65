//! Pending operations, and the completion of all operations.

use crate::abi::buffer::Buffer;
use crate::endpoint::{Ep, RECEIVES, SENDS, add, one};
use crate::queue::{Entry, Failure};
use crate::receive::Multi;
use crate::regions::Regions;
use crate::rma::Rma;
use crate::send::Waiting;
use crate::status::Failed;
use std::rc::Rc;
use tieline::{CompletionError, Outcome, Rendezvous, Status};
use tieline_libfabric_abi::*;

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Receive,
    Read,
    Write,
    Atomic,
    Fetch,
}

impl Kind {
    /// Returns the place of the counter of this kind.
    fn counter(self) -> usize {
        match self {
            Kind::Send => SENDS,
            Kind::Receive => RECEIVES,
            Kind::Read | Kind::Fetch => 2,
            Kind::Write | Kind::Atomic => 3,
        }
    }

    fn flags(self) -> u64 {
        match self {
            Kind::Send => FI_SEND,
            Kind::Receive => FI_RECV,
            Kind::Read => FI_READ | FI_RMA,
            Kind::Write => FI_WRITE | FI_RMA,
            Kind::Atomic => FI_WRITE | FI_ATOMIC,
            Kind::Fetch => FI_READ | FI_ATOMIC,
        }
    }
}

/// The content of an operation's completion.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) kind: Kind,
    /// The completion gets an entry if there is no error. An error always gets one.
    pub(crate) told: bool,
    pub(crate) context: usize,
    /// Flags of the entry, besides those of the kind.
    pub(crate) flags: u64,
    /// The length of the message, and the number of bytes that had no room.
    pub(crate) len: usize,
    pub(crate) excess: usize,
    pub(crate) buf: usize,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    pub(crate) source: u64,
    /// The buffer for several messages that the message is in.
    pub(crate) multi: Option<Rc<Multi>>,
}

impl End {
    #[inline]
    pub(crate) fn new(kind: Kind, told: bool, context: usize, flags: u64) -> End {
        End {
            kind,
            told,
            context,
            flags,
            len: 0,
            excess: 0,
            buf: 0,
            data: 0,
            tag: 0,
            source: FI_ADDR_NOTAVAIL,
            multi: None,
        }
    }
}

/// The next step of an operation that is tried again.
pub(crate) enum Work {
    /// The operation is posted.
    Nothing,
    /// A message that waits for its peer or for room.
    Send(Box<Waiting>),
    /// A rendezvous message that is not received yet.
    Receive(Rendezvous),
    /// A put, get or atomic that waits for its peer, its key or room, or that is posted.
    Rma(Box<Rma>),
    /// The notice of a put that is complete.
    Notice(Box<Rma>),
    /// The notice is sent. The target may have ended since its memory was written, and then it counts nothing any more.
    Counted,
}

impl Work {
    /// Returns the kind of a message that waits, as [`crate::flow`] distinguishes them.
    pub(crate) fn kind_of_message(&self) -> u64 {
        match self {
            Work::Send(waiting) => waiting.kind(),
            _ => 0,
        }
    }
}

/// A pending operation.
pub(crate) struct Op {
    pub(crate) end: End,
    pub(crate) failed: Option<Failed>,
    pub(crate) work: Work,
    /// The buffer of a receive.
    pub(crate) buf: Buffer,
    /// The registrations that end with the operation.
    pub(crate) regions: Regions,
}

impl Op {
    pub(crate) fn new(end: End, work: Work) -> Op {
        Op { end, failed: None, work, buf: Buffer::default(), regions: Regions::default() }
    }
}

impl Ep {
    /// Tracks a posted operation, whose completion ends `op`.
    pub(crate) fn track(&self, outcome: &Outcome, op: Op) {
        let index = self.ops.borrow_mut().add(op);
        self.track_as(outcome, index);
    }

    /// Tracks a posted operation that has an index.
    pub(crate) fn track_as(&self, outcome: &Outcome, index: u32) {
        if let Err(error) = self.worker.track(outcome, u64::from(index)) {
            self.end_op(index, Err(Failed::from(&error)), 0);
        }
    }

    /// Keeps an operation that has to be tried again.
    pub(crate) fn keep(&self, op: Op) {
        let index = self.ops.borrow_mut().add(op);
        self.again.borrow_mut().push_back(index);
        self.todo.set(true);
    }

    /// Handles the completion of a tracked operation.
    pub(crate) fn completed(&self, user: u64, result: Result<u64, CompletionError>) {
        match result {
            Ok(value) => self.end_op(user as u32, Ok(()), value),
            Err(error) => {
                let is_unknown = matches!(error, CompletionError::Unknown(_));
                let failed = Failed::from(error);
                if is_unknown {
                    self.outcome_unknown(user as u32, failed);
                }
                self.end_op(user as u32, Err(failed), 0);
            }
        }
    }

    /// Ends an operation. If the library or a device may still access its memory, the entry follows when that is over.
    pub(crate) fn end_op(&self, index: u32, result: Result<(), Failed>, value: u64) {
        let Some(mut op) = self.ops.borrow_mut().take(index) else { return };
        match std::mem::replace(&mut op.work, Work::Nothing) {
            Work::Rma(rma) => {
                let Some(()) = self.rma_ended(&mut op, rma, result, value) else { return };
            }
            Work::Counted => {}
            _ => op.failed = op.failed.or(result.err()),
        }
        self.close_op(op);
    }

    /// Closes the registrations of an operation, and reports the operation.
    pub(crate) fn close_op(&self, mut op: Op) {
        while let Some(region) = op.regions.pop() {
            if let Err(not) = region.close() {
                if not.error.status() == Status::Busy {
                    op.regions.push(not.region);
                    let index = self.ops.borrow_mut().add(op);
                    self.closing.borrow_mut().push(index);
                    self.todo.set(true);
                    return;
                }
                op.failed = op.failed.or(Some(Failed::from(&not.error)));
            }
        }
        self.tell(op.end, op.failed);
    }

    /// Reports the end of an operation to its queue and its counter.
    pub(crate) fn tell(&self, end: End, failed: Option<Failed>) {
        let counts = &self.counts;
        let excess = end.kind == Kind::Receive && end.excess > 0;
        let failed = failed
            .or(excess.then_some(Failed { error: FI_ETRUNC, status: Status::TooLarge as i32 }));
        match (failed, end.kind) {
            (Some(_), _) => one(&counts.errors),
            (None, Kind::Send) => add(&counts.sent, end.len),
            (None, Kind::Receive) => add(&counts.received, end.len),
            (None, Kind::Write) => add(&counts.puts, end.len),
            (None, Kind::Read) => add(&counts.gets, end.len),
            (None, Kind::Atomic | Kind::Fetch) => one(&counts.atomics),
        }
        if let Some(counter) = self.counter(end.kind.counter()) {
            counter.count(failed.is_some());
        }
        let released = end.multi.as_ref().map_or(0, |multi| multi.released());
        if end.told || failed.is_some() || released != 0 {
            let end = End { flags: end.flags | released, ..end };
            self.push_entry(&end, failed);
        }
    }

    /// Reports the outcome of a call that is no transfer, and that no counter counts.
    pub(crate) fn tell_quietly(&self, end: End, failed: Failed) {
        self.push_entry(&end, Some(failed));
    }

    /// Adds an entry to the queue of the operation.
    #[inline]
    pub(crate) fn push_entry(&self, end: &End, failed: Option<Failed>) {
        let Some(queue) = self.queue(end.kind) else { return };
        queue.push(Entry {
            context: end.context,
            flags: end.flags | end.kind.flags(),
            len: if end.kind == Kind::Receive { end.len } else { 0 },
            buf: end.buf,
            data: end.data,
            tag: end.tag,
            source: end.source,
            failure: failed.map(|failed| Box::new(Failure { failed, excess: end.excess })),
        });
    }
}
