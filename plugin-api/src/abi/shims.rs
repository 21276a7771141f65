//! The functions between the C tables and the safe traits.
//!
//! The shims catch panics on the provider's side of the boundary. The provider is then poisoned. The call, and every later control
//! call, returns `PROVIDER_FAILED` if it has a result; a later `close` still drops its object. Data calls test no flag: the core
//! takes a provider out of use when it gets `PROVIDER_FAILED`.

mod connector;
mod domain;
mod endpoint;
mod interface;
mod provider;
#[cfg(test)]
mod short_tests;
#[cfg(test)]
mod tests;

pub use provider::entry;

use super::*;
use crate::flags::not_understood;
use crate::provider::Posted;
use crate::{Failure, OK, Status};
use core::cell::RefCell;
use core::panic::AssertUnwindSafe;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use std::panic::catch_unwind;

thread_local! {
    /// The calling thread's last error, for `ProviderOps::last_error`.
    static LAST_ERROR: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Stores the text for `ProviderOps::last_error`: the reason of a call on this thread that is about to return only a status.
pub fn explain(text: &str) {
    remember(text);
}

fn remember(text: &str) {
    // The variable has ended in a thread that is ending, and in a function that `exit` calls: then there is no text.
    let _ = LAST_ERROR.try_with(|last| {
        let mut last = last.borrow_mut();
        last.clear();
        last.push_str(text);
    });
}

/// An object behind a `void *`, with the flag of its provider.
struct Shared<T> {
    inner: T,
    poisoned: &'static AtomicBool,
}

impl<T> Shared<T> {
    fn into_raw(inner: T, poisoned: &'static AtomicBool) -> *mut c_void {
        Box::into_raw(Box::new(Shared { inner, poisoned })).cast()
    }
}

/// Returns the object behind a handle.
///
/// # Safety
/// `handle` came from [`Shared::into_raw`] with the same `T` and was not closed.
#[inline]
unsafe fn shared<'a, T>(handle: *mut c_void) -> &'a Shared<T> {
    // SAFETY: the caller's promise.
    unsafe { &*handle.cast::<Shared<T>>() }
}

/// Runs a control call: refuses it if poisoned, stores the text of a failure, catches panics.
fn guarded(poisoned: &AtomicBool, body: impl FnOnce() -> Result<i64, Failure>) -> i64 {
    if poisoned.load(Ordering::Relaxed) {
        remember("the provider panicked earlier and is not used any more");
        return i64::from(Status::ProviderFailed as i32);
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => {
            remember(&failure.text);
            i64::from(failure.status as i32)
        }
        Err(panic) => poison(poisoned, &panic),
    }
}

#[cold]
fn poison(poisoned: &AtomicBool, panic: &Box<dyn core::any::Any + Send>) -> i64 {
    poisoned.store(true, Ordering::Relaxed);
    let text = panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_string())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_string());
    remember(&format!("the provider panicked: {text}"));
    i64::from(Status::ProviderFailed as i32)
}

/// Runs a data call: tests no flag, stores no text, and catches panics.
#[inline]
fn hot(poisoned: &AtomicBool, body: impl FnOnce() -> i64) -> i64 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => value,
        Err(panic) => poison(poisoned, &panic),
    }
}

#[inline]
fn posted(result: Posted) -> i64 {
    match result {
        Ok(posting) => i64::from(posting as i32),
        Err(status) => i64::from(status as i32),
    }
}

fn code(value: i64) -> i32 {
    value as i32
}

/// Reads a parameter record by the tail rule.
///
/// # Safety
/// `params` is null or points to a record whose first field is its size.
unsafe fn read_params<T: Copy>(params: *const T, record: T) -> Result<T, Failure> {
    if params.is_null() {
        return Err(Failure::new(Status::Invalid, "the parameter record is null"));
    }
    // SAFETY: the caller promises that the first field of every parameter record is `size: usize`.
    unsafe { read_params_of(params, *params.cast::<usize>(), record) }
}

/// Reads a parameter record of `size` bytes like [`read_params`], whatever its own size field contains.
///
/// # Safety
/// `params` points to `size` bytes.
pub(super) unsafe fn read_params_of<T: Copy>(
    params: *const T,
    size: usize,
    mut record: T,
) -> Result<T, Failure> {
    let known = size_of::<T>();
    // SAFETY: the caller promises that `size` bytes can be read; at most the present record is written.
    unsafe {
        ptr::copy_nonoverlapping(
            params.cast::<u8>(),
            ptr::from_mut(&mut record).cast::<u8>(),
            size.min(known),
        );
    }
    for at in known..size.min(known + 4096) {
        // SAFETY: `at < size`.
        if unsafe { *params.cast::<u8>().add(at) } != 0 {
            return Err(Status::UnsupportedParam.into());
        }
    }
    Ok(record)
}

