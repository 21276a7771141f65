//! Tests of the error text of a connection that timed out: the local phase, and the last message of the peer.

use super::world::{MODULE, World, id};
use crate::message::{Body, Header, encode};
use crate::{ConnectionKey, Limits, Phase, ReasonKind};

const A: u8 = 0;
const B: u8 = 1;
const S: u64 = 1_000_000_000;

fn key(peer: u8) -> ConnectionKey {
    ConnectionKey { peer: id(peer), module: MODULE.into(), n: 1 }
}

fn two() -> World {
    World::new(2, &Limits::default())
}

/// Delivers only the datagrams in flight to `who`.
fn deliver(world: &mut World, who: u8) {
    let (theirs, others) =
        std::mem::take(&mut world.wire).into_iter().partition(|(to, _)| *to == who);
    world.wire = others;
    let theirs: std::collections::BTreeSet<(u8, Vec<u8>)> = theirs;
    assert!(!theirs.is_empty(), "nothing comes");
    for (to, datagram) in theirs {
        world.deliver(to, &datagram);
    }
}

/// Returns the application's error after `passed` more nanoseconds without another message.
fn given_up_after(world: &mut World, who: u8, passed: u64) -> String {
    world.tick(who, passed);
    let (failed, reason) = world.sides[usize::from(who)].failed.pop().expect("it is given up");
    assert_eq!((failed, reason.kind), (key(1 - who), ReasonKind::TimedOut));
    reason.text
}

fn phase(world: &World, who: u8) -> Option<Phase> {
    world.sides[usize::from(who)].machine.phase(&key(1 - who))
}

#[track_caller]
fn says(text: &str, words: &[&str]) {
    for words in words {
        assert!(text.contains(words), "`{words}` is not in: {text}");
    }
}

#[test]
fn timeout_while_binding_reports_time_of_peers_request() {
    let mut world = two();
    world.connect(A, B);
    world.connect(B, A);
    world.tick(A, 2 * S);
    deliver(&mut world, A);
    assert_eq!(phase(&world, A), Some(Phase::Binding));
    let text = given_up_after(&mut world, A, 28 * S);
    says(&text, &["after 30.0 s", "the local endpoint was not connected in time"]);
    says(&text, &["last heard of the peer: its request, 28.0 s ago"]);
}

#[test]
fn timeout_while_making_reports_peers_request() {
    let mut world = two();
    world.sides[0].prompt = false;
    world.connect(A, B);
    world.connect(B, A);
    world.tick(A, S);
    deliver(&mut world, A);
    assert_eq!(phase(&world, A), Some(Phase::Making));
    let text = given_up_after(&mut world, A, 29 * S);
    says(&text, &["the local endpoint was not made in time", "its request, 29.0 s ago"]);
}

#[test]
fn timeout_of_peers_connection_reports_time_of_request() {
    let mut world = two();
    world.connect(B, A);
    world.tick(A, S);
    deliver(&mut world, A);
    let text = given_up_after(&mut world, A, 30 * S);
    says(&text, &["the local endpoint was not made in time", "its request, 30.0 s ago"]);
}

/// The last message counts: the later one of two requests.
#[test]
fn a_request_that_comes_again_is_what_was_heard_last() {
    let mut world = two();
    world.connect(B, A);
    let request = world.wire.first().cloned().expect("a request").1;
    world.deliver(A, &request);
    world.tick(A, 10 * S);
    world.deliver(A, &request);
    says(&given_up_after(&mut world, A, 20 * S), &["its request, 20.0 s ago"]);
}

#[test]
fn a_reply_is_what_was_heard_of_who_has_connected() {
    let mut world = two();
    world.connect(A, B);
    deliver(&mut world, B);
    world.make(B, &key(A), Ok(()));
    world.bind(B, &key(A), Ok(()));
    world.tick(A, 3 * S);
    deliver(&mut world, A);
    assert_eq!(phase(&world, A), Some(Phase::Binding));
    let text = given_up_after(&mut world, A, 27 * S);
    says(&text, &["not connected in time", "its reply, 27.0 s ago"]);
}

#[test]
fn timeout_while_bound_reports_number_of_replies_sent() {
    let mut world = two();
    world.connect(A, B);
    deliver(&mut world, B);
    world.capacity = 0;
    world.make(B, &key(A), Ok(()));
    world.bind(B, &key(A), Ok(()));
    assert_eq!(phase(&world, B), Some(Phase::Bound));
    let text = given_up_after(&mut world, B, 30 * S);
    says(
        &text,
        &["it is bound here, which was reported to the peer once", "its request, 30.0 s ago"],
    );
}

#[test]
fn peer_making_its_endpoint_slows_retries_and_is_reported() {
    let mut world = two();
    world.connect(A, B);
    let request = world.wire.first().cloned().expect("a request").1;
    world.deliver(B, &request);
    world.deliver(B, &request);
    deliver(&mut world, A);
    let limits = Limits::default();
    let machine = &world.sides[0].machine;
    assert_eq!(machine.connections[&key(B)].interval, limits.last_retry);
    world.capacity = 0;
    let text = given_up_after(&mut world, A, 30 * S);
    says(&text, &["last heard of the peer: that it is making its endpoint, 30.0 s ago"]);
}

#[test]
fn a_peer_that_was_too_busy_is_named_with_its_own_words() {
    let mut world = two();
    world.connect(A, B);
    let from_b =
        Header { from: id(B), to: id(A), from_epoch: 1, to_epoch: 1, module: MODULE, n: 1 };
    let busy = Body::Reject { kind: ReasonKind::Busy, next: 1, text: "all 3 are taken" };
    world.deliver(A, &encode(&from_b, &busy));
    assert_eq!(phase(&world, A), Some(Phase::Asked), "it goes on asking");
    let text = given_up_after(&mut world, A, 30 * S);
    says(&text, &["that it is busy (all 3 are taken), 30.0 s ago"]);
}

/// Each wait after a loss is twice as long as the previous one, until a message of the peer arrives.
#[test]
fn losses_are_counted_from_the_last_word_of_the_peer() {
    let at_work = |world: &mut World, request: &[u8]| {
        world.deliver(B, request);
        world.deliver(B, request);
        deliver(world, A);
    };
    let busy = |world: &mut World, _: &[u8]| {
        let from_b =
            Header { from: id(B), to: id(A), from_epoch: 1, to_epoch: 1, module: MODULE, n: 1 };
        let busy = Body::Reject { kind: ReasonKind::Busy, next: 1, text: "all 3 are taken" };
        world.deliver(A, &encode(&from_b, &busy));
    };
    let silence = |_: &mut World, _: &[u8]| {};
    let words: [fn(&mut World, &[u8]); 3] = [silence, at_work, busy];
    for (word, expected) in words.into_iter().zip([5, 0, 0]) {
        let mut world = two();
        world.connect(A, B);
        let request = world.wire.first().cloned().expect("a request").1;
        for _ in 0..5 {
            world.sides[0].machine.transport_lost(0, &key(B));
        }
        let losses = |world: &World| world.sides[0].machine.connections[&key(B)].losses;
        assert_eq!(losses(&world), 5);
        word(&mut world, &request);
        assert_eq!(losses(&world), expected);
    }
}
