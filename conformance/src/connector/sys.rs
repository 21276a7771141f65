//! The C table of a connector behind a type that closes it.

#![allow(unsafe_code)]

use crate::abi::Guarded;
use crate::interface::Received;
use crate::sys::{Domain, bytes, overrun, status};
use crate::watch::call;
use core::ffi::c_void;
use core::ptr;
use std::sync::Arc;
use tieline_host::abi::ConnectorTable;
use tieline_plugin_api::abi::{Event, InterfaceParams};
use tieline_plugin_api::{Failure, Status};

pub(crate) struct Connector {
    domain: Arc<Domain>,
    handle: *mut c_void,
}

impl Drop for Connector {
    fn drop(&mut self) {
        let _call = call("close");
        // SAFETY: the connector is open and is closed once.
        unsafe { (self.ops().close)(self.handle) }
    }
}

impl Connector {
    pub(crate) fn open(domain: &Arc<Domain>, module: &str) -> Result<Connector, Failure> {
        let provider = domain.provider;
        let _call = call("open_connector");
        let mut worker_id = [0; 16];
        worker_id[..4].copy_from_slice(&std::process::id().to_ne_bytes());
        let params = InterfaceParams {
            module: module.as_ptr(),
            module_len: module.len(),
            worker_id,
            ..InterfaceParams::empty()
        };
        let mut handle = ptr::null_mut();
        // SAFETY: the domain is open, the record is complete, and `handle` takes the handle.
        let _ = provider.check(unsafe {
            (provider.tables.domain.open_connector)(domain.handle, &params, &mut handle)
        })?;
        Ok(Connector { domain: Arc::clone(domain), handle })
    }

    fn ops(&self) -> &'static ConnectorTable {
        &self.domain.provider.tables.connector
    }

    pub(crate) fn address(&self, capacity: usize) -> Result<Vec<u8>, Status> {
        let _call = call("address");
        // SAFETY: the connector is open, and the buffer has that capacity.
        bytes(|out, capacity| unsafe { (self.ops().address)(self.handle, out, capacity) }, capacity)
    }

    /// Returns the length of the address, and whether a buffer of `capacity` bytes was overrun.
    pub(crate) fn address_into(&self, capacity: usize) -> (i64, bool) {
        // SAFETY: the connector is open, and the buffer is larger than stated.
        overrun(|out, room| unsafe { (self.ops().address)(self.handle, out, room) }, capacity)
    }

    pub(crate) fn reachable(&self, address: &[u8]) -> Result<(), Failure> {
        let _call = call("reachable");
        let guarded = Guarded::bytes(address);
        // SAFETY: the connector is open; the address is borrowed for the call.
        let code = unsafe { (self.ops().reachable)(self.handle, guarded.as_ptr(), address.len()) };
        self.domain.provider.check(code).map(|_| ())
    }

    pub(crate) fn send(&self, address: &[u8], datagram: &[u8]) -> Result<(), Status> {
        let _call = call("send");
        let (to, data) = (Guarded::bytes(address), Guarded::bytes(datagram));
        // SAFETY: the connector is open; address and datagram are borrowed for the call.
        let code = unsafe {
            (self.ops().send)(
                self.handle,
                to.as_ptr(),
                address.len(),
                data.as_ptr(),
                datagram.len(),
            )
        };
        status(code.into()).map(|_| ())
    }

    pub(crate) fn poll(&self, max: usize) -> Result<Vec<Received>, Status> {
        let _call = call("poll");
        let mut events = vec![Event::empty(); max];
        // SAFETY: the connector is open, and the array has `max` events.
        let count =
            status(unsafe { (self.ops().poll)(self.handle, events.as_mut_ptr(), max as u32) })?
                as usize;
        assert!(count <= max, "poll returned {count} events in an array of {max}");
        // SAFETY: the payloads are valid until the next poll.
        Ok(events[..count].iter().map(|event| unsafe { Received::of(event) }).collect())
    }

    /// Prepares to sleep. Returns `true` if the caller may sleep.
    pub(crate) fn arm(&self) -> Result<bool, Status> {
        let _call = call("arm");
        // SAFETY: the connector is open.
        Ok(status(unsafe { (self.ops().arm)(self.handle) }.into())? == 0)
    }

    pub(crate) fn event_fd(&self) -> Result<i32, Status> {
        let _call = call("event_fd");
        // SAFETY: the connector is open.
        Ok(status(unsafe { (self.ops().event_fd)(self.handle) }.into())? as i32)
    }
}
