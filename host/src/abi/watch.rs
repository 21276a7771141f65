//! The watch words of an interface, which the core compares instead of polling.

use std::sync::atomic::{AtomicU64, Ordering};
use tieline_plugin_api::abi::{WatchList, WatchWord};

/// The maximum number of words in a list.
const MOST: u64 = 8;

/// The list of an interface's watch words, or an empty list.
#[derive(Clone, Copy, Debug)]
pub struct WatchWords(*const WatchList);

/// The list of interfaces that have none.
struct Nothing(WatchList);

// SAFETY: the list is a constant, and its pointers are null.
unsafe impl Sync for Nothing {}

static NOTHING: Nothing = Nothing(WatchList::empty());
/// The list of an interface without words that is polled without any other step: more words than a list has.
static ALONE: Nothing = Nothing(WatchList { count: u64::MAX, ..WatchList::empty() });

/// The result of a comparison of watch words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// A poll would return no event.
    Unchanged,
    /// A word has changed, or the words must not be read.
    Changed,
    /// The list is empty.
    Empty,
    /// These are [`WatchWords::ALONE`], or the number of words is not two. The words may be read, and were not compared.
    Other,
}

impl WatchWords {
    /// An empty list: the interface has to be polled.
    pub const NONE: WatchWords = WatchWords(&raw const NOTHING.0);

    /// A list without words for an interface that is polled without any other step.
    pub const ALONE: WatchWords = WatchWords(&raw const ALONE.0);

    /// Checks whether this is [`WatchWords::ALONE`].
    #[inline(always)]
    #[must_use]
    pub fn are_of_one_alone(self) -> bool {
        std::ptr::eq(self.0, WatchWords::ALONE.0)
    }

    /// Makes the value from the result of the slot `watch`.
    ///
    /// # Safety
    /// By the ABI, the pointer is null, or leads to a list that stays at its address until the interface is closed.
    pub(super) unsafe fn new(list: *const WatchList) -> WatchWords {
        if list.is_null() || !list.is_aligned() {
            return WatchWords::NONE;
        }
        // SAFETY: the caller's promise; a list begins with its size.
        let size = unsafe { (&raw const (*list).size).read() };
        if size < size_of::<WatchList>() { WatchWords::NONE } else { WatchWords(list) }
    }

    /// Checks whether the interface has a list, which may be empty at the moment.
    #[must_use]
    pub fn are_there(self) -> bool {
        !std::ptr::eq(self.0, WatchWords::NONE.0)
    }

    /// Checks whether a poll would return no event: the list is not empty, `may_read` holds, and every word has the stated value.
    ///
    /// # Safety
    /// The interface is open, this is its thread, and no call on the interface or on one of its endpoints is in progress, except one
    /// that runs a packer. If `may_read` holds, the words are mapped in this process: it is the one that opened the interface.
    #[inline(always)]
    #[must_use]
    pub unsafe fn are_unchanged(self, may_read: impl FnOnce() -> bool) -> bool {
        // SAFETY: the caller's promise.
        match unsafe { self.look(may_read) } {
            // SAFETY: the caller's promise; the words may be read.
            Look::Other => unsafe { self.are_all_unchanged() },
            look => look == Look::Unchanged,
        }
    }

    /// Compares two words like [`WatchWords::are_unchanged`], and tells other cases apart.
    ///
    /// # Safety
    /// As [`WatchWords::are_unchanged`].
    #[inline(always)]
    #[must_use]
    pub unsafe fn look(self, may_read: impl FnOnce() -> bool) -> Look {
        // SAFETY: the list stays at its address. Only calls of the provider write it, and none does so now.
        let list = unsafe { &*self.0 };
        if list.count == 2 {
            let [first, second, ..] = &list.words;
            // SAFETY: the two words are listed.
            let unchanged = may_read() && unsafe { is_unchanged(first) && is_unchanged(second) };
            return if unchanged { Look::Unchanged } else { Look::Changed };
        }
        match list.count {
            0 => Look::Empty,
            _ if !may_read() => Look::Changed,
            _ => Look::Other,
        }
    }

    /// Does the same as `are_unchanged`, for any number of words.
    ///
    /// # Safety
    /// As [`WatchWords::are_unchanged`], if the words may be read.
    #[inline(never)]
    unsafe fn are_all_unchanged(self) -> bool {
        // SAFETY: the caller's promise.
        let list = unsafe { &*self.0 };
        // SAFETY: the caller's promise; the words below `count` are listed.
        let same = |word: &WatchWord| unsafe { is_unchanged(word) };
        list.count <= MOST && list.words.iter().take(list.count as usize).all(same)
    }
}

/// # Safety
/// The word is in the list of an interface, under the conditions of [`WatchWords::are_unchanged`].
#[inline(always)]
unsafe fn is_unchanged(word: &WatchWord) -> bool {
    // SAFETY: by the ABI, a listed word is aligned and stays readable until the next call on the interface. A peer may write it at
    // any time, hence the atomic. The event itself is read by the poll that follows a change.
    unsafe { (*word.at.cast::<AtomicU64>()).load(Ordering::Relaxed) == word.seen }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unchanged(words: WatchWords) -> bool {
        // SAFETY: the list and its words are local variables of this thread.
        unsafe { words.are_unchanged(|| true) }
    }

    fn watched(list: &WatchList) -> WatchWords {
        // SAFETY: the list outlives the result in these tests.
        unsafe { WatchWords::new(list) }
    }

    #[test]
    fn every_listed_word_counts_and_no_other() {
        let words: [AtomicU64; 9] = std::array::from_fn(|n| AtomicU64::new(n as u64));
        for count in 0..=9 {
            let mut list = WatchList::empty();
            list.count = count as u64;
            for (n, word) in list.words.iter_mut().enumerate() {
                *word = WatchWord { at: words[n].as_ptr(), seen: n as u64 };
            }
            assert_eq!(unchanged(watched(&list)), (1..=8).contains(&count), "{count} words");
            for (n, word) in words.iter().enumerate() {
                word.store(u64::MAX, Ordering::Relaxed);
                let same = (1..=8).contains(&count) && n >= count;
                assert_eq!(unchanged(watched(&list)), same, "word {n} of {count}");
                word.store(n as u64, Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn words_that_may_not_be_read_are_not_read() {
        let mut list = WatchList::empty();
        for count in 1..=8 {
            // The words are null.
            list.count = count;
            // SAFETY: no word is read.
            assert!(!unsafe { watched(&list).are_unchanged(|| false) });
        }
    }

    #[test]
    fn no_list_and_a_short_one_are_empty() {
        // SAFETY: null is allowed.
        let none = unsafe { WatchWords::new(std::ptr::null()) };
        assert!(!none.are_there() && !unchanged(none) && !unchanged(WatchWords::NONE));
        assert!(WatchWords::ALONE.are_of_one_alone() && !unchanged(WatchWords::ALONE));
        assert!(!none.are_of_one_alone());
        let many = WatchList { count: u64::MAX, ..WatchList::empty() };
        assert!(!watched(&many).are_of_one_alone() && !unchanged(watched(&many)));
        let mut short = WatchList::empty();
        assert!(watched(&short).are_there());
        short.size -= 8;
        assert!(!watched(&short).are_there());
    }
}
