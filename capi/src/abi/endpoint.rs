//! Endpoints: the connection to one peer, and messages over it.

use super::bytes::{Room, bytes, some_bytes};
use super::context::{end_of_worker, no_handles};
use super::driven;
use super::enter::{Aside, guarded, live, no_object, object};
use super::error::{Failure, Fault, answer, done, shown};
use super::how::{self, How};
use super::memory::{Piece, pieces};
use super::numbers::{TIELINE_CLOSE_CANCEL, TIELINE_CLOSE_FLUSH};
use super::records::{self, out, out_handle};
use super::table::{self, Handle, Object};
use super::worker::{WorkerHandle, WorkerState, closed, state_of};
use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_char, c_void};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use tieline::endpoint::{AtOnce, Tried};
use tieline::{Close, Endpoint, Outcome, PostError, Status};

/// A connection from one worker to one peer.
pub struct EndpointHandle(());

/// The state of an endpoint, shared by the handle and by the keys of the endpoint.
pub(crate) struct EndpointState {
    /// The endpoint of the core. The endpoint's user word is the C handle, so that an endpoint from the core leads to this state.
    endpoint: UnsafeCell<Option<Endpoint>>,
    pub(crate) worker: Arc<WorkerState>,
    user: Cell<u64>,
}

impl Object for EndpointState {
    const KIND: u8 = 3;
    const NAME: &'static str = "an endpoint";
}

impl EndpointState {
    /// Stores an endpoint, and returns the bits of its handle.
    pub(crate) fn keep(worker: Arc<WorkerState>, endpoint: Endpoint) -> Result<u64, Fault> {
        let state =
            EndpointState { endpoint: UnsafeCell::new(Some(endpoint)), worker, user: Cell::new(0) };
        let raw = Rc::into_raw(Rc::new(state)).cast_mut();
        // SAFETY: `raw` comes from an Rc, so the address is not null.
        let Some(handle) = table::keep(unsafe { NonNull::new_unchecked(raw) }) else {
            // SAFETY: `raw` comes from the Rc above.
            drop(unsafe { Rc::from_raw(raw) });
            return Err(no_handles());
        };
        // SAFETY: the table keeps the state alive.
        unsafe { &*raw }.get()?.set_user(handle.bits());
        Ok(handle.bits())
    }

    /// Returns the endpoint, unless its handle was dropped. The caller must hold the worker's mark.
    #[inline]
    pub(crate) fn get(&self) -> Result<&Endpoint, Fault> {
        // SAFETY: the endpoint is taken out only under the worker's mark, and not while a call that posts is in progress:
        // `tieline_endpoint_drop`.
        unsafe { &*self.endpoint.get() }.as_ref().ok_or_else(closed_endpoint)
    }

    /// Checks whether this state holds `endpoint`.
    pub(crate) fn is(&self, endpoint: &Endpoint) -> bool {
        self.get().is_ok_and(|own| own == endpoint)
    }

    /// Adds an owner of this state.
    pub(crate) fn share(&self) -> Rc<EndpointState> {
        let state = std::ptr::from_ref(self);
        // SAFETY: the address in the table comes from `Rc::into_raw`, and at most one thread at a time is in a call of the worker.
        unsafe {
            Rc::increment_strong_count(state);
            Rc::from_raw(state)
        }
    }

    /// Runs a body that completes inline and cannot panic, if this thread is admitted and the handle is open.
    #[inline(always)]
    pub(crate) fn at_once<T>(&self, body: impl FnOnce(&Endpoint) -> AtOnce<T>) -> AtOnce<T> {
        let tried = self.worker.mark.at_once(|| {
            // SAFETY: this thread holds the worker's mark, and the endpoint is taken out only under the mark.
            unsafe { &*self.endpoint.get() }.as_ref().map_or(AtOnce::NotTried, body)
        });
        tried.unwrap_or(AtOnce::NotTried)
    }

