//! The functions that stand between the C tables and the safe traits.
//!
//! Every shim catches panics on the provider's side of the boundary: the call returns
//! `PROVIDER_FAILED`, the provider is poisoned, and every later control call says so. Data calls test no
//! flag: the core takes a provider out of use when it sees `PROVIDER_FAILED`.

use super::host::HostHandle;
use super::*;
use crate::provider::{
    Armed, Connector, Domain, Endpoint, Events, Interface, Packer, Posted, Posting, Provider, RmaOp,
};
use crate::{Failure, OK, PENDING, Status};
use core::cell::RefCell;
use core::mem::MaybeUninit;
use core::panic::AssertUnwindSafe;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use std::panic::catch_unwind;

thread_local! {
    /// The calling thread's last error, for `ProviderOps::last_error`.
    static LAST_ERROR: RefCell<String> = const { RefCell::new(String::new()) };
}

fn remember(text: &str) {
    LAST_ERROR.with_borrow_mut(|last| {
        last.clear();
        last.push_str(text);
    });
}

/// One object behind a `void *`, with the flag of the provider that it belongs to.
struct Shared<T> {
    inner: T,
    poisoned: &'static AtomicBool,
}

impl<T> Shared<T> {
    fn into_raw(inner: T, poisoned: &'static AtomicBool) -> *mut c_void {
        Box::into_raw(Box::new(Shared { inner, poisoned })).cast()
    }
}

/// The object behind a handle.
///
/// # Safety
/// `handle` came from [`Shared::into_raw`] with the same `T` and was not closed.
#[inline]
unsafe fn shared<'a, T>(handle: *mut c_void) -> &'a Shared<T> {
    // SAFETY: the caller's promise.
    unsafe { &*handle.cast::<Shared<T>>() }
}

/// Runs a control call: refuses when poisoned, remembers the text of a failure, catches panics.
fn guarded(poisoned: &AtomicBool, body: impl FnOnce() -> Result<i64, Failure>) -> i64 {
    if poisoned.load(Ordering::Relaxed) {
        remember("the provider panicked earlier and is not used any more");
        return i64::from(Status::ProviderFailed as i32);
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => {
            remember(&failure.text);
            i64::from(failure.status as i32)
        }
        Err(panic) => poison(poisoned, &panic),
    }
}

#[cold]
fn poison(poisoned: &AtomicBool, panic: &Box<dyn core::any::Any + Send>) -> i64 {
    poisoned.store(true, Ordering::Relaxed);
    let text = panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_string())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_string());
    remember(&format!("the provider panicked: {text}"));
    i64::from(Status::ProviderFailed as i32)
}

/// Runs a data call: no flag, no text, panics caught.
#[inline]
fn hot(poisoned: &AtomicBool, body: impl FnOnce() -> i64) -> i64 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => value,
        Err(panic) => poison(poisoned, &panic),
    }
}

#[inline]
fn posted(result: Posted) -> i64 {
    match result {
        Ok(Posting::Done) => i64::from(OK),
        Ok(Posting::Pending) => i64::from(PENDING),
        Err(status) => i64::from(status as i32),
    }
}

fn code(value: i64) -> i32 {
    value as i32
}

/// Reads a parameter record by the tail rule.
///
/// # Safety
/// `params` is null or points to a record whose first field is its size.
unsafe fn read_params<T: Copy>(params: *const T, mut record: T) -> Result<T, Failure> {
    if params.is_null() {
        return Err(Failure::new(Status::Invalid, "the parameter record is null"));
    }
    // SAFETY: the first field of every parameter record is `size: usize`.
    let size = unsafe { *params.cast::<usize>() };
    let known = size_of::<T>();
    // SAFETY: `size` bytes can be read, the caller says; no more than our record is written.
    unsafe {
        ptr::copy_nonoverlapping(
            params.cast::<u8>(),
            ptr::from_mut(&mut record).cast::<u8>(),
            size.min(known),
        );
    }
    for at in known..size.min(known + 4096) {
        // SAFETY: `at < size`.
        if unsafe { *params.cast::<u8>().add(at) } != 0 {
            return Err(Status::UnsupportedParam.into());
        }
    }
    Ok(record)
}

