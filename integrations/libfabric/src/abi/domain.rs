//! Domains.

use super::enter::enter;
use super::fabric;
use super::object::{Table, common, head, inner, make, no_bind, no_control, release};
use super::wait::Driver;
use super::{atomic, counter, cq, endpoint, library, memory, poll, vector};
use crate::domain::{Choices, Domain};
use core::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use tieline_libfabric_abi::*;

/// A domain, and what the interface keeps beside it.
pub(super) struct Opened {
    domain: Rc<Domain>,
    fabric: *mut fid_fabric,
    /// The thread of a domain with automatic progress.
    driver: Option<Driver>,
}

pub(super) static COMMON: Table<fi_ops> = common(close, no_bind, no_control);
pub(super) static OPS: Table<fi_ops_domain> = Table(fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open: vector::open,
    cq_open: cq::open,
    endpoint: endpoint::open,
    scalable_ep: Some(no_scalable),
    cntr_open: Some(counter::open),
    poll_open: Some(poll::open),
    stx_ctx: Some(no_stx),
    srx_ctx: Some(no_srx),
    query_atomic: Some(atomic::query),
    query_collective: Some(no_collective),
    endpoint2: Some(endpoint2),
});

pub(super) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    out: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's record is valid, with all of its parts.
    let attr = unsafe { (*info).domain_attr.as_ref() };
    let Some(attr) = attr else { return -FI_EINVAL };
    let choices = Choices {
        own_keys: attr.mr_mode & (FI_MR_BASIC | FI_MR_PROV_KEY) != 0,
        virtual_addresses: attr.mr_mode & (FI_MR_BASIC | FI_MR_VIRT_ADDR) != 0,
        auto: attr.data_progress == FI_PROGRESS_AUTO || attr.control_progress == FI_PROGRESS_AUTO,
        is_shared: attr.threading != FI_THREAD_DOMAIN,
    };
    let opened = match catch_unwind(AssertUnwindSafe(|| Domain::open(choices))) {
        Ok(Ok(domain)) => domain,
        Ok(Err((failed, text))) => {
            library::warn(&text);
            return -failed.error;
        }
        Err(_) => return -FI_EOTHER,
    };
    let domain = Rc::new(opened);
    let driver = match choices.auto.then(|| Driver::start(&domain)).transpose() {
        Ok(driver) => driver,
        Err(error) => return -error.raw_os_error().unwrap_or(FI_ENOMEM),
    };
    // SAFETY: the fabric is one of this provider's.
    let _ = unsafe { fabric::of(fabric) }.users.fetch_add(1, Ordering::AcqRel);
    let record = fid_domain {
        fid: head(FI_CLASS_DOMAIN, context, &COMMON),
        ops: OPS.at(),
        mr: memory::OPS.at(),
    };
    // SAFETY: the caller passes room for one address.
    unsafe { *out = make(record, Opened { domain, fabric, driver }) };
    0
}

/// Returns the domain of a record.
///
/// # Safety
/// The record is one of this provider's domains.
pub(super) unsafe fn of<'a>(domain: *mut fid_domain) -> &'a Rc<Domain> {
    // SAFETY: the caller's promise.
    &unsafe { inner::<fid_domain, Opened>(domain) }.domain
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    let at: *mut fid_domain = fid.cast();
    // SAFETY: the record is a domain.
    let opened = unsafe { inner::<fid_domain, Opened>(at) };
    let is_used = {
        let _guard = opened.domain.gate.enter();
        opened.domain.users.get() > 0
    };
    if is_used {
        return -FI_EBUSY;
    }
    if let Some(driver) = &opened.driver {
        driver.stop();
    }
    let fabric = opened.fabric;
    // A panic while the context closes must not reach the caller.
    let closed = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the caller gives the object up, and no thread of the provider uses it any more.
        unsafe { release::<fid_domain, Opened>(at) };
    }));
    // SAFETY: a fabric stays open while it has domains.
    let _ = unsafe { fabric::of(fabric) }.users.fetch_sub(1, Ordering::AcqRel);
    if closed.is_ok() { 0 } else { -FI_EOTHER }
}

unsafe extern "C" fn endpoint2(
    domain: *mut fid_domain,
    info: *mut fi_info,
    out: *mut *mut fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments are those of the older call.
    if flags == 0 { unsafe { endpoint::open(domain, info, out, context) } } else { -FI_ENOSYS }
}

unsafe extern "C" fn no_scalable(
    _: *mut fid_domain,
    _: *mut fi_info,
    _: *mut *mut fid_ep,
    _: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn no_stx(
    _: *mut fid_domain,
    _: *mut fi_tx_attr,
    _: *mut *mut fid,
    _: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn no_srx(
    _: *mut fid_domain,
    _: *mut fi_rx_attr,
    _: *mut *mut fid_ep,
    _: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn no_collective(_: *mut fid_domain, _: c_int, _: *mut c_void, _: u64) -> c_int {
    -FI_ENOSYS
}

/// Runs a call of a domain under its lock.
///
/// # Safety
/// The record is one of this provider's domains.
pub(super) unsafe fn within(
    domain: *mut fid_domain,
    body: impl FnOnce(&Rc<Domain>) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let domain = unsafe { of(domain) };
    enter(domain, || body(domain))
}
