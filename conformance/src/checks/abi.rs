//! Checks of the size rules of the ABI: older and newer cores, short and long records. Guarded records end at an inaccessible page,
//! so a provider that reads beyond the stated size crashes and fails the check.

#![allow(unsafe_code)]

use crate::abi::Guarded;
use crate::case::Case;
use crate::connector::Connector;
use crate::load;
use crate::report::{Checked, Stop, equal, fail, holds, succeeds};
use crate::sys::Provider;
use core::ffi::c_void;
use core::mem::offset_of;
use core::ptr;
use tieline_plugin_api::abi::*;
use tieline_plugin_api::{Status, access, caps, memory_caps};

/// A record of a newer minor: the present record and a tail that an older side does not know.
#[repr(C)]
#[derive(Clone, Copy)]
struct Longer<T> {
    record: T,
    tail: [u8; 64],
}

const UNTOUCHED: u8 = 0x5a;

fn entry(case: &Case) -> Result<EntryFn, Stop> {
    load::entry(&case.path).map_err(Stop::Fail)
}

pub(super) fn an_older_core_with_a_shorter_host_table_is_served(case: &Case) -> Checked {
    let len = offset_of!(Host, config_declare);
    let (services, host) = load::host();
    let host = Guarded::new(&Host { size: len, ..host }, len);
    let at = host.as_ptr();
    host.leak();
    let older = Provider::enter_with(entry(case)?, services, at);
    let older = succeeds("the entry function with a shorter host table", older)?;
    if finds_no_device(&older.ops) {
        let why = "finds no device with its defaults, which is all that such a host has for it";
        return Err(Stop::Skip(why.to_string()));
    }
    let _ = count_of_domains(&older.ops)?;
    let name = fixed_str(&case.domain_attr.name).unwrap_or("");
    let domain = succeeds("open_domain with a shorter host table", older.open_domain(name))?;
    let module = fixed_str(&case.attr.name).unwrap_or("");
    match case.is_connector() {
        true => succeeds("open_connector", Connector::open(&domain, module)).map(drop),
        false => succeeds("open_interface", domain.open_interface(module)).map(drop),
    }
}

fn finds_no_device(ops: &ProviderOps) -> bool {
    let mut count = 0;
    let code = ops.query_domains.map(|query| {
        // SAFETY: the state is the provider's, no records are passed, and `count` takes the count.
        unsafe { query(ops.state, ptr::null_mut(), 0, &mut count) }
    });
    code == Some(Status::NoDevice as i32)
}

fn count_of_domains(ops: &ProviderOps) -> Result<usize, Stop> {
    let query =
        ops.query_domains.ok_or_else(|| fail("slot query_domains", "a function", "none"))?;
    let mut count = 0;
    // SAFETY: the state is the provider's, no records are passed, and `count` takes the count.
    let code = unsafe { query(ops.state, ptr::null_mut(), 0, &mut count) };
    equal("query_domains without records", 0, code)?;
    holds(count > 0, "the number of domains", "more than 0", count)?;
    Ok(count)
}

pub(super) fn a_newer_core_with_longer_tables_is_served(case: &Case) -> Checked {
    let size = size_of::<Longer<Host>>();
    let host = Longer { record: Host { size, ..load::host().1 }, tail: [UNTOUCHED; 64] };
    let host = Guarded::new(&host, size);
    let mut ops = Longer { record: ProviderOps::empty(), tail: [UNTOUCHED; 64] };
    ops.record.size = size_of::<Longer<ProviderOps>>();
    // SAFETY: the tables have the lengths that they state.
    let code = unsafe { entry(case)?(host.as_ptr(), ptr::from_mut(&mut ops).cast()) };
    host.leak();
    equal("the entry function with longer tables", 0, code)?;
    holds(
        ops.record.size <= size_of::<ProviderOps>() || ops.record.abi_minor > u32::from(ABI_MINOR),
        "the size that the provider states",
        format!("its own, {} for this minor", size_of::<ProviderOps>()),
        ops.record.size,
    )?;
    if ops.record.size == size_of::<ProviderOps>() {
        let touched = ops.tail.iter().filter(|&&b| b != UNTOUCHED).count();
        equal("bytes written behind the provider's own table", 0, touched)?;
    }
    let _ = count_of_domains(&ops.record)?;
    // These tables are at least as long as their size field and one slot.
    let least = size_of::<usize>() * 2;
    for (name, table) in
        [("domain", ops.record.domain.cast::<usize>()), ("interface", ops.record.interface.cast())]
    {
        if !table.is_null() {
            // SAFETY: every table begins with its size.
            let size = unsafe { *table };
            holds(
                size >= least && size < 1 << 16,
                format!("the {name} table's size"),
                "a possible one",
                size,
            )?;
        }
    }
    Ok(())
}

