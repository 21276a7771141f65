//! What an interface sleeps on: one descriptor, behind which are the library's, a bell for other threads and a timer.

pub(crate) mod sys;

use core::cell::Cell;
use core::time::Duration;
pub(crate) use sys::Bell;
use sys::{Epoll, Ticker};
use tieline_plugin_api::Failure;

pub(crate) struct Sleep {
    epoll: Epoll,
    ticker: Ticker,
    interval: Cell<Option<Duration>>,
}

impl Sleep {
    /// A descriptor that wakes for these, which are owned elsewhere and live as long.
    pub(crate) fn new(queue: i32, bell: &Bell) -> Result<Sleep, Failure> {
        let (epoll, ticker) = (Epoll::new()?, Ticker::new()?);
        for fd in [queue, bell.raw(), ticker.raw()] {
            epoll.add(fd)?;
        }
        Ok(Sleep { epoll, ticker, interval: Cell::new(None) })
    }

    pub(crate) fn raw(&self) -> i32 {
        self.epoll.raw()
    }

    /// Wakes a sleeper at every interval, for what the library tells nobody.
    pub(crate) fn wake_every(&self, interval: Option<Duration>) {
        if self.interval.replace(interval) != interval {
            self.ticker.every(interval);
        }
        self.ticker.silence();
    }
}
