//! Tests of time without polls, and of work that must not take time from a poll.

use crate::UD;
use crate::VerbsEndpoint;
use crate::double::clock::pass;
use crate::double::world::{counts, fault, receives};
use crate::double::{Side, side_of};
use std::time::Duration;
use tieline_plugin_api::{Endpoint, Interface, Posting};

/// Returns an established channel from one side to the other, with nothing outstanding.
fn channel(a: &mut Side, b: &mut Side) -> VerbsEndpoint {
    let to_b = a.interface.connect(&b.interface.address(), b"a", 1).unwrap();
    while b.told.arrived.is_empty() {
        a.poll();
        b.poll();
    }
    (0..20).for_each(|_| a.poll());
    to_b
}

/// Closes a channel and waits for the acknowledgement, which a closing interface would also wait for.
fn close(channel: VerbsEndpoint, a: &mut Side, b: &mut Side) {
    drop(channel);
    while a.interface.memory().peers > 0 {
        a.poll();
        b.poll();
    }
}

/// The setting for a short close timeout: closing must not wait for acknowledgements that silent peers never send.
const BRIEF: (&str, &str) = ("TIELINE_CLOSE_TIMEOUT", "1ms");

/// A time longer than the default of `TIELINE_FAILURE_TIMEOUT`.
const LONG: Duration = Duration::from_secs(21);

#[test]
fn unread_acknowledgement_is_read_before_its_peer_times_out() {
    for arms in [false, true] {
        let (mut a, mut b) = (side_of(UD, &[]), side_of(UD, &[]));
        let to_b = channel(&mut a, &mut b);
        // A whole window: the completions of the sends come before the acknowledgement.
        for header in 0..32 {
            assert_eq!(to_b.am_short(1, header, b"x"), Ok(Posting::Done));
        }
        (0..4).for_each(|_| b.poll());
        assert_eq!(b.told.messages.len(), 32);
        pass(LONG);
        let sent = counts().sends;
        if arms {
            assert!(a.interface.arm().is_ok());
        }
        a.poll();
        assert!(a.told.failed.is_empty(), "{:?}", a.told.failed);
        assert_eq!(counts().sends, sent, "what has arrived is not sent again");
        assert_eq!(to_b.am_short(1, 33, b"x"), Ok(Posting::Done));
        close(to_b, &mut a, &mut b);
    }
}

#[test]
fn lost_packet_is_retransmitted_before_its_peer_times_out() {
    let (mut a, mut b) = (side_of(UD, &[]), side_of(UD, &[]));
    let to_b = channel(&mut a, &mut b);
    fault(|faults| faults.cut = true);
    assert_eq!(to_b.am_short(1, 5, b"x"), Ok(Posting::Done));
    for _ in 0..2 {
        pass(LONG);
        (0..20).for_each(|_| a.poll());
    }
    fault(|faults| faults.cut = false);
    pass(LONG);
    while b.told.messages.is_empty() && a.told.failed.is_empty() {
        a.poll();
        b.poll();
    }
    assert!(a.told.failed.is_empty(), "{:?}", a.told.failed);
    assert_eq!(b.told.messages, [(5, b"x".to_vec())]);
    close(to_b, &mut a, &mut b);
}

#[test]
fn late_dialled_peer_has_the_full_time_to_answer() {
    let (mut a, mut b) = (side_of(UD, &[]), side_of(UD, &[]));
    pass(LONG);
    fault(|faults| faults.cut = true);
    let to_b = a.interface.connect(&b.interface.address(), b"a", 1).unwrap();
    let sent = counts().sends;
    for _ in 0..200 {
        pass(Duration::from_millis(10));
        a.poll();
    }
    assert!(counts().sends - sent >= 4, "it says hello again and again");
    assert!(a.told.failed.is_empty(), "{:?}", a.told.failed);
    fault(|faults| faults.cut = false);
    close(to_b, &mut a, &mut b);
}

