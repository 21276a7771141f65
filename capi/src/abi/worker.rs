//! Workers: opening, progress and closing.

#[cfg(test)]
mod tests;

use super::bytes::Room;
use super::context::{ContextHandle, ContextObject, no_handles};
use super::endpoint::EndpointState;
use super::enter::{Mark, guarded, no_object, object};
use super::error::{Fault, Kind, answer, done};
use super::how::Requests;
use super::numbers::TIELINE_WORKER_DRIVEN;
use super::records::{self, Params, out, out_handle};
use super::table::{self, Handle, Object};
use super::wait::{time_is_up, time_was_up};
use std::cell::{Cell, OnceCell, RefCell, UnsafeCell};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tieline::{DrivenWorker, Endpoint, Error, Status, Undelivered, Waited, Worker};

/// A progress engine. At most one thread at a time is in a call of a worker.
pub struct WorkerHandle(());

pub(crate) struct WorkerState {
    pub(crate) mark: Mark,
    /// The worker of the core. The worker is dropped together with the handle, even if other objects still own this state; if a
    /// handler ends the handle, the worker is dropped when the outermost call returns.
    worker: UnsafeCell<Option<Worker>>,
    pub(crate) requests: RefCell<Requests>,
    /// Whether a handler has dropped the worker, or the worker is gone: the library then runs no function of the caller for this
    /// worker.
    has_ended: AtomicBool,
    /// This state, after a handler has ended the worker's handle; the outermost call around that handler releases it.
    ended_inside: Cell<Option<Arc<WorkerState>>>,
    pub(crate) handle: OnceCell<u64>,
}

impl Object for WorkerState {
    const KIND: u8 = 2;
    const NAME: &'static str = "a worker";
}

#[cold]
pub(crate) fn closed() -> Fault {
    Fault::new(
        Status::Closed,
        "a call of what belongs to a worker",
        "its worker was closed",
        "drop it, and open another worker",
    )
    .of(Kind::Reconnect)
}

impl WorkerState {
    /// Returns the worker, for the duration of a call. The caller must hold the mark.
    #[inline]
    pub(crate) fn worker(&self) -> Result<&Worker, Fault> {
        // SAFETY: the worker is taken out only under the mark, when no other call is in progress: `drop_worker` and `leave`.
        let worker = unsafe { &*self.worker.get() }.as_ref();
        match worker.filter(|_| !self.has_ended()) {
            Some(worker) => Ok(worker),
            None => self.driven_worker(),
        }
    }

    /// Returns the ordinary worker behind a driven one. The caller must hold the lock.
    #[cold]
    #[inline(never)]
    fn driven_worker(&self) -> Result<&Worker, Fault> {
        self.mark.locked_worker().filter(|_| !self.has_ended()).ok_or_else(closed)
    }

    /// Returns the driven worker, if this is one that has not ended.
    pub(crate) fn driven_one(&self) -> Result<Option<&DrivenWorker>, Fault> {
        match self.mark.driven() {
            Some(_) if self.has_ended() => Err(closed()),
            driven => Ok(driven),
        }
    }

    /// Runs a body that may run handlers. If a handler has ended the worker, returns the remaining state.
    #[inline]
    fn driven<T>(
        &self,
        body: impl FnOnce(&WorkerState, &Worker) -> Result<T, Fault>,
    ) -> (Result<T, Fault>, Option<Arc<WorkerState>>) {
        let mut last = None;
        let result = self.mark.drive(|is_outermost| {
            let result = body(self, self.worker()?);
            if self.has_ended() && is_outermost {
                last = self.leave();
            }
            result
        });
        (result, last)
    }

    /// Drops the worker after a handler has ended it. The outermost call runs this function before it returns, and releases the
    /// remaining state.
    #[cold]
    fn leave(&self) -> Option<Arc<WorkerState>> {
        // SAFETY: this thread holds the mark, and the nested calls have returned.
        drop(unsafe { &mut *self.worker.get() }.take());
        self.ended_inside.take()
    }

    /// Runs a body that needs the worker and runs no handlers.
    pub(crate) fn post<T>(
        &self,
        body: impl FnOnce(&Worker) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.mark.post(|| body(self.worker()?))
    }