/// Refuses mandatory flags that are not among the `known` ones.
fn understood(what: &str, flags: u64, known: u64) -> Result<(), Failure> {
    match not_understood(flags, known) {
        0 => Ok(()),
        bits => {
            let text = format!("unknown {what}: {bits:#x}; the provider is older than its core");
            Err(Failure::new(Status::UnsupportedParam, text))
        }
    }
}

/// Writes an attribute record by the tail rule: `min(size)` bytes; the caller's `size` stays.
///
/// # Safety
/// `out` points to a record whose first field is its size.
pub(super) unsafe fn write_attr<T: Copy>(out: *mut T, value: &T) {
    // SAFETY: the first field of every attribute record is `size: usize`.
    let size = unsafe { *out.cast::<usize>() }.min(size_of::<T>());
    let skip = size_of::<usize>();
    if size > skip {
        // SAFETY: both records are at least `size` bytes long.
        unsafe {
            ptr::copy_nonoverlapping(
                ptr::from_ref(value).cast::<u8>().add(skip),
                out.cast::<u8>().add(skip),
                size - skip,
            );
        }
    }
}

/// Writes a list of attribute records. The elements are `stride` bytes apart, which is the caller's size of one record.
///
/// # Safety
/// `out` points to `capacity` records whose first element's `size` is set; `count` is writable.
unsafe fn write_list<T: Copy>(
    values: &[T],
    out: *mut T,
    capacity: usize,
    count: *mut usize,
) -> Result<i64, Failure> {
    if count.is_null() || (out.is_null() && capacity > 0) {
        return Err(Failure::new(Status::Invalid, "the list or its count is null"));
    }
    // SAFETY: `count` is writable.
    unsafe { *count = values.len() };
    if capacity > 0 {
        // SAFETY: the first record's size is the distance between records.
        let stride = unsafe { *out.cast::<usize>() };
        for (i, value) in values.iter().take(capacity).enumerate() {
            // SAFETY: the element is `i < capacity` of the caller's array.
            unsafe {
                let slot = out.cast::<u8>().add(i * stride).cast::<T>();
                slot.cast::<usize>().write_unaligned(stride);
                write_attr(slot, value);
            }
        }
    }
    Ok(0)
}

/// Borrows text or bytes that are given as pointer and length.
///
/// # Safety
/// `ptr` is null or readable for `len` bytes during the call.
#[inline]
unsafe fn bytes<'a>(ptr: *const u8, len: usize) -> &'a [u8] {
    if ptr.is_null() {
        &[]
    } else {
        // SAFETY: the caller's promise; without bytes, any pointer but null is valid.
        unsafe { core::slice::from_raw_parts(ptr, len) }
    }
}

/// Borrows the bytes of a short message, in fewer instructions than [`bytes`].
///
/// # Safety
/// `ptr` is readable for `len` bytes during the call. It may be null if `len` is 0.
#[inline(always)]
unsafe fn short_bytes<'a>(ptr: *const u8, len: usize) -> &'a [u8] {
    let not_null = ptr.wrapping_add(usize::from(ptr.is_null()));
    // SAFETY: the caller's promise; without bytes, any pointer but null is valid.
    unsafe { core::slice::from_raw_parts(not_null, len) }
}

/// # Safety
/// As [`bytes`].
unsafe fn text<'a>(ptr: *const u8, len: usize) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    core::str::from_utf8(unsafe { bytes(ptr, len) })
        .map_err(|_| Failure::new(Status::Invalid, "a name is not UTF-8"))
}

/// Borrows the caller's buffer.
///
/// # Safety
/// `out` is writable for `capacity` initialised bytes during the call, or null with a capacity of 0.
unsafe fn room<'a>(out: *mut u8, capacity: usize) -> &'a mut [u8] {
    if out.is_null() || capacity == 0 {
        &mut []
    } else {
        // SAFETY: the caller's promise.
        unsafe { core::slice::from_raw_parts_mut(out, capacity) }
    }
}

/// Writes bytes into the caller's buffer and returns their whole length, as `address` and `pack_key` do.
///
/// # Safety
/// `out` is writable for `capacity` bytes, or null with a capacity of 0.
unsafe fn write_bytes(value: &[u8], out: *mut u8, capacity: usize) -> i64 {
    if !out.is_null() {
        // SAFETY: at most `capacity` bytes are written.
        unsafe { ptr::copy_nonoverlapping(value.as_ptr(), out, value.len().min(capacity)) };
    }
    value.len() as i64
}

unsafe extern "C" fn close<T>(handle: *mut c_void) {
    // SAFETY: the handle came from `Shared::into_raw` with this type, and the core closes it once.
    let this = unsafe { Box::from_raw(handle.cast::<Shared<T>>()) };
    let poisoned = this.poisoned;
    if let Err(panic) = catch_unwind(AssertUnwindSafe(move || drop(this))) {
        let _ = poison(poisoned, &panic);
    }
}
