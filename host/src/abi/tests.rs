//! Tests of tables, stubs, host services, refusals and failed providers, with providers that this file defines.

use super::host::Services;
use super::objects::OpenDomain;
use super::{EndpointTable, FAILED_ENDPOINT, RawEndpoint};
use crate::{Builtin, Discovery, SearchPath, Settings, discover_in};
use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tieline_explain::{Log, LogLine};
use tieline_explain::{Record, Verdict};
use tieline_plugin_api::abi::{
    AsyncEvent, Declared, DomainAttr, DomainOps, EndpointOps, EntryFn, Host, InterfaceOps,
    ModuleAttr, ProviderOps, Set, fixed,
};
use tieline_plugin_api::{
    ConfigDoc, HostHandle, Status, async_kind, caps, connects, log_level, role,
};

struct NoSettings;
impl Settings for NoSettings {
    fn get(&self, name: &str) -> Option<Set> {
        (name == "TIELINE_TEST_SET").then(|| ("64k".to_string(), Some("a file:3".to_string())))
    }
    fn all(&self) -> Vec<(String, Set)> {
        Vec::new()
    }
    fn core_declaration(&self, name: &str) -> Option<Declared> {
        let doc = ConfigDoc::duration("TIELINE_OF_THE_CORE", "20s", "The core's.");
        (name == doc.name).then(|| (&doc).into())
    }
    fn declared(&self, _: &str, variable: &Declared) {
        TOLD.with_borrow_mut(|told| told.push(variable.name.clone()));
    }
}

