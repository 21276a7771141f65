//! The ordinary objects behind a driven worker, for the C library, which has one set of functions for both kinds of workers.

use super::super::engine::Entered;
use super::super::message::{DrivenAcknowledgement, DrivenMessage, DrivenRendezvous};
use super::super::request::deadline;
use super::super::waiters::Until;
use super::super::{DrivenEndpoint, DrivenWorker};
use super::Belonging;
use crate::message::{Acknowledgement, Rendezvous};
use crate::worker::Waited;
use crate::{Endpoint, Error, Worker};
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};
use tieline_order::Id;

/// The lock of a driven worker, held by this thread.
#[doc(hidden)]
pub struct LockedWorker<'a>(Entered<'a>);

impl LockedWorker<'_> {
    /// Returns the ordinary worker, unless the driven one has ended.
    #[must_use]
    pub fn worker(&self) -> Option<&Worker> {
        self.0.worker().ok()
    }
}

#[doc(hidden)]
impl DrivenWorker {
    /// Takes the lock, for calls of the ordinary worker that do not wait.
    ///
    /// # Safety
    /// Every object that comes from the ordinary worker, and every clone of it, is used and dropped only under the lock. The
    /// ordinary worker gets no handlers, and no call that waits or makes progress.
    ///
    /// # Errors
    /// `Busy` if this thread holds the lock; `Invalid` in a forked child.
    pub unsafe fn lock(&self) -> Result<LockedWorker<'_>, Error> {
        Ok(LockedWorker(self.engine().enter_to_post()?))
    }

    /// Checks whether this thread is inside a handler of the worker.
    #[must_use]
    pub fn is_in_handler(&self) -> bool {
        self.engine().same_process() && self.engine().dispatch.is_in_handler()
    }

    /// Waits for the end of the operation with this number; `false` if the time is up.
    ///
    /// # Errors
    /// The errors of [`DrivenWorker::wait_until`].
    pub fn wait_ended(&self, number: u64, timeout: Option<Duration>) -> Result<bool, Error> {
        let Some(id) = Id::from_raw(number) else { return Ok(true) };
        self.engine().wait(Until::Ended(id), deadline(timeout))
    }

    /// Waits for any event, as [`Worker::wait`] does.
    ///
    /// # Errors
    /// The errors of [`DrivenWorker::wait_until`].
    pub fn wait_event(&self, timeout: Option<Duration>) -> Result<Waited, Error> {
        let engine = self.engine();
        let (seen, until) = (engine.changes(), deadline(timeout));
        let has_completed =
            || engine.enter().map(|entered| entered.outlasts_close(&Until::Completed));
        if !has_completed()? && !engine.wait(Until::Happened(seen), until)? {
            return Ok(Waited::TimeIsUp);
        }
        let moved = engine.changes() != seen || has_completed()?;
        let is_up = until.is_some_and(|until| until <= Instant::now());
        Ok(match (moved, is_up) {
            (true, _) => Waited::Moved,
            (false, true) => Waited::TimeIsUp,
            (false, false) => Waited::Roused,
        })
    }

    /// Ends the worker as the drop of its last handle does.
    pub fn end(&self) {
        self.owner.end();
    }
}

/// Takes an object out of its guard.
///
/// # Safety
/// The caller holds the lock of the object's worker, and uses and drops the object only under that lock.
unsafe fn taken<T>(belonging: Belonging<T>) -> T {
    let mut this = ManuallyDrop::new(belonging);
    // SAFETY: `this` is not dropped, so both are taken out once.
    unsafe {
        drop(std::ptr::read(&raw const this.engine));
        ManuallyDrop::take(&mut this.value)
    }
}

#[doc(hidden)]
impl DrivenMessage {
    /// Returns the ordinary rendezvous message, once.
    ///
    /// # Safety
    /// The caller holds the worker's lock, and uses and drops the object only under that lock.
    #[must_use]
    pub unsafe fn ordinary_rendezvous(&self) -> Option<Rendezvous> {
        let DrivenRendezvous { inner, .. } = self.rendezvous()?;
        // SAFETY: the caller's promise.
        Some(unsafe { taken(inner) })
    }

    /// Returns the ordinary acknowledgement, once.
    ///
    /// # Safety
    /// As [`DrivenMessage::ordinary_rendezvous`].
    #[must_use]
    pub unsafe fn ordinary_acknowledgement(&self) -> Option<Acknowledgement> {
        let DrivenAcknowledgement { inner } = self.acknowledgement()?;
        // SAFETY: the caller's promise.
        Some(unsafe { taken(inner) })
    }
}

#[doc(hidden)]
impl DrivenEndpoint {
    /// Returns the ordinary endpoint.
    ///
    /// # Safety
    /// As [`DrivenMessage::ordinary_rendezvous`].
    #[must_use]
    pub unsafe fn ordinary(&self) -> Endpoint {
        let inner: &Endpoint = &self.inner.value;
        inner.clone()
    }
}
