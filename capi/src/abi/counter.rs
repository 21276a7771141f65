//! Completion counters, and the list of completed operations.

use super::context::{end_of_worker, keep, take};
use super::enter::{guarded, object};
use super::error::{Fault, done};
use super::records::{self, out, out_handle};
use super::table::Object;
use super::worker::{WorkerHandle, WorkerState, drive, held_if_driven, state_of};
use std::sync::Arc;
use tieline::{CompletionCounter, Outcome, Status};

/// A counter of completed operations of one worker.
pub struct CounterHandle(());

pub(crate) struct CounterObject {
    counter: CompletionCounter,
    worker: Arc<WorkerState>,
}

impl Object for CounterObject {
    const KIND: u8 = 6;
    const NAME: &'static str = "a counter";
}

impl CounterObject {
    /// Refuses a worker other than the counter's own.
    pub(crate) fn check_worker(&self, worker: &WorkerState) -> Result<(), Fault> {
        if std::ptr::eq(&raw const *self.worker, worker) {
            return Ok(());
        }
        let why = "it counts operations of another worker";
        Err(Fault::new(Status::Invalid, "a counter", why, "open one for the operation's worker"))
    }

    /// Returns the counter. The caller must hold the worker's mark.
    pub(crate) fn counter(&self) -> &CompletionCounter {
        &self.counter
    }

    /// Counts an operation of `state`, whose mark the caller holds.
    pub(crate) fn count(&self, state: &WorkerState, outcome: &Outcome) -> Result<(), Fault> {
        Ok(state.worker()?.count(outcome, &self.counter)?)
    }
}

/// The values of a counter.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Counted {
    /// The size of this record in bytes. Set this field before the call.
    pub size: usize,
    /// The number of operations that completed successfully.
    pub done: u64,
    /// The number of operations that failed, were canceled, or ended with their endpoint.
    pub failed: u64,
    /// The number of operations that have not completed.
    pub pending: u64,
    /// The status of the first failure since the last mark, or of all if there is no mark; 0 if there is none.
    pub first_failure: i32,
    /// The outcome of that failed operation: TIELINE_OP_*.
    pub first_kind: u32,
    /// The number of operations that completed successfully since the last mark.
    pub done_since_mark: u64,
    /// The number of operations that failed since the last mark.
    pub failed_since_mark: u64,
    /// If that failed operation was a list, the index of the descriptor that failed first; otherwise below 0.
    pub first_index: i64,
}

/// A completed operation.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Completed {
    /// The word that the caller passed to track the operation.
    pub user: u64,
    /// The value of a fetching atomic, otherwise 0.
    pub value: u64,
    /// TIELINE_OK, or the status of the failure.
    pub status: i32,
    /// The outcome of a failed operation: TIELINE_OP_*.
    pub kind: u32,
    /// If the failed operation was a list, the index of the descriptor that failed first; otherwise below 0.
    pub index: i64,
}

/// Opens a counter, for operations that are posted with TIELINE_TELL_COUNTED and for tieline_worker_begin_flush.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_counter(
    worker: *const WorkerHandle,
    counter: *mut *mut CounterHandle,
) -> i32 {
    done(guarded(|| {
        let (out, state) = (out_handle(counter)?, state_of(worker)?);
        let counter = state.post(|worker| Ok(worker.completion_counter()?))?;
        out.set(keep(CounterObject { counter, worker: state })?.to_c());
        Ok(())
    }))
}

/// Reads the values of a counter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_counter_read(
    counter: *const CounterHandle,
    counted: *mut Counted,
) -> i32 {
    done(object::<CounterObject, _>(counter).and_then(|object| {
        let counted_now = object.worker.mark.post(|| {
            let CounterObject { counter, .. } = object;
            let failure = counter.first_failure().map(Fault::from);
            Ok(Counted {
                size: 0,
                done: counter.done(),
                failed: counter.failed(),
                pending: counter.pending(),
                first_failure: failure.as_ref().map_or(0, Fault::status),
                first_kind: failure.as_ref().map_or(0, |fault| fault.kind as u32),
                done_since_mark: counter.done_since_mark(),
                failed_since_mark: counter.failed_since_mark(),
                first_index: failure.as_ref().map_or(-1, Fault::index),
            })
        })?;
        // SAFETY: the caller guarantees that its record is null or valid during this call.
        unsafe { records::write(counted, &counted_now) }
    }))
}

