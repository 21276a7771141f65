//! Tests that the device objects of an `rc` interface are made at the first connection, not earlier.

use crate::abi::*;
use crate::double::nature::{ADAPTERS, play};
use crate::double::world::{Faults, announce, counts, fault, locked, pairs, queues, registrations};
use crate::double::{Side, Told, connect, domain, poll, side, sys};
use crate::{RC, UD};
use std::time::Duration;
use tieline_plugin_api::{Armed, Domain, Endpoint, Interface, Posting, Status};

/// Returns the number of descriptors that wake a sleeper on this side.
fn watched(side: &Side) -> usize {
    let fd = side.interface.event_fd().unwrap();
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
    info.lines().filter(|line| line.starts_with("tfd:")).count()
}

/// Returns the numbers of all objects that an interface makes at its first connection.
fn made() -> ((usize, usize), usize, usize) {
    (queues(), registrations(), pairs().len())
}

#[test]
fn no_device_objects_exist_before_the_first_connection() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    assert!(a.interface.reachable(&b.interface.address()).is_ok());
    for _ in 0..1000 {
        a.poll();
        assert_eq!(a.interface.arm(), Ok(Armed::Sleep), "nothing is to come but events");
    }
    let before = counts();
    assert_eq!((made(), before.looks, before.asks), (((0, 0), 0, 0), 0, 0));
    let memory = a.interface.memory();
    assert_eq!((memory.peers, memory.peer_bytes, memory.buffer_bytes), (0, 0, 0));
    assert!(memory.base_bytes < 4096, "{} bytes", memory.base_bytes);
    assert_eq!(watched(&a), 3, "the device's events, those that others read, the timer");

    let (at_a, _at_b) = connect(&mut a, &mut b);
    assert_eq!(queues(), (2, 2), "one for each side");
    assert!(registrations() > 0 && counts().receives >= 2 * 32);
    assert_eq!(watched(&a), 4, "and the completions");
    let memory = a.interface.memory();
    assert!(memory.base_bytes > 64 << 10 && memory.buffer_bytes > 32 * 8192, "{memory:?}");
    // A second connection shares the objects.
    let _more = connect(&mut a, &mut b);
    assert_eq!((queues(), watched(&a)), ((2, 2), 4));
    assert_eq!(at_a.am_short(1, 1, b"x"), Ok(Posting::Done));
    while b.told.messages.is_empty() {
        b.poll();
    }
    // The objects stay after the last connection has ended, and are destroyed with the interface.
    drop((at_a, _at_b, _more));
    (0..300).for_each(|_| {
        a.poll();
        b.poll();
    });
    assert_eq!(queues(), (2, 2));
    drop((a, b));
    assert_eq!((made(), sys::objects()), (((0, 0), 0, 0), 0));
}

/// Another thread may already be asleep when the first connection is made. That thread could not arm a queue that did not exist.
#[test]
fn sleeper_during_first_connection_is_woken_by_its_arrivals() {
    let a = side(&[]);
    assert_eq!(a.interface.arm(), Ok(Armed::Sleep));
    let before = counts().asks;
    let _endpoint = a.interface.connect(&[], &[], 1).unwrap();
    assert_eq!((counts().asks - before, watched(&a)), (1, 4));
    let _other = a.interface.connect(&[], &[], 2).unwrap();
    assert_eq!(counts().asks - before, 1);
}

