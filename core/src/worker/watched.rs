//! The watching of interfaces' events, which a worker needs while it sleeps but not while it polls.
//!
//! The kernel notifies every watcher of a descriptor, and every watcher of that watcher. On the same host, a sender pays for each
//! of these steps in its own call: half a microsecond of seven for a message over `ofi`, measured. Therefore, a worker that has
//! polled for a while stops watching until it prepares to sleep.

use crate::interface::InterfaceSlot;
use crate::sys::Poller;
use std::cell::Cell;

/// The number of polls without a sleep after which no interface is watched: about half a millisecond. Compared with these polls,
/// watching again is cheap.
pub(super) const POLLS: u32 = 1024;

pub(super) struct Watched {
    now: Cell<bool>,
    /// The number of polls since the worker was last armed.
    polls: Cell<u32>,
}

impl Watched {
    /// Makes the state of a worker whose interfaces have just been opened, and are watched.
    pub(super) fn new() -> Watched {
        Watched { now: Cell::new(true), polls: Cell::new(0) }
    }

    /// Counts a poll of the interfaces that need a system call, and stops watching after [`POLLS`] polls.
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
        // An interface out of use has been removed already, and its descriptor number may have been reused.
        let open = interfaces.iter().filter(|slot| slot.out_of_use.borrow().is_none());
        open.filter_map(|slot| slot.watched).for_each(|fd| poller.remove(fd));
    }

    /// Starts watching before a sleep, so that events of interfaces wake the worker. `false`: the kernel refuses to watch a
    /// descriptor, so the worker has to poll repeatedly.
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
