//! What stands for an address or a key in few bytes, and who is asked for the rest.

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
use tieline::{KeyHandle as Number, KeyLookup, NameCall, WorkerName};

/// A question for the worker of a name, on its way.
pub struct NameCallHandle(());

struct NameCallObject {
    call: NameCall,
    worker: Arc<WorkerState>,
}

impl Object for NameCallObject {
    const KIND: u8 = 12;
    const NAME: &'static str = "a question for a name";
}

/// A name of this worker, in 48 bytes at most, for channels that carry no more; `len` as for tieline_worker_address. Keep it as secret as the address.
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

/// An endpoint to the worker of this name: makes progress until its address is there, at most TIELINE_CONNECT_TIMEOUT. TIELINE_BUSY in a handler.
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

/// The same without waiting: asks the worker of this name. tieline_name_call_test goes on with it.
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

/// Goes on with the question: nothing else does. TIELINE_PENDING: call again, with progress between. TIELINE_OK: there is the endpoint. A failure
/// says why there is none. Either is told once; the handle stays until it is dropped.
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

/// Gives the question up, or lets go of one that was answered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_name_call_drop(call: *mut NameCallHandle) -> i32 {
    done(guarded(|| {
        let worker = |object: &NameCallObject| object.worker.clone();
        end_of_worker(call, worker, |call| take::<NameCallObject, _>(call).map(drop))
    }))
}

/// Eight bytes that stand for a region's key: whoever has them and an endpoint to a worker of this context is given the key.
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

/// The key that a handle of the peer's stands for. TIELINE_OK: it was known, and is there. TIELINE_PENDING: its owner is asked; when
/// that operation has ended well, call again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_endpoint_key_by_handle(
    endpoint: *const EndpointHandle,
    handle: u64,
    how: *const How,
    key: *mut *mut KeyHandle,
    request: *mut u64,
) -> i32 {
    answer(object::<EndpointState, _>(endpoint).and_then(|state| {
        let (told, out) = (how::read(how, 0, &state.worker)?, out_handle(key)?);
        state.worker.mark.post(|| {
            how::no_number(request);
            let number = Number::from_bytes(handle.to_le_bytes());
            match state.get()?.key_by_handle(number)? {
                KeyLookup::Known(key) => {
                    out.set(keep(KeyObject { key, endpoint: state.share() })?.to_c());
                    Ok(0)
                }
                // Also where it has been answered by now: the next call finds it.
                KeyLookup::Asked(outcome) => {
                    how::posted(&state.worker, outcome, &told, request).map(|code| code.max(1))
                }
            }
        })
    }))
}
