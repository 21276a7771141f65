//! The polls of interfaces that need a system call, and the tasks of other threads.
//!
//! Progress polls such an interface in every call for a while after it had an event, and otherwise at intervals. Each interface
//! counts for itself, so one with events costs no polls of the others. While the interfaces without system calls have events, only
//! every eighth call polls an interface that needs one. The intervals are numbers of calls. For a program with few calls, the first
//! one ends after at most 64 calls, and the next ones have 8 or 16.

use super::WorkerState;
use super::abi::Polls;
use super::rounds::EACH;
use crate::sys::coarse_clock;
use std::cell::Cell;
use std::rc::Rc;
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

/// The interfaces that need a system call for a poll, and the connectors.
pub(super) struct Slow {
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
    pub(super) fn of(interfaces: impl IntoIterator<Item = usize>) -> Slow {
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

    #[cfg(test)]
    pub(super) fn interfaces(&self) -> Vec<usize> {
        self.interfaces.iter().map(|(index, _)| *index).collect()
    }

    /// Makes no poll late until the next one.
    #[cfg(test)]
    pub(super) fn is_in_time(&self) {
        self.polled_at.set(Duration::MAX);
    }

    #[cfg(test)]
    pub(super) fn was_polled_long_ago(&self) {
        self.polled_at.set(coarse_clock().saturating_sub(LATE));
    }

    /// Makes the next poll one of all interfaces.
    pub(super) fn all_are_due(&self) {
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

impl WorkerState {
    /// Polls the interfaces whose turn comes at this number of calls before the next slow poll. `busy`: this call has dispatched
    /// events.
    #[inline(never)]
    pub(super) fn poll_others(
        self: &Rc<Self>,
        left: u32,
        busy: bool,
        polls: &mut Polls<'_>,
    ) -> usize {
        if left == 0 {
            return match busy && self.slow.leaves_out() {
                true => 0,
                false => self.poll_slow(polls),
            };
        }
        if left % WATCH_CALLS == 0 && self.slow.is_late(coarse_clock()) {
            // The pause is over: the poll may leave interfaces hot.
            self.slow_in.set(0);
            self.behind_tasks.set(0);
            return self.poll_slow(polls);
        }
        self.slow_in.set(left - 1);
        self.poll_resting(polls)
    }

    /// Polls the interfaces that need a system call.
    #[cold]
    fn poll_slow(self: &Rc<Self>, polls: &mut Polls<'_>) -> usize {
        self.shared.entrance.note_thread();
        let tasks = self.run_tasks();
        if self.behind_tasks.get() > 0 {
            self.pause_for(self.behind_tasks.get());
            return tasks;
        }
        self.take_out_broken();
        self.let_closed_go();
        let slow = &self.slow;
        let now = coarse_clock();
        let was_late = slow.is_late(now);
        let all = slow.begin(now);
        let mut count = tasks;
        for (index, heat) in &slow.interfaces {
            if all || heat.is_hot() {
                count += heat.note(self.poll_rarely(*index, polls));
            }
        }
        let mut elsewhere = tasks;
        if all || slow.connectors.is_hot() {
            elsewhere += slow.connectors.note(self.poll_wiring(polls));
        }
        count += elsewhere - tasks;
        if elsewhere > 0 {
            // The operations of a task, and the first messages of a new connection, may come over any interface.
            slow.heats().for_each(Heat::begin);
        }
        self.answer_names();
        self.watched.polled(&self.poller, &self.shared.interfaces);
        let mut seldom = false;
        let resting = self.poll_resting(polls);
        if count > 0 {
            self.pause.set(FIRST_PAUSE);
        } else if !slow.is_hot() && !self.fast.is_empty() {
            let last = match self.wiring.is_idle() {
                true => LAST_PAUSE_WITHOUT_CIRCUITS,
                false => LAST_PAUSE,
            };
            if was_late {
                self.pause.set(EACH);
            }
            self.pause_for(self.pause.get());
            self.pause.set((self.pause.get() * 2).min(last));
            self.slow.all_are_due();
            self.let_quiet_rest();
            seldom = true;
        }
        self.show_poll(seldom);
        count + resting
    }

    /// Sets the number of calls until the interfaces that need a system call are polled. If a `Remote` exists, tasks are checked at
    /// shorter intervals.
    fn pause_for(&self, calls: u32) {
        let next = if self.mailboxes.borrow().is_empty() { calls } else { calls.min(TASK_PAUSE) };
        self.slow_in.set(next);
        self.behind_tasks.set(calls - next);
    }

    /// Checks whether another thread has submitted a task.
    pub(super) fn has_tasks(&self) -> bool {
        self.mailboxes.borrow().iter().any(|mailbox| mailbox.has_tasks())
    }

    /// Runs the tasks that other threads have submitted.
    fn run_tasks(self: &Rc<Self>) -> usize {
        if self.mailboxes.borrow().is_empty() {
            return 0;
        }
        // The list is not borrowed while a task runs: the task may open another mailbox or close the worker.
        let all = self.mailboxes.borrow().clone();
        let count = all.iter().map(|mailbox| mailbox.run(self)).sum();
        // The removed mailboxes are kept until nothing is borrowed, because dropping their state may call any function. `all` lacks
        // the mailboxes that a task has opened.
        let mut gone = Vec::new();
        self.mailboxes.borrow_mut().retain(|mailbox| {
            let stays = !mailbox.is_abandoned();
            gone.extend((!stays).then(|| mailbox.clone()));
            stays
        });
        drop((all, gone));
        count
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
        let state = &worker.inner;
        state.slow.heats().for_each(Heat::begin);
        state.slow.polled_at.set(Duration::ZERO);
        state.slow_in.set(10 * WATCH_CALLS);
        let _ = worker.progress();
        assert_eq!(state.slow_in.get(), 0);
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
