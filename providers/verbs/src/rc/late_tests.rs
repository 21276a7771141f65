//! Tests of time without polls, and of a peer that never pauses.

use crate::abi::IBV_EVENT_PORT_ERR;
use crate::double::clock::{self, pass};
use crate::double::world::{announce, chatter, counts, fault};
use crate::double::{Side, connect, interval, side, side_of};
use crate::{RC, UD};
use std::time::Duration;
use tieline_plugin_api::{Armed, Endpoint, Interface, Posting, Status};

const MS: Duration = Duration::from_millis(1);

/// A failure timeout of 100 ms. While the port is up, a send may take three times this time.
const FAILURE: (&str, &str) = ("TIELINE_FAILURE_TIMEOUT", "100ms");

#[test]
fn unread_completion_is_read_before_its_peer_times_out() {
    for arms in [false, true] {
        let (mut a, mut b) = (side(&[FAILURE]), side(&[]));
        let (at_a, _at_b) = connect(&mut a, &mut b);
        fault(|faults| faults.stuck = true);
        assert_eq!(at_a.am_short(1, 1, b"x"), Ok(Posting::Done));
        pass(MS * 110);
        (0..33).for_each(|_| a.poll());
        fault(|faults| faults.stuck = false);
        pass(MS * 400);
        if arms {
            assert!(a.interface.arm().is_ok());
        }
        (0..33).for_each(|_| a.poll());
        assert!(a.told.failed.is_empty(), "{:?}", a.told.failed);
        assert_eq!(at_a.am_short(1, 2, b"x"), Ok(Posting::Done));
    }
}

#[test]
fn unsignalled_send_does_not_count_as_stalled() {
    let (mut a, mut b) = (side(&[FAILURE]), side(&[]));
    let (at_a, at_b) = connect(&mut a, &mut b);
    for n in 0..10 {
        // The peer is heard in the same poll that finds the outstanding send, so no keepalive is due.
        assert_eq!(at_b.am_short(1, n, b"y"), Ok(Posting::Done));
        a.poll();
        assert_eq!(at_a.am_short(1, n, b"x"), Ok(Posting::Done));
        pass(MS * 110);
        (0..33).for_each(|_| a.poll());
        pass(MS * 400);
        (0..3).for_each(|_| a.poll());
        assert!(a.told.failed.is_empty(), "{:?}", a.told.failed);
        b.poll();
    }
}

#[test]
fn peer_that_connected_between_polls_is_in_time() {
    let settings = [("TIELINE_CONNECT_TIMEOUT", "100ms")];
    let (mut a, b) = (side(&settings), side(&[]));
    let at_a = a.interface.connect(&[], &[], 1).unwrap();
    let at_b = b.interface.connect(&[], &[], 2).unwrap();
    fault(|faults| faults.stuck = true);
    at_a.connect(&at_b.address()).unwrap();
    at_b.connect(&at_a.address()).unwrap();
    fault(|faults| faults.stuck = false);
    pass(MS * 400);
    (0..33).for_each(|_| a.poll());
    assert!(a.told.failed.is_empty(), "{:?}", a.told.failed);
    assert_eq!(at_a.am_short(1, 2, b"x"), Ok(Posting::Done));
}

#[test]
fn continuous_sender_does_not_block_progress() {
    for module in [RC, UD] {
        let (mut a, mut b) = (side_of(module, &[]), side_of(module, &[]));
        let _ends = (module == RC).then(|| connect(&mut a, &mut b));
        fault(|faults| faults.chatter = 10_000);
        assert_eq!(a.interface.arm(), Ok(Armed::Ready), "{module}: there is more to read");
        assert!(chatter() > 0, "{module}: it read until the peer was tired");
        fault(|faults| faults.chatter = 0);
        while a.interface.arm() != Ok(Armed::Sleep) {
            a.poll();
        }
    }
}

