//! Collectives are not offered. Applications call the slots without a check, so each one refuses.

use super::object::Table;
use core::ffi::{c_int, c_void};
use tieline_libfabric_abi::*;

pub(super) static OPS: Table<fi_ops_collective> = Table(fi_ops_collective {
    size: size_of::<fi_ops_collective>(),
    barrier,
    broadcast,
    alltoall: all,
    allreduce: reduce_all,
    allgather: all,
    reduce_scatter: reduce_all,
    reduce,
    scatter: rooted,
    gather: rooted,
    msg,
    barrier2,
});

const NO: isize = -FI_ENOSYS as isize;

unsafe extern "C" fn barrier(_: *mut fid_ep, _: u64, _: *mut c_void) -> isize {
    NO
}

unsafe extern "C" fn barrier2(_: *mut fid_ep, _: u64, _: u64, _: *mut c_void) -> isize {
    NO
}

unsafe extern "C" fn broadcast(
    _: *mut fid_ep,
    _: *mut c_void,
    _: usize,
    _: *mut c_void,
    _: u64,
    _: u64,
    _: c_int,
    _: u64,
    _: *mut c_void,
) -> isize {
    NO
}

unsafe extern "C" fn all(
    _: *mut fid_ep,
    _: *const c_void,
    _: usize,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    _: u64,
    _: c_int,
    _: u64,
    _: *mut c_void,
) -> isize {
    NO
}

unsafe extern "C" fn reduce_all(
    _: *mut fid_ep,
    _: *const c_void,
    _: usize,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    _: u64,
    _: c_int,
    _: c_int,
    _: u64,
    _: *mut c_void,
) -> isize {
    NO
}

unsafe extern "C" fn reduce(
    _: *mut fid_ep,
    _: *const c_void,
    _: usize,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    _: u64,
    _: u64,
    _: c_int,
    _: c_int,
    _: u64,
    _: *mut c_void,
) -> isize {
    NO
}

unsafe extern "C" fn rooted(
    _: *mut fid_ep,
    _: *const c_void,
    _: usize,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    _: u64,
    _: u64,
    _: c_int,
    _: u64,
    _: *mut c_void,
) -> isize {
    NO
}

unsafe extern "C" fn msg(
    _: *mut fid_ep,
    _: *const c_void,
    _: *mut fi_ioc,
    _: *mut *mut c_void,
    _: usize,
    _: u64,
) -> isize {
    NO
}
