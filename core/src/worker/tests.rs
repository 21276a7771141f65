//! Tests of a worker whose interfaces, providers or peers fail or disappear.

use super::schedule::{FIRST_PAUSE, HOT};
use super::*;
use crate::rank::ModuleRef;
use crate::sys::ends_in_forked_child;
use crate::{Close, Context, Outcome, Region};
use std::cell::{Cell, RefCell};
use std::time::Duration;
use tieline_order::slab::LOOKS;
use tieline_plugin_api::abi::WATCH_CALLS;

mod barrier;
mod circuits;
mod keys_of_rts;
mod shown;
mod threads;

fn over_shm(progress_thread: bool) -> Context {
    let context = Context::builder().set("TIELINE_PROVIDERS", "shm");
    let context = match progress_thread {
        true => context.set("TIELINE_PROGRESS_THREAD", "1"),
        false => context,
    };
    context.open().unwrap()
}

#[test]
fn worker_dropped_in_handler_leaves_while_endpoint_is_held() {
    let context = over_shm(false);
    let (worker, peer) = (context.worker().unwrap(), context.worker().unwrap());
    let held = worker.connect(&peer.address().unwrap()).unwrap();
    let sent = held.send(7, 0, b"").unwrap();
    let out = peer.connect(&worker.address().unwrap()).unwrap();
    let left = Rc::new(Cell::new(0));
    let told = left.clone();
    peer.on_peer_left(move |_| told.set(told.get() + 1));
    let inner = worker.inner.clone();
    let owner = Rc::new(RefCell::new(Some(worker)));
    let dropped = owner.clone();
    let _ = owner.borrow().as_ref().unwrap().on_message(8, move |_| drop(dropped.take()));
    drop(sent);
    let _ = out.send(8, 0, b"").unwrap();
    while owner.borrow().is_some() {
        let _ = (inner.progress(), peer.progress());
    }
    let told = peer.wait_until(|| left.get() > 0, Some(Duration::from_secs(20))).unwrap();
    assert!(told && held.error().is_some(), "it has left while an endpoint of its own is held");
}

#[test]
fn a_worker_may_be_dropped_in_its_own_handler() {
    let context = over_shm(false);
    let worker = context.worker().unwrap();
    let me = worker.connect(&worker.address().unwrap()).unwrap();
    let inner = worker.inner.clone();
    let held: Rc<RefCell<Option<Worker>>> = Rc::default();
    let mine = held.clone();
    worker.on_message(7, move |_| drop(mine.borrow_mut().take())).unwrap();
    *held.borrow_mut() = Some(worker);
    let _ = me.send(7, 0, b"the last one").unwrap();
    while held.borrow().is_some() {
        let _ = inner.progress();
    }
    assert_eq!(me.send(7, 0, b"too late").unwrap_err().status(), Status::Closed);
    assert_eq!(Rc::strong_count(&held), 1, "its handler is gone too");
}

#[test]
fn a_handler_that_is_replaced_may_use_its_worker_on_the_way_out() {
    struct Registers(Rc<Worker>);
    impl Drop for Registers {
        fn drop(&mut self) {
            self.0.on_message(9, |_| {}).unwrap();
        }
    }
    let context = over_shm(false);
    let worker = Rc::new(context.worker().unwrap());
    let last_word = Registers(worker.clone());
    worker
        .on_message(7, move |_| {
            let _ = &last_word;
        })
        .unwrap();
    worker.on_message(7, |_| {}).unwrap();
    assert_eq!(Rc::strong_count(&worker), 1);
}

#[test]
fn a_worker_does_not_sleep_on_what_a_panicking_handler_left() {
    let context = over_shm(false);
    let worker = context.worker().unwrap();
    let me = worker.connect(&worker.address().unwrap()).unwrap();
    let heard = Rc::new(Cell::new(0));
    let counted = heard.clone();
    let count = move |m: &Message<'_>| {
        counted.set(counted.get() + 1);
        assert_ne!(m.header(), 0, "the first one");
    };
    worker.on_message(7, count).unwrap();
    for number in 0..3 {
        let _ = me.send(7, number, &[]).unwrap();
    }
    let poll = || std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| worker.progress()));
    while poll().is_ok() {}
    if worker.inner.left_over.is_there() {
        assert!(!worker.arm().unwrap());
    }
    while heard.get() < 3 {
        let _ = worker.wait(None).unwrap();
    }
}

