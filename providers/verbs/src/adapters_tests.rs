//! Runs the same tests on every adapter double: `rc` and `ud` work despite missing or different driver features.

use crate::double::clock::pass;
use crate::double::nature::{ADAPTERS, Nature, play};
use crate::double::world::{Faults, fault, pairs, receives};
use crate::double::{Side, connect, piece, piece_in, side, side_of};
use crate::{RC, Region, RemoteKey, UD, VerbsEndpoint, VerbsInterface};
use core::time::Duration;
use tieline_plugin_api::abi::{Atomic, Iov, KeyParams, RegisterParams, fixed};
use tieline_plugin_api::{
    Domain, Endpoint, Interface, Posting, RmaOp, Status, access, atomic_op, op_flags,
};

/// Runs a test on every adapter, one after the other.
fn each(act: impl Fn(&Nature)) {
    for nature in ADAPTERS {
        fault(|faults| *faults = Faults::default());
        play(*nature);
        act(nature);
        assert_eq!(pairs().len(), 0, "{}: everything is given back", nature.name);
    }
}

/// Registers memory of `owner` and returns it with a key for `user`.
fn share(owner: &Side, words: &mut [u64], user: &VerbsEndpoint) -> (Region, RemoteKey) {
    let all = access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC;
    let piece = piece(words);
    let region = owner.domain.register(&RegisterParams::new(piece.base, piece.len, all)).unwrap();
    let mut bytes = [0; 128];
    let len = owner.domain.pack_key(&region, &KeyParams::empty(), &mut bytes).unwrap();
    let key = user.import_key(&bytes[..len]).unwrap();
    (region, key)
}

fn operation(iov: &[Iov], cookie: u64) -> RmaOp<'_> {
    RmaOp {
        iov,
        len: iov.iter().map(|piece| piece.len).sum(),
        offset: 0,
        cookie,
        flags: op_flags::REMOTE_COMPLETION,
    }
}

/// Polls both sides until `a` has reported `count` successful completions.
fn ended(a: &mut Side, b: &mut Side, count: usize) {
    while a.told.ended.len() < count {
        a.poll();
        b.poll();
    }
    assert!(core::mem::take(&mut a.told.ended).iter().all(|(_, result)| result.is_ok()));
}

#[test]
fn messages_puts_gets_and_atomics_go_over_every_adapter() {
    each(|nature| {
        let name = nature.name;
        let (mut a, mut b) = (side(&[]), side(&[]));
        let (at_a, at_b) = connect(&mut a, &mut b);
        let most =
            a.domain.modules().iter().find(|m| m.name == fixed(RC)).unwrap().max_iov as usize;
        assert!(most < nature.pieces as usize, "{name}: one is a message's header");
        // Lengths around the inline limits of the adapters, and the longest message, in both directions.
        for len in [0, 8, 47, 48, 64, 96, 101, 172, 173, 189, 8192] {
            assert_eq!(at_a.am_short(7, len as u64, &vec![1; len]), Ok(Posting::Done), "{name}");
            assert_eq!(at_b.am_short(7, len as u64, &vec![2; len]), Ok(Posting::Done), "{name}");
            while a.told.messages.is_empty() || b.told.messages.is_empty() {
                a.poll();
                b.poll();
            }
            let got = |side: &mut Side| core::mem::take(&mut side.told.messages);
            assert_eq!(got(&mut a), [(len as u64, vec![2; len])], "{name}");
            assert_eq!(got(&mut b), [(len as u64, vec![1; len])], "{name}");
        }
        let mut target = vec![0u64; 4096];
        let (_region, key) = share(&b, &mut target, &at_a);
        let mut words: Vec<u64> = (1..=4096).collect();
        for count in [1, 6, 13, 24, 4096] {
            let iov = [piece(&mut words[..count])];
            assert_eq!(at_a.put(&key, &operation(&iov, 1)), Ok(Posting::Pending), "{name}");
            ended(&mut a, &mut b, 1);
            assert_eq!(target[..count], words[..count], "{name}");
        }
        // The puts consist of two pieces, short enough to be inlined on some adapters.
        let (one, two) = words.split_at_mut(2);
        let iov = [piece(&mut one[..1]), piece(&mut two[..3])];
        for flags in [op_flags::MORE, 0] {
            let op = RmaOp { flags, ..operation(&iov, 1) };
            assert_eq!(at_a.put(&key, &op), Ok(Posting::Pending), "{name}");
        }
        ended(&mut a, &mut b, 2);
        assert_eq!(target[..4], [1, 3, 4, 5], "{name}");
        // The get has the maximum number of pieces, which can exceed the device's limit per read.
        let mut back = vec![0u64; 512 * most];
        let all = piece(&mut back);
        let own = a.domain.register(&RegisterParams::new(all.base, all.len, access::REMOTE_READ));
        let own = own.unwrap();
        let iov: Vec<Iov> = back.chunks_mut(512).map(|words| piece_in(&own, words)).collect();
        let end = (512 * most).min(4096);
        let iov = &iov[..end / 512];
        assert_eq!(at_a.get(&key, &operation(iov, 2)), Ok(Posting::Pending), "{name}");
        ended(&mut a, &mut b, 1);
        assert_eq!(back[..end], target[..end], "{name}");
        let op = Atomic {
            op: atomic_op::ADD,
            width: 8,
            key: core::ptr::null_mut(),
            offset: 0,
            operand: 41,
            compare: 0,
            result: core::ptr::null_mut(),
            cookie: 3,
            flags: op_flags::REMOTE_COMPLETION,
        };
        assert_eq!(at_a.atomic(&key, &op, &mut 0), Ok(Posting::Pending), "{name}");
        ended(&mut a, &mut b, 1);
        assert_eq!(target[0], 42, "{name}");
    });
}

