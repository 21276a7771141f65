//! Tests of short puts, whose bytes are copied during the post. With local completion such a put causes no further event unless the
//! connection fails.

use super::queue::RESERVE;
use crate::abi::*;
use crate::double::clock::pass;
use crate::double::nature::{ADAPTERS, MLX5, Nature, play};
use crate::double::world::{self as device, Faults, fault};
use crate::double::{Side, connect, piece, share, side};
use crate::{RC, RemoteKey, VerbsEndpoint};
use core::time::Duration;
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{Domain, Endpoint, Posted, Posting, RmaOp, Status, op_flags};

const REMOTE: u64 = op_flags::REMOTE_COMPLETION;

/// Puts words and overwrites them as soon as the call returns.
fn put(at: &VerbsEndpoint, key: &RemoteKey, word: u64, words: usize, flags: u64) -> Posted {
    let mut source = vec![word; words];
    let op = RmaOp { iov: &[piece(&mut source)], len: words * 8, offset: 0, cookie: word, flags };
    let posted = at.put(key, &op);
    source.fill(u64::MAX);
    posted
}

/// Returns the length of the longest short put, in bytes.
fn longest(side: &Side) -> usize {
    let modules = side.domain.modules();
    modules.iter().find(|m| m.name.starts_with(RC.as_bytes())).unwrap().max_short_put
}

#[test]
fn short_put_copies_its_bytes_at_any_inline_limit() {
    for (inline, settings) in [(256, "188"), (64, "188"), (0, "96")] {
        play(Nature { inline, ..MLX5 });
        let settings = [("TIELINE_VERBS_INLINE", settings)];
        let (mut a, mut b) = (side(&settings), side(&settings));
        let (at_a, _at_b) = connect(&mut a, &mut b);
        let mut target = vec![0u64; 64];
        let (_region, key) = share(&b, &mut target, &at_a);
        let most = longest(&a) / 8;
        assert!(most >= 12);
        for (cookie, words) in [(1, 1), (2, 8), (3, 9), (4, most)] {
            let posted = put(&at_a, &key, cookie, words, REMOTE);
            assert_eq!(posted, Ok(Posting::Pending), "{words} words, {inline} inline");
            assert_eq!(put(&at_a, &key, 10 + cookie, words, 0), Ok(Posting::Done));
            while a.told.ended.len() < cookie as usize {
                a.poll();
            }
            assert_eq!(target[..words], vec![10 + cookie; words]);
        }
        (0..10).for_each(|_| a.poll());
        let ended: Vec<u64> = a.told.ended.iter().map(|(cookie, _)| *cookie).collect();
        assert_eq!(ended, [1, 2, 3, 4], "of the others nobody hears");
        // Unsignalled inline puts are still in the queue, so the flush must wait.
        let flushed = if inline > 64 { Posting::Pending } else { Posting::Done };
        assert_eq!(at_a.flush(9), Ok(flushed));
        a.poll();
        let told = usize::from(flushed == Posting::Pending);
        assert_eq!(a.told.ended[4..], [(9, Ok(0))][..told]);
    }
    play(MLX5);
}

#[test]
fn done_puts_never_overrun_the_queue_and_few_are_signalled() {
    const PUTS: usize = 5_000;
    for depth in [16, 120] {
        let settings = [("TIELINE_VERBS_TX_DEPTH", &*depth.to_string())];
        let (mut a, mut b) = (side(&settings), side(&settings));
        let (at_a, _at_b) = connect(&mut a, &mut b);
        let mut target = vec![0u64; 8];
        let (_region, key) = share(&b, &mut target, &at_a);
        let before = device::counts();
        // The device keeps all sends: the queue fills up to its depth and not beyond.
        fault(|faults| faults.stuck = true);
        let taken = (1..).take_while(|word| put(&at_a, &key, *word, 1, 0).is_ok()).count();
        assert!((depth - RESERVE..=depth).contains(&taken), "{taken} of {depth}");
        fault(|faults| faults.stuck = false);
        let mut word = taken as u64;
        while word < PUTS as u64 {
            match put(&at_a, &key, word + 1, 1, 0) {
                Ok(posting) => {
                    assert_eq!(posting, Posting::Done);
                    word += 1;
                }
                Err(status) => {
                    assert_eq!(status, Status::Again);
                    a.poll();
                }
            }
        }
        let after = device::counts();
        let (sends, signalled) = (after.sends - before.sends, after.signalled - before.signalled);
        assert!((PUTS..PUTS + RESERVE).contains(&sends), "{sends}");
        let most = PUTS / (depth / 4) + RESERVE;
        assert!((PUTS / depth..=most).contains(&signalled), "{signalled} of {PUTS}");
        assert_eq!(target[0], PUTS as u64);
        assert_eq!(at_a.flush(1), Ok(Posting::Pending));
        (0..4).for_each(|_| a.poll());
        assert_eq!(a.told.ended, [(1, Ok(0))]);
        assert!(a.told.failed.is_empty());
    }
}

