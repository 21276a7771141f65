//! The order of polls: which interfaces a progress call polls.
//!
//! Every call polls the active interfaces that need no system call, unless their watch words show that they have no event.
//!
//! Progress polls an interface that needs a system call in every call for a while after it had an event, and otherwise at
//! intervals. Each interface counts for itself, so one with events costs no polls of the others. While the interfaces without
//! system calls have events, only every eighth call polls an interface that needs one. The intervals are numbers of calls. For a
//! program with few calls, the first one ends after at most 64 calls, and the next ones have 8 or 16.

use super::rounds::{EACH, Rounds};
use crate::sys::coarse_clock;
use std::cell::Cell;
use std::time::Duration;
use tieline_plugin_api::abi::WATCH_CALLS;

/// The number of polls without an event after which an interface that needs a system call counts as quiet: about a millisecond.
pub(super) const HOT: u32 = 2048;
/// The number of progress calls between two polls of quiet interfaces that need a system call. The number grows from `FIRST_PAUSE`
/// to one of the others, so that the interfaces polled every time are not slowed down. `LAST_PAUSE` calls take some tens of
/// microseconds.
pub(super) const FIRST_PAUSE: u32 = 64;
const LAST_PAUSE: u32 = 1024;
const LAST_PAUSE_WITHOUT_CIRCUITS: u32 = 4096;
/// The time after which a poll is due although few progress calls were made: a program may call `progress` once in a millisecond.
const LATE: Duration = Duration::from_millis(10);
/// The maximum number of progress calls between two checks for tasks, if a `Remote` exists.
const TASK_PAUSE: u32 = 64;

/// The order of the polls of one worker.
pub(super) struct Schedule {
    /// The interfaces that need no system call for a poll: those that every progress call polls, and the idle ones.
    fast: Rounds,
    /// The only active interface of `fast`, or an impossible index.
    only: Cell<usize>,
    slow: Slow,
    /// The number of progress calls until the slow interfaces are polled or tasks are checked.
    slow_in: Cell<u32>,
    /// The number of progress calls between the next two polls of quiet slow interfaces.
    pause: Cell<u32>,
    /// The number of further progress calls, after the next check for tasks, until the slow interfaces are polled.
    behind_tasks: Cell<u32>,
}

/// The interfaces, besides the active ones, that a progress call polls.
pub(super) enum Others {
    None,
    /// The idle interfaces that need no system call.
    Resting,
    /// Also the interfaces that need a system call, and the connectors.
    Slow,
}

/// A poll of the interfaces that need a system call.
pub(super) struct SlowPoll {
    /// Whether the poll includes the interfaces that are not hot.
    all: bool,
    /// Whether the poll before it was long ago.
    was_late: bool,
}

impl Schedule {
    /// Makes the order of polls from the indices of the interfaces that need no system call, and of those that need one.
    pub(super) fn of(
        fast: impl IntoIterator<Item = usize>,
        slow: impl IntoIterator<Item = usize>,
    ) -> Schedule {
        Schedule {
            fast: Rounds::of(fast.into_iter()),
            only: Cell::new(usize::MAX),
            slow: Slow::of(slow),
            slow_in: Cell::new(0),
            pause: Cell::new(1),
            behind_tasks: Cell::new(0),
        }
    }

    /// Returns the number of progress calls until the slow interfaces are polled or tasks are checked.
    #[inline(always)] // inlined into `progress`
    pub(super) fn left(&self) -> u32 {
        self.slow_in.get()
    }

    /// Counts a progress call that needs no slow poll. `left` is the result of [`Schedule::left`].
    #[inline(always)] // inlined into `progress`
    pub(super) fn count(&self, left: u32) {
        self.slow_in.set(left - 1);
    }

    /// Checks whether it is the turn of the idle interfaces, and not of slow ones, at this number of calls before the next slow poll.
    pub(super) fn is_turn_of_idle(&self, left: u32) -> bool {
        left % EACH == 0 && left % WATCH_CALLS != 0
    }

    /// Returns the only active interface, or an impossible index.
    #[inline(always)] // inlined into `progress`
    pub(super) fn only(&self) -> usize {
        self.only.get()
    }

    /// The interfaces that every progress call polls.
    #[inline]
    pub(super) fn awake(&self) -> impl Iterator<Item = usize> {
        self.fast.awake().iter().map(Cell::get)
    }

    pub(super) fn resting(&self) -> impl Iterator<Item = usize> {
        self.fast.resting().iter().map(Cell::get)
    }

    #[inline]
    pub(super) fn all_are_awake(&self) -> bool {
        self.fast.all_are_awake()
    }

