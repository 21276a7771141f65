//! Tests of closing workers and endpoints: posted operations are delivered or reported as lost, and no resource remains.

use crate::cases;
use crate::stage::{Stage, pending};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use tieline::{Completion, Outcome, Status};
use tieline_fake::{Act, Lane, Rule, Slot, World};

/// A time limit that is longer than any wait of the tests.
const PATIENCE: Duration = Duration::from_secs(60);

cases! {
    fn leave_of_peer_is_reported_after_its_failed_endpoint_was_dropped() {
        let stage = Stage::new(vec![
            Lane::messages("am").over_circuits(),
            Lane::memory("rma").on_other_provider().over_circuits(),
        ]);
        let told: Rc<RefCell<Vec<&str>>> = Rc::default();
        let (left, failed, ended) = (told.clone(), told.clone(), told.clone());
        stage.a.on_peer_left(move |_| left.borrow_mut().push("left"));
        stage.a.on_peer_failure(move |_, _| failed.borrow_mut().push("failed"));
        stage.a.on_endpoint_failure(move |_, _| ended.borrow_mut().push("ended"));
        let (target, key) = stage.target(vec![0; 8]);
        assert_eq!(stage.ended(stage.ab.put_bytes(&[1; 8], &key, 0)), Ok(0));
        let _ = stage.ab.send(5, 0, b"").unwrap();
        stage.settle();
        let (from, to) = (stage.world.interface(0, "am"), stage.world.interface(1, "am"));
        stage.world.break_endpoints(from, to, Status::Closed, "it leaves");
        stage.settle();
        assert_eq!(*told.borrow(), [""; 0], "its other connection has not ended");
        let Stage { ab, ba, a, b, at_a, at_b, world, .. } = stage;
        assert_eq!(ab.error().expect("it has failed").status(), Status::Closed);
        drop((key, ab));
        drop((ba, b, target));
        for _ in 0..500 {
            let _ = a.progress();
        }
        assert_eq!(*told.borrow(), ["left"]);
        assert_eq!(world.faults(), Vec::<String>::new());
        drop((a, at_a, at_b));
    }

    /// `Done` means that the transport has accepted the message; a close must not lose it.
    fn a_worker_that_is_dropped_has_lost_nothing_that_was_done() {
        let lane = Lane { again: 300, ..Lane::whole("all").late(40) };
        let stage = Stage::new(vec![lane]);
        let log = stage.log_at_b(5);
        let mut done = Vec::new();
        let mut open = Vec::new();
        for i in 0..60 {
            match stage.ab.send(5, i, b"12345678").unwrap() {
                Outcome::Done(_) => done.push(i),
                Outcome::Pending(request) => open.push((i, request)),
            }
            let _ = stage.a.progress();
        }
        done.extend(open.iter().filter(|(_, r)| stage.a.test(r).is_some()).map(|(i, _)| *i));
        drop(open);
        let Stage { ab, ba, a, b, .. } = stage;
        drop((ab, a));
        for _ in 0..500 {
            let _ = b.progress();
        }
        done.retain(|i| !log.borrow().contains(i));
        assert_eq!(done, Vec::<u64>::new(), "these said Done");
        drop((ba, b));
    }

    fn a_worker_that_is_closed_has_delivered_everything() {
        let lane = Lane { again: 300, ..Lane::whole("all").late(40) };
        let stage = Stage::new(vec![lane]);
        let log = stage.log_at_b(5);
        let (target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 64]);
        for i in 0..60 {
            drop(stage.ab.send(5, i, b"12345678").unwrap());
        }
        drop(stage.ab.put_with(&local, 0..32, &key, 0, Completion::Local).unwrap());
        drop(stage.ab.put(&local, 0..32, &key, 32).unwrap());
        stage.a.close(PATIENCE).unwrap();
        assert_eq!(stage.a.pending(), 0);
        assert_eq!(target.to_vec(0..64).unwrap(), [1; 64]);
        let Stage { ab, ba, a, b, world, .. } = stage;
        drop((ab, a));
        for _ in 0..500 {
            let _ = b.progress();
        }
        assert!(log.borrow().iter().copied().eq(0..60));
        drop((ba, b));
        assert_eq!(world.faults(), Vec::<String>::new());
    }

    fn close_after_close_of_peer_loses_nothing() {
        for (status, is_lost) in [(Status::Closed, false), (Status::Io, true)] {
            for act in [Act::Refuse(status), Act::FailLater(status)] {
                let stage = Stage::new(vec![Lane::whole("all")]);
                let _log = stage.log_at_b(5);
                let sent = stage.ab.send(5, 0, b"farewell").unwrap();
                let _ = stage.a.finish(sent).unwrap();
                stage.world.rule(Rule::next(Slot::Flush, act));
                let closed = stage.a.close(PATIENCE);
                assert_eq!(stage.world.calls(Slot::Flush).len(), 1, "{act:?}");
                assert_eq!(closed.is_err(), is_lost, "{act:?}: {closed:?}");
            }
        }
    }

    fn messages_posted_by_handler_during_close_are_flushed_too() {
        thread_local! {
            static WORLD: Cell<Option<&'static World>> = const { Cell::new(None) };
            static HANDLED: Cell<bool> = const { Cell::new(false) };
        }
        /// Delivers a message after the lanes were asked to confirm delivery. The lanes confirm delivery when the message has been
        /// handled.
        fn comes_late() {
            let Some(world) = WORLD.get().filter(|world| !world.calls(Slot::Flush).is_empty()) else { return };
            if HANDLED.get() {
                WORLD.set(None);
                world.forget_rules();
                world.release_held();
            } else if world.undelivered() == 0 {
                world.forge(world.interface(1, "all"), world.interface(0, "all"), 5, 0, b"");
            }
        }
        for way in ["a message", "a message over a lane that it opens", "a put that ends locally"] {
            let stage = Stage::new(vec![Lane::whole("all")]);
            stage.settle();
            let (_target, key) = stage.target(vec![0; 8]);
            let (ab, local) = (stage.ab.clone(), stage.local(vec![1; 8]));
            let new = stage.a.connect(&stage.b.address().unwrap()).unwrap();
            stage.a.on_message(5, move |_| {
                if HANDLED.replace(true) {
                    return;
                }
                drop(match way {
                    "a message" => ab.send(6, 0, b"12345678").unwrap(),
                    "a put that ends locally" => ab.put_with(&local, 0..8, &key, 0, Completion::Local).unwrap(),
                    _ => new.send(6, 0, b"12345678").unwrap(),
                });
            }).unwrap();
            stage.world.hold(Slot::Flush);
            WORLD.set(Some(stage.world));
            HANDLED.set(false);
            stage.world.meanwhile(comes_late);
            stage.a.close(PATIENCE).unwrap();
            assert!(HANDLED.get(), "{way}");
            let calls = stage.world.calls_at(stage.world.interface(0, "all"));
            let last = |slots: &[Slot]| calls.iter().rposition(|slot| slots.contains(slot));
            assert!(last(&[Slot::Short, Slot::Put]) < last(&[Slot::Flush]), "{way}: {calls:?}");
            stage.assert_no_faults();
        }
    }

    /// A reply to each message of a peer that never stops: here the worker itself.
    fn close_ends_in_time_while_handlers_keep_posting() {
        /// Without the time limit, the close would end with `Ok` after these.
        const MOST: u32 = 100_000;
        thread_local! {
            static WORLD: Cell<Option<&'static World>> = const { Cell::new(None) };
            static POLLS: Cell<u32> = const { Cell::new(0) };
        }
        /// A lane confirms delivery some polls after it was asked, so that handlers run in between.
        fn confirm_late() {
            POLLS.set(POLLS.get() + 1);
            WORLD.get().filter(|_| POLLS.get() % 4 == 0).into_iter().for_each(World::release_held);
        }
        let stage = Stage::new(vec![Lane::whole("all")]);
        let me = stage.a.connect(&stage.a.address().unwrap()).unwrap();
        let (reply, sent) = (me.clone(), Cell::new(0));
        stage.a.on_message(5, move |_| {
            if sent.replace(sent.get() + 1) < MOST {
                drop(reply.send(5, 0, b"again"));
            }
        }).unwrap();
        stage.world.hold(Slot::Flush);
        WORLD.set(Some(stage.world));
        stage.world.meanwhile(confirm_late);
        drop(me.send(5, 0, b"first").unwrap());
        let undelivered = stage.a.close(Duration::from_millis(100)).unwrap_err();
        assert_eq!(undelivered.error.status(), Status::TimedOut);
        assert!(undelivered.to_string().contains("handlers kept posting"), "{undelivered}");
        assert!(undelivered.losses.iter().any(|loss| loss.unconfirmed), "{undelivered}");
        stage.assert_no_faults();
    }

    fn undelivered_messages_of_closed_worker_are_reported() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        stage.world.hold(Slot::Put);
        let (_target, key) = stage.target(vec![0; 8]);
        let local = stage.local(vec![1; 8]);
        let put = pending(stage.ab.put(&local, 0..8, &key, 0));
        let undelivered = stage.a.close(Duration::ZERO).unwrap_err();
        assert_eq!(undelivered.error.status(), Status::TimedOut);
        let [loss] = &undelivered.losses[..] else { panic!("{undelivered}") };
        assert_eq!((loss.operations, loss.answers), (1, 0), "{loss:?}");
        assert!(loss.to.contains("fake:all/all"), "{loss:?}");
        assert_eq!(stage.a.test(&put).unwrap().unwrap_err().status(), Status::Closed);
        stage.assert_no_faults();
    }

    fn unconfirmed_messages_of_closed_worker_are_reported() {
        for lane in [Lane::whole("all"), Lane::whole("all").over_circuits()] {
            let stage = Stage::new(vec![lane]);
            stage.world.hold(Slot::Flush);
            assert_eq!(stage.ended(stage.ab.send(5, 0, b"taken")), Ok(0));
            stage.world.hold(Slot::Put);
            let (_target, key) = stage.target(vec![0; 8]);
            drop(pending(stage.ab.put_bytes(&[1; 8], &key, 0)));
            stage.world.release_held();
            let undelivered = stage.a.close(Duration::from_millis(50)).unwrap_err();
            let [loss] = &undelivered.losses[..] else { panic!("{undelivered}") };
            assert!(loss.unconfirmed && loss.operations <= 1, "{loss:?}");
            stage.assert_no_faults();
        }
    }

    fn unreported_failure_is_reported_by_worker_close() {
        for (lanes, way) in [
            (vec![Lane::whole("all").late(3)], "said pending"),
            (vec![Lane::messages("am")], "said done"),
            (vec![Lane::whole("all").late(3)], "its request is held"),
        ] {
            let stage = Stage::new(lanes);
            let (target, key) = stage.target(vec![0; 8]);
            let local = stage.local(vec![1; 8]);
            stage.world.rule(Rule::next(Slot::Put, Act::FailLater(Status::KeyRejected)));
            let put = match way {
                "said done" => stage.ab.put_with(&local, 0..8, &key, 0, Completion::Local),
                _ => stage.ab.put(&local, 0..8, &key, 0),
            };
            let put = put.unwrap();
            assert_eq!(put.is_done(), way == "said done");
            // The target's memory is gone when the operation is carried out.
            drop(target);
            let held = Some(put).filter(|_| way == "its request is held");
            stage.settle();
            if let Some(Outcome::Pending(put)) = held {
                stage.a.close(PATIENCE).unwrap();
                assert_eq!(stage.a.test(&put).unwrap().unwrap_err().status(), Status::KeyRejected);
                continue;
            }
            let undelivered = stage.a.close(PATIENCE).unwrap_err();
            assert_eq!(undelivered.error.status(), Status::KeyRejected, "{way}: {undelivered}");
            let [loss] = &undelivered.losses[..] else { panic!("{way}: {undelivered}") };
            assert!(loss.unconfirmed && loss.operations == 0, "{way}: {loss:?}");
        }
    }

    fn a_worker_that_is_closed_has_answered_its_peers() {
        let stage = Stage::new(vec![Lane::messages("am").late(5)]);
        let target = stage.at_a.register(vec![7; 64]).unwrap();
        let key = stage.ba.import_key(&target.remote_key().unwrap()).unwrap();
        let local = stage.at_b.register(vec![0; 64]).unwrap();
        // The route back refuses the answers at first.
        let at = stage.world.interface(0, "am");
        for slot in [Slot::Short, Slot::Packed] {
            stage.world.rule(Rule { times: 30, ..Rule::every(slot, Act::Refuse(Status::Again)).at(at) });
        }
        let get = pending(stage.ba.get(&local, 0..64, &key, 0));
        while stage.a.counters().emulated == 0 {
            let _ = stage.turn();
        }
        stage.a.close(PATIENCE).unwrap();
        assert!(stage.until(|| stage.b.test(&get).is_some()));
        assert_eq!(stage.b.test(&get), Some(Ok(0)));
        assert_eq!(local.to_vec(0..64).unwrap(), [7; 64]);
        stage.assert_no_faults();
    }

    fn answers_that_a_closed_worker_could_not_give_are_named() {
        let no_room = [(Slot::Short, Status::Again), (Slot::Packed, Status::Again)];
        for (refused, to) in [(&no_room[..], "fake:am/am"), (&[(Slot::Connect, Status::NoMemory)], "peer ")] {
            let stage = Stage::new(vec![Lane::messages("am")]);
            let third = crate::stage::context(stage.world, &[]);
            let c = third.worker().unwrap();
            let ca = c.connect(&stage.a.address().unwrap()).unwrap();
            let target = stage.at_a.register(vec![0; 64]).unwrap();
            let key = ca.import_key(&target.remote_key().unwrap()).unwrap();
            let at = stage.world.interface(0, "am");
            for (slot, status) in refused {
                stage.world.rule(Rule::every(*slot, Act::Refuse(*status)).at(at));
            }
            let asked = [0; 3].map(|_| pending(ca.fetch_add(&key, 0, 1)));
            while stage.a.counters().emulated < 3 {
                let _ = stage.a.progress() + c.progress();
            }
            let undelivered = stage.a.close(Duration::ZERO).unwrap_err();
            assert_eq!(undelivered.error.status(), Status::TimedOut);
            let [loss] = &undelivered.losses[..] else { panic!("{undelivered}") };
            assert_eq!((loss.operations, loss.answers, loss.unconfirmed), (0, 3, false), "{loss:?}");
            assert!(loss.to.contains(to), "{loss:?}");
            assert!(undelivered.to_string().contains("3 answers"), "{undelivered}");
            drop(asked);
            stage.assert_no_faults();
        }
    }

    fn nothing_is_left_when_everything_is_dropped() {
        let world = {
            let stage = Stage::new(vec![Lane::messages("am").late(3), Lane::memory("rma").late(3)]);
            let (_target, key) = stage.target(vec![0; 64]);
            let local = stage.local(vec![1; 64]);
            let mut open = Vec::new();
            for i in 0..20 {
                open.push(stage.ab.put(&local, 0..8, &key, 8 * (i % 8)).unwrap());
                open.push(stage.ab.fetch_add(&key, 0, 1).unwrap());
                open.push(stage.ab.send(5, i, b"nobody listens").unwrap());
                open.push(stage.ab.get(&local, 8..16, &key, 0).unwrap());
                let _ = stage.turn();
            }
            let world = stage.world;
            drop(open);
            drop((key, local, _target));
            drop(stage);
            world
        };
        assert_eq!(world.left(), [0; 5], "interfaces, endpoints, keys, registrations, lent payloads");
        assert_eq!(world.faults(), Vec::<String>::new());
    }

    /// The last reference is an endpoint, an operation or a message.
    fn last_reference_to_dropped_worker_keeps_its_interfaces_open() {
        for which in 0..3 {
            let stage = Stage::new(vec![Lane { lends: true, ..Lane::whole("all") }]);
            let kept = Rc::new(RefCell::new(None));
            let keeps = kept.clone();
            stage.a.on_message(5, move |m| *keeps.borrow_mut() = Some(m.keep())).unwrap();
            let _ = stage.ba.send(5, 0, b"kept").unwrap();
            assert!(stage.until(|| kept.borrow().is_some()));
            stage.world.hold(Slot::Put);
            let (target, key) = stage.target(vec![0; 64]);
            let local = stage.local(vec![1; 64]);
            let put = pending(stage.ab.put(&local, 0..8, &key, 0));
            drop((target, key, local));
            let Stage { ab, ba, a, b, at_a, at_b, world, .. } = stage;
            let mut held: Vec<Box<dyn Any>> = vec![Box::new(ab), Box::new(put), Box::new(kept.take())];
            drop((ba, a, b, at_a, at_b));
            let last = held.swap_remove(which);
            drop(held);
            let [interfaces, endpoints, _, registrations, _] = world.left();
            let own = usize::from(which == 0);
            assert_eq!((interfaces, endpoints, registrations), (1, own, own));
            drop(last);
            assert_eq!(world.left(), [0; 5]);
            assert_eq!(world.faults(), Vec::<String>::new());
        }
    }

    fn an_endpoint_that_is_dropped_ends_what_it_had() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        stage.world.hold(Slot::Put);
        let (target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 64]);
        let worker = stage.at_a.worker().unwrap();
        let end = worker.connect(&stage.b.address().unwrap()).unwrap();
        let own = end.import_key(&target.remote_key().unwrap()).unwrap();
        let put = pending(end.put(&local, 0..8, &own, 0));
        drop((own, end));
        let ended = worker.test(&put).expect("its endpoint is gone");
        assert_eq!(ended.unwrap_err().status(), Status::Canceled);
        assert_eq!(worker.pending(), 0);
        drop((local, key));
        stage.world.release_held();
        stage.settle();
        stage.assert_no_faults();
    }

    fn an_endpoint_that_answers_went_through_is_closed_when_it_is_dropped() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        stage.world.hold(Slot::Put);
        let (_target, key) = stage.target(vec![0; 8]);
        let local = stage.local(vec![1; 8]);
        let put = pending(stage.ab.put(&local, 0..8, &key, 0));
        let open = stage.world.left()[1];
        let Stage { ab, ba, a, b, world, at_a, at_b, .. } = stage;
        drop(ab);
        assert_eq!((a.test(&put), world.left()[1]), (None, open), "its key holds it");
        drop(key);
        assert_eq!(a.test(&put).expect("its endpoint is gone").unwrap_err().status(), Status::Canceled);
        assert_eq!(world.left()[1], open - 1);
        // A later request is still answered.
        for _ in 0..2 {
            let asked = pending(ba.flush_messages());
            while b.test(&asked).is_none() {
                let _ = a.progress() + b.progress();
            }
            assert_eq!(b.test(&asked), Some(Ok(0)));
        }
        assert_eq!(world.faults(), Vec::<String>::new());
        drop((put, ba, a, b, at_a, at_b));
        assert_eq!(world.left()[..3], [0; 3]);
    }

    fn memory_of_a_dropped_endpoint_stays_until_the_provider_has_closed_it() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        stage.world.hold(Slot::Get);
        let (target, key) = stage.target(vec![0; 64]);
        let worker = stage.at_a.worker().unwrap();
        let end = worker.connect(&stage.b.address().unwrap()).unwrap();
        let own = end.import_key(&target.remote_key().unwrap()).unwrap();
        let local = stage.local(vec![1; 64]);
        drop(pending(end.get(&local, 0..64, &own, 0)));
        let registered = stage.world.left()[3];
        drop(local);
        assert_eq!(stage.world.left()[3], registered, "the operation has it");
        drop((own, end));
        assert_eq!(stage.world.left()[3], registered - 1);
        assert_eq!(worker.pending(), 0);
        drop(key);
        stage.assert_no_faults();
    }

    fn a_closed_worker_takes_no_handler_that_may_hold_it() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        stage.a.close(PATIENCE).unwrap();
        let held = [0, 1, 2, 3].map(|_| stage.ab.clone());
        let [message, failure, left, service] = held;
        let refused = stage.a.on_message(5, move |_| drop(message.error()));
        assert_eq!(refused.unwrap_err().status(), Status::Closed);
        let refused = stage.a.listen("shelf", 1, move |_| drop(service.error()));
        assert_eq!(refused.unwrap_err().status(), Status::Closed);
        stage.a.on_peer_failure(move |_, _| drop(failure.error()));
        stage.a.on_peer_left(move |_| drop(left.error()));
        let world = stage.world;
        drop(stage);
        assert_eq!(world.left(), [0; 5], "interfaces, endpoints, keys, registrations, lent payloads");
    }
}