    /// Runs `body`, which posts on this endpoint. The caller has set the request number to 0.
    #[inline]
    pub(crate) fn post(
        &self,
        request: *mut u64,
        told: &how::Told,
        body: impl FnOnce(&Endpoint) -> Result<Outcome, PostError>,
    ) -> Result<i32, Fault> {
        self.worker.mark.post(|| how::posted(&self.worker, body(self.get()?)?, told, request))
    }
}

#[cold]
fn closed_endpoint() -> Fault {
    let mut fault = closed();
    fault.error = tieline::Error::new(
        Status::Closed,
        "a call over an endpoint",
        "its handle was dropped",
        "drop keys together with their endpoint, and reconnect",
    );
    fault
}

/// Runs `body` with the endpoint, under the worker's mark.
fn ask<T>(
    endpoint: *const EndpointHandle,
    body: impl FnOnce(&Endpoint) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let state = object::<EndpointState, _>(endpoint)?;
    state.worker.mark.post(|| body(state.get()?))
}

/// Opens an endpoint to the worker with this address. The first operation establishes the connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_connect(
    worker: *const WorkerHandle,
    address: *const c_void,
    len: usize,
    endpoint: *mut *mut EndpointHandle,
) -> i32 {
    done(guarded(|| {
        let out = out_handle(endpoint)?;
        let (state, address) = (state_of(worker)?, bytes(address, len)?);
        let made = state.post(|worker| state.endpoint(worker.connect(address)?))?;
        out.set(Handle::<EndpointState>::from_bits(made).to_c());
        Ok(())
    }))
}

/// Releases an endpoint. Messages in its queue are still sent. An operation that was already posted is canceled, or completes
/// normally if the connection remains. The endpoint's keys become unusable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_endpoint_drop(endpoint: *mut EndpointHandle) -> i32 {
    done(guarded(|| {
        let worker = |state: &EndpointState| state.worker.clone();
        end_of_worker::<EndpointState, _>(endpoint, worker, |endpoint| {
            let handle = Handle::<EndpointState>::of(endpoint);
            let raw = table::end(handle).ok_or_else(|| no_object(handle))?;
            // SAFETY: the address comes from the Rc that was given to the table; the table returns the address to one caller only.
            let state = unsafe { Rc::from_raw(raw.as_ptr().cast_const()) };
            // SAFETY: this thread holds the mark, and no call that posts is in progress; otherwise this call would have been
            // refused.
            drop(unsafe { &mut *state.endpoint.get() }.take());
            Ok(())
        })
    }))
}

/// Sends a message of any length: `id` selects the handler at the peer, and the handler receives `header` and the payload. The call
/// copies the payload. TIELINE_OK: the transport has accepted the message. TIELINE_PENDING: the message is queued, or it is longer
/// than max_message (tieline_endpoint_limits) and therefore a rendezvous message, whose bytes the peer requests later.
/// TIELINE_AGAIN: nothing was sent; make progress and try again. `how` and `request` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_send(
    endpoint: *const EndpointHandle,
    id: u16,
    header: u64,
    payload: *const c_void,
    len: usize,
    how: *const How,
    request: *mut u64,
) -> i32 {
    if let (Some(state), Some(bytes)) =
        (live::<EndpointState, _>(endpoint), some_bytes(payload, len))
    {
        if how::is_usual(how, request) {
            let aside = (Aside::empty(), Aside::empty(), Aside::empty());
            let more_aside = (Aside::empty(), Aside::empty());
            let given = (aside.0.keep(endpoint), aside.1.keep(id), aside.2.keep(header));
            let (start, length) = (more_aside.0.keep(payload), more_aside.1.keep(len));
            match state.at_once(|endpoint| endpoint.send_at_once(id, header, bytes)) {
                AtOnce::Done => return 0,
                AtOnce::NotTried => {}
                AtOnce::Refused(tried, ()) => {
                    let (endpoint, id, header) = (given.0.get(), given.1.get(), given.2.get());
                    let (payload, len) = (start.get(), length.get());
                    return send_further(endpoint, id, header, payload, len, request, tried);
                }
            }
        }
    }
    send(endpoint, id, header, payload, len, how, request)
}

