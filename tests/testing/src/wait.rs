//! Loops that wait by polling, with an end: a test that waits for what never comes says what that was.

use std::time::{Duration, Instant};

/// However busy the machine is, what is waited for has come by then, or never will.
const PATIENCE: Duration = Duration::from_secs(100);

/// One loop that waits.
pub struct Wait {
    what: String,
    until: Instant,
}

impl Wait {
    /// Begins to wait for something, in words.
    #[must_use]
    pub fn new(what: impl Into<String>) -> Wait {
        Wait { what: what.into(), until: Instant::now() + PATIENCE }
    }

    /// In each round of the loop.
    ///
    /// # Panics
    /// When it has waited for too long.
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
