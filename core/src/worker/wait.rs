//! Sleeping: a program need not spin.

use super::{Inner, Worker};
use crate::op::Request;
use crate::region::{NotClosed, Region};
use crate::{Error, Status};
use std::os::fd::{AsRawFd, RawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tieline_plugin_api::Armed;
use tieline_plugin_api::caps;

/// How often `finish` looks before it sleeps: some microseconds, the time in which a running peer answers.
const SPINS: usize = 2000;
/// While work is queued, or a key settles, that no descriptor announces, a sleep is no longer than this.
const QUEUED_NAP: Duration = Duration::from_millis(1);

/// Between two looks at a module that has no descriptor to sleep on.
const POLL_NAP: Duration = Duration::from_micros(50);

/// Between two tries to give an answer for which there was no way.
const OWED_NAP: Duration = Duration::from_millis(10);

impl Worker {
    /// A descriptor for poll(2) or epoll: readable when there may be something to do, provided that
    /// [`Worker::arm`] said so before.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.inner.poller.as_raw_fd()
    }

    /// Prepares to sleep on [`Worker::fd`]: `true` when that is safe, `false` when there is something to
    /// do right now.
    ///
    /// # Errors
    /// When an interface cannot be waited for.
    pub fn arm(&self) -> Result<bool, Error> {
        // What a provider fetches for a key makes no event: who waits for it has to look.
        Ok(!self.inner.settling.replace(false) && self.inner.arm()?)
    }

    /// Makes progress; when there was none to make, sleeps until there may be some, at most `timeout`, and
    /// makes progress again. `true`: something happened.
    ///
    /// # Errors
    /// `Busy` inside a handler, or when the system refuses to wait.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        self.inner.wait(timeout)
    }

    /// Closes a region, making progress until nothing uses it any more or the time is up: [`Region::close`], for who
    /// would rather wait. Operations of other workers need their progress.
    ///
    /// # Errors
    /// As [`Region::close`]; inside a handler it does not wait.
    pub fn close_region(&self, region: Region, timeout: Duration) -> Result<(), NotClosed> {
        let deadline = Instant::now().checked_add(timeout);
        let mut region = region;
        loop {
            let not = match region.close() {
                Err(not) if not.error.status() == Status::Busy => not,
                ended => return ended,
            };
            let left =
                deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() || self.inner.in_progress.get() {
                return Err(not);
            }
            region = not.region;
            // A peer that leaves makes no event.
            if let Err(error) = self.inner.rest(left.min(QUEUED_NAP)) {
                return Err(NotClosed { region, error });
            }
        }
    }
}

fn armed(outcome: Result<Armed, Status>, path: &str) -> Result<Armed, Error> {
    outcome.map_err(|status| {
        Error::new(
            status,
            format!("{path} cannot be waited for"),
            status.text(),
            "call progress in a loop instead",
        )
    })
}

impl Inner {
    fn arm(&self) -> Result<bool, Error> {
        self.core.check_process("a worker")?;
        // Whatever ends the sleep is to be looked at, by the next call of progress.
        self.slow_in.set(0);
        for slot in &self.interfaces {
            if slot.attr.caps & caps::NEEDS_POLL != 0
                && slot.out_of_use.borrow().is_none()
                && armed(slot.interface.arm(), &slot.path)? == Armed::Ready
            {
                return Ok(false);
            }
        }
        for slot in &self.wiring.carriers.connectors {
            if armed(slot.connector.arm(), &slot.scheme)? == Armed::Ready {
                return Ok(false);
            }
        }
        // What a handler left when it panicked lies in memory that no descriptor speaks of.
        if self.has_left_over.get() || self.ops.borrow().has_due() {
            return Ok(false);
        }
        let owed = (!self.owed.is_empty()).then_some(OWED_NAP);
        let timers = [self.wiring.next_timer(), self.next_service_timer(), owed];
        match timers.into_iter().flatten().min() {
            Some(Duration::ZERO) => return Ok(false),
            next => self.timer.set(next)?,
        }
        Ok(!self.has_work.get() || self.only_blocked_work())
    }

    /// Whether what is queued waits for a peer, so that its descriptor will say when to go on.
    fn only_blocked_work(&self) -> bool {
        !self.assist.is_busy()
    }

    /// Lets another thread end a wait.
    pub(crate) fn watch(&self, wakeup: &crate::sys::Wakeup) -> Result<(), Error> {
        self.poller.add(wakeup.as_raw_fd())
    }

    pub(super) fn wait(self: &Rc<Self>, timeout: Option<Duration>) -> Result<bool, Error> {
        self.core.check_process("a worker")?;
        self.check_no_handler("a wait")?;
        self.slow_in.set(0);
        if self.progress() > 0 {
            return Ok(true);
        }
        if self.arm()? {
            // What waits for a connection that forms is woken by a carrier's descriptor or the timer.
            let busy = self.busy.borrow().iter().any(|endpoint| !endpoint.waits_for_line());
            let queued = self.settling.replace(false) || busy || self.wiring.has_waiting();
            let nap = match (timeout, queued) {
                (timeout, false) => timeout,
                (None, true) => Some(QUEUED_NAP),
                (Some(timeout), true) => Some(timeout.min(QUEUED_NAP)),
            };
            let _ = self.poller.wait(nap)?;
        }
        Ok(self.progress() > 0)
    }

    pub(super) fn finish(self: &Rc<Self>, request: &Request) -> Result<u64, Error> {
        self.check_owner(request)?;
        let mut quiet = 0;
        loop {
            if let Some(result) = self.ops.borrow_mut().take(request.id) {
                return result;
            }
            if self.progress() > 0 {
                quiet = 0;
                continue;
            }
            quiet += 1;
            if quiet < SPINS {
                std::hint::spin_loop();
                continue;
            }
            self.rest(Duration::from_millis(100))?;
        }
    }

    /// Sleeps for a while inside a call that waits. A module that cannot wake anybody is looked at again and again, with
    /// naps in between.
    pub(super) fn rest(self: &Rc<Self>, most: Duration) -> Result<(), Error> {
        match self.wait(Some(most)) {
            Ok(_) => {}
            Err(error) if error.status() == Status::Unsupported => {
                std::thread::sleep(most.min(POLL_NAP));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
