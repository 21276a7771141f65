//! Pending operations of a driven worker: requests, counters, and the list of tracked operations.

use super::DrivenWorker;
use super::abi::Belonging;
use super::engine::{Engine, Entered};
use super::waiters::Until;
use crate::request::{CompletionCounter, Outcome, Request};
use crate::{CompletionError, Error, PostError};
use std::fmt;
use std::time::{Duration, Instant};

/// The result of posting an operation on a driven worker.
#[must_use = "an operation may still be pending, or may have brought a value"]
#[derive(Debug)]
pub enum DrivenOutcome {
    /// The operation is complete, with the value of a fetching atomic, otherwise 0.
    Done(u64),
    /// The operation completes later. Dropping the request does not cancel the operation; see [`Outcome::Pending`].
    Pending(DrivenRequest),
}

impl DrivenOutcome {
    pub(super) fn new(entered: &Entered<'_>, outcome: Outcome) -> DrivenOutcome {
        match outcome {
            Outcome::Done(value) => DrivenOutcome::Done(value),
            Outcome::Pending(request) => {
                DrivenOutcome::Pending(DrivenRequest { inner: Belonging::new(entered, request) })
            }
        }
    }

    /// Checks whether the operation is already complete.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self, DrivenOutcome::Done(_))
    }

    /// Waits for the operation, and returns its value; see [`DrivenRequest::wait`].
    ///
    /// # Errors
    /// The errors of [`DrivenRequest::wait`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<u64>, CompletionError> {
        match self {
            DrivenOutcome::Done(value) => Ok(Some(*value)),
            DrivenOutcome::Pending(request) => request.wait(timeout),
        }
    }
}

/// A pending operation of a driven worker. Any thread may test it or wait for it.
pub struct DrivenRequest {
    pub(super) inner: Belonging<Request>,
}

impl DrivenRequest {
    /// Waits until the operation has ended, at most `timeout`, and returns its value; `None` if the time is up. The call may be
    /// repeated, also after the operation has ended.
    ///
    /// If no other caller drives the worker, this thread makes progress itself, and runs handlers. Otherwise it sleeps until
    /// another thread finds that the operation has ended.
    ///
    /// # Errors
    /// The error of the operation. [`CompletionError::Pending`] if the call cannot wait: inside a handler, in a forked child, or for
    /// an operation that is tracked or counted.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<u64>, CompletionError> {
        let id = {
            let request = self.inner.enter().map_err(CompletionError::Pending)?;
            if let Some(result) = tested(&request.entered, &request) {
                return result.map(Some);
            }
            request.id
        };
        let engine = self.inner.engine();
        let waited = engine.wait(Until::Ended(id), deadline(timeout));
        match waited.map_err(CompletionError::Pending)? {
            true => self.test().transpose(),
            false => Ok(None),
        }
    }

    /// Returns the result of the operation, or `None` while it is pending. The call makes no progress, and may be repeated.
    #[must_use]
    pub fn test(&self) -> Option<Result<u64, CompletionError>> {
        match self.inner.enter() {
            Ok(request) => tested(&request.entered, &request),
            Err(error) => Some(Err(CompletionError::Pending(error))),
        }
    }

    /// Cancels the operation, as [`Worker::cancel`](crate::Worker::cancel) does.
    ///
    /// # Errors
    /// The errors of [`Worker::cancel`](crate::Worker::cancel).
    pub fn cancel(&self) -> Result<(), PostError> {
        let request = self.inner.enter_to_post()?;
        request.entered.worker()?.cancel(&request)
    }

    /// Returns the number of the operation; see [`Request::number`].
    #[must_use]
    pub fn number(&self) -> u64 {
        self.inner.enter().map_or(0, |request| request.number())
    }
}

impl fmt::Debug for DrivenRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DrivenRequest({:#x})", self.number())
    }
}

/// Tests a request under the lock. The result outlives the worker's handle.
fn tested(entered: &Entered<'_>, request: &Request) -> Option<Result<u64, CompletionError>> {
    if let Ok(worker) = entered.worker() {
        return worker.test(request);
    }
    let result = request.shared.ops.borrow_mut().result(request.id)?;
    Some(result.map_err(CompletionError::from))
}

/// Returns the moment at which a wait ends; `None`: never.
pub(super) fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

/// A counter of operations of a driven worker that have ended; see [`CompletionCounter`]. Any thread may read it.
pub struct DrivenCounter {
    pub(super) inner: Belonging<CompletionCounter>,
}

/// The values of a [`DrivenCounter`] at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DrivenCounts {
    /// The number of operations that have succeeded.
    pub done: u64,
    /// The number of operations that have failed.
    pub failed: u64,
    /// The number of pending operations.
    pub pending: u64,
    /// The number of operations that have succeeded since the last mark.
    pub done_since_mark: u64,
    /// The number of operations that have failed since the last mark.
    pub failed_since_mark: u64,
    /// The error of the first operation that failed since the last mark.
    pub first_failure: Option<CompletionError>,
}

impl DrivenCounter {
    /// Returns the values of the counter.
    ///
    /// # Errors
    /// `Invalid` in a forked child.
    pub fn read(&self) -> Result<DrivenCounts, Error> {
        let counter = self.inner.enter()?;
        Ok(DrivenCounts {
            done: counter.done(),
            failed: counter.failed(),
            pending: counter.pending(),
            done_since_mark: counter.done_since_mark(),
            failed_since_mark: counter.failed_since_mark(),
            first_failure: counter.first_failure(),
        })
    }

    /// Sets a mark; see [`CompletionCounter::mark`].
    ///
    /// # Errors
    /// `Invalid` in a forked child.
    pub fn mark(&self) -> Result<(), Error> {
        self.inner.enter()?.mark();
        Ok(())
    }

