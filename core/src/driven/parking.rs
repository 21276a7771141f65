//! The places at which the progress thread sleeps.

use super::waiters::Slot;
use crate::Error;
use crate::sys::{Poller, Wakeup};
use crate::worker::Worker;
use std::time::{Duration, Instant};

pub(super) struct Parking {
    /// A second descriptor of the worker's poller. It stays open while the thread sleeps on it, even if the worker is dropped.
    poller: Poller,
    /// Ends a sleep on the poller.
    wakeup: Wakeup,
    /// The place of the thread while a caller drives the worker.
    aside: Slot,
}

impl Parking {
    pub(super) fn new(worker: &Worker) -> Result<Parking, Error> {
        let wakeup = Wakeup::new()?;
        worker.inner.watch(&wakeup)?;
        let poller = worker.inner.second_poller()?;
        Ok(Parking { poller, wakeup, aside: Slot::default() })
    }

    /// Sleeps on the worker's descriptor, which was armed under the lock; `false` if the time is up.
    pub(super) fn sleep_watching(&self, most: Option<Duration>) -> Result<bool, Error> {
        self.poller.wait(most)
    }

    /// Sleeps until the thread is woken, at most for the given time.
    pub(super) fn sleep_aside(&self, most: Option<Duration>) {
        let _ = self.aside.sleep(most.map(|most| Instant::now() + most));
    }

    pub(super) fn wake_watching(&self) {
        self.wakeup.wake();
    }

    pub(super) fn wake_aside(&self) {
        self.aside.wake();
    }

    /// Consumes the wake-ups of a sleep on the descriptor.
    pub(super) fn take_wakeups(&self) {
        let _ = self.wakeup.take();
    }
}
