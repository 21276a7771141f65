//! The shims of an interface.

use super::*;
use crate::Events;
use crate::provider::{Armed, Interface};
use core::mem::MaybeUninit;

pub(super) unsafe extern "C" fn poll<I: Interface>(
    interface: *mut c_void,
    out: *mut Event,
    max: u32,
) -> i64 {
    // SAFETY: an open interface's handle.
    let this = unsafe { shared::<I>(interface) };
    hot(this.poisoned, || {
        // SAFETY: the core's array of `max` events, which need not be initialised.
        let slots = unsafe {
            core::slice::from_raw_parts_mut(out.cast::<MaybeUninit<Event>>(), max as usize)
        };
        let mut events = Events::new(slots);
        match this.inner.poll(&mut events) {
            Ok(()) => events.len as i64,
            Err(status) => i64::from(status as i32),
        }
    })
}

pub(super) unsafe extern "C" fn interface_address<I: Interface>(
    interface: *mut c_void,
    out: *mut u8,
    capacity: usize,
) -> i64 {
    // SAFETY: an open interface's handle.
    let this = unsafe { shared::<I>(interface) };
    // SAFETY: the core's buffer.
    guarded(this.poisoned, || Ok(unsafe { write_bytes(&this.inner.address(), out, capacity) }))
}

/// Runs a reachability question and writes the reason of a "no".
///
/// # Safety
/// The arguments are those of the `reachable` slots.
pub(super) unsafe fn answer_reachable(
    poisoned: &AtomicBool,
    reason: *mut u8,
    capacity: usize,
    ask: impl FnOnce() -> Result<(), Failure>,
) -> i32 {
    let result = guarded(poisoned, || ask().map(|()| 0));
    if result < 0 && capacity > 0 {
        LAST_ERROR.with_borrow(|text| {
            let mut end = text.len().min(capacity - 1);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            // SAFETY: `end < capacity`, so the text and a terminating zero fit.
            unsafe {
                ptr::copy_nonoverlapping(text.as_ptr(), reason, end);
                *reason.add(end) = 0;
            }
        });
    }
    code(result)
}

pub(super) unsafe extern "C" fn reachable<I: Interface>(
    interface: *mut c_void,
    address: *const u8,
    len: usize,
    reason: *mut u8,
    capacity: usize,
) -> i32 {
    // SAFETY: an open interface's handle.
    let this = unsafe { shared::<I>(interface) };
    // SAFETY: the core's buffers.
    unsafe {
        answer_reachable(this.poisoned, reason, capacity, || {
            this.inner.reachable(bytes(address, len))
        })
    }
}

pub(super) unsafe extern "C" fn connect<I: Interface>(
    interface: *mut c_void,
    params: *const EndpointParams,
    out: *mut *mut c_void,
) -> i32 {
    // SAFETY: an open interface's handle.
    let this = unsafe { shared::<I>(interface) };
    code(guarded(this.poisoned, || {
        // SAFETY: the core's record.
        let params = unsafe { read_params(params, EndpointParams::empty()) }?;
        understood("flag", params.flags, &[])?;
        // SAFETY: both are borrowed for the call.
        let (address, identity) = unsafe {
            (bytes(params.address, params.address_len), bytes(params.identity, params.identity_len))
        };
        let endpoint = this.inner.connect(address, identity, params.cookie)?;
        // SAFETY: the core's place for the handle.
        unsafe { *out = Shared::into_raw(endpoint, this.poisoned) };
        Ok(0)
    }))
}

pub(super) fn armed(result: Result<Armed, Status>) -> Result<i64, Failure> {
    Ok(match result? {
        Armed::Sleep => 0,
        Armed::Ready => 1,
    })
}

pub(super) fn descriptor(fd: Option<i32>) -> Result<i64, Failure> {
    fd.map(i64::from).ok_or_else(|| Status::Unsupported.into())
}

pub(super) unsafe extern "C" fn arm<I: Interface>(interface: *mut c_void) -> i32 {
    // SAFETY: an open interface's handle.
    let this = unsafe { shared::<I>(interface) };
    code(guarded(this.poisoned, || armed(this.inner.arm())))
}

pub(super) unsafe extern "C" fn event_fd<I: Interface>(interface: *mut c_void) -> i32 {
    // SAFETY: an open interface's handle.
    let this = unsafe { shared::<I>(interface) };
    code(guarded(this.poisoned, || descriptor(this.inner.event_fd())))
}

pub(super) unsafe extern "C" fn release<I: Interface>(interface: *mut c_void, token: u64) {
    // SAFETY: an open interface's handle.
    let this = unsafe { shared::<I>(interface) };
    let _ = guarded(this.poisoned, || {
        this.inner.release(token);
        Ok(0)
    });
}

pub(super) unsafe extern "C" fn hang_up<I: Interface>(interface: *mut c_void, peer: u64) -> i32 {
    // SAFETY: an open interface's handle.
    let this = unsafe { shared::<I>(interface) };
    code(guarded(this.poisoned, || this.inner.hang_up(peer).map(|()| 0).map_err(Failure::from)))
}

pub(super) unsafe extern "C" fn memory<I: Interface>(
    interface: *mut c_void,
    out: *mut MemoryUse,
) -> i32 {
    // SAFETY: an open interface's handle.
    let this = unsafe { shared::<I>(interface) };
    code(guarded(this.poisoned, || {
        let report = this.inner.memory();
        let record = MemoryUse {
            base_bytes: report.base_bytes,
            peer_bytes: report.peer_bytes,
            peers: report.peers,
            buffer_bytes: report.buffer_bytes,
            ..MemoryUse::empty()
        };
        // SAFETY: the core's record, whose `size` it has set.
        unsafe { write_attr(out, &record) };
        Ok(0)
    }))
}