    /// Suppresses all further calls of functions of the caller.
    fn set_ended(&self) {
        drop(self.requests.take());
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Suppresses all further calls of functions of the caller, and drops the worker. The caller must hold the mark, and must not
    /// be in a handler.
    fn drop_worker(&self) {
        // SAFETY: no other call of this worker is in progress.
        drop(unsafe { &mut *self.worker.get() }.take());
        self.set_ended();
    }

    /// Checks whether calls of functions of the caller are suppressed. The caller need not hold the mark.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Returns the view of this state for functions that the core runs on behalf of the caller.
    pub(crate) fn watch(&self) -> Watch {
        Watch(self)
    }

    /// Returns the handle of an endpoint from the core. The handle is the same for every call while the endpoint is open.
    pub(crate) fn endpoint(self: &Arc<Self>, endpoint: Endpoint) -> Result<u64, Fault> {
        let known = Handle::<EndpointState>::from_bits(endpoint.user());
        // SAFETY: this call holds the worker's mark.
        if let Some(state) = unsafe { table::look(known) } {
            if state.is(&endpoint) {
                return Ok(known.bits());
            }
        }
        EndpointState::keep(self.clone(), endpoint)
    }
}

/// A view of a worker's state for the handler functions. The functions are dropped with the worker, and the state outlives the
/// worker.
#[derive(Clone, Copy)]
pub(crate) struct Watch(*const WorkerState);

impl Watch {
    /// Checks whether a handler has dropped the worker, and with it the caller's handlers.
    #[inline]
    pub(crate) fn has_ended(self) -> bool {
        // SAFETY: the core runs the function in a call of the worker, which keeps the state alive. Only such a call writes
        // `has_ended`, and this call is one.
        unsafe { *(*self.0).has_ended.as_ptr() }
    }

    pub(crate) fn state(self) -> *const WorkerState {
        self.0
    }
}

/// Runs a body that may run handlers, and handlers may end the worker. The state is released after its last use.
#[inline]
pub(crate) fn drive<T>(
    worker: *const WorkerHandle,
    body: impl FnOnce(&WorkerState, &Worker) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let (result, last) = object::<WorkerState, _>(worker)?.driven(body);
    drop(last);
    result
}

/// Returns the state of a worker, for objects that belong to the worker.
pub(crate) fn state_of(worker: *const WorkerHandle) -> Result<Arc<WorkerState>, Fault> {
    let state = object::<WorkerState, _>(worker)?;
    Ok(share(state))
}

/// Returns the state of a driven worker for a call that waits, during which another thread or a handler may end the worker. `None`:
/// the worker is an ordinary one.
pub(crate) fn held_if_driven(
    worker: *const WorkerHandle,
) -> Result<Option<Arc<WorkerState>>, Fault> {
    let state = object::<WorkerState, _>(worker)?;
    Ok(state.driven_one()?.is_some().then(|| share(state)))
}

/// Adds an owner of a state that is in the table.
pub(crate) fn share(state: &WorkerState) -> Arc<WorkerState> {
    let state = std::ptr::from_ref(state);
    // SAFETY: the address in the table comes from `Arc::into_raw`, and the table keeps the state for the duration of the call. The
    // count of owners is atomic, because a thread that is then refused with `Busy` also runs this line before the mark is checked.
    unsafe {
        Arc::increment_strong_count(state);
        Arc::from_raw(state)
    }
}

/// Converts a timeout: below 0 means without limit.
pub(crate) fn timeout(nanoseconds: i64) -> Option<Duration> {
    u64::try_from(nanoseconds).ok().map(Duration::from_nanos)
}

/// Opens a worker. Any thread may use the worker and its objects, but only one thread at a time. If one of its providers is bound
/// to the opening thread, only that thread may use the worker.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_open(
    context: *const ContextHandle,
    worker: *mut *mut WorkerHandle,
) -> i32 {
    done(guarded(|| {
        let out = out_handle(worker)?;
        let worker = object::<ContextObject, _>(context)?.context.worker()?;
        out.set(kept(Mark::new(worker.check_movable().is_ok()), Some(worker))?.to_c());
        Ok(())
    }))
}

/// The parameters of tieline_worker_open_with. If the pointer is null, or all fields but `size` are zero, the worker is an ordinary
/// one, as tieline_worker_open opens it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WorkerParams {
    /// The size of this record in bytes.
    pub size: usize,
    /// Flags of the worker: TIELINE_WORKER_*.
    pub flags: u64,
}

// SAFETY: `WorkerParams` consists of numbers only.
unsafe impl Params for WorkerParams {}

