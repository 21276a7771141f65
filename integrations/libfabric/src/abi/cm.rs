//! The address of an endpoint. There are no connections that an application manages.

use super::endpoint::of;
use super::object::Table;
use crate::address::ADDRESS_LEN;
use core::ffi::{c_int, c_void};
use tieline_libfabric_abi::*;

pub(super) static OPS: Table<fi_ops_cm> = Table(fi_ops_cm {
    size: size_of::<fi_ops_cm>(),
    setname: Some(no_setname),
    getname,
    getpeer: Some(no_getpeer),
    connect: Some(no_connect),
    listen: Some(no_listen),
    accept: Some(no_accept),
    reject: Some(no_reject),
    shutdown: Some(no_shutdown),
    join: Some(no_join),
});

unsafe extern "C" fn getname(fid: *mut fid, address: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: the record is an endpoint; the caller's buffer has `len` bytes.
    unsafe {
        let room = *len;
        *len = ADDRESS_LEN;
        if room < ADDRESS_LEN || address.is_null() {
            return -FI_ETOOSMALL;
        }
        let own = of(fid.cast()).address();
        core::ptr::copy_nonoverlapping(own.as_ptr(), address.cast(), ADDRESS_LEN);
    }
    0
}

unsafe extern "C" fn no_setname(_: *mut fid, _: *mut c_void, _: usize) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn no_getpeer(_: *mut fid_ep, _: *mut c_void, _: *mut usize) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn no_connect(
    _: *mut fid_ep,
    _: *const c_void,
    _: *const c_void,
    _: usize,
) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn no_listen(_: *mut fid) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn no_accept(_: *mut fid_ep, _: *const c_void, _: usize) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn no_reject(_: *mut fid, _: *mut fid, _: *const c_void, _: usize) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn no_shutdown(_: *mut fid_ep, _: u64) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn no_join(
    _: *mut fid_ep,
    _: *const c_void,
    _: u64,
    _: *mut *mut fid,
    _: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}
