use super::*;

/// A multiple of every size that the kernel's pages have: 4, 16 and 64 KiB.
const PAGE: usize = 64 << 10;

/// Pages of memory: 20 writable ones, 20 read-only ones, and then unmapped ones.
struct Pages(*mut u8);

impl Pages {
    fn new() -> Pages {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the call makes a new mapping, with protected and unmapped pages that nothing uses.
        let at = unsafe {
            let at = libc::mmap(std::ptr::null_mut(), 64 * PAGE, prot, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            let at = at.cast::<u8>();
            std::ptr::write_bytes(at, 7, 64 * PAGE);
            assert_eq!(libc::mprotect(at.add(20 * PAGE).cast(), 20 * PAGE, libc::PROT_READ), 0);
            assert_eq!(libc::munmap(at.add(40 * PAGE).cast(), 24 * PAGE), 0);
            at
        };
        Pages(at)
    }

    fn read(&self, touch: &Touch, at: usize, len: usize) -> Result<Vec<u8>, Fault> {
        let mut out = vec![0; len];
        // SAFETY: the address is in the pages of this test, or in none.
        unsafe { touch.read(self.0.wrapping_add(at), &mut out) }.map(|()| out)
    }

    fn write(&self, touch: &Touch, at: usize, data: &[u8]) -> Result<(), Fault> {
        // SAFETY: the address is in the pages of this test, or in none.
        unsafe { touch.write(self.0.wrapping_add(at), data) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping.
        let _ = unsafe { libc::munmap(self.0.cast(), 40 * PAGE) };
    }
}

/// Returns an object that may use every mechanism, one without copies to itself, and one with pipes only.
fn kinds() -> [Touch; 3] {
    let (all, file, pipe) = (Touch::default(), Touch::default(), Touch::default());
    file.whole.set(false);
    pipe.whole.set(false);
    assert!(pipe.file.set(None).is_ok() && pipe.counter.set(None).is_ok());
    [all, file, pipe]
}

#[test]
fn each_way_copies_all_lengths_and_names_the_first_bad_byte() {
    for touch in kinds() {
        let pages = Pages::new();
        let piece = super::PAGE;
        for len in [0, 1, 8, 9, 100, piece, piece + 1, SHORT + 3, 20 * PAGE] {
            let data: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
            assert_eq!(pages.write(&touch, 0, &data), Ok(()), "{len}");
            assert_eq!(pages.read(&touch, 0, len), Ok(data), "{len}");
        }
        for at in [20 * PAGE - 1, 20 * PAGE - 5000, 0] {
            let long = vec![1; 20 * PAGE + 7 - at];
            assert_eq!(pages.write(&touch, at, &long), Err(Fault(20 * PAGE - at)), "{at}");
        }
        assert_eq!(pages.write(&touch, 20 * PAGE, &[1]), Err(Fault(0)));
        assert_eq!(pages.read(&touch, 20 * PAGE, 20 * PAGE).map(|all| all[0]), Ok(7));
        for (at, len) in
            [(40 * PAGE, 1), (40 * PAGE - 3, 9), (40 * PAGE - 1, 5 * PAGE), (0, 41 * PAGE)]
        {
            assert_eq!(pages.read(&touch, at, len), Err(Fault(40 * PAGE - at)), "{at} {len}");
        }
        // Bytes of an earlier copy are not part of a later one.
        assert_eq!(pages.write(&touch, 3, &[9, 8]), Ok(()));
        assert_eq!(pages.read(&touch, 2, 4).map(|all| all[1..3].to_vec()), Ok(vec![9, 8]));
    }
}

#[test]
fn words_of_any_value_are_read_as_they_are() {
    let touch = Touch::default();
    for word in [0u64, 1, u64::MAX, u64::MAX - 1, 1 << 63] {
        let words = [word; 2];
        for (skip, len) in [(0, 8), (4, 4), (3, 2), (7, 1)] {
            let mut out = vec![0; len];
            // SAFETY: the bytes belong to the array.
            let read = unsafe { touch.read(words.as_ptr().cast::<u8>().add(skip), &mut out) };
            assert_eq!((read, &out[..]), (Ok(()), &word.to_ne_bytes()[skip..skip + len]));
        }
    }
}

#[test]
fn a_word_is_asked_for_without_a_change() {
    let pages = Pages::new();
    assert!(is_writable(pages.0.addr()));
    assert!(is_writable(pages.0.wrapping_add(20 * PAGE - 4).addr()));
    assert!(!is_writable(pages.0.wrapping_add(20 * PAGE).addr()), "it may only be read");
    assert!(!is_writable(pages.0.wrapping_add(40 * PAGE).addr()), "it is not there");
    assert_eq!(pages.read(&Touch::default(), 0, 8), Ok(vec![7; 8]));
}
