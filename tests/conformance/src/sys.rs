//! The C tables behind types that close what they opened, in the right order.
//!
//! What is unsafe about calling a provider is here: the checks above are safe code. A slot that is absent
//! answers [`Status::Unsupported`], as the core's stub would.

#![allow(unsafe_code)]

use crate::abi::Guarded;
use crate::load;
use core::cell::RefCell;
use core::ffi::c_void;
use core::ops::Range;
use core::ptr;
use std::rc::Rc;
use std::sync::Arc;
use tieline_plugin_api::abi::*;
use tieline_plugin_api::{Failure, Status, memory_caps};

/// The tables of a provider, each copied into one of full size.
pub(crate) struct Provider {
    pub(crate) ops: ProviderOps,
    pub(crate) domain: DomainOps,
    pub(crate) interface: InterfaceOps,
    pub(crate) endpoint: EndpointOps,
    pub(crate) connector: ConnectorOps,
}

// SAFETY: the tables are constant; functions of a provider may be called from any thread.
unsafe impl Send for Provider {}
// SAFETY: as above.
unsafe impl Sync for Provider {}

/// Copies a provider's table into one of full size; what the provider lacks stays absent.
///
/// # Safety
/// `from` is null or points to a table whose first field is its size.
unsafe fn full<T: Copy>(from: *const T, mut empty: T) -> T {
    if !from.is_null() {
        // SAFETY: `size` bytes are there, the provider says; no more than our table is written.
        unsafe {
            let size = (*from.cast::<usize>()).min(size_of::<T>());
            ptr::copy_nonoverlapping(from.cast::<u8>(), ptr::from_mut(&mut empty).cast(), size);
        }
    }
    empty
}

pub(crate) fn status(code: i64) -> Result<i64, Status> {
    if code >= 0 {
        Ok(code)
    } else {
        Err(Status::from_code(i32::try_from(code).unwrap_or(i32::MIN)))
    }
}

impl Provider {
    /// Calls the entry function. The provider lives as long as the process.
    pub(crate) fn enter(entry: EntryFn) -> Result<&'static Provider, Failure> {
        let host: &'static Host = Box::leak(Box::new(load::host()));
        let mut ops = ProviderOps::empty();
        // SAFETY: a host table that lives for ever and a record whose size is set.
        let code = unsafe { entry(host, &mut ops) };
        let _ = status(code.into()).map_err(|s| Failure::new(s, load::last_event()))?;
        // SAFETY: the pointers of a table that the provider has just filled in.
        let provider = unsafe {
            Provider {
                domain: full(ops.domain, DomainOps::empty()),
                interface: full(ops.interface, InterfaceOps::empty()),
                endpoint: full(ops.endpoint, EndpointOps::empty()),
                connector: full(ops.connector, ConnectorOps::empty()),
                ops,
            }
        };
        Ok(Box::leak(Box::new(provider)))
    }

    /// A failure with the words that the provider has for it.
    pub(crate) fn failure(&self, status: Status) -> Failure {
        let mut text = [0u8; 512];
        let len = match self.ops.last_error {
            // SAFETY: the provider's function and state; at most the capacity is written.
            Some(f) => unsafe { f(self.ops.state, text.as_mut_ptr(), text.len()) },
            None => 0,
        };
        let len = usize::try_from(len).unwrap_or(0).min(text.len());
        Failure::new(status, String::from_utf8_lossy(&text[..len]))
    }

    pub(crate) fn check(&self, code: i32) -> Result<i32, Failure> {
        status(code.into()).map(|code| code as i32).map_err(|s| self.failure(s))
    }

    pub(crate) fn domains(&self) -> Result<Vec<DomainAttr>, Failure> {
        let f = self.ops.query_domains.ok_or(Status::Unsupported)?;
        // SAFETY: the provider's function and state, an array of `capacity` records and a place for the count.
        list(DomainAttr::empty(), |out, capacity, count| unsafe {
            self.check(f(self.ops.state, out, capacity, count))
        })
    }

    pub(crate) fn configuration(&self) -> Result<Vec<(String, String)>, Failure> {
        let Some(f) = self.ops.query_config else { return Ok(Vec::new()) };
        // SAFETY: as in `domains`.
        let variables = list(ConfigVar::empty(), |out, capacity, count| unsafe {
            self.check(f(self.ops.state, out, capacity, count))
        })?;
        let text = |at: *const u8, len: usize| {
            // SAFETY: constant text of the provider.
            let bytes = unsafe { core::slice::from_raw_parts(at, len) };
            String::from_utf8_lossy(bytes).into_owned()
        };
        Ok(variables.iter().map(|v| (text(v.name, v.name_len), text(v.doc, v.doc_len))).collect())
    }

    pub(crate) fn open_domain(&'static self, name: &str) -> Result<Arc<Domain>, Failure> {
        let params = DomainParams {
            name: name.as_ptr(),
            name_len: name.len(),
            context_id: std::process::id().to_ne_bytes().repeat(4).try_into().unwrap_or([1; 16]),
            ..DomainParams::empty()
        };
        let f = self.ops.open_domain.ok_or(Status::Unsupported)?;
        let mut handle = ptr::null_mut();
        // SAFETY: the provider's function and state, a full record and a place for the handle.
        let _ = self.check(unsafe { f(self.ops.state, &params, &mut handle) })?;
        Ok(Arc::new(Domain { provider: self, handle }))
    }

    pub(crate) fn quiesce(&self) {
        if let Some(f) = self.ops.quiesce {
            // SAFETY: everything that was opened is closed; no call follows.
            unsafe { f(self.ops.state) }
        }
    }
}

