//! Tests of connections that end with unread completions: no other connection's receives are lost, and memory is not accessed after
//! its operation has ended.

use crate::abi::{IBV_QPS_ERR, IBV_QPS_RESET};
use crate::double::clock::pass;
use crate::double::world::{Faults, attributes, chatter, fault, pairs, receives, unread};
use crate::double::{Side, connect, piece, poll, share, side};
use crate::{RemoteKey, VerbsEndpoint, VerbsInterface};
use std::time::Duration;
use tieline_plugin_api::{Endpoint, Failure, Interface, Posting, RmaOp, Status, op_flags};

/// A time longer than the limit on draining.
const LONG: Duration = Duration::from_secs(2);

/// The settings for a small window.
const NARROW: [(&str, &str); 2] =
    [("TIELINE_VERBS_WINDOW", "16"), ("TIELINE_VERBS_MAX_WINDOW", "16")];

fn put(at: &VerbsEndpoint, key: &RemoteKey, words: &mut [u64], cookie: u64) {
    let iov = [piece(words)];
    let op =
        RmaOp { iov: &iov, len: iov[0].len, offset: 0, cookie, flags: op_flags::REMOTE_COMPLETION };
    assert_eq!(at.put(key, &op), Ok(Posting::Pending));
}

/// Makes a side send more than its window.
fn lie(side: &Side) {
    let VerbsInterface::Rc(rc) = &side.interface else { panic!("reliable") };
    rc.state.borrow_mut().connections.iter_mut().flatten().for_each(|c| c.credits.open(100_000));
}

/// Sends many messages, which the receiver does not read.
fn flood(at: &VerbsEndpoint) {
    for header in 0..100 {
        assert_eq!(at.am_short(7, header, b"short"), Ok(Posting::Done));
    }
}

#[test]
fn prefetched_receives_of_ended_connection_are_reposted() {
    // The cases: whether the device reports a queue pair's last receive, and which side ends the connection.
    for (mute, closes) in [(false, false), (false, true), (true, false), (true, true)] {
        fault(|faults| *faults = Faults { mute, ..Faults::default() });
        let (mut a, mut b) = (side(&NARROW), side(&NARROW));
        let (_other, _their_other) = connect(&mut a, &mut b);
        drop(connect(&mut a, &mut b));
        let settle = |a: &mut Side, b: &mut Side| {
            for _ in 0..8 {
                pass(LONG);
                b.poll();
            }
            (0..200).for_each(|_| a.poll());
            (0..200).for_each(|_| b.poll());
            (core::mem::take(&mut a.told), core::mem::take(&mut b.told)).1
        };
        let _ = settle(&mut a, &mut b);
        let before = receives();
        for round in 0..5 {
            let (at_a, at_b) = connect(&mut a, &mut b);
            lie(&a);
            let mut target = vec![0u64; 4096];
            let (_region, key) = share(&a, &mut target, &at_b);
            // From here on every poll runs the timers before it reads completions.
            (0..33).for_each(|_| {
                pass(Duration::from_millis(200));
                b.poll();
            });
            flood(&at_a);
            if closes {
                // An outstanding operation on application memory prevents the goodbye.
                fault(|faults| faults.stuck = true);
                put(&at_b, &key, &mut [7; 4096], 1);
                drop((at_a, at_b));
                fault(|faults| faults.stuck = false);
                let _ = settle(&mut a, &mut b);
            } else {
                assert_eq!(settle(&mut a, &mut b).failed[0].1, Status::BadData);
            }
            assert_eq!(receives(), before, "mute: {mute}, closes: {closes}, round {round}");
        }
        let _ = settle(&mut a, &mut b);
        assert_eq!(pairs().len(), 2, "no queue pair is left of those that ended");
    }
}

/// Returns the states of the retired queue pairs.
fn states() -> Vec<u32> {
    let all = pairs().into_iter().map(|qpn| attributes(qpn).qp_state);
    all.filter(|state| [IBV_QPS_ERR, IBV_QPS_RESET].contains(state)).collect()
}

