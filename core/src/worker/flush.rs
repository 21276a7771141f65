//! Flushing all endpoints of a worker.

use super::Worker;
use crate::request::{CompletionCounter, Outcome};
use crate::{CompletionError, PostError, Status};
use std::collections::VecDeque;

impl Worker {
    /// Begins a flush of every endpoint, and returns: `counter` counts them, and has none pending any more when everything that is
    /// posted now is complete; how the first one failed that did it says too. It may count other operations as well. What
    /// [`flush`](Worker::flush) waits for, for who has other things to do.
    ///
    /// ```
    /// # fn main() -> Result<(), tieline::Error> {
    /// # let context = tieline::Context::open()?;
    /// # let worker = context.worker()?;
    /// let flushed = worker.completion_counter()?;
    /// worker.begin_flush(&flushed)?;
    /// while flushed.pending() > 0 {
    ///     worker.wait(None)?; // and whatever else there is to do
    /// }
    /// assert_eq!(flushed.first_failure(), None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`PostError::Retry`] while an endpoint has as many operations as it may: those that were flushed are counted, and flushing them
    /// again does no harm. Any other failure of an endpoint's, when all others have been asked. [`PostError::Correct`] in a handler, in
    /// a forked child, and for the counter of another worker.
    pub fn begin_flush(&self, counter: &CompletionCounter) -> Result<(), PostError> {
        self.inner.check_owner(&counter.shared)?;
        self.inner.shared.check_no_handler("a flush")?;
        let mut first = Ok(());
        for inner in self.inner.all_endpoints() {
            if !inner.is_alive() {
                continue;
            }
            match inner.flush() {
                Ok(Outcome::Done(_)) => {}
                Ok(Outcome::Pending(request)) => {
                    self.inner.shared.ops.borrow_mut().count(request.id, counter.id);
                    // One that is dropped meanwhile would end with it.
                    self.inner.kept.borrow_mut().push((Some(request.id), inner));
                }
                Err(error) if error.status() == Status::Again => return Err(error.into()),
                Err(error) => first = first.and(Err(error.into())),
            }
        }
        first
    }

    /// Waits until everything that is posted on every endpoint now is complete; see [`Endpoint::flush`](crate::Endpoint::flush). All of
    /// them are flushed at once. An endpoint that has failed before is left out: its operations have ended, and what had
    /// completed locally there may be lost, as its own error says.
    ///
    /// # Errors
    /// The first failure of what it waited for; [`CompletionError::Pending`] as of [`Worker::finish`].
    pub fn flush(&self) -> Result<(), CompletionError> {
        self.inner.shared.check_no_handler("a flush").map_err(CompletionError::Pending)?;
        self.inner.shared.core.check_process("a worker").map_err(CompletionError::Pending)?;
        let mut first = Ok(());
        let mut posted = VecDeque::new();
        for inner in self.inner.all_endpoints() {
            if !inner.is_alive() {
                continue;
            }
            // While it has as many operations as it may, some must end first.
            let flush = || match inner.flush() {
                Err(error) if error.status() == Status::Again => None,
                result => Some(result),
            };
            match self.inner.wait_for(None, false, flush).map_err(CompletionError::Pending)? {
                // One that was dropped while something waited for room is held, or it would end with its last operation.
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
