//! Objects of libfabric: a record that libfabric's inline functions read, followed by the provider's own part.

use core::ffi::{c_char, c_int, c_void};
use tieline_libfabric_abi::{FI_ENOSYS, fi_ops, fid};

/// An object. The record comes first, so the address of the record is that of the object.
#[repr(C)]
pub(super) struct Object<H, T> {
    head: H,
    pub(super) inner: T,
}

/// Makes an object, and returns the address of its record.
pub(super) fn make<H, T>(head: H, inner: T) -> *mut H {
    Box::into_raw(Box::new(Object { head, inner })).cast()
}

/// Returns the provider's part of an object.
///
/// # Safety
/// `at` is a record that [`make`] returned with the same types, and that was not released.
pub(super) unsafe fn inner<'a, H, T>(at: *mut H) -> &'a T {
    // SAFETY: the caller's promise; the object is only accessed by shared references.
    unsafe { &(*at.cast::<Object<H, T>>()).inner }
}

/// Releases an object.
///
/// # Safety
/// As for [`inner`]; no reference to the object is used any more.
pub(super) unsafe fn release<H, T>(at: *mut H) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(at.cast::<Object<H, T>>()) });
}

/// A table for the life of the process. Tables are shared by all objects of a class, and libfabric never writes to them.
pub(super) struct Table<T>(pub(super) T);

// SAFETY: the tables contain functions and sizes only, and nobody writes to them.
unsafe impl<T> Sync for Table<T> {}

impl<T> Table<T> {
    /// Returns the address in the form that the records have.
    pub(super) fn at(&'static self) -> *mut T {
        (&raw const self.0).cast_mut()
    }
}

/// Makes the common head of an object.
pub(super) fn head(class: usize, context: *mut c_void, ops: &'static Table<fi_ops>) -> fid {
    fid { fclass: class, context, ops: ops.at() }
}

/// Makes the common table of a class of objects.
pub(super) const fn common(
    close: unsafe extern "C" fn(*mut fid) -> c_int,
    bind: unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int,
    control: unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int,
) -> Table<fi_ops> {
    Table(fi_ops {
        size: size_of::<fi_ops>(),
        close,
        bind,
        control,
        ops_open: Some(no_ops_open),
        tostr: Some(no_tostr),
        ops_set: Some(no_ops_set),
    })
}

pub(super) unsafe extern "C" fn no_bind(_: *mut fid, _: *mut fid, _: u64) -> c_int {
    -FI_ENOSYS
}

pub(super) unsafe extern "C" fn no_control(_: *mut fid, _: c_int, _: *mut c_void) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn no_ops_open(
    _: *mut fid,
    _: *const c_char,
    _: u64,
    _: *mut *mut c_void,
    _: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn no_tostr(_: *const fid, _: *mut c_char, _: usize) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn no_ops_set(
    _: *mut fid,
    _: *const c_char,
    _: u64,
    _: *mut c_void,
    _: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}
