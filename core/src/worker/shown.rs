//! The private state with which a worker publishes its state.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use tieline_explain::live::Page;

/// The pause before the next text: this multiple of the time that the last text took, at most `LONGEST` ns. The last text may have
/// taken long only because it was interrupted.
const SHARE: u64 = 100;
const LONGEST: u64 = 1_000_000_000;

/// A wait whose start time is recorded.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Standing {
    /// An endpoint's oldest operation.
    Operation(u64, u64),
    /// The answers of an endpoint.
    Answers(u64),
    /// A connection being formed.
    Circuit(u64),
}

/// The state kept between two texts.
pub(super) struct Shown {
    pub(super) page: Option<Page>,
    pub(super) service: bool,
    pub(super) polls: Cell<u64>,
    /// The start of the current call that waits; 0: there is none.
    pub(super) waiting: Cell<u64>,
    /// The time of the last text, and the duration of writing it, in ns.
    pub(super) written: Cell<u64>,
    pub(super) took: Cell<u64>,
    pub(super) since: RefCell<HashMap<Standing, u64>>,
}

impl Shown {
    pub(super) fn new(page: Option<Page>, service: bool) -> Shown {
        Shown {
            page,
            service,
            polls: Cell::new(0),
            waiting: Cell::new(0),
            written: Cell::new(0),
            took: Cell::new(0),
            since: RefCell::default(),
        }
    }

    /// Returns the time until the next text may be written, in ns.
    pub(super) fn due_in(&self, now: u64, pause: u64) -> u64 {
        let pause = pause.max(self.took.get().saturating_mul(SHARE).min(LONGEST));
        self.written.get().saturating_add(pause).saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_interrupted_text_delays_the_next_by_one_second() {
        let shown = Shown::new(None, false);
        shown.written.set(5);
        shown.took.set(2_000_000);
        assert_eq!(shown.due_in(5, 1_000_000), 200_000_000, "a hundredth of the time");
        assert_eq!(shown.due_in(5, 300_000_000), 300_000_000);
        assert_eq!(shown.due_in(6 + 200_000_000, 1_000_000), 0);
        shown.took.set(600_000_000_000);
        assert_eq!(shown.due_in(5, 1_000_000), 1_000_000_000);
    }
}
