//! Tests of each bound: remembered peers, connections begun by peers.

use super::world::{MODULE, id};
use crate::message::{Body, Header, Parsed, encode, parse};
use crate::tables::{MAX_IDLE_PAIRS, WINDOW};
use crate::{Action, Claim, ConnectionKey, Limits, Machine, Phase, ReasonKind, WorkerId};

/// Returns the id of the `n`th peer.
fn peer(n: usize) -> WorkerId {
    let mut id = [0xee; 16];
    id[..8].copy_from_slice(&(n as u64).to_le_bytes());
    id
}

fn machine(limits: Limits) -> Machine {
    Machine::new(id(0), 1, vec![0], limits)
}

/// Requests a connection as the application does, and makes its endpoint.
fn connect(machine: &mut Machine, to: WorkerId) -> ConnectionKey {
    let Ok(Claim::New(key)) = machine.connect(0, to, MODULE) else { panic!("a new one") };
    machine.created(0, &key, b"endpoint");
    key
}

fn connect_and_close(machine: &mut Machine, to: WorkerId) -> u32 {
    let key = connect(machine, to);
    machine.close(0, &key);
    key.n
}

#[test]
fn longest_idle_quarter_of_peers_is_evicted_beyond_limit() {
    let mut machine = machine(Limits::default());
    // The peer that was idle longest has used the highest number.
    for n in 1..=7 {
        assert_eq!(connect_and_close(&mut machine, peer(0)), n, "its numbers are remembered");
    }
    // This peer keeps a connection.
    let live = connect(&mut machine, peer(1));
    for n in 2..=MAX_IDLE_PAIRS {
        assert_eq!(connect_and_close(&mut machine, peer(n)), 1);
    }
    assert_eq!(machine.idle_pairs, MAX_IDLE_PAIRS);
    assert_eq!(machine.peers.len(), MAX_IDLE_PAIRS + 1, "as many as there may be are remembered");
    assert_eq!(machine.floor, 0);
    // A peer that connects again is not idle, and afterwards has been idle for less time than the others.
    assert_eq!(connect_and_close(&mut machine, peer(2)), 2);
    assert_eq!((machine.idle_pairs, machine.floor), (MAX_IDLE_PAIRS, 0));
    // One more pair evicts the quarter that was idle longest.
    assert_eq!(connect_and_close(&mut machine, peer(MAX_IDLE_PAIRS + 1)), 1);
    let gone = MAX_IDLE_PAIRS / 4 + 1;
    assert_eq!(machine.idle_pairs, MAX_IDLE_PAIRS + 1 - gone);
    assert_eq!(machine.peers.len(), machine.idle_pairs + 1);
    let remembered = |machine: &Machine, n: usize| machine.peers.contains_key(&peer(n));
    assert!(!remembered(&machine, 0));
    assert!(remembered(&machine, 1), "who has a connection is never forgotten");
    assert!(remembered(&machine, 2), "nor who was there a moment ago");
    for n in 3..=MAX_IDLE_PAIRS + 1 {
        // Peer 0 was evicted; peers 1 and 2 were not.
        assert_eq!(remembered(&machine, n), n > gone + 1, "peer {n}");
    }
    assert_eq!(machine.phase(&live), Some(Phase::Asked));
    // No number that was used with an evicted peer is used a second time.
    assert_eq!(machine.floor, 7);
    assert_eq!(connect_and_close(&mut machine, peer(0)), 8);
    let idle = machine.peers.values().flat_map(|p| p.pairs.values()).filter(|p| p.live == 0);
    assert_eq!(idle.count(), machine.idle_pairs);
}

/// Sends a request of a peer for its connection `n`.
fn ask(machine: &mut Machine, from: WorkerId, n: u32) {
    let header = Header { from, to: id(0), from_epoch: 1, to_epoch: 0, module: MODULE, n };
    let body = Body::Request { identity: b"somebody", address: b"endpoint" };
    machine.receive(0, &encode(&header, &body)).unwrap();
}

