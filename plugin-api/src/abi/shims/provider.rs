//! The entry function and the shims of a provider.

use super::super::host::HostHandle;
use super::*;
use crate::provider::{Connector, Domain, DomainInfo, Interface, Provider};
use std::sync::Mutex;

/// Opens a provider: the body of `tieline_provider_v1`.
///
/// # Safety
/// `host` is the core's table; `out` is a record whose `size` the core has set.
pub unsafe extern "C" fn entry<P: Provider>(host: *const Host, out: *mut ProviderOps) -> i32 {
    // SAFETY: the core's table is valid for the life of the process.
    let Some(host) = (unsafe { HostHandle::new(host) }) else { return Status::Invalid as i32 };
    if out.is_null() {
        return Status::Invalid as i32;
    }
    let poisoned = flag();
    let result = code(guarded(poisoned, || {
        let provider = P::open(host.declare(P::config())?)?;
        let ops = ProviderOps {
            size: size_of::<ProviderOps>(),
            abi_minor: u32::from(ABI_MINOR),
            reserved: 0,
            state: Shared::into_raw(provider, poisoned),
            query_domains: Some(query_domains::<P>),
            open_domain: Some(open_domain::<P>),
            last_error: Some(last_error),
            quiesce: Some(quiesce::<P>),
            layouts: None,
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
            layout_digest: golden::DIGEST,
        };
        // SAFETY: the core set `size`; a table is written like an attribute record.
        unsafe {
            write_attr(out, &ops);
            (*out).size = size_of::<ProviderOps>();
        }
        Ok(0)
    }));
    if result != OK {
        give_back(poisoned);
        // The text is empty if the host has refused a declaration, and has the error text itself, or if the provider gave none.
        LAST_ERROR.with_borrow(|text| {
            if !text.is_empty() {
                host.message(result, text);
            }
        });
    }
    result
}

/// The flags that no provider uses. Their memory is never freed, because objects that a provider left open may still read their
/// flag. The lock is only tried, because in a forked child it may be held for ever.
static FLAGS: Mutex<Vec<&'static AtomicBool>> = Mutex::new(Vec::new());

/// Returns a flag for a provider that starts.
fn flag() -> &'static AtomicBool {
    let unused = FLAGS.try_lock().ok().and_then(|mut flags| flags.pop());
    unused.unwrap_or_else(|| Box::leak(Box::new(AtomicBool::new(false))))
}

/// Takes back the flag of a provider that is not called any more. A set flag is not reused.
fn give_back(flag: &'static AtomicBool) {
    if !flag.load(Ordering::Relaxed) {
        if let Ok(mut flags) = FLAGS.try_lock() {
            flags.push(flag);
        }
    }
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
        let list: Vec<DomainAttr> =
            this.inner.domains()?.iter().map(domain_attr).collect::<Result<_, Failure>>()?;
        // SAFETY: the core guarantees its array.
        unsafe { write_list(&list, out, capacity, count) }
    }))
}

/// Returns the attributes of a domain. Refuses long names: a truncated name could not be opened, and two domains could have the
/// same name.
fn domain_attr(domain: &DomainInfo) -> Result<DomainAttr, Failure> {
    let (name, most) = (&domain.name, size_of_val(&DomainAttr::empty().name) - 1);
    if name.len() > most {
        let text = format!(
            "its domain \"{name}\" has a name of {} bytes: at most {most} are allowed",
            name.len()
        );
        return Err(Failure::new(Status::Invalid, text));
    }
    Ok(DomainAttr {
        name: fixed(name),
        caps: domain.caps,
        max_key_len: domain.max_key_len,
        register_ns: domain.register_ns,
        register_ns_per_byte: domain.register_ns_per_byte,
        ..DomainAttr::empty()
    })
}

unsafe extern "C" fn open_domain<P: Provider>(
    state: *mut c_void,
    params: *const DomainParams,
    out: *mut *mut c_void,
) -> i32 {
    // SAFETY: `state` is the one that `entry` wrote.
    let this = unsafe { shared::<P>(state) };
    code(guarded(this.poisoned, || {
        // SAFETY: the core guarantees its record.
        let params = unsafe { read_params(params, DomainParams::empty()) }?;
        understood("flag", params.flags, 0)?;
        // SAFETY: the name is borrowed for the call.
        let name = unsafe { text(params.name, params.name_len) }?;
        let domain = this.inner.open_domain(name, params.context_id)?;
        // SAFETY: the core guarantees the place for the handle.
        unsafe { *out = Shared::into_raw(domain, this.poisoned) };
        Ok(0)
    }))
}

