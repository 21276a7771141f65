//! Loads libfabric, and only on request, because its constructors and those of its dependencies take time, install signal handlers
//! and keep descriptors open.
//!
//! The functions that take `fi_info` are looked up by the symbol version that has the layouts of `abi.rs` (`FABRIC_1.3`, which API
//! 1.17 still has). A newer library translates the records passed through that version. The records that the library returns begin
//! with these layouts. Apart from `fi_fabric` and `fi_version`, everything else is called through the library's tables, as the
//! inline functions of its headers do (`sys.rs`).

#![allow(unsafe_code)]

use crate::abi::*;
use core::ffi::{c_char, c_int, c_void};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tieline_plugin_api::process::Owner;
use tieline_plugin_api::{Failure, Status};

/// A loaded library, which stays loaded for the life of the process.
pub(crate) struct Library {
    pub(crate) getinfo: unsafe extern "C" fn(
        u32,
        *const c_char,
        *const c_char,
        u64,
        *const fi_info,
        *mut *mut fi_info,
    ) -> c_int,
    pub(crate) dupinfo: unsafe extern "C" fn(*const fi_info) -> *mut fi_info,
    pub(crate) freeinfo: unsafe extern "C" fn(*mut fi_info),
    pub(crate) fabric:
        unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int,
    /// The version of the library.
    pub(crate) version: u32,
    /// The time that loading took.
    pub(crate) took: Duration,
    /// The signals whose handlers the library replaced and this provider restored.
    pub(crate) signals: Vec<c_int>,
}

/// The dispositions of all signals.
struct Signals(Vec<(c_int, libc::sigaction)>);

impl Signals {
    fn now() -> Signals {
        let of = |signal| {
            // SAFETY: the record consists of integers and pointers, for which zero is valid; the call only writes the record.
            let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
            // SAFETY: the call only reads the disposition into a record with enough room.
            let code = unsafe { libc::sigaction(signal, core::ptr::null(), &raw mut action) };
            (code == 0).then_some((signal, action))
        };
        Signals((1..=64).filter_map(of).collect())
    }

    /// Restores every disposition whose handler or flags have changed since the record was made, and returns the signals concerned.
    fn restore(&self) -> Vec<c_int> {
        let now = Signals::now();
        let changed = self.0.iter().zip(&now.0).filter(|(old, new)| {
            old.0 == new.0
                && (old.1.sa_sigaction, old.1.sa_flags) != (new.1.sa_sigaction, new.1.sa_flags)
        });
        changed
            .map(|((signal, old), _)| {
                // SAFETY: the call restores the disposition that this signal had before the library was loaded.
                let _ = unsafe { libc::sigaction(*signal, old, core::ptr::null_mut()) };
                *signal
            })
            .collect()
    }
}

/// Runs `act` and restores the signal dispositions that it changed.
#[cfg(not(test))]
pub(crate) fn keeping_signals<T>(act: impl FnOnce() -> T) -> T {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let signals = Signals::now();
    let done = act();
    let _ = signals.restore();
    done
}

/// Runs `act`, because the simulated library changes no dispositions.
#[cfg(test)]
pub(crate) fn keeping_signals<T>(act: impl FnOnce() -> T) -> T {
    act()
}

/// Returns the library of that name; the first call loads it.
///
/// # Errors
/// The file cannot be loaded, the library is too old, its trial failed, or this is a forked child whose parent has loaded it.
#[cfg(not(test))]
pub(crate) fn library(name: &str) -> Result<&'static Library, Failure> {
    real(name)
}

/// Returns the simulated library.
#[cfg(test)]
pub(crate) fn library(_: &str) -> Result<&'static Library, Failure> {
    static PLAYED: std::sync::OnceLock<Library> = std::sync::OnceLock::new();
    taken_by_this_process()?;
    Ok(PLAYED.get_or_init(crate::double::sys::library))
}

/// The process that owns libfabric. The library opens devices, starts threads and takes locks, none of which a forked child may
/// use.
static OWNER: Owner = Owner::new();

/// Checks that this process may use libfabric. The check precedes any lock: in a forked child the holder of a lock may be a thread
/// that does not exist there.
fn taken_by_this_process() -> Result<(), Failure> {
    if OWNER.take() {
        return Ok(());
    }
    let text = "this is a forked child, and its parent has loaded libfabric or tried to: libfabric opens devices, starts threads and \
                takes locks for the parent alone. Start the child by exec, fork before a context is opened, or leave ofi out of the child's \
                TIELINE_PROVIDERS";
    Err(Failure::new(Status::Unsupported, text))
}

