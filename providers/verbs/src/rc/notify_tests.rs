//! Tests of puts with notification: writes with immediate value, which consume a receive at the target.

use crate::double::world::fault;
use crate::double::{Side, connect, piece, side};
use crate::{Region, RemoteKey, VerbsEndpoint};
use tieline_plugin_api::abi::{KeyParams, RegisterParams};
use tieline_plugin_api::{Domain, Endpoint, Posted, Posting, RmaOp, Status, access};

fn share(owner: &Side, words: &mut [u64], user: &VerbsEndpoint) -> (Region, RemoteKey) {
    let piece = piece(words);
    let wanted = RegisterParams::new(piece.base, piece.len, access::REMOTE_WRITE);
    let region = owner.domain.register(&wanted).unwrap();
    let mut bytes = [0; 128];
    let len = owner.domain.pack_key(&region, &KeyParams::empty(), &mut bytes).unwrap();
    let key = user.import_key(&bytes[..len]).unwrap();
    (region, key)
}

fn put_notify(at: &VerbsEndpoint, key: &RemoteKey, words: &mut [u64], word: u32) -> Posted {
    let iov = [piece(words)];
    let (len, cookie) = (iov[0].len, u64::from(word));
    at.put_notify(key, &RmaOp { iov: &iov, len, offset: 0, cookie, flags: 0 }, word)
}

#[test]
fn notification_word_arrives_intact_after_its_puts_data() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let mut target = vec![0u64; 2000];
    let (_region, key) = share(&b, &mut target, &at_a);
    // The puts are inline, from a provider buffer, and of zero bytes.
    for (word, len) in [(0x0102_0304u32, 2), (u32::MAX, 2000), (0, 0)] {
        let mut source = vec![u64::from(word) + 1; len];
        assert_eq!(put_notify(&at_a, &key, &mut source, word), Ok(Posting::Pending));
        while b.told.notified.is_empty() {
            b.poll();
        }
        assert_eq!(std::mem::take(&mut b.told.notified), [u64::from(word)]);
        assert_eq!(target[..len], source);
        while a.told.ended.is_empty() {
            a.poll();
        }
        assert_eq!(std::mem::take(&mut a.told.ended), [(u64::from(word), Ok(0))]);
    }
}

/// Each notification consumes a shared receive. The peer's window limits notifications and messages together.
#[test]
fn notifications_and_messages_share_the_window() {
    let settings = [("TIELINE_VERBS_WINDOW", "8"), ("TIELINE_VERBS_MAX_WINDOW", "8")];
    let (mut a, mut b) = (side(&settings), side(&settings));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let mut target = vec![0u64; 8];
    let (_region, key) = share(&b, &mut target, &at_a);
    let (mut sent, mut refused) = (0, 0);
    while sent < 100 {
        assert!(refused < 1000, "stopped for good after {sent}");
        let posted = match sent % 3 {
            0 => at_a.am_short(7, u64::from(sent), b"short"),
            _ => put_notify(&at_a, &key, &mut [u64::from(sent); 8], sent),
        };
        match posted {
            Ok(_) => sent += 1,
            Err(Status::Again) => {
                refused += 1;
                b.poll();
                a.poll();
            }
            Err(status) => panic!("{status}"),
        }
    }
    assert!(refused >= 100 / 8, "{refused}");
    while b.told.notified.len() + b.told.messages.len() < 100 {
        b.poll();
    }
    let told: Vec<u64> = (0..100).filter(|word| word % 3 != 0).collect();
    assert_eq!(b.told.notified, told);
}

#[test]
fn refused_put_sends_no_notification() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    let mut target = vec![0u64; 8];
    let (region, key) = share(&b, &mut target, &at_a);
    b.domain.deregister(region).unwrap();
    assert_eq!(put_notify(&at_a, &key, &mut [1; 8], 5), Ok(Posting::Pending));
    while a.told.ended.is_empty() {
        a.poll();
        b.poll();
    }
    assert!(matches!(a.told.ended[..], [(5, Err(Status::KeyRejected))]), "{:?}", a.told);
    assert!(b.told.notified.is_empty());
}

/// The immediate value identifies the connection of a message. An arrival without immediate value is ignored.
#[test]
fn arrival_without_immediate_is_ignored_and_receive_reposted() {
    let (mut a, mut b) = (side(&[]), side(&[]));
    let (at_a, _at_b) = connect(&mut a, &mut b);
    fault(|faults| faults.no_number = true);
    assert_eq!(at_a.am_short(1, 1, b"nobody's"), Ok(Posting::Done));
    for _ in 0..100 {
        a.poll();
        b.poll();
    }
    assert!(b.told.messages.is_empty() && b.told.failed.is_empty(), "{:?}", b.told);
    fault(|faults| faults.no_number = false);
    assert_eq!(at_a.am_short(1, 2, b"comes"), Ok(Posting::Done));
    for _ in 0..100 {
        a.poll();
        b.poll();
    }
    assert_eq!(b.told.messages.len(), 1, "{:?}", b.told);
}
