//! Tests of closing an endpoint: after its posted operations (flush), or immediately (cancel).

use crate::cases;
use crate::stage::{Stage, pending};
use std::cell::RefCell;
use std::rc::Rc;
use tieline::{
    Close, CompletionError, Endpoint, Outcome, PostError, RemoteKey, Rendezvous, Status,
};
use tieline_fake::{Act, Lane, Rule, Slot};

fn lanes() -> Vec<Vec<Lane>> {
    let with = |lane: Lane| vec![Lane::messages("am"), lane];
    vec![
        vec![Lane::messages("am")],
        with(Lane::memory("rma").late(3)),
        with(Lane::memory("rma").synchronous()),
        vec![Lane::whole("all").late(2)],
    ]
}

fn all_refused(endpoint: &Endpoint, key: &RemoteKey, local: &tieline::Region) {
    let posts: [(&str, Result<Outcome, PostError>); 9] = [
        ("send", endpoint.send(1, 0, b"late")),
        ("nothing", endpoint.send(1, 0, b"")),
        ("packed", endpoint.send_packed(1, 0, 8, |_| 8)),
        ("regions", endpoint.send_regions(1, 0, &[(local, 0..8)])),
        ("put", endpoint.put(local, 0..8, key, 0)),
        ("bytes", endpoint.put_bytes(b"late", key, 0)),
        ("get", endpoint.get(local, 0..8, key, 0)),
        ("atomic", endpoint.fetch_add(key, 8, 1)),
        ("messages", endpoint.flush_messages()),
    ];
    for (what, posted) in posts {
        let refused = posted.map(drop).expect_err(what);
        assert_eq!(refused.status(), Status::Closed, "{what}: {refused:?}");
        assert!(matches!(refused, PostError::Reconnect(_)), "{what}: {refused:?}");
    }
    let told = endpoint.put_notify(local, 0..8, key, 0, 7).map(drop).unwrap_err();
    assert_eq!(told.status(), Status::Closed);
}