/// Opens a worker with parameters. With TIELINE_WORKER_DRIVEN, the worker has a progress thread, and all threads may use the worker
/// and its objects at the same time: each call takes the worker's lock for its own duration. Handlers run outside the lock, one at a
/// time, on the progress thread or on a thread that waits. docs/threads.md lists the rules.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_open_with(
    context: *const ContextHandle,
    params: *const WorkerParams,
    worker: *mut *mut WorkerHandle,
) -> i32 {
    done(guarded(|| {
        let out = out_handle(worker)?;
        let params = records::read(params)?;
        if params.flags & !TIELINE_WORKER_DRIVEN != 0 {
            let why = format!("{:#x} has unknown flags", params.flags);
            return Err(Fault::new(Status::UnsupportedParam, "a worker", why, "leave them out"));
        }
        let context = &object::<ContextObject, _>(context)?.context;
        let handle = match params.flags & TIELINE_WORKER_DRIVEN {
            0 => {
                let worker = context.worker()?;
                kept(Mark::new(worker.check_movable().is_ok()), Some(worker))?
            }
            _ => kept(Mark::with_driven(context.driven_worker()?), None)?,
        };
        out.set(handle.to_c());
        Ok(())
    }))
}

/// Stores the state of a new worker under a handle. A driven worker is in its mark.
fn kept(mark: Mark, worker: Option<Worker>) -> Result<Handle<WorkerState>, Fault> {
    #[expect(clippy::arc_with_non_send_sync, reason = "its mark keeps other threads out")]
    let state = Arc::new(WorkerState {
        mark,
        worker: UnsafeCell::new(worker),
        requests: RefCell::default(),
        has_ended: AtomicBool::new(false),
        ended_inside: Cell::new(None),
        handle: OnceCell::new(),
    });
    let raw = Arc::into_raw(state).cast_mut();
    // SAFETY: `raw` comes from an Arc, so the address is not null.
    let Some(handle) = table::keep(unsafe { NonNull::new_unchecked(raw) }) else {
        // SAFETY: `raw` comes from the Arc above.
        drop(unsafe { Arc::from_raw(raw) });
        return Err(no_handles());
    };
    // SAFETY: the table keeps the state alive.
    let _ = unsafe { &*raw }.handle.set(handle.bits());
    Ok(handle)
}

fn end(worker: *mut WorkerHandle) -> Result<(), Fault> {
    let handle = Handle::<WorkerState>::of(worker);
    let raw = table::end(handle).ok_or_else(|| no_object(handle))?;
    // SAFETY: the address comes from the Arc that was given to the table; the table returns the address to one caller only.
    let state = unsafe { Arc::from_raw(raw.as_ptr().cast_const()) };
    if let Some(driven) = state.mark.driven() {
        let ended = state.mark.post(|| {
            state.set_ended();
            Ok(())
        });
        driven.end();
        // In a forked child, and after a panic, the worker is not touched again.
        if ended.is_err() {
            std::mem::forget(state);
        }
        return Ok(());
    }
    if state.mark.is_in_handler() {
        state.set_ended();
        let _ = state.ended_inside.replace(Some(state.clone()));
        return Ok(());
    }
    // After a panic the worker is not touched again.
    let dropped = state.mark.drive(|_| {
        state.drop_worker();
        Ok(())
    });
    if dropped.is_err() {
        std::mem::forget(state);
    }
    Ok(())
}

/// Delivers everything that is pending and everything that peers are owed, at most `timeout_ns` (below 0: without limit), and
/// closes the worker. The handle ends even if something could not be delivered; the returned status and the thread's last error
/// report that. If something is lost, each interface may take TIELINE_CLOSE_TIMEOUT on top. Only TIELINE_BUSY (in a handler, or
/// another thread is in a call) and TIELINE_INVALID leave the worker open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_close(worker: *mut WorkerHandle, timeout_ns: i64) -> i32 {
    done(guarded(|| {
        let time = timeout(timeout_ns).unwrap_or(Duration::MAX);
        // The worker is dropped in any case, unless the call is refused.
        let mut begun = false;
        let mut ended = |result: Result<(), Undelivered>| -> Result<(), Fault> {
            let failed = result.as_ref().err();
            begun = failed.is_none_or(|undelivered| {
                let status = undelivered.error.status();
                !undelivered.losses.is_empty() || !matches!(status, Status::Busy | Status::Invalid)
            });
            result.map_err(|undelivered| {
                let (status, text) = (undelivered.error.status(), undelivered.to_string());
                let fix = "close with more time, or look at what the peers do";
                let error = Error::new(status, "not everything was delivered", text, fix);
                if begun { Fault::ended(Kind::Unknown, error) } else { error.into() }
            })
        };
        let held = held_if_driven(worker)?;
        let closed = match held.as_ref().and_then(|state| state.mark.driven()) {
            Some(driven) => ended(driven.close(time)),
            None => drive(worker, |_, inner| ended(inner.close(time))),
        };
        if begun {
            end(worker)?;
        }
        closed
    }))
}

