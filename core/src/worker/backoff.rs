//! The phases of a wait without events: it spins, then yields its processor, then sleeps.
//!
//! Spinning has the lowest latency if every process has its own processor. If processes share a processor, a spinning process can
//! block the process for which it waits, until the kernel preempts it milliseconds later. A yield usually transfers the processor
//! within a microsecond, and costs little if no other process wants it. Sleeping is for long waits: the sleeper has to be woken,
//! which costs both sides some microseconds.
//!
//! Unless it is configured, the duration of spinning depends on the number of processes of the job on this host ([`Spin`]). The
//! kernel's count of context switches corrects the duration. Without the correction, processes pinned to one processor each would
//! appear to share processors, and processes outside the job would not count.

use crate::setup::Spin;
use std::cell::Cell;
use std::thread::{ThreadId, current};
use std::time::{Duration, Instant};

/// The number of polls between two reads of the clock while spinning: about a microsecond.
const LOOKS: u32 = 64;
/// The number of polls between two yields if no other process wants the processor.
const LOOKS_ALONE: u32 = 16;
/// The maximum time for which a wait yields before it sleeps.
const YIELDING: Duration = Duration::from_millis(1);
/// The duration from which a yield is long: other processes probably ran than the one for which the wait waits. Then up to
/// `WITHOUT_YIELDS` yields of waits for events are replaced by sleeps: a woken process usually runs sooner than a yielding one.
const LONG_YIELD: Duration = Duration::from_micros(500);
const WITHOUT_YIELDS: u32 = 64;
/// The number of yields between two polls of interfaces that need a system call.
const YIELDS_UNTIL_SLOW: u32 = 4;
/// The samples of context switches. `SAMPLE`: the number of yields between two reads of the kernel's context-switch count.
/// `SHARED`: the number of switches in a sample from which the processor counts as shared. `ALONE`: the number of consecutive
/// samples without a switch after which the processor counts as unshared.
const SAMPLE: u32 = 16;
const SHARED: u64 = 8;
const ALONE: u32 = 8;
/// The length of a nap while a change without an event is possible: the time since the last event divided by `NAP_PART`, within
/// these bounds.
const NAP_PART: u32 = 8;
const NAP_LEAST: Duration = Duration::from_micros(50);
const NAP_MOST: Duration = Duration::from_millis(10);
/// The length of a sleep if only an event can end the wait. The remaining time of the wait shortens sleeps and naps.
const SLEEP: Duration = Duration::from_millis(100);

/// The state of a worker about its processor.
pub(crate) struct Backoff {
    spin: Spin,
    /// Whether other processes want the processor; `None` until yields have shown it.
    shared: Cell<Option<bool>>,
    /// The current number of polls before the first read of the clock.
    first_looks: Cell<u32>,
    yields: Cell<u32>,
    /// The last context-switch count, and the thread to which it belongs.
    switches: Cell<Option<(ThreadId, u64)>>,
    samples_alone: Cell<u32>,
    /// The number of further waits that sleep instead of yielding.
    without_yields: Cell<u32>,
}

/// The state of one wait.
pub(crate) struct Wait {
    timeout: Option<Duration>,
    /// Whether only an event can make the wait's condition true, and not, for example, a peer's store into memory.
    by_event: bool,
    looks: u32,
    /// Whether an event has occurred since the clock was read.
    moved: bool,
    begun: Option<Instant>,
    quiet: Option<Instant>,
    yields: u32,
}

/// The next step after polls without an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Look,
    Yield { poll_slow: bool },
    Sleep(Duration),
    TimeIsUp,
}

impl Backoff {
    pub(crate) fn new(spin: Spin) -> Backoff {
        let backoff = Backoff {
            spin,
            shared: Cell::new(None),
            first_looks: Cell::new(LOOKS),
            yields: Cell::new(0),
            switches: Cell::new(None),
            samples_alone: Cell::new(0),
            without_yields: Cell::new(0),
        };
        let _ = backoff.budget();
        backoff
    }

    /// Returns the number of polls before the first step.
    #[inline]
    pub(crate) fn first_looks(&self, timeout: Option<Duration>) -> u32 {
        if timeout == Some(Duration::ZERO) { 1 } else { self.first_looks.get() }
    }

    /// Returns the current duration of spinning.
    pub(crate) fn budget(&self) -> Duration {
        let budget = self.spin.budget(self.shared.get());
        self.first_looks.set(if budget.is_zero() { 1 } else { LOOKS });
        budget
    }

