//! What comes, or ends, in another order than it was posted in.

use crate::double::world::{let_go, manners};
use crate::double::{Side, settings, transfer, until};
use tieline_plugin_api::{Endpoint, Posting, Status};

fn sides() -> (Side, Side) {
    (Side::new(&settings()), Side::new(&settings()))
}

#[test]
fn messages_that_change_places_end_the_channel_and_none_is_handed_out_before_its_turn() {
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
