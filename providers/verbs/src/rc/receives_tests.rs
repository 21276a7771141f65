//! Tests of receives with an owner: an ended connection, a connection whose queue pair accepts no receives, and a flushed
//! connection.

use crate::VerbsInterface;
use crate::double::nature::{ADAPTERS, Nature, play};
use crate::double::world::{counts, errs, fault, pairs, receives};
use crate::double::{Side, connect, piece, share, side};
use tieline_plugin_api::{Endpoint, Interface, Posting, RmaOp, Status, op_flags};

/// The settings for a window, and the depth of a connection's own receive queue: the window and the control messages.
const NARROW: [(&str, &str); 2] =
    [("TIELINE_VERBS_WINDOW", "16"), ("TIELINE_VERBS_MAX_WINDOW", "16")];
const OWN: usize = 16 + 4;

/// Makes all later devices have a receive queue per connection.
fn own_queues() {
    let own = |nature: &&Nature| !nature.shares_receives;
    play(*ADAPTERS.iter().find(own).unwrap());
}

/// Returns the queue pairs of a side, by slot.
fn numbers(side: &Side) -> Vec<u32> {
    let VerbsInterface::Rc(rc) = &side.interface else { panic!("reliable") };
    rc.state.borrow().connections.iter().flatten().map(|c| c.own.qpn).collect()
}

#[test]
fn message_of_ended_connection_gives_no_receive_to_new_slot_owner() {
    own_queues();
    let (mut a, mut b) = (side(&NARROW), side(&NARROW));
    let (at_a, at_b) = connect(&mut a, &mut b);
    let mut target = vec![0u64; 4096];
    let (_region, key) = share(&a, &mut target, &at_b);
    (0..3).for_each(|n| assert_eq!(at_a.am_short(7, n, b"x"), Ok(Posting::Done)));
    fault(|faults| faults.stuck = true);
    let mut words = vec![1u64; 4096];
    let iov = [piece(&mut words)];
    let op = RmaOp {
        iov: &iov,
        len: iov[0].len,
        offset: 0,
        cookie: 1,
        flags: op_flags::REMOTE_COMPLETION,
    };
    assert_eq!(at_b.put(&key, &op), Ok(Posting::Pending));
    while b.told.messages.len() < 3 {
        b.poll();
    }
    // An outstanding operation on application memory prevents the goodbye, so the slot is free immediately.
    drop((at_b, at_a));
    fault(|faults| faults.stuck = false);
    assert_eq!(b.interface.memory().peers, 0);
    let _next = b.interface.connect(&[], &[], 3).unwrap();
    let last = numbers(&b)[0];
    let VerbsInterface::Rc(rc) = &b.interface else { panic!("reliable") };
    let posted = |rc: &crate::RcInterface| rc.state.borrow().receives_of(last);
    assert_eq!(posted(rc), Some(OWN));
    (0..4).for_each(|_| {
        let _ = crate::double::poll(&b.interface, &mut b.told);
    });
    assert_eq!(posted(rc), Some(OWN), "no more than its queue is made for");
    assert!(b.told.failed.is_empty(), "{:?}", b.told.failed);
}

#[test]
fn refused_own_receives_fail_only_that_connection() {
    own_queues();
    let (mut a, mut b) = (side(&NARROW), side(&NARROW));
    let ends: Vec<_> = (0..3).map(|_| connect(&mut a, &mut b)).collect();
    let all = numbers(&b);
    for (at_a, _) in &ends {
        (0..3).for_each(|n| assert_eq!(at_a.am_short(7, n, b"x"), Ok(Posting::Done)));
    }
    while b.told.messages.len() < 9 {
        b.poll();
    }
    // The connection in the middle accepts one more receive only.
    fault(|faults| faults.refuse_receives_of = Some((all[1], 1)));
    (0..20).for_each(|_| b.poll());
    let [(_, Status::Io, words)] = &b.told.failed[..] else { panic!("{:?}", b.told.failed) };
    assert_eq!(words, "the device accepts no more receives");
    let VerbsInterface::Rc(rc) = &b.interface else { panic!("reliable") };
    for qpn in [all[0], all[2]] {
        assert_eq!(rc.state.borrow().receives_of(qpn), Some(OWN), "all of its own");
    }
    assert_eq!(rc.state.borrow().receives_of(all[1]), Some(0), "what was posted came back");
    for at in [0, 2] {
        assert_eq!(ends[at].0.am_short(7, 9, b"x"), Ok(Posting::Done));
    }
    while b.told.messages.len() < 11 {
        b.poll();
    }
}

#[test]
fn receives_refused_by_shared_queue_are_posted_later() {
    let (mut a, mut b) = (side(&NARROW), side(&NARROW));
    drop(connect(&mut a, &mut b));
    let settle = |a: &mut Side, b: &mut Side| {
        for _ in 0..4 {
            crate::double::clock::pass(core::time::Duration::from_secs(2));
            (0..40).for_each(|_| {
                a.poll();
                b.poll();
            });
        }
        (a.told, b.told) = Default::default();
    };
    settle(&mut a, &mut b);
    assert_eq!(pairs().len(), 0);
    let before = receives();
    for _ in 0..3 {
        let (at_a, at_b) = connect(&mut a, &mut b);
        (0..10).for_each(|n| assert_eq!(at_a.am_short(7, n, b"x"), Ok(Posting::Done)));
        while b.told.messages.len() < 10 {
            b.poll();
        }
        fault(|faults| faults.refuse_receives = libc::EIO);
        (0..20).for_each(|_| b.poll());
        assert_eq!(b.told.failed.len(), 1);
        fault(|faults| faults.refuse_receives = 0);
        drop((at_a, at_b));
        settle(&mut a, &mut b);
    }
    drop(connect(&mut a, &mut b));
    settle(&mut a, &mut b);
    assert_eq!(receives(), before);
}

#[test]
fn flushed_receive_is_not_reposted_to_failed_queue_pair() {
    own_queues();
    let (mut a, mut b) = (side(&NARROW), side(&NARROW));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let (other, _their_other) = connect(&mut a, &mut b);
    errs(numbers(&b)[0]);
    let before = counts().receives;
    // No event has reported the cause yet.
    (0..20).for_each(|_| b.poll());
    assert_eq!((counts().receives, b.told.failed.len()), (before, 0));
    assert_eq!(at_a.am_short(7, 1, b"x"), Ok(Posting::Done));
    assert_eq!(other.am_short(7, 2, b"x"), Ok(Posting::Done));
    while b.told.messages.is_empty() {
        b.poll();
    }
    assert_eq!(b.told.messages, [(2, b"x".to_vec())], "the other goes on");
}