    /// Returns the next step.
    pub(crate) fn step(&self, wait: &mut Wait, now: Instant) -> Step {
        let begun = *wait.begun.get_or_insert(now);
        let left = wait.timeout.map(|t| t.saturating_sub(now.saturating_duration_since(begun)));
        if left.is_some_and(|left| left.is_zero()) {
            return Step::TimeIsUp;
        }
        let budget = self.budget();
        wait.looks = self.first_looks.get();
        if std::mem::take(&mut wait.moved) {
            wait.quiet = None;
            return Step::Look;
        }
        let quiet = *wait.quiet.get_or_insert(now);
        let waited = now.saturating_duration_since(quiet);
        if waited < budget {
            return Step::Look;
        }
        if waited < budget.saturating_add(YIELDING) && !self.sleeps_instead(wait) {
            wait.looks = if self.shared.get() == Some(false) { LOOKS_ALONE } else { 1 };
            wait.yields = wait.yields.wrapping_add(1);
            return Step::Yield { poll_slow: wait.yields % YIELDS_UNTIL_SLOW == 0 };
        }
        let nap = match wait.by_event {
            true => SLEEP,
            false => (waited / NAP_PART).clamp(NAP_LEAST, NAP_MOST),
        };
        wait.looks = 1;
        Step::Sleep(left.map_or(nap, |left| left.min(nap)))
    }

    /// Records the duration of a yield.
    pub(crate) fn yield_took(&self, time: Duration) {
        if time >= LONG_YIELD {
            self.without_yields.set(WITHOUT_YIELDS);
        }
    }

    /// Checks whether this wait sleeps instead of yielding.
    fn sleeps_instead(&self, wait: &Wait) -> bool {
        let left = self.without_yields.get();
        let leaves = wait.by_event && left > 0;
        if leaves {
            self.without_yields.set(left - 1);
        }
        leaves
    }

    /// Records the end of a yield. `switches` returns this thread's number of context switches so far.
    pub(crate) fn yielded(&self, switches: impl FnOnce() -> u64) {
        let yields = self.yields.get() + 1;
        self.yields.set(yields % SAMPLE);
        if yields < SAMPLE {
            return;
        }
        let (thread, now) = (current().id(), switches());
        let before = self.switches.replace(Some((thread, now)));
        let Some((_, before)) = before.filter(|(before, _)| *before == thread) else { return };
        match now.saturating_sub(before) {
            0 => {
                self.samples_alone.set(self.samples_alone.get().saturating_add(1));
                if self.samples_alone.get() >= ALONE {
                    self.shared.set(Some(false));
                }
            }
            taken => {
                self.samples_alone.set(0);
                if taken >= SHARED {
                    self.shared.set(Some(true));
                }
            }
        }
    }
}

impl Wait {
    pub(crate) fn new(timeout: Option<Duration>, by_event: bool) -> Wait {
        Wait { timeout, by_event, looks: 1, moved: false, begun: None, quiet: None, yields: 0 }
    }

    /// Records whether an event has occurred.
    pub(crate) fn note(&mut self, moved: bool) {
        self.moved |= moved;
    }

