//! Tests of fences and flushes when operations take several routes, or leave the route for which they were posted.

use crate::cases;
use crate::stage::{Stage, pending};
use std::time::{Duration, Instant};
use tieline::{Completion, Endpoint, Region, RemoteKey, Status};
use tieline_fake::{Act, Lane, Rule, Slot};
use tieline_plugin_api::caps;

/// Makes a lane for messages, and two lanes to memory whose operations complete later. The first lane to memory is better, and the
/// second accepts short puts.
fn two_memories() -> Stage {
    let a = Lane { priority: 9, ..Lane::memory("a") };
    let b = Lane { max_put: 100, ..Lane::memory("b") };
    Stage::new(vec![Lane::messages("am"), a, b])
}

fn over_b(stage: &Stage, target: &Region) -> RemoteKey {
    stage.world.rule(Rule::next(Slot::ImportKey, Act::Refuse(Status::KeyRejected)).on("a"));
    let key = stage.ab.import_key(&target.remote_key().unwrap()).unwrap();
    assert_eq!(&*key.path(), "fake:b/b");
    key
}

/// A function that posts an operation after a fence on another route. The operation has one piece or several.
type Behind = fn(&Endpoint, &Region, &RemoteKey) -> tieline::Request;

const BEHIND: [(&str, Behind); 5] = [
    ("an atomic", |ab, _, key| pending(ab.fetch_add(key, 8, 5))),
    ("a put", |ab, local, key| pending(ab.put(local, 0..8, key, 8))),
    ("a put that is cut", |ab, local, key| pending(ab.put(local, 0..500, key, 8))),
    ("bytes that are cut", |ab, _, key| pending(ab.put_bytes(&[5; 500], key, 8))),
    ("a get", |ab, local, key| pending(ab.get(local, 0..8, key, 0))),
];