/// Calls an open function with a longer record, a shorter one, and longer ones with an unknown field.
fn params<T: Copy>(
    what: &str,
    record: T,
    short: usize,
    mut open: impl FnMut(*const T) -> (i32, Option<Box<dyn FnOnce()>>),
) -> Checked {
    let sized = |mut longer: Longer<T>, size: usize| {
        // SAFETY: every parameter record begins with its size.
        unsafe { ptr::from_mut(&mut longer.record).cast::<usize>().write(size) };
        longer
    };
    let whole = size_of::<Longer<T>>();
    let mut try_one = |longer: Longer<T>, len: usize| {
        let guarded = Guarded::new(&sized(longer, len), len);
        let (code, close) = open(guarded.as_ptr());
        if let Some(close) = close {
            close();
        }
        code
    };
    equal(
        format!("{what} with a tail of zeros"),
        0,
        try_one(Longer { record, tail: [0; 64] }, whole),
    )?;
    equal(
        format!("{what} with a short record"),
        0,
        try_one(Longer { record, tail: [0; 64] }, short),
    )?;
    for at in [0, 63] {
        let mut tail = [0; 64];
        tail[at] = 1;
        let code = try_one(Longer { record, tail }, whole);
        equal(format!("{what} with an unknown field set"), Status::UnsupportedParam as i32, code)?;
    }
    Ok(())
}

pub(super) fn parameter_records_follow_the_tail_rule(case: &Case) -> Checked {
    let name = fixed_str(&case.domain_attr.name).unwrap_or("");
    let module = fixed_str(&case.attr.name).unwrap_or("");
    let provider = case.provider;
    let tables = &provider.tables;
    let open = tables.provider.open_domain;
    let closer = |close: unsafe extern "C" fn(*mut c_void), handle: *mut c_void| {
        // SAFETY: the handle was opened above, and nothing was opened from it.
        Box::new(move || unsafe { close(handle) }) as Box<dyn FnOnce()>
    };
    let record =
        DomainParams { name: name.as_ptr(), name_len: name.len(), ..DomainParams::empty() };
    params("open_domain", record, offset_of!(DomainParams, context_id), |params| {
        let mut handle = ptr::null_mut();
        // SAFETY: the state is the provider's, the record has the size that it states, and `handle` takes the handle.
        let code = unsafe { open(provider.ops.state, params, &mut handle) };
        (code, (code == 0).then(|| closer(tables.domain.close, handle)))
    })?;
    let record = InterfaceParams {
        module: module.as_ptr(),
        module_len: module.len(),
        ..InterfaceParams::empty()
    };
    if case.is_connector() {
        let open = tables.domain.open_connector;
        return params(
            "open_connector",
            record,
            offset_of!(InterfaceParams, worker_id),
            |params| {
                let mut handle = ptr::null_mut();
                // SAFETY: the domain is open, the record has the size that it states, and `handle` takes the handle.
                let code = unsafe { open(case.domain.handle, params, &mut handle) };
                (code, (code == 0).then(|| closer(tables.connector.close, handle)))
            },
        );
    }
    let open = tables.domain.open_interface;
    params("open_interface", record, offset_of!(InterfaceParams, worker_id), |params| {
        let mut handle = ptr::null_mut();
        // SAFETY: the domain is open, the record has the size that it states, and `handle` takes the handle.
        let code = unsafe { open(case.domain.handle, params, &mut handle) };
        (code, (code == 0).then(|| closer(tables.interface.close, handle)))
    })?;
    let interface = case.interface()?;
    let mut address = case.address_of(&interface)?;
    if let Err(why) = interface.reachable(&address) {
        return Err(Stop::Skip(format!("connect: its own process is not reachable: {why}")));
    }
    let connect = tables.interface.connect;
    if case.connects_to_endpoint() {
        address.clear();
    }
    let record = EndpointParams {
        address: address.as_ptr(),
        address_len: address.len(),
        ..EndpointParams::empty()
    };
    params("connect", record, offset_of!(EndpointParams, identity), |params| {
        loop {
            let mut handle = ptr::null_mut();
            // SAFETY: the interface is open, the record has the size that it states, and `handle` takes the handle.
            let code = unsafe { connect(interface.handle(), params, &mut handle) };
            if code == Status::Again as i32 {
                let _ = interface.poll(16);
                continue;
            }
            return (code, (code == 0).then(|| closer(tables.endpoint.close, handle)));
        }
    })
}