#[test]
fn operation_ends_only_after_its_memory_is_flushed_or_reset() {
    for hung in [false, true] {
        fault(|faults| *faults = Faults { hung, ..Faults::default() });
        let (mut a, mut b) = (side(&NARROW), side(&NARROW));
        let (at_a, at_b) = connect(&mut a, &mut b);
        let (mut target, mut source) = (vec![0u64; 4096], vec![7u64; 4096]);
        let (_region, key) = share(&a, &mut target, &at_b);
        lie(&a);
        flood(&at_a);
        fault(|faults| faults.stuck = true);
        // The number of puts exceeds the number of completions that one poll of the completion queue returns.
        (0..40).for_each(|cookie| put(&at_b, &key, &mut source, cookie));
        while states().is_empty() {
            b.poll();
        }
        let ends = |qpn: &u32| attributes(*qpn).qp_state == IBV_QPS_ERR;
        let ending = pairs().into_iter().find(ends).unwrap();
        assert!(b.told.failed.is_empty(), "before the device has given anything back");
        assert_eq!(at_b.am_short(1, 1, b"x"), Err(Status::Again), "its words come first");
        while b.told.ended.is_empty() {
            b.poll();
        }
        assert_eq!(states(), [if hung { IBV_QPS_RESET } else { IBV_QPS_ERR }]);
        assert_eq!(unread(ending), 0, "what it has given back last");
        while b.told.failed.is_empty() {
            b.poll();
        }
        let all: Vec<_> = (0..40).map(|cookie| (cookie, Err(Status::BadData))).collect();
        assert_eq!(b.told.ended, all);
        assert_eq!(at_b.am_short(1, 1, b"x"), Err(Status::BadData));
        drop((at_a, at_b));
    }
}

#[test]
fn closed_endpoint_never_touches_application_memory() {
    // A device with a short delay is not reset, because a reset would lose its prefetched receives.
    for (hung, late) in [(false, 0), (false, 3), (true, 0)] {
        let (mut a, mut b) = (side(&NARROW), side(&NARROW));
        let (at_a, at_b) = connect(&mut a, &mut b);
        let (mut target, mut source) = (vec![0u64; 4096], vec![7u64; 4096]);
        let (_region, key) = share(&a, &mut target, &at_b);
        fault(|faults| *faults = Faults { stuck: true, hung, late, ..Faults::default() });
        put(&at_b, &key, &mut source, 1);
        drop(at_b);
        assert_eq!(states(), [if hung { IBV_QPS_RESET } else { IBV_QPS_ERR }]);
        fault(|faults| faults.stuck = false);
        (0..200).for_each(|_| b.poll());
        assert_eq!((pairs().len(), b.interface.memory().peers), (1, 0));
        assert!(b.told.ended.is_empty() && b.told.failed.is_empty(), "{:?}", b.told);
        drop(at_a);
    }
}

/// The device does not report the unsignalled send itself. The signalled send after it marks the end.
#[test]
fn connection_with_unsignalled_last_send_ends_without_timeout() {
    let (mut a, mut b) = (side(&NARROW), side(&NARROW));
    let (at_a, at_b) = connect(&mut a, &mut b);
    assert_eq!(at_b.am_short(1, 1, b"x"), Ok(Posting::Done));
    lie(&a);
    flood(&at_a);
    (0..20).for_each(|_| b.poll());
    assert_eq!(b.told.failed.len(), 1, "{:?}", b.told);
}

#[test]
fn calls_return_again_until_the_failure_event() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, at_b) = connect(&mut a, &mut b);
    // The send is unsignalled: when the peer's goodbye is read, the send is still in the send queue.
    assert_eq!(at_b.am_short(1, 1, b"x"), Ok(Posting::Done));
    drop(at_a);
    while at_b.am_short(1, 1, b"x") == Ok(Posting::Done) {
        b.poll();
    }
    let refused = || {
        let Failure { status, text } = at_b.import_key(&[0; 56]).err().unwrap();
        assert_eq!(status, Status::Closed);
        text
    };
    while b.told.failed.is_empty() {
        assert_eq!(at_b.am_short(1, 1, b"x"), Err(Status::Again));
        assert_eq!(at_b.fence(), Err(Status::Again));
        assert!(
            refused().contains("(the peer closed the connection)"),
            "it has words: {}",
            refused()
        );
        b.poll();
    }
    assert_eq!(b.told.failed[0].1, Status::Closed);
    assert_eq!(at_b.am_short(1, 1, b"x"), Err(Status::Closed));
    assert_eq!(at_b.fence(), Err(Status::Closed));
    assert!(refused().starts_with("the connection to the peer has ended"), "{}", refused());
}