/// Asks for the count, then for the records.
fn list<T: Copy>(
    empty: T,
    mut ask: impl FnMut(*mut T, usize, *mut usize) -> Result<i32, Failure>,
) -> Result<Vec<T>, Failure> {
    let mut count = 0;
    let _ = ask(ptr::null_mut(), 0, &mut count)?;
    let mut records = vec![empty; count];
    let _ = ask(records.as_mut_ptr(), count, &mut count)?;
    records.truncate(count);
    Ok(records)
}

/// What stands behind the end of a buffer.
pub(crate) const CANARY: u8 = 0x5a;

/// Asks for bytes; `BadData` when there were more than fit.
pub(crate) fn bytes(
    mut ask: impl FnMut(*mut u8, usize) -> i64,
    capacity: usize,
) -> Result<Vec<u8>, Status> {
    // The room behind it is not the callee's: whoever writes there is found out instead of crashing.
    let mut out = vec![CANARY; capacity + 64];
    let len = status(ask(out.as_mut_ptr(), capacity))? as usize;
    if len > capacity || out[capacity..].iter().any(|&b| b != CANARY) {
        return Err(Status::BadData);
    }
    out.truncate(len);
    Ok(out)
}

/// An open domain.
pub(crate) struct Domain {
    pub(crate) provider: &'static Provider,
    pub(crate) handle: *mut c_void,
}

// SAFETY: functions of a domain may be called by several threads at once: the contract says so.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Drop for Domain {
    fn drop(&mut self) {
        if let Some(f) = self.provider.domain.close {
            // SAFETY: what was opened from it holds an `Arc` of it, so all that is closed.
            unsafe { f(self.handle) }
        }
    }
}

impl Domain {
    pub(crate) fn modules(&self) -> Result<Vec<ModuleAttr>, Failure> {
        let f = self.provider.domain.query_modules.ok_or(Status::Unsupported)?;
        // SAFETY: an open domain, an array of `capacity` records and a place for the count.
        list(ModuleAttr::empty(), |out, capacity, count| unsafe {
            self.provider.check(f(self.handle, out, capacity, count))
        })
    }

    pub(crate) fn open_interface(self: &Arc<Domain>, module: &str) -> Result<Interface, Failure> {
        let f = self.provider.domain.open_interface.ok_or(Status::Unsupported)?;
        let mut worker_id = [0; 16];
        worker_id[..4].copy_from_slice(&std::process::id().to_ne_bytes());
        worker_id[8..].copy_from_slice(&(Arc::as_ptr(self).addr() as u64).to_ne_bytes());
        let params = InterfaceParams {
            module: module.as_ptr(),
            module_len: module.len(),
            worker_id,
            ..InterfaceParams::empty()
        };
        let mut handle = ptr::null_mut();
        // SAFETY: an open domain, a full record and a place for the handle.
        let _ = self.provider.check(unsafe { f(self.handle, &params, &mut handle) })?;
        Ok(Interface(Rc::new(OpenInterface { domain: self.clone(), handle })))
    }

