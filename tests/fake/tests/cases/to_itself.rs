//! Tests of a worker that connects to itself: a new endpoint may reuse an idle connection.

use crate::cases;
use crate::stage::Stage;
use std::cell::RefCell;
use std::rc::Rc;
use tieline::{Access, Completion, Endpoint, Status};
use tieline_fake::{Act, Lane, Rule, Slot};

/// The id of a message that answers a request.
const REPLY: u32 = 0xf004;

fn over_circuits() -> Stage {
    Stage::new(vec![Lane::whole("all").over_circuits()])
}

fn to_itself(stage: &Stage) -> Endpoint {
    stage.a.connect(&stage.a.address().unwrap()).unwrap()
}

fn log_at_a(stage: &Stage) -> Rc<RefCell<Vec<u64>>> {
    let log: Rc<RefCell<Vec<u64>>> = Rc::default();
    let seen = log.clone();
    stage.a.on_message(5, move |m| seen.borrow_mut().push(m.header())).unwrap();
    log
}

cases! {
    /// The connection fails by a report of its provider, or when an answer is refused.
    fn connection_that_died_while_idle_is_not_reused() {
        for by_an_answer in [false, true] {
            let stage = over_circuits();
            let (log, at) = (log_at_a(&stage), stage.world.interface(0, "all"));
            let me = to_itself(&stage);
            assert_eq!(stage.finish(me.flush_messages().unwrap()), Ok(0));
            let before = stage.world.left()[1];
            if by_an_answer {
                let refused = Rule::next(Slot::Short, Act::Refuse(Status::Io)).at(at);
                stage.world.rule(refused.id(REPLY));
                drop((me.flush_messages().unwrap(), me));
            } else {
                drop(me);
                stage.world.break_endpoints(at, at, Status::Io, "the cable is cut");
            }
            stage.settle();
            let next = to_itself(&stage);
            assert!(next.send(5, 7, b"").is_ok(), "by an answer: {by_an_answer}: {:?}", next.error());
            assert!(stage.until(|| *log.borrow() == [7]));
            assert_eq!(stage.world.left()[1], before, "the dead one is closed");
            stage.assert_no_faults();
        }
    }

    fn connections_that_are_used_and_not_may_die_together() {
        let stage = over_circuits();
        let (log, at) = (log_at_a(&stage), stage.world.interface(0, "all"));
        let open = |many: usize| (0..many).map(|_| to_itself(&stage)).collect::<Vec<_>>();
        let none = stage.world.left()[1];
        let mut all = open(6);
        all.iter().for_each(|me| assert_eq!(stage.finish(me.flush_messages().unwrap()), Ok(0)));
        assert_eq!(stage.world.left()[1], none + 6);
        drop(all.drain(..3));
        stage.world.break_endpoints(at, at, Status::Io, "the cable is cut");
        stage.settle();
        assert!(all.iter().all(|me| me.error().is_some()));
        let next = open(4);
        next.iter().zip(0..).for_each(|(me, n)| drop(me.send(5, n, b"").unwrap()));
        assert!(stage.until(|| *log.borrow() == [0, 1, 2, 3] || log.borrow().len() == 4));
        drop(all);
        stage.settle();
        assert_eq!(stage.world.left()[1], none + 4);
        drop(next);
        let anew = open(4);
        anew.iter().for_each(|me| assert_eq!(stage.finish(me.flush_messages().unwrap()), Ok(0)));
        assert_eq!(stage.world.left()[1], none + 4, "those that are there were taken");
        let (world, log) = (stage.world, log);
        drop((anew, log, stage));
        assert_eq!((world.left(), world.faults()), ([0; 5], Vec::new()));
    }

    /// The handler of each message opens the endpoint that sends the next message, and keeps some endpoints. The last handler drops
    /// all of them.
    fn handlers_that_open_and_drop_endpoints_take_the_same_connections_again() {
        let stage = over_circuits();
        let a = Rc::new(stage.at_a.worker().unwrap());
        let address = a.address().unwrap();
        let seen: Rc<RefCell<Vec<u64>>> = Rc::default();
        let (log, worker, own) = (seen.clone(), Rc::downgrade(&a), address.clone());
        let kept = RefCell::new(Vec::new());
        a.on_message(5, move |m| {
            let Some(worker) = worker.upgrade() else { return };
            log.borrow_mut().push(m.header());
            if m.header() == 0 {
                return kept.borrow_mut().clear();
            }
            let next = worker.connect(&own).unwrap();
            let _ = next.send(5, m.header() - 1, b"").unwrap();
            if m.header() % 10 == 0 {
                kept.borrow_mut().push(next);
            }
        }).unwrap();
        let run = || {
            let _ = a.connect(&address).unwrap().send(5, 50, b"").unwrap();
            assert!(stage.until(|| { let _ = a.progress(); seen.borrow().last() == Some(&0) }));
            assert_eq!(seen.take(), (0..=50).rev().collect::<Vec<_>>());
            stage.world.left()[1]
        };
        let first = run();
        assert_eq!([run(), run()], [first; 2]);
        stage.assert_no_faults();
    }

    /// The next user of the connection flushes the operations of the previous user when the lane accepts a flush.
    fn failures_of_dropped_endpoint_are_not_reported_to_next_user() {
        let lane = Lane { max_short_put: 64, ..Lane::whole("all") };
        let stage = Stage::new(vec![lane.over_circuits()]);
        let (log, at) = (log_at_a(&stage), stage.world.interface(0, "all"));
        let region = stage.at_a.register_with(vec![0; 8], Access::ALL).unwrap();
        let bytes = region.remote_key().unwrap();
        let me = to_itself(&stage);
        let key = me.import_key(&bytes).unwrap();
        assert_eq!(stage.finish(me.put_bytes(&[1; 8], &key, 0).unwrap()), Ok(0));
        let before = stage.world.left()[1];
        let local = stage.local(vec![2; 8]);
        stage.world.rule(Rule::next(Slot::Put, Act::FailLater(Status::OutOfRange)).at(at));
        let put = me.put_with(&local, 0..8, &key, 0, Completion::Local).unwrap();
        assert!(put.is_done(), "its bytes were taken");
        stage.settle();
        stage.world.rule(Rule::every(Slot::Flush, Act::Refuse(Status::Again)).at(at));
        drop((key, me));
        let next = to_itself(&stage);
        let sent = next.send(5, 7, b"").unwrap();
        stage.settle();
        assert!(!sent.is_done() && log.borrow().is_empty(), "it was taken without a question");
        stage.world.forget_rules();
        assert!(stage.until(|| *log.borrow() == [7]));
        let key = next.import_key(&bytes).unwrap();
        assert_eq!(stage.finish(next.put_bytes(&[3; 8], &key, 0).unwrap()), Ok(0));
        assert_eq!((stage.ended(next.flush()), stage.finish(sent)), (Ok(0), Ok(0)));
        assert_eq!((stage.world.left()[1], region.to_vec(0..8).unwrap()), (before, vec![3; 8]));
        stage.assert_no_faults();
    }
}