/// Advances the clock beyond the time limit in which the devices flush queue pairs in ERR.
fn settle(a: &mut Side, b: &mut Side) {
    for _ in 0..3 {
        pass(Duration::from_millis(700));
        (0..80).for_each(|_| {
            a.poll();
            b.poll();
        });
    }
    (a.told, b.told) = Default::default();
}

/// Breaks a connection by one of several causes, with messages outstanding.
fn break_it(how: usize, a: &mut Side, b: &mut Side, at_a: VerbsEndpoint, at_b: VerbsEndpoint) {
    let flood =
        |at: &VerbsEndpoint| (0..40).take_while(|_| at.am_short(7, 1, b"x").is_ok()).count();
    match how % 4 {
        0 => {
            // The first cause: the peer sends more messages than granted.
            let VerbsInterface::Rc(rc) = &a.interface else { panic!("reliable") };
            let mut state = rc.state.borrow_mut();
            state.connections.iter_mut().flatten().for_each(|c| c.credits.open(100_000));
            drop(state);
            assert_eq!(flood(&at_a), 40);
        }
        1 => {
            // The second cause: the network is cut.
            let _ = flood(&at_b);
            fault(|faults| faults.cut = true);
            let _ = (at_a.am_short(7, 1, b"lost"), at_a.flush(9));
            (0..40).for_each(|_| a.poll());
            fault(|faults| faults.cut = false);
        }
        2 => {
            // The third cause: one side closes without reading the arrived messages.
            let _ = flood(&at_b);
            return drop(at_a);
        }
        _ => {
            // The fourth cause: a key whose region no longer exists.
            let mut gone = vec![0u64; 8];
            let (region, key) = share(b, &mut gone, &at_a);
            b.domain.deregister(region).unwrap();
            let _ = flood(&at_b);
            let mut words = [1; 8];
            let put = at_a.put(&key, &operation(&[piece(&mut words)], 1));
            assert_eq!(put, Ok(Posting::Pending));
            a.poll();
        }
    }
    (0..40).for_each(|_| {
        a.poll();
        b.poll();
    });
}

