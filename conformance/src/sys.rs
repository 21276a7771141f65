//! The C tables behind types that close their objects in the right order: providers, domains and memory. The objects of a domain
//! are in `interface`, `endpoint` and `connector`.
//!
//! These modules contain all unsafe calls of a provider: the checks are safe code. A missing slot returns [`Status::Unsupported`],
//! as the core's stub does.

#![allow(unsafe_code)]

use crate::interface::Interface;
use crate::load;
use crate::watch::call;
use core::ffi::c_void;
use core::ops::Range;
use core::ptr;
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
// SAFETY: as for the block above.
unsafe impl Sync for Provider {}

/// The provider's first table, and memory after it.
#[repr(C)]
struct Room {
    ops: ProviderOps,
    _behind: [u64; 8],
}

/// Copies a provider's table into one of full size; missing slots stay absent.
///
/// # Safety
/// `from` is null or points to a table whose first field is its size.
unsafe fn full<T: Copy>(from: *const T, mut empty: T) -> T {
    if !from.is_null() {
        // SAFETY: the provider states that `size` bytes are readable; no more than the present table is written.
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
        Provider::enter_with(entry, host)
    }

    /// Calls the entry function with this host table, which has the stated length and lives for ever.
    pub(crate) fn enter_with(
        entry: EntryFn,
        host: *const Host,
    ) -> Result<&'static Provider, Failure> {
        // A provider may write beyond the record. One check detects that, and nothing is damaged by such a write.
        let mut room = Room { ops: ProviderOps::empty(), _behind: [0; 8] };
        let ops = ptr::from_mut(&mut room).cast::<ProviderOps>();
        let _call = call("the entry function");
        // SAFETY: the host table lives for ever, and the record, whose size is set, is at the beginning of the room.
        let code = unsafe { entry(host, ops) };
        let _ = status(code.into()).map_err(|s| Failure::new(s, load::last_event()))?;
        if load::refused() {
            let why = "the entry function succeeds although config_declare has refused a value";
            return Err(Failure::new(Status::Invalid, why));
        }
        let ops = room.ops;
        // SAFETY: the pointers belong to a table that the provider has filled in above.
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

    /// Returns a failure with the provider's text.
    pub(crate) fn failure(&self, status: Status) -> Failure {
        let mut text = [0u8; 512];
        let len = match self.ops.last_error {
            // SAFETY: function and state are the provider's; the call writes at most the capacity.
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
        let _call = call("query_domains");
        let f = self.ops.query_domains.ok_or(Status::Unsupported)?;
        // SAFETY: function and state are the provider's; the array has `capacity` records, and `count` takes the count.
        list(DomainAttr::empty(), |out, capacity, count| unsafe {
            self.check(f(self.ops.state, out, capacity, count))
        })
    }

    pub(crate) fn open_domain(&'static self, name: &str) -> Result<Arc<Domain>, Failure> {
        let params = DomainParams {
            name: name.as_ptr(),
            name_len: name.len(),
            context_id: std::process::id().to_ne_bytes().repeat(4).try_into().unwrap_or([1; 16]),
            ..DomainParams::empty()
        };
        let _call = call("open_domain");
        let f = self.ops.open_domain.ok_or(Status::Unsupported)?;
        let mut handle = ptr::null_mut();
        // SAFETY: function and state are the provider's; the record is complete, and `handle` takes the handle.
        let _ = self.check(unsafe { f(self.ops.state, &params, &mut handle) })?;
        Ok(Arc::new(Domain { provider: self, handle }))
    }

    pub(crate) fn quiesce(&self) {
        if let Some(f) = self.ops.quiesce {
            let _call = call("quiesce");
            // SAFETY: all opened objects are closed; no call follows.
            unsafe { f(self.ops.state) }
        }
    }
}

/// An object that moves to another thread, with everything that it refers to.
pub(crate) struct Moved<T>(pub(crate) T);

// SAFETY: the callers move interfaces only of modules with ANY_THREAD, together with all their endpoints, and wait for the other
// thread.
unsafe impl<T> Send for Moved<T> {}

impl<T> Moved<T> {
    pub(crate) fn into_inner(self) -> T {
        self.0
    }
}

/// Asks for the count of a list, then for its records.
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

/// The value of the bytes after the end of a buffer.
pub(crate) const CANARY: u8 = 0x5a;

/// Asks for bytes. The error is `TooLarge` if they do not fit, `BadData` if more than the capacity was written.
pub(crate) fn bytes(
    mut ask: impl FnMut(*mut u8, usize) -> i64,
    capacity: usize,
) -> Result<Vec<u8>, Status> {
    // The room after the buffer detects an overrun instead of a crash.
    let mut out = vec![CANARY; capacity + 64];
    let len = status(ask(out.as_mut_ptr(), capacity))? as usize;
    if out[capacity..].iter().any(|&b| b != CANARY) {
        return Err(Status::BadData);
    }
    if len > capacity {
        return Err(Status::TooLarge);
    }
    out.truncate(len);
    Ok(out)
}

/// An open domain.
pub(crate) struct Domain {
    pub(crate) provider: &'static Provider,
    pub(crate) handle: *mut c_void,
}

// SAFETY: the contract allows several threads to call functions of a domain at once.
unsafe impl Send for Domain {}
// SAFETY: as for the block above.
unsafe impl Sync for Domain {}

impl Drop for Domain {
    fn drop(&mut self) {
        if let Some(f) = self.provider.domain.close {
            let _call = call("close");
            // SAFETY: all objects of the domain hold an `Arc` of it, so all of them are closed.
            unsafe { f(self.handle) }
        }
    }
}

impl Domain {
    pub(crate) fn modules(&self) -> Result<Vec<ModuleAttr>, Failure> {
        let _call = call("query_modules");
        let f = self.provider.domain.query_modules.ok_or(Status::Unsupported)?;
        // SAFETY: the domain is open, the array has `capacity` records, and `count` takes the count.
        list(ModuleAttr::empty(), |out, capacity, count| unsafe {
            self.provider.check(f(self.handle, out, capacity, count))
        })
    }

    pub(crate) fn open_interface(self: &Arc<Domain>, module: &str) -> Result<Interface, Failure> {
        let _call = call("open_interface");
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
        // SAFETY: the domain is open, the record is complete, and `handle` takes the handle.
        let _ = self.provider.check(unsafe { f(self.handle, &params, &mut handle) })?;
        Ok(Interface::of(self.clone(), handle))
    }

    /// Returns the domain's answer to a request for memory or for a registration. The result of the request is released again.
    pub(crate) fn says(&self, asked: &Asked) -> Result<(), Failure> {
        let ops = &self.provider.domain;
        let mut region = MemoryRegion::empty();
        // SAFETY: the domain is open, and the records are complete; the memory outlives the registration.
        let code = unsafe {
            match asked {
                Asked::Alloc(params) => {
                    ops.alloc.ok_or(Status::Unsupported)?(self.handle, params, &mut region)
                }
                Asked::Register(params) => {
                    ops.register.ok_or(Status::Unsupported)?(self.handle, params, &mut region)
                }
            }
        };
        let _ = self.provider.check(code)?;
        let _call = call("deregister");
        let f = ops.deregister.ok_or(Status::Unsupported)?;
        // SAFETY: the region was made above.
        self.provider.check(unsafe { f(self.handle, region.handle) }).map(|_| ())
    }

    /// Makes memory that peers may access with `access`: registered if the domain registers, otherwise the domain's own.
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
            // One word of room at each end makes the registered part exactly `len` bytes long.
            owned = vec![0u64; len.div_ceil(8) + 2];
            let base = owned[1..].as_mut_ptr().cast::<u8>();
            let _call = call("register");
            let f = ops.register.ok_or(Status::Unsupported)?;
            // SAFETY: the domain is open; the memory lives until the region is deregistered in `drop`.
            unsafe { f(self.handle, &RegisterParams::new(base, len, access), &mut region) }
        } else {
            let _call = call("alloc");
            let f = ops.alloc.ok_or(Status::Unsupported)?;
            // SAFETY: the domain is open, and the record's size is set.
            unsafe { f(self.handle, &AllocParams::new(len, access), &mut region) }
        };
        let _ = self.provider.check(code)?;
        let domain = self.clone();
        Ok(Memory { domain, region, registered: true, named: false, _owned: owned })
    }
}

