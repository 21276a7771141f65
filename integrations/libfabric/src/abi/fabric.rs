//! Fabrics.

use super::enter::guard;
use super::object::{Table, common, head, inner, make, no_bind, no_control, release};
use super::{cq, domain, eq};
use core::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use tieline_libfabric_abi::*;

/// A fabric.
#[derive(Debug, Default)]
pub(super) struct Fabric {
    /// The number of open domains and event queues. Any thread may open and close them.
    pub(super) users: AtomicUsize,
}

static COMMON: Table<fi_ops> = common(close, no_bind, no_control);
pub(super) static OPS: Table<fi_ops_fabric> = Table(fi_ops_fabric {
    size: size_of::<fi_ops_fabric>(),
    domain: domain::open,
    passive_ep: Some(no_passive),
    eq_open: Some(eq::open),
    wait_open: Some(no_wait),
    trywait,
    domain2: Some(domain2),
});

pub(super) unsafe extern "C" fn open(
    _: *mut fi_fabric_attr,
    out: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        let fid = head(FI_CLASS_FABRIC, context, &COMMON);
        let record = fid_fabric { fid, ops: OPS.at(), api_version: API };
        // SAFETY: libfabric passes room for one address.
        unsafe { *out = make(record, Fabric::default()) };
        0
    })
}

/// Returns the fabric of a record.
///
/// # Safety
/// The record is one of this provider's fabrics.
pub(super) unsafe fn of<'a>(fabric: *mut fid_fabric) -> &'a Fabric {
    // SAFETY: the caller's promise.
    unsafe { inner::<fid_fabric, Fabric>(fabric) }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    let fabric: *mut fid_fabric = fid.cast();
    // SAFETY: the record is a fabric, which the caller gives up.
    unsafe {
        if of(fabric).users.load(Ordering::Acquire) > 0 {
            return -FI_EBUSY;
        }
        release::<fid_fabric, Fabric>(fabric);
    }
    0
}

unsafe extern "C" fn domain2(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    out: *mut *mut fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments are those of the older call.
    if flags == 0 { unsafe { domain::open(fabric, info, out, context) } } else { -FI_ENOSYS }
}

unsafe extern "C" fn no_passive(
    _: *mut fid_fabric,
    _: *mut fi_info,
    _: *mut *mut fid,
    _: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn no_wait(_: *mut fid_fabric, _: *mut c_void, _: *mut *mut fid) -> c_int {
    -FI_ENOSYS
}

/// Prepares a sleep on the descriptors of some objects. `-FI_EAGAIN`: there is something to do first.
unsafe extern "C" fn trywait(_: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    let mut answer = 0;
    for at in 0..count.max(0) as usize {
        // SAFETY: the caller's list has `count` objects.
        let object = unsafe { *fids.add(at) };
        // SAFETY: as above; the class tells the type.
        let said = unsafe {
            match (*object).fclass {
                FI_CLASS_CQ => cq::trywait(object.cast()),
                FI_CLASS_EQ => eq::trywait(object.cast()),
                FI_CLASS_CNTR => 0,
                _ => -FI_EINVAL,
            }
        };
        if said != 0 && answer == 0 {
            answer = said;
        }
    }
    answer
}
