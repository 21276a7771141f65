//! Tests of other threads' use of a worker that need internals or fork.

use super::*;
use crate::worker::threads::{Remote, WaitSet};
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn in_a_forked_child_a_waker_wakes_nobody_and_a_remote_takes_nothing() {
    let context = over_shm(false);
    let worker = context.worker().unwrap();
    let waker = worker.waker().unwrap();
    let remote: Remote = worker.remote(4, ()).unwrap();
    assert!(worker.arm().unwrap());
    let ended = ends_in_forked_child(|| {
        waker.wake();
        let refused = remote.run(|_, ()| panic!("in the child")).unwrap_err().error;
        assert_eq!(refused.status(), Status::Invalid);
        assert_eq!(worker.waker().map(drop).unwrap_err().status(), Status::Invalid);
        assert_eq!(worker.check_movable().unwrap_err().status(), Status::Invalid);
        drop((worker, remote));
    });
    assert!(ended);
}

#[test]
fn forked_child_drops_worker_with_locked_task_queue() {
    let context = over_shm(false);
    let worker = context.worker().unwrap();
    let remote = worker.remote(4, ()).unwrap();
    let mut worker = Some(worker);
    let ended = remote.locked(|| ends_in_forked_child(|| drop(worker.take())));
    assert!(ended);
}

#[test]
fn a_set_is_readable_for_what_comes_between_arming_and_the_sleep() {
    let context = over_shm(false);
    let (one, two) = (context.worker().unwrap(), context.worker().unwrap());
    let sender = context.worker().unwrap();
    let mut set = WaitSet::new().unwrap();
    set.add(&one).unwrap();
    set.add(&two).unwrap();
    for target in [&one, &two, &one] {
        let there = sender.connect(&target.address().unwrap()).unwrap();
        target.on_message(1, |_| {}).unwrap();
        while !set.arm().unwrap() {
            let _ = set.progress();
        }
        assert!(!set.is_readable(), "nothing has come yet");
        let _ = there.send(1, 0, b"between").unwrap();
        assert!(set.is_readable(), "the sleep would not end");
        while set.progress() == 0 {}
        // A wake-up also counts.
        while !set.arm().unwrap() {
            let _ = set.progress();
        }
        target.waker().unwrap().wake();
        assert!(set.is_readable());
        assert!(!set.arm().unwrap(), "it says so once");
    }
}

#[test]
fn unwatched_polling_worker_is_still_woken() {
    let context = over_shm(false);
    let (worker, sender) = (context.worker().unwrap(), context.worker().unwrap());
    worker.on_message(1, |_| {}).unwrap();
    let there = sender.connect(&worker.address().unwrap()).unwrap();
    let inner = &worker.inner;
    for _ in 0..3 {
        let _ = there.send(1, 0, b"while it polls").unwrap();
        while worker.progress() == 0 {}
        assert!(inner.watched.is_watched());
        for _ in 0..crate::worker::watched::POLLS {
            inner.look_at_all();
            let _ = worker.progress();
        }
        assert!(!inner.watched.is_watched());
        while !worker.arm().unwrap() {
            let _ = worker.progress();
        }
        assert!(!inner.poller.wait(Some(Duration::ZERO)).unwrap(), "nothing has come yet");
        let _ = there.send(1, 0, b"to a sleeper").unwrap();
        assert!(inner.poller.wait(Some(Duration::ZERO)).unwrap(), "the sleep would not end");
        while worker.progress() == 0 {}
    }
}

#[test]
fn worker_naps_until_its_descriptors_can_be_watched_again() {
    let context = over_shm(false);
    let worker = context.worker().unwrap();
    let inner = &worker.inner;
    for _ in 0..crate::worker::watched::POLLS {
        inner.look_at_all();
        let _ = worker.progress();
    }
    // The kernel refuses to watch a descriptor twice, with an error as when a user's limit of watches is reached.
    let mut descriptors = inner.shared.interfaces.iter().filter_map(|slot| slot.watched);
    let taken = descriptors.next().unwrap();
    inner.poller.add(taken).unwrap();
    assert!(worker.arm().unwrap());
    assert!(!inner.watched.is_watched());
    assert!(inner.poller.wait(None).unwrap(), "the nap has no end");
    assert!(worker.arm().unwrap() && inner.watched.is_watched());
}

