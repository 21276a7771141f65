//! Loads libibverbs when the first device is opened, not earlier. A machine without RDMA only pays for looks into
//! `/sys/class/infiniband`, and building needs neither headers nor library.
//!
//! The inline functions of `verbs.h` (post, poll, request notification) are called through the function table of the device's
//! context, like in the header itself; see `sys.rs`.

#![allow(unsafe_code)]

use crate::abi::*;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use tieline_plugin_api::process::PerProcess;
use tieline_plugin_api::{Failure, Status};

/// The file name of the library.
pub(crate) const LIBRARY: &CStr = c"libibverbs.so.1";

/// Declares the functions of a library: first those that version `$version` of rdma-core and newer ones have, then those that older
/// versions may lack.
macro_rules! functions {
    (
        $library:expr, $version:literal,
        [ $( $name:ident: fn($($argument:ty),*) -> $result:ty; )* ]
        [ $( $newer:ident: fn($($taken:ty),*) -> $made:ty; )* ]
    ) => {
        /// The functions of the library that are called by name.
        pub(crate) struct Library {
            $( pub(crate) $name: unsafe extern "C" fn($($argument),*) -> $result, )*
            $( pub(crate) $newer: Option<unsafe extern "C" fn($($taken),*) -> $made>, )*
        }

        impl Library {
            /// Opens the library, and looks the functions up. `packages` are the packages to install.
            #[cfg_attr(test, allow(dead_code))]
            fn open(name: &CStr, packages: &str) -> Result<Library, Failure> {
                let handle = $crate::load::open(name, packages)?;
                $(
                    let found = $crate::load::symbol(handle, concat!(stringify!($name), "\0"));
                    if found.is_null() {
                        let text = format!(
                            "{} has no function {}: rdma-core {} or newer is needed",
                            $library.to_string_lossy(), stringify!($name), $version,
                        );
                        return Err(Failure::new(Status::NoDevice, text));
                    }
                    // SAFETY: the library defines the function of this name with this signature (verbs.h, rdma_cma.h).
                    let $name = unsafe {
                        core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> $result>(found)
                    };
                )*
                $(
                    let found = $crate::load::symbol(handle, concat!(stringify!($newer), "\0"));
                    // SAFETY: the pointer is null, or the function of this name with this signature (verbs.h).
                    let $newer = unsafe {
                        core::mem::transmute::<
                            *mut c_void,
                            Option<unsafe extern "C" fn($($taken),*) -> $made>,
                        >(found)
                    };
                )*
                Ok(Library { $( $name, )* $( $newer, )* })
            }
        }
    };
}
pub(crate) use functions;

functions! {
    LIBRARY, "17",
    [
        ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
        ibv_free_device_list: fn(*mut *mut ibv_device) -> ();
        ibv_get_device_name: fn(*mut ibv_device) -> *const c_char;
        ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
        ibv_close_device: fn(*mut ibv_context) -> c_int;
        ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        ibv_get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ibv_ack_async_event: fn(*mut ibv_async_event) -> ();
        ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
        ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
        ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
        ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
        ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
        ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        ibv_resize_cq: fn(*mut ibv_cq, c_int) -> c_int;
        ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
        ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events: fn(*mut ibv_cq, u32) -> ();
        ibv_create_srq: fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
        ibv_destroy_srq: fn(*mut ibv_srq) -> c_int;
        ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
        ibv_create_ah: fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
        ibv_destroy_ah: fn(*mut ibv_ah) -> c_int;
    ]
    [
        ibv_reg_mr_iova2: fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
        ibv_reg_dmabuf_mr: fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
    ]
}

/// Returns libibverbs, which stays loaded for the life of the process.
///
/// # Errors
/// The library cannot be loaded, lacks a function, or would load drivers that the environment of a program with raised rights
/// names. The text has the reason.
pub(crate) fn library() -> Result<&'static Library, Failure> {
    static LOADED: PerProcess<OnceLock<Result<Library, Failure>>> = PerProcess::new();
    LOADED.get_or_init(load).as_ref().map_err(Clone::clone)
}

/// Loads the double of libibverbs, which simulates a device. For tests.
#[cfg(test)]
fn load() -> Result<Library, Failure> {
    Ok(crate::double::sys::library())
}

/// The variables in which libibverbs looks for drivers to load. libibverbs ignores them in set-uid programs, but not in
/// programs with file capabilities.
#[cfg(not(test))]
const DRIVERS: [&str; 2] = ["IBV_DRIVERS", "RDMAV_DRIVERS"];

#[cfg(not(test))]
fn load() -> Result<Library, Failure> {
    if let Some(name) = DRIVERS.iter().find(|name| std::env::var_os(name).is_some()) {
        if tieline_plugin_api::raised_rights() {
            let text = format!(
                "this process runs with raised rights, and libibverbs loads what {name} names"
            );
            return Err(Failure::new(Status::Permission, text));
        }
    }
    Library::open(LIBRARY, "libibverbs1 and ibverbs-providers (rdma-core)")
}

/// Opens a library, which is never closed.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn open(name: &CStr, packages: &str) -> Result<*mut c_void, Failure> {
    // SAFETY: the name is NUL-terminated; the library's constructors only set up its own state.
    let handle = unsafe {
        libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE)
    };
    if !handle.is_null() {
        return Ok(handle);
    }
    // SAFETY: dlerror returns null or a NUL-terminated text that stays valid until the next call on this thread.
    let why = unsafe {
        let text = libc::dlerror();
        if text.is_null() { None } else { Some(CStr::from_ptr(text).to_string_lossy()) }
    };
    let text = format!(
        "{} cannot be loaded ({}): install {packages}",
        name.to_string_lossy(),
        why.as_deref().unwrap_or("no reason given"),
    );
    Err(Failure::new(Status::NoDevice, text))
}

/// Returns the symbol of an open library, or null. The name ends with NUL.
pub(crate) fn symbol(handle: *mut c_void, name: &str) -> *mut c_void {
    debug_assert!(name.ends_with('\0'));
    // SAFETY: the handle is that of an open library, and the name is NUL-terminated.
    unsafe { libc::dlsym(handle, name.as_ptr().cast::<c_char>()) }
}
