//! The orderings of this crate's accesses to memory that two processes share, each with its reason and its counterpart.
//!
//! x86-64 reorders only a store with a later load, so most of these orderings cost nothing there and no test on it misses them. 64-bit
//! Arm may reorder any two accesses of different words. The tests below check each protocol against all outcomes that such a
//! processor permits (`tieline_testing::litmus`).
//!
//! | protocol | one side | other side |
//! |---|---|---|
//! | a slot, with its chunk | [`PUBLISH_SLOT`] | [`TAKE_SLOT`] |
//! | a slot's memory, back to the sender | [`PUBLISH_TAIL`] | [`READ_TAIL`] |
//! | a bell, for slots written before | [`RING_BELL`] | [`TAKE_BELL`] |
//! | a word that the core compares | [`PUBLISH_SLOT`] or [`RING_BELL`] | a relaxed load of the core, then [`TAKE_SLOT`] or [`TAKE_BELL`] |
//! | sleep and news (`wake.rs`) | [`SLEEPER`], and a membarrier | [`PUBLISHER`], or nothing with the membarrier |
//! | a key's entry | [`PUBLISH_KEY`] | [`CHECK_KEY`] |
//! | a part's end, and what its owner writes there later | [`after_end`] | [`after_get`], then [`CHECK_KEY`] |
//! | puts and gets behind each other | [`after_put`] | [`after_get`] |
//!
//! The verdict on a fast box and the note of a sleeper stand for themselves: no other word depends on their own orderings.

use std::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::sync::atomic::fence;

/// Stores a slot's control word. The slot's other words and the chunk that it names are written before it.
pub(crate) const PUBLISH_SLOT: Ordering = Ordering::Release;
/// Loads a control word. The slot's other words and its chunk are read after it.
pub(crate) const TAKE_SLOT: Ordering = Ordering::Acquire;

/// Stores the number of consumed slots. Their payloads were read before it.
pub(crate) const PUBLISH_TAIL: Ordering = Ordering::Release;
/// Loads the number of consumed slots. Their memory is written again after it.
pub(crate) const READ_TAIL: Ordering = Ordering::Acquire;

/// Sets a channel's bit in the doorbell. The slot was published before it.
#[cfg(not(loom))]
pub(crate) const RING_BELL: Ordering = Ordering::Release;
/// Takes the bits of a doorbell. The channels are drained after it.
#[cfg(not(loom))]
pub(crate) const TAKE_BELL: Ordering = Ordering::Acquire;

/// The fence of a sleeper between its note and its check for news. With a membarrier, publishers need no fence.
pub(crate) const SLEEPER: Ordering = Ordering::SeqCst;
/// The fence of a publisher between the publication and its check for a sleeper. An acquire or release fence would not order a
/// store before a later load.
pub(crate) const PUBLISHER: Ordering = Ordering::SeqCst;

/// Stores the words of a key's entry, the number of its region last.
#[cfg(not(loom))]
pub(crate) const PUBLISH_KEY: Ordering = Ordering::Release;
/// Loads the number of a region, before the other words of the entry and before the access to the region.
#[cfg(not(loom))]
pub(crate) const CHECK_KEY: Ordering = Ordering::Acquire;

/// The fence between the end of a key and later stores of the owner. A store alone orders only what precedes it.
#[cfg(not(loom))]
const END: Ordering = Ordering::Release;

/// Ends a key, after the store to its entry. The owner may write to the memory of a part afterwards. A get that has copied such
/// bytes finds in its second check that the part has ended.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn after_end() {
    fence(END);
    #[cfg(test)]
    tests::ENDED.with_borrow_mut(|ended| ended.push("key"));
}

/// Ends a put: whatever this thread stores later becomes visible after it.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn after_put() {
    tieline_memory_file::after_put();
    #[cfg(test)]
    tests::ENDED.with_borrow_mut(|ended| ended.push("put"));
}

