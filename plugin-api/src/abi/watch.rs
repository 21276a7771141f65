//! The list of watch words of a provider in Rust.

use super::{WatchList, WatchWord};
use core::cell::UnsafeCell;
use core::fmt;
use core::sync::atomic::AtomicU64;

/// The list of an interface's watch words, which the core compares instead of polling ([`crate::Interface::watch`]). Only the
/// interface's own thread uses the list.
///
/// The words stay mapped as long as the list names them: a call that unmaps one, or that makes an event without a changed word,
/// empties the list first.
#[repr(transparent)]
pub struct Watch(UnsafeCell<WatchList>);

impl Watch {
    /// The maximum number of words.
    pub const MOST: usize = 8;

    /// Makes an empty list: the core has to poll.
    #[must_use]
    pub const fn new() -> Watch {
        let nowhere = WatchWord { at: core::ptr::null(), seen: 0 };
        let size = size_of::<WatchList>();
        Watch(UnsafeCell::new(WatchList { size, count: 0, words: [nowhere; Watch::MOST] }))
    }

    /// Returns the address for the core.
    #[must_use]
    pub fn as_ptr(&self) -> *const WatchList {
        self.0.get()
    }

    /// Empties the list: the core has to poll.
    #[inline]
    pub fn clear(&self) {
        // SAFETY: one thread at a time uses the list, and no reference to its content exists outside of the methods.
        unsafe { (*self.0.get()).count = 0 }
    }

    /// Checks whether the core has to poll.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        // SAFETY: as in `clear`.
        unsafe { (*self.0.get()).count == 0 }
    }

    /// Replaces the list by these words and their values without an event. With no word, or with more than [`Watch::MOST`], the
    /// list is empty.
    pub fn set<'a>(&self, words: impl IntoIterator<Item = (&'a AtomicU64, u64)>) {
        self.clear();
        let mut count = 0;
        for (word, seen) in words {
            if count == Watch::MOST {
                return;
            }
            let word = WatchWord { at: word.as_ptr().cast_const(), seen };
            // SAFETY: as in `clear`; `count` is below the number of words.
            unsafe { (*self.0.get()).words[count] = word };
            count += 1;
        }
        // SAFETY: as in `clear`.
        unsafe { (*self.0.get()).count = count as u64 }
    }

    /// Returns the words and their values without an event, for tests.
    #[must_use]
    pub fn words(&self) -> Vec<(*const u64, u64)> {
        // SAFETY: as in `clear`.
        let list = unsafe { *self.0.get() };
        list.words.iter().take(list.count as usize).map(|word| (word.at, word.seen)).collect()
    }
}

impl Default for Watch {
    fn default() -> Watch {
        Watch::new()
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watch").field(&self.words()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_holds_up_to_eight_words_and_is_empty_with_none_or_more() {
        let (watch, words) = (Watch::new(), [const { AtomicU64::new(0) }; 9]);
        assert!(watch.is_empty() && watch.words().is_empty());
        for count in 1..=8 {
            watch.set(words[..count].iter().zip(5..));
            let expected: Vec<_> =
                words[..count].iter().map(|word| word.as_ptr().cast_const()).zip(5..).collect();
            assert_eq!(watch.words(), expected);
        }
        watch.set(words.iter().zip(5..));
        assert!(watch.is_empty());
        watch.set(words[..2].iter().zip(5..));
        watch.set(words[..0].iter().zip(5..));
        assert!(watch.is_empty());
        watch.set(words[..2].iter().zip(5..));
        watch.clear();
        assert!(watch.is_empty());
    }
}
