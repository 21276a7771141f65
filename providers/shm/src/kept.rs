//! Positions in a mapping that are checked once and kept together with the mapping, for accesses of every operation.

mod sys;

#[cfg(test)]
pub(crate) use sys::unchanged;
pub(crate) use sys::{Word, Words};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{Mapping, PAGE, memory_file, reserve};
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use tieline_plugin_api::abi::Iov;

    fn page(writable: bool) -> (Arc<Mapping>, Arc<Mapping>) {
        let file = memory_file(c"kept", PAGE).unwrap();
        reserve(&file, 0, PAGE).unwrap();
        let map = |writable| Arc::new(Mapping::new(file.as_fd(), PAGE, writable).unwrap());
        (map(true), map(writable))
    }

    fn piece(word: &mut u64, len: usize) -> Iov {
        Iov { base: std::ptr::from_mut(word).cast(), len, region: std::ptr::null_mut() }
    }

    #[test]
    fn a_kept_word_is_the_word_of_the_mapping_and_outlives_other_handles() {
        let (mine, theirs) = page(false);
        assert!(Word::of(&theirs, PAGE).is_none());
        assert!(Word::of(&theirs, 4).is_none());
        let word = Word::of(&theirs, PAGE - 8).unwrap();
        drop(theirs);
        mine.word(PAGE - 8).unwrap().store(7, Ordering::Release);
        assert_eq!(word.get().load(Ordering::Acquire), 7);
    }

    #[test]
    fn words_are_copied_at_every_offset_where_a_whole_word_fits() {
        let (mine, theirs) = page(true);
        let words = Words::of(&theirs, 0, 19, true, true).unwrap();
        let mut value = 0x0102_0304_0506_0708_u64;
        let mut back = 0u64;
        for offset in [0, 3, 8, 11] {
            value += 1;
            assert!(words.put(offset, &piece(&mut value, 8)), "{offset}");
            assert!(words.get(offset, &piece(&mut back, 8)), "{offset}");
            assert_eq!(back, value);
        }
        assert_eq!(mine.word(16).unwrap().load(Ordering::Acquire), value >> 40);
        for offset in [12, 16, 19, u64::MAX - 7, u64::MAX] {
            assert!(!words.put(offset, &piece(&mut value, 8)), "{offset}");
            assert!(!words.get(offset, &piece(&mut back, 8)), "{offset}");
        }
    }

    #[test]
    fn fast_path_declines_pieces_that_are_no_granted_word() {
        let (_, theirs) = page(true);
        let mut value = 5;
        let words = Words::of(&theirs, 0, 64, true, false).unwrap();
        assert!(!words.put(0, &piece(&mut value, 8)));
        assert!(!words.get(0, &piece(&mut value, 4)));
        assert!(!words.get(0, &piece(&mut value, 0)));
        let words = Words::of(&theirs, 0, 64, false, true).unwrap();
        assert!(!words.get(0, &piece(&mut value, 8)));
        assert!(!words.put(0, &piece(&mut value, 7)));
        let words = Words::of(&theirs, 0, 7, true, true).unwrap();
        assert!(!words.put(0, &piece(&mut value, 8)), "a region of less than a word");
        assert!(Words::of(&theirs, 0, PAGE as u64 + 1, true, true).is_none());
        let words = Words::of(&page(false).1, 0, 64, true, true).unwrap();
        assert!(!words.put(0, &piece(&mut value, 8)), "the mapping is for reading");
    }
}
