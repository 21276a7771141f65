//! Whether what interfaces wake by wakes the worker: for who sleeps, and not for who polls.
//!
//! The kernel passes whatever arrives on to who watches, and on to who watches that: a sender on the same host pays for each step in its
//! own call (half a microsecond of a message over `ofi` that took seven, measured). So who has polled for a while is watched for no
//! more, until it prepares to sleep.

use crate::interface::InterfaceSlot;
use crate::sys::Poller;
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

    /// What asks the kernel has been polled.
    #[inline]
    pub(super) fn polled(&self, poller: &Poller, interfaces: &[InterfaceSlot]) {
        if self.now.get() {
            let polls = self.polls.get() + 1;
            self.polls.set(polls);
            if polls >= POLLS {
                self.end(poller, interfaces);
            }
        }
    }

    #[cold]
    fn end(&self, poller: &Poller, interfaces: &[InterfaceSlot]) {
        self.now.set(false);
        // What is out of use has left already, and its number may be another descriptor's by now.
        let open = interfaces.iter().filter(|slot| slot.out_of_use.borrow().is_none());
        open.filter_map(|slot| slot.watched).for_each(|fd| poller.remove(fd));
    }

    /// A sleep is prepared: whatever wakes an interface wakes the worker. False: the kernel watches no more descriptors now, so that
    /// somebody has to look again and again.
    pub(super) fn begin(&self, poller: &Poller, interfaces: &[InterfaceSlot]) -> bool {
        self.polls.set(0);
        if self.now.replace(true) {
            return true;
        }
        let open = interfaces.iter().filter(|slot| slot.out_of_use.borrow().is_none());
        let watched = open.filter_map(|slot| slot.watched).all(|fd| poller.add(fd).is_ok());
        if !watched {
            self.end(poller, interfaces);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_polls_without_a_sleep_end_the_watch() {
        let (watched, poller) = (Watched::new(), Poller::new().unwrap());
        for _ in 0..2 {
            (1..POLLS).for_each(|_| watched.polled(&poller, &[]));
            assert!(watched.is_watched());
            assert!(watched.begin(&poller, &[]), "a sleep is prepared: they count anew");
        }
        (0..POLLS).for_each(|_| watched.polled(&poller, &[]));
        assert!(!watched.is_watched());
        watched.polled(&poller, &[]);
        assert!(!watched.is_watched());
        assert!(watched.begin(&poller, &[]) && watched.is_watched());
    }
}
