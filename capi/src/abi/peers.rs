//! What a worker tells of its peers: notifications, failures, farewells; and endpoints to who has written.

use super::endpoint::{EndpointHandle, EndpointState};
use super::enter::{guarded, object};
use super::error::{Failure, Fault, done, shown};
use super::records::{null, out_handle};
use super::table::Handle;
use super::worker::{WorkerHandle, WorkerState, state_of};
use std::ffi::c_void;
use tieline::PeerId;

/// What to do when a peer's put has told its word.
pub type NotificationFn = Option<unsafe extern "C" fn(user: *mut c_void, peer: u32, word: u32)>;

/// What to do when a peer has failed.
pub type PeerFailureFn =
    Option<unsafe extern "C" fn(user: *mut c_void, peer: u32, why: *const Failure)>;

/// What to do when a peer has left.
pub type PeerLeftFn = Option<unsafe extern "C" fn(user: *mut c_void, peer: u32)>;

/// Registers what to do when a peer's put with TIELINE_HOW_NOTIFY has come: its bytes, and those of its puts before, are there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_on_notification(
    worker: *const WorkerHandle,
    handler: NotificationFn,
    user: *mut c_void,
) -> i32 {
    done(guarded(|| {
        let handler = handler.ok_or_else(|| null("the handler"))?;
        let state = object::<WorkerState, _>(worker)?;
        let own = state.watch();
        state.post(|worker| {
            worker.on_notification(move |peer, word| {
                if own.has_ended() {
                    return;
                }
                // SAFETY: the caller's function.
                unsafe { handler(user, peer.get(), word) };
            })?;
            Ok(())
        })
    }))
}

/// Registers what to do when a peer is gone that has written to us or that we have a connection to: once, with the first reason.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_on_peer_failure(
    worker: *const WorkerHandle,
    handler: PeerFailureFn,
    user: *mut c_void,
) -> i32 {
    done(guarded(|| {
        let handler = handler.ok_or_else(|| null("the handler"))?;
        let state = object::<WorkerState, _>(worker)?;
        let own = state.watch();
        state.post(|worker| {
            worker.on_peer_failure(move |peer, error| {
                if own.has_ended() {
                    return;
                }
                let fault = Fault::gone(error.clone());
                // SAFETY: the caller's function.
                shown(&fault, |why| unsafe { handler(user, peer.get(), why) });
            });
            Ok(())
        })
    }))
}

/// Registers what to do when a peer has left in good order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_on_peer_left(
    worker: *const WorkerHandle,
    handler: PeerLeftFn,
    user: *mut c_void,
) -> i32 {
    done(guarded(|| {
        let handler = handler.ok_or_else(|| null("the handler"))?;
        let state = object::<WorkerState, _>(worker)?;
        let own = state.watch();
        state.post(|worker| {
            worker.on_peer_left(move |peer| {
                if own.has_ended() {
                    return;
                }
                // SAFETY: the caller's function.
                unsafe { handler(user, peer.get()) };
            });
            Ok(())
        })
    }))
}

/// An endpoint that leads to a peer that has written to us, by its number: one that is held still, or one of the worker's own.
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

/// An endpoint to a peer that is held and has not failed; null where there is none.
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