#[test]
fn a_region_is_closed_within_any_time_also_one_without_end() {
    let context = over_shm(false);
    let worker = context.worker().unwrap();
    let region = context.register(vec![0u8; 8]).unwrap();
    assert!(worker.close_region(region, Duration::MAX).is_ok());
}

#[test]
fn cost_of_endpoint_does_not_depend_on_number_of_endpoints() {
    let context = over_shm(false);
    let worker = context.worker().unwrap();
    let address = worker.address().unwrap();
    let cost = || {
        let before = LOOKS.get();
        let endpoint = worker.connect(&address).unwrap();
        let _ = endpoint.send(7, 0, b"").unwrap();
        drop(endpoint);
        LOOKS.get() - before
    };
    // The first call of the process finds an empty table.
    let _ = cost();
    let alone = cost();
    // Each endpoint has a socket: the number stays below the usual limit of open descriptors.
    let others: Vec<Endpoint> = (0..100).map(|_| worker.connect(&address).unwrap()).collect();
    assert_eq!(cost(), alone, "among {}", others.len());
    drop(others);
    assert_eq!(cost(), alone, "after them");
}

#[test]
fn cost_of_cancel_does_not_depend_on_number_of_endpoints() {
    let context = over_shm(false);
    let worker = context.worker().unwrap();
    let address = worker.address().unwrap();
    let endpoint = worker.connect(&address).unwrap();
    // The receiver makes no progress, so the lane accepts no more messages.
    while endpoint.send(7, 0, &[0; 64]).unwrap().is_done() {}
    let cost = || {
        let Ok(Outcome::Pending(request)) = endpoint.send(7, 0, &[0; 64]) else { panic!("room") };
        let before = LOOKS.get();
        worker.cancel(&request).unwrap();
        LOOKS.get() - before
    };
    let alone = cost();
    let others: Vec<Endpoint> = (0..100).map(|_| worker.connect(&address).unwrap()).collect();
    assert_eq!(cost(), alone, "among {}", others.len());
}

fn emulated_put(worker: &Worker, endpoint: &Endpoint, source: &Region, key: &[u8]) -> Status {
    let key = endpoint.import_key(key).unwrap();
    assert!(key.path().starts_with("emulated"), "{}", key.path());
    let outcome = endpoint.put(source, 0..source.len(), &key, 0).unwrap();
    let ended = worker.finish(outcome);
    ended.map_or_else(|error| error.status(), |_| Status::Again)
}

#[test]
fn the_way_to_a_service_worker_is_made_anew_after_it_failed() {
    let (here, there) = (over_shm(false), over_shm(true));
    let (worker, target) = (here.worker().unwrap(), there.worker().unwrap());
    let memory: Vec<u8> = vec![0; 4096];
    let source = here.alloc(4096).unwrap();
    let region = there.register(memory).unwrap();
    let key = region.remote_key().unwrap();
    let endpoint = worker.connect(&target.address().unwrap()).unwrap();
    assert_eq!(emulated_put(&worker, &endpoint, &source, &key), Status::Again);
    let first = endpoint.inner.service().unwrap().unwrap();
    first.fail(Error::new(Status::TimedOut, "the way is lost", "a test says so", ""));
    assert!(endpoint.inner.is_alive());
    assert_eq!(emulated_put(&worker, &endpoint, &source, &key), Status::Again);
    let second = endpoint.inner.service().unwrap().unwrap();
    assert!(!Rc::ptr_eq(&first, &second));
}

#[test]
fn endpoints_to_workers_of_one_process_share_the_service_endpoint() {
    let (here, there) = (over_shm(false), over_shm(true));
    let worker = here.worker().unwrap();
    let targets = [there.worker().unwrap(), there.worker().unwrap()];
    let source = here.alloc(4096).unwrap();
    let region = there.register(vec![0; 4096]).unwrap();
    let key = region.remote_key().unwrap();
    let endpoints = targets.each_ref().map(|to| worker.connect(&to.address().unwrap()).unwrap());
    for endpoint in &endpoints {
        assert_eq!(emulated_put(&worker, endpoint, &source, &key), Status::Again);
    }
    let [first, second] = endpoints.each_ref().map(|one| one.inner.open_service().unwrap());
    assert!(Rc::ptr_eq(&first, &second));
    let _ = endpoints[0].close(Close::Cancel).unwrap();
    assert!(first.is_alive());
    assert_eq!(emulated_put(&worker, &endpoints[1], &source, &key), Status::Again);
    let service = Rc::downgrade(&first);
    drop((first, second, endpoints));
    assert!(service.upgrade().is_none(), "no endpoint uses it any more");
}