/// Writes an attribute record by the tail rule: `min(size)`, the caller's `size` kept.
///
/// # Safety
/// `out` points to a record whose first field is its size.
unsafe fn write_attr<T: Copy>(out: *mut T, value: &T) {
    // SAFETY: the first field of every attribute record is `size: usize`.
    let size = unsafe { *out.cast::<usize>() }.min(size_of::<T>());
    let skip = size_of::<usize>();
    if size > skip {
        // SAFETY: both records are at least `size` bytes long.
        unsafe {
            ptr::copy_nonoverlapping(
                ptr::from_ref(value).cast::<u8>().add(skip),
                out.cast::<u8>().add(skip),
                size - skip,
            );
        }
    }
}

/// Writes a list of attribute records: each element is `stride` bytes apart, the caller's size of one.
///
/// # Safety
/// `out` points to `capacity` records whose first element's `size` is set; `count` is writable.
unsafe fn write_list<T: Copy>(
    values: &[T],
    out: *mut T,
    capacity: usize,
    count: *mut usize,
) -> Result<i64, Failure> {
    if count.is_null() || (out.is_null() && capacity > 0) {
        return Err(Failure::new(Status::Invalid, "the list or its count is null"));
    }
    // SAFETY: `count` is writable.
    unsafe { *count = values.len() };
    if capacity > 0 {
        // SAFETY: the first record's size is the distance between records.
        let stride = unsafe { *out.cast::<usize>() };
        for (i, value) in values.iter().take(capacity).enumerate() {
            // SAFETY: element `i < capacity` of the caller's array.
            unsafe {
                let slot = out.cast::<u8>().add(i * stride).cast::<T>();
                slot.cast::<usize>().write_unaligned(stride);
                write_attr(slot, value);
            }
        }
    }
    Ok(0)
}

/// Borrows text or bytes that came as pointer and length.
///
/// # Safety
/// `ptr` is null or readable for `len` bytes during the call.
#[inline]
unsafe fn bytes<'a>(ptr: *const u8, len: usize) -> &'a [u8] {
    if ptr.is_null() || len == 0 {
        &[]
    } else {
        // SAFETY: the caller's promise.
        unsafe { core::slice::from_raw_parts(ptr, len) }
    }
}

/// # Safety
/// As [`bytes`].
unsafe fn text<'a>(ptr: *const u8, len: usize) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    core::str::from_utf8(unsafe { bytes(ptr, len) })
        .map_err(|_| Failure::new(Status::Invalid, "a name is not UTF-8"))
}

/// Writes bytes into the caller's buffer and returns their whole length, as `address` and `pack_key` do.
///
/// # Safety
/// `out` is writable for `capacity` bytes, or null with a capacity of 0.
unsafe fn write_bytes(value: &[u8], out: *mut u8, capacity: usize) -> i64 {
    if !out.is_null() {
        // SAFETY: at most `capacity` bytes.
        unsafe { ptr::copy_nonoverlapping(value.as_ptr(), out, value.len().min(capacity)) };
    }
    value.len() as i64
}

// ---- provider ----

/// The body of `tieline_provider_v1`.
///
/// # Safety
/// `host` is the core's table; `out` is a record whose `size` the core has set.
pub unsafe extern "C" fn entry<P: Provider>(host: *const Host, out: *mut ProviderOps) -> i32 {
    // SAFETY: the core's table is valid for the life of the process.
    let Some(host) = (unsafe { HostHandle::new(host) }) else { return Status::Invalid as i32 };
    if out.is_null() {
        return Status::Invalid as i32;
    }
    let poisoned: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let result = code(guarded(poisoned, || {
        let provider = P::open(host)?;
        let ops = ProviderOps {
            size: size_of::<ProviderOps>(),
            abi_minor: u32::from(ABI_MINOR),
            reserved: 0,
            state: Shared::into_raw(provider, poisoned),
            query_domains: Some(query_domains::<P>),
            open_domain: Some(open_domain::<P>),
            query_config: Some(query_config::<P>),
            last_error: Some(last_error),
            quiesce: Some(quiesce::<P>),
            layouts: Some(layouts),
            domain: Tables::<P::Domain>::DOMAIN,
            interface: if <P::Domain as Domain>::Interface::PRESENT {
                Tables::<P::Domain>::INTERFACE
            } else {
                ptr::null()
            },
            endpoint: if <P::Domain as Domain>::Interface::PRESENT {
                Tables::<P::Domain>::ENDPOINT
            } else {
                ptr::null()
            },
            connector: if <P::Domain as Domain>::Connector::PRESENT {
                Tables::<P::Domain>::CONNECTOR
            } else {
                ptr::null()
            },
        };
        // SAFETY: the core set `size`; a table is written like an attribute record.
        unsafe {
            write_attr(out, &ops);
            (*out).size = size_of::<ProviderOps>();
        }
        Ok(0)
    }));
    if result != OK {
        LAST_ERROR.with_borrow(|text| host.async_event(result, text));
    }
    result
}