#[test]
fn a_worker_that_ends_leaves_its_set_though_its_descriptor_is_held() {
    let context = over_shm(false);
    let (one, two) = (context.worker().unwrap(), context.worker().unwrap());
    let mut set = WaitSet::new().unwrap();
    set.add(&one).unwrap();
    set.add(&two).unwrap();
    assert_eq!(set.add(&one).unwrap_err().status(), Status::Invalid);
    // The endpoint holds the descriptor, which stays readable.
    let kept = one.connect(&one.address().unwrap()).unwrap();
    while !one.arm().unwrap() {
        let _ = one.progress();
    }
    one.waker().unwrap().wake();
    let waker = two.waker().unwrap();
    drop(one);
    assert_eq!(set.len(), 1);
    assert_eq!(set.wait(Some(Duration::from_millis(2))), Ok(Waited::TimeIsUp));
    assert!(!set.is_readable(), "the ended one is still watched");
    waker.wake();
    assert_eq!(set.wait(None), Ok(Waited::Moved));
    drop((two, kept));
    assert!(set.is_empty());
    assert_ne!(set.wait(Some(Duration::ZERO)), Ok(Waited::Moved));
    assert_eq!(set.wait(None).unwrap_err().status(), Status::Invalid, "nothing would end it");
}

#[test]
fn a_forked_child_changes_nothing_in_its_parents_set() {
    let context = over_shm(false);
    let (one, two) = (context.worker().unwrap(), context.worker().unwrap());
    let mut set = WaitSet::new().unwrap();
    set.add(&one).unwrap();
    let mut both = Some((set, one));
    let ended = ends_in_forked_child(|| {
        let (mut set, one) = both.take().unwrap();
        assert_eq!(set.add(&two).unwrap_err().status(), Status::Invalid);
        assert_eq!(set.arm().unwrap_err().status(), Status::Invalid);
        assert_eq!(set.wait(None).unwrap_err().status(), Status::Invalid);
        assert!(set.remove(&one), "from the child's own list");
        drop((set, one));
    });
    assert!(ended);
    let (mut set, one) = both.take().unwrap();
    one.waker().unwrap().wake();
    assert_eq!(set.wait(None), Ok(Waited::Moved));
    assert!(set.remove(&one) && !set.remove(&one) && set.is_empty());
}

#[test]
fn tasks_behind_a_panic_keep_the_worker_awake() {
    let context = over_shm(false);
    let worker = context.worker().unwrap();
    let remote = worker.remote(8, Cell::new(0)).unwrap();
    remote.run(|_, _| panic!("a task")).unwrap();
    remote.run(|_, count| count.set(count.get() + 1)).unwrap();
    let first = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| worker.wait(None)));
    assert!(first.is_err());
    assert!(!worker.inner.arm(None).unwrap(), "a task waits");
    assert_eq!(worker.wait(None), Ok(Waited::Moved));
    let (said, asked) = std::sync::mpsc::channel();
    remote.run(move |_, count| said.send(count.get()).unwrap()).unwrap();
    while asked.try_recv() != Ok(1) {
        let _ = worker.wait(None).unwrap();
    }
}

