//! A domain for tests, which choose its answers to `deregister`.

use super::*;
use crate::{Builtin, SearchPath, Settings, discover_in};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use tieline_plugin_api::abi::{
    Declared, DomainAttr, DomainOps, Host, KeyParams, ProviderOps, RegisterParams, Set, fixed,
};
use tieline_plugin_api::memory_caps;

/// The domain's answers for one registration, and the number of calls of `deregister`.
pub struct Answers {
    code: AtomicI32,
    asked: AtomicU32,
    ended: AtomicBool,
}

impl Answers {
    /// Answers each call with this status.
    #[must_use]
    pub const fn new(code: i32) -> Answers {
        Answers {
            code: AtomicI32::new(code),
            asked: AtomicU32::new(0),
            ended: AtomicBool::new(false),
        }
    }

    /// Answers later calls with this status.
    pub fn set(&self, code: i32) {
        self.code.store(code, Ordering::SeqCst);
    }

    /// Returns the number of calls of `deregister`.
    pub fn asked(&self) -> u32 {
        self.asked.load(Ordering::SeqCst)
    }

    /// Checks whether the registration has ended.
    pub fn ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}

unsafe extern "C" fn query(
    _: *mut c_void,
    out: *mut DomainAttr,
    capacity: usize,
    count: *mut usize,
) -> i32 {
    // SAFETY: array and count are the core's.
    unsafe {
        *count = 1;
        if capacity > 0 {
            ((*out).name, (*out).caps) = (fixed("answers"), memory_caps::REGISTER);
        }
    }
    0
}

unsafe extern "C" fn open(_: *mut c_void, _: *const DomainParams, _: *mut *mut c_void) -> i32 {
    0
}

unsafe extern "C" fn close(_: *mut c_void) {}

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

unsafe extern "C" fn register(
    _: *mut c_void,
    _: *const RegisterParams,
    _: *mut MemoryRegion,
) -> i32 {
    0
}

unsafe extern "C" fn deregister(_: *mut c_void, region: *mut c_void) -> i32 {
    // SAFETY: this is the handle that `registered` passes.
    let answers = unsafe { &*region.cast::<Answers>() };
    let _ = answers.asked.fetch_add(1, Ordering::SeqCst);
    let code = answers.code.load(Ordering::SeqCst);
    assert!(!answers.ended.swap(code != Status::Again as i32, Ordering::SeqCst), "ended twice");
    code
}

unsafe extern "C" fn pack_key(_: *mut c_void, _: *const KeyParams, _: *mut u8, _: usize) -> i64 {
    0
}

static DOMAIN: DomainOps = DomainOps {
    close: Some(close),
    query_modules: Some(no_modules),
    register: Some(register),
    deregister: Some(deregister),
    pack_key: Some(pack_key),
    ..DomainOps::empty()
};

unsafe extern "C" fn entry(_: *const Host, out: *mut ProviderOps) -> i32 {
    // SAFETY: the record is the core's.
    unsafe {
        (*out).query_domains = Some(query);
        (*out).open_domain = Some(open);
        (*out).domain = &DOMAIN;
    }
    0
}

struct NoSettings;
impl Settings for NoSettings {
    fn get(&self, _: &str) -> Option<Set> {
        None
    }
    fn all(&self) -> Vec<(String, Set)> {
        Vec::new()
    }
    fn declared(&self, _: &str, _: &Declared) {}
}

/// Makes a registration that ends with the status in `answers`.
pub fn registered(span: Span, answers: &'static Answers) -> Registered {
    let builtin = [Builtin { name: "answers", version: "1.0.0", entry }];
    let path = SearchPath::named(None);
    let found = discover_in(path, Arc::new(NoSettings), &builtin, &|_, _| Ok(()));
    let domain = OpenDomain::open(&found.providers[0], "answers", [0; 16]).unwrap();
    let handle = std::ptr::from_ref(answers).cast_mut().cast();
    Registered { handle: Some(handle), span, domain: domain.inner.clone() }
}

#[test]
fn registration_without_handle_disables_provider() {
    let builtin = [Builtin { name: "answers", version: "1.0.0", entry }];
    let path = SearchPath::named(None);
    let found = discover_in(path, Arc::new(NoSettings), &builtin, &|_, _| Ok(()));
    let domain = OpenDomain::open(&found.providers[0], "answers", [0; 16]).unwrap();
    let mut memory = [0u8; 8];
    // SAFETY: the memory outlives the span.
    let span = unsafe { Span::new(memory.as_mut_ptr(), memory.len()) };
    for _ in 0..2 {
        let error = domain.register(span, 0, 0).err().expect("a refusal");
        let why = "its register has succeeded with a null handle (built in)";
        assert_eq!((error.status(), error.why()), (Status::ProviderFailed, why));
        assert!(error.fix().contains("TIELINE_PROVIDERS=^answers"), "{error}");
    }
}
