//! The orderings of accesses to memory that processes share, each with its reason and its counterpart.
//!
//! x86-64 reorders only a store with a later load. 64-bit Arm may reorder any two accesses of different words, so an ordering that is
//! missing shows only there. The tests below check each protocol against all outcomes that such a processor permits.
//!
//! | protocol | one side | other side |
//! |---|---|---|
//! | an announced access and a revocation | [`ANNOUNCED`] after the token | [`ANNOUNCED`] after the revocation |
//! | the check of a key, and the next access without one | [`COUNT_REVOCATION`] after the revocation | [`COUNTED`] before the check |
//! | the end of an announced access | [`LEFT`] | [`LOOK`] |
//! | an entry of the table of registrations | [`PUBLISH_ENTRY`]; [`CLEARED`] before the next use | [`READ_ENTRY`]; [`WAS_READ`] before the check |
//! | two puts by stores | [`after_put`] | the application's loads, or a get |
//! | two gets by loads | the application's stores, or a put | [`after_get`] |

use std::sync::atomic::{Ordering, fence};

/// The fence between a side's own store and its load of the other side's word: the accessor announces itself and then checks the
/// key, the owner revokes the key and then looks for announcements. Only this kind of fence orders a store before a later load.
pub(crate) const ANNOUNCED: Ordering = Ordering::SeqCst;

/// Counts a revocation, after it.
pub(crate) const COUNT_REVOCATION: Ordering = Ordering::Release;
/// Loads the number of revocations before a key is checked. A check that finds a key valid before its revocation is thereby never
/// taken for a later one.
pub(crate) const COUNTED: Ordering = Ordering::Acquire;

/// The fence between an access and the end of its announcement. It also orders the access before all that this thread stores
/// later, and what it has loaded before all later accesses.
pub(crate) const LEFT: Ordering = Ordering::AcqRel;
/// Loads an announcement. The owner reuses the memory after it.
pub(crate) const LOOK: Ordering = Ordering::SeqCst;

/// Stores the generation of an entry. The entry's words are stored before it.
pub(crate) const PUBLISH_ENTRY: Ordering = Ordering::Release;
/// Loads the generation of an entry, before the entry's words.
pub(crate) const READ_ENTRY: Ordering = Ordering::Acquire;
/// The fence between the end of a registration and the words of the entry's next registration.
pub(crate) const CLEARED: Ordering = Ordering::SeqCst;
/// The fence between the words of an entry and the second check of its generation.
pub(crate) const WAS_READ: Ordering = Ordering::Acquire;

const PUT: Ordering = Ordering::Release;
const GET: Ordering = Ordering::Acquire;

/// Ends a put that was made by stores. Whatever this thread stores later becomes visible after the put, as the completion of a put
/// promises. x86-64 needs no instruction for this.
#[inline(always)]
pub fn after_put() {
    fence(PUT);
}

/// Ends a get that was made by loads. Whatever this thread loads or stores later follows the get. x86-64 needs no instruction for
/// this.
#[inline(always)]
pub fn after_get() {
    fence(GET);
}

#[cfg(test)]
mod tests {
    use super::*;
    use Ordering::{Acquire, Relaxed, Release};
    use tieline_testing::litmus::Protocol;
    use tieline_testing::litmus::Step::{Fence, Load, Store};

    #[test]
    fn accessor_finds_key_revoked_or_owner_finds_accessor() {
        Protocol {
            orders: &[("accessor", ANNOUNCED), ("owner", ANNOUNCED)],
            threads: |order| {
                vec![
                    vec![
                        Store("token", 1, Relaxed),
                        Fence(order[0]),
                        Load("revoked", "revoked", Relaxed),
                    ],
                    vec![
                        Store("revoked", 1, Relaxed),
                        Fence(order[1]),
                        Load("token", "token", LOOK),
                    ],
                ]
            },
            is_wrong: |end| (end.of("revoked"), end.of("token")) == (0, 0),
        }
        .check();
    }

    /// The accessor checks the key in its first access, and only compares the numbers in its second one.
    #[test]
    fn access_without_check_finds_revocation_counted_or_owner_finds_accessor() {
        Protocol {
            orders: &[("counted", COUNTED), ("count", COUNT_REVOCATION), ("fence", ANNOUNCED)],
            threads: |order| {
                vec![
                    vec![
                        Load("count", "before", order[0]),
                        Load("revoked", "checked", Relaxed),
                        Store("token", 1, Relaxed),
                        Fence(order[2]),
                        Load("count", "after", order[0]),
                    ],
                    vec![
                        Store("revoked", 1, Relaxed),
                        Store("count", 1, order[1]),
                        Fence(order[2]),
                        Load("token", "token", LOOK),
                    ],
                ]
            },
            is_wrong: |end| {
                let skips = end.of("checked") == 0 && end.of("before") == end.of("after");
                skips && end.of("token") == 0
            },
        }
        .check();
    }

    #[test]
    fn memory_is_reused_only_after_an_access_that_was_seen_to_end() {
        Protocol {
            orders: &[("left", LEFT), ("look", LOOK)],
            threads: |order| {
                vec![
                    vec![
                        Load("memory", "copied", Relaxed),
                        Fence(order[0]),
                        Store("gone", 1, Relaxed),
                    ],
                    vec![Load("gone", "gone", order[1]), Store("memory", 2, Relaxed)],
                ]
            },
            is_wrong: |end| (end.of("gone"), end.of("copied")) == (1, 2),
        }
        .check();
    }

    /// Generation 0 and word 0 belong to the first registration, generation 2 and word 2 to the second.
    #[test]
    fn entry_is_never_a_mix_of_two_registrations() {
        Protocol {
            orders: &[
                ("cleared", CLEARED),
                ("publish", PUBLISH_ENTRY),
                ("read", READ_ENTRY),
                ("was read", WAS_READ),
            ],
            threads: |order| {
                vec![
                    vec![
                        Store("generation", 1, Relaxed),
                        Fence(order[0]),
                        Store("word", 2, Relaxed),
                        Store("generation", 2, order[1]),
                    ],
                    vec![
                        Load("generation", "before", order[2]),
                        Load("word", "word", Relaxed),
                        Fence(order[3]),
                        Load("generation", "after", Relaxed),
                    ],
                ]
            },
            is_wrong: |end| {
                let (before, word, after) = (end.of("before"), end.of("word"), end.of("after"));
                before == after && before != 1 && word != before
            },
        }
        .check();
    }

    #[test]
    fn put_is_visible_before_a_later_one_of_its_thread() {
        Protocol {
            orders: &[("put", PUT), ("reader", Acquire)],
            threads: |order| {
                vec![
                    vec![Store("block", 1, Relaxed), Fence(order[0]), Store("flag", 1, Relaxed)],
                    vec![Load("flag", "flag", order[1]), Load("block", "block", Relaxed)],
                ]
            },
            is_wrong: |end| (end.of("flag"), end.of("block")) == (1, 0),
        }
        .check();
    }

    #[test]
    fn get_reads_before_a_later_one_of_its_thread() {
        Protocol {
            orders: &[("writer", Release), ("get", GET)],
            threads: |order| {
                vec![
                    vec![Store("block", 1, Relaxed), Store("flag", 1, order[0])],
                    vec![
                        Load("flag", "flag", Relaxed),
                        Fence(order[1]),
                        Load("block", "block", Relaxed),
                    ],
                ]
            },
            is_wrong: |end| (end.of("flag"), end.of("block")) == (1, 0),
        }
        .check();
    }
}
