//! Datagrams that establish connections, carried by the caller.

use super::bytes::bytes;
use super::enter::{guarded, object};
use super::error::done;
use super::records::null;
use super::worker::{WorkerHandle, WorkerState};
use std::ffi::c_void;

/// A function that carries a datagram to the worker whose own name is `to`. The function returns non-zero if it accepted the
/// datagram. Any call of the worker may run the function. The function must not call that worker.
pub type DatagramFn = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        to: *const c_void,
        to_len: usize,
        datagram: *const c_void,
        len: usize,
    ) -> i32,
>;

/// Lets the caller carry the few datagrams that establish connections. `address`, at most 4096 bytes, is the caller's own name for
/// this worker. The context must have been opened with TIELINE_CONTEXT_OUT_OF_BAND. Call this function before
/// tieline_worker_address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_set_out_of_band(
    worker: *const WorkerHandle,
    address: *const c_void,
    len: usize,
    send: DatagramFn,
    user: *mut c_void,
) -> i32 {
    done(guarded(|| {
        let (address, send) = (bytes(address, len)?, send.ok_or_else(|| null("what sends"))?);
        let state = object::<WorkerState, _>(worker)?;
        let own = state.watch();
        state.post(|worker| {
            let send = move |to: &[u8], datagram: &[u8]| {
                if own.has_ended() {
                    return false;
                }
                let (to, to_len) = (to.as_ptr().cast(), to.len());
                // SAFETY: the caller guarantees that its function may be called with these arguments.
                unsafe { send(user, to, to_len, datagram.as_ptr().cast(), datagram.len()) != 0 }
            };
            Ok(worker.set_out_of_band(address, send)?)
        })
    }))
}

/// Delivers a datagram that a peer's datagram function carried to this process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_deliver(
    worker: *const WorkerHandle,
    datagram: *const c_void,
    len: usize,
) -> i32 {
    done(guarded(|| {
        let datagram = bytes(datagram, len)?;
        object::<WorkerState, _>(worker)?.post(|worker| Ok(worker.deliver_out_of_band(datagram)?))
    }))
}
