//! Closing an endpoint by the application: after its posted operations, or immediately.

use super::{Endpoint, EndpointState, State};
use crate::error::Scope;
use crate::request::Outcome;
use crate::{Error, PostError, Status};
use std::rc::Rc;

/// The treatment of pending operations on an endpoint that is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Close {
    /// The flush of pending operations, which complete as for [`Endpoint::flush`].
    Flush,
    /// The immediate end of pending operations, with `Canceled`.
    Cancel,
}

impl Endpoint {
    /// Closes the endpoint, for all its clones. Later posts are refused as `Closed`. After [`Close::Flush`], further flushes of
    /// puts, gets and atomics are still accepted.
    ///
    /// [`Close::Flush`]: the returned operation completes like a [`flush`](Endpoint::flush) of everything posted before. The
    /// endpoint may be dropped meanwhile: the worker keeps it until the flush has ended and the peer has received or refused the
    /// rendezvous messages.
    ///
    /// [`Close::Cancel`]: all pending operations end with `Canceled`, and may have been executed or not. The result is `Done`.
    /// Rendezvous messages are withdrawn, even while a peer is receiving them (see [`Endpoint::send`]). Memory that a transport
    /// still accesses is kept until the transport has finished ([`Region::close`](crate::Region::close) reports that). Messages
    /// that returned `Done` are still delivered, unless the connection fails. An endpoint closed with `Flush` can afterwards be
    /// closed with `Cancel`.
    ///
    /// The connection stays for its other users, and so do the worker's answers to the peer. Lanes that belong to the endpoint are
    /// closed when the last clone and the last key are dropped.
    ///
    /// ```
    /// # fn main() -> Result<(), tieline::Error> {
    /// # let context = tieline::Context::open()?;
    /// # let worker = context.worker()?;
    /// let there = worker.connect(&worker.address()?)?;
    /// let _ = there.send(7, 0, b"the last one")?;
    /// let closed = there.close(tieline::Close::Flush)?;
    /// drop(there);
    /// let _ = worker.finish(closed)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// For `Flush` as for [`flush`](Endpoint::flush), and [`PostError::Reconnect`] if the endpoint is already closed. For `Cancel`
    /// only `Invalid` in a forked child.
    pub fn close(&self, how: Close) -> Result<Outcome, PostError> {
        match how {
            Close::Flush => self.inner.close_behind().map_err(|error| self.inner.refused(error)),
            Close::Cancel => {
                self.inner.shared.check_process("an endpoint")?;
                self.inner.give_up();
                Ok(Outcome::Done(0))
            }
        }
    }
}

impl EndpointState {
    /// Checks that the application may post: the endpoint is usable and was not closed.
    pub(super) fn check_open(&self) -> Result<(), Error> {
        self.check_alive()?;
        if self.closing.get() { Err(closed()) } else { Ok(()) }
    }

    /// Checks the same condition as `check_open`, without an error text.
    pub(crate) fn is_open(&self) -> bool {
        self.is_alive() && !self.closing.get()
    }

    fn close_behind(self: &Rc<Self>) -> Result<Outcome, Error> {
        self.check_open()?;
        let outcome = self.flush()?;
        self.closing.set(true);
        // Disables the fast path, so that every post is checked.
        if self.state.get() == State::Ready {
            self.state.set(State::Queueing);
        }
        self.live_keys().iter().for_each(|key| key.update_fast_path());
        let flush = match &outcome {
            Outcome::Pending(flush) => Some(flush.id),
            Outcome::Done(_) => None,
        };
        self.worker.keep_until(self.clone(), flush);
        Ok(outcome)
    }

    /// Abandons all pending operations.
    fn give_up(&self) {
        if !self.is_alive() {
            return;
        }
        self.withdraw_all();
        self.state.set(State::Closed);
        self.message.leave();
        *self.error.borrow_mut() = Some(closed());
        let queued = self.take_queues();
        let error = Error::new(
            Status::Canceled,
            format!("an operation for {}", self.name()),
            "its endpoint was closed with Close::Cancel",
            "",
        );
        let unfinished = self.shared.with_ops(|ops| ops.cancel_owner(self.index, &error));
        self.drop_entries(queued);
        self.forget_keys();
        self.hold(unfinished);
        // Answers to the peer take another route.
        for waiting in self.take_answers() {
            self.worker.answer_lost(self, waiting, Status::Closed);
        }
        self.worker.answer_another_way(self);
    }
}

#[cold]
fn closed() -> Error {
    Error::new(
        Status::Closed,
        "an endpoint that was closed",
        "the application has closed it",
        "connect anew",
    )
    .of(Scope::Connection)
}
