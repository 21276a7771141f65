//! Tests of the scenarios of `docs/wireup.md`, one each.

use super::world::{MODULE, World, id};
use crate::message::{Body, Header, MAX_ADDRESS, encode, encode_version};
use crate::{Action, Claim, ConnectionKey, Limits, Machine, Phase, Reason, ReasonKind};

const A: u8 = 0;
const B: u8 = 1;

fn key(peer: u8, n: u32) -> ConnectionKey {
    ConnectionKey { peer: id(peer), module: MODULE.into(), n }
}

fn two() -> World {
    World::new(2, &Limits::default())
}

fn phase(world: &World, who: u8, n: u32) -> Option<Phase> {
    world.sides[usize::from(who)].machine.phase(&key(1 - who, n))
}

fn both_ready(world: &World, n: u32) -> bool {
    phase(world, A, n) == Some(Phase::Ready) && phase(world, B, n) == Some(Phase::Ready)
}

fn failure(world: &World, who: u8) -> &Reason {
    &world.sides[usize::from(who)].failed.last().expect("it failed").1
}

/// Makes the header of a message that `from` could have sent to `to`.
fn header(from: u8, to: u8, lives: (u64, u64), n: u32) -> Header<'static> {
    let (from_epoch, to_epoch) = lives;
    Header { from: id(from), to: id(to), from_epoch, to_epoch, module: MODULE, n }
}

#[test]
fn two_requests_that_cross_form_one_connection() {
    let mut world = two();
    world.connect(A, B);
    world.connect(B, A);
    assert_eq!(world.wire.len(), 2, "both have asked");
    world.settle();
    world.check_at_rest();
    assert!(both_ready(&world, 1));
    assert_eq!((world.sides[0].machine.len(), world.sides[1].machine.len()), (1, 1));
}

#[test]
fn a_side_that_asks_late_claims_what_its_peer_began() {
    let mut world = two();
    world.connect(A, B);
    world.settle();
    assert!(both_ready(&world, 1), "it is served on demand");
    let now = world.sides[1].now;
    let claim = world.sides[1].machine.connect(now, id(A), MODULE);
    assert_eq!(claim, Ok(Claim::Existing(key(A, 1))));
}

#[test]
fn a_request_that_comes_early_is_kept_while_the_endpoint_is_made() {
    let mut world = two();
    world.connect(A, B);
    let (to, datagram) = world.wire.pop_first().unwrap();
    world.deliver(to, &datagram);
    world.deliver(to, &datagram);
    world.deliver(to, &datagram);
    assert_eq!(phase(&world, B, 1), Some(Phase::Making));
    assert_eq!(world.sides[1].to_make.len(), 1, "one endpoint is asked for");
    assert_eq!(world.sides[1].machine.counters().early, 1);
    assert_eq!(world.sides[1].machine.counters().duplicates, 2);
    world.settle();
    assert!(both_ready(&world, 1));
}

#[test]
fn a_peer_that_never_answers_is_given_up_at_the_deadline_in_words() {
    let mut world = two();
    world.capacity = 0;
    world.connect(A, B);
    world.settle();
    assert_eq!(world.sides[0].now, Limits::default().deadline);
    let reason = failure(&world, A);
    assert_eq!(reason.kind, ReasonKind::TimedOut);
    for words in ["30.0 s", "the request was sent 20 times", "nothing was heard of the peer"] {
        assert!(reason.text.contains(words), "{reason}");
    }
}

#[test]
fn a_transport_without_a_way_fails_the_connection_with_its_words() {
    // The wire-up transport detects a wrong secret, and then cannot reach the peer.
    let mut world = two();
    world.connect(A, B);
    let machine = &mut world.sides[0].machine;
    while machine.take_action().is_some() {}
    machine.transport_hopeless(5, &key(B, 1), "the peer does not know the job's secret");
    let Some(Action::Failed { reason, .. }) = machine.take_action() else { panic!() };
    assert_eq!(reason.kind, ReasonKind::Transport);
    assert!(reason.text.contains("the peer does not know the job's secret"), "{reason}");
    assert_eq!((machine.len(), machine.next_timer()), (0, None));
}

#[test]
fn a_peer_of_another_version_rejects_with_both_versions() {
    let mut world = two();
    let body = Body::Request { identity: &[A], address: b"endpoint" };
    world.connect(A, B);
    world.wire.clear();
    // A's message in a later version: the beginning is the same, the rest may be anything.
    let mut request = encode_version(7, &header(A, B, (1, 0), 1), &body);
    request.extend(b"and more that only version 7 knows");
    world.deliver(B, &request);
    assert_eq!(world.sides[1].machine.len(), 0);
    let (to, reject) = world.wire.pop_first().unwrap();
    assert_eq!(to, A);
    // For A, which now has version 7, the rejection is of another version; the roles are reversed.
    let mut reject = reject;
    reject[2] = 7;
    world.deliver(A, &reject);
    let reason = failure(&world, A);
    assert_eq!(reason.kind, ReasonKind::Version);
    assert!(reason.text.contains("version 1") && reason.text.contains("version 7"), "{reason}");
    assert!(world.wire.is_empty(), "a rejection is not answered");
}

