//! Tests of two `ud` interfaces over the device double.

use super::address::Address;
use super::{MAX_IDENTITY, max_message};
use crate::UD;
use crate::abi::{IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ERR};
use crate::double::clock::pass;
use crate::double::world::{announce, fault};
use crate::double::{Side, side_of};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tieline_plugin_api::{Endpoint, Interface, Packer, Posting, Status};

#[test]
fn a_peer_arrives_with_its_identity_and_messages_come_once_in_order() {
    let (mut a, mut b) = (side_of(UD, &[]), side_of(UD, &[]));
    let to_b = a.interface.connect(&b.interface.address(), &[7; 3000], 1).unwrap();
    let mut sent = 0u64;
    while sent < 300 {
        match to_b.am_short(1, sent, &[sent as u8; 900]) {
            Ok(Posting::Done) => sent += 1,
            Err(Status::Again) => {
                b.poll();
                a.poll();
            }
            other => panic!("{other:?}"),
        }
    }
    while b.told.messages.len() < 300 {
        b.poll();
        a.poll();
    }
    assert_eq!(b.told.arrived, [vec![7; 3000]]);
    let headers: Vec<u64> = b.told.messages.iter().map(|(header, _)| *header).collect();
    assert_eq!(headers, (0..300).collect::<Vec<_>>());
    assert!(b.told.messages.iter().all(|(header, bytes)| *bytes == [*header as u8; 900]));
}

#[test]
fn interface_cookie_is_fully_random() {
    let words: Vec<u64> = (0..8)
        .map(|_| side_of(UD, &[]).interface.address())
        .map(|address| Address::unpack(&address).unwrap().target.cookie)
        .collect();
    for half in [0, 32] {
        let drawn: HashSet<u32> = words.iter().map(|word| (word >> half) as u32).collect();
        assert!(drawn.len() > 1, "bits {half} and on: {words:x?}");
    }
}

#[test]
fn packer_may_send_elsewhere_while_its_channel_is_blocked() {
    let (mut a, mut b, mut c) = (side_of(UD, &[]), side_of(UD, &[]), side_of(UD, &[]));
    let to_b = a.interface.connect(&b.interface.address(), b"a", 1).unwrap();
    let to_c = a.interface.connect(&c.interface.address(), b"a", 2).unwrap();
    let most = max_message(5);
    let mut write = |at: *mut u8, room: usize| {
        assert_eq!(to_b.am_short(7, 9, b"same"), Err(Status::Again), "its room is taken");
        let mut nothing = |_: *mut u8, _: usize| Ok(0);
        let within = to_b.am_packed(7, 9, Packer::new(&mut nothing), 10);
        assert_eq!(within, Err(Status::Again), "and is nobody else's to pack into");
        assert_eq!(to_c.am_short(7, 1, b"other"), Ok(Posting::Done));
        a.poll();
        crate::double::sys::write_at(at.expose_provenance() as u64, &vec![3; room]);
        Ok(room)
    };
    assert_eq!(to_b.am_packed(7, 3, Packer::new(&mut write), most), Ok(most));
    assert_eq!(to_b.am_short(7, 4, b"same"), Ok(Posting::Done));
    // A packer that fails or returns too large a length leaves nothing behind.
    for refused in [Err(Status::Invalid), Ok(11)] {
        let mut none = |_: *mut u8, _: usize| refused;
        assert_eq!(to_b.am_packed(7, 5, Packer::new(&mut none), 10), Err(Status::Invalid));
    }
    let mut none = |_: *mut u8, _: usize| panic!("nobody packs what is too long");
    assert_eq!(to_b.am_packed(7, 5, Packer::new(&mut none), most + 1), Err(Status::TooLarge));
    assert_eq!(to_b.am_short(7, 6, b"same"), Ok(Posting::Done));
    while b.told.messages.len() < 3 || c.told.messages.is_empty() {
        a.poll();
        b.poll();
        c.poll();
    }
    assert_eq!(b.told.messages[0], (3, vec![3; most]));
    assert_eq!((b.told.messages[1].0, b.told.messages[2].0), (4, 6));
}

#[test]
fn channel_failure_during_packing_overrides_the_packed_result() {
    for packed in [Ok(3), Err(Status::Invalid)] {
        let (mut a, b) = (side_of(UD, &[]), side_of(UD, &[]));
        let to_b = a.interface.connect(&b.interface.address(), b"a", 1).unwrap();
        let mut write = |_: *mut u8, _: usize| {
            announce(IBV_EVENT_DEVICE_FATAL);
            while a.told.failed.is_empty() {
                pass(Duration::from_millis(10));
                a.poll();
            }
            packed
        };
        assert_eq!(to_b.am_packed(7, 1, Packer::new(&mut write), 10), Err(Status::NoDevice));
    }
}

