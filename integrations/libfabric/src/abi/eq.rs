//! Event queues. Nothing that this provider offers reports an event, so a queue has the application's own events only.

use super::enter::guard;
use super::fabric;
use super::object::{Table, common, head, inner, make, no_bind, release};
use super::wait::Waiter;
use core::ffi::{c_char, c_int, c_void};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tieline_libfabric_abi::*;

/// An event queue.
struct Eq {
    fabric: *mut fid_fabric,
    events: Mutex<VecDeque<(u32, Vec<u8>)>>,
    waiter: Waiter,
}

static COMMON: Table<fi_ops> = common(close, no_bind, control);
static OPS: Table<fi_ops_eq> = Table(fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read,
    readerr,
    write: Some(write),
    sread: Some(sread),
    strerror,
});

pub(super) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    attr: *mut fi_eq_attr,
    out: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the attributes are null or a valid record, of which the fields of API 1.17 are read.
        let wait = if attr.is_null() { FI_WAIT_NONE } else { unsafe { (*attr).wait_obj } };
        if !matches!(wait, FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_FD | FI_WAIT_YIELD) {
            return -FI_ENOSYS;
        }
        let waiter = match Waiter::open() {
            Ok(waiter) => waiter,
            Err(error) => return -error.raw_os_error().unwrap_or(FI_ENOMEM),
        };
        // SAFETY: the fabric is one of this provider's.
        let _ = unsafe { fabric::of(fabric) }.users.fetch_add(1, Ordering::AcqRel);
        let record = fid_eq { fid: head(FI_CLASS_EQ, context, &COMMON), ops: OPS.at() };
        // SAFETY: the caller passes room for one address.
        unsafe { *out = make(record, Eq { fabric, events: Mutex::default(), waiter }) };
        0
    })
}

unsafe fn of<'a>(eq: *mut fid_eq) -> &'a Eq {
    // SAFETY: the record is one of this provider's event queues.
    unsafe { inner::<fid_eq, Eq>(eq) }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    let eq: *mut fid_eq = fid.cast();
    // SAFETY: the record is an event queue, which the caller gives up; its fabric is open.
    unsafe {
        let _ = fabric::of(of(eq).fabric).users.fetch_sub(1, Ordering::AcqRel);
        release::<fid_eq, Eq>(eq);
    }
    0
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    if command != FI_GETWAIT {
        return -FI_ENOSYS;
    }
    // SAFETY: the record is an event queue, and `arg` has room for a descriptor.
    unsafe { *arg.cast::<c_int>() = of(fid.cast()).waiter.descriptor() };
    0
}

/// Checks whether there is no event.
pub(super) unsafe fn trywait(eq: *mut fid_eq) -> c_int {
    // SAFETY: the record is one of this provider's event queues.
    let eq = unsafe { of(eq) };
    let events = eq.events.lock().unwrap_or_else(PoisonError::into_inner);
    if events.is_empty() {
        eq.waiter.arm();
        0
    } else {
        -FI_EAGAIN
    }
}

const PEEK: u64 = FI_PEEK;

unsafe extern "C" fn read(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> isize {
    guard(|| {
        // SAFETY: the record is one of this provider's event queues.
        let eq = unsafe { of(eq) };
        let mut events = eq.events.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((kind, bytes)) = events.front() else { return -FI_EAGAIN as isize };
        if bytes.len() > len {
            return -FI_ETOOSMALL as isize;
        }
        let count = bytes.len();
        // SAFETY: the caller's buffer has `len` bytes, and `event` has room for a number.
        unsafe {
            *event = *kind;
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast(), count);
        }
        if flags & PEEK == 0 {
            let _ = events.pop_front();
        }
        count as isize
    })
}

unsafe extern "C" fn readerr(_: *mut fid_eq, _: *mut fi_eq_err_entry, _: u64) -> isize {
    -FI_EAGAIN as isize
}

unsafe extern "C" fn write(
    eq: *mut fid_eq,
    event: u32,
    buf: *const c_void,
    len: usize,
    _: u64,
) -> isize {
    guard(|| {
        // SAFETY: the record is one of this provider's event queues; the caller's buffer has `len` bytes.
        let (eq, bytes) = unsafe { (of(eq), core::slice::from_raw_parts(buf.cast::<u8>(), len)) };
        let mut events = eq.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.push_back((event, bytes.to_vec()));
        eq.waiter.wake();
        len as isize
    })
}

unsafe extern "C" fn sread(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    let until = u64::try_from(timeout).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
    loop {
        // SAFETY: the caller's arguments are those of the call that does not wait.
        let said = unsafe { read(eq, event, buf, len, flags) };
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if said != -FI_EAGAIN as isize || left == Some(Duration::ZERO) {
            return said;
        }
        // SAFETY: the record is one of this provider's event queues.
        unsafe {
            if trywait(eq) == 0 {
                of(eq).waiter.sleep(left.unwrap_or(Duration::from_secs(1)));
            }
        }
    }
}

unsafe extern "C" fn strerror(
    _: *mut fid_eq,
    _: c_int,
    _: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: the caller's buffer is null or has `len` bytes.
    unsafe { super::cq::write_text("no error", buf, len) }
}
