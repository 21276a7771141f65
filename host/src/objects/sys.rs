//! Objects in the loader's list: their locations and their finalizers.

#![allow(unsafe_code)]

use crate::abi::watched::{Broke, watched};
use std::ffi::c_void;

/// The public beginning of `struct link_map` in glibc and musl.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const libc::c_char,
    dynamic: *const Dynamic,
}

/// An entry of an object's dynamic section: the ELF's `Elf64_Dyn`.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

fn link_map(handle: *mut c_void) -> *const LinkMap {
    let mut map: *const LinkMap = std::ptr::null();
    // SAFETY: the handle is open; the loader writes one pointer.
    let found =
        unsafe { libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, std::ptr::from_mut(&mut map).cast()) };
    if found == 0 { map } else { std::ptr::null() }
}

/// Runs the finalizers of an object in the loader's order at process exit: the array from its end, then the single one. The object
/// stays mapped, and the finalizers of other objects do not run.
///
/// # Errors
/// A finalizer has changed what its caller keeps.
///
/// # Safety
/// The caller is a child process that ends soon: the addresses of the finalizers come from the object itself.
pub(crate) unsafe fn run_finalizers(handle: *mut c_void) -> Result<(), Broke> {
    const DT_NULL: i64 = 0;
    const DT_FINI: i64 = 13;
    const DT_FINI_ARRAY: i64 = 26;
    const DT_FINI_ARRAYSZ: i64 = 28;
    type Finalizer = *const c_void;
    let map = link_map(handle);
    if map.is_null() {
        return Ok(());
    }
    let (mut single, mut array, mut bytes) = (None, None, None);
    // SAFETY: the caller guarantees the conditions above; the loader has read the same section.
    unsafe {
        let (base, mut entry) = ((*map).base, (*map).dynamic);
        while !entry.is_null() && (*entry).tag != DT_NULL {
            let at = base.wrapping_add((*entry).value);
            match (*entry).tag {
                DT_FINI => single = Some(at),
                DT_FINI_ARRAY => array = Some(at),
                DT_FINI_ARRAYSZ => bytes = Some((*entry).value),
                _ => {}
            }
            entry = entry.add(1);
        }
        if let Some(array) = array {
            let first = std::ptr::with_exposed_provenance::<Finalizer>(array);
            let Some(bytes) = bytes else {
                // The loader of glibc would call a null pointer here.
                let _ = libc::raise(libc::SIGSEGV);
                return Ok(());
            };
            for number in (0..bytes / size_of::<Finalizer>()).rev() {
                let _ = watched(first.add(number).read(), [])?;
            }
        }
        if let Some(at) = single {
            let _ = watched(std::ptr::with_exposed_provenance::<c_void>(at), [])?;
        }
    }
    Ok(())
}

/// Checks whether `address` lies in the object of `handle`. The check is needed because dlsym also searches an object's
/// dependencies, which may include another provider.
///
/// # Safety
/// The handle belongs to an open object.
pub(crate) unsafe fn defined_in(handle: *mut c_void, address: *const c_void) -> bool {
    let map = link_map(handle);
    if map.is_null() {
        return false;
    }
    // SAFETY: the record is the loader's, of an object that is never unloaded.
    let dynamic = unsafe { (*map).dynamic }.cast();
    match (base_of(dynamic), base_of(address)) {
        (Some(object), Some(symbol)) => object == symbol,
        _ => false,
    }
}

pub(crate) fn base_of(address: *const c_void) -> Option<usize> {
    object_of(address).map(|info| info.dli_fbase as usize)
}

pub(crate) fn object_of(address: *const c_void) -> Option<libc::Dl_info> {
    // SAFETY: zero is a valid value of each field.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr accepts any address and writes one record.
    (unsafe { libc::dladdr(address, &mut info) } != 0).then_some(info)
}
