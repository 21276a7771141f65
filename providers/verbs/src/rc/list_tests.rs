//! Tests of lists of puts and gets: one doorbell and one completion for many requests.

use crate::double::clock::pass;
use crate::double::world::{self as device, fault};
use crate::double::{connect, piece, piece_in, share, side};
use crate::{RemoteKey, VerbsEndpoint};
use core::time::Duration;
use tieline_plugin_api::abi::{Iov, RegisterParams};
use tieline_plugin_api::{
    Domain, Endpoint, ListOp, ListPart, Posted, Posting, Status, access, op_flags,
};

const COOKIE: u64 = 9;
/// The number of words of a part that is inlined, and of one that is not.
const SHORT: usize = 1;
const LONG: usize = 60;

fn post(at: &VerbsEndpoint, put: bool, parts: &[ListPart<'_, RemoteKey>]) -> (Posted, usize) {
    let (flags, mut taken) = (op_flags::REMOTE_COMPLETION, 0);
    let posted = at.rma_list(&ListOp { put, parts, cookie: COOKIE, flags }, &mut taken);
    (posted, taken)
}

/// Makes parts of equal length; each lies at the same place in the target.
fn parts<'a>(key: &'a RemoteKey, pieces: Vec<Iov>) -> Vec<ListPart<'a, RemoteKey>> {
    let part = |(n, local): (usize, Iov)| {
        let offset = (n * local.len) as u64;
        ListPart { local, key, offset }
    };
    pieces.into_iter().enumerate().map(part).collect()
}

#[test]
fn list_rings_one_doorbell_and_completes_once() {
    for words in [SHORT, LONG] {
        let (mut a, mut b) = (side(&[]), side(&[]));
        let (at_a, _at_b) = connect(&mut a, &mut b);
        let (mut target, mut source) = (vec![0u64; words * 7], vec![0u64; words * 7]);
        (0..).zip(&mut source).for_each(|(n, word)| *word = n);
        let expected = source.clone();
        let (_region, key) = share(&b, &mut target, &at_a);
        let whole = piece(&mut source);
        let all = access::REMOTE_READ | access::REMOTE_WRITE;
        let own = a.domain.register(&RegisterParams::new(whole.base, whole.len, all)).unwrap();
        let pieces =
            |source: &mut [u64]| source.chunks_mut(words).map(|p| piece_in(&own, p)).collect();
        let before = device::counts();
        assert_eq!(post(&at_a, true, &parts(&key, pieces(&mut source))), (Ok(Posting::Pending), 7));
        let after = device::counts();
        assert_eq!((after.send_calls - before.send_calls, after.sends - before.sends), (1, 7));
        assert_eq!(after.signalled - before.signalled, 1);
        assert_eq!(after.inline - before.inline, if words == SHORT { 7 } else { 0 });
        a.poll();
        assert_eq!((&a.told.ended[..], &target), (&[(COOKIE, Ok(0))][..], &expected));
        source.fill(0);
        assert_eq!(
            post(&at_a, false, &parts(&key, pieces(&mut source))),
            (Ok(Posting::Pending), 7)
        );
        assert_eq!(device::counts().send_calls - after.send_calls, 1);
        while a.told.ended.len() < 2 {
            a.poll();
        }
        assert_eq!((a.told.ended[1], source), ((COOKIE, Ok(0)), expected));
    }
}

