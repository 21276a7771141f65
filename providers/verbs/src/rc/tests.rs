//! Tests of two ends of reliable connections over the device double.

use crate::abi::*;
use crate::double::world::{self as device, fault};
use crate::double::{Side, clock, connect, domain, piece, piece_in, share, side};
use crate::{RC, RemoteKey, VerbsEndpoint};
use std::time::{Duration, Instant};
use tieline_plugin_api::abi::{Atomic, KeyParams, RegisterParams};
use tieline_plugin_api::{
    Domain, Endpoint, Interface, Posted, Posting, RmaOp, Status, access, atomic_op, op_flags,
};

const ALL: u64 = access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC;

const REMOTE: u64 = op_flags::REMOTE_COMPLETION;

fn put(at: &VerbsEndpoint, key: &RemoteKey, words: &mut [u64], cookie: u64) -> Posted {
    let iov = [piece(words)];
    at.put(key, &RmaOp { iov: &iov, len: iov[0].len, offset: 0, cookie, flags: REMOTE })
}

fn get(at: &VerbsEndpoint, key: &RemoteKey, words: &mut [u64], cookie: u64) -> Posted {
    let iov = [piece(words)];
    at.get(key, &RmaOp { iov: &iov, len: iov[0].len, offset: 0, cookie, flags: REMOTE })
}

#[test]
fn messages_arrive_in_order_and_idle_receiver_stops_its_sender() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let (mut sent, mut stopped) = (0u64, 0);
    while sent < 500 {
        assert!(stopped < 500, "stopped for good after {sent}");
        let long = vec![sent as u8; (sent as usize * 37) % 8000];
        match at_a.am_short(7, sent, &long) {
            Ok(Posting::Done) => sent += 1,
            Err(Status::Again) => {
                stopped += 1;
                b.poll();
                a.poll();
            }
            other => panic!("{other:?}"),
        }
    }
    (0..100).for_each(|_| b.poll());
    let headers: Vec<u64> = b.told.messages.iter().map(|(header, _)| *header).collect();
    assert_eq!(headers, (0..500).collect::<Vec<_>>());
    let whole = |(header, payload): &(u64, Vec<u8>)| {
        payload.len() == (*header as usize * 37) % 8000
            && payload.iter().all(|b| *b == *header as u8)
    };
    assert!(b.told.messages.iter().all(whole) && stopped > 0);
}

#[test]
fn window_grows_for_a_stream_but_not_for_a_ping_pong() {
    let settings = [("TIELINE_VERBS_WINDOW", "8"), ("TIELINE_VERBS_MAX_WINDOW", "40")];
    let (mut a, mut b) = (side(&settings), side(&settings));
    let (at_a, at_b) = connect(&mut a, &mut b);
    let at_once = |at: &VerbsEndpoint| {
        (0..500).take_while(|n| at.am_short(7, *n, b"short") == Ok(Posting::Done)).count()
    };
    for _ in 0..50 {
        assert_eq!(at_b.am_short(7, 0, b"ping"), Ok(Posting::Done));
        a.poll();
        assert_eq!(at_a.am_short(7, 0, b"pong"), Ok(Posting::Done));
        b.poll();
    }
    a.poll();
    b.poll();
    let first = at_once(&at_a);
    assert!((6..=8).contains(&first), "{first}");
    for _ in 0..10 {
        (0..20).for_each(|_| b.poll());
        a.poll();
        let _ = at_once(&at_a);
    }
    (0..20).for_each(|_| b.poll());
    a.poll();
    let last = at_once(&at_a);
    assert!((21..=40).contains(&last), "{last}");
}

#[test]
fn short_messages_are_rarely_signalled_and_receives_are_chained() {
    let settings = [("TIELINE_VERBS_WINDOW", "64"), ("TIELINE_VERBS_MAX_WINDOW", "64")];
    let (mut a, mut b) = (side(&settings), side(&settings));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let before = device::counts();
    for header in 0..60 {
        assert_eq!(at_a.am_short(7, header, b"short"), Ok(Posting::Done));
    }
    let after = device::counts();
    assert_eq!(after.sends - before.sends, 60);
    assert_eq!(after.inline - before.inline, 60, "the device copies, nobody waits for a buffer");
    assert!(after.signalled - before.signalled <= 2, "a completion for a quarter of the queue");
    while b.told.messages.len() < 60 {
        b.poll();
    }
    b.poll();
    let last = device::counts();
    let (receives, calls) =
        (last.receives - before.receives, last.receive_calls - before.receive_calls);
    assert_eq!(receives, 60);
    assert!(calls <= 60 / 8, "{calls} calls for {receives} receives");
}

