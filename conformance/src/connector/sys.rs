//! The C table of a connector behind a type that closes it.

#![allow(unsafe_code)]

use crate::abi::Guarded;
use crate::interface::Received;
use crate::sys::{CANARY, Domain, bytes, status};
use crate::watch::call;
use core::ffi::c_void;
use core::ptr;
use std::sync::Arc;
use tieline_plugin_api::abi::{ConnectorOps, Event, InterfaceParams};
use tieline_plugin_api::{Failure, Status};

/// An opened connection-only module.
pub(crate) struct Connector {
    domain: Arc<Domain>,
    handle: *mut c_void,
}

impl Drop for Connector {
    fn drop(&mut self) {
        if let Some(f) = self.ops().close {
            let _call = call("close");
            // SAFETY: the connector is open and is closed once.
            unsafe { f(self.handle) }
        }
    }
}

impl Connector {
    pub(crate) fn open(domain: &Arc<Domain>, module: &str) -> Result<Connector, Failure> {
        let provider = domain.provider;
        let _call = call("open_connector");
        let f = provider.domain.open_connector.ok_or(Status::Unsupported)?;
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
        let _ = provider.check(unsafe { f(domain.handle, &params, &mut handle) })?;
        Ok(Connector { domain: Arc::clone(domain), handle })
    }

    pub(crate) fn ops(&self) -> &'static ConnectorOps {
        &self.domain.provider.connector
    }

    pub(crate) fn address(&self, capacity: usize) -> Result<Vec<u8>, Status> {
        let _call = call("address");
        let f = self.ops().address.ok_or(Status::Unsupported)?;
        // SAFETY: the connector is open, and the buffer has that capacity.
        bytes(|out, capacity| unsafe { f(self.handle, out, capacity) }, capacity)
    }

    /// Returns the length of the address, and whether a buffer of `capacity` bytes was overrun.
    pub(crate) fn address_into(&self, capacity: usize) -> (i64, bool) {
        let Some(f) = self.ops().address else { return (0, false) };
        let mut out = vec![CANARY; capacity + 64];
        // SAFETY: the connector is open, and the buffer is larger than stated.
        let len = unsafe { f(self.handle, out.as_mut_ptr(), capacity) };
        (len, out[capacity..].iter().any(|&b| b != CANARY))
    }

    /// Asks for reachability, as [`crate::interface::Interface::reachable`] does.
    pub(crate) fn reachable(&self, address: &[u8]) -> Result<(), Failure> {
        let Some(f) = self.ops().reachable else { return Err(Status::Unsupported.into()) };
        let _call = call("reachable");
        let guarded = Guarded::bytes(address);
        // SAFETY: the connector is open; the address is borrowed for the call.
        let code = unsafe { f(self.handle, guarded.as_ptr(), address.len()) };
        self.domain.provider.check(code).map(|_| ())
    }

    pub(crate) fn send(&self, address: &[u8], datagram: &[u8]) -> Result<(), Status> {
        let _call = call("send");
        let f = self.ops().send.ok_or(Status::Unsupported)?;
        let (to, data) = (Guarded::bytes(address), Guarded::bytes(datagram));
        // SAFETY: the connector is open; address and datagram are borrowed for the call.
        let code =
            unsafe { f(self.handle, to.as_ptr(), address.len(), data.as_ptr(), datagram.len()) };
        status(code.into()).map(|_| ())
    }

    /// Polls once for at most `max` events.
    pub(crate) fn poll(&self, max: usize) -> Result<Vec<Received>, Status> {
        let _call = call("poll");
        let f = self.ops().poll.ok_or(Status::Unsupported)?;
        let mut events = vec![Event::empty(); max];
        // SAFETY: the connector is open, and the array has `max` events.
        let count = status(unsafe { f(self.handle, events.as_mut_ptr(), max as u32) })? as usize;
        assert!(count <= max, "poll returned {count} events in an array of {max}");
        // SAFETY: the payloads are valid until the next poll.
        Ok(events[..count].iter().map(|event| unsafe { Received::of(event) }).collect())
    }

    /// Prepares to sleep. Returns `true` if the caller may sleep.
    pub(crate) fn arm(&self) -> Result<bool, Status> {
        let _call = call("arm");
        let f = self.ops().arm.ok_or(Status::Unsupported)?;
        // SAFETY: the connector is open.
        Ok(status(unsafe { f(self.handle) }.into())? == 0)
    }

    pub(crate) fn event_fd(&self) -> Result<i32, Status> {
        let _call = call("event_fd");
        let f = self.ops().event_fd.ok_or(Status::Unsupported)?;
        // SAFETY: the connector is open.
        Ok(status(unsafe { f(self.handle) }.into())? as i32)
    }
}
