//! Tests of the words that the core compares instead of polling.

use std::time::{Duration, Instant};

use tieline_plugin_api::abi::Watch;
use tieline_plugin_api::{Endpoint, Interface, event};

use crate::channel;
use crate::config::Settings;
use crate::endpoint::RingEndpoint;
use crate::hostile_tests::{Hostile, greet, open, poll};
use crate::interface::RingInterface;
use crate::kept::unchanged;

/// Polls until the condition holds.
fn poll_until(interface: &RingInterface, mut holds: impl FnMut(&[(u32, u64, i32)]) -> bool) {
    let start = Instant::now();
    while !holds(&poll(interface)) {
        assert!(start.elapsed() < Duration::from_secs(60), "too many polls");
    }
}

fn poll_until_kind(interface: &RingInterface, kind: u32) {
    poll_until(interface, |events| events.iter().any(|event| event.0 == kind));
}

/// Polls until the interface lists words. All of them have the listed values.
fn listed(interface: &RingInterface) -> &Watch {
    let watch = interface.watch().unwrap();
    poll_until(interface, |_| !watch.is_empty());
    assert!(unchanged(watch));
    watch
}

/// Makes an interface with an endpoint to itself.
fn connected() -> (RingInterface, RingEndpoint) {
    let interface = open(Settings::defaults());
    let endpoint = interface.connect(&interface.address(), b"me", 1).unwrap();
    poll_until_kind(&interface, event::PEER_ARRIVED);
    (interface, endpoint)
}

#[test]
fn message_changes_a_listed_word_and_its_poll_empties_the_list() {
    let (interface, endpoint) = connected();
    let watch = listed(&interface);
    // The later messages go through the fast box.
    for n in 0..200u64 {
        assert!(unchanged(watch));
        while endpoint.am_short(7, n, b"wake up").is_err() {
            let _ = poll(&interface);
        }
        assert!(!unchanged(watch), "message {n}");
        poll_until_kind(&interface, event::MESSAGE);
        assert!(watch.is_empty(), "the next slots and the payload wait for a poll");
        let _ = listed(&interface);
    }
    assert_eq!(interface.fast_boxes(), 1);
}

#[test]
fn bell_is_a_listed_word() {
    let (interface, _endpoint) = connected();
    let watch = listed(&interface);
    interface.ring_all_bells(0);
    assert!(!unchanged(watch));
    let _ = listed(&interface);
}

#[test]
fn interface_lists_no_words_for_a_core_that_compares_none() {
    let (interface, _endpoint) = connected();
    for _ in 0..1000 {
        assert!(poll(&interface).is_empty() && interface.listed_words() == 0);
    }
}

#[test]
fn interface_without_peers_or_with_too_many_lists_no_words() {
    let interface = open(Settings::defaults());
    let watch = interface.watch().unwrap();
    let never = |polls: u32| {
        for _ in 0..polls {
            let _ = poll(&interface);
            assert!(watch.is_empty());
        }
    };
    never(1000);
    let mut peers: Vec<Hostile> = Vec::new();
    for count in 1..Watch::MOST {
        peers.push(greet(&interface));
        poll_until_kind(&interface, event::PEER_ARRIVED);
        // Each channel has a word, and so has the doorbell page.
        assert_eq!(listed(&interface).words().len(), count + 1);
    }
    peers.push(greet(&interface));
    poll_until_kind(&interface, event::PEER_ARRIVED);
    never(1000);
}

#[test]
fn each_call_that_leaves_work_for_a_poll_empties_the_list() {
    let (interface, endpoint) = connected();
    let peer = greet(&interface);
    poll_until_kind(&interface, event::PEER_ARRIVED);
    let empties = |what: &str, call: &dyn Fn()| {
        let watch = listed(&interface);
        call();
        assert!(watch.is_empty(), "{what}");
    };
    empties("arm", &|| {
        let _ = interface.arm().unwrap();
    });
    empties("connect", &|| drop(interface.connect(&interface.address(), b"", 2).unwrap()));
    poll_until(&interface, |_| !interface.attends());
    empties("hang_up", &|| interface.hang_up(1).unwrap());
    let watch = listed(&interface);
    drop(endpoint);
    assert!(watch.is_empty(), "close of an endpoint");
    drop(peer);
    let watch = listed(&interface);
    interface.leave();
    assert!(watch.is_empty(), "leave");
}

/// The comparison of a word in unmapped memory would end the process.
#[test]
fn words_of_a_peer_that_leaves_are_not_listed_any_more() {
    let (interface, _endpoint) = connected();
    for _ in 0..8 {
        let mut peer = greet(&interface);
        poll_until_kind(&interface, event::PEER_ARRIVED);
        let watch = listed(&interface);
        let before = watch.words().len();
        drop(peer.socket.take());
        poll_until(&interface, |events| {
            let _ = unchanged(watch);
            events.iter().any(|event| event.0 == event::PEER_LEFT)
        });
        for _ in 0..10 {
            let _ = (poll(&interface), unchanged(watch));
        }
        assert_eq!(listed(&interface).words().len(), before - 1);
    }
}

/// A peer may write what it likes. Its memory is sealed, so the words stay.
#[test]
fn peer_that_truncates_or_spoils_its_memory_leaves_listed_words_readable() {
    let interface = open(Settings::defaults());
    let peer = greet(&interface);
    poll_until_kind(&interface, event::PEER_ARRIVED);
    let watch = listed(&interface);
    let file = std::fs::File::from(peer.file.try_clone().unwrap());
    assert!(file.set_len(0).is_err());
    let word = |at: usize| peer.memory.word(at).unwrap();
    word(channel::COLD.slots).store(u64::MAX, std::sync::atomic::Ordering::Release);
    assert!(!unchanged(watch));
    poll_until_kind(&interface, event::PEER_LEFT);
    for _ in 0..10 {
        let _ = (poll(&interface), unchanged(watch));
    }
}
