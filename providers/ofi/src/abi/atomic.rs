//! The records of atomics.

#![allow(non_camel_case_types)]

use super::{fid_ep, unused};
use core::ffi::{c_int, c_void};

/// A piece of local memory, in elements.
#[repr(C)]
pub(crate) struct fi_ioc {
    pub(crate) addr: *mut c_void,
    pub(crate) count: usize,
}

#[repr(C)]
pub(crate) struct fi_rma_ioc {
    pub(crate) addr: u64,
    pub(crate) count: usize,
    pub(crate) key: u64,
}

#[repr(C)]
pub(crate) struct fi_msg_atomic {
    pub(crate) msg_iov: *const fi_ioc,
    pub(crate) desc: *mut *mut c_void,
    pub(crate) iov_count: usize,
    pub(crate) addr: u64,
    pub(crate) rma_iov: *const fi_rma_ioc,
    pub(crate) rma_iov_count: usize,
    pub(crate) datatype: c_int,
    pub(crate) op: c_int,
    pub(crate) context: *mut c_void,
    pub(crate) data: u64,
}

/// A query for the number of elements of a type that one operation supports.
pub(crate) type Counted = unsafe extern "C" fn(*mut fid_ep, c_int, c_int, *mut usize) -> c_int;

#[repr(C)]
pub(crate) struct fi_ops_atomic {
    pub(crate) size: usize,
    pub(crate) write: unused,
    pub(crate) writev: unused,
    pub(crate) writemsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_atomic, u64) -> isize,
    pub(crate) inject: unused,
    pub(crate) readwrite: unused,
    pub(crate) readwritev: unused,
    pub(crate) readwritemsg: unsafe extern "C" fn(
        *mut fid_ep,
        *const fi_msg_atomic,
        *mut fi_ioc,
        *mut *mut c_void,
        usize,
        u64,
    ) -> isize,
    pub(crate) compwrite: unused,
    pub(crate) compwritev: unused,
    pub(crate) compwritemsg: unsafe extern "C" fn(
        *mut fid_ep,
        *const fi_msg_atomic,
        *const fi_ioc,
        *mut *mut c_void,
        usize,
        *mut fi_ioc,
        *mut *mut c_void,
        usize,
        u64,
    ) -> isize,
    pub(crate) writevalid: Counted,
    pub(crate) readwritevalid: Counted,
    pub(crate) compwritevalid: Counted,
}
