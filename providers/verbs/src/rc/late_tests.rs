//! Time that passes while nobody polls, and a peer that never pauses.

use crate::double::clock::pass;
use crate::double::world::{chatter, fault};
use crate::double::{connect, side, side_of};
use crate::{RC, UD};
use std::time::Duration;
use tieline_plugin_api::{Armed, Endpoint, Interface, Posting};

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