#[test]
fn packed_message_is_sent_later_if_device_lacks_memory() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let packed = std::cell::Cell::new(0);
    let pack = |header: u64| {
        let mut write = |at: *mut u8, capacity: usize| {
            packed.set(packed.get() + 1);
            assert_eq!(capacity, 1000);
            crate::double::sys::write_at(at.expose_provenance() as u64, &[header as u8; 900]);
            Ok(900)
        };
        at_a.am_packed(7, header, tieline_plugin_api::Packer::new(&mut write), 1000)
    };
    assert_eq!(pack(1), Ok(900));
    fault(|faults| faults.refuse_sends = libc::ENOMEM);
    assert_eq!(pack(2), Ok(900));
    assert_eq!(
        (pack(3), packed.get()),
        (Err(Status::Again), 2),
        "AGAIN: the packer was not called"
    );
    assert_eq!(at_a.am_short(7, 3, b"short"), Err(Status::Again), "nothing overtakes it");
    assert_eq!(at_a.flush(1), Err(Status::Again));
    a.poll();
    assert_eq!(at_a.am_short(7, 3, b"short"), Err(Status::Again));
    fault(|faults| faults.refuse_sends = 0);
    a.poll();
    assert_eq!(at_a.am_short(7, 3, b"short"), Ok(Posting::Done));
    while b.told.messages.len() < 3 {
        b.poll();
    }
    let headers: Vec<u64> = b.told.messages.iter().map(|(header, _)| *header).collect();
    assert_eq!(headers, [1, 2, 3]);
    assert_eq!(b.told.messages[1].1, [2; 900]);
    // A message that the device never accepts ends with its endpoint.
    fault(|faults| faults.refuse_sends = libc::ENOMEM);
    assert_eq!(pack(4), Ok(900));
    drop(at_a);
    fault(|faults| faults.refuse_sends = 0);
    a.poll();
}

/// The application's packer may send messages and make progress.
#[test]
fn packer_may_send_elsewhere_while_its_connection_is_blocked() {
    let (mut a, mut b, mut c) = (side(&[]), side(&[]), side(&[]));
    let (to_b, _at_b) = connect(&mut a, &mut b);
    let (to_c, _at_c) = connect(&mut a, &mut c);
    let mut write = |at: *mut u8, _: usize| {
        assert_eq!(to_b.am_short(7, 9, b"same"), Err(Status::Again), "its room is taken");
        assert_eq!(to_c.am_short(7, 1, b"other"), Ok(Posting::Done));
        assert_eq!(to_c.am_short(7, 2, &[2; 1000]), Ok(Posting::Done));
        a.poll();
        crate::double::sys::write_at(at.expose_provenance() as u64, &[3; 500]);
        Ok(500)
    };
    let packer = tieline_plugin_api::Packer::new(&mut write);
    assert_eq!(to_b.am_packed(7, 3, packer, 1000), Ok(500));
    assert_eq!(to_b.am_short(7, 4, b"same"), Ok(Posting::Done));
    while b.told.messages.len() < 2 || c.told.messages.len() < 2 {
        b.poll();
        c.poll();
    }
    assert_eq!(b.told.messages[0], (3, vec![3; 500]));
    assert_eq!((b.told.messages[1].0, c.told.messages[1].0), (4, 2));
    // A failed packer leaves nothing behind.
    let mut none = |_: *mut u8, _: usize| Err(Status::Invalid);
    let packer = tieline_plugin_api::Packer::new(&mut none);
    assert_eq!(to_b.am_packed(7, 5, packer, 1000), Err(Status::Invalid));
    assert_eq!(to_b.am_short(7, 6, b"same"), Ok(Posting::Done));
}

