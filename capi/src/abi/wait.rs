//! Sleeping until an event, and waking a sleeping worker.

use super::context::{keep, take};
use super::enter::{guarded, not_driven, object};
use super::error::{Fault, answer, done};
use super::memory::{RegionHandle, RegionObject, close_by};
use super::numbers::{TIELINE_MOVED, TIELINE_ROUSED};
use super::records::{self, out, out_handle};
use super::table::{self, Handle, Object};
use super::worker::{WorkerHandle, WorkerState, drive, held_if_driven, timeout};
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tieline::{Error, Status, WaitSet, Waited, Waker, Worker};

/// Wakes a sleeping worker, from any thread and from a signal handler.
pub struct WakerHandle(());

struct WakerObject {
    waker: Waker,
}

impl Object for WakerObject {
    const KIND: u8 = 7;
    const NAME: &'static str = "a waker";
}

/// Makes progress. If there is nothing to do, sleeps until an event, for at most `timeout_ns` (below 0: without limit).
/// TIELINE_MOVED: an event was handled, a completion is waiting to be taken, or the worker was woken. TIELINE_ROUSED: nothing
/// happened, wait again. TIELINE_TIMED_OUT: the time limit has passed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_wait(worker: *const WorkerHandle, timeout_ns: i64) -> i32 {
    answer(guarded(|| {
        let held = held_if_driven(worker)?;
        if let Some(driven) = held.as_ref().and_then(|state| state.mark.driven()) {
            return match driven.wait_event(timeout(timeout_ns))? {
                Waited::Moved => Ok(TIELINE_MOVED),
                Waited::Roused => Ok(TIELINE_ROUSED),
                Waited::TimeIsUp => Err(time_was_up()),
            };
        }
        drive(worker, |_, worker| match worker.wait(timeout(timeout_ns))? {
            Waited::Moved => Ok(TIELINE_MOVED),
            Waited::Roused => Ok(TIELINE_ROUSED),
            Waited::TimeIsUp => Err(time_is_up(worker)),
        })
    }))
}

/// Waits for several workers of one thread, as tieline_worker_wait does for one. Makes progress on all workers; if there is nothing
/// to do, sleeps until an event for one of them. Each call opens a descriptor. A loop that waits often should keep its own epoll
/// set of the workers' descriptors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_workers_wait(
    workers: *const *const WorkerHandle,
    count: usize,
    timeout_ns: i64,
) -> i32 {
    answer(guarded(|| {
        if workers.is_null() || count == 0 || count > MOST_WORKERS {
            let why = format!("{count} workers were passed; the limits are 1 and {MOST_WORKERS}");
            let fix = "pass an array of workers and its length";
            return Err(Fault::new(Status::Invalid, "a wait for several workers", why, fix));
        }
        // SAFETY: the caller guarantees that the array has `count` elements.
        let workers = unsafe { std::slice::from_raw_parts(workers, count) };
        within(workers, &mut WaitSet::new()?, timeout(timeout_ns))
    }))
}

#[cold]
pub(crate) fn time_is_up(worker: &Worker) -> Fault {
    match worker.last_peer_failure() {
        Some(failure) => after_failure(&failure),
        None => time_was_up(),
    }
}

/// Makes the failure of a wait that ran out of time after the last peer has failed.
pub(crate) fn after_failure(failure: &Error) -> Fault {
    let what = "a wait for which no peer is connected any more";
    let why = format!(
        "the time is up, and the last peer has failed: {}: {}",
        failure.what(),
        failure.why()
    );
    Fault::new(Status::TimedOut, what, why, failure.fix())
}

#[cold]
pub(crate) fn time_was_up() -> Fault {
    Fault::new(Status::TimedOut, "a wait", "the time is up", "wait again, or longer")
}

/// The maximum number of workers in one wait: the calls of the workers are nested.
const MOST_WORKERS: usize = 256;

/// Waits while this thread is in a call of each of the workers, so that their handlers may run.
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

/// Makes progress until `holds` returns non-zero for the value of a word in a region. The word is aligned, has 64 bits, and is
/// written by peers. Unless `word` is null, it receives the value.
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
        // A handler may drop the region's handle during the wait.
        let region = object::<RegionObject, _>(region)?.region.clone();
        // SAFETY: the caller guarantees that its function may be called with these arguments.
        let holds = |word| unsafe { holds(user, word) } != 0;
        let held = held_if_driven(worker)?;
        if let Some(driven) = held.as_ref().and_then(|state| state.mark.driven()) {
            let (place, mut last) = (region.atomic_u64(offset)?, 0);
            let looks = || {
                last = place.load(Ordering::Acquire);
                holds(last)
            };
            if !driven.wait_until(looks, timeout(timeout_ns))? {
                return Err(time_was_up());
            }
            if let Some(out) = out {
                out.set(last);
            }
            return Ok(());
        }
        drive(worker, |_, worker| {
            let found = worker.wait_word(&region, offset, holds, timeout(timeout_ns))?;
            let found = found.ok_or_else(|| time_is_up(worker))?;
            if let Some(out) = out {
                out.set(found);
            }
            Ok(())
        })
    }))
}

/// Returns a descriptor for poll and epoll. If tieline_worker_arm returned TIELINE_OK before, the descriptor becomes readable when
/// there may be something to do. The descriptor is level-triggered: it stays readable until the worker has made progress. The
/// descriptor belongs to the library and never changes during the worker's life: see capi/examples/event_loop.c. The library's own
/// time limits, such as the one for a silent peer, also make the descriptor readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_fd(worker: *const WorkerHandle, fd: *mut i32) -> i32 {
    done(object::<WorkerState, _>(worker).and_then(|state| {
        let out = out(fd, -1)?;
        if state.mark.driven().is_some() {
            return Err(not_driven());
        }
        out.set(state.post(|worker| Ok(worker.fd()))?);
        Ok(())
    }))
}

/// Prepares one sleep on the descriptor. TIELINE_OK: the caller may sleep. TIELINE_PENDING: there is something to do now. Call this
/// function before each sleep, after the last progress.
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

/// Ends the worker's current sleep, or makes its next sleep end immediately. Any thread and a signal handler may call it. The call
/// does not allocate. For a handle that is not a waker, the call returns TIELINE_INVALID and does not change the thread's last
/// error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_waker_wake(waker: *const WakerHandle) -> i32 {
    // SAFETY: the caller drops a waker only when no thread wakes with it.
    let found = unsafe { table::look(Handle::<WakerObject>::of(waker)) };
    let Some(WakerObject { waker }) = found else { return Status::Invalid as i32 };
    waker.wake();
    0
}

/// Releases a waker. A signal handler must not call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_waker_drop(waker: *mut WakerHandle) -> i32 {
    done(guarded(|| take::<WakerObject, _>(waker).map(drop)))
}

/// Closes a region as tieline_region_close does, and makes progress until it is unused. TIELINE_BUSY: the time limit has passed, or
/// the call was made in a handler, where it does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_close_region(
    worker: *const WorkerHandle,
    region: *mut RegionHandle,
    timeout_ns: i64,
) -> i32 {
    let time = timeout(timeout_ns).unwrap_or(Duration::MAX);
    done(guarded(|| {
        let held = held_if_driven(worker)?;
        if let Some(driven) = held.as_ref().and_then(|state| state.mark.driven()) {
            return close_by(region, |region| driven.close_region(region, time));
        }
        drive(worker, |_, worker| close_by(region, |region| worker.close_region(region, time)))
    }))
}