#[test]
fn full_window_blocks_packing_until_an_acknowledgement() {
    let (mut a, mut b) = (side_of(UD, &[]), side_of(UD, &[]));
    let to_b = a.interface.connect(&b.interface.address(), b"a", 1).unwrap();
    let mut sent = 0;
    while to_b.am_short(1, sent, b"x") == Ok(Posting::Done) {
        sent += 1;
    }
    let mut never = |_: *mut u8, _: usize| panic!("there is no room");
    assert_eq!(to_b.am_packed(1, sent, Packer::new(&mut never), 1), Err(Status::Again));
    while b.told.messages.len() < sent as usize {
        a.poll();
        b.poll();
    }
    let mut write = |_: *mut u8, _: usize| Ok(0);
    while to_b.am_packed(1, sent, Packer::new(&mut write), 1) == Err(Status::Again) {
        b.poll();
        a.poll();
    }
    while b.told.messages.len() <= sent as usize {
        a.poll();
        b.poll();
    }
    assert_eq!(b.told.messages.last(), Some(&(sent, Vec::new())));
}

#[test]
fn unacknowledged_message_fails_the_endpoint_at_the_timeout() {
    let settings = [("TIELINE_FAILURE_TIMEOUT", "200ms")];
    let (mut a, b) = (side_of(UD, &settings), side_of(UD, &[]));
    let to_b = a.interface.connect(&b.interface.address(), b"a", 1).unwrap();
    assert_eq!(to_b.am_short(1, 1, b"lost"), Ok(Posting::Done));
    assert_eq!(to_b.flush(2), Ok(Posting::Pending));
    fault(|faults| faults.cut = true);
    while a.told.failed.is_empty() {
        a.poll();
    }
    assert_eq!(a.told.failed[0].0, 1);
    assert!(a.told.ended.iter().all(|(cookie, result)| *cookie == 2 && result.is_err()));
    assert_eq!(a.told.ended.len(), 1);
    assert!(to_b.am_short(1, 2, b"x").is_err_and(|status| status != Status::Again));
    assert_eq!(to_b.fence(), Err(Status::TimedOut));
    fault(|faults| faults.cut = false);
    drop(to_b);
    assert_eq!(a.interface.memory().peers, 0, "nobody is there to say goodbye to");
}

#[test]
fn unacknowledged_message_on_down_port_reports_the_port() {
    let settings = [("TIELINE_FAILURE_TIMEOUT", "200ms")];
    let (mut a, b) = (side_of(UD, &settings), side_of(UD, &[]));
    let _to_b = a.interface.connect(&b.interface.address(), b"a", 1).unwrap();
    fault(|faults| faults.cut = true);
    announce(IBV_EVENT_PORT_ERR);
    while a.told.failed.is_empty() {
        pass(Duration::from_millis(10));
        a.poll();
    }
    let words = "double0 port 1 is down".to_string();
    assert_eq!(a.told.failed, [(1, Status::Unreachable, words)]);
    fault(|faults| faults.cut = false);
}

/// The device refuses the datagrams for a while, and their buffers are released.
#[test]
fn datagrams_refused_by_the_device_are_sent_later() {
    let settings = [("TIELINE_FAILURE_TIMEOUT", "1h")];
    let (mut a, mut b) = (side_of(UD, &settings), side_of(UD, &[]));
    let to_b = a.interface.connect(&b.interface.address(), b"a", 1).unwrap();
    while b.told.arrived.is_empty() {
        a.poll();
        b.poll();
    }
    (0..4).for_each(|_| a.poll());
    fault(|faults| faults.refuse_sends = libc::ENOMEM);
    for header in 0..32 {
        assert_eq!(to_b.am_short(1, header, b"x"), Ok(Posting::Done));
    }
    for _ in 0..20 {
        pass(Duration::from_secs(2));
        a.poll();
    }
    fault(|faults| faults.refuse_sends = 0);
    pass(Duration::from_secs(2));
    for _ in 0..40 {
        a.poll();
        b.poll();
    }
    assert_eq!(b.told.messages.len(), 32);
    drop(to_b);
    while a.interface.memory().peers > 0 {
        a.poll();
        b.poll();
    }
}

