//! Tests of driven workers that need internals or fork.

use super::engine::Thread;
use super::*;
use crate::Context;
use crate::sys::ends_in_forked_child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;

fn context() -> Context {
    Context::builder().set("TIELINE_PROVIDERS", "shm").open().unwrap()
}

/// Waits until the progress thread sleeps without a limit.
fn wait_until_idle(worker: &DrivenWorker) {
    while worker.engine().enter().unwrap().thread != Thread::Watching {
        std::thread::yield_now();
    }
}

#[test]
fn idle_thread_sleeps_on_descriptor_that_is_not_readable() {
    let worker = context().driven_worker().unwrap();
    let me = worker.connect(&worker.address().unwrap()).unwrap();
    worker.on_message(1, |_| {}).unwrap();
    for _ in 0..3 {
        let sent = me.send(1, 0, b"to itself").unwrap();
        assert_eq!(sent.wait(None).unwrap(), Some(0));
        assert!(me.flush_messages().unwrap().wait(None).unwrap().is_some());
        wait_until_idle(&worker);
        let poller = worker.engine().enter().unwrap().worker().unwrap().inner.second_poller();
        assert!(!poller.unwrap().wait(Some(Duration::ZERO)).unwrap(), "the thread would not sleep");
    }
}

#[test]
fn forked_child_is_refused_although_another_thread_holds_the_lock() {
    let worker = context().driven_worker().unwrap();
    let me = worker.connect(&worker.address().unwrap()).unwrap();
    let counter = worker.completion_counter().unwrap();
    worker.on_message(1, |_| panic!("in the child")).unwrap();
    let (held, is_held) = sync_channel(0);
    let (release, is_released) = sync_channel(0);
    let ended = std::thread::scope(|scope| {
        let engine = worker.engine().clone();
        let _ = scope.spawn(move || {
            let entered = engine.enter().unwrap();
            held.send(()).unwrap();
            is_released.recv().unwrap();
            drop(entered);
        });
        is_held.recv().unwrap();
        let objects = (me.clone(), worker.clone());
        let mut objects = Some((objects, counter));
        let ended = ends_in_forked_child(|| {
            let ((me, worker), counter) = objects.take().unwrap();
            assert_eq!(me.send(1, 0, b"").unwrap_err().status(), Status::Invalid);
            assert_eq!(worker.address().unwrap_err().status(), Status::Invalid);
            assert_eq!(worker.wait_until(|| false, None).unwrap_err().status(), Status::Invalid);
            assert_eq!(counter.wait(None).unwrap_err().status(), Status::Invalid);
            assert_eq!(me.flush().unwrap_err().status(), Status::Invalid);
            let closed = worker.close(Duration::ZERO).unwrap_err();
            assert_eq!(closed.error.status(), Status::Invalid);
            worker.notify();
            drop((me, worker, counter));
        });
        release.send(()).unwrap();
        ended
    });
    assert!(ended);
    // The parent goes on.
    let came = Arc::new(AtomicBool::new(false));
    let seen = came.clone();
    worker.on_message(1, move |_| seen.store(true, Ordering::Relaxed)).unwrap();
    let _ = me.send(1, 0, b"").unwrap();
    assert!(worker.wait_until(|| came.load(Ordering::Relaxed), None).unwrap());
}

#[test]
fn full_list_stops_the_receiver_until_its_handler_returns() {
    const ALL: u64 = 20_000;
    let context = context();
    let (here, there) = (context.driven_worker().unwrap(), context.driven_worker().unwrap());
    let (begun, begins) = sync_channel(1);
    let (go, goes) = sync_channel::<()>(1);
    let count = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let seen = count.clone();
    there
        .on_message(1, move |message| {
            if message.header() == 0 {
                begun.send(()).unwrap();
                goes.recv().unwrap();
            }
            let _ = seen.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
    let to = here.connect(&there.address().unwrap()).unwrap();
    let send = |header| {
        while to.send(1, header, b"").is_err_and(|error| error.status() == Status::Again) {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        let sends = scope.spawn(|| (0..ALL).for_each(send));
        begins.recv().unwrap();
        // The progress thread is in the handler, so this thread receives the messages.
        let full = || there.engine().dispatch.is_full();
        assert!(there.wait_until(full, None).unwrap());
        let _ = there.wait_until(|| false, Some(Duration::from_millis(1))).unwrap();
        assert_eq!(count.load(Ordering::Relaxed), 0, "the handlers run one at a time");
        go.send(()).unwrap();
        sends.join().unwrap();
    });
    assert!(there.wait_until(|| count.load(Ordering::Relaxed) == ALL, None).unwrap());
}