    /// Makes idle interfaces with events active again, by the counters that `quiet` returns for an index.
    pub(super) fn wake<'a>(&self, quiet: impl Fn(usize) -> &'a Cell<u32>) {
        self.fast.wake(quiet);
    }

    /// Lets interfaces without events become idle, by the counters that `quiet` returns for an index.
    pub(super) fn let_rest<'a>(&self, quiet: impl Fn(usize) -> &'a Cell<u32>) {
        self.fast.look(quiet);
    }

    /// Notes the only active interface after a change, and returns it.
    pub(super) fn note_only(&self) -> Option<usize> {
        let only = if let [only] = self.fast.awake() { Some(only.get()) } else { None };
        self.only.set(only.unwrap_or(usize::MAX));
        only
    }

    /// Makes the next progress call poll every interface.
    pub(super) fn all_are_due(&self) {
        self.end_pause();
        self.slow.all_are_due();
    }

    fn end_pause(&self) {
        self.slow_in.set(0);
        self.behind_tasks.set(0);
    }

    /// Returns the interfaces whose turn comes at this number of calls before the next slow poll, and counts the call. `busy`: this
    /// call has dispatched events.
    #[inline(always)] // inlined into `poll_others`
    pub(super) fn others(&self, left: u32, busy: bool) -> Others {
        if left == 0 {
            return if busy && self.slow.leaves_out() { Others::None } else { Others::Slow };
        }
        if left % WATCH_CALLS == 0 && self.slow.is_late(coarse_clock()) {
            // The pause is over: the poll may leave interfaces hot.
            self.end_pause();
            return Others::Slow;
        }
        self.count(left);
        Others::Resting
    }

    /// Checks whether a call was due for the tasks of other threads alone. Then the rest of the pause begins. `often`: a `Remote`
    /// exists.
    pub(super) fn was_for_tasks(&self, often: bool) -> bool {
        let calls = self.behind_tasks.get();
        if calls > 0 {
            self.pause_for(calls, often);
        }
        calls > 0
    }

    /// Begins a poll of the interfaces that need a system call.
    pub(super) fn begin(&self) -> SlowPoll {
        let now = coarse_clock();
        let was_late = self.slow.is_late(now);
        SlowPoll { all: self.slow.begin(now), was_late }
    }

    /// Polls the interfaces whose turn it is, and returns the number of events.
    #[inline(always)]
    pub(super) fn poll_slow(&self, poll: &SlowPoll, mut by: impl FnMut(usize) -> usize) -> usize {
        let due = self.slow.interfaces.iter().filter(|(_, heat)| poll.all || heat.is_hot());
        due.map(|(index, heat)| heat.note(by(*index))).sum()
    }

    /// Polls the connectors if it is their turn, and returns the number of events.
    #[inline(always)]
    pub(super) fn poll_connectors(&self, poll: &SlowPoll, by: impl FnOnce() -> usize) -> usize {
        let heat = &self.slow.connectors;
        if poll.all || heat.is_hot() { heat.note(by()) } else { 0 }
    }

    /// Makes every interface hot: the operations of a task, and the first messages of a new connection, may come over any of them.
    pub(super) fn all_are_hot(&self) {
        self.slow.heats().for_each(Heat::begin);
    }

    /// Ends a poll of the interfaces that need a system call. Returns whether they are quiet; then a pause begins. `often`: a
    /// `Remote` exists.
    pub(super) fn end(
        &self,
        poll: &SlowPoll,
        had_events: bool,
        has_circuits: bool,
        often: bool,
    ) -> bool {
        if had_events {
            self.pause.set(FIRST_PAUSE);
            return false;
        }
        if self.slow.is_hot() || self.fast.is_empty() {
            return false;
        }
        let pause = if poll.was_late { EACH } else { self.pause.get() };
        self.pause_for(pause, often);
        let last = if has_circuits { LAST_PAUSE } else { LAST_PAUSE_WITHOUT_CIRCUITS };
        self.pause.set((pause * 2).min(last));
        self.slow.all_are_due();
        true
    }

    /// Sets the number of calls until the interfaces that need a system call are polled. If a `Remote` exists, tasks are checked at
    /// shorter intervals.
    fn pause_for(&self, calls: u32, often: bool) {
        let next = if often { calls.min(TASK_PAUSE) } else { calls };
        self.slow_in.set(next);
        self.behind_tasks.set(calls - next);
    }
}

#[cfg(test)]
impl Schedule {
    pub(super) fn slow_interfaces(&self) -> Vec<usize> {
        self.slow.interfaces.iter().map(|(index, _)| *index).collect()
    }

    /// Makes no poll late until the next one.
    pub(super) fn is_in_time(&self) {
        self.slow.polled_at.set(Duration::MAX);
    }

    pub(super) fn was_polled_long_ago(&self) {
        self.slow.polled_at.set(coarse_clock().saturating_sub(LATE));
    }

    /// Makes the next slow poll come after this number of calls.
    pub(super) fn set_left(&self, calls: u32) {
        self.slow_in.set(calls);
    }
}

/// The interfaces that need a system call for a poll, and the connectors.
struct Slow {
    /// The indices of the interfaces.
    interfaces: Vec<(usize, Heat)>,
    connectors: Heat,
    /// The number of polls of hot interfaces until all are polled.
    until_all: Cell<u32>,
    /// The number of further progress calls with events that may leave out the poll of hot interfaces.
    left_out: Cell<u32>,
    /// The time of the last poll, by the coarse clock.
    polled_at: Cell<Duration>,
    /// The time of the last poll of all interfaces.
    all_polled_at: Cell<Duration>,
}

