//! The clock of the device double. Every read advances the clock by one microsecond, so timing does not depend on the machine's
//! load.

use core::cell::Cell;
use core::ops::Add;
use core::time::Duration;

thread_local! {
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// A time of the double's clock. This type replaces the standard library's `Instant`.
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

/// Advances the clock, as if all processes had been suspended.
pub(crate) fn pass(time: Duration) {
    NOW.set(NOW.get() + time);
}
