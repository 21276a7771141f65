//! Objects opened from a provider. Each keeps open what it was opened from. Domains, interfaces and connectors close on drop.

mod connector;

pub use connector::{OpenConnector, ParkedConnector};

use super::events::{Batch, Polled};
use super::grown::{appended, grown, listed};
use super::results::{armed, polled, reached};
use super::{EndpointTable, InterfaceTable, OwnedEndpoint, Span, WatchWords};
use crate::load::LoadedProvider;
use std::cell::Cell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::sync::Arc;
use tieline_explain::Error;
use tieline_plugin_api::abi::{
    AllocParams, DomainParams, EndpointParams, Event, ImportParams, InterfaceParams, KeyParams,
    MemoryRegion, MemoryUse, ModuleAttr, RegisterParams, fixed_str,
};
use tieline_plugin_api::{Armed, Failure, Status};

/// The handle of an open domain.
struct DomainHandle {
    handle: *mut c_void,
    name: String,
    provider: Arc<LoadedProvider>,
}

// SAFETY: by the ABI, several threads may call the functions of a domain concurrently.
unsafe impl Send for DomainHandle {}
// SAFETY: the reason for `Send` applies.
unsafe impl Sync for DomainHandle {}

impl Drop for DomainHandle {
    fn drop(&mut self) {
        // SAFETY: the domain is open, and closed once here; all objects that hold an `Arc` of this handle are already closed.
        unsafe { (self.provider.tables.domain.close)(self.handle) }
    }
}

/// An open memory domain. The domain is closed when it and everything opened from it are dropped.
pub struct OpenDomain {
    inner: Arc<DomainHandle>,
}

impl OpenDomain {
    /// Opens one of a provider's domains for a context.
    pub fn open(
        provider: &Arc<LoadedProvider>,
        name: &str,
        context_id: [u8; 16],
    ) -> Result<OpenDomain, Error> {
        let what = || format!("domain {name} could not be opened");
        provider.usable(&what)?;
        // Users of a domain may rely on its attributes, so they are checked first if the provider lists the domain.
        let attr = provider.domains()?.into_iter().find(|d| fixed_str(&d.name) == Some(name));
        if let Some(Err(verdict)) = attr.map(|attr| provider.check_domain(&attr)) {
            return Err(Error::new(Status::Unsupported, what(), verdict.to_string(), ""));
        }
        OpenDomain::open_checked(provider, name, context_id)
    }

    /// Opens a domain whose attributes the caller has checked.
    pub fn open_checked(
        provider: &Arc<LoadedProvider>,
        name: &str,
        context_id: [u8; 16],
    ) -> Result<OpenDomain, Error> {
        let what = || format!("domain {name} could not be opened");
        provider.usable(&what)?;
        let params = DomainParams {
            name: name.as_ptr(),
            name_len: name.len(),
            context_id,
            ..DomainParams::empty()
        };
        let mut handle = std::ptr::null_mut();
        let open = provider.tables.provider.open_domain;
        // SAFETY: this is the provider's function with its own state; the record and the variable live for the call.
        let code = unsafe { open(provider.state(), &params, &mut handle) };
        let _ = provider.checked(i64::from(code), &what)?;
        let inner = DomainHandle { handle, name: name.to_string(), provider: provider.clone() };
        Ok(OpenDomain { inner: Arc::new(inner) })
    }

    /// Returns the domain's full name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the provider of the domain.
    pub fn provider(&self) -> &Arc<LoadedProvider> {
        &self.inner.provider
    }

    /// Returns the domain's modules in the provider's order. See [`LoadedProvider::check_module`].
    pub fn modules(&self) -> Result<Vec<ModuleAttr>, Error> {
        let provider = self.provider();
        let what = || format!("the modules of {} could not be listed", self.name());
        provider.usable(&what)?;
        listed(ModuleAttr::empty(), |out, capacity, count| {
            // SAFETY: the handle belongs to an open domain; `out` has space for `capacity` records.
            unsafe {
                (provider.tables.domain.query_modules)(self.inner.handle, out, capacity, count)
            }
        })
        .map_err(|why| provider.unlisted(why, "query_modules", &what))
    }