/// Asks for a list with records of another size. Returns the bytes of the first record.
fn first_record<T: Copy>(
    what: &str,
    empty: T,
    len: usize,
    ask: impl Fn(*mut T, usize, *mut usize) -> i32,
) -> Result<Vec<u8>, Stop> {
    let longer = Longer { record: empty, tail: [0; 64] };
    let record = Guarded::new(&longer, len);
    let mut count = 0;
    // SAFETY: the record begins with its size, and is at least that long.
    unsafe { record.as_ptr::<usize>().write(len) };
    equal(format!("{what} with records of {len} bytes"), 0, ask(record.as_ptr(), 1, &mut count))?;
    holds(count > 0, format!("the count of {what}"), "more than 0", count)?;
    // SAFETY: `len` bytes are readable.
    Ok(unsafe { core::slice::from_raw_parts(record.as_ptr::<u8>(), len) }.to_vec())
}

pub(super) fn attribute_records_respect_their_size(case: &Case) -> Checked {
    let (provider, domain) = (case.provider, &case.domain);
    let domains = provider.tables.provider.query_domains;
    // SAFETY: the state is the provider's; `first_record` passes a record, the number of records, and a place for the count.
    let ask = |out, capacity, count: *mut usize| unsafe {
        domains(provider.ops.state, out, capacity, count)
    };
    let name = succeeds("query_domains", provider.domains())?[0].name;
    for len in [
        offset_of!(DomainAttr, max_key_len),
        size_of::<DomainAttr>(),
        size_of::<Longer<DomainAttr>>(),
    ] {
        let bytes = first_record("query_domains", DomainAttr::empty(), len, ask)?;
        crate::report::same_bytes("the domain's name", &name, &bytes[8..72])?;
        let tail = bytes.get(size_of::<DomainAttr>()..).unwrap_or(&[]);
        untouched(provider, "query_domains", tail)?;
    }
    let modules = provider.tables.domain.query_modules;
    // SAFETY: the domain is open, and `first_record` passes valid arguments.
    let ask =
        |out, capacity, count: *mut usize| unsafe { modules(domain.handle, out, capacity, count) };
    let name = succeeds("query_modules", domain.modules())?[0].name;
    for len in
        [offset_of!(ModuleAttr, priority), size_of::<ModuleAttr>(), size_of::<Longer<ModuleAttr>>()]
    {
        let bytes = first_record("query_modules", ModuleAttr::empty(), len, ask)?;
        crate::report::same_bytes("the module's name", &name, &bytes[8..40])?;
        untouched(provider, "query_modules", bytes.get(size_of::<ModuleAttr>()..).unwrap_or(&[]))?;
    }
    Ok(())
}

