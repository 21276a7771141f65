//! The count of changes on which the condition of a wait may depend, and of the waits that handlers may end.
//!
//! A wait reads the count, evaluates its condition, adds itself to the watchers, and reads the count again before it parks. A thread
//! that makes a change counts it, and then looks for watchers. In the total order of these four steps, either the change is counted
//! before the second read, or the watcher is there when the other thread looks.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[derive(Default)]
pub(super) struct Changes {
    count: AtomicU64,
    watchers: AtomicUsize,
}

impl Changes {
    /// Returns the number of changes so far.
    pub(super) fn seen(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Counts a change.
    pub(super) fn note(&self) {
        let _ = self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Checks whether a wait may have to be woken for a change that was counted before.
    pub(super) fn has_watchers(&self) -> bool {
        self.watchers.load(Ordering::SeqCst) > 0
    }

    /// Adds a watcher. It must read the count again before it parks.
    pub(super) fn watch(&self) {
        let _ = self.watchers.fetch_add(1, Ordering::SeqCst);
    }

    /// Removes a watcher.
    pub(super) fn unwatch(&self) {
        let _ = self.watchers.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wait and a change, step by step.
    #[derive(Default)]
    struct Play {
        changes: Changes,
        flag: bool,
        seen: u64,
        wait: usize,
        change: usize,
        is_parked: bool,
        is_done: bool,
    }

    impl Play {
        /// Runs one step of the wait. Parking is one step with the last read, since both happen under the worker's lock.
        fn waits(&mut self) {
            match self.wait {
                _ if self.is_parked || self.is_done => return,
                0 => self.seen = self.changes.seen(),
                1 => self.is_done = self.flag,
                2 => self.changes.watch(),
                _ if self.changes.seen() == self.seen => self.is_parked = true,
                _ => self.changes.unwatch(),
            }
            self.wait = (self.wait + 1) % 4;
        }

        /// Runs one step of the thread that makes the condition true.
        fn changes(&mut self) {
            match self.change {
                0 => self.flag = true,
                1 => self.changes.note(),
                2 if self.changes.has_watchers() && self.is_parked => {
                    self.is_parked = false;
                    self.changes.unwatch();
                }
                _ => {}
            }
            self.change += 1;
        }
    }

    #[test]
    fn no_wait_stays_parked_after_a_change_in_any_interleaving() {
        const STEPS: u32 = 12;
        for order in 0..1u32 << STEPS {
            let mut play = Play::default();
            for step in 0..STEPS {
                if order >> step & 1 == 0 { play.waits() } else { play.changes() }
            }
            (0..3).for_each(|_| play.changes());
            for _ in 0..8 {
                assert!(!play.is_parked, "the wake-up is lost, order {order:#b}");
                play.waits();
            }
            assert!(play.is_done, "order {order:#b}");
            assert!(!play.changes.has_watchers(), "order {order:#b}");
        }
    }
}
