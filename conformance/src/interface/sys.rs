//! The function table of an interface, and copies of its events.

#![allow(unsafe_code)]

use crate::abi::Guarded;
use crate::endpoint::Endpoint;
use crate::sys::{CANARY, Domain, Provider, bytes, overrun, status};
use crate::watch::call;
use crate::words::WatchWords;
use core::ffi::c_void;
use core::ptr;
use std::rc::Rc;
use std::sync::Arc;
use tieline_host::abi::InterfaceTable;
use tieline_plugin_api::abi::*;
use tieline_plugin_api::{Failure, Status};

struct OpenInterface {
    domain: Arc<Domain>,
    handle: *mut c_void,
}

impl Drop for OpenInterface {
    fn drop(&mut self) {
        let _call = call("close");
        // SAFETY: endpoints hold an `Rc` of the interface, so all of them are closed.
        unsafe { (self.domain.provider.tables.interface.close)(self.handle) }
    }
}

#[derive(Clone)]
pub(crate) struct Interface(Rc<OpenInterface>);

impl Interface {
    pub(crate) fn of(domain: Arc<Domain>, handle: *mut c_void) -> Interface {
        Interface(Rc::new(OpenInterface { domain, handle }))
    }

    pub(crate) fn provider(&self) -> &'static Provider {
        self.0.domain.provider
    }

    fn ops(&self) -> &'static InterfaceTable {
        &self.0.domain.provider.tables.interface
    }

    /// Returns the provider's handle, for calls that bypass this wrapper, such as those with a record of another size.
    pub(crate) fn handle(&self) -> *mut c_void {
        self.0.handle
    }

    pub(crate) fn same(&self, other: &Interface) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn address(&self, capacity: usize) -> Result<Vec<u8>, Status> {
        let _call = call("address");
        // SAFETY: the interface is open, and the buffer has that capacity.
        bytes(
            |out, capacity| unsafe { (self.ops().address)(self.0.handle, out, capacity) },
            capacity,
        )
    }

    /// Returns the length of the address, and whether a buffer of `capacity` bytes was overrun.
    pub(crate) fn address_into(&self, capacity: usize) -> (i64, bool) {
        // SAFETY: the interface is open, and the buffer is larger than stated.
        overrun(|out, room| unsafe { (self.ops().address)(self.0.handle, out, room) }, capacity)
    }

    /// Asks for reachability; a refusal carries the reason.
    pub(crate) fn reachable(&self, address: &[u8]) -> Result<(), Failure> {
        let _call = call("reachable");
        let guarded = Guarded::bytes(address);
        // SAFETY: the interface is open; the address is borrowed for the call.
        let code =
            unsafe { (self.ops().reachable)(self.0.handle, guarded.as_ptr(), address.len()) };
        self.provider().check(code).map(|_| ())
    }

    pub(crate) fn connect(
        &self,
        address: &[u8],
        identity: &[u8],
        cookie: u64,
    ) -> Result<Endpoint, Failure> {
        let provider = self.provider();
        let (guarded, guarded_identity) = (Guarded::bytes(address), Guarded::bytes(identity));
        let params = EndpointParams {
            address: if address.is_empty() { ptr::null() } else { guarded.as_ptr() },
            address_len: address.len(),
            identity: guarded_identity.as_ptr(),
            identity_len: identity.len(),
            cookie,
            ..EndpointParams::empty()
        };
        let _call = call("connect");
        let mut handle = ptr::null_mut();
        // SAFETY: the interface is open; the record is complete, and its pointers are borrowed for the call.
        let _ =
            provider.check(unsafe { (self.ops().connect)(self.0.handle, &params, &mut handle) })?;
        Ok(Endpoint::of(self.clone(), handle))
    }

    pub(crate) fn poll(&self, max: usize) -> Result<Vec<Received>, Status> {
        let _call = call("poll");
        let mut events = vec![Event::empty(); max];
        // SAFETY: the interface is open, and the array has `max` events.
        let count =
            status(unsafe { (self.ops().poll)(self.0.handle, events.as_mut_ptr(), max as u32) })?
                as usize;
        assert!(count <= max, "poll returned {count} events in an array of {max}");
        // SAFETY: the payloads are valid until the next poll.
        Ok(events[..count].iter().map(|event| unsafe { Received::of(event) }).collect())
    }

    pub(crate) fn poll_into_used_room(&self, max: usize) -> Result<Vec<Event>, Status> {
        let _call = call("poll");
        let mut events = vec![Event::empty(); max];
        // SAFETY: the events are plain numbers and a pointer that is not dereferenced; the interface is open, and the array has
        // `max` events.
        let count = status(unsafe {
            ptr::write_bytes(events.as_mut_ptr(), CANARY, max);
            (self.ops().poll)(self.0.handle, events.as_mut_ptr(), max as u32)
        })?;
        events.truncate(count as usize);
        Ok(events)
    }

    /// Polls like [`Interface::poll`]. Compares the payloads again after `meanwhile`, and returns the first event whose bytes have
    /// changed.
    pub(crate) fn poll_and_look_again(
        &self,
        max: usize,
        meanwhile: impl FnOnce(&[Received]),
    ) -> Result<(Vec<Received>, Option<usize>), Status> {
        let received = self.poll(max)?;
        meanwhile(&received);
        let changed = received.iter().position(|event| event.again() != event.data);
        Ok((received, changed))
    }

    pub(crate) fn flush(&self, cookie: u64) -> Result<i64, Status> {
        let _call = call("flush of the interface");
        // SAFETY: the interface is open.
        status(unsafe { (self.ops().flush)(self.0.handle, cookie) }.into())
    }

    /// Prepares to sleep. Returns `true` if the caller may sleep.
    pub(crate) fn arm(&self) -> Result<bool, Status> {
        let _call = call("arm");
        // SAFETY: the interface is open.
        Ok(status(unsafe { (self.ops().arm)(self.0.handle) }.into())? == 0)
    }

    pub(crate) fn event_fd(&self) -> Result<i32, Status> {
        let _call = call("event_fd");
        // SAFETY: the interface is open.
        Ok(status(unsafe { (self.ops().event_fd)(self.0.handle) }.into())? as i32)
    }

    pub(crate) fn release(&self, token: u64) {
        // SAFETY: the interface is open; the token came with a lent payload and is returned once.
        unsafe { (self.ops().release)(self.0.handle, token) }
    }

    pub(crate) fn hang_up(&self, peer: u64) -> Result<(), Status> {
        let _call = call("hang_up");
        // SAFETY: the interface is open; the call accepts any number.
        status(unsafe { (self.ops().hang_up)(self.0.handle, peer) }.into()).map(drop)
    }

    /// Returns the list of watch words, if the module has one.
    pub(crate) fn watch(&self) -> Option<WatchWords> {
        let _call = call("watch");
        // SAFETY: the interface is open.
        WatchWords::new(self, unsafe { (self.ops().watch)(self.0.handle) })
    }

    pub(crate) fn memory_use(&self) -> Result<MemoryUse, Status> {
        let _call = call("memory");
        let mut record = MemoryUse { size: size_of::<MemoryUse>(), ..MemoryUse::default() };
        // SAFETY: the interface is open, and the record's size is set.
        let _ = status(unsafe { (self.ops().memory)(self.0.handle, &mut record) }.into())?;
        Ok(record)
    }
}