cases! {
    fn closed_endpoint_refuses_posts_and_delivers_earlier_ones() {
        for lanes in lanes() {
            for used in [true, false] {
                let stage = Stage::new(lanes.clone());
                let seen = stage.log_at_b(1);
                let (target, key) = stage.target(vec![0; 64]);
                let local = stage.local(vec![7; 64]);
                let clone = stage.ab.clone();
                if used {
                    for header in 0..20 {
                        let _ = stage.ab.send(1, header, b"before").unwrap();
                    }
                    drop(stage.ab.put(&local, 0..64, &key, 0).unwrap());
                }
                let closed = clone.close(Close::Flush);
                all_refused(&stage.ab, &key, &local);
                let late = stage.ab.import_key(&target.remote_key().unwrap()).unwrap();
                all_refused(&clone, &late, &local);
                assert_eq!(clone.close(Close::Flush).map(drop).unwrap_err().status(), Status::Closed);
                assert_eq!(stage.ended(closed), Ok(0));
                all_refused(&stage.ab, &key, &local);
                assert_eq!(target.to_vec(0..64).unwrap(), vec![if used { 7 } else { 0 }; 64]);
                let count = if used { 20 } else { 0 };
                assert!(stage.until(|| seen.borrow().len() == count));
                assert!(seen.borrow().iter().copied().eq(0..count as u64));
                // A second endpoint to the same peer is independent of the first.
                let anew = stage.a.connect(&stage.b.address().unwrap()).unwrap();
                let met = anew.flush_messages().unwrap();
                assert_eq!(stage.finish(met), Ok(0));
                stage.assert_no_faults();
            }
        }
    }

    fn endpoint_dropped_after_close_is_kept_until_flushed() {
        let mut stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma")]);
        let (target, key) = stage.target(vec![0; 8]);
        let local = stage.local(vec![3; 8]);
        stage.settle();
        stage.world.hold(Slot::Put);
        let put = pending(stage.ab.put(&local, 0..8, &key, 0));
        let closed = pending(stage.ab.close(Close::Flush));
        drop(key);
        let other = stage.a.connect(&stage.b.address().unwrap()).unwrap();
        drop(std::mem::replace(&mut stage.ab, other));
        for _ in 0..100 {
            let _ = stage.turn();
        }
        assert!(stage.a.test(&closed).is_none(), "it ended although the put has not");
        stage.world.forget_rules();
        stage.world.release_held();
        assert!(stage.until(|| stage.a.test(&closed) == Some(Ok(0))));
        assert_eq!((stage.a.test(&put), target.to_vec(0..8).unwrap()), (Some(Ok(0)), vec![3; 8]));
        drop((put, closed));
        stage.assert_no_faults();
    }

    fn cancel_close_ends_pending_operations_and_frees_unused_memory() {
        for flushes in [false, true] {
            let stage = Stage::new(vec![Lane::messages("am"), Lane::memory("rma")]);
            let (_target, key) = stage.target(vec![0; 64]);
            let local = stage.local(vec![3; 64]);
            stage.settle();
            stage.world.hold(Slot::Put);
            let put = pending(stage.ab.put(&local, 0..8, &key, 0));
            stage.ab.fence().unwrap();
            let behind = pending(stage.ab.get(&local, 8..16, &key, 8));
            let flush = flushes.then(|| pending(stage.ab.close(Close::Flush)));
            assert_eq!(stage.ab.close(Close::Cancel).map(|outcome| outcome.is_done()), Ok(true));
            for request in [Some(&put), Some(&behind), flush.as_ref()].into_iter().flatten() {
                let ended = stage.a.test(request);
                assert!(matches!(ended, Some(Err(CompletionError::Canceled(_)))), "{ended:?}");
            }
            assert_eq!(stage.a.pending(), 0);
            all_refused(&stage.ab, &key, &local);
            assert_eq!(stage.ab.close(Close::Cancel).map(|outcome| outcome.is_done()), Ok(true));
            // The provider still uses the memory.
            let local = local.close().unwrap_err().region;
            stage.world.forget_rules();
            stage.world.release_held();
            for _ in 0..100 {
                let _ = stage.turn();
            }
            local.close().unwrap();
            assert_eq!(stage.a.counters().malformed, 0, "what came late was somebody's");
            let anew = stage.a.connect(&stage.b.address().unwrap()).unwrap();
            let met = anew.flush_messages().unwrap();
            assert_eq!(stage.finish(met), Ok(0));
            assert_eq!(stage.a.flush(), Ok(()), "no flush tells of what was given up");
            stage.assert_no_faults();
        }
    }

    fn late_answers_after_cancel_are_accepted_and_peer_is_still_answered() {
        let stage = Stage::new(vec![Lane::messages("am")]);
        let (_target, key) = stage.target(vec![5; 64]);
        let local = stage.local(vec![0; 64]);
        let mine = stage.at_a.register(vec![9; 8]).unwrap();
        stage.settle();
        // The worker `b` also sends requests, and is answered over the route back to `b`.
        let their_key = stage.ba.import_key(&mine.remote_key().unwrap()).unwrap();
        let into = stage.at_b.register(vec![0; 8]).unwrap();
        let get = pending(stage.ab.get(&local, 0..64, &key, 0));
        let asked = pending(stage.ba.get(&into, 0..8, &their_key, 0));
        let _ = stage.ab.close(Close::Cancel).unwrap();
        assert!(matches!(stage.a.test(&get), Some(Err(CompletionError::Canceled(_)))));
        assert!(stage.until(|| stage.b.test(&asked) == Some(Ok(0))));
        assert_eq!(into.to_vec(0..8).unwrap(), [9; 8]);
        assert_eq!(stage.a.counters().malformed, 0);
        assert_eq!(local.to_vec(0..64).unwrap(), [0; 64], "it was given up");
        drop(get);
        stage.assert_no_faults();
    }

    fn an_endpoint_that_was_closed_still_answers_what_its_peer_asks() {
        let stage = Stage::new(vec![Lane::messages("am")]);
        stage.settle();
        let mine = stage.at_a.register(vec![9; 8]).unwrap();
        let closed = stage.ab.close(Close::Flush);
        assert_eq!(stage.ended(closed), Ok(0));
        let key = stage.ba.import_key(&mine.remote_key().unwrap()).unwrap();
        let into = stage.at_b.register(vec![0; 8]).unwrap();
        let got = pending(stage.ba.get(&into, 0..8, &key, 0));
        assert!(stage.until(|| stage.b.test(&got) == Some(Ok(0))));
        assert_eq!(into.to_vec(0..8).unwrap(), [9; 8]);
    }

    fn a_workers_flush_may_be_counted_instead_of_waited_for() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let third = crate::stage::context(stage.world, &[]);
        let c = third.worker().unwrap();
        let ac = stage.a.connect(&c.address().unwrap()).unwrap();
        let (target, key) = stage.target(vec![0; 8]);
        let far = third.register(vec![0; 8]).unwrap();
        let far_key = ac.import_key(&far.remote_key().unwrap()).unwrap();
        let local = stage.local(vec![1; 8]);
        let counter = stage.a.completion_counter().unwrap();
        stage.a.begin_flush(&counter).unwrap();
        assert_eq!((counter.pending(), counter.done()), (0, 0), "there is nothing to wait for");
        stage.world.hold(Slot::Put);
        drop(stage.ab.put(&local, 0..8, &key, 0).unwrap());
        drop(ac.put(&local, 0..8, &far_key, 0).unwrap());
        stage.a.begin_flush(&counter).unwrap();
        assert_eq!(counter.pending(), 2);
        // The dropped endpoint is kept until its put has ended.
        drop((ac, far_key));
        stage.world.forget_rules();
        stage.world.release_held();
        assert!(stage.until(|| { let _ = c.progress(); counter.pending() == 0 }));
        assert_eq!((counter.done(), counter.failed()), (2, 0));
        assert_eq!((target.to_vec(0..8).unwrap(), far.to_vec(0..8).unwrap()), (vec![1; 8], vec![1; 8]));
        let other = c.completion_counter().unwrap();
        assert_eq!(stage.a.begin_flush(&other).unwrap_err().status(), Status::Invalid);
        stage.assert_no_faults();
    }

    fn unheld_endpoint_answers_its_peer_while_it_exists() {
        for by_a_key in [false, true] {
            let stage = Stage::new(vec![Lane::messages("am")]);
            let third = crate::stage::context(stage.world, &[]);
            let c = third.worker().unwrap();
            let came: Rc<RefCell<Vec<Rendezvous>>> = Rc::default();
            let keeps = came.clone();
            c.on_message(5, move |m| keeps.borrow_mut().extend(m.rendezvous())).unwrap();
            let region = third.register(vec![0; 8]).unwrap();
            let ac = stage.a.connect(&c.address().unwrap()).unwrap();
            let long = vec![7; ac.max_message().unwrap() + 1];
            let sent = pending(ac.send(5, 0, &long));
            let until = |done: &dyn Fn() -> bool| stage.until(|| { let _ = c.progress(); done() });
            assert!(until(&|| !came.borrow().is_empty()));
            let key = match by_a_key {
                true => Some(ac.import_key(&region.remote_key().unwrap()).unwrap()),
                false => {
                    let _ = ac.close(Close::Flush).unwrap();
                    None
                }
            };
            drop(ac);
            let at = stage.world.interface(0, "am");
            stage.world.rule(Rule::every(Slot::Connect, Act::Refuse(Status::NoMemory)).at(at));
            let ca = c.connect(&stage.a.address().unwrap()).unwrap();
            let asked = pending(ca.flush_messages());
            assert!(until(&|| c.test(&asked) == Some(Ok(0))), "by a key: {by_a_key}");
            came.borrow_mut().clear();
            assert!(until(&|| stage.a.test(&sent).is_some()), "it was refused");
            drop(key);
            stage.assert_no_faults();
        }
    }
}
