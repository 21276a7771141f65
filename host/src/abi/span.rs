//! Memory that others may write at any time, and the copies that read and write it.

use super::processor::copy_shared;
use std::sync::atomic::{AtomicU32, AtomicU64};
use tieline_plugin_api::Status;

/// Memory that other processes may read and write at any time. The bytes are accessed by copies and atomics only, and never by a
/// Rust reference.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    base: *mut u8,
    len: usize,
}

// SAFETY: a span is an address; every access uses copies and atomics that tolerate concurrent writers.
unsafe impl Send for Span {}
// SAFETY: the reason for `Send` applies.
unsafe impl Sync for Span {}

impl Span {
    /// # Safety
    /// `base` is valid for reads and writes of `len` bytes for as long as the span or a copy of it is used.
    pub unsafe fn new(base: *mut u8, len: usize) -> Span {
        Span { base, len }
    }

    /// Makes a span of a buffer that the caller keeps alive and does not move.
    #[cfg(any(test, feature = "test-hooks"))]
    pub fn from_owned(buffer: &mut [u8]) -> Span {
        Span { base: buffer.as_mut_ptr(), len: buffer.len() }
    }

    /// Makes a span of words that the caller keeps alive and does not move.
    #[cfg(any(test, feature = "test-hooks"))]
    pub fn from_words(words: &mut [u64]) -> Span {
        Span { base: words.as_mut_ptr().cast(), len: size_of_val(words) }
    }

    /// Returns the address of the first byte.
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Returns the length in bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "an empty range has no meaning of its own")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of a range of the span, or the error for a range outside.
    #[inline]
    pub fn range(&self, offset: usize, len: usize) -> Result<*mut u8, Status> {
        match offset.checked_add(len) {
            // SAFETY: the offset lies inside the span.
            Some(end) if end <= self.len => Ok(unsafe { self.base.add(offset) }),
            _ => Err(Status::OutOfRange),
        }
    }

    /// Returns the span of a range of this span, or the error for a range outside.
    ///
    /// # Safety
    /// The caller uses the part only as long as this span may be used.
    pub unsafe fn part(&self, offset: usize, len: usize) -> Result<Span, Status> {
        Ok(Span { base: self.range(offset, len)?, len })
    }

    /// Copies out of the span.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Status> {
        let from = self.range(offset, out.len())?;
        // SAFETY: the range was checked; `out` is writable for its length.
        unsafe { copy_shared(from, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies into the span.
    #[inline]
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), Status> {
        let to = self.range(offset, data.len())?;
        // SAFETY: the range was checked.
        unsafe { copy_shared(data.as_ptr(), to, data.len()) };
        Ok(())
    }

    /// Returns an aligned 32-bit word of the span.
    pub fn word32(&self, offset: usize) -> Result<&AtomicU32, Status> {
        let at = self.range(offset, 4)?;
        if at as usize % 4 != 0 {
            return Err(Status::Misaligned);
        }
        // SAFETY: the word is in range and aligned, and an atomic tolerates concurrent writers.
        Ok(unsafe { &*at.cast() })
    }

    /// Returns an aligned 64-bit word of the span.
    pub fn word64(&self, offset: usize) -> Result<&AtomicU64, Status> {
        let at = self.range(offset, 8)?;
        if at as usize % 8 != 0 {
            return Err(Status::Misaligned);
        }
        // SAFETY: the word is in range and aligned, and an atomic tolerates concurrent writers.
        Ok(unsafe { &*at.cast() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_refuses_ranges_outside_and_wrapping_ones() {
        let mut memory = vec![0u8; 64];
        let span = Span::from_owned(&mut memory);
        assert_eq!(span.write(60, b"abcd"), Ok(()));
        assert_eq!(span.write(61, b"abcd"), Err(Status::OutOfRange));
        assert_eq!(span.write(usize::MAX, b"abcd"), Err(Status::OutOfRange));
        let mut out = [0; 4];
        assert_eq!(span.read(60, &mut out), Ok(()));
        assert_eq!(&out, b"abcd");
        assert!(span.word64(57).is_err());
    }

    #[test]
    fn a_copy_of_any_length_and_place_copies_that_and_nothing_else() {
        let source: Vec<u8> = (0..700u32).map(|n| (n % 251) as u8).collect();
        let places = [(0, 0), (3, 3), (1, 6), (8, 16)];
        let lengths = if cfg!(miri) { vec![0, 1, 8, 77, 600] } else { (0..600).collect() };
        for ((from, to), len) in places.iter().flat_map(|at| lengths.iter().map(|n| (*at, *n))) {
            let mut memory = vec![0xeeu8; 700];
            let span = Span::from_owned(&mut memory);
            span.write(to, &source[from..from + len]).unwrap();
            let mut back = vec![0; len];
            span.read(to, &mut back).unwrap();
            assert_eq!(back, source[from..from + len]);
            assert!(memory[..to].iter().chain(&memory[to + len..]).all(|&b| b == 0xee));
        }
    }

    #[test]
    fn a_copy_moves_each_byte_once() {
        for len in 0..600 {
            let mut memory: Vec<u8> = (0..700u32).map(|n| (n % 251) as u8).collect();
            let moved = memory[20..20 + len].to_vec();
            let to = memory.as_mut_ptr();
            // SAFETY: both ranges lie inside the buffer, the pointers come from one pointer, and no reference exists meanwhile.
            unsafe { copy_shared(to.add(20), to.add(17), len) };
            assert_eq!(memory[17..17 + len], moved, "{len} bytes");
        }
    }

    #[test]
    fn words_of_a_span_are_aligned_and_inside() {
        let mut words = [0u64; 2];
        let span = Span::from_words(&mut words);
        assert_eq!(span.word32(12).map(|_| ()), Ok(()));
        assert_eq!(span.word32(13).map(|_| ()), Err(Status::OutOfRange));
        assert_eq!(span.word32(2).map(|_| ()), Err(Status::Misaligned));
        assert_eq!(span.word64(8).map(|_| ()), Ok(()));
        assert_eq!(span.word64(4).map(|_| ()), Err(Status::Misaligned));
        assert_eq!(span.word64(9).map(|_| ()), Err(Status::OutOfRange));
        // SAFETY: the words outlive the parts.
        let part = |at, len| unsafe { span.part(at, len) };
        let inside = part(4, 8).unwrap();
        assert_eq!((inside.base(), inside.len()), (span.base().wrapping_add(4), 8));
        assert_eq!(part(9, 8).map(|part| part.len()), Err(Status::OutOfRange));
        assert_eq!((span.range(16, 0).is_ok(), span.range(17, 0).is_ok()), (true, false));
    }
}
