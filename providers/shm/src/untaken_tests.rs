//! Tests of messages that return from a peer that admits no connection. They do not return after a refusal for lack of permission.

use std::time::{Duration, Instant};

use tieline_plugin_api::abi::Event;
use tieline_plugin_api::{Endpoint, Interface, Status, event, event_flags};

use crate::config::Settings;
use crate::hang_up_tests::look;
use crate::hello::Address;
use crate::hostile_tests::open;
use crate::interface::RingInterface;
use crate::sys;

/// The returned messages: id, header, bytes.
type Back = Vec<(u32, u64, Vec<u8>)>;

/// Polls both sides until the endpoint has failed.
fn until_failed(asker: &RingInterface, owner: &RingInterface) -> (Back, Event) {
    let (start, mut back) = (Instant::now(), Vec::new());
    loop {
        for event in look(asker) {
            match event.kind {
                event::RETURNED => back.push((event.id, event.header, sys::payload(&event))),
                event::ENDPOINT_FAILED => return (back, event),
                kind => panic!("an event of kind {kind}"),
            }
        }
        let _ = look(owner);
        assert!(start.elapsed() < Duration::from_secs(60), "nobody refuses");
    }
}

#[test]
fn messages_that_nobody_took_come_back_in_order_before_the_endpoint_ends() {
    let (asker, owner) = (open(Settings::defaults()), open(Settings::defaults()));
    let _ = owner.leave_bells(0);
    let endpoint = asker.connect(&owner.address(), b"", 11).unwrap();
    let long: Vec<u8> = (0..=255).cycle().take(5003).collect();
    let sent: Back = vec![
        (5, 1, b"short".to_vec()),
        (6, u64::MAX, long),
        (65_535, 3, Vec::new()),
        (7, 4, vec![9; 48]),
        (7, 5, vec![8; 49]),
    ];
    for (id, header, payload) in &sent {
        let _ = endpoint.am_short(*id, *header, payload).unwrap();
    }
    let (back, failed) = until_failed(&asker, &owner);
    assert_eq!(back, sent);
    assert_eq!((failed.cookie, failed.status), (11, Status::NoMemory as i32));
    assert_eq!(failed.flags, event_flags::UNTAKEN);
    // The message is sent by another route, without an error in between.
    assert_eq!(endpoint.am_short(1, 2, b"late"), Err(Status::Again));
    assert_eq!(owner.refused_connections(), 1);
}

#[test]
fn a_full_ring_comes_back_whole() {
    let (asker, owner) = (open(Settings::defaults()), open(Settings::defaults()));
    let _ = owner.leave_bells(0);
    let endpoint = asker.connect(&owner.address(), b"", 1).unwrap();
    let fits = (0..100).take_while(|n| endpoint.am_short(1, *n, b"one of many").is_ok()).count();
    let (back, _) = until_failed(&asker, &owner);
    let headers: Vec<u64> = back.iter().map(|(_, header, _)| *header).collect();
    assert!(fits > 20 && fits < 100, "{fits}");
    assert_eq!(headers, (0..fits as u64).collect::<Vec<_>>());
}

#[test]
fn a_refusal_by_right_gives_nothing_back() {
    let (asker, owner) = (open(Settings::defaults()), open(Settings::defaults()));
    let mut address = Address::parse(&owner.address()).unwrap();
    address.cookie[3] ^= 1;
    let endpoint = asker.connect(&address.pack(), b"", 1).unwrap();
    let _ = endpoint.am_short(1, 1, b"secret").unwrap();
    let (back, failed) = until_failed(&asker, &owner);
    assert_eq!((back.len(), failed.flags), (0, 0));
    assert_eq!(failed.status, Status::Permission as i32);
}

#[test]
fn a_channel_that_was_let_in_gives_nothing_back_when_it_ends() {
    let (asker, owner) = (open(Settings::defaults()), open(Settings::defaults()));
    let endpoint = asker.connect(&owner.address(), b"", 1).unwrap();
    let _ = endpoint.am_short(1, 1, b"taken").unwrap();
    let start = Instant::now();
    let peer = loop {
        if let Some(message) = look(&owner).iter().find(|e| e.kind == event::MESSAGE) {
            break message.peer;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "nothing came");
    };
    let _ = endpoint.am_short(1, 2, b"not taken").unwrap();
    owner.hang_up(peer).unwrap();
    let (back, failed) = until_failed(&asker, &owner);
    assert_eq!((back.len(), failed.flags), (0, 0));
}
