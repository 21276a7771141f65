//! Calls for pending operations, each of which has a request number.

use super::enter::{guarded, object};
use super::error::{Fault, answer, done};
use super::records::out;
use super::wait::{time_is_up, time_was_up};
use super::worker::{WorkerHandle, WorkerState, drive, held_if_driven, timeout};
use std::time::Duration;
use tieline::{CompletionError, DrivenWorker, Outcome};

/// Waits for a pending operation, at most `timeout_ns` (below 0: without limit). If `value` is not null, it receives the
/// operation's value, which is 0 except for a fetching atomic. If the operation has ended, successfully or not, its request number
/// is released. After any other result, such as TIELINE_TIMED_OUT, or TIELINE_BUSY in a handler, the number stays valid and the
/// operation continues.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_finish(
    worker: *const WorkerHandle,
    request: u64,
    timeout_ns: i64,
    value: *mut u64,
) -> i32 {
    done(guarded(|| {
        let out = (!value.is_null()).then(|| out(value, 0)).transpose()?;
        let held = held_if_driven(worker)?;
        let driven = held.as_deref().and_then(|state| Some((state, state.mark.driven()?)));
        if let Some((state, driven)) = driven {
            let found = finish_driven(state, driven, request, timeout(timeout_ns))?;
            if let Some(out) = out {
                out.set(found);
            }
            return Ok(());
        }
        drive(worker, |state, worker| {
            let pending = state.requests.borrow_mut().lend(request)?;
            let mut ended = None;
            let waited = worker.wait_until(
                || {
                    ended = worker.test(&pending);
                    ended.is_some()
                },
                timeout(timeout_ns),
            );
            let goes_on = matches!(ended, None | Some(Err(CompletionError::Pending(_))));
            state.requests.borrow_mut().put_back(request, goes_on.then_some(pending));
            let value = match ended {
                Some(result) => result?,
                None => {
                    let _ = waited?;
                    return Err(time_is_up(worker));
                }
            };
            if let Some(out) = out {
                out.set(value);
            }
            Ok(())
        })
    }))
}

/// Waits for an operation of a driven worker, outside its lock. Another call for the same request may end it meanwhile.
#[cold]
fn finish_driven(
    state: &WorkerState,
    driven: &DrivenWorker,
    request: u64,
    timeout: Option<Duration>,
) -> Result<u64, Fault> {
    let number = state.post(|_| Ok(state.requests.borrow().get(request)?.number()))?;
    let in_time = driven.wait_ended(number, timeout)?;
    state.post(|worker| {
        let tested = worker.test(state.requests.borrow().get(request)?);
        let Some(result) = tested else {
            debug_assert!(!in_time, "the operation has ended");
            return Err(time_was_up());
        };
        if !matches!(result, Err(CompletionError::Pending(_))) {
            drop(state.requests.borrow_mut().take(request)?);
        }
        Ok(result?)
    })
}

/// Tests a pending operation: TIELINE_PENDING while it has not completed, otherwise the same result as tieline_worker_finish. The
/// call makes no progress.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_test(
    worker: *const WorkerHandle,
    request: u64,
    value: *mut u64,
) -> i32 {
    answer(object::<WorkerState, _>(worker).and_then(|state| {
        let out = (!value.is_null()).then(|| out(value, 0)).transpose()?;
        state.post(|worker| {
            let tested = worker.test(state.requests.borrow().get(request)?);
            let Some(result) = tested else { return Ok(1) };
            if !matches!(result, Err(CompletionError::Pending(_))) {
                drop(state.requests.borrow_mut().take(request)?);
            }
            let value = result?;
            if let Some(out) = out {
                out.set(value);
            }
            Ok(0)
        })
    }))
}

/// Releases the request number of a pending operation. The operation continues. If the operation fails, a later flush of the
/// endpoint reports the failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_forget(worker: *const WorkerHandle, request: u64) -> i32 {
    done(
        object::<WorkerState, _>(worker)
            .and_then(|state| state.post(|_| state.requests.borrow_mut().take(request).map(drop))),
    )
}

/// Cancels a pending operation. TIELINE_OK means that the operation has ended or will end soon, not that it was canceled: finish
/// the request to learn the outcome. TIELINE_UNSUPPORTED: the operation cannot be canceled, and continues.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_cancel(worker: *const WorkerHandle, request: u64) -> i32 {
    done(object::<WorkerState, _>(worker).and_then(|state| {
        state.post(|worker| Ok(worker.cancel(state.requests.borrow().get(request)?)?))
    }))
}

/// Cancels a tracked or counted operation by the number that its call wrote for TIELINE_HOW_NUMBERED. The results are those of
/// tieline_worker_cancel. A number of an operation that has ended is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_cancel_number(
    worker: *const WorkerHandle,
    number: u64,
) -> i32 {
    done(
        object::<WorkerState, _>(worker)
            .and_then(|state| state.post(|worker| Ok(worker.cancel_by_number(number)?))),
    )
}

/// Arranges that the completion of a pending operation is reported with `user` by tieline_worker_take_completed. The call releases
/// the request number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_track(
    worker: *const WorkerHandle,
    request: u64,
    user: u64,
) -> i32 {
    done(object::<WorkerState, _>(worker).and_then(|state| {
        state.post(|worker| {
            let pending = Outcome::Pending(state.requests.borrow_mut().take(request)?);
            Ok(worker.track(&pending, user)?)
        })
    }))
}
