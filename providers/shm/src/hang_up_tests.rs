//! Tests of the end of a channel. A disconnected sender is notified of the reason and may connect again. Published messages keep
//! their bytes until they are not read any more; then their memory is released.

use std::time::{Duration, Instant};

use tieline_plugin_api::abi::Event;
use tieline_plugin_api::{Endpoint, Interface, Status, event};

use crate::channel;
use crate::config::Settings;
use crate::endpoint::RingEndpoint;
use crate::hello::{Address, Record};
use crate::hostile_tests::{greet, open, poll};
use crate::interface::RingInterface;
use crate::pool::MAX_CHUNK;
use crate::receiver::RecvChannel;
use crate::sender::SendChannel;
use crate::sys;

/// Polls until an event of this kind arrives. Returns the event's peer and status.
fn until(interface: &RingInterface, wanted: u32) -> (u64, i32) {
    let start = Instant::now();
    loop {
        if let Some(seen) = poll(interface).iter().find(|seen| seen.0 == wanted) {
            return (seen.1, seen.2);
        }
        assert!(start.elapsed() < Duration::from_secs(60), "nothing of kind {wanted} came");
    }
}

#[test]
fn rejected_peer_learns_reason_and_can_reconnect() {
    let (asker, owner) = (open(Settings::defaults()), open(Settings::defaults()));
    for round in 0..3 {
        let endpoint = asker.connect(&owner.address(), b"", round).unwrap();
        let _ = endpoint.am_short(1, 1, b"what does it say?").unwrap();
        let (peer, _) = until(&owner, event::MESSAGE);
        // Messages that arrive in between are not delivered any more.
        let _ = endpoint.am_short(1, 2, b"and there?").unwrap();
        owner.hang_up(peer).unwrap();
        assert_eq!(until(&owner, event::PEER_LEFT), (peer, Status::NoMemory as i32));
        let (_, status) = until(&asker, event::ENDPOINT_FAILED);
        assert_eq!(status, Status::NoMemory as i32);
        assert_eq!(endpoint.am_short(1, 3, b"hello?"), Err(Status::NoMemory));
        assert_eq!(owner.hang_up(peer), Ok(()), "it has left already");
        assert!(poll(&owner).is_empty());
    }
    assert_eq!(owner.hang_up(u64::MAX), Err(Status::Invalid));
}

/// The kernel only reports that the connection was refused.
#[test]
fn connecting_to_missing_listener_reports_that_the_peer_has_exited() {
    let asker = open(Settings::defaults());
    let mut address = Address::parse(&asker.address()).unwrap();
    address.socket = format!("\0tieline-nobody-{}", std::process::id()).into();
    let failure = asker.connect(&address.pack(), b"", 1).err().unwrap();
    let words = "there is no listener at the peer's address: the peer has exited";
    assert_eq!((failure.status, &*failure.text), (Status::PeerFailed, words));
}

/// The length of a message that is longer than the payload of a slot.
const LONG: usize = 1000;

/// Polls with a check of the sockets.
pub(crate) fn look(interface: &RingInterface) -> Vec<Event> {
    let _ = interface.arm().unwrap();
    sys::polled(interface)
}

/// Returns, for each message among the events of the last poll, its first byte if all others are the same.
fn bytes(events: &[Event]) -> impl Iterator<Item = Option<u8>> {
    events.iter().filter(|e| e.kind == event::MESSAGE).map(|e| {
        let copy = sys::payload(e);
        (copy.len() == LONG && copy == [copy[0]; LONG]).then_some(copy[0])
    })
}

/// Connects, and returns when the first message has arrived.
fn meet(from: &RingInterface, to: &RingInterface) -> (RingEndpoint, u64) {
    let endpoint = from.connect(&to.address(), b"", 1).unwrap();
    let _ = endpoint.am_short(1, 0, b"here").unwrap();
    let peer = until(to, event::MESSAGE).0;
    (endpoint, peer)
}

fn send(endpoint: &RingEndpoint, count: usize, byte: u8) {
    for n in 0..count {
        assert!(endpoint.am_short(1, n as u64, &[byte + n as u8; LONG]).is_ok(), "{n}");
    }
}

/// The function by which `b` ends the channel of `peer` while its events are read.
type End = fn(b: &RingInterface, peer: u64);