pub(super) fn a_list_steps_by_the_size_of_its_first_record(case: &Case) -> Checked {
    let known = succeeds("query_modules", case.domain.modules())?;
    if known.len() < 2 {
        return Err(Stop::Skip("there are not two modules".to_string()));
    }
    let query = case.provider.tables.domain.query_modules;
    let mut records = vec![Longer { record: ModuleAttr::empty(), tail: [0; 64] }; known.len()];
    for record in &mut records {
        record.record.size = size_of::<Longer<ModuleAttr>>();
    }
    let mut count = 0;
    // SAFETY: the domain is open, the records have the stated number and size, and `count` takes the count.
    let code = unsafe {
        query(case.domain.handle, records.as_mut_ptr().cast(), records.len(), &mut count)
    };
    equal("query_modules with longer records", 0, code)?;
    for (record, module) in records.iter().zip(&known) {
        let name = &record.record.name;
        crate::report::same_bytes("the name in a longer record", &module.name, name)?;
    }
    Ok(())
}

pub(super) fn the_memory_report_respects_its_size(case: &Case) -> Checked {
    let memory = case.provider.tables.interface.memory;
    let interface = case.interface()?;
    for len in [offset_of!(MemoryUse, buffer_bytes), offset_of!(MemoryUse, peer_bytes)] {
        let record = Guarded::new(&MemoryUse { size: len, ..MemoryUse::default() }, len);
        // SAFETY: the interface is open, and the record has the size that it states.
        let code = unsafe { memory(interface.handle(), record.as_ptr()) };
        if code == Status::Unsupported as i32 {
            return Err(Stop::Skip("has no slot memory".to_string()));
        }
        equal(format!("memory with a record of {len} bytes"), 0, code)?;
    }
    Ok(())
}

pub(super) fn connecting_to_an_endpoint_follows_the_tail_rule(case: &Case) -> Checked {
    if !case.connects_to_endpoint() {
        return Err(Stop::Skip("connects to an interface".to_string()));
    }
    let connect = case.provider.tables.endpoint.connect;
    let (near, far) = (case.interface()?, case.interface()?);
    let there = super::waiting::connect(case, &far, &[], &mut [])?;
    let address = super::waiting::address_of(case, &there)?;
    for at in [0, 63] {
        let endpoint = super::waiting::connect(case, &near, &[], &mut [])?;
        let record = ConnectParams {
            address: address.as_ptr(),
            address_len: address.len(),
            size: size_of::<Longer<ConnectParams>>(),
            ..ConnectParams::empty()
        };
        let mut longer = Longer { record, tail: [0; 64] };
        longer.tail[at] = 1;
        let guarded = Guarded::new(&longer, size_of_val(&longer));
        // SAFETY: the endpoint is open, and the record has the size that it states.
        let code = unsafe { connect(endpoint.handle(), guarded.as_ptr()) };
        let what = "an endpoint's connect with an unknown field set";
        equal(what, Status::UnsupportedParam as i32, code)?;
    }
    Ok(())
}

