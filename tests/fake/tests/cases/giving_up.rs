//! Operations that are taken back, whose end nobody knows, or that are flushed for all endpoints at once.

use crate::cases;
use crate::stage::{Stage, pending};
use tieline::{
    Access, Completion, CompletionError, Endpoint, PostError, RemoteKey, Request, Status,
};
use tieline_fake::{Act, Lane, Rule, Slot};
use tieline_plugin_api::caps::{CANCEL, FLUSH_ALL};

/// How an operation of `a` stands right now.
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
    fn what_waits_in_the_queue_is_taken_out_and_nothing_else_is_disturbed() {
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

    fn a_flush_that_waits_for_what_is_taken_back_ends_well() {
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

    fn what_is_done_by_messages_is_taken_back_while_none_was_sent() {
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

    fn who_never_gives_anything_back_is_named_and_not_asked() {
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

    fn a_transfer_over_two_lanes_is_taken_back_as_a_whole_or_not() {
        let rail = |name| Lane { module: "rail", ..Lane::memory(name) };
        let stage = Stage::new(vec![Lane::messages("talk"), rail("one"), rail("two")]);
        const LEN: usize = 512 << 10;
        let (target, key) = stage.target(vec![0; LEN]);
        let local = stage.local(vec![7; LEN]);
        let refuse = Rule::every(Slot::Put, Act::Refuse(Status::Again));
        stage.world.rule(refuse);
        let none_has = pending(stage.ab.put(&local, 0..LEN, &key, 0));
        stage.a.cancel(&none_has).unwrap();
        canceled_now(&stage, &none_has);
        stage.world.forget_rules();
        stage.settle();
        stage.world.rule(refuse.on("two"));
        let one_has = pending(stage.ab.put(&local, 0..LEN, &key, 0));
        goes_on(&stage, &one_has, "it has begun");
        stage.world.forget_rules();
        assert_eq!(stage.end_of(&one_has), Some(Ok(0)));
        assert_eq!(target.to_vec(0..LEN).unwrap(), vec![7; LEN]);
        stage.assert_no_faults();
    }

    /// The fake finds a fault where memory is given up that such an operation had.
    fn memory_of_an_operation_whose_end_nobody_knows_stays_until_its_endpoint_is_closed() {
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
            // A circuit is the worker's, and ends with its peer.
            stage.world.break_endpoints(at, to, Status::PeerFailed, "the cable is cut");
            assert!(stage.until(|| ab.error().is_some()));
            drop(ab);
            drop(stage.ab.clone());
            stage.settle();
            not.region.close().map_err(|not| not.error).expect("its endpoint is closed");
            stage.assert_no_faults();
        }
    }

    fn one_call_flushes_the_endpoints_of_an_interface() {
        let stage = Stage::new(vec![Lane::whole("all").with(FLUSH_ALL)]);
        let (target, _key) = stage.target(vec![0; 64]);
        let (to, bytes) = (stage.b.address().unwrap(), target.remote_key().unwrap());
        let make = |_| {
            let endpoint = stage.a.connect(&to).unwrap();
            let key = endpoint.import_key(&bytes).unwrap();
            (endpoint, key)
        };
        let all: Vec<(Endpoint, RemoteKey)> = (0..6).map(make).collect();
        stage.world.change("all", |lane| lane.delay = 100);
        let local = stage.local(vec![7; 64]);
        let put = |(at, (endpoint, key)): (usize, &(Endpoint, RemoteKey))| {
            pending(endpoint.put_with(&local, 0..8, key, at as u64 * 8, Completion::Local))
        };
        let puts: Vec<Request> = all.iter().enumerate().map(put).collect();
        assert_ne!(target.to_vec(0..48).unwrap(), [7; 48], "none is carried out at once");
        stage.a.flush().unwrap();
        assert!(puts.iter().all(|put| stage.a.test(put) == Some(Ok(0))));
        assert_eq!(target.to_vec(0..48).unwrap(), [7; 48]);
        assert_eq!([Slot::FlushAll, Slot::Flush].map(|slot| stage.world.calls(slot).len()), [1, 0]);
        stage.a.flush().unwrap();
        assert_eq!(stage.world.calls(Slot::FlushAll).len(), 1, "there is nothing left to ask for");
        // One alone is asked itself.
        let put = all[0].0.put_with(&local, 0..8, &all[0].1, 0, Completion::Local);
        let _ = stage.ended(put).unwrap();
        stage.a.flush().unwrap();
        assert_eq!([Slot::FlushAll, Slot::Flush].map(|slot| stage.world.calls(slot).len()), [1, 1]);
        stage.assert_no_faults();
    }

    fn where_the_call_fails_or_finds_no_room_each_endpoint_is_asked() {
        for (act, fails) in [(Act::Refuse(Status::Again), false), (Act::FailLater(Status::Io), true)] {
            let stage = Stage::new(vec![Lane::whole("all").with(FLUSH_ALL)]);
            let (target, key) = stage.target(vec![0; 64]);
            let ab = stage.a.connect(&stage.b.address().unwrap()).unwrap();
            let own = ab.import_key(&target.remote_key().unwrap()).unwrap();
            let local = stage.local(vec![7; 64]);
            stage.world.change("all", |lane| lane.delay = 20);
            let _ = stage.ended(stage.ab.put_with(&local, 0..8, &key, 0, Completion::Local)).unwrap();
            let _ = stage.ended(ab.put_with(&local, 0..8, &own, 8, Completion::Local)).unwrap();
            stage.world.rule(Rule::every(Slot::FlushAll, act));
            assert_eq!(stage.a.flush().is_err(), fails);
            assert_eq!(target.to_vec(0..16).unwrap(), [7; 16]);
            assert_eq!(stage.world.calls(Slot::Flush).len(), 2);
            stage.assert_no_faults();
        }
    }

    /// What had completed locally there is lost, and the flush says so.
    fn an_endpoint_that_fails_under_a_flush_of_all_fails_the_flush_and_not_the_others() {
        let stage = Stage::new(vec![Lane::whole("all").with(FLUSH_ALL)]);
        let (target, key) = stage.target(vec![0; 64]);
        let third = stage.at_b.worker().unwrap();
        let other = stage.a.connect(&third.address().unwrap()).unwrap();
        let own = other.import_key(&target.remote_key().unwrap()).unwrap();
        let local = stage.local(vec![7; 64]);
        stage.world.change("all", |lane| lane.delay = 20);
        let _ = stage.ended(stage.ab.put_with(&local, 0..8, &key, 0, Completion::Local)).unwrap();
        let _ = stage.ended(other.put_with(&local, 0..8, &own, 8, Completion::Local)).unwrap();
        let (from, to) = (stage.world.interface(0, "all"), stage.world.interface(2, "all"));
        stage.world.break_endpoints(from, to, Status::PeerFailed, "the cable is cut");
        let error = stage.a.flush().unwrap_err();
        assert_eq!(error.status(), Status::PeerFailed);
        assert_eq!(target.to_vec(0..8).unwrap(), [7; 8]);
        assert!(stage.ab.error().is_none());
        stage.assert_no_faults();
    }
}
