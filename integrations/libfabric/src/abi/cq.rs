//! Completion queues.

use super::domain;
use super::enter::enter;
use super::object::{Table, common, head, inner, make, no_bind, release};
use super::wait::{Waiter, prepare};
use crate::queue::{Cq, Entry, Failure};
use core::ffi::{c_char, c_int, c_void};
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tieline_libfabric_abi::*;

/// The number of progress calls of a waiting call before it sleeps.
const SPINS: usize = 200;
/// The number of reads without an entry after which the domain looks whether the reads come seldom: after a look that found that,
/// and after another one. A look reads the clock.
const UNTIL_LOOK: [u32; 2] = [8, 64];

static COMMON: Table<fi_ops> = common(close, no_bind, control);
static OPS: Table<fi_ops_cq> = Table(fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read,
    readfrom: Some(readfrom),
    readerr,
    sread: Some(sread),
    sreadfrom: Some(sreadfrom),
    signal: Some(signal),
    strerror,
});

/// The fields of `fi_cq_err_entry` in API 1.5 and later. Callers of later versions have further fields, and stay responsible for
/// them.
#[repr(C)]
struct ErrorEntry {
    op_context: *mut c_void,
    flags: u64,
    len: usize,
    buf: *mut c_void,
    data: u64,
    tag: u64,
    olen: usize,
    err: c_int,
    prov_errno: c_int,
    err_data: *mut c_void,
    err_data_size: usize,
}

pub(super) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    out: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the attributes are null or a valid record, of which the fields of API 1.17 are read.
    let (size, format, wait) = match unsafe { attr.as_ref() } {
        Some(attr) => (attr.size, attr.format, attr.wait_obj),
        None => (0, FI_CQ_FORMAT_UNSPEC, FI_WAIT_NONE),
    };
    let format = if format == FI_CQ_FORMAT_UNSPEC { FI_CQ_FORMAT_CONTEXT } else { format };
    if !(FI_CQ_FORMAT_CONTEXT..=FI_CQ_FORMAT_TAGGED).contains(&format) {
        return -FI_EINVAL;
    }
    if !matches!(wait, FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_FD | FI_WAIT_YIELD) {
        return -FI_ENOSYS;
    }
    // SAFETY: the record is a domain.
    unsafe {
        domain::within(domain, |domain| {
            let cq = Cq::new(domain.clone(), format, size);
            if wait != FI_WAIT_NONE {
                match Waiter::open() {
                    Ok(waiter) => _ = cq.waiter.set(waiter),
                    Err(error) => return -error.raw_os_error().unwrap_or(FI_ENOMEM),
                }
            }
            domain.used();
            let record = fid_cq { fid: head(FI_CLASS_CQ, context, &COMMON), ops: OPS.at() };
            *out = make(record, Rc::new(cq));
            0
        })
    }
}

/// Returns the queue of a record.
///
/// # Safety
/// The record is one of this provider's completion queues.
pub(super) unsafe fn of<'a>(cq: *mut fid_cq) -> &'a Rc<Cq> {
    // SAFETY: the caller's promise.
    unsafe { inner::<fid_cq, Rc<Cq>>(cq) }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    let at: *mut fid_cq = fid.cast();
    // SAFETY: the record is a completion queue.
    let cq = unsafe { of(at) };
    // The domain stays open while it has objects.
    let domain = &*cq.domain;
    enter(domain, || {
        if cq.users.get() > 0 {
            return -FI_EBUSY;
        }
        domain.unused();
        // SAFETY: the caller gives the object up.
        unsafe { release::<fid_cq, Rc<Cq>>(at) };
        0
    })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: the record is a completion queue.
    let cq = unsafe { of(fid.cast()) };
    let Some(waiter) = cq.waiter.get() else { return -FI_ENODATA };
    match command {
        // SAFETY: the argument has room for a descriptor.
        FI_GETWAIT => unsafe { *arg.cast::<RawFd>() = waiter.descriptor() },
        // SAFETY: the argument has room for a number.
        FI_GETWAITOBJ => unsafe { *arg.cast::<c_int>() = FI_WAIT_FD },
        _ => return -FI_ENOSYS,
    }
    0
}

