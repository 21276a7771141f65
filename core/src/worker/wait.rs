//! Waiting for an operation, an event or a condition: by spinning, yielding or sleeping.

use super::backoff::{Step, Wait};
use super::threads::Signal;
use super::{Worker, WorkerState};
use crate::endpoint::EndpointState;
use crate::region::{NotClosed, Region};
use crate::request::Request;
use crate::sys::Poller;
use crate::{CompletionError, Error, Status};
use std::os::fd::{AsRawFd, RawFd};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tieline_plugin_api::Armed;
use tieline_plugin_api::caps;

/// The maximum length of a sleep while work is pending that no descriptor signals: queued operations, settling keys, open name
/// lookups, or interfaces that are not watched. The worker's timer ends the sleep.
const QUEUED_NAP: Duration = Duration::from_millis(1);

/// The interval between two polls of a module without a descriptor.
pub(super) const POLL_NAP: Duration = Duration::from_micros(50);

/// The maximum interval between two attempts to send a kept answer during a sleep.
const OWED_NAP: Duration = Duration::from_millis(10);

/// The result of [`Worker::wait`] or [`WaitSet::wait`](crate::WaitSet::wait).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// There were events, a tracked operation has ended and was not taken, or another thread has woken the worker.
    Moved,
    /// There were no events, and the timeout has not expired. The sleep ended for an internal reason (a timer, a connection that is
    /// being established, a retried operation) or because of a signal. The caller checks its condition and waits again.
    Roused,
    /// The timeout has expired without an event.
    TimeIsUp,
}

impl Waited {
    /// Checks whether this is [`Waited::Moved`].
    #[must_use]
    pub fn has_moved(self) -> bool {
        self == Waited::Moved
    }
}

