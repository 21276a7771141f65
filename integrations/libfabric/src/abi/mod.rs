//! The functions that libfabric calls.
//!
//! The `SAFETY` comments here rely on the contract of the interface. The caller passes objects of this provider that are not closed.
//! Its records and buffers are valid for the call. A buffer of an operation is valid until the operation's completion. With
//! `FI_THREAD_DOMAIN` the caller serializes the calls of a domain; otherwise the domain's lock does.

#![allow(unsafe_code)]
// libfabric gives its functions these parameters.
#![allow(clippy::too_many_arguments)]

mod atomic;
pub(crate) mod buffer;
mod cm;
mod collective;
mod counter;
mod cq;
mod domain;
mod endpoint;
mod enter;
mod eq;
mod fabric;
mod info;
mod library;
mod memory;
mod message;
mod object;
mod poll;
#[cfg(test)]
mod refusal_tests;
mod rma;
pub(crate) mod socket;
mod tagged;
pub(crate) mod thread;
mod vector;
pub(crate) mod wait;

pub(crate) use library::warn;

use core::cell::UnsafeCell;
use core::ffi::c_void;
use tieline_libfabric_abi::{fi_provider, version};

/// The version of the provider: that of Tieline.
pub(crate) const VERSION: u32 = version(0, 2);

const _: () = assert!(
    matches!(env!("CARGO_PKG_VERSION_MINOR").as_bytes(), b"2"),
    "VERSION is not that of Tieline"
);

/// The record that libfabric keeps. libfabric writes to its `context`.
struct Provider(UnsafeCell<fi_provider>);

// SAFETY: this crate writes the record only in `fi_prov_ini`, which libfabric calls once, before any other function.
unsafe impl Sync for Provider {}

static PROVIDER: Provider = Provider(UnsafeCell::new(fi_provider {
    version: VERSION,
    fi_version: 0,
    context: [core::ptr::null_mut(); 4],
    name: c"tieline".as_ptr(),
    getinfo: info::getinfo,
    fabric: fabric::open,
    cleanup,
}));

unsafe extern "C" fn cleanup() {}

/// Returns the provider's record to libfabric, which calls this function after loading the shared object. It opens nothing.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fi_prov_ini() -> *mut c_void {
    let record = PROVIDER.0.get();
    // SAFETY: libfabric calls this function before it uses the record.
    unsafe { (*record).fi_version = library::version() };
    record.cast()
}