    /// Opens a data-path module for the calling thread's worker.
    pub fn open_interface(
        &self,
        module: &str,
        worker_id: [u8; 16],
    ) -> Result<OpenInterface, Error> {
        let tables = &self.provider().tables;
        let handle = self.open_module(module, worker_id, tables.domain.open_interface)?;
        Ok(OpenInterface {
            handle,
            table: tables.interface,
            poll: Cell::new(tables.interface.poll),
            endpoint_table: self.provider().endpoint_table(),
            domain: self.inner.clone(),
            one_thread: PhantomData,
        })
    }

    /// Opens a connection-only module.
    pub fn open_connector(
        &self,
        module: &str,
        worker_id: [u8; 16],
    ) -> Result<OpenConnector, Error> {
        let tables = &self.provider().tables;
        let handle = self.open_module(module, worker_id, tables.domain.open_connector)?;
        let table = tables.connector;
        Ok(OpenConnector { handle, table, domain: self.inner.clone(), one_thread: PhantomData })
    }

    fn open_module(
        &self,
        module: &str,
        worker_id: [u8; 16],
        open: unsafe extern "C" fn(*mut c_void, *const InterfaceParams, *mut *mut c_void) -> i32,
    ) -> Result<*mut c_void, Error> {
        let params = InterfaceParams {
            module: module.as_ptr(),
            module_len: module.len(),
            worker_id,
            ..InterfaceParams::empty()
        };
        let mut handle = std::ptr::null_mut();
        let what = || format!("module {}/{module} could not be opened", self.name());
        self.provider().usable(&what)?;
        // SAFETY: the handle belongs to an open domain; the record and the variable live for the call.
        let code = unsafe { open(self.inner.handle, &params, &mut handle) };
        let _ = self.provider().checked(i64::from(code), &what)?;
        Ok(handle)
    }

    /// Allocates memory that this domain's peers can access.
    pub fn alloc(&self, len: usize, access: u64) -> Result<Registered, Error> {
        let what = || format!("{} could not provide {len} bytes", self.name());
        self.provider().usable(&what)?;
        let mut region = MemoryRegion::empty();
        // SAFETY: the handle belongs to an open domain; the record lives for the call.
        let code = unsafe {
            let wanted = AllocParams::new(len, access);
            (self.provider().tables.domain.alloc)(self.inner.handle, &wanted, &mut region)
        };
        let _ = self.provider().checked(i64::from(code), &what)?;
        let broken = match region {
            MemoryRegion { handle, .. } if handle.is_null() => Some("a null handle"),
            MemoryRegion { base, .. } if base.is_null() => Some("a null address"),
            region if region.len < len => Some("fewer bytes than were asked for"),
            _ => None,
        };
        if let Some(broken) = broken {
            return Err(self.broke_its_contract("alloc", broken, &what));
        }
        // SAFETY: by the ABI the memory stays allocated until the registration ends, and only `Registered` ends it.
        let span = unsafe { Span::new(region.base, len) };
        Ok(Registered { handle: Some(region.handle), span, domain: self.inner.clone() })
    }

    /// Registers memory of this process with rights and flags. The creator of the span has promised that the memory stays mapped.
    pub fn register(&self, span: Span, may: u64, flags: u64) -> Result<Registered, Error> {
        let what = || format!("{} could not register {} bytes", self.name(), span.len());
        self.provider().usable(&what)?;
        let mut region = MemoryRegion::empty();
        let params = RegisterParams::new(span.base(), span.len(), may);
        let params = RegisterParams { flags, ..params };
        // SAFETY: the handle belongs to an open domain; the creator of the span keeps the memory mapped (see `Span::new`).
        let code = unsafe {
            (self.provider().tables.domain.register)(self.inner.handle, &params, &mut region)
        };
        let _ = self.provider().checked(i64::from(code), &what)?;
        if region.handle.is_null() {
            return Err(self.broke_its_contract("register", "a null handle", &what));
        }
        Ok(Registered { handle: Some(region.handle), span, domain: self.inner.clone() })
    }

    /// Takes the provider out of use, because the slot has succeeded and returned a result that docs/abi.md forbids.
    #[cold]
    fn broke_its_contract(&self, slot: &str, gave: &str, what: &dyn Fn() -> String) -> Error {
        let provider = self.provider();
        provider.poison(&format!("its {slot} has succeeded with {gave} ({})", provider.origin));
        provider.failure(Status::ProviderFailed as i32, &what())
    }
}

