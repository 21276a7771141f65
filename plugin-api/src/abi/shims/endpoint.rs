//! The shims of an endpoint: the data path.

use super::*;
use crate::flags::not_understood;
use crate::provider::{AtOnce, Endpoint, ListOp, ListPart, Packer, Posted, Posting, RmaOp};
use crate::{known_flags, rma_kind};

pub(super) unsafe extern "C" fn am_short<E: Endpoint>(
    endpoint: *mut c_void,
    id: u32,
    header: u64,
    data: *const u8,
    len: usize,
) -> i32 {
    if E::SENDS_AT_ONCE {
        // SAFETY: the handle is that of an open endpoint.
        let this = unsafe { shared::<E>(endpoint) };
        // SAFETY: the payload is borrowed for the call, and null only without bytes.
        let payload = unsafe { short_bytes(data, len) };
        let sent = hot(this.poisoned, || match this.inner.am_short_at_once(id, header, payload) {
            AtOnce::Sent => 0,
            AtOnce::SentWithRest => 1,
            AtOnce::NotSent => 2,
        });
        match sent {
            2 => {}
            // SAFETY: the handle is that of an open endpoint.
            1 => return unsafe { after_at_once::<E>(endpoint) },
            done => return code(done),
        }
    }
    // SAFETY: the caller's promise.
    unsafe { am_short_behind::<E>(endpoint, id, header, data, len) }
}

/// Does what the short form has left, out of line, so that the short form needs no frame.
///
/// # Safety
/// The handle is that of an open endpoint.
#[inline(never)]
unsafe extern "C" fn after_at_once<E: Endpoint>(endpoint: *mut c_void) -> i32 {
    // SAFETY: the caller's promise.
    let this = unsafe { shared::<E>(endpoint) };
    code(hot(this.poisoned, || {
        this.inner.after_at_once();
        0
    }))
}

/// Sends without the short form, out of line as well.
///
/// # Safety
/// As for `am_short`.
#[inline(never)]
unsafe extern "C" fn am_short_behind<E: Endpoint>(
    endpoint: *mut c_void,
    id: u32,
    header: u64,
    data: *const u8,
    len: usize,
) -> i32 {
    // SAFETY: the handle is that of an open endpoint.
    let this = unsafe { shared::<E>(endpoint) };
    // SAFETY: the payload is borrowed for the call, and null only without bytes.
    let payload = unsafe { short_bytes(data, len) };
    code(hot(this.poisoned, || posted(this.inner.am_short(id, header, payload))))
}

pub(super) unsafe extern "C" fn am_packed<E: Endpoint>(
    endpoint: *mut c_void,
    id: u32,
    header: u64,
    pack: PackFn,
    argument: *mut c_void,
    most: usize,
) -> i64 {
    // SAFETY: the handle is that of an open endpoint.
    let this = unsafe { shared::<E>(endpoint) };
    let Some(pack) = pack else { return i64::from(Status::Invalid as i32) };
    hot(this.poisoned, || {
        let mut call = |at: *mut u8, capacity: usize| {
            // SAFETY: the function and the argument are the core's; the function writes at most `capacity` bytes.
            let written = unsafe { pack(argument, at, capacity) };
            usize::try_from(written).map_err(|_| Status::from_code(written as i32))
        };
        match this.inner.am_packed(id, header, Packer::new(&mut call), most) {
            Ok(len) => len as i64,
            Err(status) => i64::from(status as i32),
        }
    })
}

pub(super) unsafe extern "C" fn am_zcopy<E: Endpoint>(
    endpoint: *mut c_void,
    id: u32,
    header: u64,
    iov: *const Iov,
    count: usize,
    cookie: u64,
) -> i32 {
    // SAFETY: the handle is that of an open endpoint.
    let this = unsafe { shared::<E>(endpoint) };
    // SAFETY: the core guarantees its array of `count` pieces.
    let iov = unsafe { pieces(iov, count) };
    code(hot(this.poisoned, || posted(this.inner.am_zcopy(id, header, iov, cookie))))
}

/// # Safety
/// `iov` is null, or aligned and points to `count` pieces, borrowed for the call.
#[inline]
unsafe fn pieces<'a>(iov: *const Iov, count: usize) -> &'a [Iov] {
    if iov.is_null() {
        &[]
    } else {
        // SAFETY: the caller's promise.
        unsafe { core::slice::from_raw_parts(iov, count) }
    }
}

