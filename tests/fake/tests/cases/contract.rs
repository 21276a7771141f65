//! Tests of documented rules of workers, endpoints and regions: which methods may be called from which context.

use crate::announced::kept_at_b;
use crate::cases;
use crate::stage::{Stage, pending};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use tieline::{Blocks, Context, Error, Outcome, Region, Status};
use tieline_fake::{Act, Lane, Rule, Slot, World};

#[track_caller]
fn refused<T>(result: Result<T, impl Into<Error>>) -> Status {
    match result {
        Ok(_) => panic!("it was not refused"),
        Err(error) => error.into().status(),
    }
}

cases! {
    fn no_handler_runs_in_a_call_that_posts() {
        let stage = Stage::new(vec![Lane::whole("all").synchronous()]);
        let (target, key) = stage.target(vec![0; 8]);
        let local = stage.local(vec![1; 8]);
        let (to_itself, ran) = (stage.a.connect(&stage.a.address().unwrap()).unwrap(), Rc::new(Cell::new(0)));
        let (message, failed, left, asked) = (ran.clone(), ran.clone(), ran.clone(), ran.clone());
        stage.a.on_message(5, move |_| message.set(message.get() + 1)).unwrap();
        stage.a.on_peer_failure(move |_, _| failed.set(failed.get() + 1));
        stage.a.on_peer_left(move |_| left.set(left.get() + 1));
        stage.a.listen("shelf", 4, move |_| asked.set(asked.get() + 1)).unwrap();
        for from in [&to_itself, &stage.ba] {
            let _ = from.send(5, 0, b"").unwrap();
        }
        let call = stage.a.connect_to_service(&stage.a.address().unwrap(), "shelf", b"").unwrap();
        // The peer has died, and the calls below find that out.
        stage.world.rule(Rule::every(Slot::Put, Act::Refuse(Status::PeerFailed)));
        let _ = refused(stage.ab.put(&local, 0..8, &key, 0));
        let _ = refused(stage.ab.send(5, 0, b""));
        let _ = refused(stage.ab.flush());
        let _ = refused(stage.ab.fence());
        drop(stage.a.connect(&stage.b.address().unwrap()));
        assert_eq!(ran.get(), 0);
        assert!(stage.until(|| call.test().is_some()));
        assert!(ran.get() >= 3, "two messages and a request");
        drop(target);
    }

    fn waits_are_refused_in_handlers_and_progress_does_nothing_there() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let second = Rc::new(stage.at_b.worker().unwrap());
        let me = Rc::new(second.connect(&second.address().unwrap()).unwrap());
        let held = Rc::new(stage.at_b.register(vec![0; 8]).unwrap());
        let said: Rc<RefCell<Vec<Vec<Status>>>> = Rc::default();
        let inside = {
            let (worker, me, held, said) = (Rc::downgrade(&second), me.clone(), held, said.clone());
            move || {
                let Some(worker) = worker.upgrade() else { return };
                assert_eq!(worker.progress(), 0);
                let clone = Region::clone(&held);
                let call = worker.connect_to_service(&worker.address().unwrap(), "none", b"").unwrap();
                said.borrow_mut().push(vec![
                    refused(worker.wait(None)),
                    refused(worker.wait_until(|| true, None)),
                    refused(worker.finish(Outcome::Done(0))),
                    refused(worker.finish_call(&call)),
                    refused(worker.flush()),
                    refused(worker.close_region(clone, Duration::MAX)),
                    refused(worker.close(Duration::MAX)),
                    refused(me.flush()),
                    refused(me.flush_messages()),
                ]);
            }
        };
        let (message, failed, left, asked) = (inside.clone(), inside.clone(), inside.clone(), inside);
        second.on_message(5, move |_| message()).unwrap();
        second.on_peer_failure(move |_, _| failed());
        second.on_peer_left(move |_| left());
        second.listen("shelf", 1, move |_| asked()).unwrap();
        let until = |heard: usize| {
            assert!(stage.until(|| { let _ = second.progress(); said.borrow().len() == heard }), "{heard}");
        };
        let _ = me.send(5, 0, b"").unwrap();
        until(1);
        let call = second.connect_to_service(&second.address().unwrap(), "shelf", b"").unwrap();
        until(2);
        let address = second.address().unwrap();
        let third = stage.at_a.worker().unwrap();
        let leaves = third.connect(&address).unwrap();
        let _ = third.finish(leaves.send(9, 0, b"").unwrap()).unwrap();
        for _ in 0..200 {
            let _ = (second.progress(), third.progress());
        }
        drop((leaves, third));
        until(3);
        let fails = stage.a.connect(&address).unwrap();
        let _ = fails.send(9, 0, b"").unwrap();
        stage.settle();
        for _ in 0..200 {
            let _ = (second.progress(), stage.a.progress());
        }
        // The interfaces of one lane are numbered in the order in which their workers were opened.
        stage.world.leave(stage.world.interface(0, "all"), stage.world.interface(2, "all"), Status::PeerFailed as i32, "it died");
        until(4);
        assert!(said.borrow().iter().flatten().all(|status| *status == Status::Busy), "{said:?}");
        drop(call);
    }

    fn a_message_handler_may_do_what_does_not_wait() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let a = Rc::new(stage.at_a.worker().unwrap());
        let address = a.address().unwrap();
        let me = a.connect(&address).unwrap();
        let seen: Rc<RefCell<Vec<u64>>> = Rc::default();
        let gone = RefCell::new(Some((me.clone(), pending(me.flush_messages()))));
        let (log, worker, own) = (seen.clone(), Rc::downgrade(&a), address.clone());
        a.on_message(5, move |m| {
            let Some(worker) = worker.upgrade() else { return };
            drop(gone.borrow_mut().take());
            log.borrow_mut().push(m.header());
            let next = log.clone();
            worker.on_message(5, move |m| next.borrow_mut().push(100 + m.header())).unwrap();
            let back = worker.endpoint_to(m.peer()).unwrap();
            let _ = back.send(6, 7, b"").unwrap();
            let _ = worker.connect(&own).unwrap().send(6, 8, b"").unwrap();
            back.fence().unwrap();
        }).unwrap();
        let log = seen.clone();
        a.on_message(6, move |m| log.borrow_mut().push(m.header())).unwrap();
        // Two messages in one batch: the replaced handler receives both.
        for header in [1, 2] {
            let _ = me.send(5, header, b"").unwrap();
        }
        assert!(stage.until(|| { let _ = a.progress(); seen.borrow().len() >= 6 }));
        let _ = me.send(5, 3, b"").unwrap();
        assert!(stage.until(|| { let _ = a.progress(); seen.borrow().contains(&103) }));
        assert_eq!(seen.borrow()[..2], [1, 2], "the new handler was in force before the call had ended");
        stage.assert_no_faults();
    }

    fn a_message_that_nobody_handles_is_dropped_and_counted() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let _ = stage.ab.send(5, 0, b"nobody").unwrap();
        assert!(stage.until(|| stage.b.counters().unknown_ids == 1));
        let log = stage.log_at_b(5);
        let _ = stage.ab.send(5, 1, b"somebody").unwrap();
        assert!(stage.until(|| !log.borrow().is_empty()));
        assert_eq!((&log.borrow()[..], stage.b.counters().unknown_ids), (&[1][..], 1));
    }

    fn datagram_carrier_may_use_its_worker() {
        let world = World::new(1, vec![Lane::whole("all").over_circuits()]);
        let (at_a, at_b) = (crate::stage::context(world, &[]), crate::stage::context(world, &[]));
        let (a, b) = (Rc::new(at_a.worker().unwrap()), Rc::new(at_b.worker().unwrap()));
        let address = Rc::new(RefCell::new(Vec::new()));
        for (from, to, name) in [(&a, &b, 0), (&b, &a, 1)] {
            let (from_here, there, known) = (Rc::downgrade(from), Rc::downgrade(to), address.clone());
            let depth = Cell::new(0);
            from.set_out_of_band(&[name], move |_, datagram| {
                let (Some(from), Some(there)) = (from_here.upgrade(), there.upgrade()) else { return false };
                if depth.replace(depth.get() + 1) == 0 {
                    let _ = from.progress();
                    drop(from.connect(&known.borrow()).map(|one_more| one_more.send(5, 1, b"")));
                }
                depth.set(depth.get() - 1);
                there.deliver_out_of_band(datagram).is_ok()
            }).unwrap();
        }
        *address.borrow_mut() = b.address().unwrap();
        let seen = Rc::new(Cell::new(0));
        let count = seen.clone();
        b.on_message(5, move |m| count.set(count.get() + 1 - m.header())).unwrap();
        let ab = a.connect(&address.borrow()).unwrap();
        let sent = ab.send(5, 0, b"").unwrap();
        for _ in 0..1_000 {
            let _ = (a.progress(), b.progress());
        }
        assert_eq!(seen.get(), 1);
        assert_eq!(world.faults(), Vec::<String>::new());
        drop(sent);
    }

    fn a_key_belongs_to_the_endpoint_that_imported_it() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let (_target, key) = stage.target(vec![0; 8]);
        let second = stage.a.connect(&stage.b.address().unwrap()).unwrap();
        let local = stage.local(vec![1; 8]);
        let statuses = [
            refused(second.put(&local, 0..8, &key, 0)),
            refused(second.put_bytes(&[1; 8], &key, 0)),
            refused(second.get(&local, 0..8, &key, 0)),
            refused(second.fetch_add(&key, 0, 1)),
        ];
        assert_eq!(statuses, [Status::KeyRejected; 4]);
        assert_eq!(second.error(), None, "it is the operation's error");
    }

    fn an_operation_holds_its_region_and_ends_without_its_request() {
        let stage = Stage::new(vec![Lane::whole("all")]);
        let (target, key) = stage.target(vec![0; 8]);
        stage.world.hold(Slot::Put);
        let local = stage.local(vec![7; 8]);
        drop(pending(stage.ab.put(&local, 0..8, &key, 0)));
        drop(local);
        assert_eq!(stage.a.pending(), 1);
        stage.world.forget_rules();
        stage.world.release_held();
        assert!(stage.until(|| stage.a.pending() == 0));
        assert_eq!(target.to_vec(0..8).unwrap(), [7; 8]);
    }

    fn a_region_is_used_by_threads_and_in_handlers() {
        fn crosses_threads<T: Send + Sync>(_: &T) {}
        let stage = Stage::new(vec![Lane::whole("all")]);
        let region = stage.at_b.alloc(8).unwrap();
        crosses_threads(&region);
        crosses_threads::<Context>(&stage.at_b);
        let (key, used) = (region.remote_key().unwrap(), region.clone());
        let closed: Rc<Cell<bool>> = Rc::default();
        let (seen, held) = (closed.clone(), RefCell::new(Some(used)));
        stage.b.on_message(5, move |_| {
            let Some(region) = held.borrow_mut().take() else { return };
            region.write(0, b"handlers").unwrap();
            assert_eq!(region.remote_key().unwrap(), key);
            seen.set(matches!(region.close(), Err(not) if not.error.status() == Status::Busy));
        }).unwrap();
        let _ = stage.ab.send(5, 0, b"").unwrap();
        assert!(stage.until(|| closed.get()));
        assert_eq!(region.to_vec(0..8).unwrap(), b"handlers");
        assert_eq!(refused(region.remote_key()), Status::Closed, "it was asked to close");
        std::thread::scope(|scope| scope.spawn(|| region.close()).join().unwrap()).unwrap();
    }

    fn local_region_of_other_context_is_refused_by_deferring_or_split_posts() {
        let at_once = vec![Lane::messages("am"), Lane::memory("rma").synchronous()];
        let telling = vec![Lane::whole("all").late(3).telling(32)];
        for lanes in [at_once, telling, vec![Lane::messages("am")]] {
            for lent in [false, true] {
                let stage = Stage::new(lanes.clone());
                let (_target, key) = stage.target(vec![0; 64]);
                let came = kept_at_b(&stage, 5);
                let long = vec![3; stage.ab.max_message().unwrap() + 1];
                let sent = pending(stage.ab.send(5, 0, &long));
                assert!(stage.until(|| !came.borrow().is_empty()));
                let foreign = |context: &Context| match lent {
                    true => context.register_transient(vec![0xee; long.len()]).unwrap(),
                    false => context.register(vec![0xee; long.len()]).unwrap(),
                };
                let (of_a, of_b) = (foreign(&stage.at_a), foreign(&stage.at_b));
                let two = Blocks { offset: 0, block: 8, stride: 16, count: 2 };
                let take = |len| {
                    let announcement = came.borrow_mut().pop().unwrap();
                    let taken = announcement.receive_into(&of_a, 0..len);
                    taken.map_err(|not| {
                        came.borrow_mut().push(not.announcement);
                        not.error
                    })
                };
                let all = [
                    ("put_notify", stage.ab.put_notify(&of_b, 0..8, &key, 0, 1)),
                    ("put_strided", stage.ab.put_strided(&of_b, two, &key, two)),
                    ("get_strided", stage.ab.get_strided(&of_b, two, &key, two)),
                    ("receive_into", take(long.len())),
                    ("receive_into of nothing", take(0)),
                ];
                for (call, posted) in all {
                    let Err(error) = posted else { panic!("{call} took it: {lanes:?}") };
                    let words = error.what().to_string();
                    assert_eq!((error.status(), &*words), (Status::Invalid, "local memory of another context"), "{call}");
                }
                for foreign in [of_a, of_b] {
                    assert!(foreign.to_vec(0..long.len()).unwrap().iter().all(|byte| *byte == 0xee));
                    foreign.close().unwrap();
                }
                // The refused call has changed nothing.
                came.borrow_mut().clear();
                assert!(stage.end_of(&sent).is_some_and(|ended| ended.is_err()));
                stage.assert_no_faults();
            }
        }
    }
}
