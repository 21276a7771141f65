//! Operations that have not ended when the call that posted them returns.
//!
//! [`Table`] is the one place that knows them all: whose they are, what they wait for, and which memory they use.
//! Flush and fence are questions to it (see [`Table::start_flush`]), the bound on what an endpoint may have pending is
//! its, and an answer or completion that comes for something else finds nothing.

pub(crate) mod held;
pub(crate) mod slab;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use slab::Id;
pub(crate) use table::{Kind, Table};

use crate::Status;
use crate::region::Region;
use crate::worker::Inner as WorkerInner;
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
    /// It completes later; dropping the request does not cancel it. Should it fail then, the endpoint's next flush
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
    pub(crate) worker: Rc<WorkerInner>,
    pub(crate) id: Id,
}

impl Request {
    /// Whether it is this worker's.
    pub(crate) fn is_of(&self, worker: &Rc<WorkerInner>) -> bool {
        Rc::ptr_eq(&self.worker, worker)
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({:#x})", self.id.raw())
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.worker.ops.borrow_mut().forget(self.id);
    }
}

/// Local memory of an operation in flight.
#[derive(Clone)]
pub(crate) enum Memory {
    /// The application's, kept alive.
    Region(Region),
    /// A copy of bytes that the caller has got back.
    Bytes(Rc<[u8]>),
}

impl Memory {
    /// The first byte of a range.
    pub(crate) fn at(&self, at: usize, len: usize) -> Result<*mut u8, Status> {
        match self {
            Memory::Region(region) => region.inner.span.range(at, len),
            Memory::Bytes(bytes) => {
                let bytes = bytes.get(at..).and_then(|rest| rest.get(..len));
                // Only puts have bytes of their own, and they only read them.
                Ok(bytes.ok_or(Status::OutOfRange)?.as_ptr().cast_mut())
            }
        }
    }
}

/// What an operation in flight reads from or writes to.
pub(crate) struct Landing {
    pub(crate) memory: Memory,
    pub(crate) offset: usize,
    pub(crate) len: usize,
    /// Bytes that messages still have to bring.
    pub(crate) missing: usize,
}

impl Landing {
    /// Memory that is only held, since a provider uses it.
    pub(crate) fn held(memory: Memory, offset: usize, len: usize) -> Landing {
        Landing { memory, offset, len, missing: 0 }
    }
}