#[test]
fn a_peer_that_restarts_at_the_same_address_is_met_again() {
    let mut world = two();
    world.connect(A, B);
    world.settle();
    world.crash(B);
    // A does not know of the restart yet. Its next connection reaches the new epoch; the old connection ends with a reason.
    world.connect(A, B);
    world.settle();
    world.check_at_rest();
    let reason = failure(&world, A);
    assert_eq!(reason.kind, ReasonKind::Closed);
    assert!(reason.text.contains("restarted"), "{reason}");
    assert_eq!(world.sides[0].machine.counters().renumbered, 1);
    assert!(
        both_ready(&world, 3),
        "what was asked of the old life has another number in the new one"
    );
}

#[test]
fn a_process_that_restarted_is_met_by_its_old_peer() {
    let mut world = two();
    world.connect(A, B);
    world.settle();
    world.crash(B);
    world.connect(B, A);
    world.settle();
    world.check_at_rest();
    assert!(both_ready(&world, 2), "its number 1 was used in the life before");
}

#[test]
fn another_process_at_the_peers_address_says_so_at_once() {
    let mut world = World::new(3, &Limits::default());
    world.connect(A, 2);
    let (_, request) = world.wire.pop_first().unwrap();
    world.deliver(B, &request);
    world.settle();
    let reason = failure(&world, A);
    assert_eq!(reason.kind, ReasonKind::NoSuchWorker);
    assert!(reason.text.contains("this address belongs to worker 01010101"), "{reason}");
    assert_eq!(world.sides[0].now, 0, "no time passed");
}

#[test]
fn a_close_that_crosses_a_request_leads_to_the_next_connection() {
    let mut world = two();
    world.connect(A, B);
    world.connect(B, A);
    world.close(A, &key(B, 1));
    world.settle();
    world.check_at_rest();
    assert_eq!(phase(&world, A, 1), None);
    assert!(both_ready(&world, 2), "B still wants one");
    assert_eq!(world.sides[1].machine.counters().renumbered, 1);
    assert!(world.sides[1].failed.is_empty());
}

#[test]
fn a_thousand_connections_between_two_processes_form_at_once() {
    // The limit permits fewer connections in progress than are requested: the others are rejected as busy, and retried later.
    let limits = Limits { max_unfinished_per_peer: 100, ..Limits::default() };
    let mut world = World::new(2, &limits);
    for _ in 0..1000 {
        world.connect(A, B);
    }
    for _ in 0..500 {
        world.connect(B, A);
    }
    world.settle();
    world.check_at_rest();
    assert!((1..=1000).all(|n| both_ready(&world, n)));
    assert_eq!((world.sides[0].machine.len(), world.sides[1].machine.len()), (1000, 1000));
    assert!(world.sides[1].machine.counters().busy > 0);
}

#[test]
fn sixty_four_processes_connect_to_all_others_at_once() {
    const N: u8 = 64;
    let mut world = World::new(N, &Limits::default());
    for who in 0..N {
        for peer in (0..N).filter(|peer| *peer != who) {
            world.connect(who, peer);
        }
    }
    world.settle();
    world.check_at_rest();
    assert!(!world.troubled);
    for side in &world.sides {
        assert_eq!(side.machine.len(), usize::from(N) - 1);
        assert_eq!(side.machine.counters().retransmissions, 0);
    }
}

#[test]
fn a_storm_of_requests_costs_bounded_memory() {
    let limits = Limits { max_early: 50, ..Limits::default() };
    let mut machine = Machine::new(id(A), 1, vec![A], limits);
    let (mut creates, mut busy) = (0, 0);
    for round in 0..100_000_u32 {
        let mut from = [9; 16];
        from[..4].copy_from_slice(&round.to_le_bytes());
        let header = Header { from, to: id(A), from_epoch: 1, to_epoch: 0, module: MODULE, n: 1 };
        let body = Body::Request { identity: b"anybody", address: &[7; MAX_ADDRESS] };
        // In regular intervals about a second passes, in which the earlier requests time out.
        let now = u64::from(round) * 10_000_000;
        machine.receive(now, &encode(&header, &body)).unwrap();
        machine.tick(now);
        while let Some(action) = machine.take_action() {
            match action {
                Action::Create { .. } => creates += 1,
                Action::Answer { .. } => busy += 1,
                _ => {}
            }
        }
        assert!(machine.len() <= 50 && machine.timers.len() <= 50);
    }
    assert!(creates > 1000 && busy > 1000, "{creates} {busy}");
    let pairs: usize = machine.peers.values().map(|peer| peer.pairs.len()).sum();
    assert!(pairs <= 8192 + 50, "{pairs}");
}

