//! Puts, gets and fetching atomics whose local memory is an address and a length, in no region.

use super::atomic::{Call, call};
use super::bytes::{bytes, some_bytes};
use super::enter::{Aside, live, object};
use super::error::{Fault, answer};
use super::how::{self, How};
use super::memory::given;
use super::numbers::{TIELINE_HOW_LOCAL as LOCAL, TIELINE_HOW_NOTIFY as NOTIFY};
use super::put::{KeyHandle, KeyObject, completion};
use super::records::null;
use std::ffi::c_void;
use tieline::endpoint::{AtOnce, BytesThere, Tried};

/// Writes memory of the caller to the peer's region at `offset`. The memory needs no region. Nothing may write the memory until the
/// operation has ended. If the operation ends with TIELINE_OP_UNKNOWN, the memory must stay valid until the endpoint and its keys are
/// dropped. With TIELINE_HOW_LOCAL, the completion says only that the memory may be reused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_put_raw(
    key: *const KeyHandle,
    offset: u64,
    memory: *const c_void,
    len: usize,
    how: *const How,
    request: *mut u64,
) -> i32 {
    if let (Some(object), Some(bytes)) = (live::<KeyObject, _>(key), some_bytes(memory, len)) {
        if how::is_usual(how, request) {
            let aside = (Aside::empty(), Aside::empty());
            let given = (aside.0.keep(key), aside.1.keep(request));
            match object.endpoint.at_once(|_| object.key.put_bytes_at_once(bytes, offset)) {
                AtOnce::Done => return 0,
                AtOnce::NotTried => {}
                AtOnce::Refused(tried, call) => {
                    return put_further(given.0.get(), call, given.1.get(), tried);
                }
            }
        }
    }
    put(key, offset, memory, len, how, request)
}

/// Puts as `tieline_put_raw` does, on the slow path, which handles every case.
#[cold]
#[inline(never)]
fn put(
    key: *const KeyHandle,
    offset: u64,
    memory: *const c_void,
    len: usize,
    how: *const How,
    request: *mut u64,
) -> i32 {
    how::no_number(request);
    answer(object::<KeyObject, _>(key).and_then(|object| {
        let told = how::read(how, LOCAL | NOTIFY, &object.endpoint.worker)?;
        let (from, key, completion) =
            (bytes(memory, len)?.as_ptr(), &object.key, completion(&told));
        // SAFETY: the caller keeps the memory until the operation has ended.
        object.post(request, &told, |endpoint| unsafe {
            match told.flags & NOTIFY {
                0 => endpoint.put_raw_with(from, len, key, offset, completion),
                _ => endpoint.put_raw_notify(from, len, key, offset, told.word, completion),
            }
        })
    }))
}

/// Puts the memory after a provider has not completed the inline attempt.
#[cold]
#[inline(never)]
fn put_further(
    key: *const KeyHandle,
    BytesThere { start, len, offset }: BytesThere,
    request: *mut u64,
    tried: Tried,
) -> i32 {
    answer(object::<KeyObject, _>(key).and_then(|object| {
        // SAFETY: the caller keeps the memory until the operation has ended.
        object.post(request, &how::USUAL, |endpoint| unsafe {
            endpoint.put_raw_further(tried, start, len, &object.key, offset)
        })
    }))
}

/// Reads the peer's region at `offset` into memory of the caller. The memory needs no region. Nothing else may access the memory until
/// the operation has ended. If the operation ends with TIELINE_OP_UNKNOWN, the memory must stay valid until the endpoint and its keys
/// are dropped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_get_raw(
    key: *const KeyHandle,
    offset: u64,
    memory: *mut c_void,
    len: usize,
    how: *const How,
    request: *mut u64,
) -> i32 {
    if let (Some(object), false) = (live::<KeyObject, _>(key), memory.is_null()) {
        if len <= isize::MAX as usize && how::is_usual(how, request) {
            let aside = (Aside::empty(), Aside::empty());
            let given = (aside.0.keep(key), aside.1.keep(request));
            // SAFETY: the caller's memory is writable until the operation has ended.
            let get = |_: &_| unsafe { object.key.get_raw_at_once(memory.cast(), len, offset) };
            match object.endpoint.at_once(get) {
                AtOnce::Done => return 0,
                AtOnce::NotTried => {}
                AtOnce::Refused(tried, call) => {
                    return get_further(given.0.get(), call, given.1.get(), tried);
                }
            }
        }
    }
    get(key, offset, memory, len, how, request)
}

/// Gets as `tieline_get_raw` does, on the slow path, which handles every case.
#[cold]
#[inline(never)]
fn get(
    key: *const KeyHandle,
    offset: u64,
    memory: *mut c_void,
    len: usize,
    how: *const How,
    request: *mut u64,
) -> i32 {
    how::no_number(request);
    answer(object::<KeyObject, _>(key).and_then(|object| {
        let told = how::read(how, 0, &object.endpoint.worker)?;
        let to = given(memory, len)?;
        // SAFETY: the caller keeps the memory until the operation has ended.
        object.post(request, &told, |endpoint| unsafe {
            endpoint.get_raw(to, len, &object.key, offset)
        })
    }))
}

/// Gets the memory after a provider has not completed the inline attempt.
#[cold]
#[inline(never)]
fn get_further(
    key: *const KeyHandle,
    BytesThere { start, len, offset }: BytesThere,
    request: *mut u64,
    tried: Tried,
) -> i32 {
    answer(object::<KeyObject, _>(key).and_then(|object| {
        // SAFETY: the caller keeps the memory until the operation has ended.
        object.post(request, &how::USUAL, |endpoint| unsafe {
            endpoint.get_raw_further(tried, start.cast_mut(), len, &object.key, offset)
        })
    }))
}

/// Applies an atomic as tieline_fetch does, and stores the old value at `result` when the operation has succeeded: `width` bytes of any
/// alignment. `result` must stay valid until the operation has ended. The call serves operations that are counted, and operations whose
/// request number the caller does not use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tieline_fetch_raw(
    key: *const KeyHandle,
    op: u32,
    width: u32,
    offset: u64,
    operand: u64,
    compare: u64,
    result: *mut c_void,
    how: *const How,
    request: *mut u64,
) -> i32 {
    how::no_number(request);
    answer(object::<KeyObject, _>(key).and_then(|object| {
        let told = how::read(how, 0, &object.endpoint.worker)?;
        if result.is_null() {
            return Err::<_, Fault>(null("where the old value goes"));
        }
        let ((op, width), key, to) = (call(op, width)?, &object.key, result.cast());
        // SAFETY: the caller keeps the place until the operation has ended.
        object.post(request, &told, |endpoint| unsafe {
            match op {
                Call::Update(op) => endpoint.fetch_raw(op, width, key, offset, operand, to),
                Call::Compare => {
                    endpoint.compare_swap_raw(width, key, offset, compare, operand, to)
                }
            }
        })
    }))
}
