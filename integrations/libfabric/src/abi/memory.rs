//! Registered memory.

use super::counter;
use super::domain;
use super::enter::enter;
use super::object::{Table, common, head, inner, make, release};
use crate::domain::Domain;
use crate::keys::Memory;
use crate::status::Failed;
use core::ffi::{c_int, c_void};
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tieline::{Access, Status};
use tieline_libfabric_abi::*;

/// The longest time that closing memory waits for operations and peers that use it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Registered memory, as an object.
struct Registered {
    domain: Rc<Domain>,
    memory: Rc<Memory>,
}

static COMMON: Table<fi_ops> = common(close, bind, control);
pub(super) static OPS: Table<fi_ops_mr> = Table(fi_ops_mr {
    size: size_of::<fi_ops_mr>(),
    reg,
    regv: Some(regv),
    regattr: Some(regattr),
});

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    let at: *mut fid_mr = fid.cast();
    // SAFETY: the record is a registration.
    let registered = unsafe { inner::<fid_mr, Registered>(at) };
    // The domain stays open while it has objects.
    let domain = &*registered.domain;
    enter(domain, || {
        let memory = &registered.memory;
        let mut until = None;
        // An operation or a peer may still use the region. Progress can complete such accesses.
        while let Some(region) = memory.region.take() {
            let Err(not) = region.close() else { break };
            if not.error.status() != Status::Busy {
                return -Failed::from(&not.error).error;
            }
            let _ = memory.region.replace(Some(not.region));
            if Instant::now() > *until.get_or_insert_with(|| Instant::now() + PATIENCE) {
                return -FI_EBUSY;
            }
            domain.progress();
        }
        if memory.is_remote {
            let _ = domain.memory.borrow_mut().remove(&memory.key);
        }
        if let Some(counter) = memory.counter.get() {
            counter.users.set(counter.users.get() - 1);
        }
        domain.unused();
        // SAFETY: the caller gives the object up.
        unsafe { release::<fid_mr, Registered>(at) };
        0
    })
}

unsafe extern "C" fn bind(fid: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: the record is a registration, and the other object is valid.
    let (registered, class) = unsafe { (inner::<fid_mr, Registered>(fid.cast()), (*other).fclass) };
    enter(&registered.domain, || {
        if class == FI_CLASS_CNTR && flags & FI_REMOTE_WRITE != 0 {
            // SAFETY: the class says that the object is a counter.
            let counter = unsafe { counter::of(other.cast()) };
            if registered.memory.counter.set(counter.clone()).is_err() {
                return -FI_EBUSY;
            }
            counter.users.set(counter.users.get() + 1);
            registered.memory.is_noticed.set(true);
        }
        0
    })
}

unsafe extern "C" fn control(_: *mut fid, command: c_int, _: *mut c_void) -> c_int {
    if command == FI_ENABLE { 0 } else { -FI_ENOSYS }
}

/// Returns the rights of peers. Peers that may write may also do atomics.
fn rights(access: u64) -> Access {
    match (access & FI_REMOTE_READ != 0, access & FI_REMOTE_WRITE != 0) {
        (true, true) => Access::ALL,
        (true, false) => Access::READ,
        (false, true) => Access::WRITE | Access::ATOMIC,
        (false, false) => Access::LOCAL,
    }
}

/// Registers memory.
///
/// # Safety
/// The memory stays valid until the registration is closed.
unsafe fn register(
    domain: &Rc<Domain>,
    (base, len): (*mut u8, usize),
    access: u64,
    requested: u64,
) -> Result<Rc<Memory>, i32> {
    let is_remote = access & (FI_REMOTE_READ | FI_REMOTE_WRITE) != 0;
    let own_keys = domain.choices.own_keys;
    if is_remote && !own_keys && domain.memory.borrow().contains_key(&requested) {
        return Err(FI_ENOKEY);
    }
    let mut key = requested;
    let mut region = None;
    if is_remote {
        // SAFETY: the caller's promise.
        let made = unsafe { domain.context.register_raw(base, len, rights(access)) };
        let made = made.map_err(|error| {
            super::library::warn(&error.to_string());
            Failed::from(error).error
        })?;
        if own_keys {
            let handle = made.handle().map_err(|error| Failed::from(&error).error)?;
            key = u64::from_le_bytes(handle.to_bytes());
        }
        region = Some(made);
    }
    let memory = Rc::new(Memory {
        region: RefCell::new(region),
        start: base.addr(),
        len,
        key,
        is_remote,
        counter: OnceCell::new(),
        is_noticed: Cell::new(false),
    });
    if is_remote {
        let _ = domain.memory.borrow_mut().insert(key, memory.clone());
    }
    Ok(memory)
}

unsafe extern "C" fn reg(
    fid: *mut fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    requested: u64,
    flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the object is valid.
    if unsafe { (*fid).fclass } != FI_CLASS_DOMAIN || offset != 0 || flags & !FI_RMA_EVENT != 0 {
        return -FI_EINVAL;
    }
    // SAFETY: the class says that the object is a domain; the caller's memory stays valid until it closes the registration.
    unsafe {
        domain::within(fid.cast(), |domain| {
            let base = buf.cast_mut().cast::<u8>();
            let memory = match register(domain, (base, len), access, requested) {
                Ok(memory) => memory,
                Err(error) => return -error,
            };
            domain.used();
            let key = if domain.choices.own_keys { memory.key } else { requested };
            let fid = head(FI_CLASS_MR, context, &COMMON);
            let record = fid_mr { fid, mem_desc: core::ptr::null_mut(), key };
            let made = make(record, Registered { domain: domain.clone(), memory });
            // Applications pass the descriptor with operations. Nothing reads it: local memory needs no registration.
            (*made).mem_desc = made.cast();
            *out = made;
            0
        })
    }
}

unsafe extern "C" fn regv(
    fid: *mut fid,
    list: *const libc::iovec,
    count: usize,
    access: u64,
    offset: u64,
    requested: u64,
    flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    if count != 1 {
        return -FI_EINVAL;
    }
    // SAFETY: the caller's list has one piece.
    unsafe {
        let piece = &*list;
        reg(fid, piece.iov_base, piece.iov_len, access, offset, requested, flags, out, context)
    }
}

unsafe extern "C" fn regattr(
    fid: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    out: *mut *mut fid_mr,
) -> c_int {
    // SAFETY: the caller's record is valid, of which the fields of API 1.17 are read.
    unsafe {
        let attr = &*attr;
        if attr.iface != 0 {
            // Memory of a device.
            return -FI_ENOSYS;
        }
        let (access, offset, key) = (attr.access, attr.offset, attr.requested_key);
        regv(fid, attr.mr_iov, attr.iov_count, access, offset, key, flags, out, attr.context)
    }
}