/// While a worker has work, every progress call checks for it.
#[test]
fn a_worker_whose_work_is_done_looks_for_none() {
    let context = over_shm(false);
    let worker = context.worker().unwrap();
    worker.inner.shared.note_work();
    let _ = worker.progress();
    assert!(!worker.inner.shared.has_work.get());
}

/// Interfaces that need a system call are polled less often, and interfaces without events to poll are not polled at all.
#[test]
fn only_interfaces_without_system_calls_are_polled_in_every_call() {
    let context = Context::builder().set("TIELINE_PROVIDERS", "shm,shm-cma").open().unwrap();
    let worker = context.worker().unwrap();
    let slots = &worker.inner.shared.interfaces;
    assert!(slots.iter().any(|slot| &*slot.path == "shm-cma/copy"), "it brings nothing");
    let fast = worker.inner.schedule.awake().map(|index| &*slots[index].path);
    assert_eq!(fast.collect::<Vec<_>>(), ["shm/ring"]);
    assert_eq!(worker.inner.schedule.slow_interfaces(), [] as [usize; 0]);
}

#[test]
fn quiet_slow_interface_is_polled_less_and_less_often() {
    let context = over_shm(false);
    let worker = context.worker().unwrap();
    let polls_in = |calls: u32| {
        let is_due = |_: &u32| {
            // The test's thread may be stopped for longer than the time after which a poll is late.
            worker.inner.schedule.is_in_time();
            let due = worker.inner.schedule.left() == 0;
            assert_eq!(worker.progress(), 0);
            due
        };
        (0..calls).filter(is_due).count()
    };
    // After this number of polls, the interfaces that had events during opening are quiet.
    let _ = polls_in(2 * HOT);
    let (some, later) = (polls_in(16 * FIRST_PAUSE), polls_in(256 * FIRST_PAUSE));
    assert!(some <= 16 && (1..=16).contains(&later), "{some} and then {later}");
    // A program that has not called for long need not make thousands of calls until the next poll.
    while worker.inner.schedule.left() < 1000 {
        let _ = worker.progress();
    }
    let (before, calls) = (worker.inner.schedule.left(), 2 * WATCH_CALLS);
    worker.inner.schedule.was_polled_long_ago();
    (0..calls).for_each(|_| assert_eq!(worker.progress(), 0));
    assert!(worker.inner.schedule.left() < before - calls, "no poll came earlier");
}

#[test]
fn a_module_is_found_by_all_of_its_names_together() {
    let context = Context::builder().set("TIELINE_PROVIDERS", "shm,shm-cma").open().unwrap();
    let worker = context.worker().unwrap();
    let names = |slot: &InterfaceSlot| {
        [slot.provider.name.clone(), slot.domain.clone(), slot.module.clone()]
    };
    let all: Vec<[String; 3]> = worker.inner.shared.interfaces.iter().map(names).collect();
    assert!(all.len() > 1, "{all:?}");
    for (first, second) in [(0, 1), (1, 0)] {
        for mixed in 0..8 {
            let of = |at: usize| &all[if mixed >> at & 1 == 0 { first } else { second }][at];
            let found = worker.inner.shared.interface(&ModuleRef::new(of(0), of(1), of(2)));
            let one = [of(0), of(1), of(2)].map(String::clone);
            assert_eq!(found, all.iter().position(|names| *names == one), "{one:?}");
        }
    }
}