/// Ends a get: whatever this thread loads or stores later follows it.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn after_get() {
    tieline_memory_file::after_get();
    #[cfg(test)]
    tests::ENDED.with_borrow_mut(|ended| ended.push("get"));
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use super::*;
    use Ordering::{Acquire, Relaxed, SeqCst};
    use tieline_testing::litmus::Protocol;
    use tieline_testing::litmus::Step::{Fence, Load, Membarrier, Store, Swap};

    thread_local! {
        /// The puts, gets and keys of this thread that have ended.
        pub(crate) static ENDED: std::cell::RefCell<Vec<&'static str>> = const { std::cell::RefCell::new(Vec::new()) };
    }

    #[test]
    fn message_is_whole_when_its_slot_is_taken() {
        Protocol {
            orders: &[("publish", PUBLISH_SLOT), ("take", TAKE_SLOT)],
            threads: |order| {
                vec![
                    vec![
                        Store("chunk", 1, Relaxed),
                        Store("body", 1, Relaxed),
                        Store("control", 1, order[0]),
                    ],
                    vec![
                        Load("control", "taken", order[1]),
                        Load("body", "body", Relaxed),
                        Load("chunk", "chunk", Relaxed),
                    ],
                ]
            },
            is_wrong: |end| end.of("taken") == 1 && (end.of("body"), end.of("chunk")) != (1, 1),
        }
        .check();
    }

    /// The core compares the control word with a relaxed load. The poll that follows loads the word again.
    #[test]
    fn poll_takes_the_whole_slot_after_the_core_has_seen_its_word_change() {
        Protocol {
            orders: &[("publish", PUBLISH_SLOT), ("take", TAKE_SLOT)],
            threads: |order| {
                vec![
                    vec![Store("body", 1, Relaxed), Store("control", 1, order[0])],
                    vec![
                        Load("control", "compared", Relaxed),
                        Load("control", "taken", order[1]),
                        Load("body", "body", Relaxed),
                    ],
                ]
            },
            is_wrong: |end| end.of("compared") == 1 && (end.of("taken"), end.of("body")) != (1, 1),
        }
        .check();
    }

    #[test]
    fn slot_is_not_written_again_before_it_was_read() {
        Protocol {
            orders: &[("publish", PUBLISH_TAIL), ("read", READ_TAIL)],
            threads: |order| {
                vec![
                    vec![Load("tail", "tail", order[1]), Store("body", 2, Relaxed)],
                    vec![Load("body", "body", Relaxed), Store("tail", 1, order[0])],
                ]
            },
            is_wrong: |end| (end.of("tail"), end.of("body")) == (1, 2),
        }
        .check();
    }

    /// A poll first looks at the bell with a relaxed load, as the core does before it.
    #[test]
    fn channel_whose_bell_was_taken_shows_the_slot() {
        Protocol {
            orders: &[("ring", RING_BELL), ("take", TAKE_BELL)],
            threads: |order| {
                vec![
                    vec![Store("control", 1, PUBLISH_SLOT), Swap("bell", 1, "before", order[0])],
                    vec![
                        Load("bell", "look", Relaxed),
                        Swap("bell", 0, "bell", order[1]),
                        Load("control", "taken", TAKE_SLOT),
                    ],
                ]
            },
            is_wrong: |end| (end.of("bell"), end.of("taken")) == (1, 0),
        }
        .check();
    }

    /// The steps of `wake.rs` with a publisher that has its own fence. The bell comes after the fence.
    #[test]
    fn sleeper_sees_the_slot_or_publisher_with_fence_sees_the_sleeper() {
        Protocol {
            orders: &[("publisher", PUBLISHER), ("sleeper", SLEEPER)],
            threads: |order| {
                vec![
                    vec![
                        Store("control", 1, PUBLISH_SLOT),
                        Fence(order[0]),
                        Swap("bell", 1, "before", RING_BELL),
                        Load("sleeps", "sleeps", Relaxed),
                    ],
                    vec![
                        Store("sleeps", 1, Relaxed),
                        Fence(order[1]),
                        Load("control", "news", TAKE_SLOT),
                    ],
                ]
            },
            is_wrong: |end| (end.of("sleeps"), end.of("news")) == (0, 0),
        }
        .check();
    }

    #[test]
    fn sleeper_with_membarrier_needs_no_fence_of_the_publisher() {
        for barrier in [Membarrier, Fence(SLEEPER)] {
            let publisher =
                vec![Store("control", 1, PUBLISH_SLOT), Load("sleeps", "sleeps", Relaxed)];
            let sleeper =
                vec![Store("sleeps", 1, Relaxed), barrier, Load("control", "news", TAKE_SLOT)];
            let all = tieline_testing::litmus::outcomes(&[publisher, sleeper]);
            let is_lost = all.iter().any(|end| (end.of("sleeps"), end.of("news")) == (0, 0));
            assert_eq!(is_lost, barrier != Membarrier, "{barrier:?}");
        }
    }

    #[test]
    fn key_that_is_valid_has_the_words_of_its_region() {
        Protocol {
            orders: &[("publish", PUBLISH_KEY), ("check", CHECK_KEY)],
            threads: |order| {
                vec![
                    vec![Store("len", 1, Relaxed), Store("segment", 1, order[0])],
                    vec![Load("segment", "segment", order[1]), Load("len", "len", Relaxed)],
                ]
            },
            is_wrong: |end| (end.of("segment"), end.of("len")) == (1, 0),
        }
        .check();
    }

    /// After the end, the owner writes other bytes. The get copies them, ends (`GET` in `memory-file`), and checks the key again.
    #[test]
    fn get_that_copies_bytes_from_after_a_part_finds_its_end() {
        Protocol {
            orders: &[("end", END), ("get", Acquire)],
            threads: |order| {
                vec![
                    vec![Store("ended", 1, SeqCst), Fence(order[0]), Store("memory", 2, Relaxed)],
                    vec![
                        Load("memory", "copied", Relaxed),
                        Fence(order[1]),
                        Load("ended", "ended", CHECK_KEY),
                    ],
                ]
            },
            is_wrong: |end| (end.of("copied"), end.of("ended")) == (2, 0),
        }
        .check();
    }
}
