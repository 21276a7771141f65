//! Short names for worker addresses and region keys, and their resolution.

use super::bytes::{Room, bytes};
use super::context::{end_of_worker, keep, take};
use super::endpoint::{EndpointHandle, EndpointState};
use super::enter::{guarded, object};
use super::error::{answer, done};
use super::how::{self, How};
use super::memory::{RegionHandle, RegionObject};
use super::put::{KeyHandle, KeyObject};
use super::records::{out, out_handle};
use super::table::{Handle, Object};
use super::worker::{WorkerHandle, WorkerState, drive, state_of};
use std::ffi::c_void;
use std::sync::Arc;
use tieline::{Endpoint, KeyHandle as Number, KeyLookup, NameCall, PeerId, PostError, WorkerName};

/// A name query in progress.
pub struct NameCallHandle(());

struct NameCallObject {
    call: NameCall,
    worker: Arc<WorkerState>,
}

impl Object for NameCallObject {
    const KIND: u8 = 12;
    const NAME: &'static str = "a name query";
}

/// Writes a name of this worker, at most 48 bytes. A name serves channels that cannot carry a whole address. `len` has the same
/// meaning as for tieline_worker_address. Keep the name as secret as the address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_name(
    worker: *const WorkerHandle,
    name: *mut c_void,
    len: *mut usize,
) -> i32 {
    done(guarded(|| {
        let room = Room::new(name, len)?;
        let name = object::<WorkerState, _>(worker)?.post(|worker| Ok(worker.name()?))?;
        room.fill(name.as_bytes())
    }))
}

/// Writes the name of a peer's worker. The library sends nothing for this call: the name is a part of the peer's address. A worker that
/// gets its name after it has given its address sends the name once to each connected peer, whose progress receives it. A peer without
/// a known name has a name of length 0. `len` has the same meaning as for tieline_worker_address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_name_of_peer(
    worker: *const WorkerHandle,
    peer: u32,
    name: *mut c_void,
    len: *mut usize,
) -> i32 {
    done(guarded(|| {
        let room = Room::new(name, len)?;
        let state = object::<WorkerState, _>(worker)?;
        let known = state.post(|worker| Ok(worker.name_of_peer(PeerId::from_number(peer))?))?;
        room.fill(known.as_ref().map_or(&[], |name| name.as_bytes()))
    }))
}

/// Opens an endpoint to the worker with this name. The call makes progress until the address is resolved, for at most
/// TIELINE_CONNECT_TIMEOUT. Returns TIELINE_BUSY in a handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_connect_by_name(
    worker: *const WorkerHandle,
    name: *const c_void,
    len: usize,
    endpoint: *mut *mut EndpointHandle,
) -> i32 {
    done(guarded(|| {
        let (out, state) = (out_handle(endpoint)?, state_of(worker)?);
        let name = WorkerName::from_bytes(bytes(name, len)?)?;
        let made = drive(worker, |_, worker| state.endpoint(worker.endpoint_by_name(&name)?))?;
        out.set(Handle::<EndpointState>::from_bits(made).to_c());
        Ok(())
    }))
}

/// Starts a query for the worker with this name, and returns without waiting. Advance the query with tieline_name_call_test.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_worker_ask_name(
    worker: *const WorkerHandle,
    name: *const c_void,
    len: usize,
    call: *mut *mut NameCallHandle,
) -> i32 {
    done(guarded(|| {
        let (out, worker) = (out_handle(call)?, state_of(worker)?);
        let name = WorkerName::from_bytes(bytes(name, len)?)?;
        let call = worker.post(|inner| Ok(inner.ask_name(&name)?))?;
        out.set(keep(NameCallObject { call, worker })?.to_c());
        Ok(())
    }))
}

