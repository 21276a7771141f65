//! Tests of workers: ownership of requests, flushes of all endpoints, and the end of peers.

use crate::cases;
use crate::stage::{Stage, pending};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tieline::{Completion, Error, Outcome, PostError, Status, WaitSet, Waited};
use tieline_fake::{Act, Lane, Rule, Slot, World};
use tieline_plugin_api::caps;

cases! {
    fn a_worker_does_not_take_another_workers_request() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let other = stage.at_a.worker().unwrap();
        let back = other.connect(&stage.b.address().unwrap()).unwrap();
        // Both workers have made the same calls, so their next operations have the same number.
        let met = pending(back.flush_messages());
        assert!(stage.until(|| { let _ = other.progress(); other.test(&met) == Some(Ok(0)) }));
        drop(met);
        let (target, key) = stage.target(vec![0; 64]);
        let theirs = back.import_key(&target.remote_key().unwrap()).unwrap();
        stage.world.hold(Slot::Atomic);
        // Two operations have the same number: the operation of the other worker has ended with 0, and this one with 5.
        let mine = pending(stage.ab.fetch_add(&key, 0, 5));
        let not_mine = pending(back.fetch_add(&theirs, 0, 5));
        stage.world.forget_rules();
        stage.world.release_held();
        assert!(stage.until(|| { let _ = other.progress(); stage.a.test(&mine).is_some() && other.test(&not_mine).is_some() }));
        assert!(!matches!(stage.a.test(&not_mine), Some(Ok(_))), "it returned the value of another operation");
        let finished = stage.a.finish(Outcome::Pending(not_mine));
        assert!(finished.is_err(), "it returned the value of another operation");
    }

    /// A module belongs to the thread that opened it unless it states otherwise.
    fn a_worker_may_be_moved_only_if_all_of_its_modules_may() {
        let movable = Lane::messages("am").with(caps::ANY_THREAD);
        let stage = Stage::new(vec![movable.clone(), Lane::memory("rma").with(caps::ANY_THREAD)]);
        assert_eq!(stage.a.check_movable(), Ok(()));
        let stage = Stage::new(vec![movable, Lane::memory("rma")]);
        let refused = stage.a.check_movable().unwrap_err();
        assert_eq!(refused.status(), Status::Unsupported);
        assert!(refused.why().contains("rma belongs to the thread"), "{refused}");
    }

    fn module_of_one_thread_stays_closed_for_driven_worker_and_is_named() {
        let (movable, bound) = (Lane::messages("am").with(caps::ANY_THREAD), Lane::memory("rma"));
        let stage = Stage::new(vec![movable, bound]);
        let driven = stage.at_a.driven_worker().unwrap();
        let report = stage.at_a.report();
        let (why, warnings) = (report.why(), report.warnings.join(" | "));
        let named = |text: &str| text.contains("rma is not used") && text.contains("belongs to the thread");
        assert!(named(&why) || named(&warnings), "{why} {warnings}");
        drop(driven);
        let stage = Stage::new(vec![Lane::messages("am")]);
        let refused = stage.at_a.driven_worker().unwrap_err();
        assert!(refused.why().contains("am belongs to the thread"), "{refused}");
    }

    fn wait_set_honors_timeout_although_module_has_no_descriptor() {
        let stage = Stage::new(vec![Lane::messages("am")]);
        stage.settle();
        let mut set = WaitSet::new().unwrap();
        set.add(&stage.a).unwrap();
        let (begun, least) = (Instant::now(), Duration::from_millis(5));
        assert_eq!(set.wait(Some(least)), Ok(Waited::TimeIsUp));
        assert!(begun.elapsed() >= least, "the time was not up");
        let (waker, world) = (stage.a.waker().unwrap(), stage.world);
        let naps = world.calls(Slot::Arm).len() + 10;
        let wakes = std::thread::spawn(move || {
            while world.calls(Slot::Arm).len() < naps {
                std::thread::yield_now();
            }
            waker.wake();
        });
        assert_eq!(set.wait(None), Ok(Waited::Moved));
        wakes.join().unwrap();
    }

    fn a_module_that_fails_at_every_poll_is_news_once() {
        for status in [Status::Io, Status::ProviderFailed] {
            let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma").on_other_provider()]);
            stage.settle();
            stage.world.rule(Rule::every(Slot::Poll, Act::Refuse(status)).on("rma"));
            assert!(stage.a.progress() > 0, "nobody heard of it");
            for _ in 0..10 {
                assert_eq!(stage.a.progress(), 0, "{status:?} counts every time");
            }
            let _ = stage.b.progress();
            let met = stage.ab.flush_messages().unwrap();
            assert_eq!(stage.finish(met), Ok(0), "the other module goes on");
        }
    }

    fn a_dead_endpoint_does_not_spoil_a_workers_flush() {
        let stage = Stage::new(vec![Lane::whole("all").late(3)]);
        let third = crate::stage::context(stage.world, &[]);
        let c = third.worker().unwrap();
        let ac = stage.a.connect(&c.address().unwrap()).unwrap();
        let _ = ac.send(1, 0, b"hello").unwrap();
        let (a, b) = (stage.world.interface(0, "all"), stage.world.interface(1, "all"));
        stage.world.break_endpoints(a, b, Status::PeerFailed, "it died");
        assert!(stage.until(|| stage.ab.error().is_some()));
        let (target, local) = (third.register(vec![0; 8]).unwrap(), stage.local(vec![1; 8]));
        let key = ac.import_key(&target.remote_key().unwrap()).unwrap();
        // The flush may or may not report the death; the test ignores its result.
        let _ = stage.a.flush();
        drop(ac.put(&local, 0..8, &key, 0).unwrap());
        assert_eq!(stage.a.flush(), Ok(()));
        assert_eq!(target.to_vec(0..8).unwrap(), [1; 8], "it flushed nothing");
    }

    fn a_workers_flush_waits_for_all_endpoints() {
        let stage = Stage::new(vec![Lane::whole("all").late(5)]);
        let third = crate::stage::context(stage.world, &[]);
        let c = third.worker().unwrap();
        let ac = stage.a.connect(&c.address().unwrap()).unwrap();
        let (target, key) = stage.target(vec![0; 8]);
        let far = third.register(vec![0; 8]).unwrap();
        let far_key = ac.import_key(&far.remote_key().unwrap()).unwrap();
        let local = stage.local(vec![1; 8]);
        drop(stage.ab.put(&local, 0..8, &key, 0).unwrap());
        drop(ac.put(&local, 0..8, &far_key, 0).unwrap());
        assert_eq!(stage.a.flush(), Ok(()));
        assert_eq!((target.to_vec(0..8).unwrap(), far.to_vec(0..8).unwrap()), (vec![1; 8], vec![1; 8]));
        stage.assert_no_faults();
    }

    fn a_workers_flush_asks_all_endpoints_before_it_waits_for_one() {
        const ENOUGH: u32 = 1000;
        thread_local! {
            static WORLD: Cell<Option<&'static World>> = const { Cell::new(None) };
            static POLLS: Cell<u32> = const { Cell::new(0) };
            static ASKED: Cell<usize> = const { Cell::new(0) };
        }
        /// Counts the flushes of lanes after a number of polls, and then releases the held operations.
        fn let_go() {
            POLLS.set(POLLS.get() + 1);
            if let (Some(world), ENOUGH) = (WORLD.get(), POLLS.get()) {
                ASKED.set(world.calls(Slot::Flush).len());
                world.forget_rules();
                world.release_held();
            }
        }
        let stage = Stage::new(vec![Lane::whole("all")]);
        let third = crate::stage::context(stage.world, &[]);
        let c = third.worker().unwrap();
        let ac = stage.a.connect(&c.address().unwrap()).unwrap();
        let (_target, key) = stage.target(vec![0; 8]);
        let far = third.register(vec![0; 8]).unwrap();
        let far_key = ac.import_key(&far.remote_key().unwrap()).unwrap();
        let local = stage.local(vec![1; 8]);
        // The puts have completed locally, so the flush of the lane waits for them.
        for (end, key) in [(&stage.ab, &key), (&ac, &far_key)] {
            let put = end.put_with(&local, 0..8, key, 0, Completion::Local).unwrap();
            assert_eq!(stage.finish(put), Ok(0));
        }
        assert_eq!(stage.world.calls(Slot::Flush).len(), 0);
        stage.world.hold(Slot::Flush);
        WORLD.set(Some(stage.world));
        POLLS.set(0);
        stage.world.meanwhile(let_go);
        assert_eq!(stage.a.flush(), Ok(()));
        assert_eq!(ASKED.get(), 2, "the second was not asked before the first had ended");
        stage.assert_no_faults();
    }

    fn rules_for_waiting_in_handlers_do_not_depend_on_provider() {
        let results = |lane: Lane| {
            let stage = Stage::new(vec![lane]);
            let said: Rc<RefCell<Vec<Option<Status>>>> = Rc::default();
            let target = stage.at_b.register(vec![0; 8]).unwrap();
            let a = Rc::new(stage.at_a.worker().unwrap());
            let end = a.connect(&stage.b.address().unwrap()).unwrap();
            let key = end.import_key(&target.remote_key().unwrap()).unwrap();
            let to_a = stage.b.connect(&a.address().unwrap()).unwrap();
            let (log, worker) = (said.clone(), Rc::downgrade(&a));
            a.on_message(5, move |_| {
                let Some(worker) = worker.upgrade() else { return };
                let status = |result: Result<u64, Error>| result.err().map(|e| e.status());
                let ended = |posted: Result<Outcome, PostError>| Ok(worker.finish(posted?)?);
                let mut log = log.borrow_mut();
                log.push(status(worker.flush().map(|()| 0).map_err(Error::from)));
                log.push(status(ended(end.put_bytes(&[1; 8], &key, 0))));
                log.push(status(ended(end.flush())));
            }).unwrap();
            let _ = to_a.send(5, 0, b"").unwrap();
            assert!(stage.until(|| { let _ = a.progress(); !said.borrow().is_empty() }));
            said.take()
        };
        let (quick, slow) = (results(Lane::whole("all").synchronous()), results(Lane::whole("all").late(9)));
        assert_eq!(quick, slow);
    }

    fn lent_payload_is_released_once_after_handler_and_kept_copy() {
        let stage = Stage::new(vec![Lane { lends: true, ..Lane::messages("am") }]);
        let read: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
        let kept: Rc<RefCell<Vec<tieline::KeptMessage>>> = Rc::default();
        let (seen, keeps) = (read.clone(), kept.clone());
        stage.b.on_message(5, move |m| {
            let first = m.keep();
            if m.header() == 0 {
                drop(first);
            } else {
                keeps.borrow_mut().push(first);
            }
            seen.borrow_mut().push(m.payload().to_vec());
            // A second `keep` makes a copy.
            drop(m.keep());
            seen.borrow_mut().push(m.payload().to_vec());
        }).unwrap();
        let given_back = || (stage.world.left()[4], stage.world.calls(Slot::Release).len());
        let (_, before) = given_back();
        let _ = stage.ab.send(5, 0, b"dropped").unwrap();
        assert!(stage.until(|| read.borrow().len() == 2));
        assert_eq!(read.take(), [b"dropped"; 2]);
        assert_eq!(given_back(), (0, before + 1));
        let _ = stage.ab.send(5, 1, b"kept").unwrap();
        assert!(stage.until(|| read.borrow().len() == 2));
        assert_eq!(read.take(), [b"kept"; 2]);
        assert_eq!(given_back(), (1, before + 1));
        let kept = kept.take();
        assert_eq!(kept[0].payload(), b"kept");
        drop(kept);
        assert_eq!(given_back(), (0, before + 2));
        stage.assert_no_faults();
    }

    fn kept_payload_has_its_bytes_at_any_length_and_place() {
        let stage = Stage::new(vec![Lane::messages("am")]);
        let kept: Rc<RefCell<Vec<tieline::KeptMessage>>> = Rc::default();
        let keeps = kept.clone();
        stage.b.on_message(5, move |m| keeps.borrow_mut().push(m.keep())).unwrap();
        let bytes = |len: usize| (0..len).map(|n| (len + n) as u8).collect::<Vec<u8>>();
        for len in 0..80 {
            let _ = stage.ab.send(5, len as u64, &bytes(len)).unwrap();
            assert!(stage.until(|| kept.borrow().len() == len + 1));
        }
        // The kept messages are moved to another address.
        let mut kept: Vec<_> = kept.take().into_iter().map(Box::new).collect();
        kept.reverse();
        for message in kept {
            let len = message.header() as usize;
            assert_eq!((message.id(), message.payload()), (5, &bytes(len)[..]));
            assert!(format!("{message:?}").starts_with(&format!("KeptMessage(5, {len} bytes from ")));
        }
        stage.assert_no_faults();
    }

    fn orderly_leave_of_peer_is_reported_without_error() {
        let stage = Stage::new(vec![Lane::whole("all").late(3)]);
        let second = stage.a.connect(&stage.b.address().unwrap()).unwrap();
        let told: Rc<RefCell<Vec<(&str, String)>>> = Rc::default();
        let (left, failed, came) = (told.clone(), told.clone(), told.clone());
        stage.b.on_peer_left(move |peer| left.borrow_mut().push(("left", peer.to_string())));
        stage.b.on_peer_failure(move |peer, _| failed.borrow_mut().push(("failed", peer.to_string())));
        stage.b.on_message(5, move |m| came.borrow_mut().push(("came", m.peer().to_string()))).unwrap();
        let _ = second.send(5, 0, b"").unwrap();
        assert!(stage.until(|| !told.borrow().is_empty()));
        let peer = told.take()[0].1.clone();
        drop(second);
        stage.settle();
        assert_eq!(*told.borrow(), [], "it has another connection");
        let _ = stage.ab.send(5, 0, b"").unwrap();
        let Stage { ab, ba, a, b, .. } = stage;
        drop((ab, a));
        for _ in 0..500 {
            let _ = b.progress();
        }
        assert_eq!(*told.borrow(), [("came", peer.clone()), ("left", peer)]);
        drop((ba, b));
    }

    /// The receiver has no endpoint to the peer: only the peer uses the connection.
    fn leave_of_peer_is_reported_to_pure_receiver() {
        let mut stage = Stage::new(vec![Lane::whole("all").over_circuits()]);
        let told: Rc<RefCell<Vec<(&str, String)>>> = Rc::default();
        let (left, failed, came) = (told.clone(), told.clone(), told.clone());
        stage.b.on_peer_left(move |peer| left.borrow_mut().push(("left", peer.to_string())));
        stage.b.on_peer_failure(move |peer, _| failed.borrow_mut().push(("failed", peer.to_string())));
        stage.b.on_message(5, move |m| came.borrow_mut().push(("came", m.peer().to_string()))).unwrap();
        let _ = stage.ab.send(5, 0, b"").unwrap();
        assert!(stage.until(|| !told.borrow().is_empty()));
        let peer = told.borrow()[0].1.clone();
        let second = stage.a.connect(&stage.b.address().unwrap()).unwrap();
        drop(std::mem::replace(&mut stage.ba, second));
        stage.settle();
        assert_eq!(told.borrow().len(), 1, "the peer uses it");
        let Stage { ab, ba, a, b, at_a, at_b, world, .. } = stage;
        drop((ab, ba, a));
        for _ in 0..500 {
            let _ = b.progress();
        }
        assert_eq!(*told.borrow(), [("came", peer.clone()), ("left", peer)]);
        assert_eq!(world.faults(), Vec::<String>::new());
        drop((b, at_a, at_b));
    }

    /// A connection that was refused or is still forming never belonged to the peer.
    fn leave_of_peer_is_reported_without_connection_to_it() {
        for refused in [true, false] {
            let stage = Stage::new(vec![
                Lane::messages("am").over_circuits(),
                Lane::memory("rma").on_other_provider().over_circuits(),
            ]);
            let told: Rc<RefCell<Vec<&str>>> = Rc::default();
            let (left, failed) = (told.clone(), told.clone());
            stage.a.on_peer_left(move |_| left.borrow_mut().push("left"));
            stage.a.on_peer_failure(move |_, _| failed.borrow_mut().push("failed"));
            let at = stage.world.interface(0, "rma");
            stage.world.rule(Rule::every(Slot::Bind, Act::Refuse(Status::NoMemory)).at(at));
            let (target, key) = stage.target(vec![0; 8]);
            let put = pending(stage.ab.put_bytes(&[1; 8], &key, 0));
            if refused {
                assert_eq!(stage.end_of(&put), Some(Ok(0)));
                stage.settle();
            }
            assert_eq!(stage.world.was_refused(Slot::Bind), refused);
            assert_eq!(*told.borrow(), [""; 0], "its messages come");
            let Stage { ab, ba, a, b, at_a, at_b, world, .. } = stage;
            drop((ba, b, target));
            for _ in 0..500 {
                let _ = a.progress();
            }
            assert_eq!(*told.borrow(), ["left"], "{refused}");
            assert_eq!(world.faults(), Vec::<String>::new());
            drop((put, key, ab, a, at_a, at_b));
        }
    }

    fn death_of_silent_peer_is_reported() {
        for local in [0, caps::LOCAL_ONLY] {
            let whole = Lane::whole("all");
            let stage = Stage::new(vec![Lane { caps: whole.caps | local, ..whole }]);
            let silent = stage.at_b.worker().unwrap();
            let address = silent.address().unwrap();
            let both = [0, 1].map(|_| stage.a.connect(&address).unwrap());
            for endpoint in &both {
                let _ = endpoint.send(1, 0, b"").unwrap();
            }
            let told = Rc::new(RefCell::new(Vec::new()));
            let seen = told.clone();
            stage.a.on_peer_failure(move |_, error| seen.borrow_mut().push(error.status()));
            let [a, there] = [0, 2].map(|nth| stage.world.interface(nth, "all"));
            stage.world.break_endpoints(a, there, Status::PeerFailed, "it died");
            stage.settle();
            assert_eq!(*told.borrow(), [Status::PeerFailed]);
            stage.assert_no_faults();
        }
    }

    fn peer_is_reported_gone_after_its_last_observing_endpoint() {
        for end in [None, Some(Status::PeerFailed), Some(Status::Closed)] {
            let whole = Lane::whole("all");
            let stage = Stage::new(vec![Lane { caps: whole.caps | caps::LOCAL_ONLY, ..whole }]);
            let peer = stage.at_b.worker().unwrap();
            let there = stage.a.connect(&peer.address().unwrap()).unwrap();
            let back = peer.connect(&stage.a.address().unwrap()).unwrap();
            for endpoint in [&there, &back] {
                let _ = endpoint.send(1, 0, b"").unwrap();
            }
            stage.settle();
            let told = Rc::new(RefCell::new(Vec::new()));
            let seen = told.clone();
            stage.a.on_peer_failure(move |_, error| seen.borrow_mut().push(error.why().to_string()));
            let [at, from] = [0, 2].map(|nth| stage.world.interface(nth, "all"));
            stage.world.leave(from, at, Status::PeerFailed as i32, "it died");
            stage.settle();
            assert_eq!(*told.borrow(), [""; 0]);
            match end {
                Some(status) => stage.world.break_endpoints(at, from, status, "so it did"),
                None => drop(there),
            }
            stage.settle();
            assert_eq!(*told.borrow(), ["it died"], "{end:?}");
            stage.assert_no_faults();
        }
    }

    /// If a handler drops everything about all peers, the next failure is reported in a separate call.
    fn a_handler_of_failures_does_not_run_inside_another() {
        let whole = Lane::whole("all");
        let stage = Stage::new(vec![Lane { caps: whole.caps | caps::LOCAL_ONLY, ..whole }]);
        let peers = [0, 1].map(|_| stage.at_b.worker().unwrap());
        let there = peers.each_ref().map(|peer| stage.a.connect(&peer.address().unwrap()).unwrap());
        let back = peers.each_ref().map(|peer| peer.connect(&stage.a.address().unwrap()).unwrap());
        for endpoint in there.iter().chain(&back) {
            let _ = endpoint.send(1, 0, b"").unwrap();
        }
        for _ in 0..100 {
            let _ = stage.turn();
            peers.iter().for_each(|peer| assert!(peer.progress() < usize::MAX));
        }
        let (kept, depth) = (Rc::new(RefCell::new(Vec::from(there))), Rc::new(Cell::new((0, 0, 0))));
        let (all, seen) = (kept.clone(), depth.clone());
        stage.a.on_peer_failure(move |_, _| {
            let (told, now, most) = seen.get();
            seen.set((told + 1, now + 1, most.max(now + 1)));
            let dropped = std::mem::take(&mut *all.borrow_mut());
            drop(dropped);
            let (told, now, most) = seen.get();
            seen.set((told, now - 1, most));
        });
        let [at, one, other] = [0, 2, 3].map(|nth| stage.world.interface(nth, "all"));
        for from in [one, other] {
            stage.world.leave(from, at, Status::PeerFailed as i32, "it died");
        }
        stage.settle();
        assert_eq!(depth.get().0, 0, "endpoints of ours that see them stand");
        stage.world.break_endpoints(at, one, Status::PeerFailed, "so it did");
        stage.settle();
        assert_eq!(depth.get(), (2, 0, 1));
    }

    fn a_peer_that_failed_has_not_left_in_good_order() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let told: Rc<RefCell<Vec<&str>>> = Rc::default();
        let (left, failed) = (told.clone(), told.clone());
        stage.b.on_peer_left(move |_| left.borrow_mut().push("left"));
        stage.b.on_peer_failure(move |_, _| failed.borrow_mut().push("failed"));
        let (a, b) = (stage.world.interface(0, "all"), stage.world.interface(1, "all"));
        stage.world.leave(a, b, Status::PeerFailed as i32, "it died");
        stage.world.leave(a, b, 0, "");
        stage.settle();
        assert_eq!(*told.borrow(), ["failed"]);
    }

    fn a_connection_without_room_is_made_later() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let log = stage.log_at_b(5);
        let worker = stage.at_a.worker().unwrap();
        stage.world.rule(Rule { times: 20, ..Rule::every(Slot::Connect, Act::Refuse(Status::Again)) });
        let end = worker.connect(&stage.b.address().unwrap()).unwrap();
        let outcomes: Vec<Outcome> = (0..5).map(|i| end.send(5, i, b"waits").unwrap()).collect();
        assert!(stage.until(|| { let _ = worker.progress(); log.borrow().len() == 5 }));
        assert_eq!(*log.borrow(), [0, 1, 2, 3, 4]);
        for outcome in outcomes {
            assert_eq!(worker.finish(outcome), Ok(0));
        }
        stage.assert_no_faults();
    }

    /// A handler drops an endpoint and connects another one, and the failure of the first was delivered by the same poll.
    fn failure_of_removed_endpoint_is_not_passed_to_next_one() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let a = Rc::new(stage.at_a.worker().unwrap());
        let address = stage.b.address().unwrap();
        let old = a.connect(&address).unwrap();
        let _ = old.send(1, 0, b"").unwrap();
        let ends = Rc::new(RefCell::new((Some(old), None)));
        let back = stage.b.connect(&a.address().unwrap()).unwrap();
        let _ = back.send(1, 0, b"").unwrap();
        let _ = (stage.turn(), a.progress());
        let (worker, kept) = (Rc::downgrade(&a), ends.clone());
        a.on_message(5, move |_| {
            let Some(worker) = worker.upgrade() else { return };
            drop(kept.borrow_mut().0.take());
            let next = worker.connect(&address).unwrap();
            let _ = next.send(1, 0, b"").unwrap();
            kept.borrow_mut().1 = Some(next);
        }).unwrap();
        let (at, b) = (stage.world.interface(2, "all"), stage.world.interface(1, "all"));
        stage.world.forge(b, at, 5, 0, b"");
        stage.world.break_endpoints(at, b, Status::TimedOut, "the cable is cut");
        let _ = a.progress();
        let ends = ends.borrow();
        let next = ends.1.as_ref().expect("the handler ran");
        assert!(next.error().is_none(), "{:?}", next.error());
        assert!(next.send(1, 0, b"").is_ok());
    }

    /// No event wakes the worker for messages that can be sent immediately and wait for their turn.
    fn a_worker_does_not_sleep_while_it_can_send_what_is_queued() {
        let stage = Stage::new(vec![Lane::whole("all").sleeping()]);
        let log = stage.log_at_b(5);
        stage.world.rule(Rule::every(Slot::Short, Act::Refuse(Status::Again)));
        for i in 0..40 {
            assert!(!stage.ab.send(5, i, b"").unwrap().is_done());
        }
        stage.world.forget_rules();
        let mut naps = 0;
        while stage.a.pending() > 0 {
            assert!(stage.a.progress() > 0);
            naps += usize::from(stage.a.pending() > 0 && stage.a.arm().unwrap());
        }
        assert_eq!(naps, 0);
        assert_eq!(stage.a.arm(), Ok(true));
        assert!(stage.until(|| log.borrow().len() == 40));
    }

    /// A module need not have a descriptor; without one, the worker polls it for the duration of the wait.
    fn finish_waits_by_polling_where_a_lane_cannot_wake_anybody() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let (target, key) = stage.target(vec![0; 8]);
        let local = stage.local(vec![1; 8]);
        stage.world.change("all", |lane| lane.delay = 6_000);
        let put = stage.ab.put(&local, 0..8, &key, 0).unwrap();
        assert_eq!(stage.a.finish(put), Ok(0));
        assert_eq!(target.to_vec(0..8).unwrap(), [1; 8]);
    }

    fn wait_for_condition_polls_lane_without_wake_up() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let log = stage.log_at_b(5);
        stage.world.change("all", |lane| lane.delay = 6_000);
        let _ = stage.ab.send(5, 42, b"").unwrap();
        let arrived = || { let _ = stage.a.progress(); !log.borrow().is_empty() };
        assert_eq!(stage.b.wait_until(arrived, None), Ok(true));
        assert_eq!(*log.borrow(), [42]);
    }

    fn a_process_that_died_ends_every_endpoint_that_leads_to_it() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let second = stage.at_b.worker().unwrap();
        let there = stage.a.connect(&second.address().unwrap()).unwrap();
        let _ = there.send(1, 0, b"").unwrap();
        let back = second.connect(&stage.a.address().unwrap()).unwrap();
        let _ = back.send(1, 0, b"").unwrap();
        stage.settle();
        let told = Rc::new(RefCell::new(0));
        let count = told.clone();
        stage.a.on_peer_failure(move |_, error| {
            assert_eq!(error.status(), Status::PeerFailed);
            *count.borrow_mut() += 1;
        });
        stage.world.hold(Slot::Put);
        let (_target, _) = stage.target(vec![0; 8]);
        let key = there.import_key(&_target.remote_key().unwrap()).unwrap();
        let put = pending(there.put_bytes(&[1; 8], &key, 0));
        let [a, b, c] = [0, 1, 2].map(|nth| stage.world.interface(nth, "all"));
        for gone in [b, c] {
            stage.world.break_endpoints(a, gone, Status::PeerFailed, "it died");
            stage.world.leave(gone, a, Status::PeerFailed as i32, "it died");
        }
        let ended = stage.end_of(&put).expect("the process is gone").unwrap_err();
        assert_eq!((ended.status(), ended.why()), (Status::PeerFailed, "it died"));
        assert_eq!(stage.ab.error().expect("the process is gone").status(), Status::PeerFailed);
        stage.settle();
        assert_eq!(*told.borrow(), 2);
        stage.assert_no_faults();
    }

    fn connection_with_dead_other_end_fails_alone() {
        let stage = Stage::new(vec![Lane::whole("all").synchronous()]);
        let (target, key) = stage.target(vec![0; 8]);
        let second = stage.at_b.worker().unwrap();
        let there = stage.a.connect(&second.address().unwrap()).unwrap();
        let _ = there.send(1, 0, b"").unwrap();
        let [a, b, c] = [0, 1, 2].map(|nth| stage.world.interface(nth, "all"));
        stage.world.break_endpoints(a, c, Status::PeerFailed, "it died");
        stage.world.leave(b, a, Status::PeerFailed as i32, "it says that it is the other");
        stage.settle();
        assert_eq!(there.error().map(|error| error.status()), Some(Status::PeerFailed));
        assert_eq!(stage.ab.error(), None);
        // An operation that detects the failure does not end the other endpoints.
        let again = stage.a.connect(&stage.b.address().unwrap()).unwrap();
        let lost = again.import_key(&target.remote_key().unwrap()).unwrap();
        stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::PeerFailed)));
        let ended = again.put_bytes(&[1; 8], &lost, 0).unwrap_err();
        assert_eq!(ended.status(), Status::PeerFailed);
        stage.world.forget_rules();
        assert!(again.error().is_some());
        assert_eq!(stage.finish(stage.ab.put_bytes(&[2; 8], &key, 0).unwrap()), Ok(0));
        assert_eq!(target.to_vec(0..8).unwrap(), [2; 8]);
        stage.assert_no_faults();
    }

    fn failed_peer_is_gone_although_its_handler_panics() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let left = Rc::new(RefCell::new(0));
        let count = left.clone();
        stage.b.on_peer_left(move |_| *count.borrow_mut() += 1);
        stage.b.on_peer_failure(|_, _| std::panic::resume_unwind(Box::new("a handler that panics")));
        let (a, b) = (stage.world.interface(0, "all"), stage.world.interface(1, "all"));
        stage.world.leave(a, b, Status::TimedOut as i32, "nothing was heard of it");
        let poll = || std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stage.b.progress()));
        assert!((0..100).any(|_| poll().is_err()), "nobody is told");
        // The peer reconnects, and closes its only connection.
        let log = stage.log_at_b(5);
        let again = stage.a.connect(&stage.b.address().unwrap()).unwrap();
        let _ = again.send(5, 0, b"").unwrap();
        assert!(stage.until(|| !log.borrow().is_empty()));
        drop(again);
        stage.settle();
        assert_eq!(*left.borrow(), 1);
    }
}
