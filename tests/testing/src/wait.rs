//! Wait loops with a limit: a test that waits for an event that does not happen fails with the event's name.

use std::time::{Duration, Instant};

/// The time after which an event counts as never happening, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(100);

/// A wait loop with a limit.
pub struct Wait {
    what: String,
    until: Instant,
}

impl Wait {
    /// Starts to wait for the described event.
    #[must_use]
    pub fn new(what: impl Into<String>) -> Wait {
        Wait { what: what.into(), until: Instant::now() + PATIENCE }
    }

    /// Checks the limit; each round of the loop calls this function.
    ///
    /// # Panics
    /// Panics if the limit has passed.
    #[track_caller]
    pub fn goes_on(&self) {
        assert!(Instant::now() < self.until, "{} did not come in {PATIENCE:?}", self.what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_what_it_waited_for() {
        Wait::new("the first").goes_on();
        let over = Wait { what: "the last message".into(), until: Instant::now() };
        let panic = std::panic::catch_unwind(|| over.goes_on()).unwrap_err();
        let words = panic.downcast_ref::<String>().unwrap();
        assert!(words.starts_with("the last message did not come"), "{words}");
    }
}
