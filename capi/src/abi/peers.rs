//! Peer events of a worker: notifications, failures, departures; and endpoints to peers that have sent something.

use super::driven;
use super::endpoint::{EndpointHandle, EndpointState};
use super::enter::guarded;
use super::error::{Failure, Fault, done, shown};
use super::records::{null, out_handle};
use super::table::Handle;
use super::worker::{Watch, WorkerHandle, WorkerState, state_of};
use std::ffi::c_void;
use std::sync::Arc;
use tieline::{DrivenWorker, PeerId, Worker};

/// A function that the library calls with the word of a peer's put.
pub type NotificationFn = Option<unsafe extern "C" fn(user: *mut c_void, peer: u32, word: u32)>;

/// A function that the library calls when a peer has failed.
pub type PeerFailureFn =
    Option<unsafe extern "C" fn(user: *mut c_void, peer: u32, why: *const Failure)>;

/// A function that the library calls when a peer has left.
pub type PeerLeftFn = Option<unsafe extern "C" fn(user: *mut c_void, peer: u32)>;

/// Registers a handler of the caller. `register` gets it with a check whether the worker has ended; `by_thread` is for a driven
/// worker.
fn on<F>(
    worker: *const WorkerHandle,
    handler: Option<F>,
    by_thread: impl FnOnce(&Arc<WorkerState>, &DrivenWorker, F) -> Result<(), Fault>,
    register: impl FnOnce(&Worker, F, Watch) -> Result<(), Fault>,
) -> i32 {
    done(guarded(|| {
        let handler = handler.ok_or_else(|| null("the handler"))?;
        let state = state_of(worker)?;
        if let Some(driven) = state.driven_one()? {
            return by_thread(&state, driven, handler);
        }
        let own = state.watch();
        state.post(|worker| register(worker, handler, own))
    }))
}

/// Registers the handler for puts with TIELINE_HOW_NOTIFY. When the handler runs, the bytes of that put and of the earlier
/// successful puts on the peer's same endpoint are visible.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_on_notification(
    worker: *const WorkerHandle,
    handler: NotificationFn,
    user: *mut c_void,
) -> i32 {
    let by_thread =
        |state: &Arc<_>, driven: &_, handler| driven::on_notification(state, driven, handler, user);
    on(worker, handler, by_thread, |worker, handler, own| {
        Ok(worker.on_notification(move |peer, word| {
            if !own.has_ended() {
                // SAFETY: the caller guarantees that its function may be called with these arguments.
                unsafe { handler(user, peer.get(), word) };
            }
        })?)
    })
}

/// Registers the handler for failed peers. The handler runs once per failure, with the first reason. A peer is a worker that has
/// sent messages to this worker or has a connection with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_on_peer_failure(
    worker: *const WorkerHandle,
    handler: PeerFailureFn,
    user: *mut c_void,
) -> i32 {
    let by_thread =
        |state: &Arc<_>, driven: &_, handler| driven::on_peer_failure(state, driven, handler, user);
    on(worker, handler, by_thread, |worker, handler, own| {
        worker.on_peer_failure(move |peer, error| {
            if !own.has_ended() {
                let fault = Fault::gone(error.clone());
                // SAFETY: the caller guarantees that its function may be called with these arguments.
                shown(&fault, |why| unsafe { handler(user, peer.get(), why) });
            }
        });
        Ok(())
    })
}

/// Registers the handler for peers that left in good order. The handler also runs for a peer to which only an endpoint leads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_on_peer_left(
    worker: *const WorkerHandle,
    handler: PeerLeftFn,
    user: *mut c_void,
) -> i32 {
    let by_thread =
        |state: &Arc<_>, driven: &_, handler| driven::on_peer_left(state, driven, handler, user);
    on(worker, handler, by_thread, |worker, handler, own| {
        worker.on_peer_left(move |peer| {
            if !own.has_ended() {
                // SAFETY: the caller guarantees that its function may be called with these arguments.
                unsafe { handler(user, peer.get()) };
            }
        });
        Ok(())
    })
}

/// Opens an endpoint, by peer number, to a peer that has sent something to this worker. If the caller or the worker already holds
/// an endpoint to the peer, the call returns that endpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_endpoint_to(
    worker: *const WorkerHandle,
    peer: u32,
    endpoint: *mut *mut EndpointHandle,
) -> i32 {
    done(guarded(|| {
        let (out, state) = (out_handle(endpoint)?, state_of(worker)?);
        let peer = PeerId::from_number(peer);
        let made = state.post(|worker| state.endpoint(worker.endpoint_to(peer)?))?;
        out.set(Handle::<EndpointState>::from_bits(made).to_c());
        Ok(())
    }))
}

/// Returns an endpoint that the caller holds to this peer and that has not failed; null if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_known_endpoint(
    worker: *const WorkerHandle,
    peer: u32,
    endpoint: *mut *mut EndpointHandle,
) -> i32 {
    done(guarded(|| {
        let (out, state) = (out_handle(endpoint)?, state_of(worker)?);
        let known = state.post(|worker| {
            let known = worker.known_endpoint(PeerId::from_number(peer));
            known.map(|endpoint| state.endpoint(endpoint)).transpose()
        })?;
        if let Some(bits) = known {
            out.set(Handle::<EndpointState>::from_bits(bits).to_c());
        }
        Ok(())
    }))
}