/// An event of `poll`, with a copy of its payload.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) kind: u32,
    pub(crate) id: u32,
    pub(crate) status: i32,
    pub(crate) flags: u32,
    pub(crate) peer: u64,
    pub(crate) header: u64,
    pub(crate) data: Vec<u8>,
    pub(crate) cookie: u64,
    /// The index of the sender's arrival in its mailbox.
    pub(crate) sender: Option<usize>,
    at: *const u8,
}

impl Received {
    /// Copies an event.
    ///
    /// # Safety
    /// The event's payload is valid: there was no poll since.
    pub(crate) unsafe fn of(event: &Event) -> Received {
        let data = if event.len == 0 {
            Vec::new()
        } else {
            // SAFETY: the caller guarantees the payload.
            unsafe { core::slice::from_raw_parts(event.data, event.len) }.to_vec()
        };
        Received {
            kind: event.kind,
            id: event.id,
            status: event.status,
            flags: event.flags,
            peer: event.peer,
            header: event.header,
            data,
            cookie: event.cookie,
            sender: None,
            at: event.data,
        }
    }

    /// Reads the payload again at its address. The caller reads it before the next poll, or before a lent payload is released.
    pub(crate) fn again(&self) -> Vec<u8> {
        if self.data.is_empty() {
            return Vec::new();
        }
        // SAFETY: a payload stays at its address until the next poll, a lent one until it is released; the caller has done neither.
        unsafe { core::slice::from_raw_parts(self.at, self.data.len()) }.to_vec()
    }
}

/// Waits until a descriptor is readable. Returns `false` if `milliseconds` passed first.
pub(crate) fn readable(fd: i32, milliseconds: i32) -> bool {
    let mut set = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the record is borrowed for the call.
    unsafe { libc::poll(&mut set, 1, milliseconds) == 1 }
}
