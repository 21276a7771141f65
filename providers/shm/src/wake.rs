//! Sleeping and waking: the order of two stores and two loads on which both sides depend.
//!
//! The sleeper notes that it sleeps, and then checks for events. The publisher publishes an event, and then checks for the note. A
//! full fence between the two steps of each side ensures that at least one side sees the other's step. The publisher may omit its
//! fence if the sleeper provides both, by `membarrier`.
//!
//! The same source runs under loom, which has no `membarrier`: there both sides have their fences.
#![cfg_attr(loom, allow(dead_code))] // under loom only the rings and this module are built

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::order;

/// Checks whether the sleeper may sleep: sets its notes with [`note`] on every word that publishers read, and then finds no event.
pub(crate) fn may_sleep(notes: impl FnOnce(), has_news: impl FnOnce() -> bool) -> bool {
    notes();
    fence(order::SLEEPER);
    #[cfg(not(loom))]
    crate::sys::membarrier();
    !has_news()
}

/// Records in a word that its owner sleeps.
pub(crate) fn note(word: &AtomicU64) {
    word.store(1, Ordering::SeqCst);
}

/// Publishes with `step`, and returns whether [`announce`] must follow: the publisher has work (`todo`), or the other side sleeps.
/// A publisher that needs its own fence must return true from `todo`, because this load may be ordered before the publication.
#[inline(always)]
pub(crate) fn publish(step: impl FnOnce(), todo: impl FnOnce() -> bool, word: &AtomicU64) -> bool {
    step();
    todo() || {
        keep_order();
        word.load(Ordering::Relaxed) != 0
    }
}

/// Does the steps after a publication: the fence (`full` unless the sleeper provides it), and `tell`. Then it returns whether to
/// wake the other side.
#[inline(always)]
pub(crate) fn announce(full: bool, tell: impl FnOnce(), word: &AtomicU64) -> bool {
    if full {
        pay();
    } else {
        keep_order();
    }
    tell();
    wakes(word)
}

/// Keeps the compiler from exchanging the publication and the load of the note. The membarrier of a sleeper orders the processor's
/// accesses.
#[inline(always)]
fn keep_order() {
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(order::PUBLISHER);
}

/// Executes the publisher's fence. Tests count it, because on one processor a missing fence has no effect.
#[inline(always)]
fn pay() {
    #[cfg(all(test, not(loom)))]
    FENCES.set(FENCES.get() + 1);
    fence(order::PUBLISHER);
}

#[cfg(all(test, not(loom)))]
thread_local! {
    /// The number of fences that this thread has executed for publications.
    pub(crate) static FENCES: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Checks whether the other side sleeps and this caller must wake it. The result is true for one caller only.
#[inline(always)]
fn wakes(word: &AtomicU64) -> bool {
    word.load(Ordering::Relaxed) != 0 && word.swap(0, Ordering::SeqCst) != 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sys::BARRIERS;
    use std::cell::Cell;

    /// loom does not see this order, because loom has no `membarrier`.
    #[test]
    fn sleeper_runs_membarrier_between_its_note_and_its_check() {
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
    fn publisher_fences_then_announces_then_checks_for_sleeper() {
        let (word, before) = (AtomicU64::new(0), FENCES.get());
        let pushed = Cell::new(false);
        for full in [false, true] {
            assert!(publish(|| pushed.set(true), || true, &word), "there is more to do");
            assert!(pushed.replace(false) && !publish(|| (), || false, &word));
            let fences = before + u32::from(full);
            // A side that falls asleep meanwhile is noticed.
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
