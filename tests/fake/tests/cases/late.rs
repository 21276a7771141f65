//! Tests of puts that complete locally and fail later: which flush reports the failure.

use crate::cases;
use crate::progress_thread::{comes, is_done};
use crate::stage::{Stage, pending};
use tieline::{Completion, CompletionError, Endpoint, Outcome, Region, RemoteKey, Request, Status};
use tieline_fake::{Act, Call, Lane, Rule, Slot};
use tieline_plugin_api::caps;

const REFUSED: Act = Act::FailLater(Status::KeyRejected);

/// Returns a lane for messages, and two lanes to memory, the better one first.
fn two() -> Stage {
    let lane = |name, priority| Lane { priority, ..Lane::memory(name) };
    Stage::new(vec![Lane::messages("am"), lane("a", 9), lane("b", 1)])
}

/// Posts a put of `a` that has completed locally, and whose bytes are in flight.
#[track_caller]
fn put_locally(stage: &Stage, ab: &Endpoint, key: &RemoteKey) {
    let put = ab.put_with(&stage.local(vec![1; 8]), 0..8, key, 0, Completion::Local);
    assert_eq!(stage.ended(put), Ok(0), "its bytes were read");
}

fn status(ended: Option<Result<u64, CompletionError>>) -> Result<u64, Status> {
    ended.expect("it ends").map_err(|error| error.status())
}

#[track_caller]
fn flushed(stage: &Stage, ab: &Endpoint) -> Result<u64, Status> {
    stage.ended(ab.flush()).map_err(|error| error.status())
}

fn flushes(stage: &Stage) -> Vec<Call> {
    stage.world.calls(Slot::Flush).into_iter().filter(|call| !call.refused).collect()
}

fn held(stage: &Stage, key: &RemoteKey) -> Request {
    stage.world.rule(Rule::next(Slot::Put, Act::Hold));
    pending(stage.ab.put_bytes(&[7; 8], key, 8))
}

/// Makes two endpoints that share one connection to a peer's service worker, and a region of that peer.
fn sharing() -> (Stage, Endpoint, Region, [RemoteKey; 2]) {
    let memory = Lane::memory("rma");
    let memory = Lane { caps: memory.caps & !caps::PASSIVE_TARGET, ..memory }.over_circuits();
    let on = [("TIELINE_PROGRESS_THREAD", "on")];
    let stage = Stage::with(vec![Lane::messages("am"), memory, Lane::connector("mail")], &on);
    let (target, key) = stage.target(vec![0; 64]);
    let other = stage.a.connect(&stage.b.address().unwrap()).unwrap();
    let theirs = other.import_key(&target.remote_key().unwrap()).unwrap();
    for put in [stage.ab.put_bytes(&[1; 8], &key, 0), other.put_bytes(&[1; 8], &theirs, 0)] {
        assert!(is_done(&stage, put.unwrap()));
    }
    let is_native = |put: Result<Outcome, _>| {
        assert!(is_done(&stage, put.unwrap()));
        stage.world.calls(Slot::Put).len()
    };
    assert!(comes(|| {
        let _ = stage.turn();
        is_native(stage.ab.put_bytes(&[1; 8], &key, 0)) > 0
    }));
    let before = stage.world.calls(Slot::Put).len();
    assert!(comes(|| {
        let _ = stage.turn();
        is_native(other.put_bytes(&[1; 8], &theirs, 0)) > before
    }));
    (stage, other, target, [key, theirs])
}

fn end_of(stage: &Stage, outcome: Outcome) -> Result<u64, Status> {
    let request = match outcome {
        Outcome::Done(value) => return Ok(value),
        Outcome::Pending(request) => request,
    };
    let mut ended = None;
    assert!(comes(|| {
        let _ = stage.turn();
        ended = stage.a.test(&request);
        ended.is_some()
    }));
    status(ended)
}

