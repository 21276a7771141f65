//! Tests of endpoints that are closed, or cannot be made, while the device rejects requests; of released objects; and of calls
//! within calls.

use crate::abi::*;
use crate::double::clock::pass;
use crate::double::faults::interrupt_poll;
use crate::double::world::{announce, counts, fault, pairs};
use crate::double::{Side, connect, side, side_of, sys};
use crate::{RC, UD};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tieline_plugin_api::{Endpoint, Interface, Packer, Posting, Status};

fn arrived(at: &mut Side) -> Vec<u64> {
    (0..200).for_each(|_| at.poll());
    at.told.messages.iter().map(|(header, _)| *header).collect()
}

#[test]
fn earlier_sends_arrive_although_the_goodbye_had_no_room() {
    // The interface stays open, or is closed, too.
    for lives in [true, false] {
        let settings = [("TIELINE_VERBS_WINDOW", "64")];
        let (mut a, mut b) = (side(&settings), side(&settings));
        let (at_a, _at_b) = connect(&mut a, &mut b);
        fault(|faults| faults.stuck = true);
        for header in 0..16 {
            assert_eq!(at_a.am_short(1, header, &[7; 1000]), Ok(Posting::Done));
        }
        fault(|faults| faults.refuse_sends = libc::ENOMEM);
        drop(at_a);
        fault(|faults| (faults.stuck, faults.refuse_sends) = (false, 0));
        if lives {
            (0..200).for_each(|_| a.poll());
            assert_eq!(a.interface.memory().peers, 0, "nothing of it is kept");
        }
        drop(a);
        assert_eq!(arrived(&mut b), (0..16).collect::<Vec<_>>());
        let ended: Vec<Status> = b.told.failed.iter().map(|failed| failed.1).collect();
        assert_eq!(ended, [Status::Closed]);
    }
}

#[test]
fn refused_packed_message_is_sent_before_the_goodbye() {
    for lives in [true, false] {
        let (mut a, mut b) = (side(&[]), side(&[]));
        let (at_a, _at_b) = connect(&mut a, &mut b);
        fault(|faults| faults.refuse_sends = libc::ENOMEM);
        let mut write = |_: *mut u8, _: usize| Ok(900);
        assert_eq!(at_a.am_packed(1, 5, Packer::new(&mut write), 1000), Ok(900));
        drop(at_a);
        fault(|faults| faults.refuse_sends = 0);
        if lives {
            (0..200).for_each(|_| a.poll());
        }
        drop(a);
        assert_eq!(arrived(&mut b), [5]);
        let ended: Vec<Status> = b.told.failed.iter().map(|failed| failed.1).collect();
        assert_eq!(ended, [Status::Closed]);
    }
}

#[test]
fn failed_endpoint_creation_causes_no_later_events() {
    let mut a = side(&[]);
    let before = pairs().len();
    fault(|faults| faults.refuse_receives = libc::ENOMEM);
    assert!(a.interface.connect(&[], &[], 77).is_err());
    fault(|faults| faults.refuse_receives = 0);
    assert_eq!((pairs().len(), a.interface.memory().peers), (before, 0));
    announce(IBV_EVENT_DEVICE_FATAL);
    (0..200).for_each(|_| a.poll());
    assert!(a.told.failed.is_empty(), "{:?}", a.told.failed);
}

#[test]
fn endpoint_attempts_on_a_down_port_do_not_accumulate() {
    let mut a = side(&[]);
    announce(IBV_EVENT_PORT_ERR);
    (0..200).for_each(|_| a.poll());
    let before = pairs().len();
    let mut refused = 0;
    for cookie in 0..1000 {
        match a.interface.connect(&[], &[], cookie) {
            Ok(endpoint) => drop(endpoint),
            Err(failure) => {
                assert_eq!(failure.status, Status::Unreachable);
                assert!(failure.text.contains("is down"), "{}", failure.text);
                refused += 1;
            }
        }
    }
    assert!(refused > 0 && pairs().len() - before < 200, "{} queue pairs", pairs().len());
    announce(IBV_EVENT_PORT_ACTIVE);
    pass(Duration::from_secs(2));
    (0..200).for_each(|_| a.poll());
    assert_eq!(pairs().len(), before, "they go when the port is back");
    assert!(a.interface.connect(&[], &[], 1).is_ok());
}

/// A device has few protection domains. Contexts that leaked domains would exhaust them.
#[test]
fn device_objects_are_released_with_their_interfaces() {
    for module in [RC, UD] {
        let (mut a, mut b) = (side_of(module, &[]), side_of(module, &[]));
        let ends = match module {
            RC => connect(&mut a, &mut b),
            _ => {
                let to = |at: &Side, of: &Side| {
                    at.interface.connect(&of.interface.address(), b"", 1).unwrap()
                };
                (to(&a, &b), to(&b, &a))
            }
        };
        assert_eq!(ends.0.am_short(1, 1, b"x"), Ok(Posting::Done));
        (0..20).for_each(|_| (a.poll(), b.poll()).1);
        assert_eq!(b.told.messages.len(), 1, "{module}");
        assert!(sys::objects() > 10, "{module}");
        drop(ends);
        drop((a, b));
        assert_eq!(sys::objects(), 0, "{module}");
    }
}

/// A signal handler that calls `exit` may interrupt a call that changes the state.
#[test]
fn message_posted_within_another_call_finds_no_room() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let crate::VerbsInterface::Rc(rc) = &a.interface else { panic!("reliable") };
    let call = rc.state.borrow_mut();
    assert_eq!(at_a.am_short(1, 7, b"inside"), Err(Status::Again));
    drop(call);
    assert_eq!(at_a.am_short(1, 8, b"after"), Ok(Posting::Done));
    assert_eq!(arrived(&mut b), [8]);
}

/// The device's library may hold the lock of the completion queue while a signal handler calls `exit`.
#[test]
fn exit_in_the_middle_of_a_poll_calls_the_device_no_more() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    while !a.interface.poll_quietly() {
        a.poll();
    }
    let a = Rc::new(a);
    let found = Rc::new(RefCell::new(None));
    let (inside, finds) = (a.clone(), found.clone());
    interrupt_poll(move || {
        let before = counts().looks;
        let posted = at_a.am_short(1, 7, b"inside");
        inside.interface.leave();
        drop(at_a);
        *finds.borrow_mut() = Some((posted, counts().looks - before));
    });
    assert!(a.interface.poll_quietly());
    assert_eq!(found.take(), Some((Err(Status::Again), 0)));
    // The peer gets no goodbye.
    assert!(arrived(&mut b).is_empty() && b.told.failed.is_empty());
}