/// A piece of memory that is registered with a domain or allocated by it. The owner ends the registration with [`Registered::end`].
/// Otherwise the registration lasts until the domain is closed.
pub struct Registered {
    /// The provider's handle; `None`: the registration has ended.
    handle: Option<*mut c_void>,
    span: Span,
    domain: Arc<DomainHandle>,
}

// SAFETY: by the ABI, several threads may call the functions of a domain concurrently, with any of its regions. A region is ended
// through `&mut`, so no other thread uses it meanwhile.
unsafe impl Send for Registered {}
// SAFETY: the reasons for `Send` apply.
unsafe impl Sync for Registered {}

impl Registered {
    /// Returns the memory.
    ///
    /// # Safety
    /// The caller uses the span, and all addresses derived from it, only until the registration ends.
    pub unsafe fn span(&self) -> Span {
        self.span
    }

    /// Ends the registration, and frees the memory if the domain allocated it. `Again`: its keys are refused from this call on, but
    /// a peer is still accessing the memory and the registration has not ended. After any other error the registration has ended in
    /// an unknown state.
    pub fn end(&mut self) -> Result<(), Error> {
        let Some(handle) = self.handle else { return Ok(()) };
        let provider = &self.domain.provider;
        let what = || format!("{} could not end a registration", self.domain.name);
        // SAFETY: the domain is open, and the region's registration has not ended.
        let code = unsafe { (provider.tables.domain.deregister)(self.domain.handle, handle) };
        if Status::from_code(code) != Status::Again || code >= 0 {
            self.handle = None;
        }
        provider.checked(i64::from(code), &what).map(|_| ())
    }

    /// Revokes the keys of the registration, while operations of this process continue to use it. If revoking fails or is not
    /// supported, the keys are refused when the registration ends.
    pub fn revoke(&self) {
        let Some(handle) = self.handle else { return };
        let provider = &self.domain.provider;
        // SAFETY: the domain is open, and the region's registration has not ended.
        let code = unsafe { (provider.tables.domain.revoke)(self.domain.handle, handle) };
        let _ = provider.checked(i64::from(code), &|| "keys could not be revoked".to_string());
    }

    /// Returns the remote key.
    pub fn pack_key(&self) -> Result<Vec<u8>, Error> {
        let mut key = Vec::new();
        self.append_key(&mut key)?;
        Ok(key)
    }

    /// Appends the remote key to a buffer. On an error the buffer is unchanged.
    pub fn append_key(&self, out: &mut Vec<u8>) -> Result<(), Error> {
        let Some(handle) = self.handle else { return Err(Status::Closed.into()) };
        let provider = &self.domain.provider;
        let what = || format!("{} could not pack a remote key", self.domain.name);
        provider.usable(&what)?;
        let whole = KeyParams { region: handle, ..KeyParams::empty() };
        appended(out, |buffer, capacity| {
            // SAFETY: the domain is open and the region registered; the buffer has that capacity.
            unsafe {
                (provider.tables.domain.pack_key)(self.domain.handle, &whole, buffer, capacity)
            }
        })
        .map_err(|status| provider.failed_call(status as i32, &what))
    }
}

/// The handle of an endpoint that was just created, for [`OpenInterface::endpoint`].
pub struct NewEndpoint(*mut c_void);

/// The call that polls an interface: the provider's function and its first argument.
#[derive(Clone, Copy)]
pub struct PollCall {
    poll: unsafe extern "C" fn(*mut c_void, *mut Event, u32) -> i64,
    handle: *mut c_void,
}

impl PollCall {
    /// The call that returns no event.
    pub const NONE: PollCall =
        PollCall { poll: InterfaceTable::MISSING.poll, handle: std::ptr::null_mut() };

    /// Makes progress like [`OpenInterface::poll`], and returns the provider's result.
    ///
    /// # Safety
    /// The interface is open, this is its thread, and its provider has not failed. The conditions of [`OpenInterface::poll`] apply.
    #[inline(always)]
    pub unsafe fn call(&self, batch: &mut Batch) -> i64 {
        let (events, max) = batch.room();
        // SAFETY: the caller's promise; the batch has space for `max` events.
        unsafe { (self.poll)(self.handle, events, max) }
    }

