//! What an interface sleeps on: one descriptor, behind which are the library's, a bell for other threads, a timer, and what
//! watches the processes of peers.

use core::cell::Cell;
use core::time::Duration;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Instant;
use tieline_net::{Interest, Poller, Timer};

pub(crate) struct Sleep {
    poller: Poller,
    timer: Timer,
    ticks: Cell<bool>,
}

impl Sleep {
    /// A descriptor that wakes for these, which are owned elsewhere and live as long.
    pub(crate) fn new(woken_by: &[RawFd]) -> io::Result<Sleep> {
        let (poller, timer) = (Poller::new()?, Timer::new()?);
        for fd in woken_by.iter().copied().chain([timer.as_fd().as_raw_fd()]) {
            poller.watch(fd, Interest::READ, 0)?;
        }
        Ok(Sleep { poller, timer, ticks: Cell::new(false) })
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.poller.as_fd().as_raw_fd()
    }

    /// Wakes who falls asleep now behind so much time, for what nobody tells of.
    pub(crate) fn wake_in(&self, time: Option<Duration>) {
        if self.ticks.replace(time.is_some()) || time.is_some() {
            self.timer.set(time.map(|time| Instant::now() + time));
        }
    }
}
