//! Who sleeps and who wakes it: the order of two stores and two loads that both sides depend on.
//!
//! The sleeper notes that it sleeps and then looks for news; who has news publishes it and then looks for the note. A full
//! fence between the two steps of each side makes sure that at least one of them sees the other's step. The side that
//! publishes may leave its fence out where the sleeper pays for both, by `membarrier`.
//!
//! The same source runs under loom, which has no `membarrier`: there both sides have their fences.
#![cfg_attr(loom, allow(dead_code))] // under loom only the rings and these are built

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Whether the sleeper may sleep: it notes so with [`note`], on every word that somebody looks at, and then has no news.
pub(crate) fn may_sleep(notes: impl FnOnce(), has_news: impl FnOnce() -> bool) -> bool {
    notes();
    fence(Ordering::SeqCst);
    #[cfg(not(loom))]
    crate::sys::membarrier();
    !has_news()
}

/// Says on a word that somebody sleeps.
pub(crate) fn note(word: &AtomicU64) {
    word.store(1, Ordering::SeqCst);
}

/// After something was published, before [`wakes`]; `full` unless the sleeper pays for the fence.
#[inline(always)]
pub(crate) fn published(full: bool) {
    if full {
        fence(Ordering::SeqCst);
    }
}

/// Whether somebody sleeps and is to be woken by whoever asked; nobody else is told so.
#[inline(always)]
pub(crate) fn wakes(word: &AtomicU64) -> bool {
    word.load(Ordering::Relaxed) != 0 && word.swap(0, Ordering::SeqCst) != 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sys::BARRIERS;
    use std::cell::Cell;

    /// What loom cannot see: it has no `membarrier`.
    #[test]
    fn a_sleeper_pays_for_the_fences_of_its_senders_between_its_note_and_its_look() {
        let before = BARRIERS.get();
        let steps = Cell::new(Vec::new());
        let step = |name: &'static str| {
            let mut all = steps.take();
            all.push((name, BARRIERS.get() - before));
            steps.set(all);
        };
        let look = |has_news| {
            step("look");
            has_news
        };
        assert!(may_sleep(|| step("note"), || look(false)));
        assert!(!may_sleep(|| step("note"), || look(true)), "there is news");
        assert_eq!(steps.take(), [("note", 0), ("look", 1), ("note", 1), ("look", 2)]);
    }

    #[test]
    fn a_note_is_seen_by_one_of_those_that_look() {
        let word = AtomicU64::new(0);
        assert!(!wakes(&word), "nobody sleeps");
        note(&word);
        assert_eq!([wakes(&word), wakes(&word)], [true, false]);
    }
}