unsafe extern "C" fn last_error(_: *mut c_void, out: *mut u8, capacity: usize) -> i64 {
    let written = LAST_ERROR.try_with(|text| {
        // SAFETY: the core's buffer.
        unsafe { write_bytes(text.borrow().as_bytes(), out, capacity) }
    });
    written.unwrap_or(0)
}

unsafe extern "C" fn quiesce<P: Provider>(state: *mut c_void) {
    // SAFETY: `state` is the one that `entry` wrote; this is the last call, so the state ends here.
    let this = unsafe { Box::from_raw(state.cast::<Shared<P>>()) };
    let poisoned = this.poisoned;
    if poisoned.load(Ordering::Relaxed) {
        // The provider's state is unknown after a panic, so its destructor does not run.
        let _ = Box::leak(this);
        return;
    }
    let _ = guarded(poisoned, || {
        this.inner.quiesce();
        drop(this);
        Ok(0)
    });
    give_back(poisoned);
}

/// The tables of a domain and of the objects opened from it.
struct Tables<D>(core::marker::PhantomData<D>);

impl<D: Domain> Tables<D> {
    const DOMAIN: &'static DomainOps = &DomainOps {
        size: size_of::<DomainOps>(),
        close: Some(close::<D>),
        query_modules: Some(domain::query_modules::<D>),
        open_interface: Some(domain::open_interface::<D>),
        open_connector: Some(domain::open_connector::<D>),
        alloc: Some(domain::alloc::<D>),
        register: Some(domain::register::<D>),
        deregister: Some(domain::deregister::<D>),
        pack_key: Some(domain::pack_key::<D>),
        revoke: Some(domain::revoke::<D>),
    };
    const INTERFACE: &'static InterfaceOps = &InterfaceOps {
        size: size_of::<InterfaceOps>(),
        poll: Some(interface::poll::<D::Interface>),
        close: Some(close::<D::Interface>),
        address: Some(interface::interface_address::<D::Interface>),
        reachable: Some(interface::reachable::<D::Interface>),
        connect: Some(interface::connect::<D::Interface>),
        arm: Some(interface::arm::<D::Interface>),
        event_fd: Some(interface::event_fd::<D::Interface>),
        release: Some(interface::release::<D::Interface>),
        memory: Some(interface::memory::<D::Interface>),
        hang_up: Some(interface::hang_up::<D::Interface>),
        import_key: Some(interface::interface_import_key::<D::Interface>),
        drop_key: Some(interface::interface_drop_key::<D::Interface>),
        flush: Some(interface::interface_flush::<D::Interface>),
        leave: Some(interface::leave::<D::Interface>),
        watch: Some(interface::watch::<D::Interface>),
    };
    const ENDPOINT: &'static EndpointOps = &EndpointOps {
        size: size_of::<EndpointOps>(),
        am_short: Some(endpoint::am_short::<EndpointOf<D>>),
        am_packed: Some(endpoint::am_packed::<EndpointOf<D>>),
        am_zcopy: Some(endpoint::am_zcopy::<EndpointOf<D>>),
        put: Some(endpoint::put::<EndpointOf<D>>),
        get: Some(endpoint::get::<EndpointOf<D>>),
        atomic: Some(endpoint::atomic::<EndpointOf<D>>),
        flush: Some(endpoint::flush::<EndpointOf<D>>),
        fence: Some(endpoint::fence::<EndpointOf<D>>),
        close: Some(close::<EndpointOf<D>>),
        import_key: Some(endpoint::import_key::<EndpointOf<D>>),
        drop_key: Some(endpoint::drop_key::<EndpointOf<D>>),
        address: Some(endpoint::endpoint_address::<EndpointOf<D>>),
        connect: Some(endpoint::endpoint_connect::<EndpointOf<D>>),
        put_notify: Some(endpoint::put_notify::<EndpointOf<D>>),
        key_pointer: Some(endpoint::key_pointer::<EndpointOf<D>>),
        cancel: Some(endpoint::cancel::<EndpointOf<D>>),
        limits: Some(endpoint::limits::<EndpointOf<D>>),
        rma_list: Some(endpoint::rma_list::<EndpointOf<D>>),
    };
    const CONNECTOR: &'static ConnectorOps = &ConnectorOps {
        size: size_of::<ConnectorOps>(),
        poll: Some(connector::connector_poll::<D::Connector>),
        close: Some(close::<D::Connector>),
        address: Some(connector::connector_address::<D::Connector>),
        reachable: Some(connector::connector_reachable::<D::Connector>),
        send: Some(connector::connector_send::<D::Connector>),
        arm: Some(connector::connector_arm::<D::Connector>),
        event_fd: Some(connector::connector_event_fd::<D::Connector>),
    };
}

type EndpointOf<D> = <<D as Domain>::Interface as Interface>::Endpoint;
