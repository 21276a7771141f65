//! What stands for an address or a key in few bytes, and who is asked for the rest.

use super::bytes::{Room, bytes};
use super::context::keep;
use super::endpoint::{EndpointHandle, EndpointState};
use super::enter::{guarded, object};
use super::error::{answer, done};
use super::how::{self, How};
use super::memory::{RegionHandle, RegionObject};
use super::put::{KeyHandle, KeyObject};
use super::records::{out, out_handle};
use super::table::Handle;
use super::worker::{WorkerHandle, WorkerState, state_of};
use std::ffi::c_void;
use tieline::{KeyHandle as Number, KeyLookup, WorkerName};

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
        let made = state.drive(|worker| state.endpoint(worker.endpoint_by_name(&name)?))?;
        out.set(Handle::<EndpointState>::from_bits(made).to_c());
        Ok(())
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
        let (told, out) = (how::read(how, 0)?, out_handle(key)?);
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