/// The number of further polls without an event for which an interface is polled in every progress call.
#[derive(Default)]
struct Heat(Cell<u32>);

impl Heat {
    fn is_hot(&self) -> bool {
        self.0.get() > 0
    }

    fn begin(&self) {
        self.0.set(HOT);
    }

    /// Notes the number of events of a poll, and returns it.
    fn note(&self, events: usize) -> usize {
        match events {
            0 => self.0.set(self.0.get().saturating_sub(1)),
            _ => self.begin(),
        }
        events
    }
}

impl Slow {
    fn of(interfaces: impl IntoIterator<Item = usize>) -> Slow {
        Slow {
            interfaces: interfaces.into_iter().map(|index| (index, Heat::default())).collect(),
            connectors: Heat::default(),
            until_all: Cell::new(0),
            left_out: Cell::new(0),
            polled_at: Cell::default(),
            all_polled_at: Cell::default(),
        }
    }

    /// Checks whether the last poll was long ago.
    fn is_late(&self, now: Duration) -> bool {
        now.saturating_sub(self.polled_at.get()) >= LATE
    }

    /// Makes the next poll one of all interfaces.
    fn all_are_due(&self) {
        self.until_all.set(0);
        self.left_out.set(0);
    }

    fn heats(&self) -> impl Iterator<Item = &Heat> {
        self.interfaces.iter().map(|(_, heat)| heat).chain([&self.connectors])
    }

    fn is_hot(&self) -> bool {
        self.heats().any(Heat::is_hot)
    }

    /// Begins a poll, and returns whether it includes the interfaces that are not hot.
    fn begin(&self, now: Duration) -> bool {
        self.left_out.set(EACH - 1);
        self.polled_at.set(now);
        let until = self.until_all.get();
        let are_late = now.saturating_sub(self.all_polled_at.get()) >= LATE;
        let all = until == 0 || are_late || !self.is_hot();
        if all {
            self.all_polled_at.set(now);
        }
        self.until_all.set(if all { FIRST_PAUSE - 1 } else { until - 1 });
        all
    }

    /// Checks whether a progress call with events leaves out the poll of hot interfaces, and counts it.
    fn leaves_out(&self) -> bool {
        let left = self.left_out.get();
        self.left_out.set(left.saturating_sub(1));
        left > 0 && self.is_hot()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_with_events_is_polled_alone_and_all_at_intervals() {
        let (slow, now) = (Slow::of([3, 5]), LATE);
        assert!(slow.begin(now), "nothing is hot");
        assert_eq!(slow.interfaces[1].1.note(2), 2);
        slow.all_are_due();
        let all: Vec<u32> = (0..3 * FIRST_PAUSE).filter(|_| slow.begin(now)).collect();
        assert_eq!(all, [0, FIRST_PAUSE, 2 * FIRST_PAUSE]);
        // A program with few calls polls all of them after some time, in spite of the hot one.
        let polls = (0..FIRST_PAUSE).map(|poll| now + LATE / 4 * poll);
        let all: Vec<u32> =
            (0..).zip(polls).filter(|(_, at)| slow.begin(*at)).map(|(n, _)| n).collect();
        assert_eq!(all, Vec::from_iter((0..FIRST_PAUSE).step_by(4)));
        assert!(!slow.interfaces[0].1.is_hot() && slow.interfaces[1].1.is_hot());
    }

    /// A program with few calls must not wait for a part of the long pause at each event of a conversation.
    #[test]
    fn late_poll_that_leaves_interfaces_hot_ends_the_pause() {
        let context = crate::Context::builder().set("TIELINE_PROVIDERS", "shm").open().unwrap();
        let worker = context.worker().unwrap();
        let schedule = &worker.inner.schedule;
        schedule.all_are_hot();
        schedule.slow.polled_at.set(Duration::ZERO);
        schedule.slow_in.set(10 * WATCH_CALLS);
        let _ = worker.progress();
        assert_eq!(schedule.slow_in.get(), 0);
    }

    #[test]
    fn heat_lasts_for_a_number_of_polls_without_events() {
        let heat = Heat::default();
        assert_eq!((heat.note(0), heat.is_hot()), (0, false));
        assert_eq!(heat.note(1), 1);
        let polls = (0..).find(|_| heat.note(0) == 0 && !heat.is_hot());
        assert_eq!(polls, Some(HOT - 1));
    }

    #[test]
    fn busy_calls_leave_out_seven_of_eight_polls_of_hot_interfaces() {
        let slow = Slow::of([0]);
        let _ = slow.begin(LATE);
        assert!(!slow.leaves_out(), "nothing is hot, so nothing costs a system call in every call");
        let _ = slow.interfaces[0].1.note(1);
        for _ in 0..3 {
            let _ = slow.begin(LATE);
            let left_out = (0..).find(|_| !slow.leaves_out());
            assert_eq!(left_out, Some(EACH - 1));
        }
    }
}