unsafe extern "C" fn query_domains<P: Provider>(
    state: *mut c_void,
    out: *mut DomainAttr,
    capacity: usize,
    count: *mut usize,
) -> i32 {
    // SAFETY: `state` is the one that `entry` wrote.
    let this = unsafe { shared::<P>(state) };
    code(guarded(this.poisoned, || {
        let list: Vec<DomainAttr> = this
            .inner
            .domains()?
            .iter()
            .map(|d| DomainAttr {
                name: fixed(&d.name),
                caps: d.caps,
                max_key_len: d.max_key_len,
                register_ns: d.register_ns,
                register_ns_per_byte: d.register_ns_per_byte,
                ..DomainAttr::empty()
            })
            .collect();
        // SAFETY: the core's array.
        unsafe { write_list(&list, out, capacity, count) }
    }))
}

unsafe extern "C" fn open_domain<P: Provider>(
    state: *mut c_void,
    params: *const DomainParams,
    out: *mut *mut c_void,
) -> i32 {
    // SAFETY: `state` is the one that `entry` wrote.
    let this = unsafe { shared::<P>(state) };
    code(guarded(this.poisoned, || {
        // SAFETY: the core's record.
        let params = unsafe { read_params(params, DomainParams::empty()) }?;
        // SAFETY: the name is borrowed for the call.
        let name = unsafe { text(params.name, params.name_len) }?;
        let domain = this.inner.open_domain(name, params.context_id)?;
        // SAFETY: the core's place for the handle.
        unsafe { *out = Shared::into_raw(domain, this.poisoned) };
        Ok(0)
    }))
}

unsafe extern "C" fn query_config<P: Provider>(
    state: *mut c_void,
    out: *mut ConfigVar,
    capacity: usize,
    count: *mut usize,
) -> i32 {
    // SAFETY: `state` is the one that `entry` wrote.
    let this = unsafe { shared::<P>(state) };
    code(guarded(this.poisoned, || {
        let list: Vec<ConfigVar> = P::config()
            .iter()
            .map(|v| ConfigVar {
                size: size_of::<ConfigVar>(),
                name: v.name.as_ptr(),
                name_len: v.name.len(),
                default_value: v.default.as_ptr(),
                default_value_len: v.default.len(),
                doc: v.doc.as_ptr(),
                doc_len: v.doc.len(),
                kind: v.kind.as_ptr(),
                kind_len: v.kind.len(),
            })
            .collect();
        // SAFETY: the core's array; the texts are `'static`.
        unsafe { write_list(&list, out, capacity, count) }
    }))
}

unsafe extern "C" fn last_error(_: *mut c_void, out: *mut u8, capacity: usize) -> i64 {
    LAST_ERROR.with_borrow(|text| {
        // SAFETY: the core's buffer.
        unsafe { write_bytes(text.as_bytes(), out, capacity) }
    })
}

unsafe extern "C" fn quiesce<P: Provider>(state: *mut c_void) {
    // SAFETY: `state` is the one that `entry` wrote; this is the last call, so it ends here.
    let this = unsafe { Box::from_raw(state.cast::<Shared<P>>()) };
    let poisoned = this.poisoned;
    if poisoned.load(Ordering::Relaxed) {
        // Nobody knows what state it is in: its destructor stays unrun.
        let _ = Box::leak(this);
        return;
    }
    let _ = guarded(poisoned, || {
        this.inner.quiesce();
        drop(this);
        Ok(0)
    });
}

unsafe extern "C" fn layouts(_: *mut c_void, out: *mut Layouts) -> i32 {
    // SAFETY: the core's record, whose `size` it has set.
    unsafe { write_attr(out, &super::layout::describe()) };
    OK
}

// ---- tables ----

struct Tables<D>(core::marker::PhantomData<D>);

