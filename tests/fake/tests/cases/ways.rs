//! Tests of the route that replaces a failed one, and of unnecessary calls of lanes.

use crate::cases;
use crate::progress_thread::{comes, with_threads};
use crate::stage::{Stage, context, pending};
use std::cell::Cell;
use tieline::{Completion, Outcome, Status};
use tieline_fake::{Act, Lane, Rule, Slot, World};

/// The id of a message that answers a request.
const REPLY: u32 = 0xf004;

cases! {
    fn answer_queued_on_failed_endpoint_takes_another_route() {
        let stage = Stage::new(vec![Lane::messages("am")]);
        let at = stage.world.interface(0, "am");
        for slot in [Slot::Short, Slot::Packed] {
            stage.world.rule(Rule::every(slot, Act::Refuse(Status::Again)).at(at).id(REPLY));
        }
        let asked = pending(stage.ba.flush_messages());
        stage.settle();
        assert_eq!(stage.b.test(&asked), None, "there is no room for the answer");
        stage.world.rule(Rule::next(Slot::Short, Act::Refuse(Status::Io)).at(at).id(5));
        assert_eq!(stage.ab.send(5, 0, b"").unwrap_err().status(), Status::Io);
        stage.world.forget_rules();
        assert!(stage.until(|| stage.b.test(&asked) == Some(Ok(0))), "nobody answers any more");
        stage.assert_no_faults();
    }

    fn permanently_refused_answer_takes_another_route() {
        let stage = Stage::new(vec![Lane::messages("am")]);
        let at = stage.world.interface(0, "am");
        let refuse = |status| {
            for slot in [Slot::Short, Slot::Packed] {
                stage.world.rule(Rule::every(slot, Act::Refuse(status)).at(at).id(REPLY));
            }
        };
        refuse(Status::Again);
        let asked = pending(stage.ba.flush_messages());
        stage.settle();
        assert_eq!(stage.b.test(&asked), None, "there is no room for the answer");
        stage.world.forget_rules();
        refuse(Status::Io);
        assert!(stage.until(|| stage.ab.error().is_some()), "the answer fails it");
        stage.world.forget_rules();
        assert!(stage.until(|| stage.b.test(&asked) == Some(Ok(0))), "nobody answers any more");
        stage.assert_no_faults();
    }

    /// Each attempt costs a failed connection, and without the pause every operation would make one.
    fn a_thread_that_could_not_be_reached_is_left_alone_for_a_while() {
        let stage = with_threads();
        let address = stage.b.address().unwrap();
        let (target, _key) = stage.target(vec![0; 8]);
        let serves = stage.world.interface(1, "am");
        stage.world.rule(Rule::every(Slot::Arm, Act::Refuse(Status::Io)).at(serves));
        assert!(comes(|| stage.at_b.worker().is_err()), "it stops");
        stage.settle();
        let late = stage.a.connect(&address).unwrap();
        let key = late.import_key(&target.remote_key().unwrap()).unwrap();
        let tries = || stage.world.calls(Slot::Connect).len() + stage.world.calls(Slot::Reachable).len();
        let put = |byte: u8| stage.finish(late.put_bytes(&[byte; 8], &key, 0).unwrap());
        assert_eq!(put(1), Ok(0));
        let tried = tries();
        for byte in 2..6 {
            assert_eq!(put(byte), Ok(0));
        }
        assert_eq!(tries(), tried, "it is tried at every operation");
        assert_eq!(target.to_vec(0..8).unwrap(), [5; 8]);
    }

    fn flush_without_pending_operations_is_done_inline_after_service_use() {
        let stage = with_threads();
        let (_target, key) = stage.target(vec![0; 8]);
        let put = pending(stage.ab.put_bytes(&[1; 8], &key, 0));
        assert!(comes(|| { let _ = stage.turn(); stage.a.test(&put) == Some(Ok(0)) }));
        drop(put);
        assert_eq!(stage.finish(stage.ab.flush().unwrap()), Ok(0));
        assert_eq!(stage.a.pending(), 0);
        assert!(matches!(stage.ab.flush(), Ok(Outcome::Done(0))), "nothing is waited for");
        assert_eq!(stage.a.pending(), 0);
    }

    fn flush_waits_for_service_thread_and_next_one_is_inline() {
        let stage = with_threads();
        let (target, key) = stage.target(vec![0; 8]);
        let local = stage.local(vec![3; 8]);
        let put = stage.ab.put_with(&local, 0..8, &key, 0, Completion::Local).unwrap();
        if let Outcome::Pending(put) = put {
            assert!(comes(|| { let _ = stage.turn(); stage.a.test(&put) == Some(Ok(0)) }));
        }
        let flush = stage.ab.flush().unwrap();
        if let Outcome::Pending(flush) = flush {
            assert!(comes(|| { let _ = stage.turn(); stage.a.test(&flush) == Some(Ok(0)) }));
        }
        assert_eq!(target.to_vec(0..8).unwrap(), [3; 8], "it was there when the flush was complete");
        assert!(matches!(stage.ab.flush(), Ok(Outcome::Done(0))));
    }

    fn the_self_test_takes_no_completion_for_its_own_but_its_own() {
        thread_local! {
            static TRIED: Cell<Option<&'static World>> = const { Cell::new(None) };
        }
        fn another_ends() {
            if let Some(world) = TRIED.get() {
                world.complete(world.interface(0, "rma"), 77, Err(Status::Io));
            }
        }
        let world = World::new(1, vec![Lane::messages("am"), Lane::memory("rma").late(3)]);
        TRIED.set(Some(world));
        world.meanwhile(another_ends);
        let why = context(world, &[("TIELINE_SELFTEST", "on")]).report().why();
        assert!(!why.contains("selftest"), "{why}");
        assert_eq!(world.faults(), Vec::<String>::new());
    }
}
