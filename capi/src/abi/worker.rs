//! Workers: opening, progress and closing.

use super::bytes::Room;
use super::context::{ContextHandle, ContextObject, no_handles};
use super::endpoint::EndpointState;
use super::enter::{Mark, guarded, no_object, object};
use super::error::{Fault, Kind, answer, done};
use super::how::Requests;
use super::records::{out, out_handle};
use super::table::{self, Handle, Object};
use super::wait::time_is_up;
use std::cell::{Cell, OnceCell, RefCell, UnsafeCell};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tieline::{Endpoint, Error, Status, Worker};

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
        worker.filter(|_| !self.has_ended()).ok_or_else(closed)
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
        #[expect(clippy::arc_with_non_send_sync, reason = "its mark keeps other threads out")]
        let state = Arc::new(WorkerState {
            mark: Mark::new(worker.check_movable().is_ok()),
            worker: UnsafeCell::new(Some(worker)),
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
        out.set(handle.to_c());
        Ok(())
    }))
}

fn end(worker: *mut WorkerHandle) -> Result<(), Fault> {
    let handle = Handle::<WorkerState>::of(worker);
    let raw = table::end(handle).ok_or_else(|| no_object(handle))?;
    // SAFETY: the address comes from the Arc that was given to the table; the table returns the address to one caller only.
    let state = unsafe { Arc::from_raw(raw.as_ptr().cast_const()) };
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
        let closed = drive(worker, |_, inner| {
            let result = inner.close(time);
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
        });
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
    answer(drive(worker, |_, worker| Ok(i32::try_from(worker.progress()).unwrap_or(i32::MAX))))
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
        drive(worker, |_, worker| {
            let condition = condition.ok_or_else(|| super::records::null("the condition"))?;
            // SAFETY: the caller guarantees that its function may be called with these arguments.
            let holds = || unsafe { condition(user) } != 0;
            match worker.wait_until(holds, timeout(timeout_ns))? {
                true => Ok(()),
                false => Err(time_is_up(worker)),
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::atomic::{tieline_key_pointer, tieline_pointer_drop};
    use crate::abi::context::{tieline_context_close, tieline_context_open};
    use crate::abi::counter::{tieline_counter_drop, tieline_worker_counter};
    use crate::abi::endpoint::{
        EndpointHandle, tieline_endpoint_drop, tieline_send, tieline_worker_connect,
    };
    use crate::abi::memory::{tieline_context_alloc, tieline_region_key};
    use crate::abi::message::{
        AnnouncementHandle, ArrivedMessage, KeptHandle, tieline_announcement_refuse,
        tieline_kept_drop, tieline_message_announcement, tieline_message_keep,
        tieline_worker_on_message,
    };
    use crate::abi::names::{tieline_name_call_drop, tieline_worker_ask_name, tieline_worker_name};
    use crate::abi::peers::tieline_worker_known_endpoint;
    use crate::abi::put::{tieline_endpoint_import_key, tieline_key_drop};
    use std::ptr::{null, null_mut};
    use std::sync::Barrier;

    extern "C" fn keeps(user: *mut c_void, message: *const ArrivedMessage) {
        // SAFETY: the memory belongs to the test, and the test is in a call that makes progress.
        let seen = unsafe { &mut *user.cast::<(*mut KeptHandle, *mut AnnouncementHandle)>() };
        // SAFETY: the message and the memory belong to the test, and the handler has not returned.
        let status = match unsafe { (*message).is_announced } {
            // SAFETY: the message and the memory belong to the test, and the handler has not returned.
            0 => unsafe { tieline_message_keep(message, &raw mut seen.0, &mut null()) },
            // SAFETY: the message and the memory belong to the test, and the handler has not returned.
            _ => unsafe { tieline_message_announcement(message, &raw mut seen.1) },
        };
        assert_eq!(status, 0);
    }

    /// Opens a worker with an endpoint to itself.
    fn with_itself() -> (*mut ContextHandle, *mut WorkerHandle, *mut EndpointHandle) {
        let (mut context, mut worker, mut endpoint) = (null_mut(), null_mut(), null_mut());
        let mut address = [0_u8; 4096];
        let start = address.as_mut_ptr().cast::<c_void>();
        let mut len = address.len();
        // SAFETY: the places are local variables of this function.
        unsafe {
            assert_eq!(tieline_context_open(null(), &raw mut context), 0);
            assert_eq!(tieline_worker_open(context, &raw mut worker), 0);
            assert_eq!(tieline_worker_address(worker, start, &raw mut len), 0);
            assert_eq!(tieline_worker_connect(worker, start, len, &raw mut endpoint), 0);
        }
        (context, worker, endpoint)
    }

    #[test]
    fn objects_of_panicked_worker_can_be_dropped_once() {
        let (context, worker, endpoint) = with_itself();
        let (mut region, mut key, mut pointer) = (null_mut(), null_mut(), null_mut());
        let (mut counter, mut call) = (null_mut(), null_mut());
        let mut seen: (*mut KeptHandle, *mut AnnouncementHandle) = (null_mut(), null_mut());
        let (mut bytes, long) = (vec![0_u8; 16384], vec![0_u8; 1 << 20]);
        let start = bytes.as_mut_ptr().cast::<c_void>();
        let mut len = bytes.len();
        // SAFETY: the places are local variables of this test.
        unsafe {
            assert_eq!(tieline_context_alloc(context, 64, 7, &raw mut region), 0);
            assert_eq!(tieline_region_key(region, start, &raw mut len), 0);
            assert_eq!(tieline_endpoint_import_key(endpoint, start, len, &raw mut key), 0);
            assert_eq!(tieline_worker_counter(worker, &raw mut counter), 0);
            len = bytes.len();
            assert_eq!(tieline_worker_name(worker, start, &raw mut len), 0);
            assert_eq!(tieline_worker_ask_name(worker, start, len, &raw mut call), 0);
            let user = (&raw mut seen).cast();
            assert_eq!(tieline_worker_on_message(worker, 1, Some(keeps), user), 0);
            assert_eq!(tieline_send(endpoint, 1, 0, start, 1, null(), null_mut()), 0);
            let (long, len) = (long.as_ptr().cast(), long.len());
            assert!(tieline_send(endpoint, 1, 0, long, len, null(), null_mut()) >= 0);
        }
        let (mut mapped, mut room) = (null_mut(), 0);
        loop {
            // SAFETY: the places are local variables of this test.
            assert!(unsafe { tieline_worker_progress(worker) } >= 0);
            let (pointer, mapped) = (&raw mut pointer, &raw mut mapped);
            // SAFETY: the places are local variables of this test.
            let is_mapped =
                unsafe { tieline_key_pointer(key, pointer, mapped, &raw mut room) } == 0;
            if is_mapped && !seen.0.is_null() && !seen.1.is_null() {
                break;
            }
            if is_mapped {
                // SAFETY: the places are local variables of this test.
                assert_eq!(unsafe { tieline_pointer_drop(*pointer) }, 0);
            }
        }
        let state = state_of(worker).ok().unwrap();
        let ended = state.post(|_| -> Result<(), Fault> { panic!("on purpose") });
        assert_eq!(ended.err().unwrap().error.status(), Status::ProviderFailed);
        for expected in [0, Status::Invalid as i32] {
            // SAFETY: handles, some of which have ended.
            let dropped = unsafe {
                [
                    tieline_pointer_drop(pointer),
                    tieline_key_drop(key),
                    tieline_counter_drop(counter),
                    tieline_kept_drop(seen.0),
                    tieline_announcement_refuse(seen.1),
                    tieline_name_call_drop(call),
                    tieline_endpoint_drop(endpoint),
                    tieline_worker_drop(worker),
                ]
            };
            assert_eq!(dropped, [expected; 8]);
        }
    }

    extern "C" fn drops_its_worker(user: *mut c_void, message: *const ArrivedMessage) {
        // SAFETY: all objects belong to the test.
        let (worker, endpoint) =
            unsafe { *user.cast::<(*mut WorkerHandle, *mut EndpointHandle)>() };
        let state = object::<EndpointState, _>(endpoint).ok().unwrap().worker.clone();
        // SAFETY: the objects belong to the test.
        assert_eq!(unsafe { tieline_worker_drop(worker) }, 0);
        // SAFETY: no other call of this worker is in progress.
        assert!(unsafe { &*state.worker.get() }.is_some(), "its progress is still in it");
        assert_eq!(state.worker().err().unwrap().error.status(), Status::Closed);
        let mut peer = 7;
        // SAFETY: the objects belong to the test.
        assert_eq!(unsafe { crate::abi::message::tieline_message_peer(message, &raw mut peer) }, 0);
    }

    #[test]
    fn worker_dropped_in_handler_ends_with_outermost_call() {
        let (context, worker, endpoint) = with_itself();
        let start = (&raw const context).cast();
        let mut both = (worker, endpoint);
        let (user, handler) = ((&raw mut both).cast(), Some(drops_its_worker as _));
        // SAFETY: the objects and places belong to this test.
        assert_eq!(unsafe { tieline_worker_on_message(worker, 1, handler, user) }, 0);
        for _ in 0..2 {
            // SAFETY: the objects and places belong to this test.
            assert_eq!(unsafe { tieline_send(endpoint, 1, 0, start, 1, null(), null_mut()) }, 0);
        }
        // SAFETY: the objects and places belong to this test.
        while unsafe { tieline_worker_progress(worker) } >= 0 {}
        let state = object::<EndpointState, _>(endpoint).ok().unwrap().worker.clone();
        // SAFETY: no other call of this worker is in progress.
        assert!(unsafe { &*state.worker.get() }.is_none());
        assert_eq!(Arc::strong_count(&state), 2, "the endpoint's and this one");
        // SAFETY: the objects and places belong to this test.
        let late = unsafe { tieline_send(endpoint, 1, 0, start, 1, null(), null_mut()) };
        assert_eq!(late, Status::Closed as i32);
        // SAFETY: the objects and places belong to this test.
        assert_eq!(unsafe { tieline_endpoint_drop(endpoint) }, 0);
        // SAFETY: the objects and places belong to this test.
        assert_eq!(unsafe { tieline_context_close(context) }, 0);
    }

    #[test]
    fn busy_thread_leaves_owner_count_of_worker_unchanged() {
        let (mut context, mut worker) = (null_mut(), null_mut());
        // SAFETY: all places are local variables of this test.
        assert_eq!(unsafe { tieline_context_open(null(), &raw mut context) }, 0);
        // SAFETY: the objects and places belong to this test.
        assert_eq!(unsafe { tieline_worker_open(context, &raw mut worker) }, 0);
        let (bits, is_over) = (worker as usize, AtomicBool::new(false));
        let is_in = &Barrier::new(2);
        let told_busy: u64 = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let (handle, mut endpoint) =
                    (bits as *const WorkerHandle, null_mut::<EndpointHandle>());
                let _ = is_in.wait();
                let mut busy = 0_u64;
                while !is_over.load(Ordering::Relaxed) {
                    // SAFETY: the objects and places belong to this test.
                    let status =
                        unsafe { tieline_worker_known_endpoint(handle, 0, &raw mut endpoint) };
                    busy += u64::from(status == Status::Busy as i32);
                }
                busy
            });
            let made = drive(worker, |_, _| {
                let _ = is_in.wait();
                for _ in 0..50_000 {
                    let mut counter = null_mut();
                    // SAFETY: the objects and places belong to this test.
                    assert_eq!(unsafe { tieline_worker_counter(worker, &raw mut counter) }, 0);
                    // SAFETY: the objects and places belong to this test.
                    assert_eq!(unsafe { tieline_counter_drop(counter) }, 0);
                }
                is_over.store(true, Ordering::Relaxed);
                Ok(other.join().unwrap())
            });
            made.ok().unwrap()
        });
        let state = state_of(worker).ok().unwrap();
        assert_eq!(Arc::strong_count(&state), 2, "after {told_busy} calls that were told so");
        drop(state);
        // SAFETY: the objects and places belong to this test.
        assert_eq!(unsafe { tieline_worker_drop(worker) }, 0);
        // SAFETY: the objects and places belong to this test.
        assert_eq!(unsafe { tieline_context_close(context) }, 0);
    }
}