/// The channel closes before the other side has answered the Hello, and while the network is cut.
#[test]
fn closed_full_channel_delivers_everything_before_the_goodbye() {
    let (mut a, mut b) = (side_of(UD, &[]), side_of(UD, &[]));
    let address = b.interface.address();
    for (turn, answered) in [false, true].into_iter().enumerate() {
        let to_b = a.interface.connect(&address, b"a", 1).unwrap();
        while answered && to_b.flush(1) == Ok(Posting::Pending) {
            a.poll();
            b.poll();
        }
        fault(|faults| faults.cut = answered);
        let mut sent = 0u64;
        while to_b.am_short(1, sent, b"taken") == Ok(Posting::Done) {
            sent += 1;
        }
        assert!(sent >= 31, "{sent}");
        drop(to_b);
        fault(|faults| faults.cut = false);
        pass(Duration::from_millis(100));
        for _ in 0..100 {
            a.poll();
            b.poll();
        }
        let headers: Vec<u64> = b.told.messages.drain(..).map(|(header, _)| header).collect();
        assert_eq!(headers, (0..sent).collect::<Vec<_>>(), "answered: {answered}");
        assert_eq!((b.told.left, a.interface.memory().peers), (turn + 1, 0));
        a.told.ended.clear();
    }
}

/// The peer may have failed or been killed: no goodbye will ever arrive.
#[test]
fn slot_of_silent_peer_is_reused_if_no_other_is_free() {
    // Closing must not wait for acknowledgements that silent peers never send.
    let settings = [("TIELINE_CLOSE_TIMEOUT", "1ms")];
    let (mut a, mut b) = (side_of(UD, &settings), side_of(UD, &[]));
    let mut c = side_of(UD, &settings);
    let address = b.interface.address();
    let mut silent = Vec::new();
    while b.told.arrived.len() == silent.len() {
        silent.push(a.interface.connect(&address, b"a", 1).unwrap());
        (0..4).for_each(|_| {
            b.poll();
            a.poll();
        });
    }
    let meet = |b: &mut Side, c: &mut Side| {
        let to_b = c.interface.connect(&address, b"c", 1).unwrap();
        (0..20).for_each(|_| {
            b.poll();
            c.poll();
        });
        to_b
    };
    let _early = meet(&mut b, &mut c);
    assert_eq!((b.told.arrived.len(), b.told.left), (silent.len() - 1, 0), "all are in use");
    for _ in 0..4 {
        pass(Duration::from_secs(20));
        (0..20).for_each(|_| b.poll());
    }
    let _late = meet(&mut b, &mut c);
    assert_eq!(b.told.arrived.last().unwrap(), b"c");
    let newcomers = b.told.arrived.len() - (silent.len() - 1);
    assert_eq!(b.told.left, newcomers, "whose places they have now have left");
}

#[test]
fn closed_channel_leaves_nothing_after_goodbye_acknowledgement() {
    let (mut a, mut b) = (side_of(UD, &[]), side_of(UD, &[]));
    let address = b.interface.address();
    let (first, begun) = (a.interface.memory().peer_bytes, Instant::now());
    for n in 0..50 {
        let to_b = a.interface.connect(&address, b"a", n).unwrap();
        while to_b.am_short(1, n, b"one") != Ok(Posting::Done) {
            a.poll();
            b.poll();
        }
        drop(to_b);
        while a.interface.memory().peer_bytes > first || b.told.messages.len() <= n as usize {
            a.poll();
            b.poll();
            assert!(begun.elapsed() < Duration::from_secs(60), "a closed channel is kept");
        }
    }
    assert_eq!(a.interface.memory().peers, 0);
    assert_eq!(b.told.left, 50);
}

#[test]
fn removed_device_fails_every_channel_and_refuses_new_ones() {
    let (mut a, b) = (side_of(UD, &[]), side_of(UD, &[]));
    let address = b.interface.address();
    let first = a.interface.connect(&address, b"a", 1).unwrap();
    let second = a.interface.connect(&address, b"a", 2).unwrap();
    assert_eq!(first.am_short(1, 1, b"lost"), Ok(Posting::Done));
    assert_eq!(first.flush(7), Ok(Posting::Pending));
    announce(IBV_EVENT_DEVICE_FATAL);
    let begun = Instant::now();
    while a.told.failed.len() < 2 {
        a.poll();
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", a.told.failed);
    }
    let ended: Vec<(u64, Status)> = a.told.failed.iter().map(|f| (f.0, f.1)).collect();
    assert_eq!(ended, [(1, Status::NoDevice), (2, Status::NoDevice)]);
    assert_eq!(a.told.ended, [(7, Err(Status::NoDevice))]);
    assert_eq!(second.am_short(1, 1, b"x"), Err(Status::NoDevice));
    assert_eq!(a.interface.connect(&address, b"a", 3).err().unwrap().status, Status::NoDevice);
}