#[test]
fn put_get_and_atomics_reach_memory_and_end_exactly_once() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let (mut target, mut source) = (vec![0u64; 4096], vec![0x55u64; 4096]);
    let (region, key) = share(&b, &mut target, &at_a);
    assert_eq!(put(&at_a, &key, &mut source[..2], 10), Ok(Posting::Pending), "inline");
    assert_eq!(put(&at_a, &key, &mut source[..100], 11), Ok(Posting::Pending), "copied");
    assert_eq!(put(&at_a, &key, &mut source, 12), Ok(Posting::Pending), "lent");
    let mut back = vec![0u64; 4096];
    assert_eq!(get(&at_a, &key, &mut back, 13), Ok(Posting::Pending));
    a.poll();
    assert_eq!(a.told.ended, (10..14).map(|cookie| (cookie, Ok(0))).collect::<Vec<_>>());
    assert_eq!((&target, &back), (&source, &source));
    let atomic = |op, operand, compare| Atomic {
        op,
        width: 8,
        key: core::ptr::null_mut(),
        offset: 8,
        operand,
        compare,
        result: core::ptr::null_mut(),
        cookie: 14,
        flags: REMOTE,
    };
    assert_eq!(at_a.atomic(&key, &atomic(atomic_op::ADD, 2, 0), &mut 0), Ok(Posting::Pending));
    assert_eq!(
        at_a.atomic(&key, &atomic(atomic_op::COMPARE_SWAP, 9, 0x57), &mut 0),
        Ok(Posting::Pending)
    );
    a.poll();
    assert_eq!(a.told.ended[4..], [(14, Ok(0x55)), (14, Ok(0x57))]);
    assert_eq!(target[1], 9);
    b.domain.deregister(region).unwrap();
}

#[test]
fn operations_on_the_same_memory_share_a_registration_that_ends_with_them() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let (mut target, mut source) = (vec![0u64; 4096], vec![1u64; 4096]);
    let (_region, key) = share(&b, &mut target, &at_a);
    let before = device::registrations();
    fault(|faults| faults.stuck = true);
    for cookie in 0..8 {
        assert_eq!(put(&at_a, &key, &mut source, cookie), Ok(Posting::Pending));
    }
    assert_eq!(device::registrations() - before, 1, "one for all that are under way");
    fault(|faults| faults.stuck = false);
    a.poll();
    assert_eq!((a.told.ended.len(), device::registrations()), (8, before), "and none is left");
}

