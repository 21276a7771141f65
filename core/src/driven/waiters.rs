//! Threads that are parked until a condition of a driven worker holds. The thread that makes progress checks the conditions under
//! the lock.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;
use tieline_order::Id;

/// The condition of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// An operation has ended.
    Ended(Id),
    /// A counter has no pending operation.
    Counted(Id),
    /// A tracked operation has ended and was not taken.
    Completed,
    /// Something has changed since this number of changes. The caller also examines a condition of its own from time to time.
    Changed(u64),
    /// The same, or a tracked operation has ended. The caller has no condition of its own.
    Happened(u64),
    /// Everything that was posted is delivered, as far as the worker can tell.
    Delivered,
}

impl Until {
    /// Checks whether a change outside the lock may make the condition true: the end of a handler.
    pub(super) fn is_watcher(&self) -> bool {
        matches!(self, Until::Changed(_) | Until::Happened(_) | Until::Delivered)
    }
}

/// The place at which one thread sleeps.
#[derive(Default)]
pub(super) struct Slot {
    woken: Mutex<bool>,
    condvar: Condvar,
}

impl Slot {
    pub(super) fn wake(&self) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.condvar.notify_one();
    }

    /// Sleeps until the slot is woken, and consumes the wake-up. `false`: the deadline has passed.
    pub(super) fn sleep(&self, deadline: Option<Instant>) -> bool {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        while !*woken {
            let Some(deadline) = deadline else {
                woken = self.condvar.wait(woken).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let slept = self.condvar.wait_timeout(woken, left);
            woken = slept.unwrap_or_else(PoisonError::into_inner).0;
        }
        *woken = false;
        true
    }
}

/// The parked threads, and slots for later ones.
#[derive(Default)]
pub(super) struct Waiters {
    parked: Vec<(Until, Arc<Slot>)>,
    spare: Vec<Arc<Slot>>,
}

impl Waiters {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.parked.is_empty()
    }

    /// Adds a waiter, and returns its slot.
    pub(super) fn park(&mut self, until: Until) -> Arc<Slot> {
        let slot = self.spare.pop().unwrap_or_default();
        self.parked.push((until, slot.clone()));
        slot
    }

    /// Removes a waiter whose time is up; `false`: it was woken meanwhile.
    pub(super) fn leave(&mut self, slot: &Arc<Slot>) -> bool {
        let before = self.parked.len();
        self.parked.retain(|(_, parked)| !Arc::ptr_eq(parked, slot));
        self.parked.len() < before
    }

    /// Takes back a slot that no thread uses any more.
    pub(super) fn give_back(&mut self, slot: Arc<Slot>) {
        self.spare.push(slot);
    }

    /// Wakes and removes the waiters whose condition holds.
    pub(super) fn wake(&mut self, holds: impl Fn(&Until) -> bool) {
        self.parked.retain(|(until, slot)| {
            let wakes = holds(until);
            if wakes {
                slot.wake();
            }
            !wakes
        });
    }
}
