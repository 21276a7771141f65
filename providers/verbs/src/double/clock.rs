//! The clock of the played device: every look at it is a microsecond later than the one before, so what depends on time
//! comes out the same on a machine that has little of it.

use core::cell::Cell;
use core::ops::Add;
use core::time::Duration;

thread_local! {
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// In place of the standard library's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(Duration);

impl Instant {
    pub(crate) fn now() -> Instant {
        pass(Duration::from_micros(1));
        Instant(NOW.get())
    }

    pub(crate) fn elapsed(self) -> Duration {
        Instant::now().0 - self.0
    }

    pub(crate) fn duration_since(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, more: Duration) -> Instant {
        Instant(self.0 + more)
    }
}

/// So much time goes by at once: all processes stood still.
pub(crate) fn pass(time: Duration) {
    NOW.set(NOW.get() + time);
}