#[test]
fn absent_peer_times_out_exactly_at_the_connect_timeout() {
    let settings = [("TIELINE_CONNECT_TIMEOUT", "100ms")];
    let (mut a, b) = (side(&settings), side(&[]));
    // One end of a connection retransmits its hello, the other end waits for it.
    let first = a.interface.connect(&[], &[], 1).unwrap();
    let nobody = b.interface.connect(&[], &[], 0).unwrap();
    let second = a.interface.connect(&[], &[], 2).unwrap();
    let begun = clock::Instant::now();
    first.connect(&nobody.address()).unwrap();
    second.connect(&nobody.address()).unwrap();
    while a.told.failed.len() < 2 {
        a.poll();
        assert!(a.told.failed.is_empty() || begun.elapsed() >= MS * 100, "{:?}", a.told.failed);
    }
    a.told.failed.sort();
    let ended: Vec<_> = a.told.failed.iter().map(|failed| (failed.0, failed.1)).collect();
    assert_eq!(ended, [(1, Status::TimedOut), (2, Status::TimedOut)]);
    let words = &a.told.failed[0].2;
    assert!(words.contains("within 100ms (TIELINE_CONNECT_TIMEOUT)"), "{words}");
    assert_eq!(first.am_short(1, 1, b"x"), Err(Status::TimedOut));
}

/// If the peer did receive the first hello, its device drops the next packet with that number as a duplicate.
#[test]
fn waiting_side_sends_its_hello_before_anything_else() {
    let (mut a, b) = (side(&[]), side(&[]));
    let at_a = a.interface.connect(&[], &[], 1).unwrap();
    let at_b = b.interface.connect(&[], &[], 2).unwrap();
    at_a.connect(&at_b.address()).unwrap();
    (0..200).for_each(|_| a.poll());
    let before = counts().sends;
    (0..200).for_each(|_| a.poll());
    assert_eq!(counts().sends, before, "the other one says its own again and again");
    at_b.connect(&at_a.address()).unwrap();
    assert_eq!(counts().sends, before + 1);
    (0..20).for_each(|_| a.poll());
    assert_eq!(counts().sends, before + 2);
}

/// Without the hello the peer would never learn that it was heard.
#[test]
fn failed_hello_fails_the_connection_with_the_reason() {
    let (mut a, b) = (side(&[]), side(&[]));
    let at_a = a.interface.connect(&[], &[], 1).unwrap();
    let at_b = b.interface.connect(&[], &[], 2).unwrap();
    at_a.connect(&at_b.address()).unwrap();
    (0..200).for_each(|_| a.poll());
    at_b.connect(&at_a.address()).unwrap();
    fault(|faults| faults.refuse_sends = libc::EIO);
    (0..200).for_each(|_| a.poll());
    let text = "the first message of a connection cannot be posted";
    assert_eq!(a.told.failed, [(1, Status::Io, text.to_string())]);
    assert_eq!(at_a.am_short(1, 1, b"x"), Err(Status::Io));
}

#[test]
fn link_loss_triggers_keepalives_to_all_peers() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let _ends = connect(&mut a, &mut b);
    (0..200).for_each(|_| a.poll());
    let before = counts().sends;
    (0..200).for_each(|_| a.poll());
    assert_eq!(counts().sends, before, "it was heard a moment ago");
    announce(IBV_EVENT_PORT_ERR);
    (0..200).for_each(|_| a.poll());
    assert_eq!(counts().sends, before + 1);
}

#[test]
fn sleeper_wakes_only_while_peers_or_messages_need_timers() {
    let armed = |side: &mut Side| {
        let sleeps = |_| {
            side.poll();
            side.interface.arm() == Ok(Armed::Sleep)
        };
        assert!((0..1000).any(sleeps), "it never sleeps");
        interval(side.interface.event_fd().unwrap())
    };
    for (failure, every) in [("100ms", "(0, 20000000)"), ("4s", "(0, 500000000)"), ("1h", "(1, 0)")]
    {
        let (mut a, mut b) = (side(&[("TIELINE_FAILURE_TIMEOUT", failure)]), side(&[]));
        assert_eq!(armed(&mut a), "(0, 0)");
        let (at_a, _at_b) = connect(&mut a, &mut b);
        assert_eq!(armed(&mut a), every, "a peer may die");
        drop(at_a);
        while b.told.failed.is_empty() {
            a.poll();
            b.poll();
        }
        (0..300).for_each(|_| a.poll());
        assert_eq!(armed(&mut a), "(0, 0)");
        assert_eq!(armed(&mut b), "(1, 0)", "its endpoint is still there");
    }
    let (mut a, mut b) = (side_of(UD, &[]), side_of(UD, &[]));
    assert_eq!(armed(&mut a), "(0, 0)");
    let to_b = a.interface.connect(&b.interface.address(), b"a", 1).unwrap();
    assert_eq!(armed(&mut a), "(0, 20000000)", "it may have to say it again");
    while armed(&mut a) != "(0, 0)" {
        b.poll();
    }
    drop(to_b);
    while a.interface.memory().peers > 0 {
        a.poll();
        b.poll();
    }
}

