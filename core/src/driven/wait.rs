//! Waits of callers: a caller drives the worker itself if nobody else does, and otherwise parks until its condition holds.
//!
//! No wait holds the lock while it spins, yields or sleeps. One caller at a time drives. A driving caller that would have to sleep
//! hands the worker over to the progress thread, which sleeps on the descriptor, and parks like the others.

use super::dispatch::Ran;
use super::engine::{Engine, Entered, closed};
use super::waiters::Until;
use crate::Error;
use crate::worker::{Step, Wait};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The end of a caller's time as the driver.
enum Driven {
    Holds,
    TimeIsUp,
    /// The caller would have to sleep. The time limits the sleep, if the condition may become true without an event.
    Sleeps(Option<Duration>),
}

/// The mark of the caller that drives. Its drop, which also happens during a panic, hands the worker over.
struct Driver<'a>(&'a Arc<Engine>);

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        if let Ok(mut entered) = self.0.enter() {
            if entered.is_driven {
                entered.hand_over(true);
            }
        }
    }
}

impl Engine {
    /// Waits until a condition holds; `false` if the time is up. Handlers may run on this thread.
    pub(super) fn wait(
        self: &Arc<Self>,
        until: Until,
        deadline: Option<Instant>,
    ) -> Result<bool, Error> {
        self.check_process()?;
        self.dispatch.check_no_handler("a wait")?;
        let outcome = self.wait_without_panic(until, deadline);
        self.raise_panic();
        outcome
    }

    /// Waits like [`wait`](Engine::wait), and leaves panics of handlers to a later call.
    pub(super) fn wait_without_panic(
        self: &Arc<Self>,
        until: Until,
        deadline: Option<Instant>,
    ) -> Result<bool, Error> {
        let outcome = self.wait_inside(until, deadline);
        self.leave_events();
        outcome
    }

    /// Raises the panic of a handler, once.
    pub(super) fn raise_panic(&self) {
        if let Some(panic) = self.dispatch.take_panic() {
            resume_unwind(panic);
        }
    }

    /// Runs the handlers of events that this thread has received, or leaves them to the progress thread.
    pub(super) fn leave_events(self: &Arc<Self>) {
        if self.dispatch() == Ran::Leftover {
            self.wake_thread();
        }
    }

    fn wait_inside(
        self: &Arc<Self>,
        until: Until,
        deadline: Option<Instant>,
    ) -> Result<bool, Error> {
        let mut entered = self.enter()?;
        if let Ok(worker) = entered.worker() {
            worker.inner.hear_of_service()?;
        }
        loop {
            if self.is_closed() && !entered.outlasts_close(&until) {
                return Err(closed());
            }
            if entered.holds(&until) {
                return Ok(true);
            }
            let mut limit = deadline;
            if !entered.is_driven {
                match self.drive(entered, until, deadline)? {
                    Driven::Holds => return Ok(true),
                    Driven::TimeIsUp => return Ok(false),
                    Driven::Sleeps(nap) => {
                        let until = nap.map(|nap| Instant::now() + nap);
                        limit = [deadline, until].into_iter().flatten().min();
                    }
                }
                entered = self.enter()?;
                if entered.holds(&until) {
                    continue;
                }
            }
            let woken = self.park(entered, until, limit)?;
            if !woken && deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(self.enter()?.holds(&until));
            }
            entered = self.enter()?;
            if !woken && limit != deadline {
                // The caller examines its own condition after each nap.
                return Ok(true);
            }
        }
    }

    /// Makes progress on this thread until the condition holds, the time is up, or the thread would have to sleep.
    fn drive<'a>(
        self: &'a Arc<Self>,
        mut entered: Entered<'a>,
        until: Until,
        deadline: Option<Instant>,
    ) -> Result<Driven, Error> {
        entered.inside().is_driven = true;
        let driver = Driver(self);
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let mut wait = Wait::new(left, !matches!(until, Until::Changed(_)));
        loop {
            let is_full = self.dispatch.is_full();
            let moved = !is_full && entered.progress() > 0;
            let ended = if entered.holds(&until) {
                Some(Driven::Holds)
            } else if is_full {
                Some(Driven::Sleeps(None))
            } else if wait.goes_on(moved) {
                None
            } else {
                match entered.backoff.step(&mut wait, Instant::now()) {
                    Step::TimeIsUp => Some(Driven::TimeIsUp),
                    Step::Sleep(nap) => {
                        Some(Driven::Sleeps(matches!(until, Until::Changed(_)).then_some(nap)))
                    }
                    Step::Look => None,
                    Step::Yield { poll_slow } => {
                        if poll_slow {
                            if let Ok(worker) = entered.worker() {
                                worker.inner.look_at_all();
                            }
                        }
                        drop(entered);
                        self.leave_events();
                        let before = Instant::now();
                        std::thread::yield_now();
                        let took = before.elapsed();
                        entered = self.enter()?;
                        entered.backoff.yield_took(took);
                        entered.backoff.yielded(crate::sys::switches);
                        continue;
                    }
                }
            };
            if let Some(ended) = ended {
                entered.hand_over(matches!(ended, Driven::Sleeps(_)));
                std::mem::forget(driver);
                drop(entered);
                self.leave_events();
                return Ok(ended);
            }
            drop(entered);
            self.leave_events();
            std::hint::spin_loop();
            self.give_way();
            entered = self.enter()?;
        }
    }

    /// Sleeps until another thread finds the condition true; `false` if the time is up.
    fn park<'a>(
        self: &'a Arc<Self>,
        mut entered: Entered<'a>,
        until: Until,
        limit: Option<Instant>,
    ) -> Result<bool, Error> {
        let watches = until.is_watcher();
        if watches {
            self.changes.watch();
            // A change that was recorded before this thread was counted did not wake it.
            if entered.holds(&until) {
                self.changes.unwatch();
                return Ok(true);
            }
        }
        let slot = entered.inside().waiters.park(until);
        drop(entered);
        let woken = slot.sleep(limit);
        if watches {
            self.changes.unwatch();
        }
        let mut entered = self.enter()?;
        let woken = woken || !entered.inside().waiters.leave(&slot);
        // Removes a wake-up that was given after the time was up. No other thread refers to the slot any more.
        let _ = slot.sleep(Some(Instant::now()));
        entered.inside().waiters.give_back(slot);
        Ok(woken)
    }
}
