//! The C tables behind types that close their objects in the right order: providers, domains and memory. The objects of a domain
//! are in `interface`, `endpoint` and `connector`.
//!
//! These modules contain the unsafe calls of a provider, except those of `load` and `checks::abi`. A missing slot returns
//! [`Status::Unsupported`], as in the core.

#![allow(unsafe_code)]

use crate::interface::Interface;
use crate::load;
use crate::watch::call;
use core::ffi::c_void;
use core::ops::Range;
use core::ptr;
use std::sync::Arc;
use tieline_host::Services;
use tieline_host::abi::{DomainTable, Tables, Unlisted, listed};
use tieline_plugin_api::abi::*;
use tieline_plugin_api::{Failure, Status, memory_caps};

pub(crate) struct Provider {
    pub(crate) ops: ProviderOps,
    /// Its tables, in which every slot can be called.
    pub(crate) tables: Tables,
}

// SAFETY: the tables are constant; functions of a provider may be called from any thread.
unsafe impl Send for Provider {}
// SAFETY: as for the block above.
unsafe impl Sync for Provider {}

#[repr(C)]
struct Room {
    ops: ProviderOps,
    _behind: [u64; 8],
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
        let (services, host) = load::host();
        Provider::enter_with(entry, services, Box::leak(Box::new(host)))
    }

    /// Calls the entry function with this host table, which lives for ever and belongs to the services.
    pub(crate) fn enter_with(
        entry: EntryFn,
        services: &'static Services,
        host: *const Host,
    ) -> Result<&'static Provider, Failure> {
        // A provider may write beyond the record. One check detects that; the memory after the record absorbs a short overrun.
        let mut room = Room { ops: ProviderOps::empty(), _behind: [0; 8] };
        let ops = ptr::from_mut(&mut room).cast::<ProviderOps>();
        let _call = call("the entry function");
        // SAFETY: the host table lives for ever, and the record, whose size is set, is at the beginning of the room.
        let code = unsafe { entry(host, ops) };
        let _ = status(code.into()).map_err(|status| {
            Failure::new(status, services.take_words(status).1.unwrap_or_default())
        })?;
        services.tell_declared();
        if services.has_refused() {
            let why = "the entry function succeeds although config_declare has refused a value";
            return Err(Failure::new(Status::Invalid, why));
        }
        let ops = room.ops;
        // SAFETY: the pointers belong to a table that the provider has filled in above.
        let tables = unsafe { Tables::complete(&ops) };
        let tables = tables.map_err(|why| Failure::new(Status::ProviderFailed, why))?;
        Ok(Box::leak(Box::new(Provider { ops, tables })))
    }

    pub(crate) fn failure(&self, status: Status) -> Failure {
        let mut text = [0u8; 512];
        // SAFETY: function and state are the provider's; the call writes at most the capacity.
        let len = unsafe {
            (self.tables.provider.last_error)(self.ops.state, text.as_mut_ptr(), text.len())
        };
        let len = usize::try_from(len).unwrap_or(0).min(text.len());
        Failure::new(status, String::from_utf8_lossy(&text[..len]))
    }

    pub(crate) fn check(&self, code: i32) -> Result<i32, Failure> {
        status(code.into()).map(|code| code as i32).map_err(|s| self.failure(s))
    }

    pub(crate) fn domains(&self) -> Result<Vec<DomainAttr>, Failure> {
        let _call = call("query_domains");
        let query = self.tables.provider.query_domains;
        // SAFETY: function and state are the provider's; the array has `capacity` records, and `count` takes the count.
        let list = listed(DomainAttr::empty(), |out, capacity, count| unsafe {
            query(self.ops.state, out, capacity, count)
        });
        list.map_err(|why| self.unlisted(why))
    }

    fn unlisted(&self, why: Unlisted) -> Failure {
        match why {
            Unlisted::Code(code) => self.failure(Status::from_code(code)),
            Unlisted::Overrun => {
                Failure::new(Status::ProviderFailed, "it wrote beside the room that it was given")
            }
        }
    }

    pub(crate) fn open_domain(&'static self, name: &str) -> Result<Arc<Domain>, Failure> {
        let params = DomainParams {
            name: name.as_ptr(),
            name_len: name.len(),
            context_id: std::process::id().to_ne_bytes().repeat(4).try_into().unwrap_or([1; 16]),
            ..DomainParams::empty()
        };
        let _call = call("open_domain");
        let mut handle = ptr::null_mut();
        // SAFETY: function and state are the provider's; the record is complete, and `handle` takes the handle.
        let code =
            unsafe { (self.tables.provider.open_domain)(self.ops.state, &params, &mut handle) };
        let _ = self.check(code)?;
        Ok(Arc::new(Domain { provider: self, handle }))
    }

    pub(crate) fn quiesce(&self) {
        let _call = call("quiesce");
        // SAFETY: all opened objects are closed; no call follows.
        unsafe { (self.tables.provider.quiesce)(self.ops.state) }
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

/// The value of the bytes after the end of a buffer.
pub(crate) const CANARY: u8 = 0x5a;

/// Asks for bytes. The error is `TooLarge` if they do not fit, `BadData` if more than the capacity was written.
pub(crate) fn bytes(
    ask: impl FnMut(*mut u8, usize) -> i64,
    capacity: usize,
) -> Result<Vec<u8>, Status> {
    let (len, overrun, mut out) = filled(ask, capacity);
    let len = status(len)? as usize;
    if overrun {
        return Err(Status::BadData);
    }
    if len > capacity {
        return Err(Status::TooLarge);
    }
    out.truncate(len);
    Ok(out)
}

/// Asks for bytes. Returns their length, and whether a buffer of `capacity` bytes was overrun.
pub(crate) fn overrun(ask: impl FnMut(*mut u8, usize) -> i64, capacity: usize) -> (i64, bool) {
    let (len, overrun, _) = filled(ask, capacity);
    (len, overrun)
}

fn filled(mut ask: impl FnMut(*mut u8, usize) -> i64, capacity: usize) -> (i64, bool, Vec<u8>) {
    // The room after the buffer detects an overrun instead of a crash.
    let mut out = vec![CANARY; capacity + 4096];
    let len = ask(out.as_mut_ptr(), capacity);
    let overrun = out[capacity..].iter().any(|&b| b != CANARY);
    (len, overrun, out)
}

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
        let _call = call("close");
        // SAFETY: all objects of the domain hold an `Arc` of it, so all of them are closed.
        unsafe { (self.ops().close)(self.handle) }
    }
}

