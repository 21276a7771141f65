//! A worker's use of its place: the published state, and the time of the next text.

use super::MOST_TEXT;
use super::file::Page;
use super::sys::now_ns;
use crate::snapshot::WorkerStatus;
use std::cell::Cell;
use std::time::Duration;

/// The minimum interval between two texts while the worker polls, in ns.
const POLLING: u64 = 100_000_000;
/// The minimum interval between two texts before sleeps, in ns.
const SLEEPING: u64 = 1_000_000;
/// The number of polls of the kernel between two reads of the clock; a poll after which the next one is far away reads the clock
/// too.
const CLOCK: u64 = 64;
/// The pause before the next text is this multiple of the time that the last text took.
const SHARE: u64 = 100;
/// The maximum of the pause before the next text, in ns. The last text may have taken long only because it was interrupted.
const LONGEST: u64 = 1_000_000_000;

/// Publishes a worker's state. Without a place, it publishes nothing.
pub struct Publisher {
    page: Option<Page>,
    polls: Cell<u64>,
    /// Whether the worker is in a call that waits and has stopped spinning.
    waits: Cell<bool>,
    /// The time of the last text in ns.
    written: Cell<u64>,
    /// The duration of writing the last text in ns.
    took: Cell<u64>,
}

impl Publisher {
    /// Makes a publisher that has published nothing.
    #[must_use]
    pub fn new(page: Option<Page>) -> Publisher {
        let (polls, waits) = (Cell::new(0), Cell::new(false));
        Publisher { page, polls, waits, written: Cell::new(0), took: Cell::new(0) }
    }

    /// Returns the number of polls that were published: 0 without a place. A sleep without open operations may count as one more.
    pub fn polls(&self) -> u64 {
        self.polls.get()
    }

    /// Publishes a poll of the kernel; `open` returns the number of open operations. Returns whether a text is due. `seldom`: the
    /// next poll of the kernel is some time away.
    #[inline]
    pub fn polled(&self, open: impl FnOnce() -> usize, seldom: bool) -> bool {
        let Some(page) = &self.page else { return false };
        let polls = self.polls.get() + 1;
        self.polls.set(polls);
        page.polled(polls, open());
        (seldom || polls % CLOCK == 0) && self.due_in(now_ns(), POLLING) == 0
    }

    /// Publishes the beginning of a sleep: the worker's own, or the application's on the worker's descriptor (`armed`). Returns the
    /// time until a text is due; `None` without a place.
    pub fn sleeps(&self, open: impl FnOnce() -> usize, armed: bool) -> Option<Duration> {
        let page = self.page.as_ref()?;
        let now = now_ns();
        let left = self.due_in(now, SLEEPING);
        if left > 0 && open() == 0 {
            // The operations in the last text have ended, and during this sleep nothing might request another text.
            self.polls.set(self.polls.get() + 1);
            page.polled(self.polls.get(), 0);
        }
        page.sleeps(now, armed);
        Some(Duration::from_nanos(left))
    }

    /// Returns the time until a text is due that shows a sleep; `None` if it is due, and without a place.
    pub fn not_due_for(&self) -> Option<Duration> {
        let _ = self.page.as_ref()?;
        let left = self.due_in(now_ns(), SLEEPING);
        (left > 0).then(|| Duration::from_nanos(left))
    }

    /// Publishes the end of a sleep. The code that follows may run for a long time.
    pub fn awakes(&self) {
        if let Some(page) = &self.page {
            page.awakes();
        }
    }

    /// Publishes that a waiting call has stopped spinning, unless this call has published it before.
    pub fn waits(&self) {
        if let Some(page) = self.page.as_ref().filter(|_| !self.waits.replace(true)) {
            page.waits(now_ns());
        }
    }

    /// Publishes that a waiting call returns, if it had stopped spinning.
    pub fn returns(&self, open: impl FnOnce() -> usize) {
        if let Some(page) = self.page.as_ref().filter(|_| self.waits.replace(false)) {
            page.waits(0);
            page.polled(self.polls.get(), open());
        }
    }

    /// Publishes a text; `status` returns the state at a time. If the text cannot be written, the previous one stays.
    #[cold]
    pub fn show(&self, status: impl FnOnce(u64) -> WorkerStatus) {
        let Some(page) = &self.page else { return };
        let now = now_ns();
        self.written.set(now);
        if let Some(text) = status(now).fit(MOST_TEXT) {
            let _ = page.write(&text, now);
        }
        self.text_took(now_ns().saturating_sub(now));
    }

    /// Records the duration of writing the last text, in ns.
    pub fn text_took(&self, ns: u64) {
        self.took.set(ns);
    }

    /// Releases the place of a closed worker.
    pub fn ends(&self) {
        if let Some(page) = &self.page {
            page.give_back();
        }
    }

    /// Returns the time until the next text may be written, in ns.
    fn due_in(&self, now: u64, pause: u64) -> u64 {
        let pause = pause.max(self.took.get().saturating_mul(SHARE).min(LONGEST));
        self.written.get().saturating_add(pause).saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_interrupted_text_delays_the_next_by_one_second() {
        let shown = Publisher::new(None);
        shown.written.set(5);
        shown.text_took(2_000_000);
        assert_eq!(shown.due_in(5, 1_000_000), 200_000_000, "a hundredth of the time");
        assert_eq!(shown.due_in(5, 300_000_000), 300_000_000);
        assert_eq!(shown.due_in(6 + 200_000_000, 1_000_000), 0);
        shown.text_took(600_000_000_000);
        assert_eq!(shown.due_in(5, 1_000_000), 1_000_000_000);
    }

    #[test]
    fn without_a_place_nothing_is_published() {
        let shown = Publisher::new(None);
        assert!(!shown.polled(|| 1, true) && shown.polls() == 0);
        assert_eq!((shown.sleeps(|| 1, false), shown.not_due_for()), (None, None));
        shown.show(|_| panic!("there is no place for it"));
    }
}