impl<D: Domain> Tables<D> {
    const DOMAIN: &'static DomainOps = &DomainOps {
        size: size_of::<DomainOps>(),
        close: Some(close::<D>),
        query_modules: Some(query_modules::<D>),
        open_interface: Some(open_interface::<D>),
        open_connector: Some(open_connector::<D>),
        alloc: Some(alloc::<D>),
        register: Some(register::<D>),
        deregister: Some(deregister::<D>),
        pack_key: Some(pack_key::<D>),
    };
    const INTERFACE: &'static InterfaceOps = &InterfaceOps {
        size: size_of::<InterfaceOps>(),
        poll: Some(poll::<D::Interface>),
        close: Some(close::<D::Interface>),
        address: Some(interface_address::<D::Interface>),
        reachable: Some(reachable::<D::Interface>),
        connect: Some(connect::<D::Interface>),
        arm: Some(arm::<D::Interface>),
        event_fd: Some(event_fd::<D::Interface>),
        release: Some(release::<D::Interface>),
        memory: Some(memory::<D::Interface>),
    };
    const ENDPOINT: &'static EndpointOps = &EndpointOps {
        size: size_of::<EndpointOps>(),
        am_short: Some(am_short::<EndpointOf<D>>),
        am_packed: Some(am_packed::<EndpointOf<D>>),
        am_zcopy: Some(am_zcopy::<EndpointOf<D>>),
        put: Some(put::<EndpointOf<D>>),
        get: Some(get::<EndpointOf<D>>),
        atomic: Some(atomic::<EndpointOf<D>>),
        flush: Some(flush::<EndpointOf<D>>),
        fence: Some(fence::<EndpointOf<D>>),
        close: Some(close::<EndpointOf<D>>),
        import_key: Some(import_key::<EndpointOf<D>>),
        drop_key: Some(drop_key::<EndpointOf<D>>),
        address: Some(endpoint_address::<EndpointOf<D>>),
        connect: Some(endpoint_connect::<EndpointOf<D>>),
    };
    const CONNECTOR: &'static ConnectorOps = &ConnectorOps {
        size: size_of::<ConnectorOps>(),
        poll: Some(connector_poll::<D::Connector>),
        close: Some(close::<D::Connector>),
        address: Some(connector_address::<D::Connector>),
        reachable: Some(connector_reachable::<D::Connector>),
        send: Some(connector_send::<D::Connector>),
        arm: Some(connector_arm::<D::Connector>),
        event_fd: Some(connector_event_fd::<D::Connector>),
    };
}

type EndpointOf<D> = <<D as Domain>::Interface as Interface>::Endpoint;

unsafe extern "C" fn close<T>(handle: *mut c_void) {
    // SAFETY: the handle came from `Shared::into_raw` with this type, and the core closes it once.
    let this = unsafe { Box::from_raw(handle.cast::<Shared<T>>()) };
    let poisoned = this.poisoned;
    if let Err(panic) = catch_unwind(AssertUnwindSafe(move || drop(this))) {
        let _ = poison(poisoned, &panic);
    }
}

// ---- domain ----

unsafe extern "C" fn query_modules<D: Domain>(
    domain: *mut c_void,
    out: *mut ModuleAttr,
    capacity: usize,
    count: *mut usize,
) -> i32 {
    // SAFETY: an open domain's handle.
    let this = unsafe { shared::<D>(domain) };
    code(guarded(this.poisoned, || {
        // SAFETY: the core's array.
        unsafe { write_list(&this.inner.modules(), out, capacity, count) }
    }))
}

/// Reads the parameters of `open_interface` and `open_connector` and stores the handle that `open` made.
///
/// # Safety
/// The arguments are those of the two slots.
unsafe fn open_with<D: Domain, T>(
    domain: *mut c_void,
    params: *const InterfaceParams,
    out: *mut *mut c_void,
    open: impl FnOnce(&D, &str, [u8; 16]) -> Result<T, Failure>,
) -> i32 {
    // SAFETY: an open domain's handle.
    let this = unsafe { shared::<D>(domain) };
    code(guarded(this.poisoned, || {
        // SAFETY: the core's record.
        let params = unsafe { read_params(params, InterfaceParams::empty()) }?;
        // SAFETY: the name is borrowed for the call.
        let module = unsafe { text(params.module, params.module_len) }?;
        let opened = open(&this.inner, module, params.worker_id)?;
        // SAFETY: the core's place for the handle.
        unsafe { *out = Shared::into_raw(opened, this.poisoned) };
        Ok(0)
    }))
}

unsafe extern "C" fn open_interface<D: Domain>(
    domain: *mut c_void,
    params: *const InterfaceParams,
    out: *mut *mut c_void,
) -> i32 {
    // SAFETY: the core's arguments.
    unsafe { open_with::<D, _>(domain, params, out, |d, module, id| d.open_interface(module, id)) }
}