pub(super) fn memory_and_keys_follow_the_tail_rule(case: &Case) -> Checked {
    let (domain, ops) = (case.domain.handle, &case.provider.tables.domain);
    // The memory outlives its registrations.
    let mut words = vec![0u64; 512];
    let (base, len) = (words.as_mut_ptr().cast::<u8>(), 4096);
    let end = |code: i32, region: MemoryRegion| {
        let end = move || {
            // SAFETY: the region was made above and is not in use.
            let _ = unsafe { (ops.deregister)(domain, region.handle) };
        };
        (code, (code == 0).then(|| Box::new(end) as Box<dyn FnOnce()>))
    };
    let rights = access::REMOTE_READ;
    if case.domain_attr.caps & memory_caps::ALLOC != 0 {
        let record = AllocParams::new(len, rights);
        params("alloc", record, offset_of!(AllocParams, flags), |params| {
            let mut region = MemoryRegion::empty();
            // SAFETY: the domain is open, and the records have the sizes that they state.
            end(unsafe { (ops.alloc)(domain, params, &mut region) }, region)
        })?;
    }
    let registers = case.domain_attr.caps & memory_caps::REGISTER != 0;
    if registers && !case.has(caps::OWN_MEMORY_ONLY) {
        let record = RegisterParams::new(base, len, rights);
        params("register", record, offset_of!(RegisterParams, flags), |params| {
            let mut region = MemoryRegion::empty();
            // SAFETY: the domain is open, and the records have the sizes that they state.
            end(unsafe { (ops.register)(domain, params, &mut region) }, region)
        })?;
    }
    let memory = case.memory(64, rights)?;
    let record = KeyParams { region: memory.region.handle, ..KeyParams::empty() };
    let mut room = vec![0; case.domain_attr.max_key_len as usize];
    params("pack_key", record, offset_of!(KeyParams, offset), |params| {
        // SAFETY: the domain is open, the record has the size that it states, and the buffer has that capacity.
        let len = unsafe { (ops.pack_key)(domain, params, room.as_mut_ptr(), room.len()) };
        (i32::try_from(len.min(0)).unwrap_or(i32::MIN), None)
    })?;
    let mut desk = case.desk()?;
    let packed = case.key_of(&memory)?;
    drop(succeeds("import_key", desk.import(&packed)?)?);
    let (endpoint, ops) = (desk.endpoint(), &case.provider.tables.endpoint);
    let record =
        ImportParams { bytes: packed.as_ptr(), len: packed.len(), ..ImportParams::empty() };
    params("import_key", record, offset_of!(ImportParams, flags), |params| {
        let mut key = ptr::null_mut();
        let mut code = Status::Again as i32;
        while code == Status::Again as i32 && desk.turn().is_ok() {
            // SAFETY: the endpoint is open, the record has the size that it states, and `key` takes the handle.
            code = unsafe { (ops.import_key)(endpoint.handle(), params, &mut key) };
        }
        let endpoint = endpoint.clone();
        // SAFETY: the key belongs to that endpoint and was imported above.
        let end = move || unsafe { (ops.drop_key)(endpoint.handle(), key) };
        (code, (code == 0).then(|| Box::new(end) as Box<dyn FnOnce()>))
    })
}

fn untouched(provider: &Provider, what: &str, tail: &[u8]) -> Checked {
    if provider.ops.abi_minor > u32::from(ABI_MINOR) {
        return Ok(());
    }
    equal(
        format!("bytes that {what} wrote behind its record"),
        0,
        tail.iter().filter(|&&b| b != 0).count(),
    )
}

pub(super) fn names_that_do_not_exist_are_refused(case: &Case) -> Checked {
    let refused = |what: &str, failed: bool| holds(failed, what, "a refusal", "success");
    refused(
        "opening a domain `no-such-domain`",
        case.provider.open_domain("no-such-domain").is_err(),
    )?;
    refused("opening a domain without a name", case.provider.open_domain("").is_err())?;
    refused(
        "opening a module `no-such-module`",
        match case.is_connector() {
            true => Connector::open(&case.domain, "no-such-module").is_err(),
            false => case.domain.open_interface("no-such-module").is_err(),
        },
    )
}

pub(super) fn quiesce_leaves_no_thread_behind(case: &Case) -> Checked {
    let threads = || std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    let before = threads();
    let second = succeeds("a second entry", Provider::enter(entry(case)?))?;
    let domain = succeeds(
        "open_domain",
        second.open_domain(fixed_str(&case.domain_attr.name).unwrap_or("")),
    )?;
    let module = fixed_str(&case.attr.name).unwrap_or("");
    if case.is_connector() {
        drop(succeeds("open_connector", Connector::open(&domain, module))?);
    } else {
        drop(succeeds("open_interface", domain.open_interface(module))?);
    }
    drop(domain);
    second.quiesce();
    equal("threads after quiesce", before, threads())
}
