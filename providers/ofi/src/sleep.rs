//! The descriptor that an interface sleeps on. It covers the library's descriptor, a bell for other threads, a timer, and the watch
//! on peers' processes.

use core::cell::Cell;
use core::time::Duration;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Instant;
use tieline_net::{Interest, Poller, Timer};

/// The number of polls without a sleep after which the library's descriptor is removed.
const POLLS: u32 = 1024;

pub(crate) struct Sleep {
    poller: Poller,
    timer: Timer,
    ticks: Cell<bool>,
    library: RawFd,
    /// Whether the library's descriptor is watched. While it and the connections behind it are watched, each message of a peer on
    /// the same host costs more. An interface that polls without sleeping does not need it.
    watched: Cell<bool>,
    /// The number of polls since the last sleep.
    polls: Cell<u32>,
}

impl Sleep {
    /// Makes a descriptor that becomes readable with the library's descriptor or any of `others`. The caller owns all of these, and
    /// they must outlive the result.
    pub(crate) fn new(library: RawFd, others: &[RawFd]) -> io::Result<Sleep> {
        let (poller, timer) = (Poller::new()?, Timer::new()?);
        for fd in others.iter().copied().chain([timer.as_fd().as_raw_fd(), library]) {
            poller.watch(fd, Interest::READ, 0)?;
        }
        let (watched, polls) = (Cell::new(true), Cell::new(0));
        Ok(Sleep { poller, timer, ticks: Cell::new(false), library, watched, polls })
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.poller.as_fd().as_raw_fd()
    }

    /// Records that the interface was polled so many times.
    #[inline]
    pub(crate) fn polled(&self, polls: u32) {
        if self.watched.get() {
            self.polls.set(self.polls.get() + polls);
            if self.polls.get() >= POLLS {
                self.watched.set(false);
                self.poller.forget(self.library);
            }
        }
    }

    /// Prepares for a sleep; returns whether the library's descriptor will wake the sleeper.
    pub(crate) fn watch(&self) -> bool {
        self.polls.set(0);
        if !self.watched.get() {
            self.watched.set(self.poller.watch(self.library, Interest::READ, 0).is_ok());
        }
        self.watched.get()
    }

    /// Wakes a sleeper after this time, for changes that no descriptor signals.
    pub(crate) fn wake_in(&self, time: Option<Duration>) {
        if self.ticks.replace(time.is_some()) || time.is_some() {
            self.timer.set(time.map(|time| Instant::now() + time));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_net::Waker;

    fn wakes(sleep: &Sleep) -> bool {
        let mut ready = Vec::new();
        let poller = Poller::new().unwrap();
        poller.watch(sleep.raw(), Interest::READ, 0).unwrap();
        poller.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        !ready.is_empty()
    }

    #[test]
    fn library_descriptor_wakes_sleeper_until_many_polls_without_sleep() {
        let (library, bell) = (Waker::new().unwrap(), Waker::new().unwrap());
        let fd = |waker: &Waker| waker.as_fd().as_raw_fd();
        let sleep = Sleep::new(fd(&library), &[fd(&bell)]).unwrap();
        library.wake();
        assert!(wakes(&sleep), "from the beginning");
        for _ in 0..POLLS - 1 {
            sleep.polled(1);
        }
        assert!(sleep.watch() && wakes(&sleep));
        for _ in 0..POLLS {
            sleep.polled(1);
        }
        assert!(!wakes(&sleep), "who polls so often does not sleep");
        bell.wake();
        assert!(wakes(&sleep), "what other threads say is always heard");
        bell.clear();
        assert!(!wakes(&sleep));
        for _ in 0..2 {
            assert!(sleep.watch() && wakes(&sleep), "it sleeps, though the library spoke before");
        }
        library.clear();
        assert!(!wakes(&sleep));
    }
}