    /// Records a poll, and whether an event has occurred. Returns whether to poll again immediately.
    #[inline]
    pub(crate) fn goes_on(&mut self, moved: bool) -> bool {
        self.note(moved);
        self.looks -= 1;
        self.looks > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    fn backoff(processes: usize, processors: usize) -> Backoff {
        Backoff::new(Spin::for_tests(processes, processors, false))
    }

    /// Returns the steps of a wait without events, one microsecond apart, without repetitions.
    fn steps(backoff: &Backoff, wait: &mut Wait, micros: u32) -> Vec<Step> {
        let start = Instant::now();
        let mut steps: Vec<Step> =
            (0..micros).map(|n| backoff.step(wait, start + US * n)).collect();
        steps.dedup_by_key(|step| std::mem::discriminant(step));
        steps
    }

    #[test]
    fn a_yield_that_took_long_makes_the_next_waits_for_events_sleep() {
        let backoff = backoff(2, 1);
        let first = |by_event| backoff.step(&mut Wait::new(None, by_event), Instant::now());
        let yields = |step| matches!(step, Step::Yield { .. });
        backoff.yield_took(LONG_YIELD - US);
        assert!(yields(first(true)));
        backoff.yield_took(LONG_YIELD);
        for _ in 0..WITHOUT_YIELDS {
            assert!(yields(first(false)), "a peer's store makes no event");
            assert_eq!(first(true), Step::Sleep(SLEEP));
        }
        assert!(yields(first(true)), "it is tried again");
    }

    #[test]
    fn with_a_processor_each_a_wait_spins_yields_and_sleeps() {
        let backoff = backoff(2, 2);
        let mut wait = Wait::new(None, true);
        assert_eq!(backoff.first_looks(None), LOOKS);
        let steps = steps(&backoff, &mut wait, 2000);
        assert!(
            matches!(steps[..], [Step::Look, Step::Yield { .. }, Step::Sleep(SLEEP)]),
            "{steps:?}"
        );
    }

    #[test]
    fn with_more_processes_than_processors_a_wait_yields_at_once() {
        let backoff = backoff(16, 2);
        assert_eq!(backoff.budget(), Duration::ZERO);
        let mut wait = Wait::new(None, true);
        assert_eq!(backoff.first_looks(None), 1);
        let steps = steps(&backoff, &mut wait, 2000);
        assert!(matches!(steps[..], [Step::Yield { .. }, Step::Sleep(SLEEP)]), "{steps:?}");
    }

    #[test]
    fn nap_without_event_is_a_fraction_of_the_time_waited() {
        let backoff = backoff(1, 2);
        let mut wait = Wait::new(None, false);
        let start = Instant::now();
        let _ = backoff.step(&mut wait, start);
        for (waited, nap) in [(2_000, 250), (40_000, 5_000), (10_000_000, 10_000)] {
            assert_eq!(backoff.step(&mut wait, start + US * waited), Step::Sleep(US * nap));
        }
    }

    #[test]
    fn event_restarts_the_wait_but_not_its_timeout() {
        let backoff = backoff(1, 2);
        let mut wait = Wait::new(Some(US * 5000), true);
        let start = Instant::now();
        let _ = backoff.step(&mut wait, start);
        assert!(matches!(backoff.step(&mut wait, start + US * 3000), Step::Sleep(_)));
        let _ = wait.goes_on(true);
        assert_eq!(backoff.step(&mut wait, start + US * 3001), Step::Look);
        assert_eq!(backoff.step(&mut wait, start + US * 3002), Step::Look);
        // The wait times out regardless of the number of events.
        wait.looks = 1;
        let _ = wait.goes_on(true);
        assert_eq!(backoff.step(&mut wait, start + US * 5000), Step::TimeIsUp);
    }

    #[test]
    fn a_sleep_is_no_longer_than_the_time_that_is_left() {
        let backoff = backoff(1, 2);
        let mut wait = Wait::new(Some(US * 3000), true);
        let start = Instant::now();
        let _ = backoff.step(&mut wait, start);
        assert_eq!(backoff.step(&mut wait, start + US * 2900), Step::Sleep(US * 100));
    }

    /// Simulates `count` yields with `each` switches in each of them.
    fn yields(backoff: &Backoff, count: u32, handed_over: &mut u64, each: u64) {
        for _ in 0..count {
            *handed_over += each;
            backoff.yielded(|| *handed_over);
        }
    }

    #[test]
    fn worker_on_shared_processor_stops_spinning_and_resumes() {
        let (backoff, mut handed_over) = (backoff(1, 2), 0);
        assert!(!backoff.budget().is_zero());
        yields(&backoff, 2 * SAMPLE, &mut handed_over, 1);
        assert!(backoff.budget().is_zero());
        yields(&backoff, (ALONE + 1) * SAMPLE, &mut handed_over, 0);
        assert!(!backoff.budget().is_zero());
    }

    #[test]
    fn context_switches_of_previous_thread_are_not_counted() {
        let mut backoff = backoff(1, 2);
        for switches in [1_000, 2_000, 3_000] {
            let there = std::thread::spawn(move || {
                yields(&backoff, SAMPLE, &mut { switches }, 0);
                backoff
            });
            backoff = there.join().unwrap();
            assert!(!backoff.budget().is_zero());
        }
    }

    #[test]
    fn one_look_at_somebody_else_begins_the_time_alone_anew() {
        let (backoff, mut handed_over) = (backoff(2, 1), 0);
        yields(&backoff, (ALONE - 1) * SAMPLE, &mut handed_over, 0);
        handed_over += 1;
        yields(&backoff, ALONE * SAMPLE, &mut handed_over, 0);
        assert!(backoff.budget().is_zero(), "it was seen only just now");
        yields(&backoff, 2 * SAMPLE, &mut handed_over, 0);
        assert!(!backoff.budget().is_zero());
    }

    #[test]
    fn worker_pinned_to_unshared_processor_spins() {
        let (backoff, mut handed_over) = (backoff(2, 1), 0);
        assert!(backoff.budget().is_zero());
        yields(&backoff, (ALONE + 1) * SAMPLE, &mut handed_over, 0);
        assert!(!backoff.budget().is_zero());
    }

    #[test]
    fn a_quota_is_not_spent_on_spinning_whatever_yields_show() {
        let backoff = Backoff::new(Spin::for_tests(16, 2, true));
        yields(&backoff, (ALONE + 1) * SAMPLE, &mut 0, 0);
        assert!(backoff.budget().is_zero());
    }

    #[test]
    fn each_part_of_a_wait_ends_at_its_time_and_not_before() {
        let backoff = backoff(1, 2);
        let budget = backoff.budget();
        let ns = Duration::from_nanos(1);
        let mut wait = Wait::new(None, true);
        let start = Instant::now();
        let mut at = |after: Duration| {
            let step = backoff.step(&mut wait, start + after);
            (step, wait.looks)
        };
        assert_eq!(at(Duration::ZERO), (Step::Look, LOOKS));
        assert_eq!(at(budget - ns), (Step::Look, LOOKS));
        assert_eq!(at(budget), (Step::Yield { poll_slow: false }, 1));
        // Every fourth yield also polls the interfaces that need a system call.
        let last = budget + YIELDING - ns;
        let slow: Vec<Step> = (0..7).map(|_| at(last).0).collect();
        let yields = [false, false, true, false, false, false, true];
        assert_eq!(slow, yields.map(|poll_slow| Step::Yield { poll_slow }));
        assert_eq!(at(budget + YIELDING), (Step::Sleep(SLEEP), 1));
    }

    #[test]
    fn worker_alone_polls_more_often_between_yields() {
        let backoff = backoff(2, 1);
        yields(&backoff, (ALONE + 1) * SAMPLE, &mut 0, 0);
        let mut wait = Wait::new(None, true);
        let start = Instant::now();
        let _ = backoff.step(&mut wait, start);
        let step = backoff.step(&mut wait, start + backoff.budget());
        assert_eq!((step, wait.looks), (Step::Yield { poll_slow: false }, LOOKS_ALONE));
        let followed = (0..LOOKS_ALONE).filter(|_| wait.goes_on(false)).count();
        assert_eq!(followed, LOOKS_ALONE as usize - 1);
    }

    #[test]
    fn wait_with_zero_timeout_polls_once() {
        let backoff = backoff(1, 2);
        assert_eq!(backoff.first_looks(Some(Duration::ZERO)), 1);
        assert_eq!(backoff.first_looks(Some(US)), LOOKS);
        let mut wait = Wait::new(Some(Duration::ZERO), true);
        assert_eq!(backoff.step(&mut wait, Instant::now()), Step::TimeIsUp);
    }

    /// Tests that the count is read after `SAMPLE` yields, and that `SHARED` switches decide.
    #[test]
    fn yields_are_judged_by_samples() {
        let asked = Cell::new(0);
        let backoff = backoff(1, 2);
        for _ in 0..2 * SAMPLE - 1 {
            backoff.yielded(|| {
                asked.set(asked.get() + 1);
                0
            });
        }
        assert_eq!(asked.get(), 1);
        let after = |taken: u64| {
            let backoff = self::backoff(1, 2);
            yields(&backoff, SAMPLE, &mut 0, 0);
            yields(&backoff, SAMPLE, &mut { taken }, 0);
            backoff.shared.get()
        };
        assert_eq!(after(SHARED - 1), None);
        assert_eq!(after(SHARED), Some(true));
        let alone = |samples: u32| {
            let backoff = self::backoff(2, 1);
            yields(&backoff, SAMPLE, &mut 0, 0);
            yields(&backoff, samples * SAMPLE, &mut 0, 0);
            backoff.shared.get()
        };
        assert_eq!((alone(ALONE - 1), alone(ALONE)), (None, Some(false)));
    }
}
