//! Tests of the library's progress thread: its requirements, and the reports when it ends.

use crate::cases;
use crate::stage::{Stage, pending};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tieline::{Close, Completion, Outcome, Status, Worker};
use tieline_fake::{Act, Lane, Rule, Slot};
use tieline_plugin_api::caps;

/// A time limit that is longer than any wait of the tests.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn with_threads() -> Stage {
    Stage::with(vec![Lane::messages("am")], &[("TIELINE_PROGRESS_THREAD", "on")])
}

/// Waits until the condition is met while other threads run; returns whether it was met.
pub(crate) fn comes(mut happens: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if happens() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

pub(crate) fn is_done(stage: &Stage, outcome: Outcome) -> bool {
    match outcome {
        Outcome::Done(_) => true,
        Outcome::Pending(put) => comes(|| {
            let _ = stage.turn();
            stage.a.test(&put) == Some(Ok(0))
        }),
    }
}

cases! {
    /// The lane has no descriptor, so a sleeping progress thread would never be woken.
    fn it_serves_over_a_module_that_cannot_wake_it() {
        let stage = with_threads();
        let (target, key) = stage.target(vec![0; 64]);
        let put = pending(stage.ab.put_bytes(&[7; 64], &key, 0));
        // The application at the target makes no progress, because it computes.
        let ended = comes(|| { let _ = stage.a.progress(); stage.a.test(&put).is_some() });
        assert!(ended, "nobody served it: {:?}", stage.at_b.report().why());
        assert_eq!((stage.a.test(&put), target.to_vec(0..64).unwrap()), (Some(Ok(0)), vec![7; 64]));
    }

    fn stopped_thread_is_reported_by_every_worker_and_new_object() {
        let stage = with_threads();
        let before = stage.b.address().unwrap();
        // The progress thread's worker was the second worker to open an interface.
        let serves = stage.world.interface(1, "am");
        stage.world.rule(Rule::every(Slot::Arm, Act::Refuse(Status::Io)).at(serves));
        assert!(comes(|| stage.at_b.worker().is_err()), "nobody is told");
        let refused = [
            stage.at_b.worker().map(drop),
            stage.at_b.alloc(8).map(drop),
            stage.at_b.register(vec![0; 8]).map(drop),
        ];
        for refused in refused {
            let error = refused.unwrap_err();
            assert_eq!(error.status(), Status::Io);
            assert!(error.what().contains("progress thread"), "{error}");
        }
        let heard = stage.b.wait(Some(Duration::ZERO)).unwrap_err();
        assert!(heard.what().contains("progress thread"), "{heard}");
        // The end is reported once; the application may continue without the thread. The wait fails here because the lane itself
        // does not support waiting.
        assert_eq!(stage.b.wait(Some(Duration::ZERO)).unwrap_err().status(), Status::Unsupported);
        assert!(stage.b.address().unwrap().len() < before.len(), "peers are sent to a worker that is gone");
        // The other context has its own thread.
        let _ = stage.at_a.worker().unwrap();
        assert_eq!(stage.a.wait(Some(Duration::ZERO)).unwrap_err().status(), Status::Unsupported);
    }

    /// The operations use an existing endpoint, and an endpoint made from an address that was issued before the stop.
    fn worker_progress_serves_emulated_operations_after_thread_stop() {
        for met in [false, true] {
            let stage = with_threads();
            let address = stage.b.address().unwrap();
            let (target, key) = stage.target(vec![0; 8]);
            if met {
                let put = pending(stage.ab.put_bytes(&[1; 8], &key, 0));
                assert!(comes(|| { let _ = stage.turn(); stage.a.test(&put).is_some() }));
            }
            let serves = stage.world.interface(1, "am");
            stage.world.rule(Rule::every(Slot::Arm, Act::Refuse(Status::Io)).at(serves));
            assert!(comes(|| stage.at_b.worker().is_err()), "it stops");
            stage.settle();
            let late = stage.a.connect(&address).unwrap();
            let late_key = late.import_key(&target.remote_key().unwrap()).unwrap();
            for (end, key, byte) in [(&stage.ab, &key, 2), (&late, &late_key, 3)] {
                let put = end.put_bytes(&[byte; 8], key, 0).unwrap();
                assert_eq!(stage.finish(put), Ok(0), "{met}");
                assert_eq!(target.to_vec(0..8).unwrap(), [byte; 8]);
            }
        }
    }

    /// Both requests wait for the connection to the same service worker.
    fn canceled_endpoint_leaves_requests_of_others_to_the_service_worker() {
        let lanes = vec![Lane::messages("am").over_circuits(), Lane::connector("mail")];
        let stage = Stage::with(lanes, &[("TIELINE_PROGRESS_THREAD", "on")]);
        let (target, key) = stage.target(vec![0; 16]);
        let other = stage.a.connect(&stage.b.address().unwrap()).unwrap();
        let other_key = other.import_key(&target.remote_key().unwrap()).unwrap();
        let gone = pending(stage.ab.put_bytes(&[1; 8], &key, 0));
        let kept = other.put_bytes(&[2; 8], &other_key, 8).unwrap();
        assert!(!kept.is_done());
        let _ = stage.ab.close(Close::Cancel).unwrap();
        let ended = stage.a.test(&gone).unwrap().unwrap_err();
        assert_eq!(ended.status(), Status::Canceled);
        assert!(is_done(&stage, kept));
        assert_eq!(target.to_vec(0..16).unwrap(), [[0; 8], [2; 8]].concat());
    }

    fn operations_waiting_for_stopped_thread_go_to_worker() {
        let lanes = vec![Lane::messages("am").over_circuits(), Lane::connector("mail")];
        let stage = Stage::with(lanes, &[("TIELINE_PROGRESS_THREAD", "on")]);
        let (target, key) = stage.target(vec![0; 24]);
        let local = stage.local(vec![5; 8]);
        let serves = stage.world.interface(1, "am");
        stage.world.rule(Rule::every(Slot::Arm, Act::Refuse(Status::Io)).at(serves));
        assert!(comes(|| stage.at_b.worker().is_err()), "it stops");
        let first = pending(stage.ab.put_bytes(&[1; 8], &key, 0));
        let locally = stage.ab.put_with(&local, 0..8, &key, 16, Completion::Local);
        let early = pending(stage.ab.flush());
        stage.ab.fence().unwrap();
        let (second, added) = (pending(stage.ab.put_bytes(&[2; 8], &key, 0)), pending(stage.ab.fetch_add(&key, 8, 3)));
        let flush = pending(stage.ab.flush());
        for request in [first, pending(locally), early, second, added, flush] {
            assert_eq!(stage.end_of(&request), Some(Ok(0)));
        }
        let there = [[2; 8], [3, 0, 0, 0, 0, 0, 0, 0], [5; 8]].concat();
        assert_eq!((target.to_vec(0..24).unwrap(), stage.a.pending()), (there, 0));
        stage.assert_no_faults();
    }

    fn closing_worker_delivers_operations_queued_for_stopped_thread() {
        thread_local! {
            static B: RefCell<Option<Worker>> = const { RefCell::new(None) };
        }
        fn polls_too() {
            let Some(b) = B.take() else { return };
            let _ = b.progress();
            B.set(Some(b));
        }
        let lanes = vec![Lane::messages("am").over_circuits(), Lane::connector("mail")];
        let stage = Stage::with(lanes, &[("TIELINE_PROGRESS_THREAD", "on")]);
        let (target, key) = stage.target(vec![0; 16]);
        let serves = stage.world.interface(1, "am");
        stage.world.rule(Rule::every(Slot::Arm, Act::Refuse(Status::Io)).at(serves));
        assert!(comes(|| stage.at_b.worker().is_err()), "it stops");
        drop(pending(stage.ab.put_bytes(&[1; 8], &key, 0)));
        drop(pending(stage.ab.put_bytes(&[2; 8], &key, 8)));
        let Stage { ab, ba, a, b, world, .. } = stage;
        B.set(Some(b));
        world.meanwhile(polls_too);
        a.close(PATIENCE).unwrap();
        assert_eq!(target.to_vec(0..16).unwrap(), [[1; 8], [2; 8]].concat());
        drop((B.take(), ab, ba));
        assert_eq!(world.faults(), Vec::<String>::new());
    }

    fn flush_reports_puts_lost_with_service_connection() {
        for again in [false, true] {
            let memory = Lane::memory("rma");
            let memory = Lane { caps: memory.caps & !caps::PASSIVE_TARGET, ..memory };
            let on = [("TIELINE_PROGRESS_THREAD", "on")];
            let stage = Stage::with(vec![Lane::messages("am"), memory], &on);
            let (_target, key) = stage.target(vec![0; 64]);
            let local = stage.local(vec![1; 8]);
            let put = stage.ab.put_with(&local, 0..8, &key, 0, Completion::Local);
            assert!(is_done(&stage, put.unwrap()));
            let [put] = stage.world.calls(Slot::Put)[..] else { panic!("one put, natively") };
            // The progress thread's worker was the second worker to open an interface.
            let serves = stage.world.interface(1, "rma");
            stage.world.break_endpoints(put.interface, serves, Status::Io, "the cable is cut");
            stage.settle();
            assert!(stage.ab.error().is_none(), "messages go elsewhere");
            if again {
                // This opens the replacement connection.
                drop(stage.ab.fetch_add(&key, 8, 1));
            }
            let flush = stage.ended(stage.ab.flush());
            assert_eq!(flush.unwrap_err().status(), Status::Io, "{again}");
            let told = stage.ended(stage.ab.flush());
            assert_eq!(told, Ok(0), "it is told once");
        }
    }

    fn notification_is_not_delivered_for_put_lost_with_service_connection() {
        for waits in [false, true] {
            let memory = Lane::memory("rma");
            let memory = Lane { caps: memory.caps & !caps::PASSIVE_TARGET, priority: 9, ..memory };
            let on = [("TIELINE_PROGRESS_THREAD", "on")];
            let stage = Stage::with(vec![Lane::messages("am"), memory, Lane::memory("b")], &on);
            let (target, key) = stage.target(vec![0; 64]);
            let refused = Rule::next(Slot::ImportKey, Act::Refuse(Status::KeyRejected));
            stage.world.rule(refused.on("rma"));
            let over_b = stage.ab.import_key(&target.remote_key().unwrap()).unwrap();
            let told: Rc<RefCell<Vec<u32>>> = Rc::default();
            let log = told.clone();
            stage.b.on_notification(move |_, word| log.borrow_mut().push(word)).unwrap();
            let local = stage.local(vec![1; 8]);
            let put = stage.ab.put_with(&local, 0..8, &key, 0, Completion::Local);
            assert!(is_done(&stage, put.unwrap()));
            let [put] = stage.world.calls(Slot::Put)[..] else { panic!("one put, natively") };
            stage.world.rule(Rule::every(Slot::Flush, Act::Refuse(Status::Again)).on("rma"));
            stage.world.rule(Rule::every(Slot::Put, Act::Hold).on("b"));
            let other = waits.then(|| pending(stage.ab.put(&local, 0..8, &over_b, 8)));
            let notification = pending(stage.ab.put_notify(&local, 0..0, &key, 0, 1));
            assert_eq!(stage.world.was_refused(Slot::Flush), !waits, "whether the lane was asked");
            // The progress thread's worker was the second worker to open an interface.
            let serves = stage.world.interface(1, "rma");
            stage.world.break_endpoints(put.interface, serves, Status::Io, "the cable is cut");
            stage.settle();
            // Lanes that are gone are not flushed again.
            assert_eq!(stage.a.test(&notification).is_some(), !waits);
            stage.world.forget_rules();
            stage.world.release_held();
            assert_eq!(other.map(|put| stage.end_of(&put)), waits.then_some(Some(Ok(0))));
            let ended = stage.end_of(&notification).expect("it ends").unwrap_err();
            assert_eq!(ended.status(), Status::Io, "{ended}");
            assert_eq!(stage.ended(stage.ab.flush()).unwrap_err().status(), Status::Io);
            stage.settle();
            assert_eq!(*told.borrow(), [0; 0]);
            assert!(stage.ab.error().is_none(), "messages go elsewhere");
        }
    }

    fn operations_in_flight_end_with_connection_to_service_worker() {
        for circuits in [false, true] {
            let memory = Lane::memory("rma");
            let memory = Lane { caps: memory.caps & !caps::PASSIVE_TARGET, to_endpoint: circuits, ..memory };
            let on = [("TIELINE_PROGRESS_THREAD", "on")];
            let mut lanes = vec![Lane::messages("am"), memory];
            lanes.extend(circuits.then(|| Lane::connector("mail")));
            let stage = Stage::with(lanes, &on);
            let (_target, key) = stage.target(vec![0; 64]);
            let local = stage.local(vec![1; 8]);
            stage.world.hold(Slot::Get);
            let get = pending(stage.ab.get(&local, 0..8, &key, 0));
            let flush = pending(stage.ab.flush());
            let posted = || !stage.world.calls(Slot::Get).is_empty();
            assert!(comes(|| { let _ = stage.turn(); posted() }), "{circuits}");
            let [call] = stage.world.calls(Slot::Get)[..] else { panic!("one get, natively") };
            // The progress thread's worker was the second worker to open an interface.
            let serves = stage.world.interface(1, "rma");
            stage.world.break_endpoints(call.interface, serves, Status::Io, "the cable is cut");
            let ended = stage.end_of(&get).unwrap_or_else(|| panic!("{circuits}: it ends")).unwrap_err();
            assert_eq!(ended.status(), Status::Io, "{ended}");
            let ended = stage.end_of(&flush).expect("nothing stands before it any more");
            assert_eq!(ended.unwrap_err().status(), Status::Io, "what it waited for failed");
            assert!(stage.ab.error().is_none(), "messages go elsewhere");
        }
    }

    fn operations_through_failed_service_connection_end_too() {
        let memory = Lane::memory("rma");
        let memory = Lane { caps: memory.caps & !caps::PASSIVE_TARGET, ..memory };
        let stage = Stage::with(vec![Lane::messages("am"), memory], &[("TIELINE_PROGRESS_THREAD", "on")]);
        let (_target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 8]);
        assert!(is_done(&stage, stage.ab.put_bytes(&[1; 8], &key, 0).unwrap()));
        let at = |worker: usize, lane: &str| stage.world.interface(worker, lane);
        let [put] = stage.world.calls(Slot::Put)[..] else { panic!("one put, natively") };
        // The progress thread's worker was the second worker to open an interface; the interface of `a` is the one that posted the
        // put.
        let own = (0..4).find(|worker| at(*worker, "rma") == put.interface).expect("of some worker");
        stage.world.break_endpoints(at(own, "am"), at(1, "am"), Status::Io, "the cable is cut");
        stage.settle();
        assert!(stage.ab.error().is_none(), "its own messages go elsewhere");
        stage.world.hold(Slot::Get);
        let get = pending(stage.ab.get(&local, 0..8, &key, 0));
        assert!(comes(|| { let _ = stage.turn(); !stage.world.calls(Slot::Get).is_empty() }));
        stage.world.break_endpoints(at(own, "rma"), at(1, "rma"), Status::Io, "the other one, too");
        let ended = stage.end_of(&get).expect("it ends").unwrap_err();
        assert_eq!(ended.status(), Status::Io, "{ended}");
    }
}