#[test]
fn reconnecting_peers_exhaust_neither_queue_pairs_nor_receives() {
    // The cases: whether the device reports a queue pair's last receive. If it does not, each queue pair is kept for a second.
    for mute in [false, true] {
        fault(|faults| *faults = Faults { mute, ..Faults::default() });
        let (mut a, mut b) = (side(&NARROW), side(&NARROW));
        let (mut most, mut posted) = (0, None);
        for _ in 0..300 {
            let (at_a, at_b) = connect(&mut a, &mut b);
            drop(at_a);
            while b.told.failed.is_empty() || a.interface.memory().peers > 0 {
                let _ = poll(&a.interface, &mut a.told) + poll(&b.interface, &mut b.told);
            }
            assert_eq!(b.told.failed[0].1, Status::Closed);
            drop(at_b);
            assert_eq!(*posted.get_or_insert(receives()), receives(), "what brought its goodbye");
            most = most.max(pairs().len());
        }
        // Each side may have the maximum number of retired queue pairs, and the queue pair in use.
        assert!(most <= 2 * (64 + 1), "mute: {mute}, {most} queue pairs");
        assert!(!mute || pairs().len() == 2 * 64, "{}: no more go than it takes", pairs().len());
        let rest = if mute { LONG } else { Duration::from_millis(100) };
        for _ in 0..4 {
            pass(rest);
            (0..40).for_each(|_| {
                let _ = poll(&a.interface, &mut a.told) + poll(&b.interface, &mut b.told);
            });
        }
        assert_eq!(pairs().len(), 0, "mute: {mute}");
    }
}

#[test]
fn useless_and_unclaimed_receives_are_reposted() {
    let (mut a, mut b) = (side(&NARROW), side(&NARROW));
    let (at_a, at_b) = connect(&mut a, &mut b);
    let before = receives();
    fault(|faults| faults.chatter = 40);
    (0..40).for_each(|_| b.poll());
    assert_eq!((chatter(), receives()), (0, before));
    // The endpoint of the messages is closed when they are read.
    (0..10).for_each(|header| assert_eq!(at_a.am_short(7, header, b"x"), Ok(Posting::Done)));
    drop(at_b);
    (0..40).for_each(|_| {
        a.poll();
        b.poll();
    });
    assert_eq!((b.told.messages.len(), receives()), (0, before));
}

#[test]
fn retired_queue_pairs_make_room_for_a_new_one() {
    fault(|faults| *faults = Faults { mute: true, ..Faults::default() });
    let (mut a, mut b) = (side(&NARROW), side(&NARROW));
    drop(connect(&mut a, &mut b));
    while a.interface.memory().peers + b.interface.memory().peers > 0 {
        let _ = poll(&a.interface, &mut a.told) + poll(&b.interface, &mut b.told);
    }
    assert_eq!(pairs().len(), 2, "they are ending");
    fault(|faults| faults.most_pairs = Some(2));
    let _one = a.interface.connect(&[], &[], 1).unwrap();
    let _two = b.interface.connect(&[], &[], 2).unwrap();
    let failure = a.interface.connect(&[], &[], 3).err().unwrap();
    assert_eq!(failure.status, Status::NoMemory);
    assert!(failure.text.starts_with("a queue pair with "), "{}", failure.text);
}

/// The device reports the last shared receive before it flushes the sends.
#[test]
fn queue_pair_of_closed_endpoint_stays_until_sends_are_flushed() {
    let (mut a, b) = (side(&[]), side(&[]));
    let at_a = a.interface.connect(&[], &[], 1).unwrap();
    let at_b = b.interface.connect(&[], &[], 2).unwrap();
    fault(|faults| (faults.stuck, faults.late) = (true, 100_000));
    at_a.connect(&at_b.address()).unwrap();
    drop(at_a);
    (0..300).for_each(|_| a.poll());
    assert_eq!((pairs().len(), a.interface.memory().peers), (2, 1), "its hello is with the device");
    fault(|faults| faults.late = 0);
    (0..300).for_each(|_| a.poll());
    assert_eq!((pairs().len(), a.interface.memory().peers), (1, 0), "within the device's time");
}

#[test]
fn connection_ends_with_last_send_if_no_marker_can_be_posted() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (_at_a, at_b) = connect(&mut a, &mut b);
    assert_eq!(at_b.am_short(1, 1, b"x"), Ok(Posting::Done));
    assert_eq!(at_b.flush(1), Ok(Posting::Pending));
    fault(|faults| faults.refuse_sends = libc::EIO);
    assert_eq!(at_b.am_short(1, 1, b"x"), Err(Status::Again));
    (0..20).for_each(|_| b.poll());
    assert_eq!(b.told.ended, [(1, Ok(0))]);
    assert_eq!(b.told.failed.len(), 1, "{:?}", b.told);
}
