//! Outcomes and requests: what posting an operation returns.

use crate::CompletionError;
use crate::op::Id;
use crate::shared::Shared;
use std::fmt;
use std::rc::Rc;

/// How a posted operation stands.
///
/// `Done` carries the value of a fetching atomic, otherwise 0. `worker.finish(outcome)` waits for either; with
/// `worker.track(&outcome, word)` it need not be asked for: its end is told together with the application's word.
#[must_use = "an operation may still be pending, or may have brought a value"]
#[derive(Debug)]
pub enum Outcome {
    /// It is complete.
    Done(u64),
    /// It completes later; dropping the request does not cancel it ([`Worker::cancel`](crate::Worker::cancel) does). Should it fail then, the endpoint's next flush
    /// says so, unless it is [tracked](crate::Worker::track) or [counted](crate::Worker::count).
    Pending(Request),
}

impl Outcome {
    /// Whether it is complete already.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self, Outcome::Done(_))
    }
}

/// A pending operation of one worker, which alone can say how it stands.
pub struct Request {
    pub(crate) shared: Rc<Shared>,
    /// None: its result has been taken, and it is on its way out.
    pub(crate) id: Id,
}

/// Every call that posts returns one: it fits two registers.
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

/// Counts operations of one worker that have ended: `worker.count(&outcome, &counter)`. It costs less than asking for each, and
/// tells less: how many, and how the first of those failed that did. What is cancelled, or ends with its endpoint, has failed. A flush
/// does not tell of what is counted: look here after it.
///
/// What is counted when the counter is dropped goes on; should it fail then, the endpoint's next flush says so.
pub struct CompletionCounter {
    pub(crate) shared: Rc<Shared>,
    pub(crate) id: Id,
}

impl CompletionCounter {
    /// How many have ended well.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.shared.ops.borrow().counts(self.id).done
    }

    /// How many have failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.shared.ops.borrow().counts(self.id).failed
    }

    /// How many are pending.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.shared.ops.borrow().counts(self.id).open
    }

    /// How the first of those that failed did so.
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
