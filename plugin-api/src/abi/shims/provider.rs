//! The entry function and the shims of a provider.

use super::super::host::HostHandle;
use super::*;
use crate::provider::{Connector, Domain, Interface, Provider};

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
