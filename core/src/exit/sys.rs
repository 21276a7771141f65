//! The function that `exit` calls, the workers for which it may say goodbye, and the threads that it ends.

#![allow(unsafe_code)]

use super::{Ends, Leaves, NAP, wait_for};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::from_ref;
use std::rc::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tieline_plugin_api::process::PerProcess;

/// The number of attempts to lock the lists at exit.
const TRIES: u32 = 50;

/// Returns a number of the calling thread that no other living thread has.
pub(crate) fn thread_number() -> usize {
    // The variable has no destructor, so that it exists even after the destructors of the thread have run.
    thread_local! { static HERE: u8 = const { 0 } }
    HERE.with(|here| from_ref(here).addr())
}

/// A worker, until it is dropped, and the thread that last used the worker.
struct Entry {
    worker: Weak<dyn Leaves>,
    thread: Arc<AtomicUsize>,
}

// SAFETY: one thread at a time uses a worker. Only the thread whose number is stored next to this reference reads the reference,
// and drops it when it drops the worker; other threads only compare the address of the number.
unsafe impl Send for Entry {}

#[derive(Default)]
struct Lists {
    workers: Vec<Entry>,
    threads: Vec<Arc<dyn Ends>>,
}

/// The lists of this process. A forked child has lists of its own and does not touch its parent's.
static LISTS: PerProcess<Mutex<Lists>> = PerProcess::new();

fn lists() -> MutexGuard<'static, Lists> {
    LISTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers [`say_goodbye`] for `exit`, which also covers forked children.
fn register() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if !REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: the function exists as long as this library, and `exit` or the unloading of the library calls it.
        let _ = unsafe { libc::atexit(say_goodbye) };
    }
}

/// Adds a worker. `thread` holds the number of the thread that last used the worker.
pub(crate) fn enter(worker: Weak<dyn Leaves>, thread: &Arc<AtomicUsize>) {
    register();
    lists().workers.push(Entry { worker, thread: thread.clone() });
}

/// Removes a worker; the caller is the thread that last used the worker.
pub(crate) fn forget(thread: &Arc<AtomicUsize>) {
    lists().workers.retain(|entry| !Arc::ptr_eq(&entry.thread, thread));
}

/// Adds a thread of the library.
pub(crate) fn enter_thread(thread: Arc<dyn Ends>) {
    lists().threads.push(thread);
}

/// Removes a thread that has ended.
pub(crate) fn forget_thread(thread: &Arc<dyn Ends>) {
    lists().threads.retain(|other| !Arc::ptr_eq(other, thread));
}

/// Says goodbye for the exiting thread's workers, and ends the library's threads. `exit` calls this function before destructors of
/// libraries run; the unloading of the library calls it as well. A forked child says goodbye only for objects that it opened
/// itself.
extern "C" fn say_goodbye() {
    // A signal handler that calls `exit` may have interrupted this thread while it held the lists, so the wait is bounded.
    let tried = |_| {
        LISTS.try_lock().ok().or_else(|| {
            std::thread::sleep(NAP);
            None
        })
    };
    let Some(lists) = (0..TRIES).find_map(tried) else { return };
    let here = thread_number();
    let is_mine = |entry: &&Entry| entry.thread.load(Ordering::Relaxed) == here;
    let mine = lists.workers.iter().filter(is_mine).filter_map(|entry| entry.worker.upgrade());
    let (mine, threads) = (mine.collect::<Vec<_>>(), lists.threads.clone());
    drop(lists);
    for worker in mine {
        let _ = catch_unwind(AssertUnwindSafe(|| worker.leave_at_exit()));
    }
    wait_for(&threads);
}
