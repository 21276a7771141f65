//! The host double for a domain on the device double.

#![allow(unsafe_code)]

use crate::double::world::world;
use core::ffi::c_void;

/// Returns a host that records device events and log lines and ignores everything else.
pub(crate) fn host() -> tieline_plugin_api::HostHandle {
    use tieline_plugin_api::abi::Host;
    let table =
        Box::leak(Box::new(Host { async_event: Some(report), log: Some(log), ..Host::empty() }));
    // SAFETY: the table is never freed.
    unsafe { tieline_plugin_api::HostHandle::new(table) }.unwrap()
}

unsafe extern "C" fn log(_: *mut c_void, _: u32, text: *const u8, len: usize) {
    // SAFETY: the text belongs to the provider and is borrowed for the call.
    let text = unsafe { core::slice::from_raw_parts(text, len) };
    world(|world| world.logged.push(String::from_utf8_lossy(text).into_owned()));
}

unsafe extern "C" fn report(_: *mut c_void, event: *const tieline_plugin_api::abi::AsyncEvent) {
    // SAFETY: the record and its text belong to the provider and are borrowed for the call.
    let (kind, domain) = unsafe {
        ((*event).kind, core::slice::from_raw_parts((*event).domain, (*event).domain_len))
    };
    world(|world| world.reported.push((kind, String::from_utf8_lossy(domain).into_owned())));
}
