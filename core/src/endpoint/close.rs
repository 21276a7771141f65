//! The end of an endpoint as its application wants it: behind what it has posted, or at once.

use super::queued::QueuedOp;
use super::{Endpoint, Inner, State};
use crate::error::Scope;
use crate::registry::abi::RawEndpoint;
use crate::request::Outcome;
use crate::{Error, PostError, Status};
use std::rc::{Rc, Weak};

/// What becomes of what is pending on an endpoint that is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Close {
    /// It is completed, as by [`Endpoint::flush`].
    Flush,
    /// It ends with `Canceled`, now.
    Cancel,
}

impl Endpoint {
    /// Closes the endpoint, for all its clones: whatever is posted from here on is refused as `Closed`.
    ///
    /// [`Close::Flush`]: what it returns completes as a [`flush`](Endpoint::flush) of everything that was posted before. The endpoint may be
    /// dropped meanwhile; the worker keeps it until then, and until the peer has taken or refused the messages that were announced. [`Close::Cancel`]: everything that is pending ends with `Canceled`, and may
    /// have happened or not; it is `Done` when this returns. What a peer is taking of an announced message is taken away from under it (see
    /// [`Endpoint::send`]). Memory that a transport still has is kept until it has it no more
    /// ([`Region::close`](crate::Region::close) tells), and a message that said `Done` is under way. What is closed with
    /// `Flush` can still be closed with `Cancel`.
    ///
    /// The connection stays for others who use it, and so does what the worker answers its peer. Lanes close when the last clone and the
    /// last key are dropped.
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
    /// Of `Flush` as of [`flush`](Endpoint::flush), and [`PostError::Reconnect`] for one that is closed already; nothing is closed then. Of
    /// `Cancel` only in a forked child.
    pub fn close(&self, how: Close) -> Result<Outcome, PostError> {
        match how {
            Close::Flush => self.inner.close_behind().map_err(|error| self.inner.refused(error)),
            Close::Cancel => {
                self.inner.shared.core.check_process("an endpoint")?;
                self.inner.give_up();
                Ok(Outcome::Done(0))
            }
        }
    }
}

impl Inner {
    /// Whether the application may post: it lives and was not closed.
    pub(super) fn check_open(&self) -> Result<(), Error> {
        self.check_alive()?;
        if self.closing.get() { Err(closed()) } else { Ok(()) }
    }

    /// The same, without words.
    pub(crate) fn is_open(&self) -> bool {
        self.is_alive() && !self.closing.get()
    }

    fn close_behind(self: &Rc<Self>) -> Result<Outcome, Error> {
        self.check_open()?;
        let outcome = self.flush()?;
        self.closing.set(true);
        // No fast path is taken any more, so that whatever is posted is looked at.
        if self.state.get() == State::Ready {
            self.state.set(State::Queueing);
        }
        let keys: Vec<_> = self.keys.borrow().iter().filter_map(Weak::upgrade).collect();
        keys.iter().for_each(|key| key.update_fast_path());
        let flush = match &outcome {
            Outcome::Pending(flush) => Some(flush.id),
            Outcome::Done(_) => None,
        };
        self.worker.keep_until(self.clone(), flush);
        Ok(outcome)
    }

    /// The application wants nothing of what is pending.
    fn give_up(&self) {
        if !self.is_alive() {
            return;
        }
        self.withdraw_all();
        self.state.set(State::Closed);
        self.message.set(RawEndpoint::nowhere());
        *self.error.borrow_mut() = Some(closed());
        // What is queued holds buffers and keys, whose drops may come back here.
        let queued = std::mem::take(&mut *self.queue.borrow_mut());
        self.queued_bytes.set(0);
        let error = Error::new(
            Status::Canceled,
            format!("an operation for {}", self.name()),
            "its endpoint was closed with Close::Cancel",
            "",
        );
        let unfinished = self.shared.with_ops(|ops| ops.cancel_owner(self.index, &error));
        for inner in queued.iter().filter_map(QueuedOp::inner_request) {
            self.shared.ops.borrow_mut().forget(inner);
        }
        drop(queued);
        self.forget_keys();
        self.hold(unfinished);
        // Its peer is answered another way.
        for waiting in self.take_answers() {
            self.worker.answer_lost(self, waiting, Status::Closed);
        }
        if let Some(control) = self.open_control() {
            control.give_up();
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
