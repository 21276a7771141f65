//! Flushing all endpoints of a worker.

use super::Worker;
use crate::request::Outcome;
use crate::{CompletionError, Status};
use std::collections::VecDeque;

impl Worker {
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
