//! Flushing all endpoints of a worker.

use super::Worker;
use crate::endpoint::full_fence::full_fence;
use crate::request::{CompletionCounter, Outcome};
use crate::{CompletionError, PostError, Status};
use std::collections::VecDeque;

impl Worker {
    /// Begins a flush of every endpoint that has not failed, and returns immediately.
    ///
    /// `counter` counts the flushes that are not complete immediately. When `counter` has no pending operation, all these flushes
    /// are complete, with the meaning of [`Endpoint::flush`](crate::Endpoint::flush). `counter` also keeps the first failure. The
    /// counter may count other operations as well.
    ///
    /// ```
    /// # fn main() -> Result<(), tieline::Error> {
    /// # let context = tieline::Context::open()?;
    /// # let worker = context.worker()?;
    /// let flushed = worker.completion_counter()?;
    /// worker.begin_flush(&flushed)?;
    /// while flushed.pending() > 0 {
    ///     worker.wait(None)?; // and other work
    /// }
    /// assert_eq!(flushed.first_failure(), None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`PostError::Retry`] if an endpoint has its maximum number of operations. The flushes begun before the error are counted,
    /// and flushing these endpoints again is harmless. The first other failure of an endpoint is returned after the flush of all
    /// others has begun. [`PostError::Correct`] in a handler, in a forked child, and for the counter of another worker.
    pub fn begin_flush(&self, counter: &CompletionCounter) -> Result<(), PostError> {
        self.inner.check_owner(&counter.shared)?;
        self.inner.shared.check_no_handler("a flush")?;
        full_fence();
        let mut first = Ok(());
        for inner in self.inner.all_endpoints() {
            if !inner.is_alive() {
                continue;
            }
            match inner.flush() {
                Ok(Outcome::Done(_)) => {}
                Ok(Outcome::Pending(request)) => {
                    self.inner.shared.ops.borrow_mut().count(request.id, counter.id);
                    // The worker keeps the endpoint, because the flush would end if the application dropped it.
                    self.inner.kept.borrow_mut().push((Some(request.id), inner));
                }
                Err(error) if error.status() == Status::Again => return Err(error.into()),
                Err(error) => first = first.and(Err(error.into())),
            }
        }
        first
    }

    /// Flushes every endpoint ([`Endpoint::flush`](crate::Endpoint::flush)), all of them concurrently, and waits for the flushes.
    /// The call makes progress meanwhile.
    ///
    /// An endpoint that had failed before is ignored. The operations of that endpoint have ended, and those that had completed
    /// locally may be lost.
    ///
    /// # Errors
    /// The error of the first failure among the flushed operations. [`CompletionError::Pending`] as for [`Worker::finish`].
    pub fn flush(&self) -> Result<(), CompletionError> {
        self.inner.shared.check_no_handler("a flush").map_err(CompletionError::Pending)?;
        self.inner.shared.check_process("a worker").map_err(CompletionError::Pending)?;
        full_fence();
        let mut first = Ok(());
        let mut posted = VecDeque::new();
        for inner in self.inner.all_endpoints() {
            if !inner.is_alive() {
                continue;
            }
            // With the maximum number of operations pending, some have to end first.
            let flush = || match inner.flush() {
                Err(error) if error.status() == Status::Again => None,
                result => Some(result),
            };
            match self.inner.wait_for(None, false, flush).map_err(CompletionError::Pending)? {
                // The list holds the endpoint, which the application may drop while another flush waits; otherwise the endpoint
                // would end with its last operation.
                Some(Ok(outcome @ Outcome::Pending(_))) => {
                    posted.push_back((inner.clone(), outcome))
                }
                Some(Err(error)) => first = first.and(Err(error.into())),
                Some(Ok(Outcome::Done(_))) | None => {}
            }
        }
        for (inner, outcome) in posted {
            if let Err(error) = self.finish(outcome) {
                first = first.and(Err(error));
            }
            drop(inner);
        }
        first
    }
}