/// A read-only mapping, registered as a region or not, can be the target of a peer's get and the source of a put.
#[test]
fn get_into_read_only_memory_is_refused_and_connection_survives() {
    let (mut a, mut b) = (side(&[("TIELINE_VERBS_CACHE", "keep")]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let (mut target, mut constant) = (vec![0u64; 4096], vec![7u64; 4096]);
    let (_region, key) = share(&b, &mut target, &at_a);
    let whole = piece(&mut constant);
    let start = whole.base.expose_provenance() as u64;
    fault(|faults| faults.read_only = start..start + whole.len as u64);
    for registered in [false, true] {
        let own = registered.then(|| {
            a.domain
                .register(&RegisterParams::new(whole.base, whole.len, access::REMOTE_READ))
                .unwrap()
        });
        let words = &mut constant;
        let iov = [match &own {
            Some(own) => piece_in(own, words),
            None => piece(words),
        }];
        let op = |cookie| RmaOp { iov: &iov, len: iov[0].len, offset: 0, cookie, flags: REMOTE };
        assert_eq!(at_a.put(&key, &op(1)), Ok(Posting::Pending));
        a.poll();
        assert_eq!(a.told.ended, [(1, Ok(0))], "registered: {registered}");
        a.told.ended.clear();
        assert_eq!(at_a.get(&key, &op(2)), Err(Status::Io), "registered: {registered}");
        a.poll();
        assert!(a.told.ended.is_empty() && a.told.failed.is_empty(), "{:?}", a.told);
        own.into_iter().for_each(|own| a.domain.deregister(own).unwrap());
    }
    fault(|faults| faults.read_only = 0..0);
    assert_eq!(get(&at_a, &key, &mut constant, 3), Ok(Posting::Pending));
    a.poll();
    assert_eq!(a.told.ended, [(3, Ok(0))]);
}

#[test]
fn kept_registration_is_reused_until_its_region_ends() {
    let settings = [("TIELINE_VERBS_CACHE", "keep"), ("TIELINE_VERBS_CACHE_ENTRIES", "2")];
    let (mut a, mut b) = (side(&settings), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let mut target = vec![0u64; 4096];
    let mut sources: Vec<Vec<u64>> = (0..4).map(|n| vec![n; 4096]).collect();
    let (_region, key) = share(&b, &mut target, &at_a);
    let (before, made) = (device::registrations(), device::counts().registrations);
    for _ in 0..5 {
        assert_eq!(put(&at_a, &key, &mut sources[0], 1), Ok(Posting::Pending));
        a.poll();
    }
    assert_eq!(device::counts().registrations - made, 1);
    for source in &mut sources {
        assert_eq!(put(&at_a, &key, source, 1), Ok(Posting::Pending));
        a.poll();
    }
    assert_eq!(device::registrations() - before, 2, "as many as there may be");
    let whole = piece(&mut sources[3]);
    let own = a.domain.register(&RegisterParams::new(whole.base, whole.len, ALL)).unwrap();
    a.domain.deregister(own).unwrap();
    assert!(device::registrations() - before < 2, "who ends a region may unmap it");
    drop((at_a, a));
}

#[test]
fn revoked_key_fails_connection_and_peer_can_reconnect() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, at_b) = connect(&mut a, &mut b);
    let (mut target, mut kept) = (vec![0u64; 64], vec![0u64; 64]);
    let (region, key) = share(&b, &mut target, &at_a);
    let (_kept, good) = share(&b, &mut kept, &at_a);
    b.domain.deregister(region).unwrap();
    fault(|faults| faults.stuck = true);
    assert_eq!(put(&at_a, &good, &mut [7; 8], 1), Ok(Posting::Pending));
    assert_eq!(put(&at_a, &key, &mut [8; 8], 2), Ok(Posting::Pending));
    assert_eq!(put(&at_a, &good, &mut [9; 8], 3), Ok(Posting::Pending));
    fault(|faults| faults.stuck = false);
    while a.told.failed.is_empty() {
        assert!(a.told.ended.iter().all(|(_, result)| result.is_ok()), "before its words");
        a.poll();
    }
    let ended: Vec<_> =
        a.told.ended.iter().map(|(cookie, result)| (*cookie, result.err())).collect();
    assert_eq!(ended, [(1, None), (2, Some(Status::KeyRejected)), (3, Some(Status::Io))]);
    assert_eq!(kept[0], 7, "what was posted behind the refused one has no effect");
    assert!(a.told.failed[0].2.contains("its region was deregistered"), "{:?}", a.told.failed);
    assert_eq!(put(&at_a, &good, &mut [9; 8], 4), Err(Status::Io));
    while b.told.failed.is_empty() {
        b.poll();
    }
    assert!(b.told.failed[0].2.contains("used a remote key that this"), "{:?}", b.told.failed);
    let status = |side: &Side| side.told.failed[0].1;
    assert_eq!((status(&a), status(&b)), (Status::KeyRejected, Status::KeyRejected));
    drop((at_a, at_b));
    let (again, _at_b) = connect(&mut a, &mut b);
    assert_eq!(put(&again, &good, &mut [10; 8], 5), Ok(Posting::Pending));
    a.poll();
    assert_eq!((a.told.ended.last(), kept[0]), (Some(&(5, Ok(0))), 10));
}

#[test]
fn keys_of_others_and_changed_ones_are_refused_before_anything_is_posted() {
    let (mut a, mut b, c) = (side(&[]), side(&[]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let mut words = vec![0u64; 8];
    let piece = piece(&mut words);
    let mut bytes = [0; 128];
    let foreign = c.domain.register(&RegisterParams::new(piece.base, piece.len, ALL)).unwrap();
    let len = c.domain.pack_key(&foreign, &KeyParams::empty(), &mut bytes).unwrap();
    let refused = at_a.import_key(&bytes[..len]).err().unwrap();
    assert_eq!(refused.status, Status::KeyRejected);
    assert!(refused.text.contains("another process or device"), "{}", refused.text);
    let reading = b
        .domain
        .register(&RegisterParams::new(piece.base, piece.len, access::REMOTE_READ))
        .unwrap();
    let len = b.domain.pack_key(&reading, &KeyParams::empty(), &mut bytes).unwrap();
    let key = at_a.import_key(&bytes[..len]).unwrap();
    let sends = device::counts().sends;
    assert_eq!(put(&at_a, &key, &mut [1; 8], 1), Err(Status::KeyRejected));
    assert_eq!(get(&at_a, &key, &mut [1; 9], 1), Err(Status::OutOfRange));
    assert_eq!(device::counts().sends, sends);
    assert_eq!(get(&at_a, &key, &mut [1; 8], 1), Ok(Posting::Pending), "the endpoint lives on");
}

#[test]
fn vanished_peer_fails_outstanding_operations_with_the_reason() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, at_b) = connect(&mut a, &mut b);
    let mut target = vec![0u64; 64];
    let (_region, key) = share(&b, &mut target, &at_a);
    fault(|faults| faults.stuck = true);
    assert_eq!(put(&at_a, &key, &mut [1; 40], 1), Ok(Posting::Pending));
    assert_eq!(at_a.flush(2), Ok(Posting::Pending));
    fault(|faults| (faults.stuck, faults.cut) = (false, true));
    (0..100).for_each(|_| a.poll());
    assert_eq!(a.told.ended, [(1, Err(Status::TimedOut)), (2, Err(Status::TimedOut))]);
    let (cookie, status, words) = &a.told.failed[0];
    assert_eq!((*cookie, *status), (1, Status::TimedOut));
    assert!(words.contains("did not acknowledge in 7 tries"), "{words}");
    assert_eq!(at_a.am_short(1, 1, b""), Err(Status::TimedOut), "never `again`");
    drop(at_b);
}

#[test]
fn vanished_idle_peer_is_detected_and_silent_live_peer_is_kept() {
    let settings = [("TIELINE_FAILURE_TIMEOUT", "100ms")];
    let (mut a, mut b) = (side(&settings), side(&[]));
    let (_at_a, _at_b) = connect(&mut a, &mut b);
    let begun = Instant::now();
    let before = device::counts().sends;
    // The peer's device gets keepalives repeatedly, and acknowledges them.
    while device::counts().sends < before + 3 {
        a.poll();
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody asks for a sign of life");
    }
    assert!(a.told.failed.is_empty(), "{:?}", a.told.failed);
    fault(|faults| faults.cut = true);
    while a.told.failed.is_empty() {
        a.poll();
        assert!(begun.elapsed() < Duration::from_secs(60), "the silence is not noticed");
    }
    assert_eq!(a.told.failed[0].1, Status::TimedOut);
    fault(|faults| faults.cut = false);
}

#[test]
fn refused_send_is_retried_or_fails_the_endpoint() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    fault(|faults| faults.refuse_sends = libc::ENOMEM);
    assert_eq!(at_a.am_short(1, 1, b"x"), Err(Status::Again));
    fault(|faults| faults.refuse_sends = 0);
    assert_eq!(at_a.am_short(1, 1, b"x"), Ok(Posting::Done));
    fault(|faults| faults.refuse_sends = libc::EIO);
    while a.told.failed.is_empty() {
        assert_eq!(at_a.am_short(1, 2, b"x"), Err(Status::Again), "before its words");
        a.poll();
    }
    assert!(a.told.failed[0].2.contains("accepts no more sends"), "{:?}", a.told.failed);
    assert_eq!(at_a.am_short(1, 2, b"x"), Err(Status::Io));
}