#[test]
fn rejection_of_failed_endpoint_repeats_its_words() {
    let mut world = two();
    world.connect(A, B);
    let (_, request) = world.wire.first().cloned().unwrap();
    world.deliver(B, &request);
    world.make(B, &key(A, 1), Err("no more queue pairs"));
    world.wire.clear();
    world.deliver(B, &request);
    world.settle();
    let reason = failure(&world, A);
    assert_eq!(reason.kind, ReasonKind::Rejected);
    assert!(reason.text.contains("no more queue pairs"), "{reason}");
}

#[test]
fn a_peer_that_is_bound_learns_at_once_that_the_other_end_is_gone() {
    let mut world = two();
    world.connect(A, B);
    while phase(&world, B, 1) != Some(Phase::Bound) {
        assert!(world.settle_once());
    }
    world.wire.clear();
    world.close(A, &key(B, 1));
    world.wire.clear();
    world.settle();
    let reason = failure(&world, B);
    assert_eq!(reason.kind, ReasonKind::Closed);
    assert_eq!(
        world.sides[1].now,
        Limits::default().first_retry,
        "its first repetition is answered"
    );
}

#[test]
fn a_rejection_does_not_end_a_connection_that_is_ready() {
    let mut world = two();
    world.connect(A, B);
    world.settle();
    for kind in [ReasonKind::Closed, ReasonKind::Rejected, ReasonKind::NoSuchWorker] {
        let reject = encode(&header(B, A, (1, 1), 1), &Body::Reject { kind, next: 9, text: "no" });
        world.deliver(A, &reject);
    }
    assert!(both_ready(&world, 1));
}

#[test]
fn a_reply_or_readiness_for_another_endpoint_changes_nothing() {
    let mut world = two();
    world.connect(A, B);
    let reply = Body::Reply { identity: &[B], address: b"somewhere", bound_to: 12345 };
    world.deliver(A, &encode(&header(B, A, (1, 1), 1), &reply));
    assert_eq!(phase(&world, A, 1), Some(Phase::Asked));
    let text = format!("{:?}", world.wire);
    assert!(world.wire.iter().any(|(to, _)| *to == B), "whoever sent it hears that: {text}");
    world.wire.retain(|(to, bytes)| *to == B && bytes[3] == 1);
    while phase(&world, B, 1) != Some(Phase::Bound) {
        assert!(world.settle_once());
    }
    let ready = Body::Ready { mine: 1, yours: 2 };
    world.deliver(B, &encode(&header(A, B, (1, 1), 1), &ready));
    assert_eq!(phase(&world, B, 1), Some(Phase::Bound));
}

#[test]
fn messages_for_another_life_of_ours_begin_nothing() {
    let mut world = two();
    world.crash(A);
    let request = Body::Request { identity: &[B], address: b"endpoint" };
    world.deliver(A, &encode(&header(B, A, (1, 1), 1), &request));
    assert_eq!(world.sides[0].machine.len(), 0);
    assert_eq!(world.sides[0].machine.counters().stale, 1);
    assert_eq!(world.wire.len(), 1, "the sender learns of the new life");
}

#[test]
fn data_of_the_peer_counts_as_its_readiness() {
    let mut world = two();
    world.connect(A, B);
    while phase(&world, B, 1) != Some(Phase::Bound) {
        assert!(world.settle_once());
    }
    let machine = &mut world.sides[1].machine;
    machine.data_arrived(0, &key(A, 1));
    assert_eq!(machine.phase(&key(A, 1)), Some(Phase::Ready));
}

#[test]
fn a_broken_transport_makes_the_next_try_come_soon() {
    let mut world = two();
    world.capacity = 0;
    world.connect(A, B);
    let machine = &mut world.sides[0].machine;
    machine.tick(50_000_000);
    machine.tick(150_000_000);
    assert_eq!(machine.next_timer(), Some(350_000_000));
    machine.transport_lost(160_000_000, &key(B, 1));
    assert_eq!(machine.next_timer(), Some(210_000_000));
}

#[test]
fn unclaimed_connection_can_be_claimed_again() {
    let mut world = two();
    world.connect(A, B);
    world.settle();
    let machine = &mut world.sides[0].machine;
    machine.unclaim(&key(B, 1));
    assert_eq!(machine.connect(0, id(B), MODULE), Ok(Claim::Existing(key(B, 1))));
    assert_eq!(machine.connect(0, id(B), MODULE), Ok(Claim::New(key(B, 2))));
    let itself = machine.connect(0, id(A), MODULE);
    assert_eq!(itself.unwrap_err().kind, ReasonKind::Itself);
}

#[test]
fn numbers_that_were_skipped_stay_usable_until_there_are_too_many_gaps() {
    let mut numbers = crate::record::Numbers::default();
    for n in (1..=600).map(|n| n * 2) {
        numbers.insert(n);
    }
    assert_eq!(numbers.spans().len(), 256);
    assert!(numbers.contains(3), "the lowest gaps are given up");
    assert!(!numbers.contains(1199));
    numbers.insert(1199);
    assert!(numbers.contains(1199));
    assert_eq!((numbers.spans().len(), numbers.highest()), (255, 1200));
}