    /// Waits until no counted operation is pending, at most `timeout`; `false` if the time is up.
    ///
    /// # Errors
    /// The errors of [`DrivenWorker::wait_until`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        let id = self.inner.enter()?.id;
        self.inner.engine().wait(Until::Counted(id), deadline(timeout))
    }
}

impl fmt::Debug for DrivenCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DrivenCounter({:?})", self.read())
    }
}

/// A tracked operation that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DrivenCompleted {
    /// The word that was given to [`DrivenWorker::track`].
    pub user: u64,
    /// The value of the operation, or its error.
    pub result: Result<u64, CompletionError>,
}

impl DrivenWorker {
    /// Makes [`take_completed`](DrivenWorker::take_completed) report the completion of an operation; see
    /// [`Worker::track`](crate::Worker::track).
    ///
    /// # Errors
    /// The errors of [`Worker::track`](crate::Worker::track).
    pub fn track(&self, outcome: DrivenOutcome, user: u64) -> Result<(), Error> {
        self.with_outcome(outcome, |worker, outcome| worker.track(outcome, user))
    }

    /// Takes up to `most` tracked operations that have ended, in the order of completion. The call makes no progress.
    ///
    /// # Errors
    /// `Closed` if the last handle of the worker was dropped; `Invalid` in a forked child.
    pub fn take_completed(&self, most: usize) -> Result<Vec<DrivenCompleted>, Error> {
        let entered = self.engine().enter()?;
        let mut taken = Vec::new();
        let _ = entered.worker()?.take_completed(most, |user, result| {
            taken.push(DrivenCompleted { user, result });
        });
        Ok(taken)
    }

    /// Waits until a tracked operation has ended and was not taken, at most `timeout`; `false` if the time is up.
    ///
    /// # Errors
    /// The errors of [`DrivenWorker::wait_until`].
    pub fn wait_completed(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        self.engine().wait(Until::Completed, deadline(timeout))
    }

    /// Returns a new counter; see [`Worker::completion_counter`](crate::Worker::completion_counter).
    ///
    /// # Errors
    /// The errors of [`Worker::completion_counter`](crate::Worker::completion_counter).
    pub fn completion_counter(&self) -> Result<DrivenCounter, Error> {
        let entered = self.engine().enter_open()?;
        let counter = entered.worker()?.completion_counter()?;
        Ok(DrivenCounter { inner: Belonging::new(&entered, counter) })
    }

    /// Counts an operation when it ends; see [`Worker::count`](crate::Worker::count).
    ///
    /// # Errors
    /// The errors of [`Worker::count`](crate::Worker::count).
    pub fn count(&self, outcome: DrivenOutcome, counter: &DrivenCounter) -> Result<(), Error> {
        let counter = &counter.inner;
        self.with_outcome_under(outcome, |entered, outcome| {
            entered.worker()?.count(outcome, counter.under(entered)?)
        })
    }

    /// Flushes every endpoint, as [`Worker::flush`](crate::Worker::flush) does, and waits at most `timeout`; `false` if the time is
    /// up. Operations that other threads post meanwhile are not covered.
    ///
    /// # Errors
    /// The error of the first failure among the flushed operations. [`CompletionError::Pending`] if the call cannot wait.
    pub fn flush(&self, timeout: Option<Duration>) -> Result<bool, CompletionError> {
        let pending = CompletionError::Pending;
        let counter = self.completion_counter().map_err(pending)?;
        let deadline = deadline(timeout);
        loop {
            let begun = {
                let held = counter.inner.enter_to_post().map_err(pending)?;
                held.entered.worker().map_err(pending)?.begin_flush(&held)
            };
            let id = counter.inner.enter().map_err(pending)?.id;
            let engine = counter.inner.engine();
            match begun {
                // The maximum number of operations is pending, so some have to end first.
                Err(PostError::Retry(_)) => {
                    if !engine.wait(Until::Changed(engine.changes()), deadline).map_err(pending)? {
                        return Ok(false);
                    }
                    continue;
                }
                begun => begun.map_err(|error| CompletionError::from(Error::from(error)))?,
            }
            if !engine.wait(Until::Counted(id), deadline).map_err(pending)? {
                return Ok(false);
            }
            let first = counter.inner.enter().map_err(pending)?.first_failure();
            return first.map_or(Ok(true), Err);
        }
    }

    fn with_outcome(
        &self,
        outcome: DrivenOutcome,
        with: impl FnOnce(&crate::Worker, &Outcome) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.with_outcome_under(outcome, |entered, outcome| with(entered.worker()?, outcome))
    }

    fn with_outcome_under(
        &self,
        outcome: DrivenOutcome,
        with: impl FnOnce(&Entered<'_>, &Outcome) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match outcome {
            DrivenOutcome::Done(value) => with(&self.engine().enter()?, &Outcome::Done(value)),
            DrivenOutcome::Pending(request) => {
                if !std::sync::Arc::ptr_eq(request.inner.engine(), self.engine()) {
                    return Err(super::abi::another_workers());
                }
                let mut result = Ok(());
                let consumed = request.inner.consume(|entered, request| {
                    result = with(entered, &Outcome::Pending(request));
                    Ok::<(), Request>(())
                });
                match consumed {
                    Err((_, Some(error))) => Err(error),
                    _ => result,
                }
            }
        }
    }
}

/// Checks at compile time that any thread may use these objects.
const _: () = {
    const fn any_thread<T: Send + Sync>() {}
    any_thread::<DrivenOutcome>();
    any_thread::<DrivenCounter>();
    any_thread::<Engine>();
};