/// Sets a mark: the fields `done_since_mark`, `failed_since_mark`, `first_failure` and `first_kind` of tieline_counted cover the
/// operations that end from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_counter_mark(counter: *const CounterHandle) -> i32 {
    done(object::<CounterObject, _>(counter).and_then(|object| {
        object.worker.mark.post(|| {
            object.counter.mark();
            Ok(())
        })
    }))
}

/// Releases a counter. The counted operations continue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_counter_drop(counter: *mut CounterHandle) -> i32 {
    done(guarded(|| {
        let worker = |object: &CounterObject| object.worker.clone();
        end_of_worker(counter, worker, |counter| take::<CounterObject, _>(counter).map(drop))
    }))
}

/// Takes completed tracked operations, in the order of completion. `list` has space for `most` elements of `each` bytes (sizeof
/// *list); `taken` receives the number of elements written. The call makes no progress. The element of a failed operation contains
/// its status; the thread's last error describes the last failed operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_take_completed(
    worker: *const WorkerHandle,
    list: *mut Completed,
    each: usize,
    most: usize,
    taken: *mut usize,
) -> i32 {
    done(object::<WorkerState, _>(worker).and_then(|state| {
        let out = out(taken, 0)?;
        if list.is_null() && most > 0 {
            return Err(records::null("the list"));
        }
        if !(size_of::<u64>()..=4096).contains(&each) {
            let why = format!("its elements have {each} bytes");
            let fix = "pass sizeof *list";
            return Err(Fault::new(Status::Invalid, "a list of completions", why, fix));
        }
        let mut at = list.cast::<u8>();
        let number = state.post(|worker| {
            Ok(worker.take_completed(most, |user, result| {
                let (value, fault) = match result {
                    Ok(value) => (value, None),
                    Err(error) => (0, Some(Fault::from(error))),
                };
                let status = fault.as_ref().map_or(0, Fault::status);
                let kind = fault.as_ref().map_or(0, |fault| fault.kind as u32);
                let index = fault.as_ref().map_or(-1, Fault::index);
                let completed = Completed { user, value, status, kind, index };
                let known = size_of::<Completed>().min(each);
                // SAFETY: the caller's list has `most` elements of `each` bytes, and the address is that of one element.
                unsafe {
                    at.copy_from_nonoverlapping((&raw const completed).cast(), known);
                    at.add(known).write_bytes(0, each - known);
                    at = at.add(each);
                }
                if let Some(fault) = fault {
                    let _ = done(Err(fault));
                }
            }))
        })?;
        out.set(number);
        Ok(())
    }))
}

/// Begins a flush of every endpoint of a worker that has not failed. The counter counts the flushes. When none of them is pending
/// and none has failed, every put, get and atomic that was posted on these endpoints before is complete at its target, and every
/// message is accepted. Returns TIELINE_BUSY in a handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_begin_flush(
    worker: *const WorkerHandle,
    counter: *const CounterHandle,
) -> i32 {
    done(object::<WorkerState, _>(worker).and_then(|state| {
        let counter = object::<CounterObject, _>(counter)?;
        state.post(|worker| Ok(worker.begin_flush(&counter.counter)?))
    }))
}

/// Flushes every endpoint of the worker that has not failed (tieline_endpoint_flush), and waits for these flushes. Returns
/// TIELINE_BUSY in a handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_flush(worker: *const WorkerHandle) -> i32 {
    done(guarded(|| {
        let held = held_if_driven(worker)?;
        if let Some(driven) = held.as_ref().and_then(|state| state.mark.driven()) {
            let _ = driven.flush(None)?;
            return Ok(());
        }
        drive(worker, |_, worker| Ok(worker.flush()?))
    }))
}