/// Unpacks a put or get and makes the call.
///
/// # Safety
/// The arguments are those of the `put` and `get` slots.
#[inline]
unsafe fn rma<E: Endpoint>(
    endpoint: *mut c_void,
    op: *const Rma,
    call: impl FnOnce(&E, &E::Key, &RmaOp<'_>) -> Posted,
) -> i32 {
    // SAFETY: the handle is that of an open endpoint, and the core's record.
    let (this, op) = unsafe { (shared::<E>(endpoint), &*op) };
    if op.key.is_null() {
        return Status::KeyRejected as i32;
    }
    if not_understood(op.flags, known_flags::RMA) != 0 {
        return Status::UnsupportedParam as i32;
    }
    // SAFETY: the key came from import_key of this endpoint or of its interface; the pieces are the core's array.
    let (key, iov) = unsafe { (&*op.key.cast::<E::Key>(), pieces(op.iov, op.iov_count)) };
    let inner = &this.inner;
    let op = RmaOp { iov, len: op.len, offset: op.offset, cookie: op.cookie, flags: op.flags };
    code(hot(this.poisoned, || posted(call(inner, key, &op))))
}

pub(super) unsafe extern "C" fn put<E: Endpoint>(endpoint: *mut c_void, op: *const Rma) -> i32 {
    // SAFETY: the core guarantees its arguments.
    unsafe { rma::<E>(endpoint, op, |e, key, op| e.put(key, op)) }
}

pub(super) unsafe extern "C" fn get<E: Endpoint>(endpoint: *mut c_void, op: *const Rma) -> i32 {
    // SAFETY: the core guarantees its arguments.
    unsafe { rma::<E>(endpoint, op, |e, key, op| e.get(key, op)) }
}

pub(super) unsafe extern "C" fn put_notify<E: Endpoint>(
    endpoint: *mut c_void,
    op: *const Rma,
    word: u32,
) -> i32 {
    // SAFETY: the core guarantees its arguments.
    unsafe { rma::<E>(endpoint, op, |e, key, op| e.put_notify(key, op, word)) }
}

pub(super) unsafe extern "C" fn rma_list<E: Endpoint>(
    endpoint: *mut c_void,
    list: *const RmaList,
    taken: *mut usize,
) -> i32 {
    // A part is passed to the provider as it lies in the core's array.
    const {
        assert!(size_of::<ListPart<'_, ()>>() == size_of::<RmaPart>());
        assert!(
            core::mem::offset_of!(ListPart<'_, ()>, local) == core::mem::offset_of!(RmaPart, local)
        );
        assert!(
            core::mem::offset_of!(ListPart<'_, ()>, key) == core::mem::offset_of!(RmaPart, key)
        );
        assert!(
            core::mem::offset_of!(ListPart<'_, ()>, offset)
                == core::mem::offset_of!(RmaPart, offset)
        );
    }
    // SAFETY: the handle is that of an open endpoint, and the core guarantees its record.
    let (this, list) = unsafe { (shared::<E>(endpoint), read_params(list, RmaList::empty())) };
    let Ok(list) = list else { return Status::UnsupportedParam as i32 };
    let is_known = matches!(list.kind, rma_kind::PUT | rma_kind::GET);
    if !is_known || not_understood(list.flags, known_flags::RMA) != 0 {
        return Status::UnsupportedParam as i32;
    }
    if list.parts.is_null() || list.count == 0 {
        return Status::Invalid as i32;
    }
    // SAFETY: the core's array of `count` parts, borrowed for the call.
    let parts = unsafe { core::slice::from_raw_parts(list.parts, list.count) };
    // The parts before the first one without a key are taken; the next call refuses that part.
    let keyed = parts.iter().position(|part| part.key.is_null()).unwrap_or(list.count);
    if keyed == 0 {
        return Status::KeyRejected as i32;
    }
    // SAFETY: both types have one layout, as asserted above; each key of these parts came from import_key of this endpoint or of its
    // interface.
    let parts = unsafe { core::slice::from_raw_parts(list.parts.cast(), keyed) };
    let put = list.kind == rma_kind::PUT;
    let op = ListOp { put, parts, cookie: list.cookie, flags: list.flags };
    let mut number = 0;
    let result = code(hot(this.poisoned, || posted(this.inner.rma_list(&op, &mut number))));
    if !taken.is_null() {
        // SAFETY: the core guarantees the place for the number.
        unsafe { *taken = number };
    }
    result
}

pub(super) unsafe extern "C" fn key_pointer<E: Endpoint>(
    endpoint: *mut c_void,
    key: *mut c_void,
    offset: u64,
    len: u64,
    out: *mut *mut u8,
) -> i32 {
    // SAFETY: the handle is that of an open endpoint.
    let this = unsafe { shared::<E>(endpoint) };
    if key.is_null() {
        return Status::KeyRejected as i32;
    }
    // SAFETY: the key came from import_key of this endpoint or of its interface.
    let key = unsafe { &*key.cast::<E::Key>() };
    code(guarded(this.poisoned, || {
        let pointer = this.inner.key_pointer(key, offset, len)?;
        // SAFETY: the core guarantees the place for the pointer.
        unsafe { *out = pointer };
        Ok(0)
    }))
}

pub(super) unsafe extern "C" fn cancel<E: Endpoint>(endpoint: *mut c_void, cookie: u64) -> i32 {
    // SAFETY: the handle is that of an open endpoint.
    let this = unsafe { shared::<E>(endpoint) };
    code(guarded(this.poisoned, || this.inner.cancel(cookie).map(|()| 0).map_err(Failure::from)))
}

pub(super) unsafe extern "C" fn limits<E: Endpoint>(
    endpoint: *mut c_void,
    out: *mut EndpointLimits,
) -> i32 {
    // SAFETY: the handle is that of an open endpoint.
    let this = unsafe { shared::<E>(endpoint) };
    code(guarded(this.poisoned, || {
        // SAFETY: the core guarantees its record, whose `size` it has set.
        unsafe { write_attr(out, &this.inner.limits()) };
        Ok(0)
    }))
}

pub(super) unsafe extern "C" fn atomic<E: Endpoint>(
    endpoint: *mut c_void,
    op: *const Atomic,
) -> i32 {
    // SAFETY: the handle is that of an open endpoint, and the core's record.
    let (this, op) = unsafe { (shared::<E>(endpoint), &*op) };
    if op.key.is_null() {
        return Status::KeyRejected as i32;
    }
    if not_understood(op.flags, known_flags::ATOMIC) != 0 {
        return Status::UnsupportedParam as i32;
    }
    // SAFETY: the key came from import_key of this endpoint or of its interface.
    let key = unsafe { &*op.key.cast::<E::Key>() };
    code(hot(this.poisoned, || {
        let mut before = 0;
        let result = posted(this.inner.atomic(key, op, &mut before));
        if result == i64::from(OK) && !op.result.is_null() {
            // SAFETY: the core guarantees the place for the result.
            unsafe { *op.result = before };
        }
        result
    }))
}

pub(super) unsafe extern "C" fn flush<E: Endpoint>(endpoint: *mut c_void, cookie: u64) -> i32 {
    // SAFETY: the handle is that of an open endpoint.
    let this = unsafe { shared::<E>(endpoint) };
    code(hot(this.poisoned, || posted(this.inner.flush(cookie))))
}

pub(super) unsafe extern "C" fn fence<E: Endpoint>(endpoint: *mut c_void) -> i32 {
    // SAFETY: the handle is that of an open endpoint.
    let this = unsafe { shared::<E>(endpoint) };
    code(hot(this.poisoned, || posted(this.inner.fence().map(|()| Posting::Done))))
}

pub(super) unsafe extern "C" fn import_key<E: Endpoint>(
    endpoint: *mut c_void,
    params: *const ImportParams,
    out: *mut *mut c_void,
) -> i32 {
    // SAFETY: the handle is that of an open endpoint.
    let this = unsafe { shared::<E>(endpoint) };
    code(guarded(this.poisoned, || {
        // SAFETY: the core guarantees its record.
        let params = unsafe { read_params(params, ImportParams::empty()) }?;
        understood("flag", params.flags, 0)?;
        // SAFETY: the bytes are borrowed for the call.
        let key = this.inner.import_key(unsafe { bytes(params.bytes, params.len) })?;
        // SAFETY: the core guarantees the place for the handle.
        unsafe { *out = Box::into_raw(Box::new(key)).cast() };
        Ok(0)
    }))
}

pub(super) unsafe extern "C" fn drop_key<E: Endpoint>(endpoint: *mut c_void, key: *mut c_void) {
    // SAFETY: the handle is that of an open endpoint.
    let this = unsafe { shared::<E>(endpoint) };
    let _ = guarded(this.poisoned, || {
        // SAFETY: the key came from import_key of this endpoint, and the core drops it once.
        drop(unsafe { Box::from_raw(key.cast::<E::Key>()) });
        Ok(0)
    });
}

pub(super) unsafe extern "C" fn endpoint_address<E: Endpoint>(
    endpoint: *mut c_void,
    out: *mut u8,
    capacity: usize,
) -> i64 {
    // SAFETY: the handle is that of an open endpoint.
    let this = unsafe { shared::<E>(endpoint) };
    // SAFETY: the core guarantees its buffer.
    guarded(this.poisoned, || Ok(unsafe { write_bytes(&this.inner.address(), out, capacity) }))
}

pub(super) unsafe extern "C" fn endpoint_connect<E: Endpoint>(
    endpoint: *mut c_void,
    params: *const ConnectParams,
) -> i32 {
    // SAFETY: the handle is that of an open endpoint.
    let this = unsafe { shared::<E>(endpoint) };
    code(guarded(this.poisoned, || {
        // SAFETY: the core guarantees its record.
        let params = unsafe { read_params(params, ConnectParams::empty()) }?;
        understood("flag", params.flags, 0)?;
        // SAFETY: the bytes are borrowed for the call.
        let address = unsafe { bytes(params.address, params.address_len) };
        this.inner.connect(address).map(|()| 0)
    }))
}