/// Prepares a sleep on the queue's descriptor. `-FI_EAGAIN`: there is something to do first.
pub(super) unsafe fn trywait(cq: *mut fid_cq) -> c_int {
    // SAFETY: the record is a completion queue.
    let cq = unsafe { of(cq) };
    enter(&cq.domain, || {
        let Some(waiter) = cq.waiter.get() else { return -FI_EINVAL };
        cq.domain.progress();
        if cq.has_entries() {
            return -FI_EAGAIN;
        }
        waiter.arm();
        match prepare(&cq.domain) {
            Some(_) if !cq.domain.eps.borrow().iter().any(|ep| ep.is_busy()) => 0,
            _ => -FI_EAGAIN,
        }
    })
}

/// Writes the first bytes of an entry, and returns their number.
///
/// # Safety
/// The entry has as many bytes, and there is room for them at `at`.
#[inline]
unsafe fn write_first<const LEN: usize>(entry: &fi_cq_tagged_entry, at: *mut u8) -> usize {
    // SAFETY: the caller's promise.
    unsafe { core::ptr::copy_nonoverlapping((&raw const *entry).cast::<u8>(), at, LEN) };
    LEN
}

/// Writes an entry in the format of the queue, and returns its length.
///
/// # Safety
/// There is room for an entry at `at`.
#[inline]
unsafe fn write_entry(format: c_int, at: *mut u8, entry: &Entry) -> usize {
    let whole = fi_cq_tagged_entry {
        op_context: core::ptr::with_exposed_provenance_mut(entry.context),
        flags: entry.flags,
        len: entry.len,
        buf: core::ptr::with_exposed_provenance_mut(entry.buf),
        data: entry.data,
        tag: entry.tag,
    };
    // Each format is the beginning of the longest one. The lengths are constants, so no copy is a call.
    // SAFETY: the caller has room for an entry of this format.
    unsafe {
        match format {
            FI_CQ_FORMAT_CONTEXT => write_first::<8>(&whole, at),
            FI_CQ_FORMAT_MSG => write_first::<24>(&whole, at),
            FI_CQ_FORMAT_DATA => write_first::<{ size_of::<fi_cq_data_entry>() }>(&whole, at),
            _ => write_first::<{ size_of::<fi_cq_tagged_entry>() }>(&whole, at),
        }
    }
}

/// Takes entries from the queue. Returns their number or an error.
unsafe fn take(cq: &Cq, buf: *mut c_void, count: usize, sources: *mut u64) -> isize {
    let mut entries = cq.entries.borrow_mut();
    let mut at: *mut u8 = buf.cast();
    let mut taken = 0;
    while taken < count {
        match entries.front() {
            Some(entry) if entry.failure.is_none() => {
                // SAFETY: the caller's buffers have room for `count` entries.
                unsafe {
                    at = at.add(write_entry(cq.format, at, entry));
                    if !sources.is_null() {
                        *sources.add(taken) = entry.source;
                    }
                }
                let _ = entries.pop_front();
                taken += 1;
            }
            Some(_) if taken == 0 => return -FI_EAVAIL as isize,
            _ => break,
        }
    }
    if taken > 0 { taken as isize } else { -FI_EAGAIN as isize }
}

unsafe extern "C" fn read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: the caller's arguments are those of the longer call.
    unsafe { readfrom(cq, buf, count, core::ptr::null_mut()) }
}

unsafe extern "C" fn readfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    sources: *mut u64,
) -> isize {
    // SAFETY: the record is a completion queue.
    let cq = unsafe { of(cq) };
    enter(&cq.domain, || {
        if count == 0 || !cq.has_entries() {
            cq.domain.progress();
        }
        if !cq.has_entries() {
            let left = cq.until_look.get() - 1;
            let next = || UNTIL_LOOK[usize::from(!cq.domain.look())];
            cq.until_look.set(if left == 0 { next() } else { left });
            return -FI_EAGAIN as isize;
        }
        if count == 0 {
            return 0;
        }
        // SAFETY: the caller's buffers have room for `count` entries.
        unsafe { take(cq, buf, count, sources) }
    })
}

