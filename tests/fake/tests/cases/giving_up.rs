//! Tests of operations that are cancelled, or whose outcome is unknown.

use crate::cases;
use crate::stage::{Stage, pending};
use tieline::{Access, Completion, CompletionError, PostError, Request, Status};
use tieline_fake::{Act, Lane, Rule, Slot};
use tieline_plugin_api::caps::CANCEL;

#[track_caller]
fn canceled_now(stage: &Stage, request: &Request) {
    let ended = stage.a.test(request).expect("it has ended").unwrap_err();
    assert!(matches!(ended, CompletionError::Canceled(_)), "{ended:?}");
    assert_eq!(ended.status(), Status::Canceled);
}

#[track_caller]
fn goes_on(stage: &Stage, request: &Request, why: &str) {
    let error = stage.a.cancel(request).unwrap_err();
    assert!(matches!(error, PostError::Correct(_)));
    assert_eq!(error.status(), Status::Unsupported);
    assert!(error.to_string().contains(why), "{error}");
}

cases! {
    fn canceled_queued_operation_is_removed_without_affecting_others() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let (target, key) = stage.target(vec![0; 64]);
        let (local, seen) = (stage.local(vec![7; 64]), stage.log_at_b(5));
        let refuse = |slot| stage.world.rule(Rule::every(slot, Act::Refuse(Status::Again)));
        [Slot::Short, Slot::Packed, Slot::Put, Slot::Get, Slot::Atomic].into_iter().for_each(refuse);
        let posts = [
            pending(stage.ab.send(5, 0, b"first")),
            pending(stage.ab.send_regions(5, 1, &[(&local, 0..64)])),
            pending(stage.ab.send(5, 2, b"third")),
            pending(stage.ab.put(&local, 0..8, &key, 0)),
            pending(stage.ab.get(&local, 0..8, &key, 0)),
            pending(stage.ab.fetch_add(&key, 0, 1)),
            pending(stage.ab.put_bytes(&[9; 8], &key, 8)),
        ];
        for at in [0, 1, 3, 4, 5] {
            stage.a.cancel(&posts[at]).unwrap();
            canceled_now(&stage, &posts[at]);
            stage.a.cancel(&posts[at]).unwrap();
        }
        local.close().map_err(|not| not.error).expect("nothing has it any more");
        stage.world.forget_rules();
        for at in [2, 6] {
            assert_eq!(stage.end_of(&posts[at]), Some(Ok(0)));
        }
        assert!(stage.until(|| *seen.borrow() == [2]));
        assert_eq!(target.to_vec(0..16).unwrap(), [[0; 8], [9; 8]].concat());
        assert_eq!(stage.ended(stage.ab.flush()), Ok(0), "no flush tells of what was taken back");
        stage.assert_no_faults();
    }

    fn flush_covering_canceled_operation_succeeds() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let (_target, key) = stage.target(vec![0; 64]);
        stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::Again)));
        let put = pending(stage.ab.put_bytes(&[1; 8], &key, 0));
        let flush = pending(stage.ab.flush());
        stage.a.cancel(&put).unwrap();
        drop(put);
        assert_eq!(stage.end_of(&flush), Some(Ok(0)));
        assert_eq!(stage.ended(stage.ab.flush()), Ok(0));
    }

    fn emulated_operation_is_cancelable_until_its_first_message() {
        let stage = Stage::new(vec![Lane::messages("talk")]);
        let region = stage.at_b.register_with(vec![3; 64], Access::ALL).unwrap();
        let key = stage.ab.import_key(&region.remote_key().unwrap()).unwrap();
        let local = stage.local(vec![7; 64]);
        let refuse = |slot| stage.world.rule(Rule::every(slot, Act::Refuse(Status::Again)));
        [Slot::Short, Slot::Packed].into_iter().for_each(refuse);
        let posts = [
            pending(stage.ab.put(&local, 0..8, &key, 0)),
            pending(stage.ab.put_with(&local, 0..8, &key, 0, Completion::Local)),
            pending(stage.ab.get(&local, 0..8, &key, 8)),
            pending(stage.ab.fetch_add(&key, 0, 1)),
            pending(stage.ab.flush_messages()),
        ];
        for request in &posts {
            stage.a.cancel(request).unwrap();
            canceled_now(&stage, request);
        }
        assert_eq!(stage.a.pending(), 0);
        stage.world.forget_rules();
        stage.settle();
        let asked = pending(stage.ab.get(&local, 0..8, &key, 8));
        goes_on(&stage, &asked, "with the peer");
        assert_eq!(stage.end_of(&asked), Some(Ok(0)));
        assert_eq!((region.to_vec(0..8).unwrap(), local.to_vec(0..8).unwrap()), (vec![3; 8], vec![3; 8]));
    }

    fn a_provider_that_can_is_asked_to_give_an_operation_back() {
        let stage = Stage::new(vec![Lane::whole("all").with(CANCEL)]);
        let (target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![7; 64]);
        stage.world.hold(Slot::Put);
        let put = pending(stage.ab.put(&local, 0..8, &key, 0));
        let flush = pending(stage.ab.flush());
        stage.a.cancel(&put).unwrap();
        assert!(stage.a.test(&put).is_none(), "the provider says so, in a poll");
        assert_eq!(stage.end_of(&put).unwrap().unwrap_err().status(), Status::Canceled);
        assert_eq!(stage.end_of(&flush), Some(Ok(0)));
        assert_eq!(target.to_vec(0..8).unwrap(), [0; 8]);
        stage.world.forget_rules();
        let carried_out = pending(stage.ab.put(&local, 0..8, &key, 0));
        assert_eq!(stage.end_of(&carried_out), Some(Ok(0)));
        stage.a.cancel(&carried_out).unwrap();
        assert_eq!(stage.world.calls(Slot::Cancel).len(), 1, "what has ended nobody is asked for");
        stage.assert_no_faults();
    }

    fn cancel_names_lane_without_cancel_and_does_not_call_it() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let (_target, key) = stage.target(vec![0; 64]);
        stage.world.hold(Slot::Put);
        let put = pending(stage.ab.put_bytes(&[1; 8], &key, 0));
        goes_on(&stage, &put, "fake:all/all has it");
        assert!(stage.world.calls(Slot::Cancel).is_empty());
        stage.world.release_held();
        assert_eq!(stage.end_of(&put), Some(Ok(0)));
        assert!(stage.b.cancel(&put).is_err(), "another worker's");
    }

    fn partly_executed_operation_cannot_be_canceled() {
        let rail = |name| Lane { module: "rail", ..Lane::memory(name) };
        let stage = Stage::new(vec![Lane::messages("talk"), rail("one"), rail("two")]);
        const LEN: usize = 512 << 10;
        let (target, key) = stage.target(vec![0; LEN]);
        let local = stage.local(vec![7; LEN]);
        let refuse = Rule::every(Slot::Put, Act::Refuse(Status::Again));
        stage.world.rule(refuse);
        let none_has = pending(stage.ab.put(&local, 0..LEN, &key, 0));
        goes_on(&stage, &none_has, "several lanes");
        let told = pending(stage.ab.put_notify(&local, 0..8, &key, 0, 1));
        assert!(stage.a.cancel(&told).is_err(), "what tells of it would stand behind it");
        stage.world.forget_rules();
        assert_eq!((stage.end_of(&none_has), stage.end_of(&told)), (Some(Ok(0)), Some(Ok(0))));
        stage.world.rule(refuse.on("two"));
        let one_has = pending(stage.ab.put(&local, 0..LEN, &key, 0));
        stage.settle();
        goes_on(&stage, &one_has, "several lanes");
        stage.world.forget_rules();
        assert_eq!(stage.end_of(&one_has), Some(Ok(0)));
        assert_eq!(target.to_vec(0..LEN).unwrap(), vec![7; LEN]);
        stage.assert_no_faults();
    }

    fn operation_queued_for_synchronous_lane_can_be_canceled() {
        let lanes = |at_once: fn(Lane) -> Lane| {
            let lane = |name, priority| at_once(Lane { priority, max_put: 16, ..Lane::memory(name) });
            vec![Lane::messages("talk"), lane("a", 9), lane("b", 1)]
        };
        for (declined, at_once) in [(false, true), (true, true), (true, false)] {
            let stage = Stage::new(lanes(if at_once { Lane::synchronous } else { |lane| lane }));
            let (target, key) = stage.target(vec![0; 64]);
            let local = stage.local(vec![7; 64]);
            let refuse = |slot| {
                stage.world.rule(Rule::every(slot, Act::Refuse(Status::Again)).on("b"));
                let says = if declined { Status::Declined } else { Status::Again };
                stage.world.rule(Rule::every(slot, Act::Refuse(says)).on("a"));
            };
            [Slot::Put, Slot::Get].into_iter().for_each(refuse);
            let posts =
                [pending(stage.ab.put(&local, 0..8, &key, 0)), pending(stage.ab.get(&local, 0..8, &key, 0))];
            stage.settle();
            for post in &posts {
                stage.a.cancel(post).unwrap();
                canceled_now(&stage, post);
            }
            assert_eq!(stage.ended(stage.ab.flush()), Ok(0), "nothing is left");
            stage.world.forget_rules();
            stage.settle();
            assert_eq!((target.to_vec(0..8).unwrap(), local.to_vec(0..8).unwrap()), (vec![0; 8], vec![7; 8]));
            stage.assert_no_faults();
        }
    }

    /// The put is an operation of the endpoint to the peer's service worker, and waits in `a`.
    fn operation_held_by_fence_from_service_worker_can_be_canceled() {
        for thread in ["off", "on"] {
            let on = [("TIELINE_PROGRESS_THREAD", thread)];
            let stage = Stage::with(vec![Lane::messages("am"), Lane::memory("rma")], &on);
            let (target, key) = stage.target(vec![0; 64]);
            let refused = Rule::next(Slot::ImportKey, Act::Refuse(Status::KeyRejected));
            stage.world.rule(refused.on("rma"));
            let by_messages = stage.ab.import_key(&target.remote_key().unwrap()).unwrap();
            let local = stage.local(vec![7; 64]);
            stage.world.rule(Rule::every(Slot::Put, Act::Hold).on("rma"));
            let put = pending(stage.ab.put(&local, 0..8, &key, 0));
            stage.ab.fence().unwrap();
            let behind = pending(stage.ab.put(&local, 0..8, &by_messages, 8));
            stage.settle();
            stage.a.cancel(&behind).unwrap();
            canceled_now(&stage, &behind);
            stage.world.forget_rules();
            stage.world.release_held();
            assert_eq!((stage.end_of(&put), stage.ended(stage.ab.flush())), (Some(Ok(0)), Ok(0)));
            assert_eq!(target.to_vec(0..16).unwrap(), [[7; 8], [0; 8]].concat(), "{thread}");
            stage.assert_no_faults();
        }
    }

    fn the_rest_of_a_cut_transfer_has_begun() {
        for says in [Status::Again, Status::Declined] {
            let lane = |name, priority| Lane { priority, max_put: 16, ..Lane::memory(name).synchronous() };
            let stage = Stage::new(vec![Lane::messages("talk"), lane("a", 9), lane("b", 1)]);
            let (target, key) = stage.target(vec![0; 64]);
            stage.world.rule(Rule { skip: 1, ..Rule::every(Slot::Put, Act::Refuse(says)).on("a") });
            stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::Again)).on("b"));
            let put = pending(stage.ab.put(&stage.local(vec![7; 64]), 0..64, &key, 0));
            goes_on(&stage, &put, "it has begun");
            assert_eq!(target.to_vec(0..17).unwrap(), [vec![7; 16], vec![0]].concat());
            stage.world.forget_rules();
            assert_eq!(stage.end_of(&put), Some(Ok(0)));
            assert_eq!(target.to_vec(0..64).unwrap(), [7; 64]);
            stage.assert_no_faults();
        }
    }

    fn unrequested_cancel_by_provider_is_reported_by_flush() {
        let stage = Stage::new(vec![Lane::whole("all").with(CANCEL)]);
        let (_target, key) = stage.target(vec![0; 64]);
        for wanted_back in [false, true] {
            stage.world.rule(Rule::next(Slot::Put, Act::FailLater(Status::Canceled)));
            let put = pending(stage.ab.put_bytes(&[7; 8], &key, 0));
            if wanted_back {
                stage.a.cancel(&put).unwrap();
            }
            let flush = stage.ended(stage.ab.flush()).map_err(|error| error.status());
            assert_eq!(flush, if wanted_back { Ok(0) } else { Err(Status::Canceled) });
            assert_eq!(stage.end_of(&put).unwrap().unwrap_err().status(), Status::Canceled);
        }
        stage.assert_no_faults();
    }

    fn memory_of_operation_with_unknown_outcome_is_retained_until_close() {
        for lane in [Lane::whole("all"), Lane::whole("all").over_circuits()] {
            let stage = Stage::new(vec![lane]);
            let (_target, key) = stage.target(vec![0; 64]);
            let ab = stage.a.connect(&stage.b.address().unwrap()).unwrap();
            let own = ab.import_key(&_target.remote_key().unwrap()).unwrap();
            let local = stage.local(vec![7; 64]);
            stage.world.rule(Rule::next(Slot::Put, Act::FailLater(Status::OutcomeUnknown)));
            let put = pending(ab.put(&local, 0..8, &own, 0));
            let flush = pending(ab.flush());
            let ended = stage.end_of(&put).unwrap().unwrap_err();
            assert!(matches!(ended, CompletionError::Unknown(_)), "{ended:?}");
            assert_eq!(ended.status(), Status::OutcomeUnknown);
            assert!(stage.end_of(&flush).unwrap().is_err());
            assert!(ab.error().is_none(), "the endpoint goes on");
            assert_eq!(stage.ended(ab.put_bytes(&[1; 8], &own, 0)), Ok(0));
            let not = local.close().unwrap_err();
            assert_eq!(not.error.status(), Status::Busy);
            drop((put, own, key));
            let at = stage.world.interface(0, "all");
            let to = stage.world.interface(1, "all");
            // The worker keeps a circuit until its peer ends.
            stage.world.break_endpoints(at, to, Status::PeerFailed, "the cable is cut");
            assert!(stage.until(|| ab.error().is_some()));
            drop(ab);
            drop(stage.ab.clone());
            stage.settle();
            not.region.close().map_err(|not| not.error).expect("its endpoint is closed");
            stage.assert_no_faults();
        }
    }
}
