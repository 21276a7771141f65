//! Dependencies between objects of the simulated library: an object on which another one depends must not be closed.

#![allow(unsafe_code)]

use crate::abi::*;
use crate::double::memory::sys::close_domain;
use crate::double::notices::sys::EQ;
use crate::double::sys::{close, number};
use crate::double::world::{World, world};
use core::ffi::c_int;

/// Closes a queue or a table, on which an endpoint may depend.
pub(in crate::double) unsafe extern "C" fn close_below<T>(fid: *mut fid) -> c_int {
    world(|world| {
        let Some((at, serial)) = world.bound.remove(&fid.addr()) else { return };
        if world.ends[at].open && world.ends[at].serial == serial {
            world.complaints.push("a queue or a table was closed before its endpoint".into());
        }
    });
    // SAFETY: the object is closed once.
    unsafe { close::<T>(fid) }
}

/// Records that a domain depends on a fabric.
pub(in crate::double) fn stands(
    world: &mut World,
    domain: *mut fid_domain,
    fabric: *mut fid_fabric,
) {
    let _ = world.fabrics.insert(domain.addr(), fabric.addr());
}

pub(in crate::double) unsafe extern "C" fn close_domain_below(fid: *mut fid) -> c_int {
    let busy = world(|world| {
        // Closing a domain with an endpoint returns EBUSY (fi_close(3)). A caller that closes the domain's fabric nevertheless
        // would do harm.
        let busy = world.ends.iter().any(|end| end.open && end.domain == fid.addr());
        if busy {
            world.complaints.push("a domain was closed before its endpoints".into());
        } else {
            let _ = world.fabrics.remove(&fid.addr());
        }
        busy
    });
    // SAFETY: the object is closed once.
    if busy { -libc::EBUSY } else { unsafe { close_domain(fid) } }
}

pub(in crate::double) unsafe extern "C" fn close_fabric(fid: *mut fid) -> c_int {
    world(|world| {
        if world.fabrics.values().any(|fabric| *fabric == fid.addr()) {
            world.complaints.push("a fabric was closed before its domains".into());
        }
    });
    // SAFETY: the object is closed once.
    unsafe { close::<fid_fabric>(fid) }
}

/// Binds a completion queue, a table or an event queue to an endpoint.
pub(in crate::double) unsafe extern "C" fn bind_end(
    fid: *mut fid,
    other: *mut fid,
    flags: u64,
) -> c_int {
    let at = number(fid.cast::<fid_ep>()) as usize;
    // SAFETY: `other` is an object, and its first record holds the class.
    let is_events = unsafe { (*other).fclass } == EQ;
    world(|world| {
        if let Some(left) = &mut world.manners.bindings {
            if *left == 0 {
                return -libc::ENOMEM;
            }
            *left -= 1;
        }
        let serial = world.ends[at].serial;
        let _ = world.bound.insert(other.addr(), (at, serial));
        if is_events {
            world.ends[at].has_notices = true;
        } else if flags == 0 {
            world.ends[at].has_table = true;
        } else {
            // SAFETY: an object that is bound with flags is a queue; it gets the number of this endpoint.
            unsafe { crate::double::sys::name_queue(other, at) };
            world.ends[at].room = world.rooms.remove(&other.addr()).unwrap_or(0);
        }
        0
    })
}
