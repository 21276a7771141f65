//! Tests of device requests per send, wake-up requests, and the scope of queue failures.

use super::wire::HEADER_LEN;
use crate::abi::{IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_SRQ_ERR};
use crate::double::clock::pass;
use crate::double::world::{self as device, fault};
use crate::double::{Told, connect, domain, piece, poll, share, side, side_of};
use crate::keys::{KEY_LEN, PackedKey};
use crate::{RC, RemoteKey, UD, VerbsEndpoint};
use core::time::Duration;
use tieline_plugin_api::abi::{Iov, KeyParams, RegisterParams};
use tieline_plugin_api::{
    Domain, Endpoint, Interface, Posted, Posting, RmaOp, Status, access, op_flags,
};

fn put(at: &VerbsEndpoint, key: &RemoteKey, iov: &[Iov]) -> Posted {
    let len = iov.iter().map(|piece| piece.len).sum();
    at.put(key, &RmaOp { iov, len, offset: 0, cookie: 1, flags: op_flags::REMOTE_COMPLETION })
}

#[test]
fn data_up_to_the_inline_limit_is_inlined_and_longer_is_not() {
    const MOST: usize = 64;
    let settings = [("TIELINE_VERBS_INLINE", "64")];
    let (mut a, mut b) = (side(&settings), side(&settings));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let mut target = vec![0u64; 64];
    let (_region, key) = share(&b, &mut target, &at_a);
    let copied = |posted: &mut dyn FnMut() -> Posted| {
        let before = device::counts().inline;
        assert!(posted().is_ok());
        device::counts().inline > before
    };
    for (len, expected) in [(MOST - HEADER_LEN, true), (MOST - HEADER_LEN + 1, false)] {
        assert_eq!(copied(&mut || at_a.am_short(7, 0, &vec![5; len])), expected, "{len} bytes");
        let iov = |bytes: &mut [u8]| Iov::new(bytes.as_mut_ptr(), bytes.len());
        let mut bytes = vec![6; len];
        let gathered = copied(&mut || at_a.am_zcopy(7, 1, &[iov(&mut bytes)], 9));
        assert!(!gathered, "it has a buffer of ours");
        (0..3).for_each(|_| b.poll());
        a.poll();
        let came = std::mem::take(&mut b.told.messages);
        assert_eq!(came, [(0, vec![5; len]), (1, vec![6; len])]);
    }
    for (words, expected) in [(MOST / 8, true), (MOST / 8 + 1, false)] {
        let mut source: Vec<u64> = (0..words as u64).map(|n| n + words as u64 * 100).collect();
        let whole = [piece(&mut source)];
        assert_eq!(copied(&mut || put(&at_a, &key, &whole)), expected, "{words} words");
        assert_eq!(target[..words], source, "in one piece");
        target.fill(0);
        let (head, tail) = source.split_at_mut(4);
        let pieces = [piece(head), piece(tail)];
        assert_eq!(copied(&mut || put(&at_a, &key, &pieces)), expected, "{words} words");
        assert_eq!(target[..words], source, "in two");
        a.poll();
    }
}

#[test]
fn fence_applies_only_to_the_next_operation() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let mut target = vec![0u64; 8];
    let (_region, key) = share(&b, &mut target, &at_a);
    let before = device::counts().fenced;
    let mut fenced = |fence: bool| {
        if fence {
            at_a.fence().unwrap();
        }
        assert_eq!(put(&at_a, &key, &[piece(&mut [1u64; 8])]), Ok(Posting::Pending));
        device::counts().fenced - before
    };
    assert_eq!([false, true, false, true, false].map(&mut fenced), [0, 1, 1, 2, 2]);
    a.poll();
}

#[test]
fn every_notification_read_is_acknowledged() {
    for module in [RC, UD] {
        let side = side_of(module, &[]);
        let endpoint = (module == RC).then(|| side.interface.connect(&[], &[], 1).unwrap());
        device::wake(3);
        assert!(side.interface.arm().is_ok());
        assert_eq!(device::wakes(), (0, 0), "{module}");
        device::wake(2);
        drop((endpoint, side));
        assert_eq!(device::wakes(), (0, 0), "{module}");
    }
}

