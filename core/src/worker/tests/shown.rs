//! Tests of a worker's published state that wait on its descriptor or fork.

use super::*;
use crate::live::{Doing, Status as Shown};

fn waits(status: &Shown) -> bool {
    status.workers.iter().flat_map(|worker| &worker.endpoints).any(|e| e.waits.is_some())
}

#[test]
fn descriptor_loop_publishes_wait_begun_soon_after_last_text() {
    let (context, there) = (over_shm(false), over_shm(false));
    let (worker, receiver) = (context.worker().unwrap(), there.worker().unwrap());
    let endpoint = worker.connect(&receiver.address().unwrap()).unwrap();
    let _ = endpoint.send(7, 0, b"first").unwrap();
    let arm = || {
        while !worker.arm().unwrap() {
            let _ = (worker.progress(), receiver.progress());
        }
    };
    // The state is as if writing the last text had taken long.
    worker.inner.shown.publisher.text_took(u64::MAX);
    arm();
    assert!(!waits(&context.status()));
    let memory = context.register_transient(vec![1; 1 << 20]).unwrap();
    let _ = endpoint.send_regions(7, 0, &[(&memory, 0..1 << 20)]).unwrap();
    while worker.progress() > 0 {}
    assert!(worker.arm().unwrap(), "nobody answers");
    // The next text is not due. When the text is due, the descriptor wakes the worker, although there is no event.
    let mut rounds = 0;
    while !waits(&context.status()) {
        assert!(worker.inner.poller.wait(None).unwrap());
        rounds += 1;
        while !worker.arm().unwrap() {
            let _ = worker.progress();
        }
    }
    assert!(rounds <= 2, "{rounds}");
    assert_eq!(context.status().workers[0].doing, Doing::Armed);
}

#[test]
fn operation_ended_just_before_sleep_is_not_shown_as_waiting() {
    let (context, there) = (over_shm(false), over_shm(false));
    let (worker, receiver) = (context.worker().unwrap(), there.worker().unwrap());
    let endpoint = worker.connect(&receiver.address().unwrap()).unwrap();
    let _ = endpoint.send(7, 0, b"first").unwrap();
    while !worker.arm().unwrap() {
        let _ = (worker.progress(), receiver.progress());
    }
    let memory = context.register_transient(vec![1; 1 << 20]).unwrap();
    let _ = endpoint.send_regions(7, 0, &[(&memory, 0..1 << 20)]).unwrap();
    worker.inner.show();
    assert!(waits(&context.status()));
    // The next text is not due for a second, and no progress call counts the open operations.
    worker.inner.shown.publisher.text_took(u64::MAX);
    while worker.inner.shared.ops.borrow().open_count() > 0 || !worker.arm().unwrap() {
        worker.inner.schedule.set_left(u32::MAX);
        let _ = (receiver.progress(), worker.progress());
    }
    let status = context.status();
    assert!(!waits(&status) && status.workers[0].pending == 0, "{status}");
    assert_eq!(status.workers[0].doing, Doing::Armed);
}

#[test]
fn worker_in_handler_after_sleep_is_not_shown_as_asleep() {
    let (context, there) = (over_shm(false), over_shm(false));
    let (worker, sender) = (context.worker().unwrap(), there.worker().unwrap());
    let endpoint = sender.connect(&worker.address().unwrap()).unwrap();
    let seen: Rc<RefCell<Vec<Doing>>> = Rc::default();
    let (log, asks) = (seen.clone(), context.clone());
    worker.on_message(7, move |_| log.borrow_mut().push(asks.status().workers[0].doing)).unwrap();
    let _ = endpoint.send(7, 0, b"first").unwrap();
    while seen.borrow().is_empty() {
        let _ = (sender.progress(), worker.progress());
    }
    while !worker.arm().unwrap() {
        let _ = (sender.progress(), worker.progress());
    }
    assert_eq!(context.status().workers[0].doing, Doing::Armed);
    let _ = endpoint.send(7, 0, b"second").unwrap();
    while seen.borrow().len() < 2 {
        let _ = worker.wait(None).unwrap();
    }
    assert_eq!(*seen.borrow(), [Doing::Asked; 2]);
}

#[test]
fn in_a_forked_child_nothing_is_shown() {
    let context = over_shm(false);
    let worker = context.worker().unwrap();
    assert_eq!(context.status().workers.len(), 1);
    assert!(ends_in_forked_child(|| {
        assert_eq!(context.status(), Shown::default());
        assert_eq!(worker.status(), crate::live::WorkerStatus::default());
    }));
}
