//! Handlers of driven workers. They run outside the worker's lock, on any thread, one at a time.

use super::endpoint::EndpointHandle;
use super::error::{Failure, Fault, shown};
use super::message::{Arrivals, Handler};
use super::table::Handle;
use super::worker::WorkerState;
use std::ffi::c_void;
use std::sync::Arc;
use tieline::driven::{DrivenEndpoint, DrivenMessage};
use tieline::{ConnectError, DrivenWorker, Error, PeerId};

/// A function of the caller with its argument.
struct Callback<F> {
    function: F,
    user: *mut c_void,
    state: Arc<WorkerState>,
}

// SAFETY: the caller of `tieline_worker_open_with` guarantees that any thread may call its functions. The state is used as every
// thread uses it: under the lock, and by the mark.
unsafe impl<F> Send for Callback<F> {}

/// A handler of messages with the record that it gets.
struct MessageHandler(Callback<Handler>, Arrivals);

// SAFETY: as for `Callback`. One handler at a time runs, so one thread at a time uses the record.
unsafe impl Send for MessageHandler {}

impl MessageHandler {
    fn run(&self, message: &DrivenMessage) {
        let MessageHandler(Callback { function, user, state }, arrivals) = self;
        if !state.has_ended() {
            arrivals.get().tell_driven(message, *function, *user);
        }
    }
}

pub(super) fn on_message(
    state: &Arc<WorkerState>,
    driven: &DrivenWorker,
    id: u16,
    handler: Option<Handler>,
    user: *mut c_void,
) -> Result<(), Fault> {
    let Some(function) = handler else { return Ok(driven.on_message(id, |_| ())?) };
    let arrivals = Arrivals::open(id, state.watch())?;
    let handler = MessageHandler(Callback { function, user, state: state.clone() }, arrivals);
    Ok(driven.on_message(id, move |message| handler.run(message))?)
}

type Notified = unsafe extern "C" fn(user: *mut c_void, peer: u32, word: u32);
type Failed = unsafe extern "C" fn(user: *mut c_void, peer: u32, why: *const Failure);
type Left = unsafe extern "C" fn(user: *mut c_void, peer: u32);
type EndpointFailed =
    unsafe extern "C" fn(user: *mut c_void, endpoint: *mut EndpointHandle, why: *const Failure);

impl Callback<Notified> {
    fn run(&self, peer: PeerId, word: u32) {
        if !self.state.has_ended() {
            // SAFETY: the caller guarantees that its function may be called with these arguments.
            unsafe { (self.function)(self.user, peer.get(), word) };
        }
    }
}

impl Callback<Failed> {
    fn run(&self, peer: PeerId, error: &Error) {
        if !self.state.has_ended() {
            let fault = Fault::gone(error.clone());
            // SAFETY: the caller guarantees that its function may be called with these arguments.
            shown(&fault, |why| unsafe { (self.function)(self.user, peer.get(), why) });
        }
    }
}

impl Callback<Left> {
    fn run(&self, peer: PeerId) {
        if !self.state.has_ended() {
            // SAFETY: the caller guarantees that its function may be called with these arguments.
            unsafe { (self.function)(self.user, peer.get()) };
        }
    }
}

impl Callback<EndpointFailed> {
    fn run(&self, endpoint: &DrivenEndpoint, error: &ConnectError) {
        if self.state.has_ended() {
            return;
        }
        // SAFETY: the endpoint is used under the lock, and then by its handle.
        let handle = self.state.post(|_| self.state.endpoint(unsafe { endpoint.ordinary() }));
        let Ok(bits) = handle else { return };
        let handle = Handle::<super::endpoint::EndpointState>::from_bits(bits).to_c();
        let fault = Fault::gone(error.clone());
        // SAFETY: the caller guarantees that its function may be called with these arguments.
        shown(&fault, |why| unsafe { (self.function)(self.user, handle, why) });
    }
}

pub(super) fn on_notification(
    state: &Arc<WorkerState>,
    driven: &DrivenWorker,
    function: Notified,
    user: *mut c_void,
) -> Result<(), Fault> {
    let callback = Callback { function, user, state: state.clone() };
    Ok(driven.on_notification(move |peer, word| callback.run(peer, word))?)
}

