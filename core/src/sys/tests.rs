//! Tests of copies, words and descriptors.

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

/// A reader that has seen a word arrive may overwrite the word, and a second store would undo that. In this test the first move
/// itself changes the bytes that a second move would read.
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
fn a_wakeup_ends_a_wait() {
    let poller = Poller::new().unwrap();
    let wakeup = Wakeup::new().unwrap();
    poller.add(wakeup.as_raw_fd()).unwrap();
    assert!(!poller.wait(Some(Duration::ZERO)).unwrap());
    wakeup.wake();
    assert!(poller.wait(None).unwrap());
}

#[test]
fn a_timer_is_readable_from_its_time_on_and_not_when_it_is_stopped() {
    let (poller, timer) = (Poller::new().unwrap(), Timer::new().unwrap());
    poller.add(timer.as_raw_fd()).unwrap();
    let now = || poller.wait(Some(Duration::ZERO)).unwrap();
    timer.set(Some(Duration::from_secs(3600))).unwrap();
    assert!(!now());
    timer.set(Some(Duration::ZERO)).unwrap();
    assert!(poller.wait(None).unwrap(), "no time is no end of it");
    timer.set(None).unwrap();
    assert!(!now());
    timer.set(Some(Duration::from_nanos(1))).unwrap();
    assert!(poller.wait(None).unwrap());
    timer.set(Some(Duration::from_secs(3600))).unwrap();
    assert!(!now(), "it is not readable until then");
}

#[test]
fn wakeups_are_counted_once_and_need_a_watching_poller() {
    let (poller, wakeup) = (Poller::new().unwrap(), Wakeup::new().unwrap());
    assert_eq!(wakeup.take(), 0);
    poller.add(wakeup.as_raw_fd()).unwrap();
    (0..3).for_each(|_| wakeup.wake());
    assert_eq!((wakeup.take(), wakeup.take()), (3, 0));
    assert!(!poller.wait(Some(Duration::ZERO)).unwrap());
    poller.remove(wakeup.as_raw_fd());
    wakeup.wake();
    assert!(!poller.wait(Some(Duration::ZERO)).unwrap());
    assert!(poller.add(-1).is_err());
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
