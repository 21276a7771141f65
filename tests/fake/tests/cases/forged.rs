//! Tests of unsolicited answers, and of messages of a later protocol version.

use crate::cases;
use crate::stage::{Stage, pending};
use tieline::{Completion, Endpoint, Outcome, PostError, Region, RemoteKey, Status};
use tieline_fake::{Lane, Slot};
use tieline_plugin_api::atomic_op;

const GET: u32 = 0xf001;
const GET_DATA: u32 = 0xf002;
const ATOMIC: u32 = 0xf003;
const REPLY: u32 = 0xf004;

fn reply(status: i32, value: u64) -> Vec<u8> {
    [&status.to_le_bytes()[..], &value.to_le_bytes()].concat()
}

fn get_data(position: u64, status: i32, data: &[u8]) -> Vec<u8> {
    [&position.to_le_bytes()[..], &status.to_le_bytes(), &[0; 4], data].concat()
}

/// Encodes a range of a region as requests do: the number and generation, which follow the head and the context's number in the
/// region's key, and the offset.
fn range(region: &Region, offset: u64) -> Vec<u8> {
    [&region.remote_key().unwrap()[21..37], &offset.to_le_bytes()].concat()
}

fn ask_atomic(region: &Region, offset: u64, add: u64) -> Vec<u8> {
    let call = [atomic_op::ADD as u8, 8];
    [&range(region, offset)[..], &add.to_le_bytes(), &[0; 8], &call].concat()
}

fn ask_get(region: &Region, offset: u64, len: u64) -> Vec<u8> {
    [&range(region, offset)[..], &len.to_le_bytes()].concat()
}

/// Checks that messages of the peer do not complete an operation that a provider has accepted, and that its memory stays
/// registered.
fn only_the_provider_ends(
    slot: Slot,
    post: impl Fn(&Endpoint, &Region, &RemoteKey) -> Result<Outcome, PostError>,
) {
    let stage = Stage::new(vec![Lane::whole("all")]);
    stage.world.hold(slot);
    let (_target, key) = stage.target(vec![7; 64]);
    let local = stage.local(vec![1; 64]);
    if slot == Slot::Flush {
        // The put has completed locally, so the flush of a lane waits for it.
        let put = stage.ab.put_with(&local, 0..8, &key, 0, Completion::Local).unwrap();
        let _ = stage.finish(put).unwrap();
    }
    let request = pending(post(&stage.ab, &local, &key));
    let cookie = stage.world.calls(slot).last().expect("a call").cookie;
    let (a, b) = (stage.world.interface(0, "all"), stage.world.interface(1, "all"));
    let failed = Status::PeerFailed as i32;
    for lie in [reply(failed, 0), reply(0, 99)] {
        stage.world.forge(b, a, REPLY, cookie, &lie);
    }
    for lie in [get_data(0, failed, &[]), get_data(0, 0, &[9; 8]), get_data(0, 0, &[])] {
        stage.world.forge(b, a, GET_DATA, cookie, &lie);
    }
    stage.settle();
    assert!(stage.a.test(&request).is_none(), "a forged answer ended it");
    drop(local);
    stage.assert_no_faults();
    stage.world.release_held();
    stage.world.forget_rules();
    let value = stage.end_of(&request).expect("the end that the provider tells").unwrap();
    assert_eq!(value, if slot == Slot::Atomic { 0x0707_0707_0707_0707 } else { 0 });
    stage.assert_no_faults();
    assert!(stage.a.counters().malformed > 0, "lies are counted");
}

fn question(stage: &Stage) -> u64 {
    let asked = |slot| stage.world.calls(slot).into_iter().rfind(|call| call.id == ATOMIC);
    asked(Slot::Short).or(asked(Slot::Packed)).expect("a question").cookie
}