unsafe extern "C" fn open_connector<D: Domain>(
    domain: *mut c_void,
    params: *const InterfaceParams,
    out: *mut *mut c_void,
) -> i32 {
    // SAFETY: the core's arguments.
    unsafe { open_with::<D, _>(domain, params, out, |d, module, id| d.open_connector(module, id)) }
}

unsafe extern "C" fn alloc<D: Domain>(
    domain: *mut c_void,
    len: usize,
    access: u64,
    out: *mut MemoryRegion,
) -> i32 {
    // SAFETY: an open domain's handle.
    let this = unsafe { shared::<D>(domain) };
    code(guarded(this.poisoned, || {
        let got = this.inner.alloc(len, access)?;
        let region = MemoryRegion {
            handle: Box::into_raw(Box::new(got.region)).cast(),
            base: got.base,
            len: got.len,
            ..MemoryRegion::empty()
        };
        // SAFETY: the core's record, whose `size` it has set.
        unsafe { write_attr(out, &region) };
        Ok(0)
    }))
}

unsafe extern "C" fn register<D: Domain>(
    domain: *mut c_void,
    base: *mut u8,
    len: usize,
    access: u64,
    out: *mut MemoryRegion,
) -> i32 {
    // SAFETY: an open domain's handle.
    let this = unsafe { shared::<D>(domain) };
    code(guarded(this.poisoned, || {
        let region = this.inner.register(base, len, access)?;
        let region = MemoryRegion {
            handle: Box::into_raw(Box::new(region)).cast(),
            base,
            len,
            ..MemoryRegion::empty()
        };
        // SAFETY: the core's record, whose `size` it has set.
        unsafe { write_attr(out, &region) };
        Ok(0)
    }))
}

unsafe extern "C" fn deregister<D: Domain>(domain: *mut c_void, region: *mut c_void) -> i32 {
    // SAFETY: an open domain's handle.
    let this = unsafe { shared::<D>(domain) };
    code(guarded(this.poisoned, || {
        // SAFETY: the handle came from alloc or register of this domain, and the core ends it once.
        let region = unsafe { Box::from_raw(region.cast::<D::Region>()) };
        this.inner.deregister(*region)?;
        Ok(0)
    }))
}

unsafe extern "C" fn pack_key<D: Domain>(
    domain: *mut c_void,
    region: *mut c_void,
    out: *mut u8,
    capacity: usize,
) -> i64 {
    // SAFETY: an open domain's handle.
    let this = unsafe { shared::<D>(domain) };
    guarded(this.poisoned, || {
        // SAFETY: a registered region's handle.
        let region = unsafe { &*region.cast::<D::Region>() };
        // SAFETY: the core's buffer, which it zeroed.
        let out = unsafe { core::slice::from_raw_parts_mut(out, capacity) };
        Ok(this.inner.pack_key(region, out)? as i64)
    })
}

// ---- interface ----

unsafe extern "C" fn poll<I: Interface>(interface: *mut c_void, out: *mut Event, max: u32) -> i64 {
    // SAFETY: an open interface's handle.
    let this = unsafe { shared::<I>(interface) };
    hot(this.poisoned, || {
        // SAFETY: the core's array of `max` events, which need not be initialised.
        let slots = unsafe {
            core::slice::from_raw_parts_mut(out.cast::<MaybeUninit<Event>>(), max as usize)
        };
        let mut events = Events::new(slots);
        match this.inner.poll(&mut events) {
            Ok(()) => events.len as i64,
            Err(status) => i64::from(status as i32),
        }
    })
}

unsafe extern "C" fn interface_address<I: Interface>(
    interface: *mut c_void,
    out: *mut u8,
    capacity: usize,
) -> i64 {
    // SAFETY: an open interface's handle.
    let this = unsafe { shared::<I>(interface) };
    // SAFETY: the core's buffer.
    guarded(this.poisoned, || Ok(unsafe { write_bytes(&this.inner.address(), out, capacity) }))
}

/// Runs a reachability question and writes the reason of a "no".
///
/// # Safety
/// The arguments are those of the `reachable` slots.
unsafe fn answer_reachable(
    poisoned: &AtomicBool,
    reason: *mut u8,
    capacity: usize,
    ask: impl FnOnce() -> Result<(), Failure>,
) -> i32 {
    let result = guarded(poisoned, || ask().map(|()| 0));
    if result < 0 && capacity > 0 {
        LAST_ERROR.with_borrow(|text| {
            let mut end = text.len().min(capacity - 1);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            // SAFETY: `end < capacity`, so the text and a terminating zero fit.
            unsafe {
                ptr::copy_nonoverlapping(text.as_ptr(), reason, end);
                *reason.add(end) = 0;
            }
        });
    }
    code(result)
}

