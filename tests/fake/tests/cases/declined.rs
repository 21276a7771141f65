//! Tests of lanes that decline a put or get: the core asks the next lane to that memory, for this operation only.

use crate::cases;
use crate::shared::copying;
use crate::stage::{Stage, pending};
use tieline::{Access, Completion, Outcome, PostError, Region, RemoteKey, Status};
use tieline_fake::{Act, Call, Lane, Rule, Slot, World};
use tieline_plugin_api::caps::PASSIVE_TARGET;

const DECLINES: Act = Act::Refuse(Status::Declined);

/// Makes two lanes to memory that do not decline at first, the better one first. `character` changes both.
fn two(character: fn(Lane) -> Lane) -> Stage {
    let lane = |name, priority| character(Lane { priority, ..Lane::memory(name) });
    Stage::new(vec![Lane::messages("am"), lane("a", 9), lane("b", 1)])
}

fn late(lane: Lane) -> Lane {
    lane.late(3)
}

fn calls(world: &World, slot: Slot, lane: &str) -> Vec<Call> {
    let at = world.interface(0, lane);
    world.calls(slot).into_iter().filter(|call| call.interface == at).collect()
}

fn lens(world: &World, slot: Slot, lane: &str) -> Vec<usize> {
    calls(world, slot, lane).iter().map(|call| call.len).collect()
}

/// Posts a put or a get of `len` bytes.
fn post(
    stage: &Stage,
    slot: Slot,
    local: &Region,
    len: usize,
    key: &RemoteKey,
) -> Result<Outcome, PostError> {
    match slot {
        Slot::Put => stage.ab.put(local, 0..len, key, 0),
        _ => stage.ab.get(local, 0..len, key, 0),
    }
}