thread_local! {
    /// The variables that the providers of this thread have declared.
    static TOLD: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn discover_builtin(entry: EntryFn) -> Discovery {
    let builtin = [Builtin { name: "test", version: "1.0.0", entry }];
    let path = SearchPath::named(None);
    discover_in(path, Arc::new(NoSettings), &builtin, &|_, _| Ok(()))
}

/// Returns the phase and the finding of the only record.
fn refusal(discovery: &Discovery) -> (&str, &str) {
    match &discovery.records[..] {
        [Record { verdict: Verdict::Refused { phase, found, .. }, .. }] => (phase, found),
        other => panic!("not one refusal: {other:?}"),
    }
}

/// Returns the reason that the only provider is not used.
fn not_used(discovery: &Discovery) -> &str {
    match &discovery.records[..] {
        [Record { verdict: Verdict::NotUsed { because }, .. }] => because,
        other => panic!("not one that is not used: {other:?}"),
    }
}

unsafe extern "C" fn one_domain(
    _: *mut c_void,
    out: *mut DomainAttr,
    capacity: usize,
    count: *mut usize,
) -> i32 {
    // SAFETY: array and count are the core's.
    unsafe {
        *count = 1;
        if capacity > 0 {
            (*out).name = fixed("test");
        }
    }
    0
}

unsafe extern "C" fn open_domain(
    _: *mut c_void,
    _: *const tieline_plugin_api::abi::DomainParams,
    _: *mut *mut c_void,
) -> i32 {
    0
}

unsafe extern "C" fn no_modules(
    _: *mut c_void,
    _: *mut ModuleAttr,
    _: usize,
    count: *mut usize,
) -> i32 {
    // SAFETY: the count is the core's.
    unsafe { *count = 0 };
    0
}

unsafe extern "C" fn close(_: *mut c_void) {}

static DOMAIN: DomainOps =
    DomainOps { close: Some(close), query_modules: Some(no_modules), ..DomainOps::empty() };

unsafe extern "C" fn am_short(_: *mut c_void, _: u32, _: u64, _: *const u8, _: usize) -> i32 {
    7
}

/// An endpoint table that ends after `am_short`, in the middle of the next slot.
static OLD_ENDPOINT: EndpointOps =
    EndpointOps { size: 20, am_short: Some(am_short), put: None, ..EndpointOps::empty() };

unsafe extern "C" fn old_entry(_: *const Host, out: *mut ProviderOps) -> i32 {
    static INTERFACE: InterfaceOps = InterfaceOps { size: 8, ..InterfaceOps::empty() };
    // SAFETY: the record is the core's.
    unsafe {
        (*out).query_domains = Some(one_domain);
        (*out).open_domain = Some(open_domain);
        (*out).domain = &DOMAIN;
        (*out).interface = &INTERFACE;
        (*out).endpoint = &OLD_ENDPOINT;
    }
    0
}

#[test]
fn slots_that_an_older_provider_lacks_answer_unsupported() {
    let found = discover_builtin(old_entry);
    let provider = &found.providers[0];
    assert_eq!(provider.domains().expect("domains").len(), 1);
    let endpoint = RawEndpoint::new(std::ptr::null_mut(), provider.endpoint_table());
    let unsupported = Status::Unsupported as i32;
    assert_eq!(endpoint.am_short(0, 0, &[]), 7);
    assert_eq!(endpoint.flush(0), unsupported);
    assert_eq!(endpoint.import_key(&[]), Err(unsupported));
    assert_eq!(endpoint.am_packed(0, 0, 8, &mut |_| Ok(())), Err(Status::Unsupported));
    let poll = provider.tables.interface.poll;
    // SAFETY: the stub accesses no memory.
    assert_eq!(unsafe { poll(std::ptr::null_mut(), std::ptr::null_mut(), 0) }, 0);
}

#[test]
fn a_capability_that_is_claimed_but_not_there_is_refused_by_its_slot() {
    let found = discover_builtin(old_entry);
    let mut module = ModuleAttr {
        name: fixed("m"),
        role: role::DATA,
        connects: connects::TO_INTERFACE,
        caps: caps::AM_SHORT,
        max_short: 8,
        max_address_len: 16,
        max_identity_len: 4096,
        ..ModuleAttr::empty()
    };
    let domain = DomainAttr::empty();
    let refused = |module: &ModuleAttr| match found.providers[0].check_module(module, &domain) {
        Err(Verdict::Refused { phase, expected, .. }) => format!("{phase}: {expected}"),
        other => panic!("not refused: {other:?}"),
    };
    assert_eq!(refused(&module), "tables: the slot open_interface, which the role DATA promises");
    module.cost[0].latency_ns = f64::NAN;
    assert_eq!(refused(&module), "tables: costs that are finite and not negative");
    module.cost[0].latency_ns = 0.0;
    for max_packed in [0, 16, 23, 24, 25, 63] {
        (module.caps, module.max_packed) = (caps::AM_PACKED, max_packed);
        let expected = "tables: max_packed of at least 64 with CAP_AM_PACKED";
        assert_eq!(refused(&module), expected);
    }
    module.connects = 0;
    assert_eq!(refused(&module), "tables: CONNECTS_TO_INTERFACE or _TO_ENDPOINT");
}

#[test]
fn a_provider_without_a_domain_table_is_refused() {
    unsafe extern "C" fn entry(_: *const Host, out: *mut ProviderOps) -> i32 {
        // SAFETY: the record is the core's.
        unsafe { (*out).query_domains = Some(one_domain) };
        0
    }
    assert_eq!(refusal(&discover_builtin(entry)).0, "tables");
}

#[test]
fn only_claimed_part_of_provider_table_is_used() {
    /// Writes the whole record and claims that it ends after `open_domain`.
    unsafe extern "C" fn shorter(host: *const Host, out: *mut ProviderOps) -> i32 {
        // SAFETY: the arguments are the core's.
        unsafe {
            let code = old_entry(host, out);
            (*out).size = std::mem::offset_of!(ProviderOps, last_error) + 3;
            code
        }
    }
    unsafe extern "C" fn senseless(host: *const Host, out: *mut ProviderOps) -> i32 {
        // SAFETY: the arguments are the core's.
        unsafe {
            let code = old_entry(host, out);
            (*out).size = 0;
            code
        }
    }
    assert_eq!(refusal(&discover_builtin(shorter)).1, "the domain table is missing (built in)");
    let found = discover_builtin(senseless);
    assert!(refusal(&found).1.starts_with("the provider table says that it is 0 bytes long"));
}

#[test]
fn a_table_with_a_senseless_size_is_refused() {
    unsafe extern "C" fn entry(host: *const Host, out: *mut ProviderOps) -> i32 {
        static DOMAIN: DomainOps = DomainOps { size: 3, ..DomainOps::empty() };
        // SAFETY: the arguments are the core's.
        unsafe {
            let _ = old_entry(host, out);
            (*out).domain = &DOMAIN;
        }
        0
    }
    let found = discover_builtin(entry);
    assert!(refusal(&found).1.starts_with("the domain table says that it is 3 bytes long"));
}

#[test]
fn provider_without_device_is_unused_and_its_text_is_recorded() {
    unsafe extern "C" fn entry(host: *const Host, _: *mut ProviderOps) -> i32 {
        // SAFETY: the table is the core's.
        let host = unsafe { HostHandle::new(host) }.expect("a host");
        host.message(Status::NoDevice as i32, "no card in any slot");
        Status::NoDevice as i32
    }
    let found = discover_builtin(entry);
    assert_eq!(not_used(&found), "no card in any slot; version 1.0.0, built in");
    let warns = |line: &LogLine| line.level <= log_level::WARN;
    assert!(!found.log.lines().iter().any(warns), "to have no device is no event");
}

#[test]
fn the_hosts_services_serve_a_provider() {
    static SEEN: Mutex<Vec<(u64, String, bool)>> = Mutex::new(Vec::new());
    const VARIABLES: &[ConfigDoc] = &[
        ConfigDoc::size("TIELINE_TEST_SET", "4k", "One."),
        ConfigDoc::duration("TIELINE_TEST_UNSET", "2us", "Another."),
    ];
    unsafe extern "C" fn entry(host: *const Host, out: *mut ProviderOps) -> i32 {
        // SAFETY: the arguments are the core's.
        let (code, table) = unsafe { (old_entry(host, out), &*host) };
        // SAFETY: the table is the core's.
        let handle = unsafe { HostHandle::new(host) }.expect("a host");
        handle.log(log_level::INFO, "two\nlines");
        let before = handle.clock_ns();
        assert!(handle.clock_ns() >= before && before > 0);
        let handle = handle.declare(VARIABLES).expect("values that are some");
        for name in ["TIELINE_TEST_SET", "TIELINE_TEST_UNSET", "TIELINE_TEST_UNDECLARED"] {
            let value = handle.config(name);
            SEEN.lock().unwrap().push((value.number, value.origin, value.is_default));
        }
        let (alloc, free) = (table.pages_alloc.expect("a slot"), table.pages_free.expect("a slot"));
        // SAFETY: the functions are the host's, with the host's context.
        unsafe {
            let pages = alloc(table.context, 8192).cast::<u8>();
            assert!(!pages.is_null() && pages.add(8191).read() == 0);
            pages.add(8191).write(1);
            free(table.context, pages.cast(), 8192);
            assert!(alloc(table.context, 0).is_null());
        }
        code
    }
    let found = discover_builtin(entry);
    let seen = SEEN.lock().unwrap();
    let seen: Vec<_> =
        seen.iter().map(|(n, origin, default)| (*n, &origin[..], *default)).collect();
    assert_eq!(seen, [(64 << 10, "a file:3", false), (2000, "default", true), (0, "", true)]);
    let lines = found.log.lines();
    assert_eq!((lines[0].provider.as_str(), lines[0].text.as_str()), ("test", "two lines"));
    assert_eq!(found.providers[0].page_bytes(), 0);
}

#[test]
fn a_recycled_host_table_drops_calls_of_its_earlier_provider() {
    let open = || {
        let log = Arc::new(Log::default());
        let (services, host) = Services::open("again", log.clone(), Arc::new(NoSettings));
        (services, std::ptr::from_ref(host), log)
    };
    // SAFETY: the table is the core's and is never freed.
    let handle = |host| unsafe { HostHandle::new(host) }.expect("a host");
    let (services, first, log) = open();
    let earlier = handle(first);
    earlier.log(log_level::INFO, "in time");
    services.close();
    earlier.log(log_level::INFO, "late");
    assert!(earlier.declare(&[]).is_err());
    assert_eq!(log.lines().len(), 1);
    for others in 0..100 {
        let (services, host, log) = open();
        let is_same = std::ptr::eq(host, first);
        earlier.log(log_level::INFO, "late");
        assert!(log.lines().is_empty());
        handle(host).log(log_level::INFO, "in time");
        assert_eq!(log.lines().len(), 1);
        services.close();
        assert_eq!(Arc::strong_count(&log), 1, "it is let go of");
        if is_same {
            return assert!(others > 0, "it rests first");
        }
    }
    panic!("the table is never used again");
}

#[test]
fn invalid_value_of_variable_is_refused_with_text_of_host() {
    unsafe extern "C" fn entry(host: *const Host, _: *mut ProviderOps) -> i32 {
        const VARIABLES: &[ConfigDoc] =
            &[ConfigDoc::size("TIELINE_TEST_SET", "4k", "One.").between(1 << 10, 32 << 10)];
        // SAFETY: the table is the core's.
        let host = unsafe { HostHandle::new(host) }.expect("a host");
        let refused = host.declare(VARIABLES).expect_err("it is too large");
        host.message(refused.status as i32, "what the provider makes of it");
        refused.status as i32
    }
    let found = discover_builtin(entry);
    let (phase, found) = refusal(&found);
    assert_eq!(phase, "value");
    assert!(
        found.starts_with("TIELINE_TEST_SET=64k (a file:3) is not valid: a size is"),
        "{found}"
    );
    assert!(found.contains("between 1k and 32k"), "{found}");
}

#[test]
fn core_declaration_of_variable_overrides_providers() {
    const VARIABLES: &[ConfigDoc] =
        &[ConfigDoc::count("TIELINE_OF_THE_CORE", "7", "Mine.").between(1, 9)];
    unsafe extern "C" fn entry(host: *const Host, out: *mut ProviderOps) -> i32 {
        // SAFETY: the table is the core's.
        let handle = unsafe { HostHandle::new(host) }.expect("a host");
        let value = handle.declare(VARIABLES).expect("a value").config("TIELINE_OF_THE_CORE");
        assert_eq!((value.number, value.text.as_str()), (20_000_000_000, "20s"));
        // SAFETY: the arguments are the core's.
        unsafe { old_entry(host, out) }
    }
    assert_eq!(discover_builtin(entry).providers.len(), 1);
}

const TOO_SMALL: &[ConfigDoc] =
    &[ConfigDoc::size("TIELINE_TEST_SET", "4k", "One.").between(1 << 10, 32 << 10)];

#[test]
fn a_provider_that_goes_on_without_a_value_is_refused_and_let_go() {
    static QUIESCED: AtomicBool = AtomicBool::new(false);
    unsafe extern "C" fn quiesce(_: *mut c_void) {
        QUIESCED.store(true, Ordering::Relaxed);
    }
    unsafe extern "C" fn entry(host: *const Host, out: *mut ProviderOps) -> i32 {
        // SAFETY: the arguments are the core's.
        unsafe {
            let _ = HostHandle::new(host).expect("a host").declare(TOO_SMALL).expect_err("refused");
            let code = old_entry(host, out);
            (*out).quiesce = Some(quiesce);
            code
        }
    }
    let found = discover_builtin(entry);
    let (phase, words) = refusal(&found);
    assert_eq!(phase, "value");
    assert!(words.starts_with("TIELINE_TEST_SET=64k (a file:3) is not valid"), "{words}");
    assert!(QUIESCED.load(Ordering::Relaxed));
    assert_eq!(TOLD.take(), ["TIELINE_TEST_SET"], "the error asks what it may be");
}

#[test]
fn a_failure_that_comes_after_a_refused_value_has_its_own_words() {
    unsafe extern "C" fn entry(host: *const Host, _: *mut ProviderOps) -> i32 {
        // SAFETY: the table is the core's.
        let host = unsafe { HostHandle::new(host) }.expect("a host");
        let _ = host.declare(TOO_SMALL).expect_err("it is too large");
        host.message(Status::NoDevice as i32, "no card in any slot");
        Status::NoDevice as i32
    }
    let found = discover_builtin(entry);
    assert_eq!(not_used(&found), "no card in any slot; version 1.0.0, built in");
    assert_eq!(TOLD.take(), [""; 0], "nothing of it is left");
}

#[test]
fn declaring_foreign_variable_refuses_only_that_list() {
    unsafe extern "C" fn entry(host: *const Host, _: *mut ProviderOps) -> i32 {
        const VARIABLES: &[ConfigDoc] = &[
            ConfigDoc::size("TIELINE_TEST_UNSET", "4k", "Its own."),
            ConfigDoc::size("TIELINE_TESTS_OTHER", "4k", "Somebody else's."),
        ];
        // SAFETY: the table is the core's.
        let host = unsafe { HostHandle::new(host) }.expect("a host");
        let _ = host.declare(VARIABLES).expect_err("it is not its own");
        Status::Invalid as i32 // the host ignores this status
    }
    let found = discover_builtin(entry);
    let (phase, words) = refusal(&found);
    assert_eq!(phase, "init", "no value is to blame");
    assert!(words.contains("TIELINE_TESTS_OTHER") && words.contains("TIELINE_TEST_..."), "{words}");
    assert_eq!(TOLD.take(), [""; 0]);
}

#[test]
fn device_event_is_logged_with_device_name() {
    unsafe extern "C" fn entry(host: *const Host, out: *mut ProviderOps) -> i32 {
        // SAFETY: the arguments are the core's.
        let (code, table) = unsafe { (old_entry(host, out), &*host) };
        // SAFETY: the table is the core's.
        let host = unsafe { HostHandle::new(host) }.expect("a host");
        host.async_event(async_kind::PORT_DOWN, 0, "test:0", "it has lost its link");
        host.async_event(1000, 0, "", "a kind of a later minor");
        let event = table.async_event.expect("a slot");
        let text = "behind the end";
        let short = AsyncEvent {
            size: std::mem::offset_of!(AsyncEvent, domain),
            kind: async_kind::DEVICE_GONE,
            text: text.as_ptr(),
            text_len: text.len(),
            ..AsyncEvent::empty()
        };
        // SAFETY: the function is the host's; one record is null, and one ends after its status.
        unsafe {
            event(table.context, std::ptr::null());
            event(table.context, &short);
            event(table.context, &AsyncEvent { size: 0, ..short });
        }
        code
    }
    let lines = discover_builtin(entry).log.lines();
    let lines: Vec<_> = lines.iter().map(|it| (it.level, it.event, it.text.as_str())).collect();
    assert_eq!(
        lines,
        [
            (log_level::WARN, Some("port_down"), "test:0: it has lost its link"),
            (log_level::INFO, None, "a kind of a later minor"),
            (log_level::WARN, Some("device_gone"), ""),
            (log_level::WARN, None, "it has reported an event whose size is 0: it cannot be read"),
        ]
    );
}

#[test]
fn filtered_provider_is_never_opened() {
    unsafe extern "C" fn entry(_: *const Host, _: *mut ProviderOps) -> i32 {
        panic!("opened all the same")
    }
    let builtin = [Builtin { name: "test", version: "1.0.0", entry }];
    let path = SearchPath::named(None);
    let by = "TIELINE_PROVIDERS=^test".to_string();
    let found = discover_in(path, Arc::new(NoSettings), &builtin, &|_, _| {
        Err(Verdict::Filtered { by: by.clone() })
    });
    assert!(found.providers.is_empty());
    assert_eq!(found.records, [Record::provider("test", Verdict::Filtered { by: by.clone() })]);
}

#[test]
fn a_poisoned_provider_refuses_control_calls_with_the_reason() {
    let found = discover_builtin(old_entry);
    let provider = &found.providers[0];
    provider.poison("it panicked: boom");
    provider.poison("a later reason");
    let error = provider.domains().expect_err("refused");
    assert_eq!((error.status(), error.why()), (Status::ProviderFailed, "it panicked: boom"));
    assert!(OpenDomain::open(provider, "test", [0; 16]).is_err());
}

#[test]
fn a_failed_endpoint_answers_provider_failed_to_every_call() {
    let mut endpoint = RawEndpoint::new(std::ptr::null_mut(), &FAILED_ENDPOINT);
    assert!(endpoint.failed());
    endpoint.fail();
    let failed = Status::ProviderFailed as i32;
    assert_eq!(endpoint.am_short(0, 0, &[]), failed);
    assert_eq!(endpoint.flush(0), failed);
    assert_eq!(endpoint.import_key(&[]), Err(failed));
    // SAFETY: the endpoint is a stub, which has nothing to close.
    unsafe { endpoint.close() };
}

#[test]
fn a_panic_of_a_packing_closure_passes_the_provider_by() {
    unsafe extern "C" fn packs(
        _: *mut c_void,
        _: u32,
        _: u64,
        pack: tieline_plugin_api::abi::PackFn,
        argument: *mut c_void,
        max: usize,
    ) -> i64 {
        let mut buffer = [0u8; 16];
        // SAFETY: the function is the core's, with the core's argument and a buffer of that capacity.
        unsafe { pack.expect("a function")(argument, buffer.as_mut_ptr(), max.min(16)) }
    }
    let table: &'static mut EndpointTable = Box::leak(Box::new(EndpointTable::MISSING));
    table.am_packed = packs;
    let endpoint = RawEndpoint::new(std::ptr::null_mut(), table);
    assert_eq!(endpoint.am_packed(0, 0, 9, &mut |out| out.put(&[1; 9])), Ok(9));
    // Neither the requested maximum nor the capacity of the provider's buffer may be exceeded.
    let too_large = Err(Status::TooLarge);
    assert_eq!(endpoint.am_packed(0, 0, 9, &mut |out| out.put(&[1; 10])), too_large);
    assert_eq!(endpoint.am_packed(0, 0, 99, &mut |out| out.put(&[1; 17])), too_large);
    assert_eq!(endpoint.am_packed(0, 0, 9, &mut |_| Err(Status::Again)), Err(Status::Again));
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        endpoint.am_packed(0, 0, 9, &mut |_| panic!("the application's own"))
    }));
    assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"the application's own"));
}
