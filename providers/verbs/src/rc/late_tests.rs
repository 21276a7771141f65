//! Time that passes while nobody polls, and a peer that never pauses.

use crate::abi::IBV_EVENT_PORT_ERR;
use crate::double::clock::{self, pass};
use crate::double::world::{announce, chatter, counts, fault};
use crate::double::{connect, side, side_of, sys};
use crate::{RC, UD};
use std::time::{Duration, Instant};
use tieline_plugin_api::{Armed, Endpoint, Interface, Posting, Status};

const MS: Duration = Duration::from_millis(1);

/// Three times this is how long a send may take while the port is up.
const FAILURE: (&str, &str) = ("TIELINE_FAILURE_TIMEOUT", "100ms");

#[test]
fn an_answer_that_lay_unread_while_nobody_polled_is_read_before_its_peer_is_given_up() {
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
fn a_send_whose_end_the_device_was_not_asked_to_tell_is_no_sign_of_a_dead_peer() {
    let (mut a, mut b) = (side(&[FAILURE]), side(&[]));
    let (at_a, at_b) = connect(&mut a, &mut b);
    for n in 0..10 {
        // The peer is heard in the poll that finds the send under way, so that there is no reason to ask for it.
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
fn a_peer_that_came_while_nobody_polled_has_come_in_time() {
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
fn a_peer_that_sends_without_a_pause_keeps_nobody_from_going_on() {
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
fn a_peer_that_never_comes_is_given_up_when_the_time_is_over_and_not_before() {
    let settings = [("TIELINE_CONNECT_TIMEOUT", "100ms")];
    let (mut a, b) = (side(&settings), side(&[]));
    // Of two ends one says its hello again and again, and the other waits for that.
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

#[test]
fn peers_are_asked_for_a_sign_of_life_at_once_when_the_port_loses_its_link() {
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
fn whoever_sleeps_is_woken_to_look_after_peers_and_messages() {
    for module in [RC, UD] {
        let (mut a, mut b) = (side_of(module, &[FAILURE]), side_of(module, &[]));
        let _ends = match module {
            RC => connect(&mut a, &mut b),
            _ => {
                let address = b.interface.address();
                let ends = [1, 2].map(|n| a.interface.connect(&address, b"a", n).unwrap());
                ends.into()
            }
        };
        while a.interface.arm() != Ok(Armed::Sleep) {
            a.poll();
        }
        let (fd, begun) = (a.interface.event_fd().unwrap(), Instant::now());
        while !sys::wakes(fd) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{module}: it sleeps for ever");
            std::thread::yield_now();
        }
    }
}

#[test]
fn closing_waits_for_the_goodbye_as_long_as_the_setting_says() {
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
