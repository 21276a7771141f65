//! The simulated library's queue of events that belong to no operation.

#![allow(unsafe_code)]

use crate::abi::*;
use crate::double::standing::sys::close_below;
use crate::double::sys::{head, new, ops, table};
use crate::double::world::world;
use core::ffi::{c_char, c_int, c_void};

/// The class of a queue of events that belong to no operation.
pub(in crate::double) const EQ: usize = 7;

pub(in crate::double) unsafe extern "C" fn eq_open(
    _: *mut fid_fabric,
    _: *mut fi_eq_attr,
    out: *mut *mut fid_eq,
    _: *mut c_void,
) -> c_int {
    if !world(|world| world.manners.has_notices) {
        return -libc::ENOSYS;
    }
    let eq = fid_eq {
        fid: fid { fclass: EQ, ..head(fi_ops { close: close_below::<fid_eq>, ..ops::<fid_eq>() }) },
        ops: table(fi_ops_eq {
            size: size_of::<fi_ops_eq>(),
            read: read_notice,
            readerr: read_trouble,
            write: None,
            sread: None,
            strerror: name_trouble,
        }),
    };
    // SAFETY: `out` has room for one pointer.
    unsafe { *out = new(eq, 0) };
    0
}

unsafe extern "C" fn read_notice(
    _: *mut fid_eq,
    _: *mut u32,
    _: *mut c_void,
    _: usize,
    _: u64,
) -> isize {
    let trouble = world(|world| {
        world.looks += 1;
        world.manners.trouble.is_some()
    });
    -(if trouble { FI_EAVAIL } else { FI_EAGAIN } as isize)
}

unsafe extern "C" fn read_trouble(_: *mut fid_eq, out: *mut fi_eq_err_entry, _: u64) -> isize {
    let Some(error) = world(|world| world.manners.trouble.take()) else { return 0 };
    // SAFETY: the record is complete.
    unsafe { (*out).err = error };
    1
}

unsafe extern "C" fn name_trouble(
    _: *mut fid_eq,
    _: c_int,
    _: *const c_void,
    _: *mut c_char,
    _: usize,
) -> *const c_char {
    c"as played".as_ptr()
}