cases! {
    fn a_forged_answer_does_not_end_a_get_that_a_provider_has() {
        only_the_provider_ends(Slot::Get, |ab, local, key| ab.get(local, 0..64, key, 0));
    }

    fn a_forged_answer_does_not_end_a_put_that_a_provider_has() {
        only_the_provider_ends(Slot::Put, |ab, local, key| ab.put(local, 0..64, key, 0));
    }

    fn a_forged_answer_does_not_end_an_atomic_that_a_provider_has() {
        only_the_provider_ends(Slot::Atomic, |ab, _, key| ab.fetch_add(key, 0, 1));
    }

    fn a_forged_answer_does_not_end_a_flush_that_a_provider_has() {
        only_the_provider_ends(Slot::Flush, |ab, _, _| ab.flush());
    }

    /// An emulated put has a number, and only the responder may complete the put.
    fn a_third_process_cannot_answer_for_the_peer_that_was_asked() {
        let stage = Stage::new(vec![Lane::messages("all")]);
        let third = crate::stage::context(stage.world, &[]);
        let c = third.worker().unwrap();
        let ca = c.connect(&stage.a.address().unwrap()).unwrap();
        let met = ca.flush_messages().unwrap();
        let Outcome::Pending(met) = met else { panic!("a round trip at once") };
        assert!(stage.until(|| { let _ = c.progress(); c.test(&met).is_some() }));
        let (_target, key) = stage.target(vec![0; 64]);
        let request = pending(stage.ab.put_bytes(&[1; 16], &key, 0));
        let asked = *stage.world.calls(Slot::Packed).last().expect("a question");
        let (a, at) = (stage.world.interface(0, "all"), stage.world.interface(2, "all"));
        stage.world.forge(at, a, REPLY, asked.cookie, &reply(Status::Io as i32, 0));
        let _ = stage.a.progress();
        assert!(stage.a.test(&request).is_none(), "somebody else answered");
        assert_eq!(stage.end_of(&request), Some(Ok(0)));
        stage.assert_no_faults();
    }

    fn an_emulated_atomic_is_not_ended_by_an_answer_to_a_get() {
        let stage = Stage::new(vec![Lane::messages("all")]);
        let (_target, key) = stage.target(vec![0; 64]);
        let request = pending(stage.ab.fetch_add(&key, 0, 5));
        let cookie = question(&stage);
        let (a, b) = (stage.world.interface(0, "all"), stage.world.interface(1, "all"));
        stage.world.forge(b, a, GET_DATA, cookie, &get_data(0, Status::Io as i32, &[]));
        stage.world.forge(b, a, GET_DATA, cookie, &get_data(0, 0, &[1; 8]));
        let _ = stage.a.progress();
        assert!(stage.a.test(&request).is_none(), "an answer to a get ended an atomic");
        assert_eq!(stage.end_of(&request), Some(Ok(0)));
    }

    fn the_same_answer_twice_ends_one_operation() {
        let stage = Stage::new(vec![Lane::messages("all")]);
        let (_target, key) = stage.target(vec![0; 64]);
        let first = pending(stage.ab.fetch_add(&key, 0, 5));
        let cookie = question(&stage);
        assert_eq!(stage.end_of(&first), Some(Ok(0)));
        drop(first);
        let second = pending(stage.ab.fetch_add(&key, 0, 5));
        let (a, b) = (stage.world.interface(0, "all"), stage.world.interface(1, "all"));
        stage.world.forge(b, a, REPLY, cookie, &reply(0, 1234));
        assert_eq!(stage.end_of(&second), Some(Ok(5)), "an old answer ended a new operation");
    }

    fn an_answer_to_a_get_writes_nowhere_but_in_its_range() {
        let stage = Stage::new(vec![Lane::messages("all")]);
        let (_target, key) = stage.target(vec![7; 64]);
        let local = stage.local(vec![1; 64]);
        let request = pending(stage.ab.get(&local, 24..32, &key, 0));
        let asked = stage.world.calls(Slot::Short).into_iter().rfind(|call| call.id == GET);
        let cookie = asked.expect("a question").cookie;
        let (a, b) = (stage.world.interface(0, "all"), stage.world.interface(1, "all"));
        // The last two pairs lie within the range, and would count as bytes that have not arrived.
        for (position, len) in [(4, 8), (8, 8), (0, 9), (u64::MAX, 8), (u64::MAX - 7, 8), (1 << 40, 1), (4, 4), (7, 1)] {
            stage.world.forge(b, a, GET_DATA, cookie, &get_data(position, 0, &vec![9; len]));
        }
        let malformed = stage.a.counters().malformed;
        let _ = stage.a.progress();
        assert_eq!(local.to_vec(0..64).unwrap(), [1; 64], "an answer wrote beside the range of its get");
        assert_eq!(stage.a.counters().malformed, malformed + 8);
        assert_eq!(stage.end_of(&request), Some(Ok(0)));
        assert_eq!(local.to_vec(0..64).unwrap(), [vec![1; 24], vec![7; 8], vec![1; 32]].concat());
    }

    /// As docs/wire.md states, a later minor of the same major may append fields to messages without a payload.
    fn fields_of_a_later_version_are_left_alone() {
        const TAIL: [u8; 5] = [0xee; 5];
        const SEVENS: u64 = 0x0707_0707_0707_0707;
        let stage = Stage::new(vec![Lane::messages("all")]);
        let (target, key) = stage.target(vec![7; 64]);
        let (a, b) = (stage.world.interface(0, "all"), stage.world.interface(1, "all"));
        let (atomic, get) = (ask_atomic(&target, 8, 5), ask_get(&target, 0, 8));
        for (id, question) in [(ATOMIC, atomic), (GET, get)] {
            stage.world.forge(a, b, id, 1 << 40, &[&question[..], &TAIL].concat());
        }
        (0..20).for_each(|_| { let _ = stage.b.progress(); });
        assert_eq!(target.to_vec(8..16).unwrap(), (SEVENS + 5).to_le_bytes());
        assert_eq!(stage.world.on_the_way(REPLY), Some(reply(0, SEVENS)));
        assert_eq!(stage.world.on_the_way(GET_DATA), Some(get_data(0, 0, &[7; 8])));
        assert_eq!(stage.b.counters().malformed, 0);
        let request = pending(stage.ab.fetch_add(&key, 0, 5));
        let answer = [&reply(0, 1234)[..], &TAIL].concat();
        stage.world.forge(b, a, REPLY, question(&stage), &answer);
        assert_eq!(stage.end_of(&request), Some(Ok(1234)));
    }

    fn messages_of_a_later_version_are_dropped_and_counted() {
        let stage = Stage::new(vec![Lane::messages("all")]);
        let log = stage.log_at_b(5);
        let (target, _key) = stage.target(vec![0; 64]);
        let (a, b) = (stage.world.interface(0, "all"), stage.world.interface(1, "all"));
        let atomic = ask_atomic(&target, 0, 5);
        // The last value is larger than any id.
        for id in [0xf0fd, 0xffff, 0x1_0000 + ATOMIC] {
            stage.world.forge(a, b, id, 1 << 40, &atomic);
        }
        let _ = stage.ab.send(5, 42, b"behind them").unwrap();
        assert!(stage.until(|| !log.borrow().is_empty()), "they ended the connection");
        let counters = stage.b.counters();
        assert_eq!((counters.malformed, counters.unknown_ids, counters.emulated), (2, 1, 0));
        assert_eq!(target.to_vec(0..8).unwrap(), [0; 8]);
        stage.assert_no_faults();
    }
}
