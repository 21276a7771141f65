//! The functions of libfabric itself that the provider calls.
//!
//! They are looked up at run time in the library that has loaded the provider, so the provider is built without libfabric and works
//! with every version from 1.17 on. The lookup finds the newest form of each function, which fits the records of that library.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use tieline_libfabric_abi::{API, fi_info};

/// The library's handle: 0 if it was not looked for, and [`NONE`] if there is no such library.
static LIBRARY: AtomicUsize = AtomicUsize::new(0);
const NONE: usize = usize::MAX;

/// Looks up one function. Libraries that carry their own libfabric may have given it another file name.
fn find(name: &CStr) -> *mut c_void {
    if LIBRARY.load(Ordering::Acquire) == 0 {
        // SAFETY: the flags open nothing: the call only finds a library that is already loaded.
        let found = unsafe {
            libc::dlopen(c"libfabric.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY)
        };
        let handle = if found.is_null() { loaded_elsewhere() } else { found.expose_provenance() };
        // Several threads find the same library.
        LIBRARY.store(if handle == 0 { NONE } else { handle }, Ordering::Release);
    }
    let handle = match LIBRARY.load(Ordering::Acquire) {
        NONE => libc::RTLD_DEFAULT,
        handle => core::ptr::with_exposed_provenance_mut(handle),
    };
    // SAFETY: the handle is open, because the library that loaded the provider stays loaded; the name ends with a zero.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}

/// Finds a library that exports libfabric's functions under another file name.
fn loaded_elsewhere() -> usize {
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _: usize,
        found: *mut c_void,
    ) -> c_int {
        // SAFETY: the system passes a valid record, and `found` is the caller's variable.
        unsafe {
            let name = (*info).dlpi_name;
            if name.is_null()
                || !CStr::from_ptr(name)
                    .to_bytes()
                    .windows(6)
                    .any(|w| w == b"fabric" || w == b"libmpi")
            {
                return 0;
            }
            let handle = libc::dlopen(name, libc::RTLD_NOLOAD | libc::RTLD_LAZY);
            if handle.is_null() || libc::dlsym(handle, c"fi_dupinfo".as_ptr()).is_null() {
                return 0;
            }
            *found.cast::<usize>() = handle.expose_provenance();
            1
        }
    }
    let mut found = 0usize;
    // SAFETY: the function has the type that the call expects, and `found` outlives the call.
    let _ = unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}

/// Returns libfabric's version; the oldest supported one if the function is missing.
pub(super) fn version() -> u32 {
    let at = find(c"fi_version");
    if at.is_null() {
        return API;
    }
    // SAFETY: libfabric declares the function so.
    let call: unsafe extern "C" fn() -> u32 = unsafe { core::mem::transmute(at) };
    // SAFETY: the function has no precondition.
    unsafe { call() }
}

/// Allocates an empty answer to `fi_getinfo`; null if libfabric has no memory.
pub(super) fn allocate_info() -> *mut fi_info {
    let at = find(c"fi_dupinfo");
    if at.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: libfabric declares the function so.
    let call: unsafe extern "C" fn(*const fi_info) -> *mut fi_info =
        unsafe { core::mem::transmute(at) };
    // SAFETY: null requests an empty record.
    unsafe { call(core::ptr::null()) }
}

/// Frees a record of [`allocate_info`].
pub(super) fn free_info(info: *mut fi_info) {
    let at = find(c"fi_freeinfo");
    if at.is_null() {
        return;
    }
    // SAFETY: libfabric declares the function so.
    let call: unsafe extern "C" fn(*mut fi_info) = unsafe { core::mem::transmute(at) };
    // SAFETY: the record is one of `allocate_info`, which nobody else has.
    unsafe { call(info) }
}

/// The level and subsystem of libfabric's log that this provider uses: warnings of the domain and its objects.
const WARN: c_int = 0;
const DOMAIN: c_int = 2;

/// Writes a warning to libfabric's log, which the user switches on with `FI_LOG_LEVEL`.
pub(crate) fn warn(text: &str) {
    let (enabled, log) = (find(c"fi_log_enabled"), find(c"fi_log"));
    let Ok(text) = std::ffi::CString::new(text) else { return };
    if enabled.is_null() || log.is_null() {
        return;
    }
    let provider: *const c_void = super::PROVIDER.0.get().cast();
    type Enabled = unsafe extern "C" fn(*const c_void, c_int, c_int) -> c_int;
    type Log =
        unsafe extern "C" fn(*const c_void, c_int, c_int, *const c_char, c_int, *const c_char, ...);
    // SAFETY: libfabric declares the functions so; the record is the provider's, and the strings end with a zero.
    unsafe {
        let enabled: Enabled = core::mem::transmute(enabled);
        let log: Log = core::mem::transmute(log);
        if enabled(provider, WARN, DOMAIN) != 0 {
            log(provider, WARN, DOMAIN, c"tieline".as_ptr(), 0, c"%s\n".as_ptr(), text.as_ptr());
        }
    }
}