#[test]
fn failure_of_done_put_fails_endpoint_and_following_flush() {
    for flushes in [true, false] {
        let (mut a, mut b) = (side(&[]), side(&[]));
        let (at_a, _at_b) = connect(&mut a, &mut b);
        let mut target = vec![0u64; 8];
        let (_region, key) = share(&b, &mut target, &at_a);
        fault(|faults| faults.cut = true);
        for word in 1..5 {
            assert_eq!(put(&at_a, &key, word, 1, 0), Ok(Posting::Done));
        }
        let expected = match flushes {
            true => {
                assert_eq!(at_a.flush(77), Ok(Posting::Pending));
                vec![(77, Err(Status::TimedOut))]
            }
            false => Vec::new(),
        };
        while a.told.failed.is_empty() {
            a.poll();
        }
        assert_eq!(a.told.ended, expected);
        assert_eq!(a.told.failed[0].1, Status::TimedOut);
        assert_eq!(put(&at_a, &key, 6, 1, 0), Err(Status::TimedOut));
        fault(|faults| faults.cut = false);
        pass(Duration::from_secs(1));
    }
}

/// Checks all lengths up to two bytes beyond the limit, at changing offsets.
#[test]
fn puts_around_the_short_limit_arrive_in_order_on_every_adapter() {
    for nature in ADAPTERS {
        fault(|faults| *faults = Faults::default());
        play(*nature);
        let (mut a, mut b) = (side(&[]), side(&[]));
        let (at_a, _at_b) = connect(&mut a, &mut b);
        let mut target = vec![0u64; 64];
        let (_region, key) = share(&b, &mut target, &at_a);
        let most = longest(&a);
        let (mut expected, mut cookies) = (vec![0u8; 512], Vec::new());
        for len in 1..=most + 2 {
            let offset = len % 5;
            for flags in [0, REMOTE] {
                let mut source = vec![0u8; len + 1];
                source[1..].fill((len + usize::from(flags != 0)) as u8);
                expected[offset..offset + len].copy_from_slice(&source[1..]);
                let piece = Iov::new(source[1..].as_mut_ptr(), len);
                let (offset, cookie) = (offset as u64, (2 * len) as u64 + u64::from(flags != 0));
                let op = RmaOp { iov: &[piece], len, offset, cookie, flags };
                let posted = loop {
                    match at_a.put(&key, &op) {
                        Err(Status::Again) => a.poll(),
                        posted => break posted.unwrap(),
                    }
                };
                if posted == Posting::Pending {
                    cookies.push(cookie);
                }
                assert!(flags != 0 || posted == Posting::Done || len > most, "{len} bytes");
                // A put beyond the short limit reads its source until it has ended.
                while len > most && a.told.ended.len() < cookies.len() {
                    a.poll();
                }
                source.fill(0xee);
            }
        }
        while a.told.ended.len() < cookies.len() {
            a.poll();
        }
        let told: Vec<_> = cookies.iter().map(|cookie| (*cookie, Ok(0))).collect();
        assert_eq!(a.told.ended, told, "{}", nature.name);
        let there: Vec<u8> = target.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(there, expected, "{}", nature.name);
        assert!(a.told.failed.is_empty());
    }
    play(MLX5);
}

/// Earlier puts succeed. Puts with local completion cause no event. Every other operation fails with the connection's error.
#[test]
fn error_among_short_puts_fails_only_the_later_operations() {
    for (inline, status, told) in [
        (256, IBV_WC_REM_ACCESS_ERR, Status::Io),
        (256, IBV_WC_RETRY_EXC_ERR, Status::TimedOut),
        (0, IBV_WC_REM_ACCESS_ERR, Status::Io),
    ] {
        play(Nature { inline, ..MLX5 });
        let settings = [("TIELINE_VERBS_INLINE", "96"), ("TIELINE_VERBS_TX_BUFFERS", "64")];
        let (mut a, mut b) = (side(&settings), side(&settings));
        // The number of rounds exceeds the number of buffers: each round releases its buffers.
        for _ in 0..12 {
            let (at_a, at_b) = connect(&mut a, &mut b);
            let mut target = vec![0u64; 8];
            let (_region, key) = share(&b, &mut target, &at_a);
            fault(|faults| faults.fails_after = Some((4, status)));
            for word in 1..=10u64 {
                let flags = if word % 3 == 0 { REMOTE } else { 0 };
                let posted = put(&at_a, &key, word, 1, flags);
                let expected = if flags == 0 { Posting::Done } else { Posting::Pending };
                assert_eq!(posted, Ok(expected), "{word}");
            }
            assert_eq!(at_a.flush(99), Ok(Posting::Pending));
            while a.told.failed.is_empty() {
                a.poll();
            }
            fault(|faults| faults.fails_after = None);
            let ended = core::mem::take(&mut a.told.ended);
            let wrong = |cookie: u64| (cookie, Err(told));
            assert_eq!(ended, [(3, Ok(0)), wrong(6), wrong(9), wrong(99)]);
            assert_eq!(target[0], 4, "those behind it have not gone");
            a.told.failed.clear();
            drop((at_a, at_b));
            (0..100).for_each(|_| {
                a.poll();
                b.poll();
            });
            b.told.failed.clear();
        }
    }
    play(MLX5);
}