cases! {
    fn wait_for_operation_behind_fence_sleeps() {
        let rma = Lane::memory("rma").without_atomics().sleeping();
        let stage = Stage::new(vec![Lane::messages("am").sleeping(), rma]);
        let (_target, key) = stage.target(vec![0; 64]);
        stage.world.hold(Slot::Put);
        let put = pending(stage.ab.put_bytes(&[1; 8], &key, 0));
        let added = pending(stage.ab.fetch_add(&key, 8, 1));
        stage.ab.fence().unwrap();
        let behind = pending(stage.ab.put_bytes(&[2; 8], &key, 0));
        let (begun, long) = (Instant::now(), Duration::from_millis(300));
        while stage.a.wait(Some(long)).unwrap().has_moved() {}
        assert!(begun.elapsed() >= long, "it was woken after {:?}", begun.elapsed());
        stage.world.forget_rules();
        stage.world.release_held();
        for request in [&put, &added, &behind] {
            assert!(stage.end_of(request).is_some_and(|ended| ended.is_ok()));
        }
        stage.assert_no_faults();
    }

    fn operation_on_other_route_behind_fence_waits_and_completes() {
        for waits in [false, true] {
            for (name, post) in BEHIND {
                let stage = two_memories();
                let (target, key) = stage.target(vec![0; 1000]);
                let other = over_b(&stage, &target);
                let local = stage.local(vec![5; 500]);
                stage.world.rule(Rule::every(Slot::Put, Act::Hold).on("a"));
                let first = pending(stage.ab.put(&stage.local(vec![1; 8]), 0..8, &key, 0));
                stage.ab.fence().unwrap();
                let queued = waits.then(|| {
                    stage.world.rule(Rule::every(Slot::Get, Act::Refuse(Status::Again)).on("a"));
                    pending(stage.ab.get(&stage.local(vec![0; 8]), 0..8, &key, 0))
                });
                let behind = post(&stage.ab, &local, &other);
                stage.settle();
                assert_eq!(target.to_vec(0..16).unwrap(), [0; 16], "{name} overtook the put");
                stage.world.forget_rules();
                stage.world.release_held();
                assert_eq!(stage.end_of(&first), Some(Ok(0)));
                assert_eq!(stage.end_of(&behind), Some(Ok(0)), "{name} behind a fence");
                assert_eq!(queued.map(|get| stage.end_of(&get)), waits.then_some(Some(Ok(0))));
                assert_eq!(stage.finish(stage.ab.flush().unwrap()), Ok(0));
                stage.assert_no_faults();
            }
        }
    }

    /// A long transfer uses both lanes, so the fence before it belongs to neither lane alone.
    fn a_transfer_over_two_lanes_behind_a_fence_waits_for_both_and_ends() {
        const LONG: usize = 1 << 20;
        // The lanes belong to one module in two domains, as two ports do.
        let lane = |name, priority| Lane { priority, module: "port", ..Lane::memory(name) };
        let lanes = vec![Lane::messages("am"), lane("a", 9), lane("b", 1)];
        let stage = Stage::new(lanes);
        let (target, key) = stage.target(vec![0; LONG]);
        let local = stage.local(vec![7; LONG]);
        stage.world.rule(Rule { times: 1, ..Rule::every(Slot::Put, Act::Hold) });
        let first = pending(stage.ab.put(&stage.local(vec![1; 8]), 0..8, &key, 0));
        stage.ab.fence().unwrap();
        let long = pending(stage.ab.put(&local, 0..LONG, &key, 0));
        stage.settle();
        assert_eq!(target.to_vec(LONG - 8..LONG).unwrap(), [0; 8], "a share overtook the put");
        stage.world.release_held();
        assert_eq!((stage.end_of(&first), stage.end_of(&long)), (Some(Ok(0)), Some(Ok(0))));
        assert!(target.to_vec(0..LONG).unwrap().iter().all(|byte| *byte == 7));
        let lanes: Vec<usize> = stage.world.calls(Slot::Put).iter().map(|call| call.interface).collect();
        assert!(lanes.iter().any(|lane| *lane != lanes[0]), "all of it went over one lane");
        stage.assert_no_faults();
    }

    /// The operation was queued for the lane of the operations before the fence, and that lane then refuses it.
    fn operation_leaving_its_lane_does_not_overtake_fence() {
        for then_fence in [false, true] {
            let stage = two_memories();
            let (target, key) = stage.target(vec![0; 64]);
            stage.world.rule(Rule::next(Slot::Put, Act::Hold).on("a"));
            let first = pending(stage.ab.put_bytes(&[1; 8], &key, 0));
            stage.ab.fence().unwrap();
            // At first the lane returns `Again`; then it refuses this operation permanently.
            stage.world.rule(Rule { times: 2, ..Rule::every(Slot::Put, Act::Refuse(Status::Again)).on("a") });
            let second = pending(stage.ab.put_bytes(&[2; 8], &key, 0));
            if then_fence {
                stage.ab.fence().unwrap();
            }
            stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::TimedOut)).on("a"));
            stage.settle();
            assert_eq!(target.to_vec(0..8).unwrap(), [0; 8], "the second overtook the first");
            stage.world.release_held();
            assert_eq!((stage.end_of(&first), stage.end_of(&second)), (Some(Ok(0)), Some(Ok(0))));
            assert_eq!(target.to_vec(0..8).unwrap(), [2; 8]);
            assert_eq!(&*key.path(), "fake:b/b");
            stage.assert_no_faults();
        }
    }

    fn operation_without_lane_falls_back_to_messages_before_later_fences() {
        for fenced in [false, true] {
            let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma").on_other_provider()]);
            let (target, key) = stage.target(vec![0; 64]);
            stage.world.rule(Rule::next(Slot::Put, Act::Hold).on("rma"));
            let first = pending(stage.ab.put_bytes(&[1; 8], &key, 0));
            if fenced {
                stage.ab.fence().unwrap();
            }
            stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::Again)).on("rma"));
            let second = pending(stage.ab.put_bytes(&[2; 8], &key, 8));
            stage.ab.fence().unwrap();
            let third = pending(stage.ab.put_bytes(&[3; 8], &key, 16));
            stage.world.rule(Rule::next(Slot::Poll, Act::Panic).on("rma"));
            let lost = stage.end_of(&first).expect("an end with its provider").unwrap_err();
            assert_eq!(lost.status(), Status::ProviderFailed);
            assert_eq!(stage.end_of(&second), Some(Ok(0)), "it waits for what waits for it");
            assert_eq!(stage.end_of(&third), Some(Ok(0)));
            assert_eq!(target.to_vec(8..24).unwrap(), [[2; 8], [3; 8]].concat());
        }
    }

    fn an_atomic_that_waited_for_its_key_is_before_the_fence_behind_it() {
        let lane = |name, priority| Lane { priority, ..Lane::memory(name) };
        let device = lane("device", 1);
        let device = Lane { caps: device.caps | caps::DEVICE_ATOMICS, ..device };
        let lanes = vec![Lane::messages("am"), lane("rma", 9).without_atomics(), device];
        let stage = Stage::with(lanes, &[("TIELINE_ATOMICS", "device")]);
        let wait = Rule::every(Slot::ImportKey, Act::Refuse(Status::Again)).on("device");
        stage.world.rule(wait);
        let (target, key) = stage.target(vec![0; 64]);
        stage.world.rule(Rule::every(Slot::Atomic, Act::Hold));
        let atomic = pending(stage.ab.fetch_add(&key, 8, 5));
        stage.world.forget_rules();
        stage.world.rule(Rule::every(Slot::Atomic, Act::Hold));
        assert!(stage.until(|| stage.world.operations() == 1), "the key is there now");
        stage.ab.fence().unwrap();
        let put = pending(stage.ab.put_bytes(&[1; 8], &key, 0));
        stage.settle();
        assert_eq!(target.to_vec(0..8).unwrap(), [0; 8], "the put overtook the atomic");
        stage.world.release_held();
        assert_eq!((stage.end_of(&atomic), stage.end_of(&put)), (Some(Ok(0)), Some(Ok(0))));
        stage.assert_no_faults();
    }

    fn failure_of_dropped_request_is_reported_by_next_flush() {
        for (flushed, asked) in [(false, false), (false, true), (true, false), (true, true)] {
            let stage = Stage::new(vec![Lane::whole("all")]);
            let (_target, key) = stage.target(vec![0; 8]);
            stage.world.rule(Rule::next(Slot::Put, Act::FailLater(Status::KeyRejected)));
            let put = pending(stage.ab.put_bytes(&[1; 8], &key, 0));
            let flush = flushed.then(|| pending(stage.ab.flush()));
            assert!(stage.until(|| stage.a.pending() == 0));
            let last = flush.unwrap_or(put);
            if asked {
                assert_eq!(stage.a.test(&last).unwrap().unwrap_err().status(), Status::KeyRejected);
            }
            drop(last);
            let told = stage.ended(stage.ab.flush()).map_err(|error| error.status());
            assert_eq!(told, if asked { Ok(0) } else { Err(Status::KeyRejected) }, "{flushed}");
            assert_eq!(stage.ended(stage.ab.flush()), Ok(0), "it is told once");
        }
    }

    fn a_flush_ends_after_a_put_that_failed_alone_before_it_was_sent() {
        let stage = Stage::new(vec![Lane::messages("am")]);
        let (_target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 8]);
        stage.world.rule(Rule::next(Slot::Packed, Act::Refuse(Status::NoMemory)));
        let put = stage.ab.put_with(&local, 0..8, &key, 0, Completion::Local);
        let failed = stage.ended(put).expect_err("it was refused");
        assert_eq!(failed.status(), Status::NoMemory);
        assert_eq!(stage.finish(stage.ab.flush().unwrap()), Ok(0), "it is told already");
        assert_eq!(stage.a.pending(), 0);
        stage.assert_no_faults();
    }

    /// The lane for which the put was queued refuses it. Another lane carries the bytes, and needs progress at the target for the
    /// rest.
    fn a_flush_asks_the_lane_that_a_put_took_in_the_end() {
        let active = |lane: Lane| Lane { caps: lane.caps & !caps::PASSIVE_TARGET, ..lane };
        let (a, b) = (Lane { priority: 9, ..Lane::memory("a") }, active(Lane::memory("b")));
        let stage = Stage::new(vec![Lane::messages("am"), a, b]);
        let (target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 8]);
        let no_room = Rule::every(Slot::Put, Act::Refuse(Status::Again)).on("a");
        stage.world.rule(Rule { times: 2, ..no_room });
        stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::TimedOut)).on("a"));
        let put = pending(stage.ab.put_with(&local, 0..8, &key, 0, Completion::Local));
        let flush = pending(stage.ab.flush());
        for _ in 0..100 {
            let _ = stage.a.progress();
        }
        assert_eq!(stage.a.test(&put), Some(Ok(0)), "its bytes have left");
        assert_eq!(target.to_vec(0..8).unwrap(), [0; 8]);
        assert_eq!(stage.a.test(&flush), None, "the put has not arrived");
        assert_eq!(stage.end_of(&flush), Some(Ok(0)));
        assert_eq!(target.to_vec(0..8).unwrap(), [1; 8]);
        assert_eq!(&*key.path(), "fake:b/b");
        stage.assert_no_faults();
    }

    fn fences_alone_take_no_more_room() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma").without_atomics()]);
        stage.world.hold(Slot::Put);
        let (_target, key) = stage.target(vec![0; 64]);
        let put = pending(stage.ab.put_bytes(&[1; 8], &key, 0));
        let atomic = pending(stage.ab.fetch_add(&key, 8, 5));
        for _ in 0..100 {
            stage.ab.fence().unwrap();
        }
        assert!(stage.a.pending() <= 4, "{} operations are pending", stage.a.pending());
        stage.world.forget_rules();
        stage.world.release_held();
        assert_eq!((stage.end_of(&put), stage.end_of(&atomic)), (Some(Ok(0)), Some(Ok(0))));
        assert_eq!(stage.finish(stage.ab.flush().unwrap()), Ok(0));
        assert_eq!(stage.a.pending(), 0);
    }
}
