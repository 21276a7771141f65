//! Outcomes and requests: the results of posting an operation.

use crate::CompletionError;
use crate::op::Id;
use crate::shared::Shared;
use std::fmt;
use std::rc::Rc;

/// The result of posting an operation.
///
/// `Done` carries the value of a fetching atomic, otherwise 0. `worker.finish(outcome)` waits for either variant. With
/// `worker.track(&outcome, word)`, the worker reports the completion together with the application's word instead.
#[must_use = "an operation may still be pending, or may have brought a value"]
#[derive(Debug)]
pub enum Outcome {
    /// The operation is complete.
    Done(u64),
    /// The operation completes later. Dropping the request does not cancel the operation ([`Worker::cancel`](crate::Worker::cancel)
    /// does). If it then fails, a flush of the endpoint reports the failure, unless the operation was canceled, requested a key by
    /// its handle, or is [tracked](crate::Worker::track) or [counted](crate::Worker::count).
    Pending(Request),
}

impl Outcome {
    /// Checks whether the operation is already complete.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self, Outcome::Done(_))
    }
}

/// A pending operation of one worker. Only that worker can test, wait for or cancel it.
pub struct Request {
    pub(crate) shared: Rc<Shared>,
    /// The operation's number; `Id::NONE` after its result has been taken, before the request is dropped.
    pub(crate) id: Id,
}

/// A check of the size: every call that posts returns an `Outcome`, which fits into two registers.
const _: () = assert!(size_of::<Outcome>() == 16);

impl Request {
    pub(crate) fn new(shared: Rc<Shared>, id: Id) -> Request {
        Request { shared, id }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({:#x})", self.id.raw())
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.id != Id::NONE {
            self.shared.ops.borrow_mut().forget(self.id);
        }
    }
}

/// A counter of operations of one worker that have ended: `worker.count(&outcome, &counter)`.
///
/// A counter costs less than one test per operation and reports less: the number of operations, and the first failure among them.
/// An operation that is canceled or ends with its endpoint counts as failed. A flush does not report failures of counted
/// operations: check the counter after the flush.
///
/// If the counter is dropped, its pending operations continue. The endpoint's next flush then reports a failure among them.
pub struct CompletionCounter {
    pub(crate) shared: Rc<Shared>,
    pub(crate) id: Id,
}

impl CompletionCounter {
    /// Returns the number of operations that have succeeded.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.shared.ops.borrow().counts(self.id).done
    }

    /// Returns the number of operations that have failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.shared.ops.borrow().counts(self.id).failed
    }

    /// Returns the number of pending operations.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.shared.ops.borrow().counts(self.id).open
    }

    /// Returns the error of the first operation that failed.
    #[must_use]
    pub fn first_failure(&self) -> Option<CompletionError> {
        Some(self.shared.ops.borrow().first_failure(self.id)?.into())
    }
}

impl fmt::Debug for CompletionCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} done, {} failed, {} pending", self.done(), self.failed(), self.pending())
    }
}

impl Drop for CompletionCounter {
    fn drop(&mut self) {
        self.shared.ops.borrow_mut().close_counter(self.id);
    }
}