#[test]
fn no_second_keepalive_before_the_first_is_acknowledged() {
    let (mut a, mut b) = (side(&[("TIELINE_FAILURE_TIMEOUT", "4s")]), side(&[]));
    let _ends = connect(&mut a, &mut b);
    fault(|faults| faults.stuck = true);
    let before = counts().sends;
    (0..3000).for_each(|_| a.poll());
    assert_eq!(counts().sends - before, 1);
    fault(|faults| faults.stuck = false);
    (0..1500).for_each(|_| a.poll());
    assert_eq!(counts().sends - before, 2);
}

#[test]
fn active_peer_gets_no_keepalive() {
    let (mut a, mut b) = (side(&[("TIELINE_FAILURE_TIMEOUT", "400ms")]), side(&[]));
    let (at_a, at_b) = connect(&mut a, &mut b);
    let before = counts().sends;
    for n in 0..12 {
        assert_eq!(at_b.am_short(1, n, b"here"), Ok(Posting::Done));
        (0..60).for_each(|_| a.poll());
    }
    assert_eq!(counts().sends - before, 12);
    // An acknowledgement from the peer's device also counts as activity.
    for n in 0..12 {
        assert_eq!(at_a.am_short(1, n, &[7; 1000]), Ok(Posting::Done));
        (0..60).for_each(|_| a.poll());
    }
    assert_eq!(counts().sends - before, 24);
}

#[test]
fn close_waits_for_goodbye_up_to_the_close_timeout() {
    let settings = [("TIELINE_CLOSE_TIMEOUT", "10ms")];
    let (mut a, mut b) = (side(&settings), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    fault(|faults| faults.stuck = true);
    drop(at_a);
    let begun = clock::Instant::now();
    drop(a);
    assert!(begun.elapsed() >= MS * 10, "its device may only be slow");
    fault(|faults| faults.stuck = false);
}

#[test]
fn arm_is_refused_while_events_are_undelivered() {
    for module in [RC, UD] {
        let settings = [("TIELINE_CLOSE_TIMEOUT", "1ms")];
        let (mut a, mut b) = (side_of(module, &settings), side_of(module, &settings));
        let (at_a, _at_b) = match module {
            RC => {
                let (at_a, at_b) = connect(&mut a, &mut b);
                (at_a, Some(at_b))
            }
            _ => (a.interface.connect(&b.interface.address(), b"a", 1).unwrap(), None),
        };
        (0..20).for_each(|_| {
            a.poll();
            b.poll();
        });
        assert_eq!(b.interface.arm(), Ok(Armed::Sleep), "{module}");
        assert_eq!(at_a.am_short(1, 1, b"x"), Ok(Posting::Done));
        assert_eq!(b.interface.arm(), Ok(Armed::Ready), "{module}: what has come wakes nobody");
        assert_eq!(b.interface.arm(), Ok(Armed::Ready), "{module}");
        b.poll();
        assert_eq!(b.told.messages, [(1, b"x".to_vec())]);
        assert_eq!(b.interface.arm(), Ok(Armed::Ready), "{module}: it may still be looked at");
        b.poll();
        assert_eq!(b.interface.arm(), Ok(Armed::Sleep), "{module}");
    }
}

/// The device had no memory for the credits when the messages were released, and no later message carries the credits.
#[test]
fn unsent_credits_are_sent_before_sleep() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let mut sent = 0;
    while at_a.am_short(7, sent, b"x") == Ok(Posting::Done) {
        sent += 1;
    }
    fault(|faults| faults.refuse_sends = libc::ENOMEM);
    (0..100).for_each(|_| b.poll());
    assert_eq!(b.told.messages.len() as u64, sent);
    fault(|faults| faults.refuse_sends = 0);
    a.poll();
    assert_eq!(at_a.am_short(7, sent, b"x"), Err(Status::Again), "it was not told");
    let _ = b.interface.arm().unwrap();
    (0..4).for_each(|_| a.poll());
    assert_eq!(at_a.am_short(7, sent, b"x"), Ok(Posting::Done));
}
