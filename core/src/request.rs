//! Outcomes and requests: what posting an operation returns.

use crate::op::Id;
use crate::shared::Shared;
use std::fmt;
use std::rc::Rc;

/// How a posted operation stands.
///
/// `Done` carries the value of a fetching atomic, otherwise 0. `worker.finish(outcome)` waits for either.
#[must_use = "an operation may still be pending, or may have brought a value"]
#[derive(Debug)]
pub enum Outcome {
    /// It is complete.
    Done(u64),
    /// It completes later; dropping the request does not cancel it ([`Worker::cancel`](crate::Worker::cancel) does). Should it fail then, the endpoint's next flush
    /// says so.
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
    pub(crate) id: Id,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({:#x})", self.id.raw())
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.shared.ops.borrow_mut().forget(self.id);
    }
}