#[test]
fn failed_queue_ends_only_connections_of_its_worker() {
    for kind in [IBV_EVENT_CQ_ERR, IBV_EVENT_SRQ_ERR] {
        let domain = domain(&[]).unwrap();
        let open = |module, number| domain.open_interface(module, [number; 16]).unwrap();
        let (first, second, third) = (open(RC, 1), open(RC, 2), open(UD, 3));
        let _one = first.connect(&[], &[], 1).unwrap();
        let failing = *device::pairs().last().unwrap();
        let _two = second.connect(&[], &[], 2).unwrap();
        let _three = third.connect(&third.address(), b"itself", 3).unwrap();
        device::queue_fails(failing, kind);
        let mut told = [&third, &second, &first].map(|interface| (interface, Told::default()));
        for _ in 0..100 {
            pass(Duration::from_millis(10));
            for (interface, told) in &mut told {
                let _ = poll(interface, told);
            }
        }
        let failed = told.map(|(_, told)| told.failed.iter().map(|f| f.0).collect::<Vec<_>>());
        assert_eq!(failed, [vec![], vec![], vec![1]], "{kind}");
    }
}

#[test]
fn unpollable_completion_queue_fails_every_endpoint_immediately() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (one, _other) = connect(&mut a, &mut b);
    let mut target = vec![0u64; 8];
    let (_region, key) = share(&b, &mut target, &one);
    let mut datagrams = side_of(UD, &[]);
    let address = datagrams.interface.address();
    let two = datagrams.interface.connect(&address, b"itself", 2).unwrap();
    fault(|faults| faults.stuck = true);
    assert_eq!(put(&one, &key, &[piece(&mut [1u64; 8])]), Ok(Posting::Pending));
    fault(|faults| faults.polls_fail = true);
    a.poll();
    datagrams.poll();
    assert_eq!(a.told.ended, [(1, Err(Status::NoDevice))]);
    for (told, cookie, endpoint) in [(&a.told, 1, &one), (&datagrams.told, 2, &two)] {
        let [(of, Status::NoDevice, words)] = &told.failed[..] else { panic!("{told:?}") };
        assert_eq!((*of, &words[..]), (cookie, "the completion queue cannot be polled any more"));
        assert_eq!(endpoint.am_short(1, 1, b"x"), Err(Status::NoDevice));
    }
    let another = datagrams.interface.connect(&address, b"itself", 3);
    assert_eq!(another.err().unwrap().status, Status::NoDevice);
}

#[test]
fn failed_datagram_queue_pair_ends_only_its_own_channels() {
    let domain = domain(&[("TIELINE_CLOSE_TIMEOUT", "1ms")]).unwrap();
    let open = |number| domain.open_interface(UD, [number; 16]).unwrap();
    let (first, second) = (open(1), open(2));
    let [failing, _] = device::pairs()[..] else { panic!("each has one") };
    let (here, there) = (first.address(), second.address());
    let one = first.connect(&there, b"first", 1).unwrap();
    let two = second.connect(&here, b"second", 2).unwrap();
    device::queue_fails(failing, IBV_EVENT_QP_FATAL);
    let mut told = [Told::default(), Told::default()];
    for _ in 0..20 {
        pass(Duration::from_millis(20));
        let _ = poll(&second, &mut told[1]) + poll(&first, &mut told[0]);
    }
    let words = "the datagram queue pair of double0 port 1 failed".to_string();
    assert_eq!(told[0].failed, [(1, Status::NoDevice, words)]);
    assert_eq!(one.am_short(1, 1, b"x"), Err(Status::NoDevice));
    assert!(told[1].failed.is_empty() && two.am_short(1, 1, b"x").is_ok(), "{:?}", told[1]);
}

