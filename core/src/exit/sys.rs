//! The function that `exit` calls, the workers for which it may say goodbye, and the threads that it ends.

#![allow(unsafe_code)]

use super::{Ends, Entrance, Leaves, NAP, wait_for};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::from_ref;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tieline_plugin_api::process::{Mark, PerProcess};

/// The number of attempts to lock the lists at exit.
const TRIES: u32 = 50;

/// Returns a number of the calling thread that no other living thread has.
pub(crate) fn thread_number() -> usize {
    // The variable has no destructor, so that it exists even after the destructors of the thread have run.
    thread_local! { static HERE: u8 = const { 0 } }
    HERE.with(|here| from_ref(here).addr())
}

/// A worker and its entrance, until the worker is dropped.
struct Entry {
    worker: Weak<dyn Leaves>,
    entrance: *const Entrance,
}

// SAFETY: one thread at a time uses a worker. Only a thread that has shut out all others reads the reference to the worker, and the
// thread that drops the worker drops it. The entrance is `Sync`, and every thread may read it under the lock of the lists.
unsafe impl Send for Entry {}

impl Entry {
    /// Returns the worker if this thread used it last, after it has shut out all other threads.
    fn take_for(&self, here: usize) -> Option<Mine> {
        // SAFETY: the worker keeps its entrance until `forget` has removed this entry, under the lock that the caller holds.
        let entrance = unsafe { &*self.entrance };
        let mark = entrance.shut_out_others(here)?;
        let worker = self.worker.upgrade();
        if worker.is_none() {
            entrance.open_again(mark, false);
        }
        Some(Mine { worker: worker?, mark })
    }
}

/// A worker for which the exiting thread says goodbye.
struct Mine {
    worker: Rc<dyn Leaves>,
    mark: Mark,
}

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

/// Adds a worker. The worker keeps its entrance in its place until it has called [`forget`].
pub(crate) fn enter(worker: Weak<dyn Leaves>, entrance: &Entrance) {
    register();
    lists().workers.push(Entry { worker, entrance });
}

/// Removes a worker; the caller is the thread that drops it.
pub(crate) fn forget(entrance: &Entrance) {
    lists().workers.retain(|entry| !std::ptr::eq(entry.entrance, entrance));
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
    let mine = lists.workers.iter().filter_map(|entry| entry.take_for(here)).collect::<Vec<_>>();
    let threads = lists.threads.clone();
    drop(lists);
    for Mine { worker, mark } in mine {
        let has_left = catch_unwind(AssertUnwindSafe(|| worker.leave_at_exit())).unwrap_or(true);
        worker.entrance().open_again(mark, has_left);
    }
    wait_for(&threads);
}