#[test]
fn removed_device_fails_every_endpoint_and_refuses_new_ones() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (first, _b1) = connect(&mut a, &mut b);
    let (_second, _b2) = connect(&mut a, &mut b);
    let unconnected = a.interface.connect(&[], &[], 4).unwrap();
    let mut target = vec![0u64; 64];
    let (_region, key) = share(&b, &mut target, &first);
    fault(|faults| faults.stuck = true);
    assert_eq!(put(&first, &key, &mut [1; 8], 1), Ok(Posting::Pending));
    device::announce(IBV_EVENT_DEVICE_FATAL);
    while a.told.failed.len() < 3 {
        a.poll();
    }
    let failure = unconnected.connect(&unconnected.address()).unwrap_err();
    assert_eq!(failure.status, Status::NoDevice);
    assert!(failure.text.starts_with("the connection to the peer has ended"), "{}", failure.text);
    assert_eq!(a.told.ended, [(1, Err(Status::NoDevice))]);
    assert!(a.told.failed.iter().all(|(_, _, words)| words == "the device double0 was removed"));
    assert_eq!(a.interface.connect(&[], &[], 3).err().unwrap().status, Status::NoDevice);
}

#[test]
fn stuck_sends_time_out_sooner_while_the_port_is_down() {
    for (down, words) in [(true, "port 1 is down"), (false, "neither completed nor failed")] {
        let settings = [("TIELINE_FAILURE_TIMEOUT", "100ms")];
        let (mut a, mut b) = (side(&settings), side(&[]));
        let (at_a, _at_b) = connect(&mut a, &mut b);
        let mut target = vec![0u64; 64];
        let (_region, key) = share(&b, &mut target, &at_a);
        fault(|faults| faults.stuck = true);
        if down {
            device::announce(IBV_EVENT_PORT_ERR);
        }
        assert_eq!(put(&at_a, &key, &mut [1; 8], 1), Ok(Posting::Pending));
        let begun = clock::Instant::now();
        while a.told.failed.is_empty() {
            a.poll();
        }
        let least = Duration::from_millis(if down { 100 } else { 300 });
        assert!(begun.elapsed() >= least, "not before its time");
        assert!(a.told.failed[0].2.contains(words), "{:?}", a.told.failed);
        assert_eq!(a.told.ended.len(), 1, "what was posted has ended");
        fault(|faults| faults.stuck = false);
    }
}