/// Returns the resources that the device can lack at a first connection, with the expected texts.
fn refusals() -> [(Faults, &'static str); 4] {
    let none = Faults::default;
    [
        (Faults { refuse_completion_queues: 1, ..none() }, "a completion queue of"),
        (Faults { no_receive_queues: true, ..none() }, "a shared receive queue of"),
        (Faults { locked: Some(0), ..none() }, "the limit on locked memory"),
        (Faults { refuse_pairs: 100, ..none() }, "a queue pair with"),
    ]
}

#[test]
fn refusal_at_first_connection_is_reported_and_retried_at_the_next() {
    for (refusal, words) in refusals() {
        let (mut a, mut b) = (side(&[]), side(&[]));
        for _ in 0..3 {
            fault(|faults| *faults = refusal.clone());
            let failure = a.interface.connect(&[], &[], 7).err().unwrap();
            assert_eq!(failure.status, Status::NoMemory, "{failure:?}");
            assert!(failure.text.contains(words), "{}", failure.text);
            fault(|faults| *faults = Faults::default());
            if refusal.refuse_completion_queues > 0 || refusal.no_receive_queues {
                let begin = "double0 port 1 cannot be used now, the next connection tries again: ";
                assert!(failure.text.starts_with(begin), "{}", failure.text);
                assert_eq!((made(), watched(&a)), (((0, 0), 0, 0), 3), "nothing is half made");
            }
            // Nothing is pending, and no event is due.
            (0..200).for_each(|_| a.poll());
            assert_eq!(a.interface.arm(), Ok(Armed::Sleep), "{words}");
            assert_eq!((a.interface.memory().peers, pairs().len()), (0, 0), "{words}");
        }
        assert!(a.told.failed.is_empty() && a.told.ended.is_empty(), "{:?}", a.told);
        let (at_a, _at_b) = connect(&mut a, &mut b);
        assert_eq!(at_a.am_short(1, 1, b"x"), Ok(Posting::Done));
        while b.told.messages.is_empty() {
            b.poll();
        }
        drop((at_a, _at_b));
        drop((a, b));
        assert_eq!(sys::objects(), 0, "{words}");
    }
}

/// If memory is short, the core takes another lane and reports the device's error text.
#[test]
fn missing_buffer_memory_is_requested_again_later() {
    let a = side(&[]);
    fault(|faults| faults.locked = Some(0));
    assert_eq!(a.interface.connect(&[], &[], 1).err().unwrap().status, Status::NoMemory);
    assert_eq!((queues(), locked()), ((1, 1), 0));
    fault(|faults| faults.locked = None);
    let before = counts().receives;
    let _endpoint = a.interface.connect(&[], &[], 1).unwrap();
    assert!(counts().receives - before >= 32, "with its window come receives for all");
    assert_eq!(queues(), (1, 1));
}

#[test]
fn device_that_failed_before_first_use_gets_no_requests() {
    for polls in [0, 200] {
        let mut a = side(&[]);
        announce(IBV_EVENT_DEVICE_FATAL);
        (0..polls).for_each(|_| a.poll());
        let failure = a.interface.connect(&[], &[], 1).err().unwrap();
        assert_eq!(failure.status, Status::NoDevice);
        assert_eq!(failure.text, "the device double0 was removed", "after {polls} polls");
        assert_eq!((made(), a.interface.arm()), (((0, 0), 0, 0), Ok(Armed::Sleep)));
        assert!(a.told.failed.is_empty());
    }
    // A port whose link has returned is usable.
    let mut a = side(&[]);
    announce(IBV_EVENT_PORT_ERR);
    (0..200).for_each(|_| a.poll());
    announce(IBV_EVENT_PORT_ACTIVE);
    crate::double::clock::pass(Duration::from_secs(1));
    (0..200).for_each(|_| a.poll());
    assert!(a.interface.connect(&[], &[], 1).is_ok());
}

#[test]
fn interfaces_of_one_domain_open_queues_independently() {
    let domain = domain(&[]).unwrap();
    let open = |module| domain.open_interface(module, [0; 16]).unwrap();
    let (first, second, datagrams) = (open(RC), open(RC), open(UD));
    let (cqs, _) = queues();
    assert_eq!(cqs, 1, "datagrams carry what forms connections");
    let endpoint = first.connect(&[], &[], 1).unwrap();
    assert_eq!(queues().0, 2);
    let mut told = Told::default();
    let before = counts().looks;
    (0..40).for_each(|_| {
        let _ = poll(&second, &mut told);
    });
    assert_eq!(counts().looks, before, "it has no queue to look at");
    assert_eq!(second.arm(), Ok(Armed::Sleep));
    let other = second.connect(&[], &[], 2).unwrap();
    assert_eq!(queues().0, 3);
    // The two interfaces can connect to each other, and one of them outlives the other.
    endpoint.connect(&other.address()).unwrap();
    other.connect(&endpoint.address()).unwrap();
    while endpoint.flush(0) == Err(Status::Again) || other.flush(0) == Err(Status::Again) {
        let _ = poll(&first, &mut told) + poll(&second, &mut told) + poll(&datagrams, &mut told);
    }
    drop((endpoint, first));
    while told.failed.is_empty() {
        let _ = poll(&second, &mut told);
    }
    assert_eq!((told.failed[0].0, told.failed[0].1), (2, Status::Closed));
}

#[test]
fn every_adapter_makes_its_queues_at_the_first_connection() {
    for nature in ADAPTERS {
        play(*nature);
        let (mut a, mut b) = (side(&[]), side(&[]));
        (0..40).for_each(|_| a.poll());
        assert_eq!(made(), ((0, 0), 0, 0), "{}", nature.name);
        let _ends = connect(&mut a, &mut b);
        assert_eq!(queues(), (2, 2), "{}", nature.name);
    }
}