impl Domain {
    /// Registers memory of the check, which stays until the process ends.
    pub(crate) fn register(
        self: &Arc<Domain>,
        base: *mut u8,
        len: usize,
        access: u64,
    ) -> Result<Memory, Failure> {
        let mut region = MemoryRegion::empty();
        let _call = call("register");
        let f = self.provider.domain.register.ok_or(Status::Unsupported)?;
        // SAFETY: the domain is open, and the memory stays.
        let code = unsafe { f(self.handle, &RegisterParams::new(base, len, access), &mut region) };
        let _ = self.provider.check(code)?;
        let (domain, _owned) = (self.clone(), Vec::new());
        Ok(Memory { domain, region, registered: true, named: false, _owned })
    }
}

/// The kind of a request for memory.
pub(crate) enum Asked {
    Alloc(AllocParams),
    Register(RegisterParams),
}

/// Memory that a domain knows.
pub(crate) struct Memory {
    domain: Arc<Domain>,
    pub(crate) region: MemoryRegion,
    registered: bool,
    /// Whether the pieces of this operation name their region.
    pub(crate) named: bool,
    /// The check's own memory, declared after `region`, whose `drop` runs before the fields are dropped.
    _owned: Vec<u64>,
}

// SAFETY: any thread may use a region; the bytes are only accessed through raw pointers, by checks that order their accesses by
// messages and completions.
unsafe impl Send for Memory {}
// SAFETY: as for the block above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = self.revoke();
        if self.registered {
            // AGAIN means that a peer may be in the middle of an access, so the memory stays.
            core::mem::forget(core::mem::take(&mut self._owned));
        }
    }
}

