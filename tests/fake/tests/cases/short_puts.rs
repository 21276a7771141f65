//! Tests of short puts: the provider copies their bytes within the call.

use crate::cases;
use crate::stage::{Stage, pending, posts_until_again};
use std::time::Duration;
use tieline::{Access, Close, Completion, Error, PostError, Status};
use tieline_fake::{Act, Lane, Rule, Slot};
use tieline_plugin_api::op_flags::REMOTE_COMPLETION;

const MOST: usize = 32;

fn lanes() -> Vec<Lane> {
    vec![Lane::messages("am"), Lane { max_short_put: MOST, ..Lane::memory("rma").late(5) }]
}

cases! {
    /// A longer put is not copied within the call, so its memory has to stay valid.
    fn bytes_of_a_short_put_are_the_callers_again_when_the_call_returns() {
        let stage = Stage::new(lanes());
        let (target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 64]);
        let put = pending(stage.ab.put(&local, 0..MOST, &key, 0));
        local.write(0, &[2; MOST]).unwrap();
        let mut bytes = [3; MOST];
        let copied = pending(stage.ab.put_bytes(&bytes, &key, 32));
        bytes.fill(4);
        assert_eq!((stage.end_of(&put), stage.end_of(&copied)), (Some(Ok(0)), Some(Ok(0))));
        assert_eq!(target.to_vec(0..64).unwrap(), [[1; MOST], [3; MOST]].concat());
        drop((put, copied));
        for (len, closes) in [(MOST, true), (MOST + 1, false)] {
            let local = stage.local(vec![1; 64]);
            stage.world.hold(Slot::Put);
            let put = pending(stage.ab.put(&local, 0..len, &key, 0));
            let closed = stage.a.close_region(local, Duration::from_millis(20));
            assert_eq!(closed.is_ok(), closes, "a put of {len} bytes");
            stage.world.forget_rules();
            stage.world.release_held();
            assert_eq!(stage.end_of(&put), Some(Ok(0)));
        }
        stage.assert_no_faults();
    }

    fn short_put_completes_locally_inline_and_flush_waits_for_it() {
        let stage = Stage::new(lanes());
        let (target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 64]);
        for (len, over) in [(1, true), (MOST, true), (MOST + 1, false)] {
            let put = stage.ab.put_with(&local, 0..len, &key, 0, Completion::Local).unwrap();
            assert_eq!(put.is_done(), over, "{len} bytes");
            let _ = stage.finish(put).unwrap();
            assert_eq!(stage.ended(stage.ab.flush()), Ok(0));
            assert_eq!(target.to_vec(0..len).unwrap(), vec![1; len], "a flush says that it is there");
            target.write(0, &[0; 64]).unwrap();
        }
        let puts = stage.world.calls(Slot::Put);
        assert!(puts.iter().all(|put| put.flags & REMOTE_COMPLETION == 0));
        assert_eq!(puts[..2].iter().map(|put| put.cookie).collect::<Vec<_>>(), [0, 0]);
        assert_eq!(stage.a.pending(), 0);
        stage.assert_no_faults();
    }

    /// The core refuses the put without calling the module.
    fn a_key_without_the_right_to_write_refuses_them_however_they_complete() {
        let stage = Stage::new(lanes());
        let region = stage.at_b.register_with(vec![0; 64], Access::READ).unwrap();
        let key = stage.ab.import_key(&region.remote_key().unwrap()).unwrap();
        let (local, refused) = (stage.local(vec![1; 64]), Status::KeyRejected);
        for completion in [Completion::Local, Completion::Remote] {
            let put = stage.ab.put_with(&local, 0..8, &key, 0, completion);
            assert_eq!(put.unwrap_err().status(), refused);
        }
        assert_eq!(stage.ab.put_bytes(&[1; 8], &key, 0).unwrap_err().status(), refused);
        assert!(stage.world.calls(Slot::Put).is_empty());
        assert_eq!(stage.ended(stage.ab.get(&local, 0..8, &key, 0)), Ok(0));
        stage.assert_no_faults();
    }

    fn failure_of_completed_short_put_is_reported_by_next_flush_once() {
        let stage = Stage::new(lanes());
        let (_target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 8]);
        stage.world.rule(Rule::next(Slot::Put, Act::FailLater(Status::KeyRejected)));
        assert!(stage.ab.put_with(&local, 0..8, &key, 0, Completion::Local).unwrap().is_done());
        let told = stage.ended(stage.ab.flush()).map_err(|error| error.status());
        assert_eq!(told, Err(Status::KeyRejected));
        assert_eq!(stage.ended(stage.ab.flush()), Ok(0));
        stage.assert_no_faults();
    }

    fn an_endpoint_has_no_more_of_them_open_than_it_may() {
        let stage = Stage::with(lanes(), &[("TIELINE_QUEUE_BYTES", "16k")]);
        let (_target, key) = stage.target(vec![0; 64]);
        stage.world.hold(Slot::Put);
        let (taken, requests) = posts_until_again(1000, || stage.ab.put_bytes(&[1; 8], &key, 0));
        assert_eq!((taken, stage.a.pending()), (Some(256), 256));
        assert!(matches!(stage.ab.put_bytes(&[1; 8], &key, 0), Err(PostError::Retry(_))));
        stage.world.forget_rules();
        stage.world.release_held();
        for request in &requests {
            assert_eq!(stage.end_of(request), Some(Ok(0)));
        }
        assert_eq!(stage.a.pending(), 0);
        stage.assert_no_faults();
    }

    fn short_put_that_cannot_be_inline_behaves_as_long_one() {
        let stage = Stage::new(lanes());
        let (target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![7; 64]);
        stage.world.rule(Rule { times: 3, ..Rule::every(Slot::Put, Act::Refuse(Status::Again)) });
        let refused = pending(stage.ab.put_with(&local, 0..8, &key, 0, Completion::Local));
        assert_eq!(stage.end_of(&refused), Some(Ok(0)));
        stage.world.forget_rules();
        let beyond = stage.ab.put_bytes(&[1; 8], &key, 60).unwrap_err();
        assert_eq!(Error::from(beyond).status(), Status::OutOfRange);
        let beyond = stage.ab.put_bytes(&[1; 8], &key, u64::MAX - 3).unwrap_err();
        assert_eq!(Error::from(beyond).status(), Status::OutOfRange);
        for word in 1..100u8 {
            let _ = stage.ab.put_with(&local, 0..8, &key, 8, Completion::Local).unwrap();
            stage.ab.fence().unwrap();
            drop(stage.ab.put_bytes(&[word; 8], &key, 8).unwrap());
            stage.ab.fence().unwrap();
        }
        assert_eq!(stage.ended(stage.ab.flush()), Ok(0));
        assert_eq!(target.to_vec(0..16).unwrap(), [[7; 8], [99; 8]].concat());
        stage.assert_no_faults();
    }

    fn open_short_puts_end_with_their_endpoint() {
        let stage = Stage::new(lanes());
        let (_target, key) = stage.target(vec![0; 64]);
        stage.world.hold(Slot::Put);
        let puts = [1, 2].map(|word| pending(stage.ab.put_bytes(&[word; 8], &key, 0)));
        let from = stage.world.interface(0, "am");
        let to = stage.world.interface(1, "am");
        stage.world.break_endpoints(from, to, Status::TimedOut, "it went");
        for put in &puts {
            let ended = stage.end_of(put).expect("an end with the endpoint");
            assert!(ended.is_err(), "{ended:?}");
        }
        assert_eq!(stage.a.pending(), 0);
    }

    fn open_short_puts_can_be_abandoned_and_late_completion_is_ignored() {
        let stage = Stage::new(lanes());
        let (_target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 8]);
        stage.world.hold(Slot::Put);
        let put = pending(stage.ab.put(&local, 0..8, &key, 0));
        let dropped = pending(stage.ab.put_bytes(&[2; 8], &key, 8));
        assert!(stage.ab.put_with(&local, 0..8, &key, 16, Completion::Local).unwrap().is_done());
        drop((dropped, key));
        assert!(stage.ab.close(Close::Cancel).unwrap().is_done());
        let ended = stage.end_of(&put).expect("it ends with its endpoint");
        assert_eq!(ended.map_err(|error| Error::from(error).status()), Err(Status::Canceled));
        assert!(stage.a.close_region(local, Duration::from_millis(20)).is_ok());
        stage.world.forget_rules();
        stage.world.release_held();
        stage.settle();
        assert_eq!((stage.a.pending(), stage.a.counters().malformed), (0, 0));
        stage.assert_no_faults();
    }

    fn failure_of_unasked_short_put_is_reported_by_next_flush() {
        let stage = Stage::new(lanes());
        let (_target, key) = stage.target(vec![0; 64]);
        for before in [true, false] {
            stage.world.rule(Rule::next(Slot::Put, Act::FailLater(Status::KeyRejected)));
            let put = pending(stage.ab.put_bytes(&[1; 8], &key, 0));
            if !before {
                stage.settle();
            }
            drop(put);
            let told = stage.ended(stage.ab.flush()).map_err(|error| error.status());
            assert_eq!(told, Err(Status::KeyRejected), "dropped before it ended: {before}");
            assert_eq!(stage.ended(stage.ab.flush()), Ok(0));
        }
        stage.assert_no_faults();
    }
    /// The connection is lost before a flush. Messages and later operations use another lane.
    fn short_put_lost_after_completion_is_reported_by_next_flush() {
        for held in [true, false] {
            let rma = Lane { max_short_put: MOST, ..Lane::memory("rma").over_circuits() };
            let stage = Stage::new(vec![Lane::messages("am"), rma]);
            let (target, key) = stage.target(vec![0; 64]);
            let local = stage.local(vec![1; 8]);
            assert_eq!(stage.ended(stage.ab.put(&local, 0..8, &key, 0)), Ok(0));
            if held {
                stage.world.hold(Slot::Put);
            }
            assert!(stage.ab.put_with(&local, 0..8, &key, 8, Completion::Local).unwrap().is_done());
            let at = |worker| stage.world.interface(worker, "rma");
            stage.world.break_endpoints(at(0), at(1), Status::Io, "the cable is cut");
            stage.settle();
            assert!(stage.ab.error().is_none(), "messages go elsewhere");
            let told = stage.ended(stage.ab.flush()).map_err(|error| error.status());
            assert_eq!(told, Err(Status::Io));
            let put = stage.ab.put_with(&local, 0..8, &key, 16, Completion::Local);
            assert_eq!((stage.ended(put), stage.ended(stage.ab.flush())), (Ok(0), Ok(0)));
            assert_eq!(target.to_vec(16..24).unwrap(), [1; 8], "by messages");
            stage.assert_no_faults();
        }
    }

    /// The test covers a fence within one lane, and a fence across two lanes: an operation on the other lane waits for a flush of
    /// the first.
    fn short_puts_do_not_overtake_fence_on_another_lane() {
        for keeps in [true, false] {
            let lane = |name, priority| {
                Lane { priority, max_short_put: MOST, ..Lane::memory(name).late(40) }
            };
            let stage = Stage::new(vec![Lane::messages("am"), lane("first", 9), lane("second", 1)]);
            let (target, key) = stage.target(vec![0; 64]);
            let local = stage.local(vec![1; 8]);
            if !keeps {
                stage.world.rule(Rule::every(Slot::Fence, Act::Refuse(Status::Unsupported)));
            }
            for round in 1..20u8 {
                assert!(stage.ab.put_with(&local, 0..8, &key, 0, Completion::Local).is_ok());
                stage.ab.fence().unwrap();
                stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::Declined)).on("first"));
                drop(stage.ab.put_bytes(&[round; 8], &key, 0).unwrap());
                assert_eq!(stage.ended(stage.ab.flush()), Ok(0));
                stage.world.forget_rules();
                if !keeps {
                    stage.world.rule(Rule::every(Slot::Fence, Act::Refuse(Status::Unsupported)));
                }
                assert_eq!(target.to_vec(0..8).unwrap(), [round; 8]);
            }
            stage.assert_no_faults();
        }
    }

    fn short_puts_are_reported_like_other_operations() {
        let stage = Stage::new(lanes());
        let (_target, key) = stage.target(vec![0; 64]);
        let counter = stage.a.completion_counter().unwrap();
        for (nth, early) in [true, false].into_iter().enumerate() {
            let post = || stage.ab.put_bytes(&[1; 8], &key, 0).unwrap();
            let (tracked, counted) = (post(), post());
            if !early {
                stage.settle();
            }
            stage.a.track(&tracked, 17).unwrap();
            stage.a.count(&counted, &counter).unwrap();
            drop((tracked, counted));
            stage.settle();
            let mut told = Vec::new();
            assert_eq!(stage.a.take_completed(9, |word, result| told.push((word, result))), 1);
            assert_eq!(told, [(17, Ok(0))]);
            assert_eq!((counter.done(), counter.pending()), (nth as u64 + 1, 0));
        }
        assert_eq!(stage.a.pending(), 0);
        stage.assert_no_faults();
    }
    fn lane_that_declines_or_has_no_room_is_not_retried_early() {
        let lane = |name, priority| {
            Lane { priority, max_short_put: MOST, ..Lane::memory(name) }
        };
        let stage = Stage::new(vec![Lane::messages("am"), lane("first", 9), lane("second", 1)]);
        let (target, key) = stage.target(vec![0; 64]);
        stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::Declined)).on("first"));
        assert_eq!(stage.ended(stage.ab.put_bytes(&[1; 8], &key, 0)), Ok(0));
        assert_eq!(stage.world.calls(Slot::Put).len(), 2, "each once");
        stage.world.forget_rules();
        stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::Again)).on("first"));
        let waits = pending(stage.ab.put_bytes(&[2; 8], &key, 0));
        assert_eq!(stage.world.calls(Slot::Put).len(), 4, "as it is posted, and from the queue");
        stage.world.forget_rules();
        assert_eq!(stage.end_of(&waits), Some(Ok(0)));
        assert_eq!(target.to_vec(0..8).unwrap(), [2; 8]);
        stage.assert_no_faults();
    }
    fn a_worse_lane_that_comes_late_takes_over_however_puts_went_before() {
        for (short, status) in [
            (MOST, Status::Unreachable),
            (MOST, Status::PeerFailed),
            (0, Status::Unreachable),
            (0, Status::PeerFailed),
            (0, Status::Io),
        ] {
            let whole = Lane { priority: 9, max_short_put: short, ..Lane::whole("first") };
            let stage = Stage::new(vec![whole, Lane::memory("late").on_other_provider()]);
            let busy = Rule::every(Slot::ImportKey, Act::Refuse(Status::Again));
            stage.world.rule(Rule { times: 2, ..busy }.on("late"));
            let (target, key) = stage.target(vec![0; 64]);
            let local = stage.local(vec![7; 64]);
            for _ in 0..20 {
                assert_eq!(stage.ended(stage.ab.put(&local, 0..8, &key, 0)), Ok(0));
            }
            stage.world.rule(Rule::every(Slot::Put, Act::Refuse(status)).on("first"));
            assert_eq!(stage.ended(stage.ab.put(&local, 32..40, &key, 32)), Ok(0), "{status}");
            assert_eq!(target.to_vec(32..40).unwrap(), [7; 8]);
            assert_eq!(key.path(), "other:late/late");
            assert_eq!(stage.ab.error(), None);
        }
    }
}
