//! Operations whose completion is reported with a word of the application, or counted.

use super::{Worker, WorkerState};
use crate::request::{CompletionCounter, Outcome, Request};
use crate::{CompletionError, Error, Status};
use tieline_host::abi::events::Polled;
use tieline_plugin_api::event;

impl Worker {
    /// Makes [`take_completed`](Worker::take_completed) report the completion of an operation together with `user`, a word that the
    /// library does not interpret.
    ///
    /// If the outcome is already `Done`, `take_completed` reports it as well. [`test`](Worker::test) and [`finish`](Worker::finish)
    /// refuse a tracked operation, and a flush does not report its failure. The outcome may be dropped, or kept for
    /// [`cancel`](Worker::cancel).
    ///
    /// ```no_run
    /// # fn main() -> Result<(), tieline::Error> {
    /// # let worker = tieline::Context::open()?.worker()?;
    /// # let me = worker.connect(&worker.address()?)?;
    /// worker.track(&me.flush()?, 17)?;
    /// while worker.take_completed(64, |user, result| println!("{user}: {result:?}")) == 0 {
    ///     worker.wait(None)?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `Invalid` for a pending operation of another worker, for one that is already tracked or counted, and in a forked child. On
    /// an error nothing changes.
    pub fn track(&self, outcome: &Outcome, user: u64) -> Result<(), Error> {
        self.inner.shared.check_process("a worker")?;
        let ops = &self.inner.shared.ops;
        match outcome {
            Outcome::Done(value) => ops.borrow_mut().track_done(user, *value),
            Outcome::Pending(request) => {
                self.check_to_be_told(request)?;
                ops.borrow_mut().track(request.id, user);
            }
        }
        Ok(())
    }

    /// Takes up to `most` tracked operations that have ended, in the order of completion (of tracking, if that was later). Returns
    /// their number, which is 0 in a forked child. The call makes no progress.
    ///
    /// `each` receives the word given to [`track`](Worker::track) and the result of the operation. The function `each` may call any
    /// method, including this one. An operation that `each` tracks and that has already ended is left for the next call. If `each`
    /// panics, the next call returns the remaining operations.
    ///
    /// Operations that have ended and were not taken occupy memory, without a limit, and keep [`wait`](Worker::wait) and
    /// [`arm`](Worker::arm) from sleeping. Operations that end because an endpoint fails or is dropped, or because of
    /// [`close`](Worker::close), are reported as well. The application can take operations after `close`. Dropping the worker
    /// discards them.
    pub fn take_completed(
        &self,
        most: usize,
        mut each: impl FnMut(u64, Result<u64, CompletionError>),
    ) -> usize {
        let shared = &self.inner.shared;
        if !shared.same_process() {
            return 0;
        }
        let most = most.min(shared.ops.borrow().completed_count());
        let mut taken = 0;
        while taken < most {
            let next = shared.ops.borrow_mut().take_completed();
            let Some((user, result)) = next else { break };
            taken += 1;
            each(user, result.map_err(CompletionError::from));
        }
        taken
    }

    /// Returns a new counter for operations of this worker.
    ///
    /// # Errors
    /// `NoMemory` for more than 16 million counters; `Closed` if the worker is closed; `Invalid` in a forked child.
    pub fn completion_counter(&self) -> Result<CompletionCounter, Error> {
        self.inner.check_open()?;
        let id = self.inner.shared.ops.borrow_mut().open_counter().ok_or(Status::NoMemory)?;
        Ok(CompletionCounter { shared: self.inner.shared.clone(), id })
    }

    /// Counts an operation when it ends, or immediately if it has already ended. As with [`track`](Worker::track), `test` and
    /// `finish` refuse the operation from then on.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), tieline::Error> {
    /// # let worker = tieline::Context::open()?.worker()?;
    /// # let me = worker.connect(&worker.address()?)?;
    /// let sent = worker.completion_counter()?;
    /// for word in 0..100 {
    ///     worker.count(&me.send(7, word, b"hello")?, &sent)?;
    /// }
    /// worker.wait_until(|| sent.pending() == 0, None)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Worker::track`]. `Invalid` also for a counter of another worker.
    pub fn count(&self, outcome: &Outcome, counter: &CompletionCounter) -> Result<(), Error> {
        self.inner.check_owner(&counter.shared)?;
        let ops = &self.inner.shared.ops;
        match outcome {
            Outcome::Done(_) => ops.borrow_mut().count_done(counter.id),
            Outcome::Pending(request) => {
                self.check_to_be_told(request)?;
                ops.borrow_mut().count(request.id, counter.id);
            }
        }
        Ok(())
    }

    /// Checks that the operation's completion can be reported: it is this worker's, and neither tracked nor counted.
    fn check_to_be_told(&self, request: &Request) -> Result<(), Error> {
        self.inner.check_owner(&request.shared)?;
        match self.inner.shared.ops.borrow().is_told(request.id) {
            false => Ok(()),
            true => Err(told_elsewhere()),
        }
    }

    /// Checks that an operation can be tested or waited for: it is this worker's, and neither tracked nor counted.
    pub(super) fn check_asked(&self, request: &Request) -> Result<(), CompletionError> {
        self.check_to_be_told(request).map_err(CompletionError::Pending)
    }
}

impl WorkerState {
    /// Completes an operation that has succeeded and has no dependents, and the ones like it whose events follow directly in `rest`.
    /// Returns their number, and whether to [let go](WorkerState::let_go). 0: nothing has changed, and `other_event` handles the
    /// operation.
    #[inline(never)]
    pub(super) fn ended_well(
        &self,
        index: usize,
        event: &Polled,
        rest: &[Polled],
    ) -> (usize, bool) {
        let mut ops = self.shared.ops.borrow_mut();
        let (mut event, mut count, mut lets_go) = (event, 0, false);
        while let Some(more) = ops.completed_plain(event.cookie, index, event.header) {
            lets_go |= more;
            match rest.get(count) {
                Some(next) if is_success(next) => event = next,
                _ => return (count + 1, lets_go),
            }
            count += 1;
        }
        (count, lets_go)
    }

    /// Releases the memory of operations that have ended. A flush that has become the first operation asks its lanes or ends, and
    /// operations that waited for the flush may end as well.
    #[inline(never)]
    pub(super) fn let_go(&self) {
        self.shared.with_ops(|_| ());
    }
}

/// Checks whether an event reports the success of an operation.
#[inline(always)]
pub(super) fn is_success(event: &Polled) -> bool {
    event.kind == event::COMPLETION && event.status == 0
}

#[cold]
fn told_elsewhere() -> Error {
    Error::new(
        Status::Invalid,
        "an operation that is tracked or counted",
        "only take_completed or its counter reports its completion",
        "wait for it there",
    )
}