#[test]
fn refused_receives_fail_every_endpoint_with_the_reason() {
    for (module, reason) in
        [(RC, "the device accepts no more receives"), (UD, "posting receives: ")]
    {
        let settings = [("TIELINE_CLOSE_TIMEOUT", "1ms")];
        let (mut a, mut b) = (side_of(module, &settings), side_of(module, &settings));
        let address = a.interface.address();
        let (at_a, at_b) = match module {
            RC => connect(&mut a, &mut b),
            _ => {
                let to_b = a.interface.connect(&b.interface.address(), b"a", 1).unwrap();
                (to_b, b.interface.connect(&address, b"b", 2).unwrap())
            }
        };
        assert_eq!(at_a.am_short(7, 1, b"it is here"), Ok(Posting::Done));
        while b.told.messages.is_empty() {
            a.poll();
            b.poll();
        }
        fault(|faults| faults.refuse_receives = libc::EIO);
        (0..40).for_each(|_| b.poll());
        let [(2, Status::Io, words)] = &b.told.failed[..] else { panic!("{module}: {:?}", b.told) };
        assert!(words.starts_with(reason), "{words}");
        assert_eq!(at_b.am_short(1, 1, b"x"), Err(Status::Io));
        fault(|faults| faults.refuse_receives = 0);
    }
}

#[test]
fn device_without_inline_sends_from_buffers_that_are_released() {
    // The inline limit is the header, which covers messages without payload, or 0.
    for (inline, copies) in [("16", true), ("0", false)] {
        let settings = [("TIELINE_VERBS_INLINE", inline), ("TIELINE_VERBS_TX_BUFFERS", "32")];
        let (mut a, mut b) = (side(&settings), side(&settings));
        let before = device::counts().inline;
        // More hellos and goodbyes than buffers: a hello without a listener, one that arrives, and a goodbye.
        for _ in 0..40 {
            drop(connect(&mut a, &mut b));
            while a.interface.memory().peers + b.interface.memory().peers > 0 {
                a.poll();
                b.poll();
            }
        }
        let (at_a, _at_b) = connect(&mut a, &mut b);
        let mut sent = 0;
        while sent < 500 {
            sent += u64::from(at_a.am_short(7, sent, b"") == Ok(Posting::Done));
            a.poll();
            b.poll();
        }
        drop(at_a);
        while b.told.failed.is_empty() {
            a.poll();
            b.poll();
        }
        let headers: Vec<u64> = b.told.messages.iter().map(|(header, _)| *header).collect();
        assert_eq!(headers, (0..500).collect::<Vec<_>>());
        assert_eq!((b.told.failed[0].1, a.told.failed.len()), (Status::Closed, 0));
        assert_eq!(device::counts().inline > before, copies);
    }
}

#[test]
fn queue_pair_event_fails_only_its_own_connection() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (_first, first) = connect(&mut a, &mut b);
    let (second, there) = connect(&mut a, &mut b);
    let mut target = vec![0u64; 8];
    let (region, key) = share(&b, &mut target, &second);
    b.domain.deregister(region).unwrap();
    assert_eq!(put(&second, &key, &[piece(&mut [1u64; 8])]), Ok(Posting::Pending));
    while b.told.failed.is_empty() {
        b.poll();
    }
    assert_eq!(there.am_short(7, 1, b"x"), Err(Status::Io));
    assert_eq!(first.am_short(7, 1, b"x"), Ok(Posting::Done));
    (0..40).for_each(|_| b.poll());
    assert_eq!(b.told.failed.len(), 1, "{:?}", b.told.failed);
}