/// Sends as `tieline_send` does, on the slow path, which handles every case.
#[cold]
#[inline(never)]
fn send(
    endpoint: *const EndpointHandle,
    id: u16,
    header: u64,
    payload: *const c_void,
    len: usize,
    how: *const How,
    request: *mut u64,
) -> i32 {
    how::no_number(request);
    answer(object::<EndpointState, _>(endpoint).and_then(|state| {
        let (payload, told) = (bytes(payload, len)?, how::read(how, 0, &state.worker)?);
        state.post(request, &told, |endpoint| endpoint.send(id, header, payload))
    }))
}

/// Sends a message after a provider has not completed the inline attempt.
#[cold]
#[inline(never)]
fn send_further(
    endpoint: *const EndpointHandle,
    id: u16,
    header: u64,
    payload: *const c_void,
    len: usize,
    request: *mut u64,
    tried: Tried,
) -> i32 {
    answer(object::<EndpointState, _>(endpoint).and_then(|state| {
        let payload = bytes(payload, len)?;
        state.post(request, &how::USUAL, |endpoint| {
            endpoint.send_further(tried, id, header, payload)
        })
    }))
}

/// Sends a message gathered from pieces of regions, which must not change until the operation completes. A message that is longer
/// than max_message is a rendezvous message, as for tieline_send. If a rendezvous message has a single piece, the peer reads the
/// piece in place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_send_pieces(
    endpoint: *const EndpointHandle,
    id: u16,
    header: u64,
    piece: *const Piece,
    count: usize,
    how: *const How,
    request: *mut u64,
) -> i32 {
    how::no_number(request);
    answer(object::<EndpointState, _>(endpoint).and_then(|state| {
        let (told, pieces) = (how::read(how, 0, &state.worker)?, pieces(piece, count)?);
        state.post(request, &told, |endpoint| endpoint.send_regions(id, header, &pieces))
    }))
}

/// Flushes the endpoint. The flush completes when every put, get and atomic posted before is complete at the target, and the
/// transport has accepted every message posted before. Returns TIELINE_BUSY in a handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_endpoint_flush(
    endpoint: *const EndpointHandle,
    how: *const How,
    request: *mut u64,
) -> i32 {
    how::no_number(request);
    answer(
        object::<EndpointState, _>(endpoint).and_then(|state| {
            state.post(request, &how::read(how, 0, &state.worker)?, Endpoint::flush)
        }),
    )
}

/// Flushes messages with a round trip to the peer. The flush completes when the peer's handlers have run for every message posted
/// before. Returns TIELINE_BUSY in a handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_endpoint_flush_messages(
    endpoint: *const EndpointHandle,
    how: *const How,
    request: *mut u64,
) -> i32 {
    how::no_number(request);
    answer(object::<EndpointState, _>(endpoint).and_then(|state| {
        state.post(request, &how::read(how, 0, &state.worker)?, Endpoint::flush_messages)
    }))
}

/// Orders every put, get and atomic that was posted on this endpoint before ahead of those posted on it after. The call does not
/// wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_endpoint_fence(endpoint: *const EndpointHandle) -> i32 {
    done(ask(endpoint, |endpoint| Ok(endpoint.fence()?)))
}

/// Begins to close the endpoint; `which` is TIELINE_CLOSE_*. The close is an operation, whose completion is reported as `how` says.
/// The handle remains until it is dropped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_endpoint_close(
    endpoint: *const EndpointHandle,
    which: u32,
    how: *const How,
    request: *mut u64,
) -> i32 {
    how::no_number(request);
    answer(object::<EndpointState, _>(endpoint).and_then(|state| {
        let which = match which {
            TIELINE_CLOSE_FLUSH => Close::Flush,
            TIELINE_CLOSE_CANCEL => Close::Cancel,
            _ => {
                let why = format!("{which} is not a way to close");
                let fix = "use TIELINE_CLOSE_*";
                return Err(Fault::new(Status::Invalid, "closing an endpoint", why, fix));
            }
        };
        state.post(request, &how::read(how, 0, &state.worker)?, |endpoint| endpoint.close(which))
    }))
}

