//! The function that `exit` calls, and the workers that it may say goodbye for.

#![allow(unsafe_code)]

use super::super::Inner;
use crate::service::Stop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::from_ref;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tieline_plugin_api::process::PerProcess;

/// A number of the calling thread, which no other living thread has.
pub(in crate::worker) fn thread_number() -> usize {
    // Without a destructor: it is there also when those of the thread have run.
    thread_local! { static HERE: u8 = const { 0 } }
    HERE.with(|here| from_ref(here).addr())
}

/// A worker, until it is dropped, and the thread that used it last.
struct Entry {
    worker: *const Inner,
    thread: Arc<AtomicUsize>,
}

// SAFETY: the worker is used by the thread alone whose number stands beside it, and other threads only compare its address.
unsafe impl Send for Entry {}

#[derive(Default)]
struct Lists {
    workers: Vec<Entry>,
    services: Vec<Arc<Stop>>,
}

/// What this process has. A forked child has lists of its own, and leaves its parent's alone.
static LISTS: PerProcess<Mutex<Lists>> = PerProcess::new();

fn lists() -> MutexGuard<'static, Lists> {
    LISTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has `exit` call [`say_goodbye`], also in forked children.
fn register() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if !REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: the function is there as long as this library, and `exit` or the unloading of the library calls it.
        let _ = unsafe { libc::atexit(say_goodbye) };
    }
}

/// A worker is there from now on. Its place does not change.
pub(in crate::worker) fn enter(worker: &Rc<Inner>) {
    register();
    let entry = Entry { worker: Rc::as_ptr(worker), thread: worker.used_by.clone() };
    lists().workers.push(entry);
}

/// A worker goes.
pub(in crate::worker) fn forget(worker: &Inner) {
    lists().workers.retain(|entry| !std::ptr::eq(entry.worker, worker));
}

/// A progress thread is there from now on.
pub(crate) fn enter_service(stop: &Arc<Stop>) {
    lists().services.push(stop.clone());
}

/// A progress thread has ended.
pub(crate) fn forget_service(stop: &Arc<Stop>) {
    lists().services.retain(|other| !Arc::ptr_eq(other, stop));
}

/// `exit` calls this, before destructors of libraries run. A forked child has only what it opened itself.
extern "C" fn say_goodbye() {
    let here = thread_number();
    let (mine, services) = {
        let lists = lists();
        let is_mine = |entry: &&Entry| entry.thread.load(Ordering::Relaxed) == here;
        let mine = lists.workers.iter().filter(is_mine).map(|entry| entry.worker);
        (mine.collect::<Vec<_>>(), lists.services.clone())
    };
    for worker in mine {
        // SAFETY: it is in the list, so it was not dropped, and this thread, which used it last, is the one to drop it.
        let worker = unsafe { &*worker };
        let _ = catch_unwind(AssertUnwindSafe(|| worker.leave_at_exit()));
    }
    Stop::all(&services);
}