/// Peers know the seal and can forge keys.
#[test]
fn device_grants_peers_only_the_requested_rights() {
    for (right, taken) in [(access::REMOTE_READ, false), (access::REMOTE_WRITE, true)] {
        let (mut a, mut b) = (side(&[]), side(&[]));
        let (at_a, _at_b) = connect(&mut a, &mut b);
        let mut target = vec![0u64; 8];
        let whole = piece(&mut target);
        let region = b.domain.register(&RegisterParams::new(whole.base, whole.len, right)).unwrap();
        let (mut bytes, seal) = ([0; KEY_LEN], b.domain.state.seal);
        let _ = b.domain.pack_key(&region, &KeyParams::empty(), &mut bytes).unwrap();
        let honest = PackedKey::unpack(&bytes, &seal).unwrap();
        let mut forged = honest;
        forged.grant.access = access::REMOTE_READ | access::REMOTE_WRITE;
        let key = at_a.import_key(&forged.pack(&seal)).unwrap();
        assert_eq!(put(&at_a, &key, &[piece(&mut [1u64; 8])]), Ok(Posting::Pending));
        while a.told.ended.is_empty() {
            a.poll();
        }
        let result = if taken { Ok(0) } else { Err(Status::KeyRejected) };
        assert_eq!((&a.told.ended[..], target[0]), (&[(1, result)][..], u64::from(taken)));
    }
}

/// The number of words of a put that is inlined; below, of a put that is not.
const SHORT: usize = 1;
const LONG: usize = 60;

/// Posts adjacent puts of `words` words each, filled with the put's number. All puts but the last have the hint `MORE`. Returns the
/// result of each put.
fn puts(at: &VerbsEndpoint, key: &RemoteKey, source: &mut [u64], words: usize) -> Vec<Posted> {
    let last = source.len() / words - 1;
    let post = |(n, part): (usize, &mut [u64])| {
        part.fill(n as u64 + 1);
        let flags = op_flags::REMOTE_COMPLETION | if n < last { op_flags::MORE } else { 0 };
        let (len, cookie) = (words * 8, n as u64);
        at.put(key, &RmaOp { iov: &[piece(part)], len, offset: cookie * len as u64, cookie, flags })
    };
    source.chunks_mut(words).enumerate().map(post).collect()
}

#[test]
fn operations_with_more_flag_share_one_doorbell() {
    for words in [SHORT, LONG] {
        let (mut a, mut b) = (side(&[]), side(&[]));
        let (at_a, _at_b) = connect(&mut a, &mut b);
        let (mut source, mut target) = (vec![0u64; words * 7], vec![0u64; words * 7]);
        let (_region, key) = share(&b, &mut target, &at_a);
        let before = device::counts();
        assert_eq!(puts(&at_a, &key, &mut source, words), [Ok(Posting::Pending); 7]);
        let after = device::counts();
        assert_eq!((after.send_calls - before.send_calls, after.sends - before.sends), (1, 7));
        a.poll();
        assert_eq!(a.told.ended, (0..7).map(|n| (n, Ok(0))).collect::<Vec<_>>());
        assert_eq!(target, source);
    }
}

#[test]
fn held_operations_are_posted_by_the_next_call_or_poll() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let mut target = vec![0u64; 8];
    let (_region, key) = share(&b, &mut target, &at_a);
    let put = |iov: &[Iov], offset, flags| {
        let len = iov.iter().map(|piece| piece.len).sum();
        at_a.put(&key, &RmaOp { iov, len, offset, cookie: 1, flags })
    };
    let long = vec![0; 1 << 20];
    let calls: [&mut dyn FnMut(); 6] = [
        &mut || assert_eq!(at_a.am_short(1, 1, &long), Err(Status::TooLarge)),
        &mut || assert!(put(&[piece(&mut [1])], 1 << 30, 0).is_err()),
        &mut || assert_eq!(put(&[], 0, 0), Ok(Posting::Done)),
        &mut || assert_eq!(at_a.flush(1), Ok(Posting::Pending)),
        &mut || at_a.fence().unwrap(),
        &mut || a.poll(),
    ];
    for (n, call) in (1..).zip(calls) {
        let mut source = [n];
        assert_eq!(put(&[piece(&mut source)], 0, op_flags::MORE), Ok(Posting::Pending));
        let held = device::counts().sends;
        call();
        assert!(device::counts().sends > held, "call {n}");
    }
    assert_eq!(target[0], 6);
}