#[test]
fn list_takes_parts_up_to_the_first_one_that_needs_more() {
    let (mut a, mut b) = (side(&[("TIELINE_VERBS_TX_DEPTH", "16")]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let mut target = vec![0u64; 64 * LONG];
    let (_region, key) = share(&b, &mut target, &at_a);
    let (mut short, mut long) = ([1u64; 40], [2u64; LONG]);
    // A piece in no region is inlined if it is short. Otherwise it is a put of its own, and ends the list.
    let mixed = |short: &mut [u64], long: &mut [u64], before: usize| {
        let mut pieces: Vec<Iov> = short.chunks_mut(1).take(before).map(piece).collect();
        pieces.push(piece(long));
        pieces.extend(short.chunks_mut(1).skip(before).take(2).map(piece));
        pieces
    };
    for (before, expected) in [(5, 5), (1, 1), (0, 1)] {
        let list = parts(&key, mixed(&mut short, &mut long, before));
        assert_eq!(post(&at_a, true, &list), (Ok(Posting::Pending), expected), "{before}");
        let count = a.told.ended.len();
        while a.told.ended.len() == count {
            a.poll();
        }
    }
    // The queue has room for 16 requests.
    fault(|faults| faults.stuck = true);
    let list = parts(&key, short.chunks_mut(1).map(piece).collect());
    assert_eq!(post(&at_a, true, &list), (Ok(Posting::Pending), 16));
    assert_eq!(post(&at_a, true, &list), (Err(Status::Again), 0));
    fault(|faults| faults.stuck = false);
    // The first part is refused for its own reason: it lies outside the region.
    let mut outside = parts(&key, vec![piece(&mut short[..1]), piece(&mut short[1..2])]);
    outside[1].offset = 1 << 40;
    while a.told.ended.len() < 4 {
        a.poll();
    }
    assert_eq!(post(&at_a, true, &outside), (Ok(Posting::Pending), 1));
    assert_eq!(post(&at_a, true, &outside[1..]), (Err(Status::OutOfRange), 0));
}

#[test]
fn failed_part_of_list_is_named_with_its_own_status() {
    for first in [0, 1, 3, 5] {
        let (mut a, mut b) = (side(&[]), side(&[]));
        let (at_a, _at_b) = connect(&mut a, &mut b);
        let (mut good, mut gone) = (vec![0u64; 8], vec![0u64; 8]);
        let (_region, key) = share(&b, &mut good, &at_a);
        let (region, bad) = share(&b, &mut gone, &at_a);
        b.domain.deregister(region).unwrap();
        let mut source = [1u64; 6];
        let mut list = parts(&key, source.chunks_mut(1).map(piece).collect());
        list[first].key = &bad;
        assert_eq!(post(&at_a, true, &list), (Ok(Posting::Pending), 6));
        while a.told.failed.is_empty() {
            a.poll();
        }
        assert_eq!(a.told.ended, [(COOKIE, Err(Status::KeyRejected))]);
        assert_eq!(
            (a.told.parts[..].to_vec(), &good[..first]),
            (vec![first as u32], &[1; 6][..first])
        );
        assert_eq!(a.told.failed[0].1, Status::KeyRejected);
    }
}

#[test]
fn lists_on_a_lost_connection_name_their_first_part_that_failed() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let mut target = vec![0u64; 8];
    let (_region, key) = share(&b, &mut target, &at_a);
    let mut source = [1u64; 4];
    let list = parts(&key, source.chunks_mut(1).map(piece).collect());
    fault(|faults| faults.cut = true);
    for _ in 0..2 {
        assert_eq!(post(&at_a, true, &list), (Ok(Posting::Pending), 4));
    }
    while a.told.failed.is_empty() {
        a.poll();
    }
    assert_eq!(a.told.ended, [(COOKIE, Err(Status::TimedOut)); 2]);
    assert_eq!(a.told.parts, [0, 0]);
}

#[test]
fn list_that_device_has_no_memory_for_is_posted_later() {
    for (refusal, lost) in [(libc::ENOMEM, false), (libc::EINVAL, true)] {
        let (mut a, mut b) = (side(&[]), side(&[]));
        let (at_a, _at_b) = connect(&mut a, &mut b);
        let mut target = vec![0u64; 7];
        let (_region, key) = share(&b, &mut target, &at_a);
        let mut source = [3u64; 7];
        let list = parts(&key, source.chunks_mut(1).map(piece).collect());
        fault(|faults| (faults.refuse_sends, faults.sends_before) = (refusal, 3));
        assert_eq!(post(&at_a, true, &list), (Ok(Posting::Pending), 7));
        a.poll();
        fault(|faults| faults.refuse_sends = 0);
        pass(Duration::from_secs(3));
        (0..100).for_each(|_| a.poll());
        let ended = if lost { Err(Status::Io) } else { Ok(0) };
        assert_eq!(a.told.ended, [(COOKIE, ended)]);
        // The device reports no success of the parts that it has accepted, so none of them is known to have succeeded.
        assert_eq!(a.told.parts, if lost { vec![0] } else { vec![] });
        let there = if lost { 3 } else { 7 };
        assert_eq!((&target[..there], a.told.failed.len()), (&[3; 7][..there], usize::from(lost)));
    }
}