/// Returns the library in a file, which tests compare with the simulated one.
pub(crate) fn real(name: &str) -> Result<&'static Library, Failure> {
    static LOADED: Mutex<Option<HashMap<String, Result<&'static Library, Failure>>>> =
        Mutex::new(None);
    taken_by_this_process()?;
    // The lock is held during loading, because signal dispositions belong to the whole process.
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let known = loaded.get_or_insert_default();
    if let Some(result) = known.get(name) {
        return result.clone();
    }
    let result = load(name).map(|library| &*Box::leak(Box::new(library)));
    let _ = known.insert(name.to_owned(), result.clone());
    result
}

/// Opens the file, which is never closed.
pub(crate) fn open(name: &CStr) -> *mut c_void {
    // SAFETY: the name is terminated. `load` undoes the effects of constructors on the process where possible.
    unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE) }
}

/// Returns the function of this name; if functions are versioned, in the version with the layouts of `abi.rs`.
pub(crate) fn symbol(handle: *mut c_void, name: &CStr, versioned: bool) -> *mut c_void {
    // SAFETY: the handle is that of an open library, and the names are terminated.
    unsafe {
        match versioned {
            true => libc::dlvsym(handle, name.as_ptr(), c"FABRIC_1.3".as_ptr()),
            false => libc::dlsym(handle, name.as_ptr()),
        }
    }
}

fn load(name: &str) -> Result<Library, Failure> {
    let missing = |why: String| Failure::new(Status::NoDevice, why);
    let file = CString::new(name).map_err(|_| missing(format!("{name:?} is no file's name")))?;
    crate::trial::passed(&file)?;
    let (began, signals) = (Instant::now(), Signals::now());
    let handle = open(&file);
    if handle.is_null() {
        // SAFETY: dlerror returns null or a terminated text that remains valid until the next call on this thread.
        let why = unsafe {
            let text = libc::dlerror();
            if text.is_null() { None } else { Some(CStr::from_ptr(text).to_string_lossy()) }
        };
        let why = why.as_deref().unwrap_or("no reason given").to_owned();
        let _ = signals.restore();
        return Err(missing(format!(
            "{name} cannot be loaded ({why}): install libfabric1, or name another file in TIELINE_OFI_LIBRARY"
        )));
    }
    let bound = bind(handle, name);
    // The first query makes the library load its own dependencies.
    if let Ok(library) = &bound {
        crate::offers::sys::Infos::ask_first(library);
    }
    let signals = signals.restore();
    bound.map(|library| Library { took: began.elapsed(), signals, ..library })
}

fn bind(handle: *mut c_void, name: &str) -> Result<Library, Failure> {
    let found = |function: &CStr, versioned: bool| {
        let at = symbol(handle, function, versioned);
        let text = format!(
            "{name} has no function {} of libfabric 1.17 or newer",
            function.to_string_lossy()
        );
        if at.is_null() { Err(Failure::new(Status::NoDevice, text)) } else { Ok(at) }
    };
    let (getinfo, dupinfo) = (found(c"fi_getinfo", true)?, found(c"fi_dupinfo", true)?);
    let (freeinfo, fabric) = (found(c"fi_freeinfo", true)?, found(c"fi_fabric", false)?);
    let version = found(c"fi_version", false)?;
    // SAFETY: each is the function of this name and version, with the signature that `fabric.h` declares.
    let (library, version) = unsafe {
        let version: unsafe extern "C" fn() -> u32 = core::mem::transmute(version);
        let library = Library {
            getinfo: core::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(
                    u32,
                    *const c_char,
                    *const c_char,
                    u64,
                    *const fi_info,
                    *mut *mut fi_info,
                ) -> c_int,
            >(getinfo),
            dupinfo: core::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(*const fi_info) -> *mut fi_info,
            >(dupinfo),
            freeinfo: core::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut fi_info)>(
                freeinfo,
            ),
            fabric: core::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(
                    *mut fi_fabric_attr,
                    *mut *mut fid_fabric,
                    *mut c_void,
                ) -> c_int,
            >(fabric),
            version: 0,
            took: Duration::ZERO,
            signals: Vec::new(),
        };
        (library, version())
    };
    if version < API {
        let text = format!(
            "{name} is libfabric {}: {} or newer is needed",
            crate::config::shown(version),
            crate::config::shown(API)
        );
        return Err(Failure::new(Status::NoDevice, text));
    }
    Ok(Library { version, ..library })
}
