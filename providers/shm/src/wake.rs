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

/// Publishes something, and says whether there is anything to do behind it: what its publisher knows of (`todo`), or somebody
/// sleeps. It is then done with [`announce`]. A publisher that pays for its own fences has them in its `todo`: the look here
/// may come before what was published.
#[inline(always)]
pub(crate) fn publish(step: impl FnOnce(), todo: impl FnOnce() -> bool, word: &AtomicU64) -> bool {
    step();
    todo() || word.load(Ordering::Relaxed) != 0
}

/// Behind what was published: the fence, `full` unless the sleeper pays for it, then whatever else tells the other side, then
/// the look whether somebody is to be woken.
#[inline(always)]
pub(crate) fn announce(full: bool, tell: impl FnOnce(), word: &AtomicU64) -> bool {
    if full {
        pay();
    }
    tell();
    wakes(word)
}

/// The fence of who publishes, which tests count: on one processor nobody notices that it is missing.
#[inline(always)]
fn pay() {
    #[cfg(all(test, not(loom)))]
    FENCES.set(FENCES.get() + 1);
    fence(Ordering::SeqCst);
}

#[cfg(all(test, not(loom)))]
thread_local! {
    /// How many fences this thread has paid for what it published.
    pub(crate) static FENCES: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Whether somebody sleeps and is to be woken by whoever asked; nobody else is told so.
#[inline(always)]
fn wakes(word: &AtomicU64) -> bool {
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
    fn who_publishes_has_its_fence_before_it_tells_and_looks_for_the_note_last() {
        let (word, before) = (AtomicU64::new(0), FENCES.get());
        let pushed = Cell::new(false);
        for full in [false, true] {
            assert!(publish(|| pushed.set(true), || true, &word), "there is more to do");
            assert!(pushed.replace(false) && !publish(|| (), || false, &word));
            let fences = before + u32::from(full);
            // Who falls asleep meanwhile is seen.
            let tell = || {
                assert_eq!(FENCES.get(), fences);
                note(&word);
            };
            assert!(announce(full, tell, &word));
            assert!(!announce(false, || (), &word), "it is woken once");
            note(&word);
            assert!(publish(|| (), || false, &word), "somebody sleeps");
            word.store(0, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_note_is_seen_by_one_of_those_that_look() {
        let word = AtomicU64::new(0);
        assert!(!wakes(&word), "nobody sleeps");
        note(&word);
        assert_eq!([wakes(&word), wakes(&word)], [true, false]);
    }
}
