//! Tests of reported completions: with the application's tag, in the order in which operations ended, or added to a counter.

use crate::cases;
use crate::stage::{Stage, pending};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;
use tieline::{CompletionError, Outcome, Status, Waited, Worker};
use tieline_fake::{Act, Lane, Rule, Slot};
use tieline_plugin_api::caps::CANCEL;

type Told = (u64, Result<u64, Status>);

fn told(worker: &Worker) -> Vec<Told> {
    let mut all = Vec::new();
    let taken = worker.take_completed(usize::MAX, |user, result| {
        all.push((user, result.map_err(|error| error.status())));
    });
    assert_eq!(taken, all.len());
    all
}

cases! {
    fn tracked_operations_are_reported_in_completion_order_with_their_tags() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let (_target, key) = stage.target([[0; 24], [5; 24]].concat());
        stage.world.hold(Slot::Put);
        for word in [70, 71] {
            stage.a.track(&stage.ab.put_bytes(&[1; 8], &key, 0).unwrap(), word).unwrap();
        }
        stage.world.forget_rules();
        // One operation is `Done` when it is tracked, and another operation returns a value.
        stage.a.track(&Outcome::Done(3), 72).unwrap();
        for (word, offset) in [(73, 16), (u64::MAX, 24)] {
            stage.a.track(&stage.ab.fetch_add(&key, offset, 5).unwrap(), word).unwrap();
            stage.settle();
        }
        let fives = u64::from_ne_bytes([5; 8]);
        assert_eq!(told(&stage.a), [(72, Ok(3)), (73, Ok(0)), (u64::MAX, Ok(fives))]);
        stage.world.release_held();
        stage.settle();
        assert_eq!(told(&stage.a), [(70, Ok(0)), (71, Ok(0))]);
        assert_eq!(told(&stage.a), []);
        assert_eq!(stage.a.pending(), 0);
        stage.assert_no_faults();
    }

    fn at_most_so_many_are_taken_at_once_and_none_is_lost_behind_a_panic() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        (0..10).for_each(|word| stage.a.track(&Outcome::Done(0), word).unwrap());
        let mut seen = Vec::new();
        assert_eq!(stage.a.take_completed(3, |user, _| seen.push(user)), 3);
        assert_eq!(stage.a.take_completed(0, |user, _| seen.push(user)), 0);
        let panics = catch_unwind(AssertUnwindSafe(|| {
            stage.a.take_completed(3, |user, _| { seen.push(user); assert_ne!(user, 4) })
        }));
        assert!(panics.is_err());
        assert_eq!(stage.a.take_completed(100, |user, _| seen.push(user)), 5);
        assert_eq!(seen, (0..10).collect::<Vec<u64>>());
    }

    fn completion_handler_may_post_track_and_take() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let (target, key) = stage.target(vec![0; 64]);
        stage.a.track(&stage.ab.put_bytes(&[1; 8], &key, 0).unwrap(), 1).unwrap();
        stage.a.track(&Outcome::Done(0), 2).unwrap();
        stage.settle();
        let mut inner = Vec::new();
        let taken = stage.a.take_completed(1, |_, _| {
            stage.a.track(&stage.ab.put_bytes(&[7; 8], &key, 8).unwrap(), 3).unwrap();
            inner = told(&stage.a);
        });
        stage.settle();
        assert_eq!((taken, inner.len(), told(&stage.a)), (1, 1, vec![(3, Ok(0))]));
        assert_eq!(target.to_vec(8..16).unwrap(), [7; 8]);
    }

    fn handlers_may_track_and_take_and_a_handler_that_waits_is_still_refused() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let (seen, b) = (Rc::new(RefCell::new(Vec::new())), Rc::new(stage));
        let (log, weak) = (seen.clone(), Rc::downgrade(&b));
        b.b.on_message(5, move |message| {
            let stage = weak.upgrade().unwrap();
            stage.b.track(&stage.ba.send(6, 0, b"back").unwrap(), message.header()).unwrap();
            assert_eq!(stage.b.wait(None).unwrap_err().status(), Status::Busy);
            log.borrow_mut().extend(told(&stage.b));
        }).unwrap();
        let _ = b.ab.send(5, 11, b"hello").unwrap();
        b.settle();
        seen.borrow_mut().extend(told(&b.b));
        assert_eq!(*seen.borrow(), [(11, Ok(0))]);
    }

    fn failure_of_tracked_operation_is_reported_once_with_text() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let (_target, key) = stage.target(vec![0; 64]);
        let fails = Rule::every(Slot::Put, Act::FailLater(Status::OutOfRange));
        stage.world.rule(fails);
        stage.a.track(&stage.ab.put_bytes(&[1; 8], &key, 0).unwrap(), 9).unwrap();
        stage.world.forget_rules();
        stage.settle();
        let mut error = None;
        assert_eq!(stage.a.take_completed(9, |user, result| error = Some((user, result.unwrap_err()))), 1);
        let (user, error) = error.unwrap();
        assert_eq!((user, error.status()), (9, Status::OutOfRange));
        assert!(matches!(&error, CompletionError::Refused(_)), "{error:?}");
        assert!(error.to_string().contains("fake:all"), "{error}");
        assert_eq!(stage.ended(stage.ab.flush()), Ok(0), "it has been told");
    }

    fn failed_and_canceled_operations_are_reported_too() {
        let stage = Stage::new(vec![Lane::whole("all").with(CANCEL)]);
        let other = stage.a.connect(&stage.b.address().unwrap()).unwrap();
        let (target, key) = stage.target(vec![0; 64]);
        let theirs = other.import_key(&target.remote_key().unwrap()).unwrap();
        stage.world.hold(Slot::Put);
        let back = stage.ab.put_bytes(&[1; 8], &key, 0).unwrap();
        stage.a.track(&back, 1).unwrap();
        stage.a.track(&other.put_bytes(&[1; 8], &theirs, 0).unwrap(), 2).unwrap();
        let Outcome::Pending(back) = back else { panic!("it ended at once") };
        stage.a.cancel(&back).unwrap();
        drop(back);
        stage.settle();
        assert_eq!(told(&stage.a), [(1, Err(Status::Canceled))]);
        drop((other, theirs));
        stage.settle();
        assert_eq!(told(&stage.a), [(2, Err(Status::Canceled))]);
    }

    fn tracked_operation_has_no_request_and_one_destination() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let (_target, key) = stage.target(vec![0; 64]);
        let (counter, theirs) = (stage.a.completion_counter().unwrap(), stage.b.completion_counter().unwrap());
        stage.world.hold(Slot::Put);
        let put = || stage.ab.put_bytes(&[1; 8], &key, 0).unwrap();
        let (tracked, counted) = (put(), put());
        assert_eq!(stage.b.track(&tracked, 1).unwrap_err().status(), Status::Invalid);
        assert_eq!(stage.a.count(&counted, &theirs).unwrap_err().status(), Status::Invalid);
        assert_eq!(stage.b.count(&counted, &theirs).unwrap_err().status(), Status::Invalid);
        stage.a.track(&tracked, 2).unwrap();
        stage.a.count(&counted, &counter).unwrap();
        for outcome in [&tracked, &counted] {
            assert_eq!(stage.a.track(outcome, 3).unwrap_err().status(), Status::Invalid);
            assert_eq!(stage.a.count(outcome, &counter).unwrap_err().status(), Status::Invalid);
            let Outcome::Pending(request) = outcome else { panic!("it ended at once") };
            assert!(matches!(stage.a.test(request), Some(Err(CompletionError::Pending(_)))));
        }
        assert!(matches!(stage.a.finish(tracked), Err(CompletionError::Pending(_))));
        stage.world.release_held();
        stage.settle();
        assert!(matches!(stage.a.finish(counted), Err(CompletionError::Pending(_))));
        assert_eq!(told(&stage.a), [(2, Ok(0))]);
        assert_eq!((counter.done(), counter.failed(), counter.pending()), (1, 0, 0));
    }

    fn counter_reports_successes_failures_and_first_failure() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let (_target, key) = stage.target(vec![0; 64]);
        let counter = stage.a.completion_counter().unwrap();
        let post = || {
            let put = stage.ab.put_bytes(&[1; 8], &key, 0).unwrap();
            stage.a.count(&put, &counter).unwrap();
        };
        stage.a.count(&Outcome::Done(0), &counter).unwrap();
        stage.world.hold(Slot::Put);
        (0..5).for_each(|_| post());
        assert_eq!((counter.done(), counter.failed(), counter.pending()), (1, 0, 5));
        assert!(counter.first_failure().is_none());
        stage.world.forget_rules();
        for status in [Status::OutOfRange, Status::KeyRejected] {
            stage.world.rule(Rule::every(Slot::Put, Act::FailLater(status)));
            post();
            stage.world.forget_rules();
            stage.settle();
        }
        stage.world.release_held();
        stage.settle();
        assert_eq!((counter.done(), counter.failed(), counter.pending()), (6, 2, 0));
        assert_eq!(counter.first_failure().unwrap().status(), Status::OutOfRange);
        assert_eq!(stage.ended(stage.ab.flush()), Ok(0), "the counter has told it");
        drop(counter);
        assert_eq!(stage.a.pending(), 0);
        assert_eq!(stage.ended(stage.ab.flush()), Ok(0), "the counter had told it");
    }

    fn failure_counted_by_dropped_counter_is_reported_by_next_flush() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let (_target, key) = stage.target(vec![0; 64]);
        let counter = stage.a.completion_counter().unwrap();
        stage.world.rule(Rule::every(Slot::Put, Act::FailLater(Status::OutOfRange)));
        stage.a.count(&stage.ab.put_bytes(&[1; 8], &key, 0).unwrap(), &counter).unwrap();
        drop(counter);
        // Another counter reuses the place of the dropped counter, and starts at zero.
        let next = stage.a.completion_counter().unwrap();
        stage.world.forget_rules();
        stage.settle();
        assert_eq!((next.done(), next.failed(), next.pending()), (0, 0, 0));
        assert_eq!(stage.ended(stage.ab.flush()).unwrap_err().status(), Status::OutOfRange);
        assert_eq!(stage.ended(stage.ab.flush()), Ok(0));
    }

    fn wait_does_not_sleep_while_completions_are_untaken() {
        let stage = Stage::new(vec![Lane::whole("all").sleeping()]);
        stage.settle();
        assert_ne!(stage.a.wait(Some(Duration::ZERO)), Ok(Waited::Moved));
        stage.a.track(&Outcome::Done(0), 1).unwrap();
        assert_eq!(stage.a.arm(), Ok(false));
        // No event wakes the worker, so the wait must return because of the untaken completion.
        assert_eq!(stage.a.wait(None), Ok(Waited::Moved));
        assert_eq!(told(&stage.a), [(1, Ok(0))]);
        assert_eq!(stage.a.arm(), Ok(true));
    }

    fn wait_returns_when_flush_ends_without_event() {
        let stage = Stage::new(vec![Lane::whole("all").sleeping()]);
        stage.settle();
        [Slot::Short, Slot::Packed].iter().for_each(|slot| stage.world.rule(Rule::every(*slot, Act::Refuse(Status::Again))));
        let sent = pending(stage.ab.send(5, 0, b"queued"));
        let flush = stage.ab.flush().unwrap();
        stage.a.track(&flush, 1).unwrap();
        stage.a.cancel(&sent).unwrap();
        assert_eq!(stage.a.wait(Some(Duration::ZERO)), Ok(Waited::Moved));
        assert_eq!(told(&stage.a), [(1, Ok(0))]);
    }

    fn wait_for_request_sleeps_although_completions_are_untaken() {
        let stage = Stage::new(vec![Lane::whole("all").sleeping()]);
        stage.settle();
        stage.a.track(&Outcome::Done(0), 1).unwrap();
        let arms = stage.world.calls(Slot::Arm).len();
        assert_eq!(stage.a.wait_until(|| stage.world.calls(Slot::Arm).len() > arms + 2, Some(Duration::from_secs(60))), Ok(true));
        assert_eq!(told(&stage.a), [(1, Ok(0))]);
    }

    fn completion_tracked_during_drain_is_for_next_call() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        stage.a.track(&Outcome::Done(0), 0).unwrap();
        let again = |user: u64, _| stage.a.track(&Outcome::Done(0), user + 1).unwrap();
        for user in 0..5 {
            let mut seen = Vec::new();
            assert_eq!(stage.a.take_completed(usize::MAX, |word, result| { seen.push(word); again(word, result) }), 1);
            assert_eq!(seen, [user]);
        }
    }

    fn wait_returns_value_or_none_at_timeout() {
        let stage = Stage::new(vec![Lane::whole("all").sleeping()]);
        let mut looks = 0;
        let found = stage.a.wait_for(|| { looks += 1; (looks == 7).then_some("seven") }, None);
        assert_eq!((found, looks), (Ok(Some("seven")), 7));
        assert_eq!(stage.a.wait_for(|| None::<u8>, Some(Duration::ZERO)), Ok(None));
    }

    fn completions_of_close_can_be_taken_afterwards() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let (_target, key) = stage.target(vec![0; 64]);
        let counter = stage.a.completion_counter().unwrap();
        stage.world.hold(Slot::Put);
        stage.a.track(&stage.ab.put_bytes(&[1; 8], &key, 0).unwrap(), 4).unwrap();
        stage.a.count(&stage.ab.put_bytes(&[1; 8], &key, 0).unwrap(), &counter).unwrap();
        assert!(stage.a.close(Duration::ZERO).is_err());
        assert_eq!(told(&stage.a), [(4, Err(Status::Closed))]);
        assert_eq!((counter.failed(), counter.pending()), (1, 0));
        assert!(matches!(stage.a.completion_counter(), Err(error) if error.status() == Status::Closed));
    }

    fn untaken_completions_end_with_worker_and_counter_may_outlive_it() {
        let Stage { ab, ba, a, b, at_a, at_b, world, .. } = Stage::new(vec![Lane::whole("all")]);
        let counter = a.completion_counter().unwrap();
        a.track(&Outcome::Done(0), 1).unwrap();
        a.count(&Outcome::Done(0), &counter).unwrap();
        drop((ab, ba, a, b));
        assert_eq!((counter.done(), counter.failed(), counter.pending()), (1, 0, 0));
        drop(counter);
        drop((at_a, at_b));
        assert_eq!(world.left(), [0; 5]);
    }
}