unsafe extern "C" fn reachable<I: Interface>(
    interface: *mut c_void,
    address: *const u8,
    len: usize,
    reason: *mut u8,
    capacity: usize,
) -> i32 {
    // SAFETY: an open interface's handle.
    let this = unsafe { shared::<I>(interface) };
    // SAFETY: the core's buffers.
    unsafe {
        answer_reachable(this.poisoned, reason, capacity, || {
            this.inner.reachable(bytes(address, len))
        })
    }
}

unsafe extern "C" fn connect<I: Interface>(
    interface: *mut c_void,
    params: *const EndpointParams,
    out: *mut *mut c_void,
) -> i32 {
    // SAFETY: an open interface's handle.
    let this = unsafe { shared::<I>(interface) };
    code(guarded(this.poisoned, || {
        // SAFETY: the core's record.
        let params = unsafe { read_params(params, EndpointParams::empty()) }?;
        // SAFETY: both are borrowed for the call.
        let (address, identity) = unsafe {
            (
                bytes(params.address, params.address_len),
                bytes(params.identity, params.identity_len),
            )
        };
        let endpoint = this.inner.connect(address, identity, params.cookie)?;
        // SAFETY: the core's place for the handle.
        unsafe { *out = Shared::into_raw(endpoint, this.poisoned) };
        Ok(0)
    }))
}

fn armed(result: Result<Armed, Status>) -> Result<i64, Failure> {
    Ok(match result? {
        Armed::Sleep => 0,
        Armed::Ready => 1,
    })
}

fn descriptor(fd: Option<i32>) -> Result<i64, Failure> {
    fd.map(i64::from).ok_or_else(|| Status::Unsupported.into())
}

unsafe extern "C" fn arm<I: Interface>(interface: *mut c_void) -> i32 {
    // SAFETY: an open interface's handle.
    let this = unsafe { shared::<I>(interface) };
    code(guarded(this.poisoned, || armed(this.inner.arm())))
}

unsafe extern "C" fn event_fd<I: Interface>(interface: *mut c_void) -> i32 {
    // SAFETY: an open interface's handle.
    let this = unsafe { shared::<I>(interface) };
    code(guarded(this.poisoned, || descriptor(this.inner.event_fd())))
}

unsafe extern "C" fn release<I: Interface>(interface: *mut c_void, token: u64) {
    // SAFETY: an open interface's handle.
    let this = unsafe { shared::<I>(interface) };
    let _ = guarded(this.poisoned, || {
        this.inner.release(token);
        Ok(0)
    });
}

unsafe extern "C" fn memory<I: Interface>(interface: *mut c_void, out: *mut MemoryUse) -> i32 {
    // SAFETY: an open interface's handle.
    let this = unsafe { shared::<I>(interface) };
    code(guarded(this.poisoned, || {
        let report = this.inner.memory();
        let record = MemoryUse {
            base_bytes: report.base_bytes,
            peer_bytes: report.peer_bytes,
            peers: report.peers,
            buffer_bytes: report.buffer_bytes,
            ..MemoryUse::empty()
        };
        // SAFETY: the core's record, whose `size` it has set.
        unsafe { write_attr(out, &record) };
        Ok(0)
    }))
}

// ---- endpoint ----

unsafe extern "C" fn am_short<E: Endpoint>(
    endpoint: *mut c_void,
    id: u32,
    header: u64,
    data: *const u8,
    len: usize,
) -> i32 {
    // SAFETY: an open endpoint's handle.
    let this = unsafe { shared::<E>(endpoint) };
    // SAFETY: the payload is borrowed for the call.
    code(hot(this.poisoned, || posted(this.inner.am_short(id, header, unsafe { bytes(data, len) }))))
}

unsafe extern "C" fn am_packed<E: Endpoint>(
    endpoint: *mut c_void,
    id: u32,
    header: u64,
    pack: PackFn,
    argument: *mut c_void,
    max: usize,
) -> i64 {
    // SAFETY: an open endpoint's handle.
    let this = unsafe { shared::<E>(endpoint) };
    let Some(pack) = pack else { return i64::from(Status::Invalid as i32) };
    hot(this.poisoned, || {
        let mut call = |at: *mut u8, capacity: usize| {
            // SAFETY: the core's function with the core's argument; it writes at most `capacity` bytes.
            let written = unsafe { pack(argument, at, capacity) };
            usize::try_from(written).map_err(|_| Status::from_code(written as i32))
        };
        match this.inner.am_packed(id, header, Packer::new(&mut call), max) {
            Ok(len) => len as i64,
            Err(status) => i64::from(status as i32),
        }
    })
}

