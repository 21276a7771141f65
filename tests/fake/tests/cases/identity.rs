//! Tests of the identities of endpoints and peers: numbers, user data, the sender of a message, the endpoint that failed.

use crate::cases;
use crate::stage::Stage;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;
use tieline::{Endpoint, PeerId, Status, Worker};
use tieline_fake::{Act, Lane, Rule, Slot};

/// The senders of messages with id 5, as `b` receives them: the peer's number, and the user data of the endpoint to it.
type Senders = Log<(PeerId, Option<u64>)>;
type Log<T> = Rc<RefCell<Vec<T>>>;

fn senders_at_b(stage: &Stage) -> Senders {
    let seen = Senders::default();
    let log = seen.clone();
    stage
        .b
        .on_message(5, move |message| {
            let word = message.endpoint().map(|endpoint| endpoint.user());
            log.borrow_mut().push((message.peer(), word));
        })
        .unwrap();
    seen
}

fn sent(stage: &Stage, seen: &Senders) -> (PeerId, Option<u64>) {
    seen.borrow_mut().clear();
    let _ = stage.ab.send(5, 0, b"").unwrap();
    assert!(stage.until(|| !seen.borrow().is_empty()));
    seen.borrow()[0]
}

fn broken(stage: &Stage) {
    let (a, b) = (stage.world.interface(0, "all"), stage.world.interface(1, "all"));
    stage.world.break_endpoints(a, b, Status::PeerFailed, "it died");
    assert!(stage.until(|| stage.ab.error().is_some()));
    stage.settle();
}

/// A value that registers another handler when it is dropped.
struct Again(Weak<Worker>, Rc<Cell<u32>>);

impl Drop for Again {
    fn drop(&mut self) {
        self.1.set(self.1.get() + 1);
        if let Some(worker) = self.0.upgrade() {
            worker.on_peer_failure(|_, _| {});
            worker.on_peer_left(|_| {});
            worker.on_endpoint_failure(|_, _| {});
            worker.on_notification(|_, _| {}).unwrap();
        }
    }
}