impl Domain {
    fn ops(&self) -> &'static DomainTable {
        &self.provider.tables.domain
    }

    pub(crate) fn modules(&self) -> Result<Vec<ModuleAttr>, Failure> {
        let _call = call("query_modules");
        // SAFETY: the domain is open, the array has `capacity` records, and `count` takes the count.
        let list = listed(ModuleAttr::empty(), |out, capacity, count| unsafe {
            (self.ops().query_modules)(self.handle, out, capacity, count)
        });
        list.map_err(|why| self.provider.unlisted(why))
    }

    pub(crate) fn open_interface(self: &Arc<Domain>, module: &str) -> Result<Interface, Failure> {
        let _call = call("open_interface");
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
        let code = unsafe { (self.ops().open_interface)(self.handle, &params, &mut handle) };
        let _ = self.provider.check(code)?;
        Ok(Interface::of(self.clone(), handle))
    }

    /// Returns the domain's answer to a request for memory or for a registration. The result of the request is released again.
    pub(crate) fn says(&self, asked: &Asked) -> Result<(), Failure> {
        let ops = self.ops();
        let mut region = MemoryRegion::empty();
        // SAFETY: the domain is open, and the records are complete; the memory outlives the registration.
        let code = unsafe {
            match asked {
                Asked::Alloc(params) => (ops.alloc)(self.handle, params, &mut region),
                Asked::Register(params) => (ops.register)(self.handle, params, &mut region),
            }
        };
        let _ = self.provider.check(code)?;
        let _call = call("deregister");
        // SAFETY: the region was made above.
        self.provider.check(unsafe { (ops.deregister)(self.handle, region.handle) }).map(|_| ())
    }

    /// Makes memory that peers may access with `access`: registered if the domain registers, otherwise the domain's own.
    pub(crate) fn memory(
        self: &Arc<Domain>,
        caps: u64,
        len: usize,
        access: u64,
    ) -> Result<Memory, Failure> {
        let ops = self.ops();
        let mut region = MemoryRegion::empty();
        let mut owned = Vec::new();
        let code = if caps & memory_caps::REGISTER != 0 {
            // The registered part begins one word after the vector's start, and ends at least one word before the vector's end.
            owned = vec![0u64; len.div_ceil(8) + 2];
            let base = owned[1..].as_mut_ptr().cast::<u8>();
            let _call = call("register");
            // SAFETY: the domain is open; the memory lives until the region is deregistered in `drop`.
            unsafe {
                (ops.register)(self.handle, &RegisterParams::new(base, len, access), &mut region)
            }
        } else {
            let _call = call("alloc");
            // SAFETY: the domain is open, and the record's size is set.
            unsafe { (ops.alloc)(self.handle, &AllocParams::new(len, access), &mut region) }
        };
        let _ = self.provider.check(code)?;
        let domain = self.clone();
        Ok(Memory { domain, region, registered: true, named: false, _owned: owned })
    }
}

impl Domain {
    pub(crate) fn register(
        self: &Arc<Domain>,
        base: *mut u8,
        len: usize,
        access: u64,
    ) -> Result<Memory, Failure> {
        let mut region = MemoryRegion::empty();
        let _call = call("register");
        // SAFETY: the domain is open, and the memory stays.
        let code = unsafe {
            (self.ops().register)(self.handle, &RegisterParams::new(base, len, access), &mut region)
        };
        let _ = self.provider.check(code)?;
        let (domain, _owned) = (self.clone(), Vec::new());
        Ok(Memory { domain, region, registered: true, named: false, _owned })
    }
}

pub(crate) enum Asked {
    Alloc(AllocParams),
    Register(RegisterParams),
}

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
        // SAFETY: the domain is open, and the region belongs to it and was not deregistered before.
        let code =
            unsafe { (self.domain.ops().deregister)(self.domain.handle, self.region.handle) };
        self.registered = code == Status::Again as i32;
        self.domain.provider.check(code).map(|_| ())
    }

    /// Revokes the keys of the memory; the registration stays.
    pub(crate) fn refuse_keys(&self) -> Result<(), Failure> {
        let _call = call("revoke");
        // SAFETY: the domain is open, and the region belongs to it and is live.
        let code = unsafe { (self.domain.ops().revoke)(self.domain.handle, self.region.handle) };
        self.domain.provider.check(code).map(|_| ())
    }

    pub(crate) fn key(&self, capacity: usize) -> Result<Vec<u8>, Status> {
        self.key_to(KeyParams::empty(), capacity)
    }

    pub(crate) fn key_to(&self, part: KeyParams, capacity: usize) -> Result<Vec<u8>, Status> {
        let _call = call("pack_key");
        let f = self.domain.ops().pack_key;
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