#[test]
fn lack_of_locked_memory_is_reported_by_the_failing_call() {
    fault(|faults| faults.locked = Some(64 << 10));
    let domain = domain(&[]).unwrap();
    let interface = domain.open_interface(RC, [0; 16]).unwrap();
    let failures = [
        domain.open_interface(crate::UD, [0; 16]).err().unwrap(),
        interface.connect(&[], &[], 1).err().unwrap(),
    ];
    for failure in failures {
        assert_eq!(failure.status, Status::NoMemory);
        assert!(failure.text.starts_with("registering "), "{}", failure.text);
    }
    let mut words = vec![0u64; 16 << 10];
    let piece = piece(&mut words);
    let failure = domain.register(&RegisterParams::new(piece.base, piece.len, ALL)).err().unwrap();
    assert_eq!(failure.status, Status::NoMemory);
    fault(|faults| faults.locked = None);
}

#[test]
fn cached_registrations_make_room_for_regions() {
    let (mut a, mut b) = (side(&[("TIELINE_VERBS_CACHE", "keep")]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let (mut target, mut source) = (vec![0u64; 4096], vec![1u64; 4096]);
    let (_region, key) = share(&b, &mut target, &at_a);
    assert_eq!(put(&at_a, &key, &mut source, 1), Ok(Posting::Pending));
    a.poll();
    let held = device::locked();
    fault(|faults| faults.locked = Some(held));
    let piece = piece(&mut source);
    let own = a.domain.register(&RegisterParams::new(piece.base, piece.len / 2, ALL)).unwrap();
    assert!(device::locked() < held);
    a.domain.deregister(own).unwrap();
    fault(|faults| faults.locked = None);
}

#[test]
fn the_settings_reach_the_queue_pair() {
    let settings = [
        ("TIELINE_VERBS_PATH_MTU", "512"),
        ("TIELINE_VERBS_TRAFFIC_CLASS", "96"),
        ("TIELINE_VERBS_SERVICE_LEVEL", "3"),
        ("TIELINE_VERBS_PARTITION_KEY", "0x8001"),
        ("TIELINE_VERBS_GID_INDEX", "0"),
        ("TIELINE_VERBS_ACK_TIMEOUT", "1s"),
        ("TIELINE_VERBS_RETRY_COUNT", "4"),
        ("TIELINE_VERBS_RNR_TIMER", "10ms"),
    ];
    let (mut a, mut b) = (side(&settings), side(&settings));
    let (_at_a, _at_b) = connect(&mut a, &mut b);
    for qpn in device::pairs() {
        let attr = device::attributes(qpn);
        let route = attr.ah_attr;
        assert_eq!((attr.path_mtu, attr.pkey_index, route.grh.traffic_class), (2, 1, 96));
        assert_eq!((route.sl, route.grh.sgid_index, route.is_global), (3, 0, 1));
        assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry), (18, 4, 7));
        assert_eq!(attr.min_rnr_timer, 20);
    }
}