cases! {
    fn clones_are_one_endpoint_and_separate_connects_are_two() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let again = stage.a.connect(&stage.b.address().unwrap()).unwrap();
        let clone = stage.ab.clone();
        assert!(clone == stage.ab && clone != again && again != stage.ba);
        assert_eq!((clone.id(), clone.peer()), (stage.ab.id(), again.peer()));
        assert_ne!(clone.id(), again.id());
        clone.set_user(u64::MAX);
        assert_eq!((stage.ab.user(), again.user()), (u64::MAX, 0));
        let gone = again.id();
        drop(again);
        let next = stage.a.connect(&stage.b.address().unwrap()).unwrap();
        assert_ne!(next.id(), gone, "a number is given away once");
        assert_eq!(next.user(), 0);
    }

    fn message_names_endpoint_back_to_sender_if_one_exists() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let Stage { b, ba, .. } = &stage;
        let (seen, number) = (senders_at_b(&stage), ba.peer());
        ba.set_user(1);
        let later = b.connect(&stage.a.address().unwrap()).unwrap();
        later.set_user(2);
        assert_eq!(sent(&stage, &seen), (number, Some(1)), "the one that was made first");
        assert!(b.known_endpoint(number).is_some_and(|known| known == *ba));
        let Stage { ab, ba, a, b, at_a, at_b, world, .. } = stage;
        drop(ba);
        let log = seen.clone();
        let _ = ab.send(5, 0, b"").unwrap();
        log.borrow_mut().clear();
        let turn = || { let _ = a.progress() + b.progress(); };
        (0..200).for_each(|_| turn());
        assert_eq!(*seen.borrow(), [(number, Some(2))]);
        drop(later);
        log.borrow_mut().clear();
        // The endpoint that carries the answers belongs to the library.
        let met = ab.flush_messages().unwrap();
        let _ = ab.send(5, 0, b"").unwrap();
        (0..200).for_each(|_| turn());
        assert_eq!(*seen.borrow(), [(number, None)]);
        assert!(b.known_endpoint(number).is_none());
        drop((met, at_a, at_b, world));
    }

    fn one_that_has_failed_is_named_no_more() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let number = stage.ab.peer();
        assert!(stage.a.known_endpoint(number).is_some());
        broken(&stage);
        assert!(stage.a.known_endpoint(number).is_none());
        let again = stage.a.connect(&stage.b.address().unwrap()).unwrap();
        assert!(stage.a.known_endpoint(number).is_some_and(|known| known == again));
        assert_eq!(again.peer(), number);
    }

    /// Two thousand other peers connect and leave.
    fn peer_with_endpoint_keeps_its_number_among_many_peers() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let third = crate::stage::context(stage.world, &[]);
        let c = third.worker().unwrap();
        let (silent, dropped) = (stage.b.connect(&c.address().unwrap()).unwrap(), third.worker().unwrap());
        let gone = stage.b.connect(&dropped.address().unwrap()).unwrap();
        let (numbers, at) = ((silent.peer(), gone.peer()), stage.world.interface(1, "all"));
        drop(gone);
        stage.world.strangers(at, 2000);
        (0..2100).for_each(|_| { let _ = stage.turn(); });
        assert_eq!(silent.peer(), numbers.0);
        let anew = stage.b.connect(&dropped.address().unwrap()).unwrap();
        assert_ne!(anew.peer(), numbers.1, "nobody led there");
    }

    fn endpoint_failure_is_reported_once_and_before_its_peers() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let dropped = stage.a.connect(&stage.b.address().unwrap()).unwrap();
        let (_target, key) = stage.target(vec![0; 8]);
        stage.ab.set_user(17);
        let told = Log::<(Option<u64>, Status)>::default();
        let (one, other) = (told.clone(), told.clone());
        stage.a.on_endpoint_failure(move |endpoint, error| {
            assert_eq!(endpoint.error().unwrap().status(), error.status());
            one.borrow_mut().push((Some(endpoint.user()), error.status()));
        });
        stage.a.on_peer_failure(move |_, error| other.borrow_mut().push((None, error.status())));
        stage.world.hold(Slot::Put);
        stage.a.track(&stage.ab.put_bytes(&[1; 8], &key, 0).unwrap(), 3).unwrap();
        let _ = dropped.send(5, 0, b"").unwrap();
        drop(dropped);
        broken(&stage);
        assert_eq!(*told.borrow(), [(Some(17), Status::PeerFailed), (None, Status::PeerFailed)]);
        let mut ended = 0;
        assert_eq!(stage.a.take_completed(9, |user, result| ended = user + u64::from(result.is_err())), 1);
        assert_eq!(ended, 4, "its operations have ended");
        stage.settle();
        assert_eq!(told.borrow().len(), 2);
    }

    /// A peer that leaves closes all of its connections. This one closes the connection for messages, and stays.
    fn endpoint_closed_by_peer_that_stays_is_reported_later() {
        let stage = Stage::new(vec![
            Lane::messages("am").over_circuits(),
            Lane::memory("rma").on_other_provider().over_circuits(),
        ]);
        let told = Log::<(&str, Status)>::default();
        let (failed, left) = (told.clone(), told.clone());
        stage.a.on_endpoint_failure(move |_, error| failed.borrow_mut().push(("failed", error.status())));
        stage.a.on_peer_left(move |_| left.borrow_mut().push(("left", Status::Closed)));
        let (_target, key) = stage.target(vec![0; 8]);
        assert_eq!(stage.ended(stage.ab.put_bytes(&[1; 8], &key, 0)), Ok(0));
        let _ = stage.ab.send(5, 0, b"").unwrap();
        stage.settle();
        let (from, to) = (stage.world.interface(0, "am"), stage.world.interface(1, "am"));
        stage.world.break_endpoints(from, to, Status::Closed, "it closed this one");
        (0..200).for_each(|_| { let _ = stage.turn(); });
        assert_eq!(*told.borrow(), [], "the peer may be leaving");
        assert_eq!(stage.ab.error().expect("it has failed").status(), Status::Closed);
        assert!(stage.a.wait_until(|| !told.borrow().is_empty(), Some(Duration::from_secs(60))).unwrap());
        assert_eq!(*told.borrow(), [("failed", Status::Closed)]);
    }

    fn dropped_endpoint_with_queue_is_neither_named_nor_reported() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let (from, to) = (stage.world.interface(1, "all"), stage.world.interface(0, "all"));
        let Stage { ab, ba, a, b, at_a, at_b, world, .. } = stage;
        let (seen, told): (Log<Option<u64>>, Rc<Cell<u32>>) = Default::default();
        let (log, count, number) = (seen.clone(), told.clone(), ba.peer());
        b.on_message(5, move |message| log.borrow_mut().push(message.endpoint().map(|e| e.user()))).unwrap();
        b.on_endpoint_failure(move |_, _| count.set(count.get() + 1));
        ba.set_user(1);
        [Slot::Short, Slot::Packed].iter().for_each(|slot| world.rule(Rule { interface: Some(from), ..Rule::every(*slot, Act::Refuse(Status::Again)) }));
        assert!(!ba.send(9, 0, b"queued").unwrap().is_done());
        drop(ba);
        let _ = ab.send(5, 0, b"").unwrap();
        let turn = || { let _ = a.progress() + b.progress(); };
        (0..200).for_each(|_| turn());
        assert_eq!(*seen.borrow(), [None]);
        assert!(b.known_endpoint(number).is_none());
        world.break_endpoints(from, to, Status::PeerFailed, "it died");
        (0..200).for_each(|_| turn());
        assert_eq!(told.get(), 0);
        drop((ab, a, b, at_a, at_b));
        assert_eq!(world.left(), [0; 5]);
    }

    fn answering_endpoint_is_named_only_while_application_holds_it() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let seen = senders_at_b(&stage);
        let Stage { ab, ba, a, b, at_a, at_b, world, .. } = stage;
        let number = ba.peer();
        drop(ba);
        let turn = || { let _ = a.progress() + b.progress(); };
        let own = b.endpoint_to(number).unwrap();
        own.set_user(8);
        let _ = own.send(9, 0, b"").unwrap();
        let told: Rc<RefCell<Vec<u64>>> = Rc::default();
        let log = told.clone();
        b.on_endpoint_failure(move |endpoint, _| log.borrow_mut().push(endpoint.user()));
        let _ = ab.send(5, 0, b"").unwrap();
        (0..200).for_each(|_| turn());
        assert_eq!(*seen.borrow(), [(number, Some(8))]);
        let (from, to) = (world.interface(1, "all"), world.interface(0, "all"));
        world.break_endpoints(from, to, Status::PeerFailed, "it died");
        (0..200).for_each(|_| turn());
        assert_eq!(*told.borrow(), [8]);
        drop((own, ab, a, b, at_a, at_b));
    }

    fn failed_reconnect_is_reported_once_per_progress_call() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let (address, count, held) = (stage.b.address().unwrap(), Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
        let worker = Rc::new(stage.at_a.worker().unwrap());
        let mine = worker.connect(&address).unwrap();
        let _ = mine.send(5, 0, b"").unwrap();
        let (calls, kept, weak) = (count.clone(), held.clone(), Rc::downgrade(&worker));
        worker.on_endpoint_failure(move |_, _| {
            calls.set(calls.get() + 1);
            assert!(calls.get() < 100, "one call of progress does not end");
            let again = weak.upgrade().and_then(|worker| worker.connect(&address).ok()).unwrap();
            assert!(again.send(5, 0, b"").is_err());
            kept.borrow_mut().push(again);
        });
        stage.world.rule(Rule::every(Slot::Connect, Act::Refuse(Status::Unreachable)));
        let (from, to) = (stage.world.interface(2, "all"), stage.world.interface(1, "all"));
        stage.world.break_endpoints(from, to, Status::PeerFailed, "it died");
        while count.get() == 0 {
            let _ = worker.progress();
        }
        assert!(count.get() <= 3, "{} in one call", count.get());
        drop(worker);
        drop(held.take());
    }

    fn the_number_of_a_peer_outlives_its_worker() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let third = crate::stage::context(stage.world, &[]);
        let c = third.worker().unwrap();
        let silent = stage.b.connect(&c.address().unwrap()).unwrap();
        let number = silent.peer();
        assert_ne!(number, stage.ba.peer());
        stage.b.close(Duration::ZERO).unwrap_or_else(|lost| panic!("{lost}"));
        assert_eq!(silent.peer(), number);
        assert_ne!(stage.ba.peer(), number);
    }

    fn failure_handler_may_drop_endpoint_and_reconnect() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let address = stage.b.address().unwrap();
        let held = Rc::new(RefCell::new(Some(stage.a.connect(&address).unwrap())));
        let worker = Rc::new(stage.at_a.worker().unwrap());
        let mine = worker.connect(&address).unwrap();
        let _ = mine.send(5, 0, b"").unwrap();
        *held.borrow_mut() = Some(mine);
        let (again, weak) = (held.clone(), Rc::downgrade(&worker));
        worker.on_endpoint_failure(move |_, _| {
            let gone = again.take();
            drop(gone);
            *again.borrow_mut() = weak.upgrade().and_then(|worker| worker.connect(&address).ok());
        });
        let (from, to) = (stage.world.interface(2, "all"), stage.world.interface(1, "all"));
        let before = held.borrow().as_ref().map(Endpoint::id);
        stage.world.break_endpoints(from, to, Status::PeerFailed, "it died");
        (0..200).for_each(|_| { let _ = worker.progress() + stage.turn(); });
        let after = held.borrow().clone().unwrap();
        assert_ne!(Some(after.id()), before);
        assert!(after.error().is_none());
        let _ = after.send(5, 0, b"").unwrap();
    }

    fn handler_whose_drop_registers_handlers_is_dropped_without_borrow() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let (worker, count) = (Rc::new(stage.at_a.worker().unwrap()), Rc::new(Cell::new(0)));
        let held = || Again(Rc::downgrade(&worker), count.clone());
        for _ in 0..2 {
            let (one, two, three, four) = (held(), held(), held(), held());
            worker.on_peer_failure(move |_, _| { let _ = &one; });
            worker.on_peer_left(move |_| { let _ = &two; });
            worker.on_endpoint_failure(move |_, _| { let _ = &three; });
            worker.on_notification(move |_, _| { let _ = &four; }).unwrap();
        }
        assert!(count.get() > 0);
        drop(worker);
        assert_eq!(count.get(), 8);
    }
}
