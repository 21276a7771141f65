//! The record of a provider, and the table of collectives. The generated declarations of other crates lack them.

use super::{fi_fabric_attr, fi_info, fi_ioc, fid_ep, fid_fabric};
use core::ffi::{c_char, c_int, c_void};

#[repr(C)]
pub struct fi_ops_collective {
    pub size: usize,
    pub barrier: unsafe extern "C" fn(*mut fid_ep, u64, *mut c_void) -> isize,
    pub broadcast: unsafe extern "C" fn(
        *mut fid_ep,
        *mut c_void,
        usize,
        *mut c_void,
        u64,
        u64,
        c_int,
        u64,
        *mut c_void,
    ) -> isize,
    pub alltoall: All,
    pub allreduce: Reduce,
    pub allgather: All,
    pub reduce_scatter: Reduce,
    pub reduce: unsafe extern "C" fn(
        *mut fid_ep,
        *const c_void,
        usize,
        *mut c_void,
        *mut c_void,
        *mut c_void,
        u64,
        u64,
        c_int,
        c_int,
        u64,
        *mut c_void,
    ) -> isize,
    pub scatter: Rooted,
    pub gather: Rooted,
    pub msg: unsafe extern "C" fn(
        *mut fid_ep,
        *const c_void,
        *mut fi_ioc,
        *mut *mut c_void,
        usize,
        u64,
    ) -> isize,
    pub barrier2: unsafe extern "C" fn(*mut fid_ep, u64, u64, *mut c_void) -> isize,
}

/// A collective without an operation and without a root.
pub type All = unsafe extern "C" fn(
    *mut fid_ep,
    *const c_void,
    usize,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    u64,
    c_int,
    u64,
    *mut c_void,
) -> isize;
/// A collective with an operation.
pub type Reduce = unsafe extern "C" fn(
    *mut fid_ep,
    *const c_void,
    usize,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    u64,
    c_int,
    c_int,
    u64,
    *mut c_void,
) -> isize;
/// A collective with a root.
pub type Rooted = unsafe extern "C" fn(
    *mut fid_ep,
    *const c_void,
    usize,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    u64,
    u64,
    c_int,
    u64,
    *mut c_void,
) -> isize;

/// The record that a provider's `fi_prov_ini` returns.
#[repr(C)]
pub struct fi_provider {
    pub version: u32,
    pub fi_version: u32,
    pub context: [*mut c_void; 4],
    pub name: *const c_char,
    pub getinfo: unsafe extern "C" fn(
        u32,
        *const c_char,
        *const c_char,
        u64,
        *const fi_info,
        *mut *mut fi_info,
    ) -> c_int,
    pub fabric:
        unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int,
    pub cleanup: unsafe extern "C" fn(),
}