    /// Memory that peers may reach with `access`: registered if the domain registers, else its own.
    pub(crate) fn memory(
        self: &Arc<Domain>,
        caps: u64,
        len: usize,
        access: u64,
    ) -> Result<Memory, Failure> {
        let ops = &self.provider.domain;
        let mut region = MemoryRegion::empty();
        let mut owned = Vec::new();
        let code = if caps & memory_caps::REGISTER != 0 {
            // One word of room at each end, so that the registered part is exactly `len` long.
            owned = vec![0u64; len.div_ceil(8) + 2];
            let base = owned[1..].as_mut_ptr().cast::<u8>();
            let f = ops.register.ok_or(Status::Unsupported)?;
            // SAFETY: an open domain; the memory lives until the region is deregistered in `drop`.
            unsafe { f(self.handle, base, len, access, &mut region) }
        } else {
            let f = ops.alloc.ok_or(Status::Unsupported)?;
            // SAFETY: an open domain and a record whose size is set.
            unsafe { f(self.handle, len, access, &mut region) }
        };
        let _ = self.provider.check(code)?;
        Ok(Memory { domain: self.clone(), region, registered: true, _owned: owned })
    }
}

/// Memory that a domain knows.
pub(crate) struct Memory {
    domain: Arc<Domain>,
    region: MemoryRegion,
    registered: bool,
    /// Declared behind `region`'s user `drop`, which runs before the fields go.
    _owned: Vec<u64>,
}

// SAFETY: a region may be used from any thread; the bytes are only touched through raw pointers, by checks
// that order their accesses by messages and completions.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = self.revoke();
    }
}

impl Memory {
    pub(crate) fn len(&self) -> usize {
        self.region.len
    }

    /// Ends the registration, once.
    pub(crate) fn revoke(&mut self) -> Result<(), Failure> {
        if !core::mem::take(&mut self.registered) {
            return Ok(());
        }
        let f = self.domain.provider.domain.deregister.ok_or(Status::Unsupported)?;
        // SAFETY: an open domain and a region of it that was not deregistered before.
        self.domain.provider.check(unsafe { f(self.domain.handle, self.region.handle) }).map(|_| ())
    }

    pub(crate) fn key(&self, capacity: usize) -> Result<Vec<u8>, Status> {
        let f = self.domain.provider.domain.pack_key.ok_or(Status::Unsupported)?;
        // SAFETY: an open domain, a live region of it, a buffer of that capacity.
        bytes(
            |out, capacity| unsafe { f(self.domain.handle, self.region.handle, out, capacity) },
            capacity,
        )
    }

    pub(crate) fn piece(&self, range: Range<usize>) -> Iov {
        assert!(range.start <= range.end && range.end <= self.region.len);
        Iov { base: self.region.base.wrapping_add(range.start), len: range.len() }
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        let piece = self.piece(at..at + bytes.len());
        // SAFETY: inside the region (asserted by `piece`), which lives until it is revoked.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), piece.base, piece.len) }
    }

    pub(crate) fn read(&self, range: Range<usize>) -> Vec<u8> {
        let piece = self.piece(range);
        let mut out = vec![0; piece.len];
        // SAFETY: as in `write`.
        unsafe { ptr::copy_nonoverlapping(piece.base.cast_const(), out.as_mut_ptr(), piece.len) };
        out
    }

    pub(crate) fn all(&self) -> Vec<u8> {
        self.read(0..self.region.len)
    }
}

/// What `poll` brought, with the payload copied out.
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
    at: *const u8,
}

impl Received {
    /// Copies an event.
    ///
    /// # Safety
    /// Its payload is valid: nothing was polled since.
    pub(crate) unsafe fn of(event: &Event) -> Received {
        let data = if event.len == 0 {
            Vec::new()
        } else {
            // SAFETY: the caller promises it.
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
            at: event.data,
        }
    }

    /// Reads the payload again from where it lay: only for a lent one.
    pub(crate) fn again(&self) -> Vec<u8> {
        // SAFETY: a lent payload stays where it is until it is released, which the caller has not done.
        unsafe { core::slice::from_raw_parts(self.at, self.data.len()) }.to_vec()
    }
}