/// Attaches a word to the endpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_endpoint_set_user(
    endpoint: *const EndpointHandle,
    user: u64,
) -> i32 {
    done(object::<EndpointState, _>(endpoint).map(|state| state.user.set(user)))
}

/// Reads the word that was attached to the endpoint. The initial value is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_endpoint_user(
    endpoint: *const EndpointHandle,
    user: *mut u64,
) -> i32 {
    done(out(user, 0).and_then(|out| {
        out.set(object::<EndpointState, _>(endpoint)?.user.get());
        Ok(())
    }))
}

/// Reports the number that identifies the peer in this worker. Messages and notifications from the peer carry the same number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_endpoint_peer(
    endpoint: *const EndpointHandle,
    peer: *mut u32,
) -> i32 {
    done(guarded(|| {
        let out = out(peer, 0)?;
        out.set(ask(endpoint, |endpoint| Ok(endpoint.peer().get()))?);
        Ok(())
    }))
}

/// Describes the path to this peer in one line, a string that ends with a zero. `len` has the same meaning as for
/// tieline_context_report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_endpoint_path(
    endpoint: *const EndpointHandle,
    text: *mut c_char,
    len: *mut usize,
) -> i32 {
    done(guarded(|| {
        let room = Room::new(text.cast::<c_void>(), len)?;
        room.write(&ask(endpoint, |endpoint| Ok(endpoint.path()))?)
    }))
}

/// Reports whether the endpoint has ended: TIELINE_OK if it has not, otherwise the status of the failure, which is below 0. `why`
/// may be null. After a failure it is filled as by tieline_last_error, and its strings are valid until the next call that fails in
/// this thread. After TIELINE_OK its fields are zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_endpoint_error(
    endpoint: *const EndpointHandle,
    why: *mut Failure,
) -> i32 {
    let ended = done(guarded(|| match ask(endpoint, |endpoint| Ok(endpoint.error()))? {
        Some(error) => Err(Fault::gone(error)),
        None => Ok(()),
    }));
    if !why.is_null() {
        // SAFETY: the caller guarantees that its record is null or valid during this call.
        let written = unsafe { super::error::tieline_last_error(why) };
        return if ended == 0 { clear(why) } else { ended.min(written) };
    }
    ended
}

/// Fills the record with zeros, which mean that there is no failure.
fn clear(why: *mut Failure) -> i32 {
    // SAFETY: a record of numbers and addresses may be all zeros.
    let none: Failure = unsafe { std::mem::zeroed() };
    // SAFETY: the caller guarantees that its record is null or valid during this call.
    done(unsafe { records::write(why, &none) })
}

/// A function that the library calls when an endpoint has failed.
pub type EndpointFailureFn = Option<
    unsafe extern "C" fn(user: *mut c_void, endpoint: *mut EndpointHandle, why: *const Failure),
>;

/// Registers the handler for failed endpoints. The handler runs once per failed endpoint that the caller holds, with the reason,
/// inside a call that makes progress. The endpoint's operations have ended by then. The handler does not run if the peer has left
/// in good order: then the handler of tieline_worker_on_peer_left runs, and the endpoint ends with TIELINE_CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_on_endpoint_failure(
    worker: *const WorkerHandle,
    handler: EndpointFailureFn,
    user: *mut c_void,
) -> i32 {
    done(guarded(|| {
        let state = state_of(worker)?;
        let handler = handler.ok_or_else(|| records::null("the handler"))?;
        if let Some(driven) = state.driven_one()? {
            return driven::on_endpoint_failure(&state, driven, handler, user);
        }
        let weak = Arc::downgrade(&state);
        state.post(|worker| {
            worker.on_endpoint_failure(move |endpoint, error| {
                let Some(state) = weak.upgrade().filter(|state| !state.has_ended()) else { return };
                let Ok(bits) = state.endpoint(endpoint.clone()) else { return };
                let handle = Handle::<EndpointState>::from_bits(bits).to_c();
                let fault = Fault::gone(error.clone());
                // SAFETY: the caller guarantees that its function may be called with these arguments.
                shown(&fault, |why| unsafe { handler(user, handle, why) });
            });
            Ok(())
        })
    }))
}