#[test]
fn refused_short_put_returns_again_and_frees_its_buffer() {
    for inline in [256, 0] {
        play(Nature { inline, ..MLX5 });
        let settings = [("TIELINE_VERBS_TX_BUFFERS", "64")];
        let (mut a, mut b) = (side(&settings), side(&settings));
        let (at_a, _at_b) = connect(&mut a, &mut b);
        let mut target = vec![0u64; 8];
        let (_region, key) = share(&b, &mut target, &at_a);
        fault(|faults| faults.refuse_sends = libc::ENOMEM);
        for word in 1..=500 {
            assert_eq!(put(&at_a, &key, word, 1, word % 2 * REMOTE), Err(Status::Again));
        }
        fault(|faults| faults.refuse_sends = 0);
        assert_eq!(put(&at_a, &key, 501, 1, REMOTE), Ok(Posting::Pending));
        while a.told.ended.is_empty() {
            a.poll();
        }
        assert_eq!((&a.told.ended[..], target[0]), (&[(501, Ok(0))][..], 501));
        // A permanent refusal fails the connection. That failure is the only report about puts with local completion.
        assert_eq!(put(&at_a, &key, 502, 1, 0), Ok(Posting::Done));
        fault(|faults| faults.refuse_sends = libc::EINVAL);
        assert!(put(&at_a, &key, 503, 1, 0).is_err());
        fault(|faults| faults.refuse_sends = 0);
        while a.told.failed.is_empty() {
            a.poll();
        }
        assert_eq!((a.told.ended.len(), a.told.failed[0].1), (1, Status::Io));
        assert_eq!(put(&at_a, &key, 504, 1, 0), Err(Status::Io));
    }
    play(MLX5);
}

/// The endpoint closes right after the posts, also before the device has executed any of them.
#[test]
fn short_puts_arrive_although_endpoint_closes_immediately() {
    for (inline, whole) in [(256, false), (0, false), (256, true)] {
        play(Nature { inline, ..MLX5 });
        let (mut a, mut b) = (side(&[]), side(&[]));
        let (at_a, _at_b) = connect(&mut a, &mut b);
        let mut target = vec![0u64; 8];
        let (_region, key) = share(&b, &mut target, &at_a);
        fault(|faults| faults.stuck = true);
        for word in 1..=7 {
            assert!(put(&at_a, &key, word, 1, word % 2 * REMOTE).is_ok());
        }
        assert_eq!(target[0], 0);
        drop(at_a);
        fault(|faults| faults.stuck = false);
        match whole {
            true => drop(a),
            false => (0..10).for_each(|_| a.poll()),
        }
        while b.told.failed.is_empty() {
            b.poll();
        }
        assert_eq!((target[0], b.told.failed[0].1), (7, Status::Closed));
    }
    play(MLX5);
}

#[test]
fn short_put_follows_held_operations_and_posts_them() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let mut target = vec![0u64; 8];
    let (_region, key) = share(&b, &mut target, &at_a);
    let mut held = [1u64];
    let iov = [piece(&mut held)];
    let op = RmaOp { iov: &iov, len: 8, offset: 0, cookie: 1, flags: REMOTE | op_flags::MORE };
    assert_eq!(at_a.put(&key, &op), Ok(Posting::Pending));
    assert_eq!(target[0], 0, "another one is to follow");
    assert_eq!(put(&at_a, &key, 2, 1, 0), Ok(Posting::Done));
    assert_eq!(target[0], 2);
    a.poll();
    assert_eq!(a.told.ended, [(1, Ok(0))]);
}

/// A revoked key fails the connection. A put with local completion has no event of its own, and a later flush returns the
/// connection's status.
#[test]
fn short_put_to_revoked_memory_fails_connection_without_writing() {
    for flags in [0, REMOTE] {
        let (mut a, mut b) = (side(&[]), side(&[]));
        let (at_a, _at_b) = connect(&mut a, &mut b);
        let mut target = vec![0u64; 8];
        let (region, key) = share(&b, &mut target, &at_a);
        drop(region);
        assert!(put(&at_a, &key, 1, 1, flags).is_ok());
        while a.told.failed.is_empty() {
            a.poll();
        }
        let told = [(1, Err(Status::KeyRejected))];
        assert_eq!(a.told.ended, told[..usize::from(flags == REMOTE)]);
        assert_eq!((at_a.flush(2), target[0]), (Err(Status::Io), 0));
    }
}