#[test]
fn refused_batched_sends_are_retried_in_order_or_fail_connection() {
    for (refusal, words) in [(libc::ENOMEM, SHORT), (libc::ENOMEM, LONG), (libc::EINVAL, LONG)] {
        let (mut a, mut b) = (side(&[]), side(&[]));
        let (at_a, _at_b) = connect(&mut a, &mut b);
        let (mut source, mut target) = (vec![0u64; words * 7], vec![0u64; words * 7]);
        let (_region, key) = share(&b, &mut target, &at_a);
        fault(|faults| (faults.refuse_sends, faults.sends_before) = (refusal, 3));
        let posted = puts(&at_a, &key, &mut source, words);
        assert_eq!(posted[..6], [Ok(Posting::Pending); 6]);
        assert_eq!(posted[6], Err(Status::Again), "its words come with the endpoint's end");
        a.poll();
        fault(|faults| faults.refuse_sends = 0);
        pass(Duration::from_secs(3));
        (0..100).for_each(|_| a.poll());
        let lost = refusal == libc::EINVAL;
        let ended = |n| if lost && n > 2 { Err(Status::Io) } else { Ok(0) };
        assert_eq!(a.told.ended, (0..6).map(|n| (n, ended(n))).collect::<Vec<_>>());
        let there = if lost { 3 } else { 6 };
        assert_eq!(target[..words * there], source[..words * there]);
        assert_eq!((a.told.failed.len(), target[words * 6]), (usize::from(lost), 0));
    }
}

#[test]
fn held_operations_are_not_read_after_their_endpoint_closes() {
    for words in [SHORT, LONG] {
        let (mut a, mut b) = (side(&[]), side(&[]));
        let (at_a, _at_b) = connect(&mut a, &mut b);
        let (mut source, mut target) = (vec![1u64; words], vec![0u64; words]);
        let (_region, key) = share(&b, &mut target, &at_a);
        let len = words * 8;
        let op =
            RmaOp { iov: &[piece(&mut source)], len, offset: 0, cookie: 1, flags: op_flags::MORE };
        assert_eq!(at_a.put(&key, &op), Ok(Posting::Pending));
        drop(at_a);
        source.fill(2);
        (0..100).for_each(|_| {
            a.poll();
            b.poll();
        });
        assert!(!target.contains(&2), "{words} words");
    }
}

#[test]
fn silent_operation_is_reported_only_on_failure() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let mut target = vec![0u64; 8];
    let (_region, key) = share(&b, &mut target, &at_a);
    let put = |word: u64, flags| {
        let mut words = [word];
        let iov = [piece(&mut words)];
        at_a.put(
            &key,
            &RmaOp {
                iov: &iov,
                len: 8,
                offset: 0,
                cookie: word,
                flags: flags | op_flags::REMOTE_COMPLETION,
            },
        )
    };
    let before = device::counts().signalled;
    for n in 1..=10 {
        assert_eq!(put(n, op_flags::NO_EVENT), Ok(Posting::Pending));
        a.poll();
    }
    assert_eq!((device::counts().signalled - before, target[0]), (0, 10));
    assert_eq!(put(11, 0), Ok(Posting::Pending));
    (0..4).for_each(|_| a.poll());
    assert_eq!(a.told.ended, [(11, Ok(0))]);
    for n in 12..15 {
        assert_eq!(put(n, op_flags::NO_EVENT), Ok(Posting::Pending));
    }
    assert_eq!(at_a.flush(15), Ok(Posting::Pending));
    fault(|faults| faults.cut = true);
    for n in 16..18 {
        assert_eq!(put(n, op_flags::NO_EVENT), Ok(Posting::Pending));
    }
    (0..100).for_each(|_| a.poll());
    let lost = Err(Status::TimedOut);
    assert_eq!(a.told.ended[1..], [(15, Ok(0)), (16, lost), (17, lost)]);
    assert_eq!(a.told.failed.len(), 1);
}
