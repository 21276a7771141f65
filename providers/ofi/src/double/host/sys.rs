//! A host double that records the messages to it.

#![allow(unsafe_code)]

use crate::double::world::world;
use core::ffi::c_void;
use tieline_plugin_api::HostHandle;
use tieline_plugin_api::abi::{AsyncEvent, Host};

/// Returns a host whose only function records messages.
pub(crate) fn host() -> HostHandle {
    let table = Box::leak(Box::new(Host { async_event: Some(report), ..Host::empty() }));
    // SAFETY: the table is never freed.
    unsafe { HostHandle::new(table) }.unwrap()
}

unsafe extern "C" fn report(_: *mut c_void, event: *const AsyncEvent) {
    // SAFETY: the record and its text belong to the provider and are borrowed for the call.
    let text = unsafe { core::slice::from_raw_parts((*event).text, (*event).text_len) };
    world(|world| world.told.push(String::from_utf8_lossy(text).into_owned()));
}
