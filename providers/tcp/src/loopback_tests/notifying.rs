//! Tests of puts with notifications.

use super::*;
use crate::shared::MOST_NOTICES;
use tieline_plugin_api::Events;

fn put_notify(
    sides: &mut [Side; 2],
    key: &Key,
    bytes: &mut [u8],
    word: u32,
    flags: u64,
) -> Posting {
    let (len, cookie) = (bytes.len(), u64::from(word));
    let iov = [iov(sys::piece_mut(bytes))];
    let op = RmaOp { iov: &iov, len, offset: 0, cookie, flags };
    post(sides, |endpoint| endpoint.put_notify(key, &op, word))
}

/// Polls until the other side is notified; returns the notifications.
fn told(sides: &mut [Side; 2]) -> Vec<u64> {
    while sides[1].notified.is_empty() {
        turn(sides);
    }
    std::mem::take(&mut sides[1].notified)
}

#[test]
fn a_notification_comes_behind_the_bytes_of_its_put_and_of_those_before() {
    for streams in ["1", "3"] {
        let domain = domain(&[("TIELINE_TCP_STREAMS", streams)]);
        let mut sides = pair_in([&domain, &domain]);
        await_streams(&mut sides, streams.parse().unwrap());
        let mut target = vec![0u8; 3 << 20];
        let (region, packed) = key_of(&domain, &mut target);
        let key = sides[0].endpoint().import_key(&packed).unwrap();
        // The puts are in one frame, in many frames, empty, and after another put that is under way.
        for (word, len) in [(1, 8), (u32::MAX, 3 << 20), (0, 0), (7, 100_000)] {
            let mut bytes = pattern(len, u64::from(word) + 5);
            let mut before = pattern(2 << 20, 3);
            rma(&mut sides, true, &key, &mut before, 1 << 20, 77);
            let posting =
                put_notify(&mut sides, &key, &mut bytes, word, op_flags::REMOTE_COMPLETION);
            assert_eq!(posting, Posting::Pending);
            assert_eq!(told(&mut sides), [u64::from(word)]);
            let (whole, length) = (sys::piece_mut(&mut target), bytes.len());
            let mut there = vec![0; whole.len()];
            sys::read_piece(whole, &mut there);
            assert!(there[..length] == bytes, "{streams} streams: {word} came before its bytes");
            let rest = length.max(1 << 20);
            assert!(
                there[rest..] == before[rest - (1 << 20)..],
                "or before those of the put before"
            );
            for cookie in [77, u64::from(word)] {
                assert_eq!(await_completion(&mut sides, cookie), 0);
            }
            assert!(sides[1].notified.is_empty(), "once");
        }
        domain.deregister(region).unwrap();
    }
}

#[test]
fn a_put_that_is_refused_tells_nobody_and_the_next_one_does() {
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let (mut gone, mut target) = (vec![0u8; 1 << 20], vec![0u8; 1 << 20]);
    let (region, packed) = key_of(&domain, &mut gone);
    let refused = sides[0].endpoint().import_key(&packed).unwrap();
    domain.deregister(region).unwrap();
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    for len in [0, 8, 1 << 20] {
        let mut bytes = vec![1; len];
        let remote = op_flags::REMOTE_COMPLETION;
        let _ = put_notify(&mut sides, &refused, &mut bytes, 5, remote);
        let _ = put_notify(&mut sides, &key, &mut bytes, 6, remote);
        assert_eq!(await_completion(&mut sides, 5), Status::KeyRejected as i32);
        assert_eq!(await_completion(&mut sides, 6), 0);
        assert_eq!(told(&mut sides), [6], "{len} bytes");
    }
    domain.deregister(region).unwrap();
}

/// The notification also arrives for a put that has completed locally and is still under way.
#[test]
fn closing_endpoint_delivers_accepted_notifications() {
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let mut target = vec![0u8; 8];
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    assert_eq!(put_notify(&mut sides, &key, &mut [3; 8], 9, 0), Posting::Done);
    drop(sides[0].endpoint.take());
    assert_eq!(told(&mut sides), [9]);
    domain.deregister(region).unwrap();
}

/// Notifications are read from the stream as they are delivered, like messages. A put without a notification does not wait for
/// their delivery.
#[test]
fn a_put_is_taken_while_as_much_as_may_be_waits_to_be_told() {
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let mut target = vec![0u8; 1 << 20];
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    for word in 0..MOST_NOTICES as u32 {
        let _ = put_notify(&mut sides, &key, &mut [3; 8], word, 0);
    }
    let mut source = pattern(target.len(), 4);
    rma(&mut sides, true, &key, &mut source, 0, 5);
    // The target has no room for a single event.
    while !sides[0].completions.contains(&(5, 0)) {
        sides[0].turn();
        sides[1].interface.poll(&mut Events::new(&mut [])).unwrap();
    }
    assert_eq!((target == source, sides[1].notified.len()), (true, 0));
    while sides[1].notified.len() < MOST_NOTICES {
        turn(&mut sides);
    }
    domain.deregister(region).unwrap();
}

#[test]
fn a_peer_that_tells_without_end_takes_a_bounded_amount_of_memory() {
    let domain = domain(&[]);
    let mut sides = pair_in([&domain, &domain]);
    await_streams(&mut sides, 1);
    let mut target = vec![0u8; 8];
    let (region, packed) = key_of(&domain, &mut target);
    let key = sides[0].endpoint().import_key(&packed).unwrap();
    let mut sent = 0;
    for _ in 0..200 {
        let iov = [iov(sys::piece_mut(&mut [3; 8]))];
        let op = RmaOp { iov: &iov, len: 8, offset: 0, cookie: 0, flags: 0 };
        while sides[0].endpoint().put_notify(&key, &op, sent).is_ok() {
            sent += 1;
        }
        sides[0].turn();
    }
    assert!(sent > 200, "{sent} were taken");
    while sides[1].notified.len() < sent as usize {
        turn(&mut sides);
        let waiting = sides[1].endpoint().conn().inner.borrow().shared.notices.borrow().len();
        assert!(waiting <= 64, "{waiting} wait");
    }
    assert_eq!(sides[1].notified, (0..u64::from(sent)).collect::<Vec<_>>());
    domain.deregister(region).unwrap();
}