    /// Returns the events that [`PollCall::call`] has written.
    ///
    /// # Safety
    /// `count` is the result of the last call with this batch.
    #[inline]
    pub unsafe fn events(count: i64, batch: &Batch) -> Result<&[Polled], Status> {
        let count = polled(count)?;
        // SAFETY: the caller's promise; `count` does not exceed the capacity.
        Ok(unsafe { batch.written(count) })
    }
}

/// A data-path module opened for one worker. It is not `Send`. The owner closes the interface's endpoints before it drops the
/// interface, unless the provider has failed.
pub struct OpenInterface {
    handle: *mut c_void,
    table: InterfaceTable,
    /// The table's function, or a stub after polling was stopped.
    poll: Cell<unsafe extern "C" fn(*mut c_void, *mut Event, u32) -> i64>,
    endpoint_table: &'static EndpointTable,
    domain: Arc<DomainHandle>,
    one_thread: PhantomData<*mut ()>,
}

impl Drop for OpenInterface {
    fn drop(&mut self) {
        // SAFETY: the interface is open, and closed once here, on its thread. Its endpoints are already closed, or its provider has
        // failed, and then docs/abi.md allows neither their closing nor other calls.
        unsafe { (self.table.close)(self.handle) }
    }
}

impl OpenInterface {
    /// Returns the provider's handle of a registration, if it belongs to the interface's domain.
    pub fn region(&self, registered: &Registered) -> Option<*mut c_void> {
        let is_ours = Arc::ptr_eq(&self.domain, &registered.domain);
        registered.handle.filter(|_| is_ours)
    }

    /// Returns the provider of the interface.
    pub fn provider(&self) -> &Arc<LoadedProvider> {
        &self.domain.provider
    }

    /// Checks that the provider has not failed: none of a failed provider's functions may be called.
    fn check_provider(&self) -> Result<(), Status> {
        self.provider().check_alive()
    }

    /// Returns the address by which a peer reaches this interface.
    pub fn address(&self) -> Result<Vec<u8>, Error> {
        self.provider().usable(&|| "an interface has no address".to_string())?;
        grown(|buffer, capacity| {
            // SAFETY: the interface is open and this is its thread; the buffer has that capacity.
            unsafe { (self.table.address)(self.handle, buffer, capacity) }
        })
        .map_err(|status| {
            self.provider()
                .failed_call(status as i32, &|| "an interface has no address".to_string())
        })
    }

    /// Checks whether a peer with this address can be reached; the error has the status and the reason as text.
    pub fn reachable(&self, address: &[u8]) -> Result<(), Failure> {
        self.check_provider()?;
        // SAFETY: the interface is open and this is its thread; the address is borrowed for the call.
        let code = unsafe { (self.table.reachable)(self.handle, address.as_ptr(), address.len()) };
        reached(self.provider(), code)
    }

    /// Creates an endpoint. The result of [`OpenInterface::endpoint`] for the handle closes it.
    pub fn connect(
        &self,
        address: &[u8],
        identity: &[u8],
        cookie: u64,
    ) -> Result<NewEndpoint, Error> {
        let params = EndpointParams {
            address: if address.is_empty() { std::ptr::null() } else { address.as_ptr() },
            address_len: address.len(),
            identity: identity.as_ptr(),
            identity_len: identity.len(),
            cookie,
            ..EndpointParams::empty()
        };
        let mut handle = std::ptr::null_mut();
        let what = || format!("no endpoint could be made on {}", self.domain.name);
        self.provider().usable(&what)?;
        // SAFETY: the interface is open and this is its thread; the record and its pointers are valid for the call.
        let code = unsafe { (self.table.connect)(self.handle, &params, &mut handle) };
        let _ = self.provider().checked(i64::from(code), &what)?;
        Ok(NewEndpoint(handle))
    }

    /// Makes an endpoint from a handle that [`OpenInterface::connect`] of this interface has returned.
    pub fn endpoint(&self, new: NewEndpoint) -> OwnedEndpoint {
        OwnedEndpoint::new(new.0, self.endpoint_table)
    }