/// Makes `a` send to `b` and close. While `b` still reads, `a` sends another payload to `c`.
fn go_on_elsewhere(count: usize, closes: bool, end: End) -> Vec<Option<u8>> {
    let [a, b, c] = [(); 3].map(|()| open(Settings::defaults()));
    let ((to_b, peer), (to_c, _)) = (meet(&a, &b), meet(&a, &c));
    send(&to_b, count, 0);
    if closes {
        drop(to_b);
    }
    let _ = b.arm().unwrap(); // this call receives the goodbye
    let mut events = sys::polled(&b);
    end(&b, peer);
    assert!(look(&a).iter().all(|e| e.kind != event::ENDPOINT_FAILED), "b still reads");
    send(&to_c, count, 100);
    let mut got = Vec::new();
    let start = Instant::now();
    loop {
        got.extend(bytes(&events));
        if events.iter().any(|e| e.kind == event::PEER_LEFT) {
            return got;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{} came", got.len());
        let _ = look(&a);
        events = look(&b);
    }
}

#[test]
fn sent_payload_survives_sender_close_and_sends_to_others() {
    let got = go_on_elsewhere(25, true, |_, _| {});
    assert_eq!(got, Vec::from_iter((0..25).map(Some)));
}

#[test]
fn written_messages_arrive_before_endpoint_failure() {
    for count in [1, 10] {
        let (a, b) = (open(Settings::defaults()), open(Settings::defaults()));
        let ((_to_b, _), (to_a, _)) = (meet(&a, &b), meet(&b, &a));
        send(&to_a, count, 0);
        drop((to_a, b));
        let kinds: Vec<u32> = look(&a).iter().map(|event| event.kind).collect();
        let failed = kinds.iter().position(|kind| *kind == event::ENDPOINT_FAILED);
        let messages = kinds.iter().filter(|kind| **kind == event::MESSAGE).count();
        assert_eq!(messages, count, "the first look finds them: {kinds:?}");
        assert_eq!(failed.map(|at| kinds[..at].contains(&event::MESSAGE)), Some(true), "{kinds:?}");
    }
}

/// Polls until an endpoint has failed, and then while messages arrive. Returns the number of messages before and after the failure.
fn around_the_failure(a: &RingInterface) -> (usize, usize) {
    let (mut before, mut behind, mut failed, start) = (0, 0, false, Instant::now());
    loop {
        let events = look(a);
        for event in &events {
            failed |= event.kind == event::ENDPOINT_FAILED;
            let count = if failed { &mut behind } else { &mut before };
            *count += usize::from(event.kind == event::MESSAGE);
        }
        if failed && events.is_empty() {
            return (before, behind);
        }
        assert!(start.elapsed() < Duration::from_secs(60), "nothing failed");
    }
}

#[test]
fn no_written_message_arrives_after_endpoint_failure() {
    for count in [0, 1, 14, 15, 16, 17, 31, 40, 200] {
        // The cases: whether the sender reads its socket, and so changes its mode: to bells, to a fast box.
        for hears in [false, true] {
            let (a, b) = (open(Settings::defaults()), open(Settings::defaults()));
            let ((_to_b, _), (to_a, _)) = (meet(&a, &b), meet(&b, &a));
            let mut came = 0;
            for n in 0..count {
                if hears {
                    let _ = look(&b);
                }
                while to_a.am_short(1, n, b"before").is_err() {
                    came += bytes(&look(&a)).count();
                }
            }
            drop((to_a, b));
            let (before, behind) = around_the_failure(&a);
            assert_eq!((came + before, behind), (count as usize, 0), "{count} {hears}");
        }
    }
}

#[test]
fn messages_of_first_contact_arrive_before_the_failures() {
    let a = open(Settings::defaults());
    let peers: Vec<_> = (0..40).map(|_| open(Settings::defaults())).collect();
    let there: Vec<_> = peers.iter().map(|b| meet(&a, b)).collect();
    for b in peers {
        let back = b.connect(&a.address(), b"", 1).unwrap();
        let _ = back.am_short(1, 1, b"the answer").unwrap();
        drop((back, b));
    }
    assert_eq!(around_the_failure(&a), (40, 0));
    drop(there);
}

#[test]
fn operation_hides_failure_until_written_messages_have_arrived() {
    let (a, b) = (open(Settings::defaults()), open(Settings::defaults()));
    let ((to_b, _), (to_a, _)) = (meet(&a, &b), meet(&b, &a));
    send(&to_a, 20, 0);
    drop((to_a, b));
    let _ = a.arm().unwrap(); // this call notices the end
    assert_eq!(to_b.am_short(1, 0, b"and you?"), Err(Status::Again));
    assert_eq!(around_the_failure(&a), (20, 0));
    assert_eq!(to_b.am_short(1, 0, b"and you?"), Err(Status::Closed));
}

#[test]
fn a_failure_does_not_wait_for_rings_that_are_never_empty() {
    let [a, b, c] = [(); 3].map(|()| open(Settings::defaults()));
    let ((_to_b, _), (to_a, _)) = (meet(&a, &b), meet(&c, &a));
    drop(b);
    let mut failed = None;
    for round in 0..200 {
        while to_a.am_short(1, 0, &[7; 8]).is_ok() {}
        let events = look(&a);
        if events.iter().any(|event| event.kind == event::ENDPOINT_FAILED) {
            failed = Some(round);
            break;
        }
        assert_eq!(events.len(), 16, "there is more than a poll brings");
    }
    assert!(failed.is_some(), "nobody hears of it");
}

#[test]
fn delivered_payload_survives_disconnect_of_its_sender() {
    let got = go_on_elsewhere(8, false, |b, peer| b.hang_up(peer).unwrap());
    assert_eq!(got, Vec::from_iter((0..8).map(Some)));
}

#[test]
fn published_payload_survives_invalid_socket_record() {
    let [a, b, c] = [(); 3].map(|()| open(Settings::defaults()));
    let ((to_b, _), (to_c, _)) = (meet(&a, &b), meet(&a, &c));
    send(&to_b, 25, 0);
    to_b.channel().say(b"nonsense");
    let mut got = Vec::from_iter(bytes(&look(&b)));
    let _ = look(&a);
    send(&to_c, 25, 100);
    let mut left = false;
    while !left {
        let events = look(&b);
        got.extend(bytes(&events));
        left = events.iter().any(|e| e.kind == event::PEER_LEFT);
    }
    let _ = look(&b); // the messages may be read until this call
    assert_eq!(got, Vec::from_iter((0..25).map(Some)));
    assert_eq!(until(&a, event::ENDPOINT_FAILED).1, Status::BadData as i32);
}

#[test]
fn unread_chunks_of_ended_receiver_return_even_after_goodbye() {
    const POOL: usize = 256 << 10;
    let settings = || Settings { pool_max: POOL, window: POOL, ..Settings::defaults() };
    let [a, b, c] = [(); 3].map(|()| open(settings()));
    let ((to_b, _), (to_c, _)) = (meet(&a, &b), meet(&a, &c));
    let all = POOL / MAX_CHUNK;
    let fill = |endpoint: &RingEndpoint| {
        (0..all).all(|_| endpoint.am_short(1, 0, &[7; MAX_CHUNK]).is_ok())
    };
    assert!(fill(&to_b));
    assert_eq!(to_c.am_short(1, 0, &[7; LONG]), Err(Status::Again));
    drop(to_b);
    let _ = b.arm().unwrap();
    drop(b);
    let _ = look(&a);
    assert!(fill(&to_c));
}

#[test]
fn new_peer_does_not_reuse_number_before_leave_is_reported() {
    let [a, b] = [(); 2].map(|()| open(Settings::defaults()));
    let (endpoints, mut there): (Vec<_>, Vec<_>) = (0..20).map(|_| meet(&a, &b)).unzip();
    drop(endpoints);
    let mut heard = |events: Vec<Event>| {
        let left = events.iter().filter(|e| e.kind == event::PEER_LEFT);
        left.for_each(|e| there.retain(|&peer| peer != e.peer));
        there.clone()
    };
    while heard(look(&b)).len() == 20 {}
    // The number of newcomers exceeds the number of free places.
    let newcomers: Vec<_> = (0..20).map(|_| a.connect(&b.address(), b"", 1).unwrap()).collect();
    for newcomer in &newcomers {
        let _ = newcomer.am_short(1, 1, b"here").unwrap();
    }
    let _ = b.arm().unwrap(); // this call admits the newcomers
    let known = heard(Vec::new());
    assert!(!known.is_empty(), "all were told at once");
    for peer in known {
        b.hang_up(peer).unwrap();
    }
    let (start, mut messages) = (Instant::now(), 0);
    while messages < newcomers.len() {
        messages += look(&b).iter().filter(|e| e.kind == event::MESSAGE).count();
        assert!(start.elapsed() < Duration::from_secs(60), "{messages} came");
    }
}

#[test]
fn a_sender_hears_of_the_end_by_the_poll_behind_the_one_that_told_of_it() {
    let b = open(Settings::defaults());
    for _ in 0..20 {
        let peer = greet(&b);
        let _ = until(&b, event::PEER_ARRIVED);
        // From here on the sockets are checked at intervals.
        (0..200).for_each(|_| assert!(poll(&b).is_empty()));
        let socket = peer.socket.as_ref().unwrap();
        let mut buffer = [0; 64];
        assert!(sys::receive(socket, &mut buffer).unwrap().len > 0, "the answer to the greeting");
        sys::send(socket, &Record::Bye.pack(), &[]).unwrap();
        assert_eq!(until(&b, event::PEER_LEFT).1, 0);
        let waits = sys::receive(socket, &mut buffer);
        assert!(waits.is_err(), "what was told may point to its memory until the next poll");
        let _ = poll(&b);
        assert_eq!(sys::receive(socket, &mut buffer).unwrap().len, 0);
    }
}

#[test]
fn polls_look_at_sockets_now_and_then_when_nothing_is_owed_to_anybody() {
    let [a, b] = [(); 2].map(|()| open(Settings::defaults()));
    let (endpoint, _) = meet(&a, &b);
    drop(endpoint);
    let _ = until(&b, event::PEER_LEFT);
    for interface in [&a, &b] {
        (0..3).for_each(|_| assert!(poll(interface).is_empty()));
        assert!(!interface.attends());
    }
}

#[test]
fn successor_of_disconnected_peer_is_a_distinct_peer() {
    // The goodbye arrives when the ring is empty, or when the ring holds more messages than one poll delivers.
    for count in [0, 25] {
        let [a, b] = [(); 2].map(|()| open(Settings::defaults()));
        let (endpoint, peer) = meet(&a, &b);
        let _ = look(&b);
        send(&endpoint, count, 0);
        drop(endpoint);
        let _ = b.arm().unwrap();
        if count > 0 {
            assert!(!poll(&b).is_empty());
        }
        b.hang_up(peer).unwrap();
        assert_eq!(until(&b, event::PEER_LEFT).0, peer);
        let (newcomer, place) = meet(&a, &b);
        assert_eq!(place, peer);
        for n in 0..20 {
            let _ = newcomer.am_short(1, n, b"still here").unwrap();
            let (mut came, mut idle) = (0, 0);
            // The loop also ends without events.
            while came == 0 || idle < 3 {
                let events = look(&b);
                assert!(events.iter().all(|e| e.kind != event::PEER_LEFT), "{count}");
                came += events.iter().filter(|e| e.kind == event::MESSAGE).count();
                idle += usize::from(events.is_empty());
            }
        }
    }
}

#[test]
fn closed_endpoints_release_everything_when_peer_disconnects() {
    let [a, b] = [(); 2].map(|()| open(Settings::defaults()));
    let (_first, _) = meet(&a, &b);
    let before = [&a, &b].map(RingInterface::memory);
    for _ in 0..3 {
        let many: Vec<_> = (0..20).map(|_| meet(&a, &b)).collect();
        assert_eq!([&a, &b].map(|interface| interface.memory().peers), [21; 2]);
        drop(many);
        let start = Instant::now();
        while [&a, &b].map(|interface| interface.memory().peers) != [1; 2] {
            let _ = (look(&a), look(&b));
            assert!(start.elapsed() < Duration::from_secs(60), "they are kept");
        }
    }
    assert_eq!([&a, &b].map(RingInterface::memory), before);
}

#[test]
fn channel_memory_is_reported_at_both_ends_and_includes_fast_box() {
    let settings = || Settings { threshold: 1, ..Settings::defaults() };
    let (a, b) = (open(settings()), open(settings()));
    let none = a.memory();
    assert_eq!((none.peers, none.peer_bytes, none.buffer_bytes), (0, 0, 0));
    assert!(none.base_bytes > 0);
    let (endpoint, _) = meet(&a, &b);
    let page = sys::PAGE as u64;
    let ends = [size_of::<SendChannel>(), size_of::<RecvChannel>()].map(|end| page + end as u64);
    let bells = [none.base_bytes, none.base_bytes + page];
    let told = || [&a, &b].map(Interface::memory);
    let fast = channel::memory_len(settings().fastbox_size) as u64 - page;
    let start = Instant::now();
    loop {
        let told = told();
        assert_eq!(told.each_ref().map(|told| (told.peers, told.buffer_bytes)), [(1, 0); 2]);
        assert_eq!(told.each_ref().map(|told| told.base_bytes), bells);
        let more: Vec<u64> =
            told.iter().zip(ends).map(|(told, end)| told.peer_bytes - end).collect();
        assert!(more.iter().all(|more| [0, fast].contains(more)), "{more:?}");
        if more == [fast; 2] {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "it does not become fast: {more:?}");
        let _ = (endpoint.am_short(1, 1, b"more"), look(&a), look(&b));
    }
    while endpoint.am_short(1, 1, &[7; LONG]).is_err() {
        let _ = (look(&a), look(&b));
    }
    assert!(a.memory().buffer_bytes > 0, "of the pool");
}
