//! The shims of a connector.

use super::interface::{armed, descriptor};
use super::*;
use crate::Events;
use crate::provider::Connector;
use core::mem::MaybeUninit;

pub(super) unsafe extern "C" fn connector_poll<C: Connector>(
    connector: *mut c_void,
    out: *mut Event,
    max: u32,
) -> i64 {
    // SAFETY: the handle is that of an open connector.
    let this = unsafe { shared::<C>(connector) };
    guarded(this.poisoned, || {
        // SAFETY: the core guarantees its array of `max` events, which need not be initialised.
        let slots = unsafe {
            core::slice::from_raw_parts_mut(out.cast::<MaybeUninit<Event>>(), max as usize)
        };
        let mut events = Events::new(slots);
        this.inner.poll(&mut events)?;
        Ok(events.len as i64)
    })
}

pub(super) unsafe extern "C" fn connector_address<C: Connector>(
    connector: *mut c_void,
    out: *mut u8,
    capacity: usize,
) -> i64 {
    // SAFETY: the handle is that of an open connector.
    let this = unsafe { shared::<C>(connector) };
    // SAFETY: the core guarantees its buffer.
    guarded(this.poisoned, || Ok(unsafe { write_bytes(&this.inner.address(), out, capacity) }))
}

pub(super) unsafe extern "C" fn connector_reachable<C: Connector>(
    connector: *mut c_void,
    address: *const u8,
    len: usize,
) -> i32 {
    // SAFETY: the handle is that of an open connector.
    let this = unsafe { shared::<C>(connector) };
    // SAFETY: the address is borrowed for the call.
    let address = unsafe { bytes(address, len) };
    code(guarded(this.poisoned, || this.inner.reachable(address).map(|()| 0)))
}

pub(super) unsafe extern "C" fn connector_send<C: Connector>(
    connector: *mut c_void,
    address: *const u8,
    address_len: usize,
    datagram: *const u8,
    len: usize,
) -> i32 {
    // SAFETY: the handle is that of an open connector.
    let this = unsafe { shared::<C>(connector) };
    code(guarded(this.poisoned, || {
        // SAFETY: both are borrowed for the call.
        let (address, datagram) = unsafe { (bytes(address, address_len), bytes(datagram, len)) };
        this.inner.send(address, datagram)?;
        Ok(0)
    }))
}

pub(super) unsafe extern "C" fn connector_arm<C: Connector>(connector: *mut c_void) -> i32 {
    // SAFETY: the handle is that of an open connector.
    let this = unsafe { shared::<C>(connector) };
    code(guarded(this.poisoned, || armed(this.inner.arm())))
}

pub(super) unsafe extern "C" fn connector_event_fd<C: Connector>(connector: *mut c_void) -> i32 {
    // SAFETY: the handle is that of an open connector.
    let this = unsafe { shared::<C>(connector) };
    code(guarded(this.poisoned, || descriptor(this.inner.event_fd())))
}
