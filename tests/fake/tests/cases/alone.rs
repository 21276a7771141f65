//! Tests of the only active interface if it has no list of words: the core polls it by one call.

use crate::cases;
use crate::stage::{Stage, pending};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use tieline::Status;
use tieline_fake::{Act, Lane, Rule, Slot};

/// The maximum number of progress calls until tasks of other threads run: 64 without a check, and the one that checks.
const UNTIL_TASKS: usize = 65;

/// Makes a stage on which both workers have made so many progress calls that pauses of other polls are long.
fn quiet(lanes: Vec<Lane>) -> Stage {
    let stage = Stage::new(lanes);
    for _ in 0..40 {
        stage.settle();
    }
    stage
}

cases! {
    fn failed_poll_of_interface_polled_alone_is_reported_once() {
        for (act, later) in [(Act::Panic, 0), (Act::Refuse(Status::Io), 100)] {
            for before in 0..20 {
                let stage = quiet(vec![Lane::messages("am")]);
                (0..before).for_each(|_| assert_eq!(stage.a.progress(), 0));
                stage.world.rule(Rule::next(Slot::Poll, act));
                assert!(stage.a.progress() > 0, "{act:?} after {before} calls");
                let polls = stage.world.polls();
                (0..100).for_each(|_| assert_eq!(stage.a.progress(), 0));
                assert_eq!(stage.world.polls() - polls, later, "{act:?} after {before} calls");
                assert!(stage.ab.error().is_some());
            }
        }
    }

    fn task_of_another_thread_runs_soon_beside_interface_polled_alone() {
        for busy in [false, true] {
            let stage = quiet(vec![Lane::messages("am"), Lane::memory("rma")]);
            stage.a.on_message(9, |_| ()).unwrap();
            let remote = stage.a.remote(4, ()).unwrap();
            stage.settle();
            static RAN: AtomicBool = AtomicBool::new(false);
            for _ in 0..100 {
                RAN.store(false, Ordering::Relaxed);
                std::thread::scope(|scope| {
                    let submit = || remote.run(|_, ()| RAN.store(true, Ordering::Relaxed)).is_ok();
                    assert!(scope.spawn(submit).join().unwrap());
                });
                let mut calls = 0;
                while !RAN.load(Ordering::Relaxed) {
                    if busy {
                        let _ = stage.ba.send(9, 0, b"").unwrap();
                        let _ = stage.b.progress();
                    }
                    let _ = stage.a.progress();
                    calls += 1;
                }
                assert!(calls <= UNTIL_TASKS, "{calls} calls, busy: {busy}");
            }
            stage.assert_no_faults();
        }
    }

    fn handler_of_interface_polled_alone_may_post_connect_and_panic() {
        let stage = quiet(vec![Lane::messages("am"), Lane::memory("rma")]);
        let other = stage.at_b.worker().unwrap();
        let address = other.address().unwrap();
        let a = Rc::new(RefCell::new(Vec::new()));
        let (calls, seen) = (Rc::new(Cell::new(0u64)), a.clone());
        let count = calls.clone();
        // The handler uses its own worker, whose lifetime is that of the stage.
        let stage = Rc::new(stage);
        let weak = Rc::downgrade(&stage);
        let handler = move |message: &tieline::Message<'_>| {
            count.set(count.get() + 1);
            let Some(stage) = weak.upgrade() else { return };
            assert_eq!(stage.a.progress(), 0, "a progress call is running");
            let made = stage.a.connect(&address).unwrap();
            let _ = made.send(9, message.header(), b"from the handler").unwrap();
            seen.borrow_mut().push((message.header(), made));
            if message.header() % 3 == 0 {
                let _ = seen.borrow_mut().pop();
                resume_unwind(Box::new("the handler ends"));
            }
        };
        stage.a.on_message(9, handler).unwrap();
        let arrived = Rc::new(Cell::new(0u64));
        let count = arrived.clone();
        other.on_message(9, move |_| count.set(count.get() + 1)).unwrap();
        let mut panics = 0;
        for header in 1..=60 {
            let _ = stage.ba.send(9, header, b"").unwrap();
            while calls.get() < header {
                let call = || (stage.b.progress(), stage.a.progress());
                panics += u64::from(catch_unwind(AssertUnwindSafe(call)).is_err());
            }
        }
        let kept = a.borrow().len() as u64;
        assert_eq!((panics, kept), (20, 40));
        while arrived.get() < kept {
            let _ = (stage.a.progress(), stage.b.progress(), other.progress());
        }
        a.borrow_mut().clear();
        stage.assert_no_faults();
    }

    fn queued_operation_is_attempted_by_every_call_beside_one_polled_alone() {
        let stage = quiet(vec![Lane::messages("am")]);
        stage.world.rule(Rule::every(Slot::Short, Act::Refuse(Status::Again)));
        let sent = pending(stage.ab.send(9, 1, b""));
        let tries = || stage.world.calls(Slot::Short).len();
        let before = tries();
        (0..20).for_each(|_| assert_eq!(stage.a.progress(), 0));
        assert!(tries() - before >= 20, "{before} and {} tries", tries());
        stage.world.forget_rules();
        while stage.a.test(&sent).is_none() {
            let _ = stage.a.progress();
        }
    }
}