impl Memory {
    pub(crate) fn len(&self) -> usize {
        self.region.len
    }

    /// Ends the registration, once. If a peer still uses the registration, it stays, and the result is an error.
    pub(crate) fn revoke(&mut self) -> Result<(), Failure> {
        if !self.registered {
            return Ok(());
        }
        let _call = call("deregister");
        let f = self.domain.provider.domain.deregister.ok_or(Status::Unsupported)?;
        // SAFETY: the domain is open, and the region belongs to it and was not deregistered before.
        let code = unsafe { f(self.domain.handle, self.region.handle) };
        self.registered = code == Status::Again as i32;
        self.domain.provider.check(code).map(|_| ())
    }

    /// Revokes the keys of the memory; the registration stays.
    pub(crate) fn refuse_keys(&self) -> Result<(), Failure> {
        let _call = call("revoke");
        let f = self.domain.provider.domain.revoke.ok_or(Status::Unsupported)?;
        // SAFETY: the domain is open, and the region belongs to it and is live.
        let code = unsafe { f(self.domain.handle, self.region.handle) };
        self.domain.provider.check(code).map(|_| ())
    }

    pub(crate) fn key(&self, capacity: usize) -> Result<Vec<u8>, Status> {
        self.key_to(KeyParams::empty(), capacity)
    }

    /// Returns a key to a part of the memory.
    pub(crate) fn key_to(&self, part: KeyParams, capacity: usize) -> Result<Vec<u8>, Status> {
        let _call = call("pack_key");
        let f = self.domain.provider.domain.pack_key.ok_or(Status::Unsupported)?;
        let key = KeyParams { region: self.region.handle, ..part };
        // SAFETY: the domain is open, the region belongs to it and is live, and the buffer has that capacity.
        bytes(|out, capacity| unsafe { f(self.domain.handle, &key, out, capacity) }, capacity)
    }

    pub(crate) fn piece(&self, range: Range<usize>) -> Iov {
        assert!(range.start <= range.end && range.end <= self.region.len);
        let region = if self.named { self.region.handle } else { ptr::null_mut() };
        Iov { region, ..Iov::new(self.region.base.wrapping_add(range.start), range.len()) }
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        let piece = self.piece(at..at + bytes.len());
        // SAFETY: the range is inside the region (asserted by `piece`), which lives until it is revoked.
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
