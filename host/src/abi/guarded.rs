//! Room for the answer of a provider's function, between marked words.

use super::watched::{Broke, MARK};
use std::marker::PhantomData;

/// The number of marked words on each side.
pub(crate) const BESIDE: usize = 512;

/// Room for records of the ABI.
pub(crate) struct Guarded<T> {
    words: Vec<u64>,
    capacity: usize,
    of: PhantomData<T>,
}

impl<T: Copy> Guarded<T> {
    /// Makes room for `capacity` copies of `record`.
    pub(crate) fn new(record: T, capacity: usize) -> Guarded<T> {
        const { assert!(align_of::<T>() <= align_of::<u64>()) };
        let words = (capacity * size_of::<T>()).div_ceil(size_of::<u64>());
        let words = vec![MARK; BESIDE + words + BESIDE];
        let mut room = Guarded { words, capacity, of: PhantomData };
        let first: *mut T = room.at();
        for number in 0..capacity {
            // SAFETY: inside the words, which are aligned as well as records are.
            unsafe { first.add(number).write(record) };
        }
        room
    }

    /// Returns the address of the first record.
    pub(crate) fn at(&mut self) -> *mut T {
        // The pointer is made from all words: a provider may write before the room.
        self.words.as_mut_ptr().wrapping_add(BESIDE).cast()
    }

    /// Returns whether the marked words are unchanged.
    pub(crate) fn is_whole(&self) -> bool {
        // A comparison of whole slices is one call, which is twenty times as fast as a loop over the words.
        static MARKS: [u64; BESIDE] = [MARK; BESIDE];
        let behind = self.words.len() - BESIDE;
        self.words[..BESIDE] == MARKS && self.words[behind..] == MARKS
    }

    /// Returns an error if a marked word has changed, for a trial.
    pub(crate) fn check(&self) -> Result<(), Broke> {
        if self.is_whole() { Ok(()) } else { Err(Broke::Memory) }
    }

    /// Returns the first `count` records, at most all of them, as they are now.
    pub(crate) fn first(&mut self, count: usize) -> Vec<T> {
        let first: *mut T = self.at();
        // SAFETY: each was written in `new`; a provider that writes there writes what the ABI has there.
        (0..count.min(self.capacity)).map(|at| unsafe { first.add(at).read() }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_beside_the_buffer_are_detected_and_bytes_inside_are_read() {
        let beside = BESIDE as isize;
        for (at, whole) in
            [(-beside, false), (-1, false), (0, true), (2, true), (3, false), (2 + beside, false)]
        {
            let mut room = Guarded::new(7u64, 3);
            let first = room.at();
            // SAFETY: a word of the room or beside it.
            unsafe { *first.offset(at) = 1 };
            assert_eq!((room.is_whole(), room.check().is_ok()), (whole, whole), "{at}");
            let now: Vec<u64> = (0..3).map(|n| if n == at { 1 } else { 7 }).collect();
            assert_eq!(room.first(9), now, "{at}");
        }
        let mut bytes = Guarded::new(7u8, 3);
        // SAFETY: the last one of three.
        unsafe { *bytes.at().add(2) = 1 };
        assert_eq!(
            (bytes.first(2), bytes.first(3), bytes.is_whole()),
            (vec![7, 7], vec![7, 7, 1], true)
        );
    }
}