#[test]
fn two_hundred_broken_connections_leak_no_receive_on_any_adapter() {
    // The remaining connection must not need a keepalive while the network is cut.
    const NARROW: [(&str, &str); 3] = [
        ("TIELINE_VERBS_WINDOW", "16"),
        ("TIELINE_VERBS_MAX_WINDOW", "16"),
        ("TIELINE_FAILURE_TIMEOUT", "400s"),
    ];
    each(|nature| {
        let (mut a, mut b) = (side(&NARROW), side(&NARROW));
        let (_stays, other) = connect(&mut a, &mut b);
        let (at_a, at_b) = connect(&mut a, &mut b);
        drop((at_a, at_b));
        settle(&mut a, &mut b);
        let before = receives();
        for round in 0..200 {
            let (at_a, at_b) = connect(&mut a, &mut b);
            break_it(round, &mut a, &mut b, at_a, at_b);
            if round % 20 == 19 {
                settle(&mut a, &mut b);
                assert_eq!(receives(), before, "{}, round {round}", nature.name);
            }
        }
        assert_eq!(pairs().len(), 2, "{}", nature.name);
        // The remaining connection delivers its whole window.
        let sent = (0..16).take_while(|_| other.am_short(7, 1, b"x").is_ok()).count();
        assert_eq!(sent, 16, "{}", nature.name);
        while a.told.messages.len() < 16 {
            a.poll();
        }
    });
}

#[test]
fn eighty_busy_endpoints_share_completion_queue_on_every_adapter() {
    each(|nature| {
        let settings = [("TIELINE_VERBS_CONNECTIONS", "100")];
        let (mut a, mut b) = (side(&settings), side(&settings));
        let ends: Vec<_> = (0..80).map(|_| connect(&mut a, &mut b)).collect();
        // The put is too long to be inlined with the default settings, and its memory is registered.
        let mut target = vec![0u64; 32];
        let mut source = vec![0u64; 32];
        let all = piece(&mut source);
        let own = a.domain.register(&RegisterParams::new(all.base, all.len, access::REMOTE_READ));
        let (own, mut posted, mut regions) = (own.unwrap(), 0, Vec::new());
        for round in 0..2 {
            for (at_a, _) in &ends {
                let (region, key) = share(&b, &mut target, at_a);
                regions.push(region);
                source.fill(round + 1);
                let words = [piece_in(&own, &mut source)];
                let before = posted;
                while at_a.put(&key, &operation(&words, 1)) == Ok(Posting::Pending) {
                    posted += 1;
                }
                assert!(posted > before, "{}: nobody is left out", nature.name);
                assert_eq!(at_a.am_short(1, 1, b"x"), Err(Status::Again));
            }
            while a.told.ended.len() < posted && a.told.failed.is_empty() {
                a.poll();
            }
            assert!(a.told.failed.is_empty(), "{}: {:?}", nature.name, a.told.failed);
        }
        assert_eq!(target, [2; 32]);
        // Once most endpoints are closed, the remaining ones have their full depth again.
        let mut ends = ends;
        let (first, _) = &ends[0];
        let (_region, key) = share(&b, &mut target, first);
        drop(ends.split_off(4));
        settle(&mut a, &mut b);
        let (first, _) = &ends[0];
        let words = [piece_in(&own, &mut source)];
        let posted = (0..200).take_while(|_| first.put(&key, &operation(&words, 1)).is_ok());
        assert_eq!(posted.count(), 120, "{}", nature.name);
    });
}

#[test]
fn datagrams_go_over_every_adapter() {
    each(|nature| {
        let (mut a, mut b) = (side_of(UD, &[]), side_of(UD, &[]));
        let to_b = a.interface.connect(&b.interface.address(), &[7; 3000], 1).unwrap();
        for header in 0..20 {
            assert_eq!(to_b.am_short(1, header, &[header as u8; 200]), Ok(Posting::Done));
            while b.told.messages.len() <= header as usize {
                a.poll();
                b.poll();
            }
        }
        assert_eq!(b.told.arrived, [vec![7; 3000]], "{}", nature.name);
        assert!(b.told.messages.iter().all(|(header, bytes)| *bytes == [*header as u8; 200]));
    });
}
