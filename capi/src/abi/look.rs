//! Queries: a worker's state and counters, and the path of a key.

use super::bytes::Room;
use super::enter::{guarded, object};
use super::error::done;
use super::put::{KeyHandle, KeyObject};
use super::records;
use super::worker::{WorkerHandle, WorkerState};
use std::ffi::{c_char, c_void};

/// Describes the path that puts and gets with this key currently take, in a line with its zero: `shm/ring`, `shm-cma/copy`, or
/// `emulated over shm/ring`. If a connection is being established for the path, operations wait for it. `len` as for
/// tieline_context_report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_key_path(
    key: *const KeyHandle,
    text: *mut c_char,
    len: *mut usize,
) -> i32 {
    done(guarded(|| {
        let room = Room::new(text.cast::<c_void>(), len)?;
        let object = object::<KeyObject, _>(key)?;
        room.write(&object.endpoint.worker.mark.post(|| Ok(object.key.path()))?)
    }))
}

/// Writes the worker's state as JSON with its zero: each endpoint with its queue and the reason why it waits, connections that are
/// being established, open interfaces, and counters. It visits every endpoint, so do not call it in every iteration of a loop.
/// `len` as for tieline_context_report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_status(
    worker: *const WorkerHandle,
    text: *mut c_char,
    len: *mut usize,
) -> i32 {
    done(guarded(|| {
        let room = Room::new(text.cast::<c_void>(), len)?;
        let state = object::<WorkerState, _>(worker)?;
        room.write(&state.post(|worker| Ok(worker.status().to_json()))?)
    }))
}

/// A worker's counters, since it was opened.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Counters {
    /// Bytes of this record; set it before the call.
    pub size: usize,
    /// Dropped messages without a handler for their id, and dropped notifications without a handler.
    pub unknown_ids: u64,
    /// Malformed messages of the library's protocols, and replies to operations that have already ended: dropped.
    pub malformed: u64,
    /// Messages by which peers requested puts, gets and atomics that no module performs for them, or that are faster by message.
    pub emulated: u64,
    /// Pieces of peers' large puts and gets that this worker copied for them.
    pub assisted_chunks: u64,
    /// Connections established with peers, by modules that connect to an endpoint.
    pub connections: u64,
    /// Connections that such modules failed to establish.
    pub failed_connections: u64,
    /// Wire-up messages that were sent again because no reply arrived.
    pub wireup_retransmissions: u64,
    /// Connection requests that were rejected.
    pub wireup_rejections: u64,
}

/// Reads the worker's counters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_counters(
    worker: *const WorkerHandle,
    counters: *mut Counters,
) -> i32 {
    done(guarded(|| {
        let found = object::<WorkerState, _>(worker)?.post(|worker| Ok(worker.counters()))?;
        let found = Counters {
            size: 0,
            unknown_ids: found.unknown_ids,
            malformed: found.malformed,
            emulated: found.emulated,
            assisted_chunks: found.assisted_chunks,
            connections: found.connections,
            failed_connections: found.failed_connections,
            wireup_retransmissions: found.wireup_retransmissions,
            wireup_rejections: found.wireup_rejections,
        };
        // SAFETY: the caller's record.
        unsafe { records::write(counters, &found) }
    }))
}