#[test]
fn the_smaller_mtu_of_two_sides_is_used() {
    let (mut a, mut b) = (side(&[("TIELINE_VERBS_PATH_MTU", "1024")]), side(&[]));
    let (_at_a, _at_b) = connect(&mut a, &mut b);
    assert!(device::pairs().into_iter().all(|qpn| device::attributes(qpn).path_mtu == 3));
}

#[test]
fn owner_of_revoked_key_learns_why_its_operations_failed() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, at_b) = connect(&mut a, &mut b);
    let (mut target, mut other) = (vec![0u64; 64], vec![0u64; 64]);
    let (region, key) = share(&b, &mut target, &at_a);
    let (_other, theirs) = share(&a, &mut other, &at_b);
    b.domain.deregister(region).unwrap();
    fault(|faults| faults.stuck = true);
    assert_eq!(put(&at_a, &key, &mut [8; 8], 1), Ok(Posting::Pending));
    assert_eq!(put(&at_b, &theirs, &mut [9; 8], 2), Ok(Posting::Pending));
    assert_eq!(put(&at_b, &theirs, &mut [9; 8], 3), Ok(Posting::Pending));
    fault(|faults| faults.stuck = false);
    while b.told.failed.is_empty() {
        b.poll();
    }
    assert_eq!(b.told.failed[0].1, Status::KeyRejected, "{:?}", b.told.failed);
    assert_eq!(b.told.ended.len(), 2);
    assert!(b.told.ended.iter().all(|(_, result)| *result != Err(Status::PeerFailed)));
}

#[test]
fn peer_with_shorter_segment_is_unreachable_and_setting_is_named() {
    let of_size = |size: &str| side(&[("TIELINE_VERBS_SEGMENT_SIZE", size)]);
    let (long, short) = (of_size("16k"), of_size("4k"));
    let failure = long.interface.reachable(&short.interface.address()).unwrap_err();
    assert_eq!(failure.status, Status::Unreachable);
    assert!(failure.text.contains("TIELINE_VERBS_SEGMENT_SIZE must be the same"), "{failure:?}");
    let same = of_size("4k");
    same.interface.reachable(&short.interface.address()).unwrap();
}

#[test]
fn module_attributes_of_a_port_are_complete() {
    use tieline_plugin_api::caps;
    let domain = domain(&[]).unwrap();
    let modules = Domain::modules(&domain);
    let caps_of = |name: &str| {
        let found = modules.iter().find(|attr| attr.name.starts_with(name.as_bytes()));
        found.unwrap_or_else(|| panic!("no module {name}")).caps
    };
    let messages = caps::AM_SHORT | caps::AM_PACKED | caps::AM_ZCOPY | caps::PEER_FAILURE;
    let memory = caps::PUT | caps::GET | caps::REMOTE_COMPLETION | caps::PASSIVE_TARGET;
    let how = caps::EVENT_FD | caps::NEEDS_POLL | caps::TAKES_REGIONS;
    let all = messages | memory | how | caps::ATOMICS;
    assert_eq!(caps_of("rc") & all, all);
    let datagrams = caps::AM_SHORT | caps::EVENT_FD | caps::NEEDS_POLL;
    assert_eq!(caps_of("ud") & datagrams, datagrams);
    assert_eq!(caps_of("ud") & memory, 0, "datagrams reach no memory");
    let data = (messages | memory) & !caps::PEER_FAILURE;
    assert_eq!(caps_of("rdmacm") & data, 0, "it only connects");
}