/// Asks `f`, a `reachable` of an interface or a connector, about an address.
pub(crate) fn ask_reachable(
    f: unsafe extern "C" fn(*mut c_void, *const u8, usize, *mut u8, usize) -> i32,
    handle: *mut c_void,
    address: &[u8],
) -> Result<(), (Failure, Option<&'static str>)> {
    let mut reason = [CANARY; 320];
    let guarded = Guarded::bytes(address);
    // SAFETY: the caller's own open handle; address and reason are borrowed for the call.
    let code = unsafe { f(handle, guarded.as_ptr(), address.len(), reason.as_mut_ptr(), 256) };
    let Err(status) = status(code.into()) else { return Ok(()) };
    let fault = if reason[256..].iter().any(|&b| b != CANARY) {
        Some("it was written beyond its buffer")
    } else if !reason[..256].contains(&0) {
        Some("it is not terminated")
    } else {
        None
    };
    let end = reason.iter().position(|&b| b == 0).unwrap_or(256);
    Err((Failure::new(status, String::from_utf8_lossy(&reason[..end])), fault))
}

struct OpenInterface {
    domain: Arc<Domain>,
    handle: *mut c_void,
}

impl Drop for OpenInterface {
    fn drop(&mut self) {
        if let Some(f) = self.domain.provider.interface.close {
            // SAFETY: endpoints hold an `Rc` of it, so they are closed.
            unsafe { f(self.handle) }
        }
    }
}

/// A data-path module, opened.
#[derive(Clone)]
pub(crate) struct Interface(Rc<OpenInterface>);

impl Interface {
    fn ops(&self) -> &'static InterfaceOps {
        &self.0.domain.provider.interface
    }

    /// The provider's handle, for calls with records of other sizes.
    pub(crate) fn handle(&self) -> *mut c_void {
        self.0.handle
    }

    /// Whether both are one and the same.
    pub(crate) fn same(&self, other: &Interface) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn address(&self, capacity: usize) -> Result<Vec<u8>, Status> {
        let f = self.ops().address.ok_or(Status::Unsupported)?;
        // SAFETY: an open interface and a buffer of that capacity.
        bytes(|out, capacity| unsafe { f(self.0.handle, out, capacity) }, capacity)
    }

    /// The length of the address, and whether a buffer of `capacity` bytes was overrun.
    pub(crate) fn address_into(&self, capacity: usize) -> (i64, bool) {
        let Some(f) = self.ops().address else { return (0, false) };
        let mut out = vec![CANARY; capacity + 64];
        // SAFETY: an open interface and a buffer that is larger than what is said.
        let len = unsafe { f(self.0.handle, out.as_mut_ptr(), capacity) };
        (len, out[capacity..].iter().any(|&b| b != CANARY))
    }

    /// Asks for reachability; a refusal carries the reason. The last text is set when the reason is no
    /// terminated text within its buffer.
    pub(crate) fn reachable(&self, address: &[u8]) -> Result<(), (Failure, Option<&'static str>)> {
        let Some(f) = self.ops().reachable else { return Err((Status::Unsupported.into(), None)) };
        ask_reachable(f, self.0.handle, address)
    }

    pub(crate) fn connect(
        &self,
        address: &[u8],
        identity: &[u8],
        cookie: u64,
    ) -> Result<Endpoint, Failure> {
        let provider = self.0.domain.provider;
        let (guarded, guarded_identity) = (Guarded::bytes(address), Guarded::bytes(identity));
        let params = EndpointParams {
            address: guarded.as_ptr(),
            address_len: address.len(),
            identity: guarded_identity.as_ptr(),
            identity_len: identity.len(),
            cookie,
            ..EndpointParams::empty()
        };
        let f = self.ops().connect.ok_or(Status::Unsupported)?;
        let mut handle = ptr::null_mut();
        // SAFETY: an open interface, a full record whose pointers are borrowed for the call.
        let _ = provider.check(unsafe { f(self.0.handle, &params, &mut handle) })?;
        Ok(Endpoint(Rc::new(OpenEndpoint { interface: self.clone(), handle })))
    }

    /// One poll for at most `max` events.
    pub(crate) fn poll(&self, max: usize) -> Result<Vec<Received>, Status> {
        let f = self.ops().poll.ok_or(Status::Unsupported)?;
        let mut events = vec![Event::empty(); max];
        // SAFETY: an open interface and an array of `max` events.
        let count = status(unsafe { f(self.0.handle, events.as_mut_ptr(), max as u32) })? as usize;
        assert!(count <= max, "poll says {count} events in an array of {max}");
        // SAFETY: the payloads are valid until the next poll.
        Ok(events[..count].iter().map(|event| unsafe { Received::of(event) }).collect())
    }

    /// `true`: sleep.
    pub(crate) fn arm(&self) -> Result<bool, Status> {
        let f = self.ops().arm.ok_or(Status::Unsupported)?;
        // SAFETY: an open interface.
        Ok(status(unsafe { f(self.0.handle) }.into())? == 0)
    }

    pub(crate) fn event_fd(&self) -> Result<i32, Status> {
        let f = self.ops().event_fd.ok_or(Status::Unsupported)?;
        // SAFETY: an open interface.
        Ok(status(unsafe { f(self.0.handle) }.into())? as i32)
    }

    pub(crate) fn release(&self, token: u64) {
        if let Some(f) = self.ops().release {
            // SAFETY: an open interface; the token came with a lent payload and is given back once.
            unsafe { f(self.0.handle, token) }
        }
    }

    pub(crate) fn memory_use(&self) -> Result<MemoryUse, Status> {
        let f = self.ops().memory.ok_or(Status::Unsupported)?;
        let mut record = MemoryUse { size: size_of::<MemoryUse>(), ..MemoryUse::default() };
        // SAFETY: an open interface and a record whose size is set.
        let _ = status(unsafe { f(self.0.handle, &mut record) }.into())?;
        Ok(record)
    }
}

