//! Sleeping until something happens, and being woken.

use super::context::{keep, take};
use super::enter::{guarded, object};
use super::error::{Fault, answer, done};
use super::memory::{RegionHandle, RegionObject, close_by};
use super::numbers::{TIELINE_MOVED, TIELINE_ROUSED};
use super::records::{self, out, out_handle};
use super::table::{self, Handle, Object};
use super::worker::{WorkerHandle, WorkerState, drive, time_is_up, time_was_up, timeout};
use std::ffi::c_void;
use std::time::Duration;
use tieline::{Status, WaitSet, Waited, Waker};

/// Wakes a worker that sleeps: from any thread, and from a signal handler.
pub struct WakerHandle(());

struct WakerObject {
    waker: Waker,
}

impl Object for WakerObject {
    const KIND: u8 = 7;
    const NAME: &'static str = "a waker";
}

/// Makes progress; where there was none to make, sleeps until there may be some, at most so long (below 0: without end).
/// TIELINE_MOVED: something happened, or has ended and was not taken, or somebody woke the worker. TIELINE_ROUSED: nothing has, wait again. TIELINE_TIMED_OUT:
/// the time is up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_wait(worker: *const WorkerHandle, timeout_ns: i64) -> i32 {
    answer(guarded(|| {
        drive(worker, |_, worker| match worker.wait(timeout(timeout_ns))? {
            Waited::Moved => Ok(TIELINE_MOVED),
            Waited::Roused => Ok(TIELINE_ROUSED),
            Waited::TimeIsUp => Err(time_is_up(worker)),
        })
    }))
}

/// tieline_worker_wait for several workers of one thread: makes progress on all, and where there was none to make, sleeps until there may be some
/// for one of them. It opens a descriptor for the call: a loop that waits often keeps an epoll of its own over their descriptors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_workers_wait(
    workers: *const *const WorkerHandle,
    count: usize,
    timeout_ns: i64,
) -> i32 {
    answer(guarded(|| {
        if workers.is_null() || count == 0 || count > MOST_WORKERS {
            let why = format!("{count} workers were given, from 1 to {MOST_WORKERS} are some");
            let fix = "pass an array of workers and its length";
            return Err(Fault::new(Status::Invalid, "a wait for several workers", why, fix));
        }
        // SAFETY: the caller's array.
        let workers = unsafe { std::slice::from_raw_parts(workers, count) };
        within(workers, &mut WaitSet::new()?, timeout(timeout_ns))
    }))
}

/// Each of them is entered within the call of the one before it.
const MOST_WORKERS: usize = 256;

/// Waits while this thread is in a call of each of the workers, whose handlers may then run.
fn within(
    workers: &[*const WorkerHandle],
    set: &mut WaitSet,
    timeout: Option<Duration>,
) -> Result<i32, Fault> {
    match workers.split_first() {
        Some((first, others)) => drive(*first, |_, worker| {
            set.add(worker)?;
            within(others, set, timeout)
        }),
        None => match set.wait(timeout)? {
            Waited::Moved => Ok(TIELINE_MOVED),
            Waited::Roused => Ok(TIELINE_ROUSED),
            Waited::TimeIsUp => Err(time_was_up()),
        },
    }
}

/// Makes progress until an aligned word of 64 bits of a region, which peers write, is one for which `holds` returns something else
/// than 0; writes the word where `word` is not null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_wait_word(
    worker: *const WorkerHandle,
    region: *const RegionHandle,
    offset: usize,
    holds: Option<unsafe extern "C" fn(user: *mut c_void, word: u64) -> i32>,
    user: *mut c_void,
    timeout_ns: i64,
    word: *mut u64,
) -> i32 {
    done(guarded(|| {
        let out = (!word.is_null()).then(|| out(word, 0)).transpose()?;
        let holds = holds.ok_or_else(|| records::null("the condition"))?;
        // A handler may drop its handle meanwhile.
        let region = object::<RegionObject, _>(region)?.region.clone();
        drive(worker, |_, worker| {
            // SAFETY: the caller's function.
            let holds = |word| unsafe { holds(user, word) } != 0;
            let found = worker.wait_word(&region, offset, holds, timeout(timeout_ns))?;
            let found = found.ok_or_else(|| time_is_up(worker))?;
            if let Some(out) = out {
                out.set(found);
            }
            Ok(())
        })
    }))
}

/// A descriptor for poll and epoll: readable when there may be something to do, provided that tieline_worker_arm returned TIELINE_OK before.
/// It stays readable until the worker has made progress (level-triggered), belongs to the library, and is one and the same for the worker's
/// life: capi/examples/event_loop.c. Time limits of the library's own make it readable as well, that of a silent peer among them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_fd(worker: *const WorkerHandle, fd: *mut i32) -> i32 {
    done(object::<WorkerState, _>(worker).and_then(|state| {
        let out = out(fd, -1)?;
        out.set(state.post(|worker| Ok(worker.fd()))?);
        Ok(())
    }))
}

/// Prepares for one sleep on the descriptor: TIELINE_OK where that is safe, TIELINE_PENDING where there is something to do right now. Call it
/// before each sleep, behind the last progress.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_arm(worker: *const WorkerHandle) -> i32 {
    answer(drive(worker, |_, worker| Ok(i32::from(!worker.arm()?))))
}

/// Opens a waker, which belongs to no thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_waker(
    worker: *const WorkerHandle,
    waker: *mut *mut WakerHandle,
) -> i32 {
    done(guarded(|| {
        let out = out_handle(waker)?;
        let state = object::<WorkerState, _>(worker)?;
        let waker = state.post(|worker| Ok(worker.waker()?))?;
        out.set(keep(WakerObject { waker })?.to_c());
        Ok(())
    }))
}

/// Ends the wait that the worker is in, or makes the next one return at once. Any thread and a signal handler may call it: it allocates nothing,
/// and TIELINE_INVALID for a handle that leads to no waker leaves no words with the thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_waker_wake(waker: *const WakerHandle) -> i32 {
    // SAFETY: the caller drops a waker when nobody wakes with it.
    let found = unsafe { table::look(Handle::<WakerObject>::of(waker)) };
    let Some(WakerObject { waker }) = found else { return Status::Invalid as i32 };
    waker.wake();
    0
}

/// Lets go of a waker. No signal handler may do so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_waker_drop(waker: *mut WakerHandle) -> i32 {
    done(guarded(|| take::<WakerObject, _>(waker).map(drop)))
}

/// Closes a region as tieline_region_close does, and makes progress until nothing uses it any more or the time is up: TIELINE_BUSY then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_close_region(
    worker: *const WorkerHandle,
    region: *mut RegionHandle,
    timeout_ns: i64,
) -> i32 {
    let time = timeout(timeout_ns).unwrap_or(Duration::MAX);
    done(guarded(|| {
        drive(worker, |_, worker| close_by(region, |region| worker.close_region(region, time)))
    }))
}