/// Returns the machine's next action: it makes an endpoint, or rejects with this text.
fn next(machine: &mut Machine) -> Result<ConnectionKey, (ReasonKind, String)> {
    match machine.take_action().expect("it does something") {
        Action::Create { key, .. } => Ok(key),
        Action::Answer { datagram, .. } => match parse(&datagram).unwrap() {
            Parsed::Message(_, Body::Reject { kind, text, .. }) => Err((kind, text.to_string())),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn unfinished_connections_per_peer_are_bounded_and_claim_makes_room() {
    let mut machine = machine(Limits { max_unfinished_per_peer: 3, ..Limits::default() });
    for n in 1..=3 {
        ask(&mut machine, peer(1), n);
        assert_eq!(next(&mut machine).unwrap().n, n);
    }
    ask(&mut machine, peer(1), 4);
    let (kind, text) = next(&mut machine).unwrap_err();
    assert_eq!((kind, machine.counters().busy), (ReasonKind::Busy, 1));
    assert!(text.contains("3 connections with this peer are forming"), "{text}");
    ask(&mut machine, peer(2), 1);
    assert!(next(&mut machine).is_ok(), "another peer has room of its own");
    assert!(matches!(machine.connect(0, peer(1), MODULE), Ok(Claim::Existing(_))));
    ask(&mut machine, peer(1), 4);
    assert_eq!(next(&mut machine).unwrap().n, 4);
    ask(&mut machine, peer(1), 5);
    assert!(next(&mut machine).is_err());
}

#[test]
fn all_peers_together_may_begin_so_many_connections_and_no_more() {
    let mut machine = machine(Limits { max_early: 4, ..Limits::default() });
    for n in 0..4 {
        ask(&mut machine, peer(n), 1);
        assert!(next(&mut machine).is_ok());
    }
    ask(&mut machine, peer(9), 1);
    let (kind, text) = next(&mut machine).unwrap_err();
    assert_eq!(kind, ReasonKind::Busy);
    assert!(text.contains("4 connections are forming that this side has not requested"), "{text}");
    let key = ConnectionKey { peer: peer(0), module: MODULE.into(), n: 1 };
    machine.close(0, &key);
    while machine.take_action().is_some() {}
    ask(&mut machine, peer(9), 1);
    assert!(next(&mut machine).is_ok(), "one that is gone makes room");
}

/// A number in a message counts as used from then on. A message with the highest possible number would leave none.
#[test]
fn a_peer_may_skip_so_many_numbers_and_no_more() {
    let mut machine = machine(Limits::default());
    ask(&mut machine, peer(1), WINDOW + 1);
    let (kind, text) = next(&mut machine).unwrap_err();
    assert_eq!(kind, ReasonKind::Rejected);
    assert!(text.contains("too far from 0, the highest known here"), "{text}");
    ask(&mut machine, peer(1), u32::MAX);
    assert!(next(&mut machine).is_err());
    ask(&mut machine, peer(1), WINDOW);
    assert_eq!(next(&mut machine).unwrap().n, WINDOW);
    ask(&mut machine, peer(1), 2 * WINDOW + 1);
    assert!(next(&mut machine).is_err());
    ask(&mut machine, peer(1), 2 * WINDOW);
    assert_eq!(next(&mut machine).unwrap().n, 2 * WINDOW);
}

#[test]
fn there_are_so_many_connections_whoever_begins_them() {
    let mut machine = machine(Limits { max_connections: 3, ..Limits::default() });
    let first = connect(&mut machine, peer(1));
    let _ = connect(&mut machine, peer(2));
    while machine.take_action().is_some() {}
    ask(&mut machine, peer(3), 1);
    assert!(next(&mut machine).is_ok());
    ask(&mut machine, peer(4), 1);
    let (kind, text) = next(&mut machine).unwrap_err();
    assert_eq!(kind, ReasonKind::Busy);
    assert!(text.contains("all 3 connections are taken"), "{text}");
    let reason = machine.connect(0, peer(5), MODULE).unwrap_err();
    assert_eq!(reason.kind, ReasonKind::Busy);
    assert!(reason.text.contains("3 connections, which is its limit"), "{reason}");
    machine.close(0, &first);
    while machine.take_action().is_some() {}
    ask(&mut machine, peer(4), 1);
    assert!(next(&mut machine).is_ok());
}
