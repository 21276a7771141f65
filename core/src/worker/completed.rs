//! Operations whose end is told: with the application's word, or as one more of a number.

use super::{Inner, Worker};
use crate::registry::abi::events::Polled;
use crate::request::{CompletionCounter, Outcome, Request};
use crate::{CompletionError, Error, Status};

impl Worker {
    /// Has the end of an operation told by [`take_completed`](Worker::take_completed), together with `user`, a word of the
    /// application's: an index, a tag, an address. What is `Done` already is told there as well, so that all ends come by one way; who
    /// would rather deal with it at once looks at the outcome first. From then on nobody is asked: [`test`](Worker::test) and
    /// [`finish`](Worker::finish) refuse it, and no flush tells of its failure. The outcome can be dropped, or be kept for
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
    /// `Invalid` for a pending operation of another worker, or one that is tracked or counted, and in a forked child. Nothing is changed then.
    pub fn track(&self, outcome: &Outcome, user: u64) -> Result<(), Error> {
        self.inner.shared.core.check_process("a worker")?;
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

    /// Takes up to `most` of the tracked operations that have ended, in the order in which they did (or were tracked, if that was
    /// later): `each` gets the word that [`track`](Worker::track) was given, and how the operation ended. Returns how many there were.
    /// It makes no progress. `each` may call whatever it likes, also this; what it tracks that has ended already is for the next call.
    /// Should it panic, those behind stay.
    ///
    /// What is not taken stays and takes room, however many there are, and keeps [`wait`](Worker::wait) and [`arm`](Worker::arm) from
    /// sleeping. What an endpoint's end or drop ends is among them, and what [`close`](Worker::close) ends, after which they can still
    /// be taken. When the worker is dropped, what is left is told to nobody.
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

    /// A counter of this worker's operations.
    ///
    /// # Errors
    /// `NoMemory` with more than 16 million; `Closed` when the worker is; `Invalid` in a forked child.
    pub fn completion_counter(&self) -> Result<CompletionCounter, Error> {
        self.inner.check_open()?;
        let id = self.inner.shared.ops.borrow_mut().open_counter().ok_or(Status::NoMemory)?;
        Ok(CompletionCounter { shared: self.inner.shared.clone(), id })
    }

    /// Counts an operation when it ends, at once if it has; it is not asked for any more, as with [`track`](Worker::track).
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
    /// As [`Worker::track`]; `Invalid` also for the counter of another worker.
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

    /// Whether its end can be told: it is this worker's, and told nowhere yet.
    fn check_to_be_told(&self, request: &Request) -> Result<(), Error> {
        self.inner.check_owner(&request.shared)?;
        match self.inner.shared.ops.borrow().is_told(request.id) {
            false => Ok(()),
            true => Err(told_elsewhere()),
        }
    }

    /// What is told is not asked for, too.
    pub(super) fn check_asked(&self, request: &Request) -> Result<(), CompletionError> {
        self.check_to_be_told(request).map_err(CompletionError::Pending)
    }
}

impl Inner {
    /// The end of an operation beside which there is nothing: of the others `other_event` knows.
    #[inline]
    pub(super) fn ended_well(&self, index: usize, event: &Polled) -> bool {
        let ended = self.shared.ops.borrow_mut().completed_plain(event.cookie, index, event.header);
        if ended == Some(true) {
            self.let_go();
        }
        ended.is_some()
    }

    /// Its memory is let go; and a flush that has nothing before it any more asks its lanes, or has ended, and what waited for it may
    /// have with its own.
    #[inline(never)]
    fn let_go(&self) {
        self.shared.with_ops(|_| ());
    }
}

#[cold]
fn told_elsewhere() -> Error {
    Error::new(
        Status::Invalid,
        "an operation that is tracked or counted",
        "its end is told by take_completed or by its counter, and nowhere else",
        "wait for it there",
    )
}