cases! {
    fn failure_found_by_older_flush_is_reported_by_covering_younger_one() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma")]);
        let (_target, key) = stage.target(vec![0; 64]);
        let (gone, refused) = stage.target(vec![0; 64]);
        put_locally(&stage, &stage.ab, &key);
        let held = held(&stage, &key);
        let older = pending(stage.ab.flush());
        drop(gone);
        put_locally(&stage, &stage.ab, &refused);
        let younger = pending(stage.ab.flush());
        stage.world.release_held();
        assert_eq!(status(stage.end_of(&held)), Ok(0));
        // The older flush may also report the failure: both wait for the same flush of the lane.
        assert_eq!(status(stage.end_of(&older)), Err(Status::KeyRejected));
        assert_eq!(status(stage.end_of(&younger)), Err(Status::KeyRejected));
        assert_eq!(flushed(&stage, &stage.ab), Ok(0), "it is told");
        stage.assert_no_faults();
    }

    fn lane_death_during_older_flush_is_reported_by_younger_one_too() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma").over_circuits()]);
        let (_target, key) = stage.target(vec![0; 64]);
        put_locally(&stage, &stage.ab, &key);
        let held = held(&stage, &key);
        let older = pending(stage.ab.flush());
        put_locally(&stage, &stage.ab, &key);
        let younger = pending(stage.ab.flush());
        stage.world.release_held();
        stage.world.rule(Rule::every(Slot::Flush, Act::Hold));
        assert_eq!(status(stage.end_of(&held)), Ok(0));
        assert!(stage.until(|| !flushes(&stage).is_empty()));
        let at = |worker| stage.world.interface(worker, "rma");
        stage.world.break_endpoints(at(0), at(1), Status::Io, "the cable is cut");
        for flush in [&older, &younger] {
            assert_eq!(status(stage.end_of(flush)), Err(Status::Io));
        }
        assert!(stage.ab.error().is_none(), "messages go elsewhere");
        assert_eq!(flushed(&stage, &stage.ab), Ok(0), "it is told");
    }

    fn lane_that_refuses_flush_fails_every_flush_that_covers_it() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma")]);
        let (_target, key) = stage.target(vec![0; 64]);
        put_locally(&stage, &stage.ab, &key);
        let held = held(&stage, &key);
        let older = pending(stage.ab.flush());
        put_locally(&stage, &stage.ab, &key);
        let younger = pending(stage.ab.flush());
        stage.world.rule(Rule::next(Slot::Flush, Act::Refuse(Status::NoMemory)));
        stage.world.release_held();
        assert_eq!(status(stage.end_of(&held)), Ok(0));
        for flush in [&older, &younger] {
            assert_eq!(status(stage.end_of(flush)), Err(Status::NoMemory));
        }
        assert_eq!(flushed(&stage, &stage.ab), Ok(0), "it is told");
        stage.assert_no_faults();
    }

    fn failure_found_by_put_leaving_its_lane_is_reported_by_open_flush() {
        for report in [0, 40] {
            let stage = two();
            let (_target, key) = stage.target(vec![0; 64]);
            stage.world.rule(Rule::next(Slot::Put, REFUSED).on("a"));
            put_locally(&stage, &stage.ab, &key);
            stage.world.change("a", |lane| lane.report = report);
            stage.ab.fence().unwrap();
            stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::Again)).on("a"));
            let leaves = pending(stage.ab.put_bytes(&[2; 8], &key, 0));
            let flush = pending(stage.ab.flush());
            stage.world.forget_rules();
            stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::Declined)).on("a"));
            assert_eq!(status(stage.end_of(&leaves)), Ok(0), "it is not its failure");
            assert_eq!(status(stage.end_of(&flush)), Err(Status::KeyRejected));
            assert_eq!(flushed(&stage, &stage.ab), Ok(0), "it is told");
            stage.assert_no_faults();
        }
    }

    fn failure_found_by_put_leaving_its_lane_is_reported_by_next_flush() {
        let stage = two();
        let (_target, key) = stage.target(vec![0; 64]);
        stage.world.rule(Rule::next(Slot::Put, REFUSED).on("a"));
        put_locally(&stage, &stage.ab, &key);
        stage.ab.fence().unwrap();
        stage.world.rule(Rule::next(Slot::Put, Act::Refuse(Status::Again)).on("a"));
        stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::Declined)).on("a"));
        assert_eq!(stage.ended(stage.ab.put_bytes(&[2; 8], &key, 0)), Ok(0));
        assert_eq!(flushed(&stage, &stage.ab), Err(Status::KeyRejected));
        assert_eq!(flushed(&stage, &stage.ab), Ok(0), "it is told");
        stage.assert_no_faults();
    }

    fn put_leaving_lane_of_fence_waits_for_running_flush_of_that_lane() {
        let stage = two();
        let (target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 8]);
        stage.world.change("a", |lane| lane.delay = 400);
        let first = stage.ab.put_with(&local, 0..8, &key, 0, Completion::Local);
        assert_eq!(stage.ended(first), Ok(0));
        stage.world.rule(Rule::next(Slot::Get, Act::Hold).on("a"));
        let held = pending(stage.ab.get(&stage.local(vec![0; 8]), 0..8, &key, 16));
        let flush = pending(stage.ab.flush());
        stage.ab.fence().unwrap();
        stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::Again)).on("a"));
        let leaves = pending(stage.ab.put_bytes(&[2; 8], &key, 0));
        stage.world.rule(Rule::next(Slot::Flush, Act::Hold).on("a"));
        stage.world.release_held();
        assert_eq!(status(stage.end_of(&held)), Ok(0));
        assert!(stage.until(|| !flushes(&stage).is_empty()));
        stage.world.forget_rules();
        stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::Declined)).on("a"));
        stage.settle();
        assert!(stage.a.test(&leaves).is_none(), "nobody knows whether the first one is there");
        stage.world.release_held();
        assert_eq!((status(stage.end_of(&flush)), status(stage.end_of(&leaves))), (Ok(0), Ok(0)));
        stage.settle();
        assert_eq!(target.to_vec(0..8).unwrap(), [2; 8], "the second overtook the first");
        stage.assert_no_faults();
    }

    fn failure_found_by_notification_is_reported_by_next_flush_too() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma")]);
        let (_target, key) = stage.target(vec![0; 64]);
        stage.world.rule(Rule::next(Slot::Put, REFUSED));
        put_locally(&stage, &stage.ab, &key);
        let told = stage.ab.put_notify(&stage.local(vec![1; 8]), 0..0, &key, 0, 1);
        assert_eq!(stage.ended(told).map_err(|error| error.status()), Err(Status::KeyRejected));
        assert_eq!(flushed(&stage, &stage.ab), Err(Status::KeyRejected));
        assert_eq!(flushed(&stage, &stage.ab), Ok(0), "it is told once");
        stage.assert_no_faults();
    }

    fn failure_found_by_other_endpoint_is_reported_by_puts_own_flush() {
        for open in [false, true] {
            let (stage, other, _target, [key, theirs]) = sharing();
            let local = stage.local(vec![1; 8]);
            stage.world.rule(Rule::next(Slot::Put, REFUSED));
            let put = stage.ab.put_with(&local, 0..8, &key, 0, Completion::Local).unwrap();
            assert_eq!(end_of(&stage, put), Ok(0), "its bytes were read");
            let put = other.put_with(&local, 0..8, &theirs, 8, Completion::Local).unwrap();
            assert_eq!(end_of(&stage, put), Ok(0), "its bytes were read");
            stage.world.rule(Rule::next(Slot::Put, Act::Hold));
            let held = open.then(|| pending(stage.ab.put_bytes(&[1; 8], &key, 8)));
            let own = open.then(|| pending(stage.ab.flush()));
            if open {
                // The flush waits for all operations posted earlier on that connection, by either endpoint.
                let asks = pending(other.flush());
                assert!(comes(|| { let _ = stage.turn(); !flushes(&stage).is_empty() }));
                stage.world.release_held();
                assert_eq!(end_of(&stage, Outcome::Pending(asks)), Err(Status::KeyRejected));
            } else {
                assert_eq!(end_of(&stage, other.flush().unwrap()), Err(Status::KeyRejected));
            }
            assert!(held.is_none_or(|held| end_of(&stage, Outcome::Pending(held)) == Ok(0)));
            let own = own.map_or_else(|| stage.ab.flush().unwrap(), Outcome::Pending);
            assert_eq!(end_of(&stage, own), Err(Status::KeyRejected), "{open}");
            for endpoint in [&stage.ab, &other] {
                assert_eq!(end_of(&stage, endpoint.flush().unwrap()), Ok(0), "it is told once");
            }
            stage.assert_no_faults();
        }
    }

    fn failure_of_dropped_endpoints_put_is_not_reported_to_successor() {
        for no_room in [0, 1, 3] {
            let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma").over_circuits()]);
            let (target, _) = stage.target(vec![0; 64]);
            let connect = || {
                let ab = stage.a.connect(&stage.b.address().unwrap()).unwrap();
                let key = ab.import_key(&target.remote_key().unwrap()).unwrap();
                assert_eq!(stage.ended(ab.put_bytes(&[1; 8], &key, 0)), Ok(0));
                (ab, key)
            };
            let (dropped, key) = connect();
            stage.world.rule(Rule::next(Slot::Put, REFUSED));
            put_locally(&stage, &dropped, &key);
            let refuse = Rule::every(Slot::Flush, Act::Refuse(Status::Again));
            stage.world.rule(Rule { times: no_room, ..refuse });
            drop((key, dropped));
            let connections = stage.a.counters().connections;
            let (ab, key) = connect();
            assert_eq!(stage.a.counters().connections, connections, "it takes over the other's");
            put_locally(&stage, &ab, &key);
            assert_eq!(flushed(&stage, &ab), Ok(0), "{no_room}");
            // The endpoint reports the failures of its own puts.
            stage.world.rule(Rule::next(Slot::Put, REFUSED));
            put_locally(&stage, &ab, &key);
            assert_eq!(flushed(&stage, &ab), Err(Status::KeyRejected), "{no_room}");
            stage.assert_no_faults();
        }
    }
}
