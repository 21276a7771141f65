//! Tests of operations that arrive or complete in another order than they were posted, and of failures that a later operation
//! reports.

use crate::double::world::{let_go, manners, world};
use crate::double::{Side, settings, transfer, until};
use crate::{OfiEndpoint, RemoteKey};
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{Endpoint, Posted, Posting, RmaOp, Status};

fn sides() -> (Side, Side) {
    (Side::new(&settings()), Side::new(&settings()))
}

#[test]
fn reordered_messages_fail_the_channel_and_are_not_delivered() {
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    assert!(endpoint.am_short(1, 10, b"").is_ok());
    manners(|manners| manners.swap_sends = true);
    for n in 11..14 {
        assert!(endpoint.am_short(1, n, b"").is_ok());
    }
    until(&mut near, &mut far, |near, far| {
        !near.told.failed.is_empty() && !far.told.left.is_empty()
    });
    let numbers: Vec<u64> = far.told.messages.iter().map(|(header, _)| *header).collect();
    assert_eq!(numbers, [10], "the one that came early is none, nor is what comes behind it");
    let (_, status, words) = &near.told.failed[0];
    assert_eq!(*status, Status::PeerFailed);
    assert!(words.contains("message 1 was lost: number 2 came"), "{words}");
}

#[test]
fn completions_in_the_opposite_order_end_each_its_own_operation() {
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    let mut there = [0u8; 64];
    let region = far.region(&mut there);
    let key = endpoint.import_key(&far.packed(&region)).unwrap();
    let mut here: Vec<[u8; 8]> = (0..6).map(|n| [n; 8]).collect();
    manners(|manners| (manners.late, manners.backwards) = (true, true));
    for (n, piece) in here.iter_mut().enumerate() {
        let put = n % 2 == 0;
        let posted = transfer(&endpoint, put, &key, piece, 8 * n as u64, n as u64);
        assert_eq!(posted, Ok(Posting::Pending));
        assert!(endpoint.am_short(1, n as u64, b"between").is_ok());
    }
    until(&mut near, &mut far, |_, far| far.told.messages.len() == 6);
    assert_eq!(near.told.ended, []);
    let_go();
    until(&mut near, &mut far, |near, _| near.told.ended.len() == 6);
    let order: Vec<u64> = near.told.ended.iter().map(|(cookie, _)| *cookie).collect();
    assert_eq!(order, [5, 4, 3, 2, 1, 0]);
    assert!(near.told.ended.iter().all(|(_, end)| end.is_ok()));
    assert_eq!(here, [[0; 8], [0; 8], [2; 8], [0; 8], [4; 8], [0; 8]], "what gets brought");
    drop(region);
    let put: Vec<u8> = (0..8).flat_map(|n| [if n % 2 == 0 && n < 6 { n } else { 0 }; 8]).collect();
    assert_eq!(there.to_vec(), put);
}

/// Puts one piece with local completion: the put completes when its bytes are copied.
fn put_locally(endpoint: &OfiEndpoint, key: &RemoteKey, mut bytes: [u8; 8], offset: u64) -> Posted {
    let iov = [Iov::new(bytes.as_mut_ptr(), bytes.len())];
    let posted = endpoint.put(key, &RmaOp { iov: &iov, len: 8, offset, cookie: 99, flags: 0 });
    bytes.fill(0xee); // the caller owns the bytes again
    let _ = core::hint::black_box(bytes);
    posted
}

#[test]
fn local_short_put_completes_inline_and_flush_waits_for_it() {
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    let mut there = [0u8; 32];
    let region = far.region(&mut there);
    let key = endpoint.import_key(&far.packed(&region)).unwrap();
    manners(|manners| manners.late = true);
    for n in 0..3 {
        let posted = put_locally(&endpoint, &key, [n as u8 + 1; 8], 8 * n);
        assert_eq!(posted, Ok(Posting::Done));
    }
    assert_eq!(endpoint.flush(1), Ok(Posting::Pending));
    for _ in 0..10 {
        near.poll();
        far.poll();
    }
    assert_eq!(near.told.ended, [], "nobody hears of the puts, and the flush waits for them");
    let_go();
    until(&mut near, &mut far, |near, _| near.told.ended == [(1, Ok(()))]);
    assert_eq!(endpoint.flush(2), Ok(Posting::Done));
    // A put of more than one piece does not complete inline: its completion is reported.
    let mut pieces = [[7u8; 4]; 2];
    let iov = pieces.each_mut().map(|piece| Iov::new(piece.as_mut_ptr(), piece.len()));
    let op = RmaOp { iov: &iov, len: 8, offset: 24, cookie: 3, flags: 0 };
    assert_eq!(endpoint.put(&key, &op), Ok(Posting::Pending));
    let_go();
    until(&mut near, &mut far, |near, _| near.told.ended.last() == Some(&(3, Ok(()))));
    drop(region);
    assert_eq!(there, [[1; 8], [2; 8], [3; 8], [7; 8]].concat()[..]);
}

/// A further read costs system calls, and delays the posts for which the completions have made room.
#[test]
fn poll_reads_the_queue_once_if_completions_are_few() {
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    let mut there = [0u8; 32];
    let region = far.region(&mut there);
    let key = endpoint.import_key(&far.packed(&region)).unwrap();
    for n in 0..3 {
        assert_eq!(put_locally(&endpoint, &key, [1; 8], 8 * n), Ok(Posting::Done));
    }
    // One of these polls finds the completions of all puts, and the others find nothing.
    for poll in 0..40 {
        far.poll();
        let before = world(|world| world.reads);
        near.poll();
        assert_eq!(world(|world| world.reads) - before, 1, "poll {poll}");
    }
    assert_eq!((endpoint.flush(1), near.told.ended.len()), (Ok(Posting::Done), 0));
    drop(region);
}

#[test]
fn failure_of_silent_put_is_reported_by_exactly_one_flush() {
    let (mut near, mut far) = sides();
    let endpoint = near.connected(&mut far, 7);
    let mut there = [0u8; 32];
    let region = far.region(&mut there);
    let key = endpoint.import_key(&far.packed(&region)).unwrap();
    // The put has failed before the flush is posted, or while a flush is pending.
    for (late, flush) in [(false, 1), (true, 2)] {
        manners(|manners| (manners.fail_transfer, manners.late) = (Some(libc::EACCES), late));
        assert_eq!(put_locally(&endpoint, &key, [1; 8], 0), Ok(Posting::Done));
        for _ in 0..4 {
            near.poll();
            far.poll();
        }
        assert_eq!(endpoint.flush(flush), Ok(Posting::Pending));
        let_go();
        let told = (flush, Err(Status::KeyRejected));
        until(&mut near, &mut far, |near, _| near.told.ended.last() == Some(&told));
        assert_eq!(endpoint.flush(9), Ok(Posting::Done), "it was told");
    }
    assert_eq!(near.told.failed, [], "the endpoint goes on");
    // A lost connection ends the endpoint.
    manners(|manners| manners.fail_transfer = Some(libc::ECANCELED));
    assert_eq!(put_locally(&endpoint, &key, [1; 8], 0), Ok(Posting::Done));
    let_go();
    until(&mut near, &mut far, |near, _| near.told.failed.len() == 1);
    assert_eq!(near.told.ended.len(), 2);
    drop(region);
}
