//! Tests of circuits: connections of lanes that connect endpoints, and their teardown.

use crate::cases;
use crate::stage::{Stage, pending};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use tieline::{Access, Outcome, ServiceRequest, Status};
use tieline_fake::{Act, Lane, Rule, Slot};

/// A time limit that is longer than any wait of the tests.
const PATIENCE: Duration = Duration::from_secs(60);
/// The id of a message that answers a request.
const REPLY: u32 = 0xf004;

fn over_circuits() -> Stage {
    Stage::new(vec![Lane::whole("all").over_circuits()])
}

/// Makes the lane refuse the answers of this worker.
fn no_room_for_answers(stage: &Stage, at: usize) {
    for slot in [Slot::Short, Slot::Packed] {
        let rule = Rule::every(slot, Act::Refuse(Status::Again)).at(at);
        stage.world.rule(rule.id(REPLY));
    }
}

cases! {
    fn messages_over_circuits_arrive_and_are_answered() {
        let stage = over_circuits();
        let log = stage.log_at_b(5);
        let (target, key) = stage.target(vec![0; 64]);
        let local = stage.local(vec![1; 8]);
        assert_eq!(stage.finish(stage.ab.put(&local, 0..8, &key, 0).unwrap()), Ok(0));
        assert_eq!(stage.finish(stage.ab.fetch_add(&key, 8, 5).unwrap()), Ok(0));
        let _ = stage.ab.send(5, 7, b"").unwrap();
        assert_eq!(stage.finish(stage.ab.flush_messages().unwrap()), Ok(0));
        assert_eq!((target.to_vec(0..9).unwrap(), log.take()), (vec![1, 1, 1, 1, 1, 1, 1, 1, 5], vec![7]));
        stage.assert_no_faults();
    }

    fn answers_of_circuit_end_with_close_of_its_last_user() {
        let stage = over_circuits();
        let at = stage.world.interface(0, "all");
        no_room_for_answers(&stage, at);
        drop(pending(stage.ba.flush_messages()));
        stage.settle();
        stage.world.rule(Rule::next(Slot::Short, Act::Refuse(Status::PeerFailed)).at(at).id(5));
        assert_eq!(stage.ab.send(5, 0, b"").unwrap_err().status(), Status::PeerFailed);
        let Stage { ab, ba, a, b, world, .. } = stage;
        drop(ab);
        for _ in 0..10 {
            let _ = a.progress();
        }
        assert_eq!(world.faults(), Vec::<String>::new());
        drop((ba, a, b));
    }

    fn answers_of_circuit_end_with_failure_of_its_dropped_user() {
        let stage = over_circuits();
        let at = stage.world.interface(0, "all");
        no_room_for_answers(&stage, at);
        drop(pending(stage.ba.flush_messages()));
        stage.settle();
        let full = Rule::every(Slot::Short, Act::Refuse(Status::Again)).at(at).id(5);
        stage.world.rule(Rule { times: 66, ..full });
        stage.world.rule(Rule::next(Slot::Short, Act::Refuse(Status::PeerFailed)).at(at).id(5));
        drop(pending(stage.ab.send(5, 0, b"")));
        let Stage { ab, ba, a, b, world, .. } = stage;
        drop(ab);
        for _ in 0..10 {
            let _ = a.progress();
        }
        assert_eq!(world.faults(), Vec::<String>::new());
        drop((ba, a, b));
    }

    fn a_circuit_that_fails_while_its_worker_closes_is_not_asked_again() {
        let stage = over_circuits();
        // The test sends nothing on this endpoint.
        let second = stage.b.connect(&stage.a.address().unwrap()).unwrap();
        let log = stage.log_at_b(5);
        let sent = pending(second.send(5, 0, b""));
        assert!(stage.until(|| stage.b.test(&sent).is_some()));
        stage.settle();
        let (a, b) = (stage.world.interface(0, "all"), stage.world.interface(1, "all"));
        stage.world.rule(Rule::every(Slot::Flush, Act::Refuse(Status::Again)).at(a));
        stage.world.break_endpoints(a, b, Status::Io, "the cable is cut");
        let _ = stage.a.close(PATIENCE);
        stage.assert_no_faults();
        drop((log, second));
    }

    fn peer_is_forgotten_with_rest_of_its_circuit() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma").over_circuits()]);
        let (_target, key) = stage.target(vec![0; 8]);
        assert_eq!(stage.finish(stage.ab.put_bytes(&[1; 8], &key, 0).unwrap()), Ok(0));
        let peer = Rc::new(Cell::new(None));
        let seen = peer.clone();
        stage.a.on_message(5, move |m| seen.set(Some(m.peer()))).unwrap();
        let _ = stage.ba.send(5, 0, b"").unwrap();
        assert!(stage.until(|| peer.get().is_some()));
        // The answers are sent through the application's endpoint.
        drop(stage.a.endpoint_to(peer.get().unwrap()).unwrap());
        let at = |nth, lane| stage.world.interface(nth, lane);
        stage.world.break_endpoints(at(0, "rma"), at(1, "rma"), Status::Io, "the cable is cut");
        stage.settle();
        assert!(stage.ab.error().is_none());
        stage.world.leave(at(1, "am"), at(0, "am"), 0, "");
        let (am, Stage { ab, ba, a, b, world, .. }) = (at(0, "am"), stage);
        drop((key, ab));
        world.strangers(am, 1100);
        for _ in 0..200 {
            let _ = a.progress();
        }
        assert!(a.endpoint_to(peer.get().unwrap()).is_err(), "it is remembered still");
        assert_eq!(world.faults(), Vec::<String>::new());
        drop((ba, b));
    }

    fn operations_of_dropped_endpoint_end_with_their_connection() {
        type End = fn(&Stage);
        let circuit: End = |stage| {
            let (a, b) = (stage.world.interface(0, "rma"), stage.world.interface(1, "rma"));
            stage.world.break_endpoints(a, b, Status::Io, "the cable is cut");
        };
        let provider: End = |stage| {
            let at = stage.world.interface(0, "rma");
            stage.world.rule(Rule::every(Slot::Poll, Act::Refuse(Status::ProviderFailed)).at(at));
        };
        let worker: End = |stage| {
            let undelivered = stage.a.close(Duration::ZERO).unwrap_err();
            let [loss] = &undelivered.losses[..] else { panic!("{undelivered}") };
            assert_eq!(loss.operations, 1, "{loss:?}");
            assert!(loss.to.contains("other:rma/rma"), "{loss:?}");
        };
        let ends = [(circuit, Status::Io), (provider, Status::ProviderFailed), (worker, Status::Closed)];
        for (end, status) in ends {
            let lanes = vec![Lane::messages("am"), Lane::memory("rma").on_other_provider().over_circuits()];
            let stage = Stage::new(lanes);
            let (target, _) = stage.target(vec![0; 8]);
            let dropped = stage.a.connect(&stage.b.address().unwrap()).unwrap();
            let key = dropped.import_key(&target.remote_key().unwrap()).unwrap();
            assert_eq!(stage.finish(dropped.put_bytes(&[1; 8], &key, 0).unwrap()), Ok(0));
            stage.world.hold(Slot::Get);
            let local = stage.local(vec![1; 8]);
            let get = pending(dropped.get(&local, 0..8, &key, 0));
            drop((key, dropped));
            stage.settle();
            assert!(stage.a.test(&get).is_none(), "its connection lives");
            end(&stage);
            let ended = stage.end_of(&get).expect("it has nothing to wait for").unwrap_err();
            assert_eq!((ended.status(), stage.a.pending()), (status, 0));
            // After the status `ProviderFailed` the memory may still be accessed.
            assert_eq!(local.close().is_ok(), status != Status::ProviderFailed);
            stage.assert_no_faults();
        }
    }

    /// An operation that the flush covers still writes: `Ok` would mean that its memory may be reused.
    fn a_flush_of_a_dropped_endpoint_is_not_complete_before_what_it_covers() {
        let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma").over_circuits()]);
        let (target, _) = stage.target(vec![0; 8]);
        let dropped = stage.a.connect(&stage.b.address().unwrap()).unwrap();
        let key = dropped.import_key(&target.remote_key().unwrap()).unwrap();
        assert_eq!(stage.finish(dropped.put_bytes(&[1; 8], &key, 0).unwrap()), Ok(0));
        stage.world.hold(Slot::Get);
        let local = stage.local(vec![0; 8]);
        let get = pending(dropped.get(&local, 0..8, &key, 0));
        let flush = pending(dropped.flush());
        drop((key, dropped));
        let ended = stage.end_of(&flush).expect("it ends with its endpoint");
        assert!(stage.a.test(&get).is_none(), "it goes on");
        assert_eq!(ended.unwrap_err().status(), Status::Canceled);
        stage.world.release_held();
        assert_eq!(stage.end_of(&get), Some(Ok(0)));
        assert_eq!(local.to_vec(0..8).unwrap(), [1; 8]);
        stage.assert_no_faults();
    }

    /// An interface that is out of use does not report failures of peers that were connected there.
    fn peer_failure_is_reported_beside_interface_out_of_use() {
        for status in [Status::ProviderFailed, Status::Io] {
            let lanes = vec![
                Lane::messages("am").over_circuits(),
                Lane::memory("rma").on_other_provider().over_circuits(),
            ];
            let stage = Stage::new(lanes);
            let at = |nth, lane| stage.world.interface(nth, lane);
            // The connection is used only by the peer.
            let region = stage.at_a.register_with(vec![0; 8], Access::ALL).unwrap();
            let key = stage.ba.import_key(&region.remote_key().unwrap()).unwrap();
            let put = pending(stage.ba.put_bytes(&[1; 8], &key, 0));
            assert!(stage.until(|| stage.b.test(&put) == Some(Ok(0))));
            stage.settle();
            let told: Rc<RefCell<Vec<Status>>> = Rc::default();
            let failed = told.clone();
            stage.a.on_peer_failure(move |_, error| failed.borrow_mut().push(error.status()));
            let refuse = Rule::every(Slot::Poll, Act::Refuse(status)).at(at(0, "rma"));
            stage.world.rule(refuse);
            stage.settle();
            stage.world.break_endpoints(at(0, "am"), at(1, "am"), Status::PeerFailed, "it died");
            stage.settle();
            assert_eq!(stage.ab.error().map(|e| e.status()), Some(Status::PeerFailed));
            assert_eq!(*told.borrow(), [Status::PeerFailed], "{status:?}");
            stage.assert_no_faults();
        }
    }

    fn a_provider_that_broke_is_not_called_over_its_lines() {
        let lanes = vec![Lane::messages("am"), Lane::memory("rma").on_other_provider().over_circuits()];
        let stage = Stage::new(lanes);
        let (_target, key) = stage.target(vec![0; 8]);
        assert_eq!(stage.finish(stage.ab.put_bytes(&[1; 8], &key, 0).unwrap()), Ok(0));
        let at = stage.world.interface(0, "rma");
        stage.world.rule(Rule::every(Slot::Poll, Act::Refuse(Status::ProviderFailed)).at(at));
        stage.settle();
        let asked = || stage.world.calls(Slot::Flush).iter().filter(|c| c.interface == at).count();
        let before = asked();
        let _ = stage.a.close(Duration::ZERO);
        assert_eq!(asked(), before);
    }

    fn a_question_to_a_closed_worker_leaves_nothing_behind() {
        let stage = over_circuits();
        let address = stage.a.address().unwrap();
        stage.a.close(PATIENCE).unwrap();
        let carried = stage.carry_for_a();
        let late = stage.b.connect(&address).unwrap();
        drop(pending(late.flush_messages()));
        stage.settle();
        let world = stage.world;
        drop((late, stage));
        assert_eq!(world.left(), [0; 5], "interfaces, endpoints, keys, registrations, lent payloads");
        assert_eq!(carried.unwrap_err().status(), Status::Closed);
        assert_eq!(world.faults(), Vec::<String>::new());
    }

    /// The application still holds an endpoint of the same connection and was not notified of its failure.
    fn request_to_closed_worker_fails_immediately() {
        let stage = over_circuits();
        let (_target, _key) = stage.target(vec![0; 8]);
        stage.a.close(PATIENCE).unwrap();
        let asked = pending(stage.ba.flush_messages());
        assert!(stage.until(|| stage.b.test(&asked).is_some()), "it waits for no answer");
        assert!(stage.b.test(&asked).unwrap().is_err());
        drop((_key, _target));
        stage.assert_no_faults();
    }

    /// The packer closes the worker or exceeds a timeout, so the connection is closed while its provider executes the packer.
    fn a_connection_that_packs_is_closed_when_it_has_packed() {
        let stage = over_circuits();
        let asked = RefCell::new(None);
        let _ = stage.ab.send_packed(5, 0, 8, |_| {
            no_room_for_answers(&stage, stage.world.interface(0, "all"));
            *asked.borrow_mut() = Some(pending(stage.ba.flush_messages()));
            stage.settle();
            let _ = stage.a.close(Duration::ZERO);
            stage.settle();
            0
        });
        stage.assert_no_faults();
        let asked = asked.take().unwrap();
        assert!(stage.until(|| stage.b.test(&asked).is_some()), "it is hung up on afterwards");
        stage.assert_no_faults();
    }

    fn a_connection_whose_packer_panics_is_closed_behind_it() {
        let stage = over_circuits();
        let asked = RefCell::new(None);
        let packing = std::panic::AssertUnwindSafe(|| {
            let _ = stage.ab.send_packed(5, 0, 8, |_| {
                let _ = stage.a.close(Duration::ZERO);
                *asked.borrow_mut() = stage.ba.flush_messages().ok();
                stage.settle();
                panic!("a packer");
            });
        });
        assert!(std::panic::catch_unwind(packing).is_err());
        let Some(Outcome::Pending(asked)) = asked.take() else { panic!("it was told before") };
        assert!(stage.until(|| stage.b.test(&asked).is_some()), "it is hung up on afterwards");
        stage.assert_no_faults();
    }

    /// The answer is still pending, and the application holds an endpoint of the connection.
    fn request_pending_at_worker_close_is_answered_closed() {
        for lane in [Lane::whole("all").over_circuits(), Lane::whole("all")] {
            let stage = Stage::new(vec![lane]);
            no_room_for_answers(&stage, stage.world.interface(0, "all"));
            let asked = pending(stage.ba.flush_messages());
            stage.settle();
            assert!(stage.b.test(&asked).is_none());
            let _ = stage.a.close(Duration::ZERO).unwrap_err();
            assert!(stage.until(|| stage.b.test(&asked).is_some()), "it waits for no answer");
            assert!(stage.b.test(&asked).unwrap().is_err());
            stage.assert_no_faults();
        }
    }

    /// The answer cannot be sent, because there is no route back.
    fn requester_without_route_back_learns_of_worker_close() {
        let stage = Stage::new(vec![Lane::messages("am")]);
        let third = crate::stage::context(stage.world, &[]);
        let c = third.worker().unwrap();
        let ca = c.connect(&stage.a.address().unwrap()).unwrap();
        let at = stage.world.interface(0, "am");
        stage.world.rule(Rule::every(Slot::Connect, Act::Refuse(Status::NoMemory)).at(at));
        let asked = pending(ca.flush_messages());
        let turn = || stage.turn() + c.progress();
        for _ in 0..200 {
            let _ = turn();
        }
        assert!(c.test(&asked).is_none());
        let undelivered = stage.a.close(Duration::ZERO).unwrap_err();
        assert_eq!(undelivered.losses.iter().map(|loss| loss.answers).sum::<usize>(), 1);
        for _ in 0..200 {
            let _ = turn();
        }
        assert!(c.test(&asked).expect("it waits for no answer").is_err());
        stage.assert_no_faults();
    }

    fn impossible_connection_is_refused_with_reason_in_first_answer() {
        let stage = over_circuits();
        let said: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
        let words = said.clone();
        let carries = move |_: &[u8], datagram: &[u8]| {
            words.borrow_mut().push(datagram.to_vec());
            true
        };
        stage.b.set_out_of_band(&[1], carries).unwrap();
        let at = stage.world.interface(1, "all");
        stage.world.rule(Rule::every(Slot::Connect, Act::Refuse(Status::NoMemory)).at(at));
        let late = stage.a.connect(&stage.b.address().unwrap()).unwrap();
        let asked = pending(late.flush_messages());
        let _ = stage.turn();
        let [rejection] = &said.take()[..] else { panic!("one answer to one request") };
        stage.a.deliver_out_of_band(rejection).unwrap();
        let error = stage.end_of(&asked).expect("it has heard").unwrap_err();
        assert!(error.to_string().contains("was rejected by the peer"), "{error}");
        stage.assert_no_faults();
    }

    fn service_request_to_closed_worker_is_answered_closed() {
        for over_circuits in [true, false] {
            let stage = Stage::new(vec![Lane { to_endpoint: over_circuits, ..Lane::whole("all") }]);
            let kept: Rc<RefCell<Vec<ServiceRequest>>> = Rc::default();
            let keeps = kept.clone();
            stage.a.listen("store", 4, move |request| keeps.borrow_mut().push(request)).unwrap();
            let address = stage.a.address().unwrap();
            let early = stage.b.connect_to_service(&address, "store", b"").unwrap();
            assert!(stage.until(|| !kept.borrow().is_empty()));
            stage.a.close(PATIENCE).unwrap();
            assert!(stage.until(|| early.test().is_some()), "it waits for no answer");
            // A closed worker accepts no new connection.
            if !over_circuits {
                let late = stage.b.connect_to_service(&address, "store", b"").unwrap();
                assert!(stage.until(|| late.test().is_some()), "it waits for no answer");
                assert!(late.test().unwrap().is_err());
            }
            let request = kept.borrow_mut().pop().unwrap();
            assert_eq!(request.accept(b"").unwrap_err().status(), Status::Closed);
            stage.assert_no_faults();
        }
    }
}