/// The message before the goodbye was lost.
#[test]
fn early_goodbye_waits_and_closed_channel_reports_no_flush() {
    let (mut a, mut b) = (side_of(UD, &[]), side_of(UD, &[]));
    let to_b = channel(&mut a, &mut b);
    let before = receives();
    fault(|faults| faults.cut = true);
    assert_eq!(to_b.am_short(1, 5, b"x"), Ok(Posting::Done));
    assert_eq!(to_b.flush(1), Ok(Posting::Pending));
    fault(|faults| faults.cut = false);
    drop(to_b);
    b.poll();
    assert_eq!((b.told.left, receives()), (0, before - 2), "it waits, and so does its answer");
    while a.interface.memory().peers > 0 {
        a.poll();
        b.poll();
    }
    (0..4).for_each(|_| b.poll());
    assert_eq!((&b.told.messages[..], b.told.left), (&[(5, b"x".to_vec())][..], 1));
    assert_eq!((receives(), &a.told.ended[..]), (before, &[][..]));
}

#[test]
fn unresolvable_stranger_is_not_resolved_at_every_hello() {
    let (mut a, mut b) = (side_of(UD, &[]), side_of(UD, &[]));
    let to_b = a.interface.connect(&b.interface.address(), b"a", 1).unwrap();
    fault(|faults| faults.no_way = true);
    let (handles, sent) = (counts().handles, counts().sends);
    for _ in 0..40 {
        pass(Duration::from_millis(100));
        a.poll();
        b.poll();
    }
    assert!(counts().sends - sent >= 5, "it says hello again and again");
    assert_eq!(counts().handles - handles, 1, "the kernel may take a second for each");
    fault(|faults| faults.no_way = false);
    while b.told.arrived.is_empty() {
        pass(Duration::from_millis(100));
        a.poll();
        b.poll();
        assert!(a.told.failed.is_empty(), "{:?}", a.told.failed);
    }
    assert_eq!(to_b.am_short(1, 5, b"x"), Ok(Posting::Done));
    close(to_b, &mut a, &mut b);
}

/// A number of channels above the number of closed channels that still answer.
const MANY: u64 = 100;

/// Closes a channel: the goodbye arrives, and its acknowledgement is lost.
fn close_unheard(channel: VerbsEndpoint, b: &mut Side) {
    drop(channel);
    fault(|faults| faults.cut = true);
    (0..4).for_each(|_| b.poll());
    fault(|faults| faults.cut = false);
}

#[test]
fn recently_closed_channels_answer_and_few_are_kept() {
    let (mut a, mut b) = (side_of(UD, &[]), side_of(UD, &[]));
    let mut kept = Vec::new();
    for n in 1..=MANY {
        let to_b = channel(&mut a, &mut b);
        b.told.arrived.clear();
        close_unheard(to_b, &mut b);
        // Another channel opens before the goodbye is retransmitted.
        let another = channel(&mut a, &mut b);
        b.told.arrived.clear();
        drop(another);
        // The goodbye is retransmitted at least every second.
        for _ in 0..100 {
            pass(Duration::from_millis(10));
            a.poll();
            b.poll();
        }
        assert_eq!((a.interface.memory().peers, b.told.left as u64), (0, 2 * n));
        kept.push(b.interface.memory().peer_bytes);
    }
    assert_eq!(kept[MANY as usize - 1], kept[MANY as usize / 2], "{kept:?}");
    assert!(a.told.failed.is_empty(), "{:?}", a.told.failed);
}

/// The peer was killed before it had sent its identity, so no goodbye will ever arrive.
#[test]
fn slot_of_unfinished_silent_peer_is_reused_before_a_new_one() {
    let (a, mut b) = (side_of(UD, &[BRIEF]), side_of(UD, &[]));
    let mut c = side_of(UD, &[BRIEF]);
    let address = b.interface.address();
    // The number of channels exceeds the number of slots that are never reused for unfinished peers.
    let begun: Vec<VerbsEndpoint> = (0..130)
        .map(|n| {
            let to_b = a.interface.connect(&address, b"a", n).unwrap();
            b.poll();
            to_b
        })
        .collect();
    assert_eq!(b.interface.memory().peers, begun.len() as u64);
    for _ in 0..4 {
        pass(LONG);
        (0..20).for_each(|_| b.poll());
    }
    let to_b = channel(&mut c, &mut b);
    assert_eq!(b.interface.memory().peers, begun.len() as u64);
    assert_eq!(b.told.left, 0, "nobody had heard of whose place it was");
    close(to_b, &mut c, &mut b);
}