/// Releases a worker immediately: pending operations end, and may be lost. A handler may call this function. Events that have
/// arrived and were not reported are then discarded, and no other handler runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_drop(worker: *mut WorkerHandle) -> i32 {
    done(guarded(|| {
        let state = object::<WorkerState, _>(worker)?;
        if state.mark.driven().is_some() {
            return end(worker);
        }
        match state.mark.drive(|_| Ok(())) {
            // A worker that a panic has ended can still be dropped.
            Err(fault) if fault.error.status() != Status::ProviderFailed => Err(fault),
            _ => end(worker),
        }
    }))
}

/// Writes the worker's address, which peers connect to. Exchange it over a channel that only the job can read: without a secret
/// (TIELINE_SECRET), any process that has the address may connect. `len` holds the size of the buffer, and receives the actual
/// length. Returns TIELINE_TOO_LARGE if the address does not fit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_address(
    worker: *const WorkerHandle,
    address: *mut c_void,
    len: *mut usize,
) -> i32 {
    done(guarded(|| {
        let room = Room::new(address, len)?;
        let state = object::<WorkerState, _>(worker)?;
        let address = state.post(|worker| Ok(worker.address()?))?;
        room.fill(&address)
    }))
}

/// Makes progress and runs handlers. Returns the number of handled events, or a failure; always 0 in a handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_progress(worker: *const WorkerHandle) -> i32 {
    let moved = drive(worker, |_, worker| Ok(i32::try_from(worker.progress()).unwrap_or(i32::MAX)));
    answer(moved.or_else(|fault| progress_driven(worker, fault)))
}

/// Makes progress on a driven worker once, unless another thread drives it. The ordinary call has failed.
#[cold]
fn progress_driven(worker: *const WorkerHandle, fault: Fault) -> Result<i32, Fault> {
    let state = object::<WorkerState, _>(worker)?;
    let Some(driven) = state.mark.driven() else { return Err(fault) };
    guarded(|| {
        if driven.is_in_handler() {
            return Ok(0);
        }
        Ok(i32::from(driven.wait_event(Some(Duration::ZERO))? == Waited::Moved))
    })
}

/// Makes progress until `condition` returns non-zero, for at most `timeout_ns` (below 0: without limit). Returns TIELINE_TIMED_OUT
/// when the time limit has passed. The condition runs between progress calls. The condition may read any memory and post
/// operations, but must not call a function that waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_wait_until(
    worker: *const WorkerHandle,
    condition: Option<unsafe extern "C" fn(user: *mut c_void) -> i32>,
    user: *mut c_void,
    timeout_ns: i64,
) -> i32 {
    done(guarded(|| {
        let condition = condition.ok_or_else(|| super::records::null("the condition"))?;
        // SAFETY: the caller guarantees that its function may be called with these arguments.
        let holds = || unsafe { condition(user) } != 0;
        let held = held_if_driven(worker)?;
        if let Some(driven) = held.as_ref().and_then(|state| state.mark.driven()) {
            return match driven.wait_until(holds, timeout(timeout_ns))? {
                true => Ok(()),
                false => Err(time_was_up()),
            };
        }
        drive(worker, |_, worker| match worker.wait_until(holds, timeout(timeout_ns))? {
            true => Ok(()),
            false => Err(time_is_up(worker)),
        })
    }))
}

/// Reports the number of pending operations, including the library's own and the parts of split operations.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_pending(
    worker: *const WorkerHandle,
    pending: *mut usize,
) -> i32 {
    done(guarded(|| {
        let out = out(pending, 0)?;
        let state = object::<WorkerState, _>(worker)?;
        out.set(state.post(|worker| Ok(worker.pending()))?);
        Ok(())
    }))
}