cases! {
    fn declined_operation_goes_to_next_lane_for_this_time_only() {
        for character in [late, Lane::synchronous] {
            for slot in [Slot::Put, Slot::Get] {
                let stage = two(character);
                stage.world.change("a", |lane| lane.declines_from = 16);
                let (target, key) = stage.target((0..64).collect());
                let local = stage.local((100..164).collect());
                for _ in 0..3 {
                    for len in [8, 40] {
                        assert_eq!(stage.ended(post(&stage, slot, &local, len, &key)), Ok(0));
                    }
                }
                assert_eq!(target.to_vec(0..40).unwrap(), local.to_vec(0..40).unwrap());
                // Each lane was asked once, and no operation was emulated by messages.
                assert_eq!(lens(stage.world, slot, "a"), [8, 40, 8, 40, 8, 40]);
                assert_eq!(lens(stage.world, slot, "b"), [40, 40, 40]);
                assert_eq!(stage.a.counters().emulated, 0);
                assert_eq!(&*key.path(), "fake:a/a");
                stage.assert_no_faults();
            }
        }
    }

    fn bytes_that_lie_anywhere_may_be_declined_too() {
        for character in [late, Lane::synchronous] {
            let stage = two(character);
            stage.world.change("a", |lane| lane.declines_from = 0);
            let (target, key) = stage.target(vec![0; 64]);
            assert_eq!(stage.ended(stage.ab.put_bytes(&[7; 20], &key, 4)), Ok(0));
            assert_eq!(target.to_vec(3..25).unwrap(), [vec![0], vec![7; 20], vec![0]].concat());
            assert_eq!(lens(stage.world, Slot::Put, "a"), [20]);
            assert_eq!(lens(stage.world, Slot::Put, "b"), [20]);
            stage.assert_no_faults();
        }
    }

    fn operation_declined_by_each_lane_once_goes_over_messages() {
        for character in [late, Lane::synchronous] {
            for slot in [Slot::Put, Slot::Get] {
                let stage = two(character);
                for lane in ["a", "b"] {
                    stage.world.change(lane, |lane| lane.declines_from = 0);
                }
                let (target, key) = stage.target((0..64).collect());
                let local = stage.local((100..164).collect());
                assert_eq!(stage.ended(post(&stage, slot, &local, 64, &key)), Ok(0));
                assert_eq!(target.to_vec(0..64).unwrap(), local.to_vec(0..64).unwrap());
                assert_eq!((lens(stage.world, slot, "a"), lens(stage.world, slot, "b")), (vec![64], vec![64]));
                assert!(stage.b.counters().emulated + stage.a.counters().emulated > 0);
                assert_eq!(stage.finish(stage.ab.flush().unwrap()), Ok(0));
                stage.assert_no_faults();
            }
        }
    }

    fn only_rest_of_split_transfer_declined_midway_goes_elsewhere() {
        for character in [late, Lane::synchronous] {
            for slot in [Slot::Put, Slot::Get] {
                let stage = Stage::new(vec![
                    Lane::messages("am"),
                    character(Lane { priority: 9, max_put: 100, max_get: 100, ..Lane::memory("a") }),
                    character(Lane { priority: 1, ..Lane::memory("b") }),
                ]);
                let bytes: Vec<u8> = (0..1000).map(|i| (i % 251) as u8).collect();
                let (target, key) = stage.target(bytes.clone());
                let local = stage.local(bytes.iter().rev().copied().collect());
                stage.world.rule(Rule { skip: 3, ..Rule::every(slot, DECLINES).on("a") });
                assert_eq!(stage.ended(post(&stage, slot, &local, 1000, &key)), Ok(0));
                assert_eq!(target.to_vec(0..1000).unwrap(), local.to_vec(0..1000).unwrap());
                assert_eq!(lens(stage.world, slot, "a"), [100; 4]);
                assert_eq!(lens(stage.world, slot, "b"), [700]);
                stage.world.forget_rules();
                stage.world.rule(Rule { skip: 2, ..Rule::every(Slot::Put, DECLINES).on("a") });
                assert_eq!(stage.ended(stage.ab.put_bytes(&[9; 500], &key, 250)), Ok(0));
                assert_eq!(target.to_vec(249..751).unwrap(), [&local.to_vec(249..250).unwrap()[..], &[9; 500], &local.to_vec(750..751).unwrap()].concat());
                stage.assert_no_faults();
            }
        }
    }

    /// The operation waits for space and is then declined.
    fn operation_that_waits_for_room_may_then_be_declined() {
        let stage = two(late);
        stage.world.rule(Rule { times: 3, ..Rule::every(Slot::Put, Act::Refuse(Status::Again)).on("a") });
        stage.world.rule(Rule::every(Slot::Put, DECLINES).on("a"));
        stage.world.rule(Rule { times: 3, ..Rule::every(Slot::Put, Act::Refuse(Status::Again)).on("b") });
        let (target, key) = stage.target(vec![0; 64]);
        let put = pending(stage.ab.put(&stage.local(vec![5; 8]), 0..8, &key, 0));
        assert_eq!(stage.end_of(&put), Some(Ok(0)));
        assert_eq!(target.to_vec(0..8).unwrap(), [5; 8]);
        assert_eq!(lens(stage.world, Slot::Put, "a").len(), 4);
        assert_eq!(lens(stage.world, Slot::Put, "b").len(), 4);
        stage.assert_no_faults();
    }

    fn a_fence_knows_nothing_of_a_lane_that_has_declined() {
        let stage = two(late);
        stage.world.change("a", |lane| lane.declines_from = 0);
        stage.world.rule(Rule::every(Slot::Put, Act::Hold).on("b"));
        let (target, key) = stage.target(vec![0; 64]);
        let first = pending(stage.ab.put_bytes(&[1; 8], &key, 0));
        stage.ab.fence().unwrap();
        assert_eq!(calls(stage.world, Slot::Fence, "b").len(), 1, "the fence is not the lane's own");
        assert_eq!(calls(stage.world, Slot::Fence, "a").len(), 0);
        stage.world.forget_rules();
        // This operation may use the better lane, and therefore has to wait for it.
        stage.world.change("a", |lane| lane.declines_from = usize::MAX);
        let second = pending(stage.ab.put_bytes(&[2; 8], &key, 0));
        stage.settle();
        assert_eq!(target.to_vec(0..8).unwrap(), [0; 8], "the second overtook the first");
        stage.world.release_held();
        assert_eq!((stage.end_of(&first), stage.end_of(&second)), (Some(Ok(0)), Some(Ok(0))));
        assert_eq!(target.to_vec(0..8).unwrap(), [2; 8]);
        stage.assert_no_faults();
    }

    fn operation_declined_behind_fence_does_not_overtake_earlier_ones() {
        for again in [0, 2] {
            let stage = two(late);
            let (target, key) = stage.target(vec![0; 64]);
            stage.world.rule(Rule::next(Slot::Put, Act::Hold).on("a"));
            let first = pending(stage.ab.put_bytes(&[1; 8], &key, 0));
            stage.ab.fence().unwrap();
            stage.world.rule(Rule { times: again, ..Rule::every(Slot::Put, Act::Refuse(Status::Again)).on("a") });
            stage.world.rule(Rule::every(Slot::Put, DECLINES).on("a"));
            let second = pending(stage.ab.put_bytes(&[2; 8], &key, 0));
            stage.settle();
            assert_eq!(target.to_vec(0..8).unwrap(), [0; 8], "the second overtook the first");
            stage.world.release_held();
            assert_eq!((stage.end_of(&first), stage.end_of(&second)), (Some(Ok(0)), Some(Ok(0))));
            assert_eq!(target.to_vec(0..8).unwrap(), [2; 8]);
            stage.assert_no_faults();
        }
    }

    /// The earlier operation has completed locally, so that only its lane tracks it.
    fn declined_operation_behind_fence_waits_for_locally_completed_ones() {
        for over_messages in [false, true] {
            // The bytes leave, and arrive when the target polls.
            let stage = two(|lane| Lane { caps: lane.caps & !PASSIVE_TARGET, ..lane });
            let (target, key) = stage.target(vec![0; 64]);
            let local = stage.local(vec![1; 8]);
            let first = stage.ab.put_with(&local, 0..8, &key, 0, Completion::Local);
            stage.world.change("a", |lane| lane.delay = 300);
            assert_eq!(stage.ended(first), Ok(0));
            assert_eq!(target.to_vec(0..8).unwrap(), [0; 8], "it is there already");
            stage.ab.fence().unwrap();
            stage.world.rule(Rule::next(Slot::Put, Act::Refuse(Status::Again)).on("a"));
            stage.world.rule(Rule::every(Slot::Put, DECLINES).on("a"));
            if over_messages {
                stage.world.rule(Rule::every(Slot::Put, DECLINES).on("b"));
            }
            assert_eq!(stage.ended(stage.ab.put_bytes(&[2; 8], &key, 0)), Ok(0));
            assert_eq!(stage.ended(stage.ab.flush()), Ok(0));
            stage.settle();
            assert_eq!(target.to_vec(0..8).unwrap(), [2; 8], "the second overtook the first");
            stage.assert_no_faults();
        }
    }

    fn rest_of_declined_transfer_also_leaves_ended_lane() {
        for why in [Status::Closed, Status::Unreachable] {
            let a = Lane { priority: 9, max_put: 100, ..Lane::memory("a") };
            let stage = Stage::new(vec![Lane::messages("am"), a, Lane::memory("b")]);
            let bytes: Vec<u8> = (0..1000).map(|i| (i % 251) as u8).collect();
            let (target, key) = stage.target(vec![0; 1000]);
            stage.world.rule(Rule { skip: 3, ..Rule::every(Slot::Put, DECLINES).on("a") });
            stage.world.rule(Rule::every(Slot::Put, Act::Refuse(why)).on("b"));
            let put = stage.ab.put(&stage.local(bytes.clone()), 0..1000, &key, 0);
            assert_eq!(stage.ended(put), Ok(0), "{why}");
            assert_eq!(target.to_vec(0..1000).unwrap(), bytes, "{why}");
            assert!(stage.ab.error().is_none(), "{why}");
            stage.assert_no_faults();
        }
    }

    fn transfer_declined_by_best_lane_goes_to_copying_lane() {
        const LONG: usize = 200 << 10;
        let a = Lane { priority: 9, declines_from: 1000, ..Lane::memory("a").late(3) };
        let lanes = vec![Lane::messages("am"), a, copying().on_other_provider()];
        let stage = Stage::with(lanes, &[("TIELINE_PROVIDERS", "fake,shm,other")]);
        let (target, key) = stage.target(vec![0; LONG]);
        assert!(stage.until(|| !key.is_settling()));
        assert_eq!(&*key.path(), "fake:a/a");
        let bytes: Vec<u8> = (0..LONG).map(|i| (i % 251) as u8).collect();
        let local = stage.at_a.register_with(bytes.clone(), Access::ALL).unwrap();
        assert_eq!(stage.ended(stage.ab.put(&local, 0..LONG, &key, 0)), Ok(0));
        assert!(target.to_vec(0..LONG).unwrap() == bytes);
        assert_eq!(lens(stage.world, Slot::Put, "a"), [LONG]);
        let copied = lens(stage.world, Slot::Put, "copy");
        assert!(copied.len() > 1, "nobody was asked to help: {copied:?}");
        assert_eq!(copied.iter().sum::<usize>(), LONG);
        stage.assert_no_faults();
    }

    fn a_share_that_its_rail_declines_goes_over_the_next() {
        const LONG: usize = 1 << 20;
        let lane = |name, priority| Lane { priority, module: "port", ..Lane::memory(name) }.late(2);
        for declining in ["a", "b"] {
            let stage = Stage::new(vec![Lane::messages("am"), lane("a", 9), lane("b", 1)]);
            stage.world.rule(Rule::every(Slot::Put, DECLINES).on(declining));
            let bytes: Vec<u8> = (0..LONG).map(|i| (i % 251) as u8).collect();
            let (target, key) = stage.target(vec![0; LONG]);
            let put = stage.ab.put(&stage.local(bytes.clone()), 0..LONG, &key, 0);
            assert_eq!(stage.ended(put), Ok(0));
            assert!(target.to_vec(0..LONG).unwrap() == bytes);
            let other = if declining == "a" { "b" } else { "a" };
            assert_eq!(lens(stage.world, Slot::Put, other).iter().sum::<usize>(), LONG);
            assert_eq!(lens(stage.world, Slot::Put, declining), [LONG / 2]);
            assert_eq!(stage.a.counters().emulated, 0);
            stage.assert_no_faults();
        }
    }

    fn a_module_that_declines_passes_the_self_test() {
        let world = World::new(1, vec![Lane::messages("am"), Lane::memory("rma").late(3)]);
        world.change("rma", |lane| lane.declines_from = 100);
        let why = crate::stage::context(world, &[("TIELINE_SELFTEST", "on")]).report().why();
        assert!(!why.contains("selftest"), "{why}");
        assert_eq!(lens(world, Slot::Put, "rma").len(), 2, "{why}");
        assert_eq!(world.faults(), Vec::<String>::new());
    }

    /// A module that carries only messages has no self-test and need not reach itself.
    fn a_module_without_operations_on_memory_is_not_tried() {
        let world = World::new(1, vec![Lane::messages("am"), Lane::memory("rma")]);
        let report = crate::stage::context(world, &[("TIELINE_SELFTEST", "on")]).report();
        assert!(!report.why().contains("selftest"), "{}", report.why());
        assert_eq!(world.calls(Slot::Connect).len(), 1, "that of the other one");
        assert_eq!(world.faults(), Vec::<String>::new());
    }
}
