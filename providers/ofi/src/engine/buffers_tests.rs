//! Tests of slots and buffers: their number, the bytes of each packet, and the time when a buffer is posted again.

use super::buffers::{Buffers, Mishap, Slots};
use crate::double::{Side, settings};
use crate::memory::LocalMemory;
use std::sync::Arc;
use tieline_registration::Arena;

/// Returns an arena of that side's interface, of this size.
fn arena(side: &Side, bytes: usize) -> Arc<Arena<LocalMemory>> {
    Arc::new(Arena::new(side.interface.engine().lender.clone(), bytes))
}

fn drain(buffers: &mut Buffers) -> Vec<usize> {
    core::iter::from_fn(|| buffers.next()).collect()
}

#[test]
fn buffer_count_and_length_respect_bytes_packets_and_library_limit() {
    let side = Side::new(&settings());
    let arena = arena(&side, 64 << 20);
    for (many, packet, bytes, most, count, len) in [
        (true, 1000, 40_000, 0, 4, 10_000),
        (true, 1000, 16_000, 0, 4, 4000),
        (true, 1000, 8000, 0, 4, 4000),
        (true, 1000, 40_000, 3, 3, 10_000),
        (true, 1000, 40_000, 5, 4, 10_000),
        (false, 1000, 100_000, 0, 100, 1024),
        (false, 1024, 10_000, 0, 16, 1024),
        (false, 64, 10 << 20, 0, 4096, 64),
        (false, 1000, 100_000, 7, 7, 1024),
        (false, 1000, 100_000, 200, 100, 1024),
    ] {
        let mut buffers = Buffers::new(&arena, many, packet, bytes, most).unwrap();
        let what = format!("many {many}, packets of {packet}, {bytes} bytes, most {most}");
        assert_eq!(buffers.committed(), count * len, "{what}");
        assert_eq!(buffers.local(0).len, len, "{what}");
        assert_eq!((drain(&mut buffers).len(), buffers.is_any_free()), (count, false), "{what}");
    }
}

#[test]
fn a_packet_lies_in_the_buffer_that_it_is_said_to_lie_in() {
    let side = Side::new(&settings());
    let arena = arena(&side, 1 << 20);
    for many in [true, false] {
        let buffers = Buffers::new(&arena, many, 1024, 16_384, 0).unwrap();
        let (base, len) = (buffers.local(1).base, buffers.local(1).len);
        let lies = |at: isize, bytes| {
            let found = buffers.packet(1, base.wrapping_offset(at), bytes);
            found.map(|packet| (packet.as_ptr().addr() - base.addr(), packet.len()))
        };
        // A packet with its own buffer begins at the buffer's start, whatever position is reported.
        let at = |start, len| Some(if many { (start, len) } else { (0, len) });
        assert_eq!((lies(0, len), lies(0, len + 1)), (at(0, len), None), "{many}");
        assert_eq!(lies(7, len - 7), at(7, len - 7), "{many}");
        assert_eq!(lies(len as isize, 0), at(len, 0), "{many}");
        if many {
            assert_eq!(
                (lies(7, len - 6), lies(-1, 1), lies(len as isize + 1, 0)),
                (None, None, None)
            );
        }
    }
}

#[test]
fn buffer_is_reposted_when_library_and_all_packets_released_it() {
    let side = Side::new(&settings());
    let arena = arena(&side, 1 << 20);
    let mut buffers = Buffers::new(&arena, true, 1024, 16_384, 2).unwrap();
    let mut both = drain(&mut buffers);
    both.sort_unstable();
    assert_eq!(both, [0, 1]);
    buffers.hold(1);
    buffers.hold(1);
    buffers.given_back(1);
    buffers.release(1);
    assert!(!buffers.is_any_free());
    buffers.release(1);
    assert_eq!(drain(&mut buffers), [1]);
    // In this order, the library still owns the buffer.
    buffers.hold(0);
    buffers.release(0);
    assert!(!buffers.is_any_free());
    buffers.given_back(0);
    assert_eq!(drain(&mut buffers), [0]);
}

#[test]
fn interface_fails_only_after_too_many_lost_or_failed_buffers() {
    let side = Side::new(&settings());
    let many = |bytes| Buffers::new(&arena(&side, bytes), true, 1000, 16_000, 0).unwrap();
    let is_broken = |mishap| matches!(mishap, Mishap::Broken);
    let mut buffers = many(1 << 20);
    for n in 1..=65 {
        let at = buffers.next().unwrap();
        assert_eq!(is_broken(buffers.failed(at, false)), n > 64, "{n} are lost");
        assert_eq!(buffers.committed(), (4 + n) * 4000, "another one takes its place");
    }
    let mut buffers = many(1 << 20);
    for _ in 0..2 {
        for n in 1..=4097 {
            let at = buffers.next().unwrap();
            assert_eq!(is_broken(buffers.failed(at, true)), n > 4096, "{n} in a row");
        }
        assert_eq!(buffers.committed(), 4 * 4000);
        // A filled buffer resets the count of consecutive failures.
        let at = buffers.next().unwrap();
        buffers.given_back(at);
    }
    let mut buffers = many(4 * 4096);
    let at = buffers.next().unwrap();
    assert!(is_broken(buffers.failed(at, false)), "there is no memory for another one");
}

#[test]
fn slots_come_sixteen_at_a_time_lie_apart_and_are_taken_again() {
    let side = Side::new(&settings());
    let mut slots = Slots::new(&arena(&side, 1 << 20), 100);
    assert_eq!(slots.committed(), 0);
    let taken: Vec<u32> = (0..16).map(|_| slots.take().unwrap()).collect();
    assert_eq!(taken, (0..16).collect::<Vec<u32>>());
    assert_eq!(slots.committed(), 16 * 128);
    assert_eq!(slots.take(), Ok(16));
    assert_eq!(slots.committed(), 32 * 128);
    let base = |slot| slots.local(slot, 1).base.addr();
    for slot in 1..16 {
        assert_eq!(base(slot) - base(0), slot as usize * 128);
    }
    assert!(!(base(0)..base(0) + 16 * 128).contains(&base(16)));
    assert_eq!([100, 128, 129].map(|len| slots.local(3, len).len), [100, 128, 128]);
    assert_eq!([100, 128, 129].map(|len| slots.bytes_mut(3, len).len()), [100, 128, 128]);
    slots.bytes_mut(3, 2).copy_from_slice(b"it");
    assert_eq!(slots.bytes_mut(3, 2), b"it");
    slots.give(3);
    assert_eq!(slots.take(), Ok(3));
}