/// Waits until a descriptor is readable; `false` when `milliseconds` passed first.
pub(crate) fn readable(fd: i32, milliseconds: i32) -> bool {
    let mut set = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one record, borrowed for the call.
    unsafe { libc::poll(&mut set, 1, milliseconds) == 1 }
}

struct OpenEndpoint {
    interface: Interface,
    handle: *mut c_void,
}

impl Drop for OpenEndpoint {
    fn drop(&mut self) {
        if let Some(f) = self.interface.0.domain.provider.endpoint.close {
            // SAFETY: keys hold an `Rc` of it, so they are dropped.
            unsafe { f(self.handle) }
        }
    }
}

/// A connection.
#[derive(Clone)]
pub(crate) struct Endpoint(Rc<OpenEndpoint>);

/// A put, get or atomic that a check describes.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) key: &'a Key,
    pub(crate) offset: u64,
    pub(crate) cookie: u64,
}

impl Endpoint {
    fn ops(&self) -> &'static EndpointOps {
        &self.0.interface.0.domain.provider.endpoint
    }

    fn provider(&self) -> &'static Provider {
        self.0.interface.0.domain.provider
    }

    pub(crate) fn am_short(&self, id: u32, header: u64, data: &[u8]) -> Result<i64, Status> {
        let f = self.ops().am_short.ok_or(Status::Unsupported)?;
        // SAFETY: an open endpoint; the payload is borrowed for the call.
        status(unsafe { f(self.0.handle, id, header, data.as_ptr(), data.len()) }.into())
    }

    /// `pack` gets the buffer and answers like the C callback.
    pub(crate) fn am_packed(
        &self,
        id: u32,
        header: u64,
        max: usize,
        mut pack: impl FnMut(&mut [u8]) -> i64,
    ) -> Result<i64, Status> {
        unsafe extern "C" fn call<F: FnMut(&mut [u8]) -> i64>(
            argument: *mut c_void,
            at: *mut u8,
            capacity: usize,
        ) -> i64 {
            // SAFETY: the argument is the closure below, alive through the call; the provider's buffer is
            // initialised and writable for `capacity` bytes.
            unsafe { (*argument.cast::<F>())(core::slice::from_raw_parts_mut(at, capacity)) }
        }
        fn thunk<F: FnMut(&mut [u8]) -> i64>(_: &F) -> PackFn {
            Some(call::<F>)
        }
        let f = self.ops().am_packed.ok_or(Status::Unsupported)?;
        let packer = thunk(&pack);
        // SAFETY: an open endpoint; the callback and its argument live through the call.
        status(unsafe {
            f(self.0.handle, id, header, packer, ptr::from_mut(&mut pack).cast(), max)
        })
    }

    pub(crate) fn am_zcopy(
        &self,
        id: u32,
        header: u64,
        iov: &[Iov],
        cookie: u64,
    ) -> Result<i64, Status> {
        let f = self.ops().am_zcopy.ok_or(Status::Unsupported)?;
        // SAFETY: an open endpoint; the checks keep the pieces alive until completion.
        status(unsafe { f(self.0.handle, id, header, iov.as_ptr(), iov.len(), cookie) }.into())
    }

    pub(crate) fn rma(
        &self,
        put: bool,
        iov: &[Iov],
        target: Target<'_>,
        local: &Memory,
    ) -> Result<i64, Status> {
        let op = Rma {
            iov: iov.as_ptr(),
            iov_count: iov.len(),
            len: iov.iter().map(|piece| piece.len).sum(),
            key: target.key.handle,
            offset: target.offset,
            cookie: target.cookie,
            flags: tieline_plugin_api::op_flags::REMOTE_COMPLETION,
            local_region: local.region.handle,
        };
        let slot = if put { self.ops().put } else { self.ops().get };
        let f = slot.ok_or(Status::Unsupported)?;
        // SAFETY: an open endpoint, a key of it, local pieces that live until completion.
        status(unsafe { f(self.0.handle, &op) }.into())
    }

    /// `op.key` and `op.result` are filled in here; returns the code and the result.
    pub(crate) fn atomic(
        &self,
        key: &Key,
        mut op: Atomic,
        result: &RefCell<u64>,
    ) -> Result<i64, Status> {
        let f = self.ops().atomic.ok_or(Status::Unsupported)?;
        op.key = key.handle;
        op.result = result.as_ptr();
        // SAFETY: an open endpoint, a key of it, a place for the result that outlives the call.
        status(unsafe { f(self.0.handle, &op) }.into())
    }

    pub(crate) fn flush(&self, cookie: u64) -> Result<i64, Status> {
        let f = self.ops().flush.ok_or(Status::Unsupported)?;
        // SAFETY: an open endpoint.
        status(unsafe { f(self.0.handle, cookie) }.into())
    }

    pub(crate) fn fence(&self) -> Result<i64, Status> {
        let f = self.ops().fence.ok_or(Status::Unsupported)?;
        // SAFETY: an open endpoint.
        status(unsafe { f(self.0.handle) }.into())
    }

    pub(crate) fn import(&self, packed: &[u8]) -> Result<Key, Failure> {
        let f = self.ops().import_key.ok_or(Status::Unsupported)?;
        let mut handle = ptr::null_mut();
        let guarded = Guarded::bytes(packed);
        // SAFETY: an open endpoint; the bytes are borrowed for the call.
        let code = unsafe { f(self.0.handle, guarded.as_ptr(), packed.len(), &mut handle) };
        let _ = self.provider().check(code)?;
        Ok(Key { endpoint: self.clone(), handle })
    }

    pub(crate) fn address(&self, capacity: usize) -> Result<Vec<u8>, Status> {
        let f = self.ops().address.ok_or(Status::Unsupported)?;
        // SAFETY: an open endpoint and a buffer of that capacity.
        bytes(|out, capacity| unsafe { f(self.0.handle, out, capacity) }, capacity)
    }

    pub(crate) fn connect(&self, address: &[u8]) -> Result<(), Failure> {
        let f = self.ops().connect.ok_or(Status::Unsupported)?;
        // SAFETY: an open endpoint; the bytes are borrowed for the call.
        self.provider()
            .check(unsafe { f(self.0.handle, address.as_ptr(), address.len()) })
            .map(|_| ())
    }
}

/// An imported key.
pub(crate) struct Key {
    endpoint: Endpoint,
    handle: *mut c_void,
}

impl Drop for Key {
    fn drop(&mut self) {
        if let Some(f) = self.endpoint.ops().drop_key {
            // SAFETY: an open endpoint (the field holds it) and a key of it, dropped once.
            unsafe { f(self.endpoint.0.handle, self.handle) }
        }
    }
}