unsafe extern "C" fn readerr(cq: *mut fid_cq, out: *mut fi_cq_err_entry, _: u64) -> isize {
    // SAFETY: the record is a completion queue.
    let cq = unsafe { of(cq) };
    enter(&cq.domain, || {
        let mut entries = cq.entries.borrow_mut();
        let failure = entries.front_mut().and_then(|entry| entry.failure.take());
        let Some(Failure { failed, excess }) = failure.map(|failure| *failure) else {
            return -FI_EAGAIN as isize;
        };
        let Some(entry) = entries.pop_front() else { return -FI_EAGAIN as isize };
        let out: *mut ErrorEntry = out.cast();
        // SAFETY: the caller has room for the fields of API 1.5. Data about the error is not offered, so the caller's buffer for it
        // stays as it is.
        unsafe {
            (*out).op_context = core::ptr::with_exposed_provenance_mut(entry.context);
            (*out).flags = entry.flags;
            (*out).len = entry.len;
            (*out).buf = core::ptr::with_exposed_provenance_mut(entry.buf);
            (*out).data = entry.data;
            (*out).tag = entry.tag;
            (*out).olen = excess;
            (*out).err = failed.error;
            (*out).prov_errno = failed.status;
            (*out).err_data_size = 0;
        }
        1
    })
}

unsafe extern "C" fn sread(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: the caller's arguments are those of the longer call.
    unsafe { sreadfrom(cq, buf, count, core::ptr::null_mut(), cond, timeout) }
}

unsafe extern "C" fn sreadfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    sources: *mut u64,
    _: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: the record is a completion queue.
    let queue = unsafe { of(cq) };
    let until = u64::try_from(timeout).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
    let mut spins = 0;
    loop {
        // SAFETY: the caller's arguments are those of the call that does not wait.
        let said = unsafe { readfrom(cq, buf, count, sources) };
        if said != -FI_EAGAIN as isize || queue.signaled.swap(false, Ordering::AcqRel) {
            return said;
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return -FI_EAGAIN as isize;
        }
        spins += 1;
        if spins < SPINS {
            continue;
        }
        sleep(queue, left);
    }
}

/// Sleeps until something may have happened on the queue.
fn sleep(cq: &Cq, left: Option<Duration>) {
    let mut prepared = None;
    let _: c_int = enter(&cq.domain, || {
        if let Some(waiter) = cq.waiter.get() {
            waiter.arm();
        }
        if !cq.has_entries() && !cq.signaled.load(Ordering::Acquire) {
            prepared = prepare(&cq.domain);
        }
        0
    });
    let Some((mut fds, most)) = prepared else { return };
    if let Some(waiter) = cq.waiter.get() {
        fds.push(waiter.descriptor());
    }
    super::wait::sleep_on(&fds, most.min(left.unwrap_or(most)));
}

unsafe extern "C" fn signal(cq: *mut fid_cq) -> c_int {
    // SAFETY: the record is a completion queue.
    let cq = unsafe { of(cq) };
    enter(&cq.domain, || {
        cq.signaled.store(true, Ordering::Release);
        if let Some(waiter) = cq.waiter.get() {
            waiter.wake();
        }
        0
    })
}

/// Writes a text with a zero into a buffer, as far as there is room. Returns the buffer, or null without one.
///
/// # Safety
/// The buffer is null or has `len` bytes.
pub(super) unsafe fn write_text(text: &str, buf: *mut c_char, len: usize) -> *const c_char {
    if buf.is_null() || len == 0 {
        return c"see fi_strerror of the entry".as_ptr();
    }
    let count = text.len().min(len - 1);
    // SAFETY: the caller's promise.
    unsafe {
        core::ptr::copy_nonoverlapping(text.as_ptr(), buf.cast(), count);
        *buf.add(count) = 0;
    }
    buf
}

unsafe extern "C" fn strerror(
    _: *mut fid_cq,
    number: c_int,
    _: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    let text = if number < 0 { tieline_status(number) } else { "no further reason" };
    // SAFETY: the caller's buffer is null or has `len` bytes.
    unsafe { write_text(text, buf, len) }
}

fn tieline_status(number: c_int) -> &'static str {
    crate::status::text(number)
}
