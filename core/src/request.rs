//! Outcomes and requests: the results of posting an operation.

mod abi;

use crate::CompletionError;
use crate::shared::Shared;
use std::fmt;
use std::rc::Rc;
use tieline_order::Id;

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
    pub(crate) id: Id,
}

/// A check of the size: every call that posts returns an `Outcome`, which fits into two registers.
const _: () = assert!(size_of::<Outcome>() == 16);

impl Request {
    pub(crate) fn new(shared: Rc<Shared>, id: Id) -> Request {
        Request { shared, id }
    }

    /// Returns the number of the operation, which its worker uses for no other one. A tracked or counted operation whose request was
    /// dropped can be canceled by it: [`Worker::cancel_by_number`](crate::Worker::cancel_by_number).
    #[must_use]
    pub fn number(&self) -> u64 {
        self.id.raw()
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({:#x})", self.id.raw())
    }
}

impl Drop for Request {
    /// Drops the result, which will not be requested any more.
    #[inline(never)] // keeps this function out of the path of operations that complete at once
    fn drop(&mut self) {
        self.shared.ops.borrow_mut().forget(self.id);
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

    /// Sets a mark: [`done_since_mark`](CompletionCounter::done_since_mark),
    /// [`failed_since_mark`](CompletionCounter::failed_since_mark) and [`first_failure`](CompletionCounter::first_failure) cover the
    /// operations that end from now on. If a batch has failed, a mark lets the next batch start without its failures. Operations of
    /// the earlier batch that are still [pending](CompletionCounter::pending) count for the next one when they end.
    pub fn mark(&self) {
        self.shared.ops.borrow_mut().mark_counter(self.id);
    }

    /// Returns the number of operations that have succeeded since the last mark.
    #[must_use]
    pub fn done_since_mark(&self) -> u64 {
        let counts = self.shared.ops.borrow().counts(self.id);
        counts.done - counts.marked.0
    }

    /// Returns the number of operations that have failed since the last mark.
    #[must_use]
    pub fn failed_since_mark(&self) -> u64 {
        let counts = self.shared.ops.borrow().counts(self.id);
        counts.failed - counts.marked.1
    }

    /// Returns the error of the first operation that failed, since the last [mark](CompletionCounter::mark) if there is one.
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
