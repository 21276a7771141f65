//! Waiting for an operation, an event or a condition: by spinning, yielding, or asleep.

use super::backoff::{Step, Wait};
use super::threads::Signal;
use super::{Inner, Worker};
use crate::endpoint::Inner as EndpointInner;
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

/// While work is queued, or a key settles, that no descriptor announces, or none is watched, a sleep is no longer than this, by the
/// worker's timer.
const QUEUED_NAP: Duration = Duration::from_millis(1);

/// Between two looks at a module that has no descriptor to sleep on.
pub(super) const POLL_NAP: Duration = Duration::from_micros(50);

/// Between two tries to give an answer for which there was no way.
const OWED_NAP: Duration = Duration::from_millis(10);

/// How [`Worker::wait`] or [`WaitSet::wait`](crate::WaitSet::wait) has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// Something happened, or has ended and was not taken, or another thread has woken the worker.
    Moved,
    /// Nothing has happened, and the time is not up: what ended the sleep is the library's own (a timer, a connection that forms, an
    /// operation that is tried again), or a signal. Look at what you wait for, and wait again.
    Roused,
    /// The time is up, and nothing has happened.
    TimeIsUp,
}

impl Waited {
    /// Whether something happened.
    #[must_use]
    pub fn has_moved(self) -> bool {
        self == Waited::Moved
    }
}

