//! The function that `exit` calls, and the workers that it may say goodbye for.

#![allow(unsafe_code)]

use super::super::Inner;
use crate::service::Stop;
use crate::sys::ForkGuard;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{from_ref, null_mut};
use std::rc::Rc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

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

/// What this process has. A forked child makes its own, and leaves its parent's alone.
struct Process {
    guard: ForkGuard,
    lists: Mutex<Lists>,
}

impl Process {
    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(null_mut());

/// The lists of this process; none in a forked child that has opened nothing, and where nothing was opened.
fn known() -> Option<&'static Process> {
    // SAFETY: null, or a record that is never freed.
    let process = unsafe { PROCESS.load(Ordering::Acquire).as_ref() };
    process.filter(|process| process.guard.same_process())
}

/// The lists of this process, made on first use. `None`: there is no memory for the page that tells a forked child.
fn process() -> Option<&'static Process> {
    static REGISTERED: Once = Once::new();
    // It stays registered in forked children.
    REGISTERED.call_once(|| {
        // SAFETY: the function is there as long as this library, and `exit` or the unloading of the library calls it.
        let _ = unsafe { libc::atexit(say_goodbye) };
    });
    let seen = PROCESS.load(Ordering::Acquire);
    if let Some(process) = known() {
        return Some(process);
    }
    let made = Process { guard: ForkGuard::new().ok()?, lists: Mutex::default() };
    let made = Box::into_raw(Box::new(made));
    match PROCESS.compare_exchange(seen, made, Ordering::AcqRel, Ordering::Acquire) {
        // What a parent had stays: its lock may be held for ever.
        Ok(_) => {}
        // SAFETY: made above, and nobody else has seen it.
        Err(_) => drop(unsafe { Box::from_raw(made) }),
    }
    known()
}

/// A worker is there from now on. Its place does not change.
pub(in crate::worker) fn enter(worker: &Rc<Inner>) {
    let Some(process) = process() else { return };
    let entry = Entry { worker: Rc::as_ptr(worker), thread: worker.used_by.clone() };
    process.lists().workers.push(entry);
}

/// A worker goes.
pub(in crate::worker) fn forget(worker: &Inner) {
    if let Some(process) = known() {
        process.lists().workers.retain(|entry| !std::ptr::eq(entry.worker, worker));
    }
}

/// A progress thread is there from now on.
pub(crate) fn enter_service(stop: &Arc<Stop>) {
    if let Some(process) = process() {
        process.lists().services.push(stop.clone());
    }
}

/// A progress thread has ended.
pub(crate) fn forget_service(stop: &Arc<Stop>) {
    if let Some(process) = known() {
        process.lists().services.retain(|other| !Arc::ptr_eq(other, stop));
    }
}

/// `exit` calls this, before destructors of libraries run. It does nothing in a forked child that opened nothing itself.
extern "C" fn say_goodbye() {
    let Some(process) = known() else { return };
    let here = thread_number();
    let (mine, services) = {
        let lists = process.lists();
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
