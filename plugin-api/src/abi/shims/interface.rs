//! The shims of an interface.

use super::*;
use crate::Events;
use crate::provider::{Armed, Endpoint, Interface};
use core::mem::MaybeUninit;

pub(super) unsafe extern "C" fn poll<I: Interface>(
    interface: *mut c_void,
    out: *mut Event,
    max: u32,
) -> i64 {
    if I::POLLS_QUIETLY {
        // SAFETY: the handle is that of an open interface.
        let this = unsafe { shared::<I>(interface) };
        // Registers for the arguments would have to be saved in every call, and few calls need the arguments later.
        let arguments = core::hint::black_box((interface, out, max));
        match hot(this.poisoned, || i64::from(this.inner.poll_quietly())) {
            1 => return 0,
            0 => {
                let (interface, out, max) = arguments;
                // SAFETY: the caller's promise.
                return unsafe { poll_behind::<I>(interface, out, max) };
            }
            failed => return failed,
        }
    }
    if !I::POLLS_AT_ONCE {
        // SAFETY: the caller's promise.
        return unsafe { poll_all::<I>(interface, out, max) };
    }
    if max > 0 {
        // SAFETY: the handle is that of an open interface.
        let this = unsafe { shared::<I>(interface) };
        let count = hot(this.poisoned, || {
            // SAFETY: the core guarantees its array of `max` events, which need not be initialised.
            let first = unsafe { &mut *out.cast::<MaybeUninit<Event>>() };
            i64::from(this.inner.poll_at_once(first))
        });
        if count != 0 {
            return count;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { poll_second::<I>(interface, out, max) }
}

/// Polls after the short form, out of line, so that the short form needs no frame.
///
/// # Safety
/// As for `poll`.
#[inline(never)]
unsafe extern "C" fn poll_second<I: Interface>(
    interface: *mut c_void,
    out: *mut Event,
    max: u32,
) -> i64 {
    if max > 0 {
        // SAFETY: the handle is that of an open interface.
        let this = unsafe { shared::<I>(interface) };
        let count = hot(this.poisoned, || {
            // SAFETY: the core guarantees its array of `max` events, which need not be initialised.
            let first = unsafe { &mut *out.cast::<MaybeUninit<Event>>() };
            i64::from(this.inner.poll_second(first))
        });
        if count != 0 {
            return count;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { poll_behind::<I>(interface, out, max) }
}

/// Does what `poll_all` does, out of line, so that the forms before it need no frame.
///
/// # Safety
/// As for `poll`.
#[inline(never)]
unsafe extern "C" fn poll_behind<I: Interface>(
    interface: *mut c_void,
    out: *mut Event,
    max: u32,
) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { poll_all::<I>(interface, out, max) }
}

/// Polls without the short form.
///
/// # Safety
/// As for `poll`.
#[inline(always)]
unsafe fn poll_all<I: Interface>(interface: *mut c_void, out: *mut Event, max: u32) -> i64 {
    // SAFETY: the handle is that of an open interface.
    let this = unsafe { shared::<I>(interface) };
    hot(this.poisoned, || {
        // SAFETY: the core guarantees its array of `max` events, which need not be initialised.
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
    // SAFETY: the handle is that of an open interface.
    let this = unsafe { shared::<I>(interface) };
    // SAFETY: the core guarantees its buffer.
    guarded(this.poisoned, || Ok(unsafe { write_bytes(&this.inner.address(), out, capacity) }))
}

pub(super) unsafe extern "C" fn reachable<I: Interface>(
    interface: *mut c_void,
    address: *const u8,
    len: usize,
) -> i32 {
    // SAFETY: the handle is that of an open interface.
    let this = unsafe { shared::<I>(interface) };
    // SAFETY: the address is borrowed for the call.
    let address = unsafe { bytes(address, len) };
    code(guarded(this.poisoned, || this.inner.reachable(address).map(|()| 0)))
}

pub(super) unsafe extern "C" fn interface_import_key<I: Interface>(
    interface: *mut c_void,
    params: *const ImportParams,
    out: *mut *mut c_void,
) -> i32 {
    // SAFETY: the handle is that of an open interface.
    let this = unsafe { shared::<I>(interface) };
    code(guarded(this.poisoned, || {
        // SAFETY: the core guarantees its record.
        let params = unsafe { read_params(params, ImportParams::empty()) }?;
        understood("flag", params.flags, 0)?;
        // SAFETY: the bytes are borrowed for the call.
        let key = this.inner.import_key(unsafe { bytes(params.bytes, params.len) })?;
        // SAFETY: the core guarantees the place for the handle.
        unsafe { *out = Box::into_raw(Box::new(key)).cast() };
        Ok(0)
    }))
}

pub(super) unsafe extern "C" fn interface_drop_key<I: Interface>(
    interface: *mut c_void,
    key: *mut c_void,
) {
    // SAFETY: the handle is that of an open interface.
    let this = unsafe { shared::<I>(interface) };
    let _ = guarded(this.poisoned, || {
        // SAFETY: the key came from import_key of this interface, and the core drops it once.
        drop(unsafe { Box::from_raw(key.cast::<<I::Endpoint as Endpoint>::Key>()) });
        Ok(0)
    });
}

pub(super) unsafe extern "C" fn interface_flush<I: Interface>(
    interface: *mut c_void,
    cookie: u64,
) -> i32 {
    // SAFETY: the handle is that of an open interface.
    let this = unsafe { shared::<I>(interface) };
    code(hot(this.poisoned, || posted(this.inner.flush(cookie))))
}

pub(super) unsafe extern "C" fn connect<I: Interface>(
    interface: *mut c_void,
    params: *const EndpointParams,
    out: *mut *mut c_void,
) -> i32 {
    // SAFETY: the handle is that of an open interface.
    let this = unsafe { shared::<I>(interface) };
    code(guarded(this.poisoned, || {
        // SAFETY: the core guarantees its record.
        let params = unsafe { read_params(params, EndpointParams::empty()) }?;
        understood("flag", params.flags, 0)?;
        // SAFETY: both are borrowed for the call.
        let (address, identity) = unsafe {
            (bytes(params.address, params.address_len), bytes(params.identity, params.identity_len))
        };
        let endpoint = this.inner.connect(address, identity, params.cookie)?;
        // SAFETY: the core guarantees the place for the handle.
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
    // SAFETY: the handle is that of an open interface.
    let this = unsafe { shared::<I>(interface) };
    code(guarded(this.poisoned, || armed(this.inner.arm())))
}

pub(super) unsafe extern "C" fn event_fd<I: Interface>(interface: *mut c_void) -> i32 {
    // SAFETY: the handle is that of an open interface.
    let this = unsafe { shared::<I>(interface) };
    code(guarded(this.poisoned, || descriptor(this.inner.event_fd())))
}

pub(super) unsafe extern "C" fn release<I: Interface>(interface: *mut c_void, token: u64) {
    // SAFETY: the handle is that of an open interface.
    let this = unsafe { shared::<I>(interface) };
    let _ = guarded(this.poisoned, || {
        this.inner.release(token);
        Ok(0)
    });
}

pub(super) unsafe extern "C" fn hang_up<I: Interface>(interface: *mut c_void, peer: u64) -> i32 {
    // SAFETY: the handle is that of an open interface.
    let this = unsafe { shared::<I>(interface) };
    code(guarded(this.poisoned, || this.inner.hang_up(peer).map(|()| 0).map_err(Failure::from)))
}

pub(super) unsafe extern "C" fn leave<I: Interface>(interface: *mut c_void) {
    // SAFETY: the handle is that of an open interface.
    let this = unsafe { shared::<I>(interface) };
    let _ = guarded(this.poisoned, || {
        this.inner.leave();
        Ok(0)
    });
}

pub(super) unsafe extern "C" fn watch<I: Interface>(interface: *mut c_void) -> *const WatchList {
    // SAFETY: the handle is that of an open interface.
    let this = unsafe { shared::<I>(interface) };
    let mut list = ptr::null();
    let _ = guarded(this.poisoned, || {
        list = this.inner.watch().map_or(ptr::null(), Watch::as_ptr);
        Ok(0)
    });
    list
}

pub(super) unsafe extern "C" fn memory<I: Interface>(
    interface: *mut c_void,
    out: *mut MemoryUse,
) -> i32 {
    // SAFETY: the handle is that of an open interface.
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
        // SAFETY: the core guarantees its record, whose `size` it has set.
        unsafe { write_attr(out, &record) };
        Ok(0)
    }))
}