#[test]
fn in_a_forked_child_a_worker_refuses_everything_and_its_end_tells_nobody() {
    let context = Context::builder().set("TIELINE_PROVIDERS", "shm").open().unwrap();
    let (worker, peer) = (context.worker().unwrap(), context.worker().unwrap());
    let left = Rc::new(Cell::new(false));
    let told = left.clone();
    peer.on_peer_left(move |_| told.set(true));
    let handled = Rc::new(Cell::new(0));
    let count = handled.clone();
    worker.on_message(7, move |_| count.set(count.get() + 1)).unwrap();
    let address = worker.address().unwrap();
    let (me, out) =
        (worker.connect(&address).unwrap(), worker.connect(&peer.address().unwrap()).unwrap());
    let _ = worker.finish(out.send(7, 0, b"").unwrap()).unwrap();
    let _ = peer.wait_until(|| peer.counters().unknown_ids > 0, None).unwrap();
    let _ = me.send(7, 0, b"").unwrap();
    let Outcome::Pending(request) = me.flush_messages().unwrap() else { panic!("no round trip") };
    let mut all = Some((worker, me, out, request));
    let ended = ends_in_forked_child(|| {
        let Some((worker, me, out, request)) = all.take() else { return };
        fn invalid(result: Result<(), impl Into<Error>>) {
            assert_eq!(result.map_err(Into::into).unwrap_err().status(), Status::Invalid);
        }
        assert_eq!(worker.progress(), 0);
        invalid(worker.test(&request).expect("it may ask for ever").map(drop));
        invalid(worker.address().map(drop));
        invalid(worker.on_message(8, |_| {}));
        invalid(worker.listen("any", 1, drop));
        invalid(worker.flush());
        invalid(me.send(7, 0, b"").map(drop));
        invalid(me.flush().map(drop));
        invalid(me.fence());
        invalid(worker.connect(&address).map(drop));
        invalid(worker.connect_to_service(&address, "any", b"").map(drop));
        invalid(worker.deliver_out_of_band(b"bytes"));
        invalid(worker.wait(None).map(drop));
        invalid(worker.wait_until(|| false, None).map(drop));
        invalid(worker.arm().map(drop));
        invalid(worker.finish(Outcome::Pending(request)).map(drop));
        invalid(worker.close(Duration::MAX));
        worker.unlisten("any");
        drop((worker, me, out));
        assert_eq!(handled.get(), 0, "a handler ran");
    });
    assert!(ended, "the child hangs, or died");
    let (worker, _me, out, request) = all.take().unwrap();
    assert_eq!(worker.finish(Outcome::Pending(request)), Ok(0));
    assert_eq!(handled.get(), 1, "the parent has its own message");
    let _ = worker.finish(out.send(7, 0, b"").unwrap()).unwrap();
    assert!(peer.wait_until(|| peer.counters().unknown_ids > 1, None).unwrap());
    assert!(!left.get(), "the child said good-bye in its parent's name");
}

#[test]
fn message_with_unhandled_id_is_reported_with_its_sender() {
    let context = Context::builder().set("TIELINE_PROVIDERS", "shm").open().unwrap();
    let (worker, peer) = (context.worker().unwrap(), context.worker().unwrap());
    let out = worker.connect(&peer.address().unwrap()).unwrap();
    for _ in 0..3 {
        let _ = worker.finish(out.send(7, 0, b"").unwrap()).unwrap();
    }
    assert!(peer.wait_until(|| peer.counters().unknown_ids == 3, None).unwrap());
    let warnings = context.report().warnings;
    let told: Vec<_> = warnings.iter().filter(|text| text.contains("with the id 7")).collect();
    assert_eq!(told.len(), 1, "the same is said once: {warnings:?}");
    let sender = format!("process {}", std::process::id());
    assert!(told[0].contains(&sender) && told[0].contains("no handler"), "{told:?}");
    // Although this id arrives repeatedly, another id is reported as well.
    for id in std::iter::repeat_n(7, 20).chain([8]) {
        let _ = worker.finish(out.send(id, 0, b"").unwrap()).unwrap();
    }
    assert!(peer.wait_until(|| peer.counters().unknown_ids == 24, None).unwrap());
    assert!(context.report().warnings.iter().any(|text| text.contains("with the id 8")));
}

#[test]
fn wait_distinguishes_timeout_from_event_and_internal_wake_up() {
    let context = Context::builder().set("TIELINE_PROVIDERS", "shm").open().unwrap();
    let (worker, peer) = (context.worker().unwrap(), context.worker().unwrap());
    let most = Duration::from_millis(20);
    // A sleep that ends for another reason does not report a timeout.
    let slept = loop {
        let begin = std::time::Instant::now();
        match worker.wait(Some(most)).unwrap() {
            Waited::TimeIsUp => break begin.elapsed(),
            Waited::Roused => {}
            Waited::Moved => panic!("nobody has sent anything"),
        }
    };
    assert!(slept >= most, "{slept:?}");
    worker.on_message(7, |_| {}).unwrap();
    let out = peer.connect(&worker.address().unwrap()).unwrap();
    let _ = peer.finish(out.send(7, 0, b"").unwrap()).unwrap();
    let moved = loop {
        match worker.wait(Some(Duration::from_secs(60))).unwrap() {
            Waited::Roused => {}
            waited => break waited,
        }
    };
    assert_eq!(moved, Waited::Moved);
}
