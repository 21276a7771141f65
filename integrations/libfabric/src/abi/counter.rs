//! Counters.

use super::domain;
use super::enter::enter;
use super::object::{Table, common, head, inner, make, no_bind, no_control, release};
use super::wait::{prepare, sleep_on};
use crate::counter::Counter;
use core::ffi::{c_int, c_void};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tieline_libfabric_abi::*;

/// The number of progress calls of a waiting call before it sleeps.
const SPINS: usize = 1000;

static COMMON: Table<fi_ops> = common(close, no_bind, no_control);
static OPS: Table<fi_ops_cntr> = Table(fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read,
    readerr,
    add,
    set,
    wait,
    adderr,
    seterr,
});

pub(super) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_cntr_attr,
    out: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the attributes are null or a valid record.
    if let Some(attr) = unsafe { attr.as_ref() } {
        if attr.events != 0
            || !matches!(attr.wait_obj, FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_YIELD)
        {
            return -FI_ENOSYS;
        }
    }
    // SAFETY: the record is a domain.
    unsafe {
        domain::within(domain, |domain| {
            domain.used();
            let record = fid_cntr { fid: head(FI_CLASS_CNTR, context, &COMMON), ops: OPS.at() };
            *out = make(record, Rc::new(Counter::new(domain.clone())));
            0
        })
    }
}

/// Returns the counter of a record.
///
/// # Safety
/// The record is one of this provider's counters.
pub(super) unsafe fn of<'a>(counter: *mut fid_cntr) -> &'a Rc<Counter> {
    // SAFETY: the caller's promise.
    unsafe { inner::<fid_cntr, Rc<Counter>>(counter) }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    let at: *mut fid_cntr = fid.cast();
    // SAFETY: the record is a counter.
    let counter = unsafe { of(at) };
    // The domain stays open while it has objects.
    let domain = &*counter.domain;
    enter(domain, || {
        if counter.users.get() > 0 {
            return -FI_EBUSY;
        }
        domain.unused();
        // SAFETY: the caller gives the object up.
        unsafe { release::<fid_cntr, Rc<Counter>>(at) };
        0
    })
}

unsafe extern "C" fn read(counter: *mut fid_cntr) -> u64 {
    // SAFETY: the record is a counter.
    let counter = unsafe { of(counter) };
    enter(&counter.domain, || {
        counter.domain.progress();
        counter.value.get()
    })
}

unsafe extern "C" fn readerr(counter: *mut fid_cntr) -> u64 {
    // SAFETY: the record is a counter.
    let counter = unsafe { of(counter) };
    enter(&counter.domain, || {
        counter.domain.progress();
        counter.read_errors()
    })
}

/// Changes a counter under the lock.
unsafe fn change(counter: *mut fid_cntr, how: impl FnOnce(&Counter)) -> c_int {
    // SAFETY: the record is a counter.
    let counter = unsafe { of(counter) };
    enter(&counter.domain, || {
        how(counter);
        0
    })
}

unsafe extern "C" fn add(counter: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the record is a counter.
    unsafe { change(counter, |it| it.value.set(it.value.get().wrapping_add(value))) }
}

unsafe extern "C" fn set(counter: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the record is a counter.
    unsafe { change(counter, |it| it.value.set(value)) }
}

unsafe extern "C" fn adderr(counter: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the record is a counter.
    unsafe { change(counter, |it| it.errors.set(it.errors.get().wrapping_add(value))) }
}

unsafe extern "C" fn seterr(counter: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the record is a counter.
    unsafe {
        change(counter, |it| {
            it.errors.set(value);
            it.known_errors.set(value);
        })
    }
}

unsafe extern "C" fn wait(counter: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    // SAFETY: the record is a counter.
    let counter = unsafe { of(counter) };
    let until = u64::try_from(timeout).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
    let mut errors = None;
    let mut spins = 0;
    loop {
        let mut prepared = None;
        let said: c_int = enter(&counter.domain, || {
            let before = *errors.get_or_insert_with(|| counter.errors.get());
            counter.domain.progress();
            if counter.value.get() >= threshold {
                return 0;
            }
            // An error that came before the call counts if the application does not know it: no other call may report it.
            let known = counter.known_errors.get();
            if counter.errors.get() != before || known != before {
                let _ = counter.read_errors();
                return -FI_EAVAIL;
            }
            spins += 1;
            if spins > SPINS {
                prepared = prepare(&counter.domain);
            }
            -FI_EAGAIN
        });
        if said != -FI_EAGAIN {
            return said;
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return -FI_ETIMEDOUT;
        }
        if let Some((fds, most)) = prepared {
            sleep_on(&fds, most.min(left.unwrap_or(most)));
        }
    }
}