impl Worker {
    /// A descriptor for poll(2) or epoll: readable when there may be something to do, provided that [`Worker::arm`] said `true` before.
    ///
    /// It stays readable until the worker has made progress: it is level-triggered. With `EPOLLET` make progress until there is none
    /// before the next `arm`. It is one and the same for the worker's life, and belongs to the library: nobody reads from it or
    /// closes it. Time limits of the library's own make it readable as well, such as the one after which a silent peer has
    /// failed: a sleep on it needs no limit for their sake. `capi/examples/event_loop.c` has it beside a socket.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.inner.poller.as_raw_fd()
    }

    /// Prepares for one sleep on [`Worker::fd`]: `true` when that is safe, `false` when there is something to do right now. Call it
    /// before each sleep, behind the last progress.
    ///
    /// # Errors
    /// When an interface cannot be waited for; once, when the context's progress thread has stopped.
    pub fn arm(&self) -> Result<bool, Error> {
        self.inner.arm_to_wait()
    }

    /// Makes progress; when there was none to make, sleeps until there may be some, at most `timeout`, and
    /// makes progress again. [`Waited::Moved`]: something happened, or something that is [tracked](Worker::track) has ended and was not taken,
    /// or another thread has [woken](Worker::waker) the worker. It may return sooner although nothing has happened: only
    /// [`Waited::TimeIsUp`] says that the time is up. [`Worker::wait_until`] waits for a condition.
    ///
    /// # Errors
    /// `Busy` inside a handler, or when the system refuses to wait; once, when the context's progress thread has stopped.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Waited, Error> {
        self.inner.hear_of_service()?;
        let waited = self.inner.sleep(timeout, true)?;
        let is_told = self.inner.woken.take() | self.inner.has_completed();
        Ok(if is_told { Waited::Moved } else { waited })
    }

    /// Makes progress until `condition` holds; `false` when the time is up. The condition is looked at between progress
    /// calls, on this thread, and may look at anything: what handlers have noted, operations, memory that peers write to. It is no handler: it
    /// may post, track, and take what has ended; only what waits may not stand in it.
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
    /// It spins for `TIELINE_SPIN`, then yields its processor for a millisecond (not where others kept it for long), then sleeps; whatever happens begins
    /// that anew. Events of the worker's end the sleep, and so does a [`Waker`](crate::Waker). What makes no event (a
    /// peer's put or atomic, another thread that does not wake) is noticed by naps of an eighth of the time waited, at most 10 ms. A condition that panics loses nothing.
    ///
    /// # Errors
    /// As [`Worker::wait`].
    #[inline]
    pub fn wait_until(
        &self,
        mut condition: impl FnMut() -> bool,
        timeout: Option<Duration>,
    ) -> Result<bool, Error> {
        Ok(self.wait_for(|| condition().then_some(()), timeout)?.is_some())
    }

    /// The same for what brings a value: makes progress until `look` finds something, and returns it; `None` when the time is up.
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
    /// As [`Worker::wait`].
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

    /// Makes progress until an aligned word of 64 bits of a region holds what it is to hold, and returns it; `None` when the time is up.
    /// Peers write it by puts of 8 bytes, better by atomics, and what they had put before and ordered by a fence is there with it.
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
    /// It spins, yields and sleeps as [`wait_until`](Worker::wait_until). While it spins or yields it sees every write at once. What ends the
    /// sleep depends on the lane: what comes by this worker's descriptors does (`tcp`, messages that emulate), and so does another thread
    /// of this process that uses a [`Waker`](crate::Waker). A store of a peer's (`shm`), a device's write (`verbs`) and what a progress
    /// thread serves tell nobody: it is seen at the end of a nap, an eighth of the time waited and 10 ms at most. What has to wake
    /// at once over every lane is told: [`Endpoint::put_notify`](crate::Endpoint::put_notify).
    ///
    /// # Errors
    /// As [`Worker::wait`]; `OutOfRange` and `Misaligned` for a word that the region has not.
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

    /// Closes a region, making progress until nothing uses it any more or the time is up: [`Region::close`], for who
    /// would rather wait. Operations of other workers need their progress.
    ///
    /// # Errors
    /// As [`Region::close`]; inside a handler it does not wait.
    pub fn close_region(&self, region: Region, timeout: Duration) -> Result<(), NotClosed> {
        let not = match region.close() {
            Err(not)
                if not.error.status() == Status::Busy && !self.inner.shared.in_progress.get() =>
            {
                not
            }
            ended => return ended,
        };
        // Neither a peer that leaves nor a handle that is dropped makes an event.
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
            (_, None) => Ok(()), // a look has closed it
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

/// Sleeps. Who looks from outside is to see what it was that a long sleep began with: where that could not be shown before
/// (`shown_in`: it can be so much later), the sleep is cut in two.
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

impl Inner {
    /// Prepares a sleep that whatever the application is to be told of keeps it from.
    pub(super) fn arm_to_wait(&self) -> Result<bool, Error> {
        self.shared.core.check_process("a worker")?;
        self.hear_of_service()?;
        if self.has_completed() {
            return Ok(false);
        }
        let armed = self.arm(self.show_soon())?;
        let armed = !self.woken.take() && armed;
        if armed {
            // The application sleeps now, as far as is known.
            let _ = self.show_sleep(true);
        }
        Ok(armed)
    }

    /// The next call of progress looks at everything.
    pub(super) fn look_at_all(&self) {
        self.slow_in.set(0);
        self.behind_tasks.set(0);
    }

    /// `soon`: it is to be called again by then.
    pub(super) fn arm(&self, soon: Option<Duration>) -> Result<bool, Error> {
        self.shared.core.check_process("a worker")?;
        // Whatever ends the sleep is to be looked at.
        self.look_at_all();
        let watched = self.watched.begin(&self.poller, &self.shared.interfaces);
        for (index, slot) in self.shared.interfaces.iter().enumerate() {
            if slot.attr.caps & caps::NEEDS_POLL == 0 || slot.out_of_use.borrow().is_some() {
                continue;
            }
            let armed = match slot.interface.arm() {
                // The others go on.
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
                // What waits for it hears of it in the next call of progress.
                Err(Status::ProviderFailed) if slot.broke.get() => Armed::Sleep,
                Err(Status::ProviderFailed) => Armed::Ready,
                outcome => armed(outcome, &slot.scheme)?,
            };
            if armed == Armed::Ready {
                return Ok(false);
            }
        }
        // What a handler left when it panicked, or is to be told, lies in memory that no descriptor speaks of.
        let untold = self.left_over.is_there() || self.is_to_be_told();
        let goes_on = self.turn_was_over.get() || self.shares_copies();
        if untold || goes_on || self.has_tasks() || self.shared.ops.borrow().has_due() {
            return Ok(false);
        }
        let owed = (!self.owed.is_empty()).then_some(OWED_NAP);
        let queued = self.is_to_look().then_some(QUEUED_NAP);
        let unwatched = (!watched).then_some(QUEUED_NAP);
        let (forms, serves) = (self.wiring.next_timer(), self.next_service_timer());
        let timers = [forms, serves, owed, queued, unwatched, soon];
        match timers.into_iter().flatten().min() {
            Some(Duration::ZERO) => return Ok(false),
            next => self.timer.set(next)?,
        }
        Ok(self.signal.get().is_none_or(Signal::may_sleep) || !self.hear_signal())
    }

    /// Looks whether another thread has woken this worker, and notes it for the next `wait`.
    pub(super) fn hear_signal(&self) -> bool {
        let woken = self.signal.get().is_some_and(Signal::was_woken);
        self.woken.set(self.woken.get() || woken);
        woken
    }

    /// What other threads end a sleep by.
    pub(super) fn signal(&self) -> Result<&Signal, Error> {
        if self.signal.get().is_none() {
            let signal = Signal::new()?;
            self.poller.add(signal.as_raw_fd())?;
            let _ = self.signal.set(signal);
        }
        self.signal.get().ok_or_else(|| Status::Invalid.into())
    }

    /// Whether an event has ended the sleep, and not the time.
    fn wait_for_events(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        let shown_in = self.show_sleep(false);
        let slept = sleep_on(&self.poller, timeout, shown_in, || self.show_longer_sleep());
        self.show_awake();
        slept
    }

    /// Whether something may go on soon without any event: what found no room, and what a provider fetches for a key.
    fn is_to_look(&self) -> bool {
        let settles = self.shared.settling.replace(false);
        // What waits for a connection that forms is woken by a wire-up transport's descriptor or the timer, and what waits behind a
        // fence by what ends the operations before it.
        let tries = |endpoint: &Rc<EndpointInner>| !endpoint.waits_for_event();
        settles || self.wiring.has_waiting() || self.busy.borrow().iter().any(tries)
    }

    /// Says once that the context's progress thread has stopped.
    pub(super) fn hear_of_service(&self) -> Result<(), Error> {
        self.shared.core.check_service().or_else(|error| {
            match self.heard_of_service.replace(true) {
                true => Ok(()),
                false => Err(error),
            }
        })
    }

    /// Lets another thread end a wait.
    pub(crate) fn watch(&self, wakeup: &crate::sys::Wakeup) -> Result<(), Error> {
        self.poller.add(wakeup.as_raw_fd())
    }

    pub(super) fn has_completed(&self) -> bool {
        self.shared.ops.borrow().has_completed()
    }

    /// Makes progress, and sleeps where there was none. `for_completed`: not while the list of the completed has something; who waits
    /// for something else sleeps on while that lies untaken.
    pub(super) fn sleep(
        self: &Rc<Self>,
        timeout: Option<Duration>,
        for_completed: bool,
    ) -> Result<Waited, Error> {
        self.shared.core.check_process("a worker")?;
        self.shared.check_no_handler("a wait")?;
        self.note_thread();
        self.show_awake(); // it may have been armed
        self.look_at_all();
        if self.progress() > 0 {
            return Ok(Waited::Moved);
        }
        if for_completed && self.has_completed() {
            return Ok(Waited::Moved);
        }
        // What keeps it from sleeping is to be looked at.
        let mut roused = true;
        if !(for_completed && self.woken.get()) && self.arm(None)? {
            roused = self.wait_for_events(timeout)?;
        }
        // Also where something else kept it awake.
        let _ = self.hear_signal();
        Ok(match (self.progress() > 0, roused) {
            (true, _) => Waited::Moved,
            (false, true) => Waited::Roused,
            (false, false) => Waited::TimeIsUp,
        })
    }

    #[inline]
    pub(super) fn finish(self: &Rc<Self>, request: &Request) -> Result<u64, CompletionError> {
        self.check_owner(&request.shared).map_err(CompletionError::Pending)?;
        loop {
            let take = || self.shared.ops.borrow_mut().result(request.id);
            let found = self.wait_for(None, true, take).map_err(CompletionError::Pending)?;
            if let Some(result) = found {
                return Ok(result?);
            }
        }
    }

    /// Makes progress until `look` finds something; none when the time is up. `by_event`: nothing but an event of this
    /// worker's brings it about.
    #[inline]
    pub(super) fn wait_for<T>(
        self: &Rc<Self>,
        timeout: Option<Duration>,
        by_event: bool,
        mut look: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, Error> {
        // What a running peer answers at once needs no more than this.
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

    /// Gives the processor away, or not yet; `false` when the time is up.
    #[cold]
    fn back_off(self: &Rc<Self>, wait: &mut Wait) -> Result<bool, Error> {
        // In a forked child there is nothing to come.
        self.shared.core.check_process("a worker")?;
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
                self.show_wait();
                let moved = self.rest(nap)?;
                wait.note(moved);
                if !moved {
                    // It may not have slept: who copies for us says so in memory alone, and may need this processor.
                    std::thread::yield_now();
                }
            }
        }
        Ok(true)
    }

    /// Sleeps for a while inside a call that waits. A module that cannot wake anybody is looked at again and again, with
    /// naps in between.
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