unsafe extern "C" fn am_zcopy<E: Endpoint>(
    endpoint: *mut c_void,
    id: u32,
    header: u64,
    iov: *const Iov,
    count: usize,
    cookie: u64,
) -> i32 {
    // SAFETY: an open endpoint's handle.
    let this = unsafe { shared::<E>(endpoint) };
    // SAFETY: the core's array of `count` pieces.
    let iov = unsafe { pieces(iov, count) };
    code(hot(this.poisoned, || posted(this.inner.am_zcopy(id, header, iov, cookie))))
}

/// # Safety
/// `iov` is null or points to `count` pieces, borrowed for the call.
#[inline]
unsafe fn pieces<'a>(iov: *const Iov, count: usize) -> &'a [Iov] {
    if iov.is_null() || count == 0 {
        &[]
    } else {
        // SAFETY: the caller's promise.
        unsafe { core::slice::from_raw_parts(iov, count) }
    }
}

/// Unpacks a put or get and makes the call.
///
/// # Safety
/// The arguments are those of the `put` and `get` slots.
#[inline]
unsafe fn rma<E: Endpoint>(
    endpoint: *mut c_void,
    op: *const Rma,
    call: impl FnOnce(&E, &E::Key, &RmaOp<'_>) -> Posted,
) -> i32 {
    // SAFETY: an open endpoint's handle, and the core's record.
    let (this, op) = unsafe { (shared::<E>(endpoint), &*op) };
    if op.key.is_null() {
        return Status::KeyRejected as i32;
    }
    // SAFETY: the key came from import_key of this endpoint; the pieces are the core's array.
    let (key, iov) = unsafe { (&*op.key.cast::<E::Key>(), pieces(op.iov, op.iov_count)) };
    let inner = &this.inner;
    let op =
        RmaOp { iov, len: op.len, offset: op.offset, cookie: op.cookie, flags: op.flags };
    code(hot(this.poisoned, || posted(call(inner, key, &op))))
}

unsafe extern "C" fn put<E: Endpoint>(endpoint: *mut c_void, op: *const Rma) -> i32 {
    // SAFETY: the core's arguments.
    unsafe { rma::<E>(endpoint, op, |e, key, op| e.put(key, op)) }
}

unsafe extern "C" fn get<E: Endpoint>(endpoint: *mut c_void, op: *const Rma) -> i32 {
    // SAFETY: the core's arguments.
    unsafe { rma::<E>(endpoint, op, |e, key, op| e.get(key, op)) }
}

unsafe extern "C" fn atomic<E: Endpoint>(endpoint: *mut c_void, op: *const Atomic) -> i32 {
    // SAFETY: an open endpoint's handle, and the core's record.
    let (this, op) = unsafe { (shared::<E>(endpoint), &*op) };
    if op.key.is_null() {
        return Status::KeyRejected as i32;
    }
    // SAFETY: the key came from import_key of this endpoint.
    let key = unsafe { &*op.key.cast::<E::Key>() };
    code(hot(this.poisoned, || {
        let mut before = 0;
        let result = posted(this.inner.atomic(key, op, &mut before));
        if result == i64::from(OK) && !op.result.is_null() {
            // SAFETY: the core's place for the result.
            unsafe { *op.result = before };
        }
        result
    }))
}

unsafe extern "C" fn flush<E: Endpoint>(endpoint: *mut c_void, cookie: u64) -> i32 {
    // SAFETY: an open endpoint's handle.
    let this = unsafe { shared::<E>(endpoint) };
    code(hot(this.poisoned, || posted(this.inner.flush(cookie))))
}

unsafe extern "C" fn fence<E: Endpoint>(endpoint: *mut c_void) -> i32 {
    // SAFETY: an open endpoint's handle.
    let this = unsafe { shared::<E>(endpoint) };
    code(hot(this.poisoned, || posted(this.inner.fence().map(|()| Posting::Done))))
}

unsafe extern "C" fn import_key<E: Endpoint>(
    endpoint: *mut c_void,
    key: *const u8,
    len: usize,
    out: *mut *mut c_void,
) -> i32 {
    // SAFETY: an open endpoint's handle.
    let this = unsafe { shared::<E>(endpoint) };
    code(guarded(this.poisoned, || {
        // SAFETY: the bytes are borrowed for the call.
        let key = this.inner.import_key(unsafe { bytes(key, len) })?;
        // SAFETY: the core's place for the handle.
        unsafe { *out = Box::into_raw(Box::new(key)).cast() };
        Ok(0)
    }))
}

unsafe extern "C" fn drop_key<E: Endpoint>(endpoint: *mut c_void, key: *mut c_void) {
    // SAFETY: an open endpoint's handle.
    let this = unsafe { shared::<E>(endpoint) };
    let _ = guarded(this.poisoned, || {
        // SAFETY: the key came from import_key of this endpoint, and the core drops it once.
        drop(unsafe { Box::from_raw(key.cast::<E::Key>()) });
        Ok(0)
    });
}

unsafe extern "C" fn endpoint_address<E: Endpoint>(
    endpoint: *mut c_void,
    out: *mut u8,
    capacity: usize,
) -> i64 {
    // SAFETY: an open endpoint's handle.
    let this = unsafe { shared::<E>(endpoint) };
    // SAFETY: the core's buffer.
    guarded(this.poisoned, || Ok(unsafe { write_bytes(&this.inner.address(), out, capacity) }))
}

unsafe extern "C" fn endpoint_connect<E: Endpoint>(
    endpoint: *mut c_void,
    address: *const u8,
    len: usize,
) -> i32 {
    // SAFETY: an open endpoint's handle.
    let this = unsafe { shared::<E>(endpoint) };
    code(guarded(this.poisoned, || {
        // SAFETY: the bytes are borrowed for the call.
        this.inner.connect(unsafe { bytes(address, len) }).map(|()| 0)
    }))
}

// ---- connector ----

unsafe extern "C" fn connector_poll<C: Connector>(
    connector: *mut c_void,
    out: *mut Event,
    max: u32,
) -> i64 {
    // SAFETY: an open connector's handle.
    let this = unsafe { shared::<C>(connector) };
    guarded(this.poisoned, || {
        // SAFETY: the core's array of `max` events, which need not be initialised.
        let slots = unsafe {
            core::slice::from_raw_parts_mut(out.cast::<MaybeUninit<Event>>(), max as usize)
        };
        let mut events = Events::new(slots);
        this.inner.poll(&mut events)?;
        Ok(events.len as i64)
    })
}

unsafe extern "C" fn connector_address<C: Connector>(
    connector: *mut c_void,
    out: *mut u8,
    capacity: usize,
) -> i64 {
    // SAFETY: an open connector's handle.
    let this = unsafe { shared::<C>(connector) };
    // SAFETY: the core's buffer.
    guarded(this.poisoned, || Ok(unsafe { write_bytes(&this.inner.address(), out, capacity) }))
}

unsafe extern "C" fn connector_reachable<C: Connector>(
    connector: *mut c_void,
    address: *const u8,
    len: usize,
    reason: *mut u8,
    capacity: usize,
) -> i32 {
    // SAFETY: an open connector's handle.
    let this = unsafe { shared::<C>(connector) };
    // SAFETY: the core's buffers.
    unsafe {
        answer_reachable(this.poisoned, reason, capacity, || {
            this.inner.reachable(bytes(address, len))
        })
    }
}

unsafe extern "C" fn connector_send<C: Connector>(
    connector: *mut c_void,
    address: *const u8,
    address_len: usize,
    datagram: *const u8,
    len: usize,
) -> i32 {
    // SAFETY: an open connector's handle.
    let this = unsafe { shared::<C>(connector) };
    code(guarded(this.poisoned, || {
        // SAFETY: both are borrowed for the call.
        let (address, datagram) = unsafe { (bytes(address, address_len), bytes(datagram, len)) };
        this.inner.send(address, datagram)?;
        Ok(0)
    }))
}

unsafe extern "C" fn connector_arm<C: Connector>(connector: *mut c_void) -> i32 {
    // SAFETY: an open connector's handle.
    let this = unsafe { shared::<C>(connector) };
    code(guarded(this.poisoned, || armed(this.inner.arm())))
}

unsafe extern "C" fn connector_event_fd<C: Connector>(connector: *mut c_void) -> i32 {
    // SAFETY: an open connector's handle.
    let this = unsafe { shared::<C>(connector) };
    code(guarded(this.poisoned, || descriptor(this.inner.event_fd())))
}
