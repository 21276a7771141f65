//! Queries: a worker's state and counters, and the path of a key.

use super::bytes::Room;
use super::enter::{guarded, object};
use super::error::done;
use super::put::{KeyHandle, KeyObject};
use super::records;
use super::worker::{WorkerHandle, WorkerState};
use std::ffi::{c_char, c_void};

/// Describes the current path of puts and gets with this key in one line, a string that ends with a zero: `shm/ring`,
/// `shm-cma/copy`, or `emulated over shm/ring`. If the path's connection is still being established, operations wait for the
/// connection. `len` has the same meaning as for tieline_context_report.
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

/// Describes the plan of this key in one line, a string that ends with a zero: the ranges of lengths of puts and gets, and how each is
/// carried out. An example is `puts: at once, from 524288 with the peer's help; gets: at once, from 524288 with the peer's help`.
/// The Rust documentation of `RemoteKey::plan` defines the words. `len` has the same meaning as for tieline_context_report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_key_plan(
    key: *const KeyHandle,
    text: *mut c_char,
    len: *mut usize,
) -> i32 {
    done(guarded(|| {
        let room = Room::new(text.cast::<c_void>(), len)?;
        let object = object::<KeyObject, _>(key)?;
        room.write(&object.endpoint.worker.mark.post(|| Ok(object.key.plan()))?)
    }))
}

/// Writes the worker's state as JSON, a string that ends with a zero: each endpoint with its queue and the reason why the queue
/// waits, connections that are being established, open interfaces, and counters. The call visits every endpoint, so its cost grows
/// with their number. `len` has the same meaning as for tieline_context_report.
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

/// A worker's counters, which start at 0 when the worker is opened.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Counters {
    /// The size of this record in bytes. Set this field before the call.
    pub size: usize,
    /// The number of messages that were dropped because their id has no handler, and of notifications that were dropped because
    /// there is no handler.
    pub unknown_ids: u64,
    /// The number of dropped messages that were malformed messages of the library's protocols, or replies to operations that had
    /// already ended.
    pub malformed: u64,
    /// The number of messages by which peers requested puts, gets and atomics that no module performs for them, or that are faster
    /// by message.
    pub emulated: u64,
    /// The number of pieces of peers' large puts and gets that this worker copied for the peers.
    pub assisted_chunks: u64,
    /// The number of connections established with peers, by modules that connect to an endpoint.
    pub connections: u64,
    /// The number of connections that such modules failed to establish.
    pub failed_connections: u64,
    /// The number of wire-up messages that were sent again because no reply arrived.
    pub wireup_retransmissions: u64,
    /// The number of connection requests that were rejected.
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
        // SAFETY: the caller guarantees that its record is null or valid during this call.
        unsafe { records::write(counters, &found) }
    }))
}
