//! The order of the slots in a fast box: both sides use the one that the sender notes, and each side may be an earlier version, which
//! knows only one order.

use std::sync::atomic::Ordering;

use tieline_plugin_api::{Endpoint, Interface, Status, event};

use crate::channel::{self, KNOWS_SPREAD, kind};
use crate::config::Settings;
use crate::hostile_tests::{FASTBOX, Hostile, greet, open, poll};
use crate::interface::RingInterface;
use crate::ring::{Layout, NEIGHBOURS, SPREAD, head};
use crate::sys::{self, PAGE};

fn write(hostile: &Hostile, layout: Layout, position: u64, kind: u8, header: u64) {
    let count = layout.count as u64;
    let at = layout.slots + (position.wrapping_mul(layout.step) % count) as usize * 64;
    hostile.memory.word(at + 8).unwrap().store(header, Ordering::Release);
    let control = (position / count + 1) << 32 | u64::from(head(kind, 0, 9));
    hostile.memory.word(at).unwrap().store(control, Ordering::Release);
}

/// Returns the headers of the messages that the next polls deliver.
fn headers(interface: &RingInterface) -> Vec<u64> {
    let events = (0..4).flat_map(|_| {
        let events = sys::polled(interface);
        let messages = events.iter().filter(|e| e.kind == event::MESSAGE);
        messages.map(|e| e.header).collect::<Vec<_>>()
    });
    events.collect()
}

#[test]
fn receiver_reads_the_slots_in_the_order_that_the_sender_notes() {
    for (knows, answer) in [(0, channel::GRANTED), (KNOWS_SPREAD, channel::GRANTED_SPREAD)] {
        let interface = open(Settings::defaults());
        let hostile = greet(&interface);
        while poll(&interface).is_empty() {}
        write(&hostile, channel::COLD, 0, kind::WANT_FAST, knows | 5);
        assert!(poll(&interface).is_empty());
        let verdict = hostile.memory.word(channel::VERDICT).unwrap().load(Ordering::Acquire);
        assert_eq!(verdict, 5 << 2 | answer);
        let spread = answer == channel::GRANTED_SPREAD;
        write(&hostile, channel::COLD, 1, kind::SWITCH, u64::from(spread));
        assert!(poll(&interface).is_empty());
        let fast = channel::fast(FASTBOX, spread);
        let (begin, laps) = (fast.count as u64, 3);
        for lap in 1..=laps {
            let positions = lap * begin..(lap + 1) * begin;
            positions.clone().for_each(|n| write(&hostile, fast, n, kind::INLINE, n));
            assert_eq!(headers(&interface), Vec::from_iter(positions), "lap {lap} of {fast:?}");
        }
    }
}

#[test]
fn peer_that_notes_an_unknown_order_is_hung_up_on() {
    for (order, is_known) in [(0, true), (1, true), (2, false), (u64::MAX, false)] {
        let interface = open(Settings::defaults());
        let hostile = greet(&interface);
        while poll(&interface).is_empty() {}
        write(&hostile, channel::COLD, 0, kind::WANT_FAST, KNOWS_SPREAD | 1);
        write(&hostile, channel::COLD, 1, kind::SWITCH, order);
        let events = (0..4).flat_map(|_| poll(&interface));
        let left = events.filter(|e| (e.0, e.2) == (event::PEER_LEFT, Status::BadData as i32));
        assert_eq!(left.count(), usize::from(!is_known), "order {order}");
    }
}

/// Exchanges messages of an interface with itself, and returns the order of its fast box. `answer` replaces the receiver's answer to
/// the request for a fast box.
fn exchange(answer: Option<u64>) -> u64 {
    let settings = Settings { fastbox_size: FASTBOX, threshold: 1, ..Settings::defaults() };
    let interface = open(settings);
    let endpoint = interface.connect(&interface.address(), b"it", 7).unwrap();
    let (mut sent, mut got) = (0, Vec::new());
    while endpoint.channel().fast_order().is_none() || sent < 100 {
        if endpoint.am_short(9, sent, &[]).is_ok() {
            sent += 1;
        }
        got.extend(headers(&interface));
        let verdict = endpoint.channel_memory().word(channel::VERDICT).unwrap();
        let word = verdict.load(Ordering::Acquire);
        if let (Some(answer), true) = (answer, word != 0) {
            verdict.store(word & !3 | answer, Ordering::Release);
        }
    }
    assert_eq!(got, Vec::from_iter(0..sent));
    endpoint.channel().fast_order().unwrap()
}

#[test]
fn present_sides_spread_slots_and_an_earlier_receiver_gets_neighbours() {
    assert_eq!(exchange(None), SPREAD);
    assert_eq!(exchange(Some(channel::GRANTED)), NEIGHBOURS);
}

#[test]
fn third_slot_after_one_lies_before_it_in_memory() {
    for bits in 4..20 {
        let (count, step) = (1u64 << bits, channel::fast(PAGE << bits, true).step);
        let place = |position: u64| position.wrapping_mul(step) % count;
        let all: std::collections::HashSet<u64> = (0..count).map(place).collect();
        assert_eq!(all.len() as u64, count, "each slot is used once in a lap");
        assert!((0..count).all(|n| (place(n + 3) + 1) % count == place(n)));
    }
}