#[test]
fn longest_message_and_identity_arrive_and_longer_are_refused() {
    const MTU: (&str, &str) = ("TIELINE_VERBS_PATH_MTU", "256");
    let (mut a, mut b) = (side_of(UD, &[MTU]), side_of(UD, &[MTU]));
    let (address, most) = (b.interface.address(), max_message(1));
    let to_b = a.interface.connect(&address, &[7; MAX_IDENTITY], 1).unwrap();
    let failure = a.interface.connect(&address, &[7; MAX_IDENTITY + 1], 2).err().unwrap();
    assert_eq!(failure.text, "an identity of 4097 bytes is beyond 4096");
    let mut sent = to_b.am_short(1, 1, &vec![3; most]);
    while sent == Err(Status::Again) {
        a.poll();
        b.poll();
        sent = to_b.am_short(1, 1, &vec![3; most]);
    }
    assert_eq!(sent, Ok(Posting::Done));
    assert_eq!(to_b.am_short(1, 2, &vec![3; most + 1]), Err(Status::TooLarge));
    assert_eq!(to_b.am_short(1, 3, b""), Ok(Posting::Done));
    while b.told.messages.len() < 2 {
        a.poll();
        b.poll();
    }
    assert_eq!(b.told.arrived, [vec![7; MAX_IDENTITY]]);
    assert_eq!(b.told.messages, [(1, vec![3; most]), (3, vec![])]);
    drop(to_b);
    while a.interface.memory().peers > 0 {
        a.poll();
        b.poll();
    }
}

#[test]
fn peers_with_different_mtu_use_the_smaller_packets() {
    for (narrow, code) in [("256", 1), ("1024", 3), ("2048", 4)] {
        let (mut a, mut b) = (side_of(UD, &[]), side_of(UD, &[("TIELINE_VERBS_PATH_MTU", narrow)]));
        let to_b = a.interface.connect(&b.interface.address(), &[7; MAX_IDENTITY], 1).unwrap();
        let to_a = b.interface.connect(&a.interface.address(), &[8; MAX_IDENTITY], 1).unwrap();
        let bytes: Vec<u8> = (0..max_message(5)).map(|at| (at % 251) as u8).collect();
        let piece = max_message(code);
        let lens = [piece, piece + 1, 2 * piece, bytes.len() - 1, bytes.len(), 0, 1];
        for (at, len) in lens.into_iter().enumerate() {
            while to_b.am_short(1, at as u64, &bytes[..len]) == Err(Status::Again) {
                a.poll();
                b.poll();
            }
        }
        assert_eq!(to_b.am_short(1, 9, &vec![0; bytes.len() + 1]), Err(Status::TooLarge));
        while to_a.am_short(1, 5, &bytes[..piece]) == Err(Status::Again) {
            a.poll();
            b.poll();
        }
        while b.told.messages.len() < lens.len() || a.told.messages.is_empty() {
            pass(Duration::from_millis(1));
            a.poll();
            b.poll();
        }
        let sent = |(at, len): (usize, usize)| (at as u64, bytes[..len].to_vec());
        assert_eq!(b.told.messages, lens.into_iter().enumerate().map(sent).collect::<Vec<_>>());
        assert_eq!(a.told.messages, [(5, bytes[..piece].to_vec())]);
        assert_eq!(
            (&b.told.arrived, &a.told.arrived),
            (&vec![vec![7; 4096]], &vec![vec![8; 4096]])
        );
    }
}

#[test]
fn failed_datagram_and_its_successors_are_retransmitted() {
    let (mut a, mut b) = (side_of(UD, &[]), side_of(UD, &[]));
    let to_b = a.interface.connect(&b.interface.address(), b"a", 1).unwrap();
    while b.told.arrived.is_empty() {
        a.poll();
        b.poll();
    }
    fault(|faults| faults.no_link = true);
    assert_eq!(to_b.am_short(1, 1, b"x"), Ok(Posting::Done));
    fault(|faults| faults.no_link = false);
    assert_eq!(to_b.am_short(1, 2, b"y"), Ok(Posting::Done));
    for _ in 0..200 {
        pass(Duration::from_millis(10));
        a.poll();
        b.poll();
    }
    assert_eq!(b.told.messages, [(1, b"x".to_vec()), (2, b"y".to_vec())]);
    drop(to_b);
    (0..40).for_each(|_| {
        a.poll();
        b.poll();
    });
    assert_eq!((b.told.left, a.interface.memory().peers), (1, 0));
}
