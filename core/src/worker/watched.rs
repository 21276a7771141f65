//! Whether what interfaces wake by wakes the worker: for who sleeps, and not for who polls.
//!
//! The kernel passes whatever arrives on to who watches, and on to who watches that: a sender on the same host pays for each step in its
//! own call (half a microsecond of a message over `ofi` that took seven, measured). So who has polled for a while is watched for no
//! more, until it prepares to sleep.

use super::Inner;
use crate::Error;
use std::cell::Cell;

/// Polls without a sleep until nothing is watched: half a millisecond or so, beside which watching anew is cheap.
pub(super) const POLLS: u32 = 1024;

pub(super) struct Watched {
    now: Cell<bool>,
    /// Since the worker was last armed.
    polls: Cell<u32>,
}

impl Watched {
    /// Interfaces are watched as they open.
    pub(super) fn new() -> Watched {
        Watched { now: Cell::new(true), polls: Cell::new(0) }
    }
}

impl Inner {
    /// What asks the kernel has been polled.
    #[inline]
    pub(super) fn polls_on(&self) {
        if self.watched.now.get() {
            let polls = self.watched.polls.get() + 1;
            self.watched.polls.set(polls);
            if polls >= POLLS {
                self.unwatch();
            }
        }
    }

    #[cold]
    fn unwatch(&self) {
        self.watched.now.set(false);
        for fd in self.shared.interfaces.iter().filter_map(|slot| slot.watched) {
            self.poller.remove(fd);
        }
    }

    /// A sleep is prepared: whatever wakes an interface wakes the worker.
    pub(super) fn watch_for_sleep(&self) -> Result<(), Error> {
        self.watched.polls.set(0);
        if self.watched.now.replace(true) {
            return Ok(());
        }
        let open = self.shared.interfaces.iter().filter(|slot| slot.out_of_use.borrow().is_none());
        let watched = open.filter_map(|slot| slot.watched).try_for_each(|fd| self.poller.add(fd));
        if watched.is_err() {
            self.unwatch();
        }
        watched
    }
}

#[cfg(test)]
impl Watched {
    pub(super) fn is_watched(&self) -> bool {
        self.now.get()
    }
}