#[test]
fn a_way_for_tasks_that_nobody_has_any_more_is_given_up() {
    struct Says(Rc<Cell<bool>>);
    impl Drop for Says {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    static RUN: AtomicBool = AtomicBool::new(false);
    let context = over_shm(false);
    let worker = context.worker().unwrap();
    let gone = Rc::new(Cell::new(false));
    let remote = worker.remote(8, Says(gone.clone())).unwrap();
    remote.run(|_, _| RUN.store(true, Ordering::Release)).unwrap();
    drop(remote);
    while !gone.get() {
        let _ = worker.wait(Some(Duration::from_millis(1))).unwrap();
    }
    assert!(RUN.load(Ordering::Acquire), "what was handed over is run first");
    assert!(worker.inner.mailboxes.borrow().is_empty());
}

#[test]
fn a_task_may_be_the_end_of_the_worker_that_runs_it() {
    let context = over_shm(false);
    let worker = context.worker().unwrap();
    let inner = worker.inner.clone();
    let held = Rc::new(RefCell::new(None));
    let remote = worker.remote(8, held.clone()).unwrap();
    *held.borrow_mut() = Some(worker);
    let left = std::sync::Arc::new(());
    let theirs = left.clone();
    remote.run(|_, held: &Rc<RefCell<Option<Worker>>>| drop(held.borrow_mut().take())).unwrap();
    remote.run(move |_, _| drop(theirs)).unwrap();
    while held.borrow().is_some() {
        let _ = inner.progress();
    }
    assert_eq!(std::sync::Arc::strong_count(&left), 1, "what came behind it is dropped");
    assert_eq!(Rc::strong_count(&held), 1, "and so is the state");
    assert_eq!(remote.run(|_, _| ()).unwrap_err().error.status(), Status::Closed);
}

#[test]
fn a_panic_in_what_a_worker_lets_go_of_leaves_no_way_for_tasks_open() {
    struct Panics(bool);
    impl Drop for Panics {
        fn drop(&mut self) {
            if self.0 {
                std::panic::resume_unwind(Box::new("a drop"));
            }
        }
    }
    for who in ["a handler", "a task", "a state"] {
        let context = over_shm(false);
        let worker = context.worker().unwrap();
        let [handler, task, state] =
            ["a handler", "a task", "a state"].map(|one| Panics(one == who));
        worker.on_message(1, move |_| assert!(size_of_val(&handler) > 0)).unwrap();
        let first = worker.remote(8, state).unwrap();
        first.run(move |_, _| drop(task)).unwrap();
        let (second, held) = (worker.remote(8, ()).unwrap(), std::sync::Arc::new(()));
        let theirs = held.clone();
        second.run(move |_, ()| drop(theirs)).unwrap();
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(worker)));
        assert!(dropped.is_err(), "{who}");
        assert_eq!(first.run(|_, _| ()).unwrap_err().error.status(), Status::Closed, "{who}");
        assert_eq!(second.run(|_, ()| ()).unwrap_err().error.status(), Status::Closed, "{who}");
        assert_eq!(
            std::sync::Arc::strong_count(&held),
            1,
            "after {who} it is dropped all the same"
        );
    }
}

#[test]
fn state_of_remote_opened_by_task_may_call_anything_when_dropped() {
    struct Uses(Rc<WorkerState>, Rc<RefCell<Option<Worker>>>);
    impl Drop for Uses {
        fn drop(&mut self) {
            assert!(!self.0.has_tasks());
            drop(Worker::lent(self.0.clone()).remote(1, ()).unwrap());
            drop(self.1.take());
        }
    }
    let context = over_shm(false);
    let worker = context.worker().unwrap();
    let inner = worker.inner.clone();
    let held = Rc::new(RefCell::new(None));
    let remote = worker.remote(8, held.clone()).unwrap();
    *held.borrow_mut() = Some(worker);
    let opens = |worker: &Worker, held: &Rc<RefCell<Option<Worker>>>| {
        drop(worker.remote(1, Uses(worker.inner.clone(), held.clone())).unwrap());
    };
    remote.run(opens).unwrap();
    while held.borrow().is_some() {
        let _ = inner.progress();
    }
    assert_eq!(Rc::strong_count(&held), 1, "nothing of the worker is left");
    assert_eq!(remote.run(opens).unwrap_err().error.status(), Status::Closed);
}

#[test]
fn a_worker_that_sleeps_is_woken_when_nobody_can_hand_it_tasks_any_more() {
    let context = over_shm(false);
    let worker = context.worker().unwrap();
    let held = Rc::new(());
    let remote = worker.remote(8, held.clone()).unwrap();
    let clone = remote.clone();
    while !worker.arm().unwrap() {
        let _ = worker.progress();
    }
    std::thread::spawn(move || drop(remote)).join().unwrap();
    assert!(!worker.inner.poller.wait(Some(Duration::ZERO)).unwrap(), "one is left");
    std::thread::spawn(move || drop(clone)).join().unwrap();
    assert!(worker.inner.poller.wait(Some(Duration::ZERO)).unwrap(), "it sleeps on");
    assert!(worker.wait(None).unwrap().has_moved());
    assert_eq!(Rc::strong_count(&held), 1, "the state is dropped");
}

#[test]
fn wait_kept_awake_otherwise_still_reports_wake_up() {
    let context = over_shm(false);
    let worker = context.worker().unwrap();
    let waker = worker.waker().unwrap();
    while worker.wait(Some(Duration::ZERO)).unwrap().has_moved() {}
    worker.inner.turn_was_over.set(true);
    waker.wake();
    assert!(worker.wait(None).unwrap().has_moved());
    assert!(!worker.wait(None).unwrap().has_moved(), "once");
}
