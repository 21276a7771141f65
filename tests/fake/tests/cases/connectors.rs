//! Tests of connection-only modules, and of modules that fail while a worker arms for sleep.

use crate::cases;
use crate::stage::{Stage, pending};
use std::time::Duration;
use tieline::{Error, Outcome, PostError, Status};
use tieline_fake::{Act, Lane, Rule, Slot};

/// Returns a lane for messages over one provider, and a lane for memory whose connections a connector of the other provider forms.
fn formed_by_a_connector() -> Vec<Lane> {
    let rma = Lane::memory("rma").over_circuits().sleeping();
    vec![Lane::messages("am").sleeping(), rma, Lane::connector("mail")]
}

/// Returns the number of calls to connectors, without calls that collect or close.
fn asked(stage: &Stage) -> usize {
    let slots = [Slot::Datagram, Slot::Collect, Slot::ArmConnector];
    slots.iter().map(|slot| stage.world.calls(*slot).len()).sum()
}

cases! {
    fn a_connector_forms_the_connections_of_another_provider() {
        let stage = Stage::new(formed_by_a_connector());
        let (target, key) = stage.target(vec![0; 64]);
        assert_eq!(stage.finish(stage.ab.put_bytes(&[7; 8], &key, 0).unwrap()), Ok(0));
        assert_eq!(target.to_vec(0..8).unwrap(), [7; 8]);
        assert_eq!(stage.world.calls(Slot::Put).len(), 1, "over its own lane");
        assert!(!stage.world.calls(Slot::Datagram).is_empty());
        stage.assert_no_faults();
    }

    fn a_connector_that_breaks_ends_no_sleep_and_nothing_of_the_others() {
        for slot in [Slot::Collect, Slot::ArmConnector] {
            let stage = Stage::new(formed_by_a_connector());
            let log = stage.log_at_b(5);
            let (_target, key) = stage.target(vec![0; 64]);
            assert_eq!(stage.finish(stage.ab.put_bytes(&[1; 8], &key, 0).unwrap()), Ok(0));
            stage.world.rule(Rule::next(slot, Act::Panic));
            for _ in 0..200 {
                let _ = stage.a.wait(Some(Duration::ZERO)).expect("a sleep over what did not break");
                let _ = stage.b.wait(Some(Duration::ZERO)).expect("a sleep over what did not break");
            }
            assert!(stage.world.was_refused(slot));
            // One of the two contexts continues with its connector.
            let broken = stage.at_a.report().why().contains("not used any more");
            assert_ne!(broken, stage.at_b.report().why().contains("not used any more"), "who hears of it");
            assert_eq!(stage.finish(stage.ab.put_bytes(&[2; 8], &key, 0).unwrap()), Ok(0));
            let _ = stage.finish(stage.ab.send(5, 9, b"").unwrap());
            assert!(stage.until(|| log.borrow().contains(&9)));
        }
    }

    fn a_connector_that_broke_is_not_called_again() {
        let stage = Stage::new(formed_by_a_connector());
        stage.world.rule(Rule::every(Slot::Collect, Act::Refuse(Status::ProviderFailed)));
        stage.settle();
        let before = asked(&stage);
        stage.settle();
        let _ = (stage.a.wait(Some(Duration::ZERO)), stage.b.wait(Some(Duration::ZERO)));
        assert_eq!(asked(&stage), before);
        stage.assert_no_faults();
    }

    fn wait_fails_immediately_when_its_connector_breaks() {
        for slot in [Slot::Datagram, Slot::Collect] {
            let lanes = vec![Lane::whole("all").over_circuits(), Lane::connector("mail")];
            let stage = Stage::new(lanes);
            let fresh = stage.at_a.worker().unwrap();
            let to_b = fresh.connect(&stage.b.address().unwrap()).unwrap();
            stage.world.rule(Rule::next(slot, Act::Panic));
            // That context has no other worker whose connector could fail instead.
            let ended = |posted: Result<Outcome, PostError>| -> Result<u64, Error> {
                let asked = pending(Ok(posted?));
                let ended = (0..5_000).find_map(|_| {
                    let _ = fresh.progress();
                    fresh.test(&asked)
                });
                Ok(ended.expect("it ends")?)
            };
            let error = ended(to_b.flush_messages()).expect_err("nothing forms the connection");
            assert_eq!(error.status(), Status::Unreachable, "{error}");
            assert!(error.to_string().contains("mail: the provider panicked"), "{error}");
            let next = fresh.connect(&stage.b.address().unwrap());
            assert!(next.map_or(true, |e| e.flush_messages().is_err()), "nothing forms connections any more");
        }
    }

    fn unreachable_worker_is_not_opened_and_error_names_failed_modules() {
        let stage = Stage::new(vec![Lane::whole("all").over_circuits(), Lane::connector("mail")]);
        stage.world.rule(Rule::next(Slot::OpenConnector, Act::Refuse(Status::NoMemory)));
        let error = stage.at_a.worker().err().expect("nothing forms connections");
        assert_eq!(error.status(), Status::NoDevice, "{error}");
        assert!(error.to_string().contains("other:mail/mail: out of memory"), "{error}");
        stage.assert_no_faults();
    }

    fn module_that_breaks_while_arming_is_taken_out_alone() {
        let lanes = vec![Lane::messages("am").sleeping(), Lane::memory("rma").sleeping().on_other_provider()];
        let stage = Stage::new(lanes);
        let log = stage.log_at_b(5);
        stage.world.hold(Slot::Put);
        let (_target, key) = stage.target(vec![0; 64]);
        let put = pending(stage.ab.put_bytes(&[1; 8], &key, 0));
        let at = stage.world.interface(0, "rma");
        stage.world.rule(Rule::next(Slot::Arm, Act::Panic).at(at));
        for _ in 0..200 {
            let _ = stage.a.wait(Some(Duration::ZERO)).expect("a sleep over what did not break");
        }
        let ended = stage.end_of(&put).expect("what it had ends").unwrap_err();
        assert_eq!(ended.status(), Status::ProviderFailed, "{ended}");
        let _ = stage.finish(stage.ab.send(5, 9, b"").unwrap());
        assert!(stage.until(|| log.borrow().contains(&9)));
    }

    fn progress_thread_continues_without_module_that_breaks_while_arming() {
        let lanes = vec![Lane::memory("rma"), Lane::messages("am").on_other_provider()];
        let stage = Stage::with(lanes, &[("TIELINE_PROGRESS_THREAD", "on")]);
        // The progress thread's worker was the second to open an interface.
        let serves = stage.world.interface(1, "rma");
        stage.world.rule(Rule::next(Slot::Arm, Act::Panic).at(serves));
        let begun = std::time::Instant::now();
        while !stage.world.was_refused(Slot::Arm) {
            assert!(begun.elapsed() < Duration::from_secs(30), "the thread does not go to sleep");
            std::thread::yield_now();
        }
        // The thread next calls the other module, which refuses nothing.
        let asked = |calls: usize| stage.world.calls(Slot::Arm).len() > calls;
        let calls = stage.world.calls(Slot::Arm).len();
        while !asked(calls) {
            assert!(begun.elapsed() < Duration::from_secs(30), "the thread has ended");
            std::thread::yield_now();
        }
        for context in [&stage.at_a, &stage.at_b] {
            let fresh = context.worker().expect("a worker of a context whose thread goes on");
            let lane = fresh.wait(Some(Duration::ZERO)).unwrap_err();
            assert_eq!(lane.status(), Status::Unsupported, "the lane has no descriptor: {lane}");
        }
    }

    fn descriptor_of_broken_connector_wakes_no_sleep() {
        let stage = Stage::new(formed_by_a_connector());
        stage.world.rule(Rule::every(Slot::Collect, Act::Refuse(Status::ProviderFailed)));
        for _ in 0..5_000 {
            let _ = stage.a.progress();
        }
        let (begun, long) = (std::time::Instant::now(), Duration::from_millis(300));
        while stage.a.wait(Some(long)).expect("a sleep").has_moved() {}
        assert!(begun.elapsed() >= long, "it was woken after {:?}", begun.elapsed());
    }

    fn a_provider_whose_connector_breaks_is_not_posted_to_any_more() {
        let lanes = vec![Lane::messages("am").on_other_provider(), Lane::memory("rma").over_circuits(), Lane::connector("mail")];
        let stage = Stage::new(lanes);
        stage.world.rule(Rule::next(Slot::Collect, Act::Refuse(Status::ProviderFailed)));
        assert!(stage.until(|| stage.world.was_refused(Slot::Collect)));
        let before = stage.world.calls(Slot::Short).len();
        let refused = [&stage.ab, &stage.ba].map(|endpoint| endpoint.send(5, 0, b"").is_err());
        assert!(refused.contains(&true), "one of the two has lost its provider");
        let calls = stage.world.calls(Slot::Short).len() - before;
        assert_eq!(calls, refused.iter().filter(|refused| !**refused).count());
    }

    /// The core does not call the provider again after the failure.
    fn module_that_breaks_while_carrying_datagram_is_taken_out_of_use() {
        const WIREUP: u32 = 0xf007;
        let lanes = vec![Lane::messages("am").on_other_provider(), Lane::memory("rma").over_circuits()];
        let stage = Stage::with(lanes, &[("TIELINE_CONNECT", "other")]);
        let at = stage.world.interface(0, "am");
        for slot in [Slot::Short, Slot::Packed] {
            stage.world.rule(Rule::next(slot, Act::Panic).at(at).id(WIREUP));
        }
        let target = stage.at_b.register(vec![0; 64]).unwrap();
        let _key = stage.ab.import_key(&target.remote_key().unwrap());
        let broke = || stage.world.was_refused(Slot::Short) || stage.world.was_refused(Slot::Packed);
        assert!(stage.until(broke), "no datagram went over messages");
        let calls = stage.world.calls_at(at).len();
        stage.settle();
        let later = stage.world.calls_at(at).split_off(calls);
        assert!(later.is_empty(), "called again: {later:?}");
        let closes = stage.world.calls(Slot::CloseEndpoint);
        assert!(closes.iter().all(|call| call.interface != at), "closed by one that broke");
        assert_eq!(stage.ab.send(5, 0, b"").unwrap_err().status(), Status::ProviderFailed);
    }

    fn datagrams_continue_when_another_provider_breaks() {
        const WIREUP: u32 = 0xf007;
        let more = Lane { priority: 0, ..Lane::memory("more").on_other_provider().over_circuits() };
        let lanes = vec![Lane::messages("am").on_other_provider(), Lane::memory("rma").over_circuits(), more];
        let stage = Stage::with(lanes, &[("TIELINE_CONNECT", "other")]);
        let log = stage.log_at_b(5);
        let (target, key) = stage.target(vec![0; 64]);
        assert_eq!(stage.finish(stage.ab.put_bytes(&[1; 8], &key, 0).unwrap()), Ok(0));
        stage.settle();
        let at = |nth, lane| stage.world.interface(nth, lane);
        stage.world.rule(Rule::every(Slot::Poll, Act::Refuse(Status::ProviderFailed)).at(at(0, "rma")));
        stage.settle();
        let datagrams = || {
            let calls = [Slot::Short, Slot::Packed].map(|slot| stage.world.calls(slot));
            calls.iter().flatten().filter(|call| call.id == WIREUP && call.interface == at(0, "am")).count()
        };
        let before = datagrams();
        stage.world.break_endpoints(at(0, "more"), at(1, "more"), Status::Io, "the cable is cut");
        stage.settle();
        let fresh = stage.a.connect(&stage.b.address().unwrap()).unwrap();
        let key = fresh.import_key(&target.remote_key().unwrap()).unwrap();
        assert_eq!(stage.finish(fresh.put_bytes(&[2; 8], &key, 0).unwrap()), Ok(0));
        assert!(datagrams() > before, "the connection was formed again");
        assert_eq!((target.to_vec(0..8).unwrap(), &*key.path()), (vec![2; 8], "other:more/more"));
        let _ = stage.finish(stage.ab.send(5, 9, b"").unwrap());
        assert!(stage.until(|| log.borrow().contains(&9)));
    }

    fn operation_that_ended_with_its_provider_is_not_reposted() {
        for get in [false, true] {
            let slot = if get { Slot::Get } else { Slot::Put };
            let other = Lane { priority: 0, ..Lane::memory("rma2").on_other_provider() };
            let stage = Stage::new(vec![Lane::whole("all"), other]);
            let (_target, key) = stage.target(vec![0; 64]);
            let local = stage.local(vec![1; 8]);
            let at = stage.world.interface(0, "all");
            for act in [Act::Refuse(Status::Again), Act::Refuse(Status::Again), Act::Panic] {
                stage.world.rule(Rule::next(slot, act).at(at));
            }
            stage.world.hold(slot);
            let posted = pending(match get {
                true => stage.ab.get(&local, 0..8, &key, 0),
                false => stage.ab.put_bytes(&[1; 8], &key, 0),
            });
            let ended = stage.end_of(&posted).expect("it ends").unwrap_err();
            assert_eq!(ended.status(), Status::ProviderFailed, "{ended}");
            stage.settle();
            let there = stage.world.interface(0, "rma2");
            let calls = stage.world.calls(slot);
            assert!(calls.iter().all(|call| call.interface != there), "what has failed is carried out");
        }
    }
}