pub(super) fn on_peer_failure(
    state: &Arc<WorkerState>,
    driven: &DrivenWorker,
    function: Failed,
    user: *mut c_void,
) -> Result<(), Fault> {
    let callback = Callback { function, user, state: state.clone() };
    Ok(driven.on_peer_failure(move |peer, error| callback.run(peer, error))?)
}

pub(super) fn on_peer_left(
    state: &Arc<WorkerState>,
    driven: &DrivenWorker,
    function: Left,
    user: *mut c_void,
) -> Result<(), Fault> {
    let callback = Callback { function, user, state: state.clone() };
    Ok(driven.on_peer_left(move |peer| callback.run(peer))?)
}

pub(super) fn on_endpoint_failure(
    state: &Arc<WorkerState>,
    driven: &DrivenWorker,
    function: EndpointFailed,
    user: *mut c_void,
) -> Result<(), Fault> {
    let callback = Callback { function, user, state: state.clone() };
    Ok(driven.on_endpoint_failure(move |endpoint, error| callback.run(endpoint, error))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::completion::tieline_worker_finish;
    use crate::abi::context::{ContextHandle, tieline_context_close, tieline_context_open};
    use crate::abi::endpoint::{
        tieline_endpoint_drop, tieline_endpoint_flush, tieline_send, tieline_worker_connect,
    };
    use crate::abi::message::{
        AnnouncementHandle, ArrivedMessage, KeptHandle, tieline_announcement_refuse,
        tieline_kept_drop, tieline_message_announcement, tieline_message_endpoint,
        tieline_message_keep, tieline_message_peer, tieline_worker_on_message,
    };
    use crate::abi::numbers::TIELINE_WORKER_DRIVEN;
    use crate::abi::wait::{tieline_worker_arm, tieline_worker_wait};
    use crate::abi::worker::{
        WorkerHandle, WorkerParams, tieline_worker_address, tieline_worker_close,
        tieline_worker_drop, tieline_worker_open_with, tieline_worker_progress,
        tieline_worker_wait_until,
    };
    use std::ptr::{null, null_mut};
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    use tieline::Status;

    const LONG: i64 = 60_000_000_000;

    /// The state that the handler and the test share.
    #[derive(Default)]
    struct Seen {
        worker: AtomicUsize,
        sum: AtomicU64,
        count: AtomicU64,
        kept: AtomicUsize,
        long: AtomicUsize,
    }

    fn at<T>(address: &AtomicUsize) -> *mut T {
        std::ptr::without_provenance_mut(address.load(Ordering::Acquire))
    }

    extern "C" fn sees(user: *mut c_void, arrived: *const ArrivedMessage) {
        // SAFETY: the state and the record are valid during the call, and the handles belong to the test.
        unsafe {
            let seen = &*user.cast::<Seen>();
            let mut peer = 7;
            assert_eq!(tieline_message_peer(arrived, &raw mut peer), 0);
            let mut endpoint = null_mut();
            assert_eq!(tieline_message_endpoint(arrived, &raw mut endpoint), 0);
            assert!(!endpoint.is_null(), "the sender is the worker itself");
            let worker = at(&seen.worker);
            assert_eq!(tieline_worker_wait(worker, 0), Status::Busy as i32);
            assert_eq!(tieline_worker_progress(worker), 0);
            if (*arrived).is_announced != 0 {
                let mut long: *mut AnnouncementHandle = null_mut();
                assert_eq!(tieline_message_announcement(arrived, &raw mut long), 0);
                seen.long.store(long.expose_provenance(), Ordering::Release);
            } else if (*arrived).header == 0 {
                let (mut kept, mut payload): (*mut KeptHandle, _) = (null_mut(), null());
                assert_eq!(tieline_message_keep(arrived, &raw mut kept, &raw mut payload), 0);
                assert_eq!(*payload.cast::<u8>(), 9);
                seen.kept.store(kept.expose_provenance(), Ordering::Release);
            }
            let _ = seen.sum.fetch_add((*arrived).header, Ordering::Relaxed);
            let _ = seen.count.fetch_add(1, Ordering::Release);
        }
    }

    extern "C" fn has_seen(user: *mut c_void) -> i32 {
        // SAFETY: the test passes its state.
        let seen = unsafe { &*user.cast::<Seen>() };
        (seen.count.load(Ordering::Acquire) >= 402).into()
    }

    fn opened(context: *mut ContextHandle) -> *mut WorkerHandle {
        let params = WorkerParams { size: size_of::<WorkerParams>(), flags: TIELINE_WORKER_DRIVEN };
        let mut worker = null_mut();
        // SAFETY: the record and the place are valid.
        let status =
            unsafe { tieline_worker_open_with(context, &raw const params, &raw mut worker) };
        assert_eq!(status, 0);
        worker
    }

    #[test]
    fn several_threads_use_one_driven_worker_without_a_lock_of_their_own() {
        let seen = Seen::default();
        let user = (&raw const seen).cast_mut().cast::<c_void>();
        let mut context = null_mut();
        // SAFETY: all objects and places belong to the test.
        unsafe {
            assert_eq!(tieline_context_open(null(), &raw mut context), 0);
            let worker = opened(context);
            seen.worker.store(worker.expose_provenance(), Ordering::Release);
            assert_eq!(tieline_worker_on_message(worker, 1, Some(sees), user), 0);
            let (mut address, mut len) = ([0u8; 4096], 4096);
            let to = address.as_mut_ptr().cast();
            assert_eq!(tieline_worker_address(worker, to, &raw mut len), 0);
            let mut endpoint = null_mut();
            let address = address.as_ptr().cast();
            assert_eq!(tieline_worker_connect(worker, address, len, &raw mut endpoint), 0);
            let place = endpoint.expose_provenance();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    let _ = scope.spawn(move || {
                        let endpoint = std::ptr::with_exposed_provenance_mut(place);
                        for _ in 0..100 {
                            let (byte, mut request) = ([9u8], 0);
                            let (from, to) = (byte.as_ptr().cast(), &raw mut request);
                            let sent = tieline_send(endpoint, 1, 1, from, 1, null(), to);
                            assert!(sent >= 0, "{sent}");
                            if sent == 1 {
                                let worker = at(&AtomicUsize::new(worker_of(endpoint)));
                                let end = tieline_worker_finish(worker, request, LONG, null_mut());
                                assert_eq!(end, 0);
                            }
                        }
                    });
                }
            });
            let (byte, long) = ([9u8], vec![1u8; 1 << 20]);
            let sent = tieline_send(endpoint, 1, 0, byte.as_ptr().cast(), 1, null(), null_mut());
            assert!(sent >= 0);
            let mut request = 0;
            let (from, to) = (long.as_ptr().cast(), &raw mut request);
            assert_eq!(tieline_send(endpoint, 1, 0, from, long.len(), null(), to), 1);
            assert_eq!(tieline_worker_wait_until(worker, Some(has_seen), user, LONG), 0);
            assert_eq!(seen.sum.load(Ordering::Relaxed), 400);

            let timed_out = tieline_worker_finish(worker, request, 1_000_000, null_mut());
            assert_eq!(timed_out, Status::TimedOut as i32);
            let refused = std::thread::scope(|scope| {
                let number = scope
                    .spawn(|| tieline_announcement_refuse(at::<AnnouncementHandle>(&seen.long)));
                number.join().unwrap()
            });
            assert_eq!(refused, 0);
            assert!(tieline_worker_finish(worker, request, LONG, null_mut()) < 0);
            assert_eq!(tieline_kept_drop(at::<KeptHandle>(&seen.kept)), 0);
            assert_eq!(tieline_worker_arm(worker), Status::Unsupported as i32);
            let mut flush = 0;
            let begun = tieline_endpoint_flush(endpoint, null(), &raw mut flush);
            assert!(begun == 0 || tieline_worker_finish(worker, flush, LONG, null_mut()) == 0);
            assert_eq!(tieline_endpoint_drop(endpoint), 0);
            assert_eq!(tieline_worker_close(worker, LONG), 0);
            assert_eq!(tieline_worker_progress(worker), Status::Invalid as i32);

            let other = opened(context);
            assert_eq!(tieline_worker_drop(other), 0);
            assert_eq!(tieline_context_close(context), 0);
        }
    }

    /// Returns the handle of an endpoint's worker, as a number.
    fn worker_of(endpoint: *const EndpointHandle) -> usize {
        use crate::abi::endpoint::EndpointState;
        use crate::abi::enter::object;
        let state = object::<EndpointState, _>(endpoint).ok().unwrap();
        *state.worker.handle.get().unwrap() as usize
    }
}
