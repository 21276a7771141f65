//! Tests of waits that another thread ends, and of barriers.

use crate::{Context, Job, Status};
use std::cell::Cell;
use std::rc::Rc;

#[test]
fn a_wait_for_a_condition_sleeps_until_it_is_woken() {
    let worker = Context::open().unwrap().worker().unwrap();
    let (waker, looks) = (worker.waker().unwrap(), Cell::new(0));
    let thread = std::sync::OnceLock::new();
    // The kernel's path of this thread, under which its state is visible.
    let own = std::fs::read_link("/proc/thread-self").unwrap();
    worker.progress_until(&|| {
        looks.set(looks.get() + 1);
        let (waker, own) = (waker.clone(), own.clone());
        let woken = thread.get_or_init(|| {
            std::thread::spawn(move || {
                // The third word, after the name in brackets, is the state; S means asleep.
                let path = std::path::Path::new("/proc").join(own).join("stat");
                let sleeps = || {
                    let stat = std::fs::read_to_string(&path).unwrap();
                    stat.rsplit(')').next().unwrap().trim_start().starts_with('S')
                };
                while !sleeps() {
                    std::thread::yield_now();
                }
                waker.wake();
            })
        });
        woken.is_finished()
    });
    assert!(looks.get() > 0);
}

#[test]
fn a_barrier_of_one_is_over_at_once_and_one_in_a_handler_is_refused() {
    let worker = Rc::new(Context::open().unwrap().worker().unwrap());
    let job = Rc::new(Job::from_env().unwrap());
    worker.barrier(&job).unwrap();
    let refused = Rc::new(Cell::new(None));
    let (inside, same_job, told) = (Rc::downgrade(&worker), job.clone(), refused.clone());
    worker
        .on_message(1, move |_| {
            let worker = inside.upgrade().unwrap();
            told.set(worker.barrier(&same_job).err().map(|error| error.status()));
        })
        .unwrap();
    let itself = worker.connect(&worker.address().unwrap()).unwrap();
    let sent = itself.send(1, 0, b"").unwrap();
    let _ = worker.finish(sent).unwrap();
    while refused.get().is_none() {
        let _ = worker.wait(None).unwrap();
    }
    assert_eq!(refused.get(), Some(Status::Busy));
}