/// Advances a query; no other call does. TIELINE_PENDING: call again, with progress in between. TIELINE_OK: `endpoint` is set. A
/// failure states why the name was not resolved. Either result is reported once. The handle stays valid until it is dropped. While
/// a query is open, the worker's descriptor becomes readable every millisecond: call this after each sleep.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_name_call_test(
    call: *const NameCallHandle,
    endpoint: *mut *mut EndpointHandle,
) -> i32 {
    answer(guarded(|| {
        let out = out_handle(endpoint)?;
        let NameCallObject { call, worker } = object::<NameCallObject, _>(call)?;
        worker.mark.post(|| {
            let Some(found) = call.test() else { return Ok(1) };
            out.set(Handle::<EndpointState>::from_bits(worker.endpoint(found?)?).to_c());
            Ok(0)
        })
    }))
}

/// Abandons a query in progress, or releases a query that has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_name_call_drop(call: *mut NameCallHandle) -> i32 {
    done(guarded(|| {
        let worker = |object: &NameCallObject| object.worker.clone();
        end_of_worker(call, worker, |call| take::<NameCallObject, _>(call).map(drop))
    }))
}

/// Writes an eight-byte handle of a region's key. A process that has the handle and an endpoint to a worker of this context can get
/// the key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_region_handle(
    region: *const RegionHandle,
    handle: *mut u64,
) -> i32 {
    done(guarded(|| {
        let out = out(handle, 0)?;
        let number = object::<RegionObject, _>(region)?.region.handle()?;
        out.set(u64::from_le_bytes(number.to_bytes()));
        Ok(())
    }))
}

/// Resolves a region handle of the peer to a key. TIELINE_OK: the key was known, and `key` is set. TIELINE_PENDING: a query to the
/// owner is in progress; when that operation has completed successfully, call again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_endpoint_key_by_handle(
    endpoint: *const EndpointHandle,
    handle: u64,
    how: *const How,
    key: *mut *mut KeyHandle,
    request: *mut u64,
) -> i32 {
    let number = Number::from_bytes(handle.to_le_bytes());
    look_up(endpoint, how, key, request, |endpoint| endpoint.key_by_handle(number))
}

/// Publishes a region's key under a number of the caller's choice, in a context with TIELINE_CONTEXT_PUBLISH_KEYS. Peers then get the
/// key by tieline_endpoint_key_by_number, until tieline_region_unpublish or the end of the region. Every process that can connect to a
/// worker of the context may request it. Returns TIELINE_BUSY if another region of the context has the number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_region_publish(region: *const RegionHandle, number: u64) -> i32 {
    done(guarded(|| Ok(object::<RegionObject, _>(region)?.region.publish(number)?)))
}

/// Ends the publication of a region under a number. Keys that peers have received stay valid until the region is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_region_unpublish(region: *const RegionHandle, number: u64) -> i32 {
    done(guarded(|| Ok(object::<RegionObject, _>(region)?.region.unpublish(number)?)))
}

/// Resolves a number under which the peer has published a region, like tieline_endpoint_key_by_handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_endpoint_key_by_number(
    endpoint: *const EndpointHandle,
    number: u64,
    how: *const How,
    key: *mut *mut KeyHandle,
    request: *mut u64,
) -> i32 {
    look_up(endpoint, how, key, request, |endpoint| endpoint.key_by_number(number))
}

fn look_up(
    endpoint: *const EndpointHandle,
    how: *const How,
    key: *mut *mut KeyHandle,
    request: *mut u64,
    find: impl FnOnce(&Endpoint) -> Result<KeyLookup, PostError>,
) -> i32 {
    how::no_number(request);
    answer(object::<EndpointState, _>(endpoint).and_then(|state| {
        let (told, out) = (how::read(how, 0, &state.worker)?, out_handle(key)?);
        state.worker.mark.post(|| {
            match find(state.get()?)? {
                KeyLookup::Known(key) => {
                    out.set(keep(KeyObject { key, endpoint: state.share() })?.to_c());
                    Ok(0)
                }
                // The query may already be answered here: the next call finds the key.
                KeyLookup::Asked(outcome) => {
                    how::posted(&state.worker, outcome, &told, request).map(|code| code.max(1))
                }
            }
        })
    }))
}