    /// Makes progress with one indirect call. The payloads of the previous call's events become invalid, unless they are lent.
    ///
    /// # Safety
    /// The caller reads the events' payloads only before the next poll of this interface, and while it is open.
    #[inline]
    pub unsafe fn poll<'a>(&self, batch: &'a mut Batch) -> Result<&'a [Polled], Status> {
        let (events, max) = batch.room();
        // SAFETY: the interface is open and this is its thread; the batch has space for `max` events.
        let count = polled(unsafe { (self.poll.get())(self.handle, events, max) })?;
        // SAFETY: `count` is the result of that poll and does not exceed the capacity.
        Ok(unsafe { batch.written(count) })
    }

    /// Returns the call that polls this interface.
    pub fn poll_call(&self) -> PollCall {
        PollCall { handle: self.handle, poll: self.poll.get() }
    }

    /// Returns the interface's watch words, for all later comparisons.
    pub fn watch_words(&self) -> WatchWords {
        // SAFETY: the interface is open and this is its thread.
        unsafe { WatchWords::new((self.table.watch)(self.handle)) }
    }

    /// Stops polling a provider that broke its contract: later polls return no events and do not call the provider.
    pub fn stop_polling(&self) {
        self.poll.set(InterfaceTable::MISSING.poll);
    }

    /// Disconnects a peer, identified by the interface's number for it.
    pub fn hang_up(&self, peer: u64) -> Result<(), Status> {
        self.check_provider()?;
        // SAFETY: the interface is open and this is its thread.
        let code = unsafe { (self.table.hang_up)(self.handle, peer) };
        self.provider().heard(code);
        if code < 0 { Err(Status::from_code(code)) } else { Ok(()) }
    }

    /// Announces to the peers that the interface leaves. After this call the interface only serves lent payloads.
    pub fn leave(&self) {
        if self.check_provider().is_err() {
            return;
        }
        // SAFETY: the interface is open and this is its thread; nothing is posted or polled on it after this call.
        unsafe { (self.table.leave)(self.handle) }
    }

    /// Prepares to sleep on [`OpenInterface::event_fd`].
    pub fn arm(&self) -> Result<Armed, Status> {
        self.check_provider()?;
        // SAFETY: the interface is open and this is its thread.
        let code = unsafe { (self.table.arm)(self.handle) };
        self.provider().heard(code);
        armed(code)
    }

    /// Returns the descriptor on which a thread can sleep; the interface owns the descriptor.
    pub fn event_fd(&self) -> Option<RawFd> {
        self.check_provider().ok()?;
        // SAFETY: the interface is open and this is its thread.
        let fd = unsafe { (self.table.event_fd)(self.handle) };
        self.provider().heard(fd);
        (fd >= 0).then_some(fd)
    }

    /// Releases a lent payload.
    ///
    /// # Safety
    /// The token belongs to a lent payload of this interface, is released once, and the payload is not read afterwards.
    #[inline]
    pub unsafe fn release(&self, token: u64) {
        // SAFETY: the interface is open and this is its thread; the caller guarantees the rest.
        unsafe { (self.table.release)(self.handle, token) }
    }

    /// Imports a packed key for all endpoints to the key's owner. Returns the provider's key, or the negative status.
    pub fn import_key(&self, bytes: &[u8]) -> Result<*mut c_void, i32> {
        let mut out = std::ptr::null_mut();
        self.check_provider().map_err(|status| status as i32)?;
        let params =
            ImportParams { bytes: bytes.as_ptr(), len: bytes.len(), ..ImportParams::empty() };
        // SAFETY: the interface is open and this is its thread; the record and the bytes are borrowed for the call.
        let code = unsafe { (self.table.import_key)(self.handle, &params, &mut out) };
        if code < 0 { Err(code) } else { Ok(out) }
    }

    /// Drops a key of the interface.
    ///
    /// # Safety
    /// The key was imported by [`OpenInterface::import_key`] of this interface, and it is not used afterwards.
    pub unsafe fn drop_key(&self, key: *mut c_void) {
        // SAFETY: the interface is open and this is its thread; the caller guarantees the rest.
        unsafe { (self.table.drop_key)(self.handle, key) }
    }

    /// Returns the amount of memory that the interface holds; `None` if the provider does not report it.
    pub fn memory(&self) -> Option<MemoryUse> {
        self.check_provider().ok()?;
        let mut memory = MemoryUse::empty();
        // SAFETY: the interface is open and this is its thread; the record lives for the call.
        let code = unsafe { (self.table.memory)(self.handle, &mut memory) };
        self.provider().heard(code);
        (code >= 0).then_some(memory)
    }
}

#[cfg(any(test, feature = "test-hooks"))]
pub mod tests;