impl Worker {
    /// Returns a descriptor for poll(2) or epoll. It is readable if there may be work for the worker, provided that [`Worker::arm`]
    /// returned `true` before.
    ///
    /// The descriptor is level-triggered: it stays readable until the worker has made progress. With `EPOLLET`, call
    /// [`Worker::progress`] until it returns 0 before the next `arm`. The descriptor stays the same for the worker's life and
    /// belongs to the library: do not read from it or close it.
    ///
    /// The library's own time limits, such as the one for a silent peer, make the descriptor readable as well. A sleep on the
    /// descriptor therefore needs no timeout for these limits. `capi/examples/event_loop.c` uses the descriptor together with a
    /// socket.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.inner.poller.as_raw_fd()
    }

    /// Prepares one sleep on [`Worker::fd`]. Returns `true` if the program may sleep, `false` if it has to make progress or take
    /// completions first. Call this method before each sleep, after the last progress call.
    ///
    /// # Errors
    /// `Unsupported` if an interface does not support waiting; `Invalid` in a forked child. The reason why the context's progress
    /// thread has stopped, once per worker. The system's error if it refuses a timer.
    pub fn arm(&self) -> Result<bool, Error> {
        self.inner.arm_to_wait()
    }

    /// Makes progress like [`Worker::progress`], and polls every interface.
    #[doc(hidden)]
    pub fn progress_everywhere(&self) -> usize {
        self.inner.look_at_all();
        self.inner.progress()
    }

    /// Makes progress. If there were no events, the call sleeps until there may be some, at most `timeout`, and makes progress
    /// again.
    ///
    /// [`Waited::Moved`]: there were events, a [tracked](Worker::track) operation has ended and was not taken, or another thread
    /// has [woken](Worker::waker) the worker. The call may return early without an event; only [`Waited::TimeIsUp`] means that the
    /// timeout has expired. [`Worker::wait_until`] waits for a condition.
    ///
    /// # Errors
    /// The errors of [`Worker::arm`]; `Busy` inside a handler. The system's error if it refuses to wait.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Waited, Error> {
        self.inner.hear_of_service()?;
        let waited = self.inner.sleep(timeout, true)?;
        let is_told = self.inner.woken.take() | self.inner.has_completed();
        Ok(if is_told { Waited::Moved } else { waited })
    }

    /// Makes progress until `condition` holds, and returns `true`; returns `false` if `timeout` expires first.
    ///
    /// The condition is evaluated between progress calls, on this thread. The condition may depend on any state: values set by
    /// handlers, operations, or memory that peers write. The condition may post, track and take completions, but must not call a
    /// method that waits.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), tieline::Error> {
    /// # let worker = tieline::Context::open()?.worker()?;
    /// let got = std::rc::Rc::new(std::cell::Cell::new(false));
    /// let note = got.clone();
    /// worker.on_message(7, move |_| note.set(true))?;
    /// worker.wait_until(|| got.get(), None)?;
    /// # Ok(()) }
    /// ```
    ///
    /// The call spins (`TIELINE_SPIN`; by default only while each process has a processor), then yields the processor for a
    /// millisecond, then sleeps. Every event restarts this sequence. Events of the worker and a [`Waker`](crate::Waker) end the
    /// sleep.
    ///
    /// If the condition becomes true without an event (by a peer's store into memory, or by another thread that does not wake the
    /// worker), the call notices at the end of a nap. A nap lasts an eighth of the time since the last event, at least 50 µs and at
    /// most 10 ms. If the condition panics, no event is lost.
    ///
    /// # Errors
    /// The errors of [`Worker::wait`].
    #[inline]
    pub fn wait_until(
        &self,
        mut condition: impl FnMut() -> bool,
        timeout: Option<Duration>,
    ) -> Result<bool, Error> {
        Ok(self.wait_for(|| condition().then_some(()), timeout)?.is_some())
    }

    /// Waits like [`Worker::wait_until`], for a value: makes progress until `look` returns one, and returns the value; `None` if
    /// `timeout` expires first.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), tieline::Error> {
    /// # let worker = tieline::Context::open()?.worker()?;
    /// let came = std::rc::Rc::new(std::cell::Cell::new(None));
    /// let note = came.clone();
    /// worker.on_message(7, move |m| note.set(Some(m.header())))?;
    /// let header = worker.wait_for(|| came.take(), None)?;
    /// # drop(header);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Worker::wait`].
    #[inline]
    pub fn wait_for<T>(
        &self,
        look: impl FnMut() -> Option<T>,
        timeout: Option<Duration>,
    ) -> Result<Option<T>, Error> {
        self.inner.shared.check_no_handler("a wait")?;
        self.inner.hear_of_service()?;
        self.inner.wait_for(timeout, false, look)
    }

    /// Makes progress until an aligned 64-bit word of a region satisfies a condition, and returns the word; `None` if `timeout`
    /// expires first. Peers write the word by 8-byte puts or, better, by atomics. If a peer calls
    /// [`Endpoint::fence`](crate::Endpoint::fence) between earlier puts and the write of the word, those puts have arrived when the
    /// method returns.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), tieline::Error> {
    /// # let context = tieline::Context::open()?;
    /// # let worker = context.worker()?;
    /// let flags = context.alloc(4096)?; // peers have its key
    /// let word = worker.wait_word(&flags, 64, |word| word >= 3, None)?;
    /// # drop(word);
    /// # Ok(()) }
    /// ```
    ///
    /// The call spins, yields and sleeps like [`wait_until`](Worker::wait_until). While the call spins or yields, it examines the
    /// word after each poll.
    ///
    /// A write that this worker receives as a message (over `tcp`, or emulated) ends the sleep, and so does a
    /// [`Waker`](crate::Waker). A peer's store (`shm`), a device's write (`verbs`) and a write executed by the progress thread or
    /// by another worker produce no event. Such a write is detected at the end of a nap, which lasts at most 10 ms. To wake
    /// immediately over every module, use [`Endpoint::put_notify`](crate::Endpoint::put_notify).
    ///
    /// # Errors
    /// The errors of [`Worker::wait`]. `OutOfRange` and `Misaligned` for an invalid offset.
    pub fn wait_word(
        &self,
        region: &Region,
        offset: usize,
        mut holds: impl FnMut(u64) -> bool,
        timeout: Option<Duration>,
    ) -> Result<Option<u64>, Error> {
        let word = region.atomic_u64(offset)?;
        self.inner.shared.check_no_handler("a wait")?;
        self.inner.hear_of_service()?;
        let look = || Some(word.load(Ordering::Acquire)).filter(|word| holds(*word));
        self.inner.wait_for(timeout, false, look)
    }

    /// Closes a region, and makes progress until the region is not in use any more or `timeout` expires: a [`Region::close`] that
    /// waits. Operations of other workers end only if those workers make progress.
    ///
    /// # Errors
    /// The errors of [`Region::close`]. Inside a handler the method does not wait.
    pub fn close_region(&self, region: Region, timeout: Duration) -> Result<(), NotClosed> {
        let not = match region.close() {
            Err(not)
                if not.error.status() == Status::Busy
                    && !self.inner.shared.entrance.is_in_progress() =>
            {
                not
            }
            ended => return ended,
        };
        // A handle that is dropped produces no event.
        let mut open = Some(not);
        let closed =
            self.inner.wait_for(Some(timeout), false, || match open.take()?.region.close() {
                Err(not) if not.error.status() == Status::Busy => {
                    open = Some(not);
                    None
                }
                ended => Some(ended),
            });
        match (closed, open) {
            (Ok(Some(ended)), _) => ended,
            (Err(error), Some(not)) => Err(NotClosed { region: not.region, error }),
            (_, Some(not)) => Err(not),
            (_, None) => Ok(()), // a retry has closed the region
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

/// Sleeps on the poller. The published state must show the reason of a long sleep. If it could not be published yet (`shown_in` is
/// the time until it can be), the sleep is split in two.
pub(super) fn sleep_on(
    poller: &Poller,
    timeout: Option<Duration>,
    shown_in: Option<Duration>,
    show: impl FnOnce(),
) -> Result<bool, Error> {
    let short = shown_in.filter(|first| timeout.is_none_or(|most| *first < most));
    let rest = match short {
        Some(first) if poller.wait(Some(first))? => return Ok(true),
        Some(first) => {
            show();
            timeout.map(|most| most.saturating_sub(first))
        }
        None => timeout,
    };
    poller.wait(rest)
}

impl WorkerState {
    /// Prepares a sleep, unless a report for the application is pending.
    pub(super) fn arm_to_wait(&self) -> Result<bool, Error> {
        self.shared.check_process("a worker")?;
        self.hear_of_service()?;
        if self.has_completed() {
            return Ok(false);
        }
        let armed = self.arm(self.show_soon())?;
        let armed = !self.woken.take() && armed;
        if armed {
            // From this point on the application is assumed to sleep.
            let _ = self.show_sleep(true);
        }
        Ok(armed)
    }

    /// Prepares a sleep of another thread on a descriptor of [`second_poller`](WorkerState::second_poller). Completions that were not
    /// taken do not prevent the sleep.
    pub(crate) fn arm_for_thread(&self) -> Result<bool, Error> {
        let armed = self.arm(self.show_soon())?;
        if armed {
            let _ = self.show_sleep(true);
        }
        Ok(armed)
    }

    /// Returns a second descriptor of the worker's poller, which stays open when the worker is dropped.
    pub(crate) fn second_poller(&self) -> Result<Poller, Error> {
        self.poller.second()
    }

    /// Makes the next progress call poll every interface.
    pub(crate) fn look_at_all(&self) {
        self.schedule.all_are_due();
    }

    /// Prepares a sleep. `soon`: the application has to call again within this time.
    pub(super) fn arm(&self, soon: Option<Duration>) -> Result<bool, Error> {
        self.shared.check_process("a worker")?;
        // The event that ends the sleep may come from any interface.
        self.look_at_all();
        let watched = self.watched.begin(&self.poller, &self.shared.interfaces);
        for (index, slot) in self.shared.interfaces.iter().enumerate() {
            if slot.attr.caps & caps::NEEDS_POLL == 0 || slot.out_of_use.borrow().is_some() {
                continue;
            }
            let armed = match slot.interface.arm() {
                // Interfaces of other providers remain usable.
                Err(Status::ProviderFailed) => {
                    self.provider_failed(index);
                    return Ok(false);
                }
                outcome => armed(outcome, &slot.path)?,
            };
            if armed == Armed::Ready {
                return Ok(false);
            }
        }
        for slot in &self.wiring.transports.connectors {
            let armed = match slot.connector.arm() {
                // Operations that wait for this interface fail in the next progress call.
                Err(Status::ProviderFailed) if slot.broke.get() => Armed::Sleep,
                Err(Status::ProviderFailed) => Armed::Ready,
                outcome => armed(outcome, &slot.scheme)?,
            };
            if armed == Armed::Ready {
                return Ok(false);
            }
        }
        // The backlog of a panicked handler, and pending reports, cause no event on a descriptor.
        let untold = self.left_over.is_there() || self.is_to_be_told();
        let goes_on = self.turn_was_over.get() || self.shares_copies();
        if untold || goes_on || self.has_tasks() || self.shared.ops.borrow().has_due() {
            return Ok(false);
        }
        let owed = (!self.owed.is_empty()).then_some(OWED_NAP);
        let queued = self.is_to_look().then_some(QUEUED_NAP);
        let unwatched = (!watched).then_some(QUEUED_NAP);
        let lookup = (self.names.open.get() > 0).then_some(QUEUED_NAP);
        let (forms, serves) = (self.wiring.next_timer(), self.next_service_timer());
        let timers = [forms, serves, owed, queued, unwatched, lookup, soon];
        match timers.into_iter().flatten().min() {
            Some(Duration::ZERO) => return Ok(false),
            next => self.timer.set(next)?,
        }
        Ok(self.signal.get().is_none_or(Signal::may_sleep) || !self.hear_signal())
    }

    /// Checks whether another thread has woken this worker, and records that for the next `wait`.
    pub(super) fn hear_signal(&self) -> bool {
        let woken = self.signal.get().is_some_and(Signal::was_woken);
        self.woken.set(self.woken.get() || woken);
        woken
    }

    /// Returns the object by which other threads end a sleep.
    pub(super) fn signal(&self) -> Result<&Signal, Error> {
        if self.signal.get().is_none() {
            let signal = Signal::new()?;
            self.poller.add(signal.as_raw_fd())?;
            let _ = self.signal.set(signal);
        }
        self.signal.get().ok_or_else(|| Status::Invalid.into())
    }

    /// Sleeps; returns whether a descriptor or a signal, rather than the timeout, has ended the sleep.
    fn wait_for_events(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        let shown_in = self.show_sleep(false);
        let slept = sleep_on(&self.poller, timeout, shown_in, || self.show());
        self.shown.publisher.awakes();
        slept
    }

    /// Checks whether work may become possible without an event: operations that their lane did not accept, and keys that a
    /// provider is resolving.
    fn is_to_look(&self) -> bool {
        let settles = self.shared.settling.replace(false);
        // A wire-up transport's descriptor or the timer wakes operations that wait for a connection. The completion of earlier
        // operations wakes those that wait for a fence.
        let tries = |endpoint: &Rc<EndpointState>| !endpoint.waits_for_event();
        settles || self.wiring.has_waiting() || self.busy.borrow().iter().any(tries)
    }

    /// Reports, once per worker, that the context's progress thread has stopped.
    pub(crate) fn hear_of_service(&self) -> Result<(), Error> {
        self.shared.core.check_service().or_else(|error| {
            match self.heard_of_service.replace(true) {
                true => Ok(()),
                false => Err(error),
            }
        })
    }

    /// Makes a wake-up of another thread end this worker's waits.
    pub(crate) fn watch(&self, wakeup: &crate::sys::Wakeup) -> Result<(), Error> {
        self.poller.add(wakeup.as_raw_fd())
    }

    pub(super) fn has_completed(&self) -> bool {
        self.shared.ops.borrow().has_completed()
    }

    /// Makes progress, and sleeps if there were no events. `for_completed`: the call does not sleep while tracked completions are
    /// waiting. A call that waits for another event sleeps in spite of these completions.
    pub(super) fn sleep(
        self: &Rc<Self>,
        timeout: Option<Duration>,
        for_completed: bool,
    ) -> Result<Waited, Error> {
        self.shared.check_process("a worker")?;
        self.shared.check_no_handler("a wait")?;
        self.shared.entrance.note_thread();
        self.shown.publisher.awakes(); // the application may have armed the worker
        self.look_at_all();
        if self.progress() > 0 {
            return Ok(Waited::Moved);
        }
        if for_completed && self.has_completed() {
            return Ok(Waited::Moved);
        }
        // A worker that must not sleep has work, which the progress call below handles.
        let mut roused = true;
        if !(for_completed && self.woken.get()) && self.arm(None)? {
            roused = self.wait_for_events(timeout)?;
        }
        // The signal is read even if another reason prevented the sleep.
        let _ = self.hear_signal();
        Ok(match (self.progress() > 0, roused) {
            (true, _) => Waited::Moved,
            (false, true) => Waited::Roused,
            (false, false) => Waited::TimeIsUp,
        })
    }

    /// Waits for an operation of this worker and returns its value.
    #[inline]
    pub(super) fn finish(self: &Rc<Self>, request: Request) -> Result<u64, CompletionError> {
        let id = request.id;
        loop {
            let take = || self.shared.ops.borrow_mut().take(id);
            let found = self.wait_for(None, true, take).map_err(CompletionError::Pending)?;
            if let Some(result) = found {
                request.end();
                return Ok(result?);
            }
        }
    }

    /// Makes progress until `look` returns a value; `None` if the timeout expires. `by_event`: only an event of this worker can
    /// make `look` succeed.
    #[inline]
    pub(super) fn wait_for<T>(
        self: &Rc<Self>,
        timeout: Option<Duration>,
        by_event: bool,
        mut look: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, Error> {
        // This number of polls is usually sufficient for a peer that is running and answers immediately.
        for _ in 0..self.backoff.first_looks(timeout) {
            if let Some(found) = look() {
                return Ok(Some(found));
            }
            let _ = self.progress();
        }
        self.wait_longer(timeout, by_event, look)
    }

    #[cold]
    #[inline(never)]
    fn wait_longer<T>(
        self: &Rc<Self>,
        timeout: Option<Duration>,
        by_event: bool,
        mut look: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let mut wait = Wait::new(timeout, by_event);
        let outcome = loop {
            if let Some(found) = look() {
                break Ok(Some(found));
            }
            let moved = self.progress() > 0;
            if wait.goes_on(moved) {
                continue;
            }
            match self.back_off(&mut wait) {
                Ok(true) => {}
                Ok(false) => break Ok(look()),
                Err(error) => break Err(error),
            }
        };
        self.show_return();
        outcome
    }

    /// Spins, yields or sleeps, depending on the time waited; returns `false` if the timeout has expired.
    #[cold]
    fn back_off(self: &Rc<Self>, wait: &mut Wait) -> Result<bool, Error> {
        // A forked child receives no events.
        self.shared.check_process("a worker")?;
        match self.backoff.step(wait, Instant::now()) {
            Step::TimeIsUp => return Ok(false),
            Step::Look => std::hint::spin_loop(),
            Step::Yield { poll_slow } => {
                let before = Instant::now();
                std::thread::yield_now();
                self.backoff.yield_took(before.elapsed());
                self.backoff.yielded(crate::sys::switches);
                if poll_slow {
                    self.look_at_all();
                }
            }
            Step::Sleep(nap) => {
                self.shown.publisher.waits();
                let moved = self.rest(nap)?;
                wait.note(moved);
                if !moved {
                    // The worker may not have slept: a peer that copies for this process reports the end in memory alone, and may
                    // need this processor.
                    std::thread::yield_now();
                }
            }
        }
        Ok(true)
    }

    /// Makes progress, and sleeps for at most `most` if there were no events. If a module has no descriptor, the sleep is a short
    /// nap.
    pub(crate) fn rest(self: &Rc<Self>, most: Duration) -> Result<bool, Error> {
        match self.sleep(Some(most), false) {
            Err(error) if error.status() == Status::Unsupported => {
                std::thread::sleep(most.min(POLL_NAP));
                Ok(false)
            }
            waited => Ok(waited?.has_moved()),
        }
    }
}
