//! Loads the file and calls its entry function with the checks' own host table.

#![allow(unsafe_code)]

use core::ffi::{CStr, c_void};
use core::ptr;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use tieline_plugin_api::abi::{
    ABI_MAJOR, ABI_MINOR, AsyncEvent, ConfigValue, ConfigVar, Declarations, Declared, ENTRY_SYMBOL,
    EntryFn, Host,
};
use tieline_plugin_api::{OK, Status};

/// The text of the last asynchronous event. An entry function that fails reports its reason in such an event.
static LAST_EVENT: Mutex<String> = Mutex::new(String::new());

pub(crate) fn last_event() -> String {
    LAST_EVENT.lock().map(|text| text.clone()).unwrap_or_default()
}

/// Maps the file permanently, and returns its entry function.
pub(crate) fn entry(path: &Path) -> Result<EntryFn, String> {
    let text = CString::new(path.as_os_str().as_bytes()).map_err(|_| "the path holds a zero")?;
    let symbol = CString::new(ENTRY_SYMBOL).map_err(|_| "the symbol holds a zero")?;
    // SAFETY: the path is terminated. The object is never unloaded, so its exports stay valid. This process was started to find out
    // whether the object's constructors do harm.
    let handle = unsafe {
        libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE)
    };
    if handle.is_null() {
        return Err(dl_error());
    }
    // SAFETY: the handle came from dlopen, and the name is terminated.
    let address = unsafe { libc::dlsym(handle, symbol.as_ptr()) };
    if address.is_null() {
        return Err(dl_error());
    }
    // SAFETY: a file that exports this name guarantees this type.
    Ok(unsafe { core::mem::transmute::<*mut c_void, EntryFn>(address) })
}

fn dl_error() -> String {
    // SAFETY: dlerror returns null or a terminated text that lives until the next dl call of this thread.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            "no reason given".to_string()
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}

/// Returns the name under which this process passes a variable to a process that it starts. The provider does not know that name,
/// so it gets the value from the host or not at all.
pub(crate) fn variable(name: &str) -> String {
    format!("CHECK_{name}")
}

/// Settings that are not in the environment.
static SETTINGS: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

/// Sets a variable, for later calls of the entry function.
pub(crate) fn set(name: &str, value: &str) {
    if let Ok(mut settings) = SETTINGS.lock() {
        settings.push((name.to_string(), value.to_string()));
    }
}

/// Removes the settings that [`set`] made.
pub(crate) fn forget() {
    if let Ok(mut settings) = SETTINGS.lock() {
        settings.clear();
    }
}

fn setting(name: &str) -> Option<String> {
    let settings = SETTINGS.lock().ok()?;
    let set = settings.iter().find(|(set, _)| set == name).map(|(_, value)| value.clone());
    set.or_else(|| std::env::var(variable(name)).or_else(|_| std::env::var(name)).ok())
}

/// Returns the host table: configuration from the environment, and a minimal implementation of all other services.
pub(crate) fn host() -> Host {
    REFUSED.store(false, Ordering::Relaxed);
    Host {
        context: ptr::from_mut(Box::leak(Box::new(Declarations::new()))).cast(),
        log: Some(log),
        clock_ns: Some(clock_ns),
        async_event: Some(async_event),
        pages_alloc: Some(pages_alloc),
        pages_free: Some(pages_free),
        abi_major: u32::from(ABI_MAJOR),
        abi_minor: u32::from(ABI_MINOR),
        config_declare: Some(config_declare),
        config_get: Some(config_get),
        ..Host::empty()
    }
}

/// The variables that the provider has declared.
static DECLARED: Mutex<Vec<Declared>> = Mutex::new(Vec::new());
static REFUSED: AtomicBool = AtomicBool::new(false);
/// The last variable that was read without a declaration.
static UNDECLARED: Mutex<Option<String>> = Mutex::new(None);

/// Checks whether the host refused a value, so that the entry function has to fail.
pub(crate) fn refused() -> bool {
    REFUSED.load(Ordering::Relaxed)
}

pub(crate) fn undeclared() -> Option<String> {
    UNDECLARED.lock().ok()?.clone()
}

pub(crate) fn declared() -> Vec<Declared> {
    DECLARED.lock().map(|list| list.clone()).unwrap_or_default()
}

unsafe extern "C" fn config_declare(
    context: *mut c_void,
    vars: *const ConfigVar,
    count: usize,
) -> i32 {
    let set = |variable: &mut Declared| {
        if let Ok(mut declared) = DECLARED.lock() {
            declared.retain(|known: &Declared| known.name != variable.name);
            declared.push(variable.clone());
        }
        Ok(setting(&variable.name).map(|text| (text, Some("environment".to_owned()))))
    };
    // SAFETY: the context belongs to a table of `host`, which is never freed; the records are the provider's, borrowed for the
    // call.
    let declared = unsafe { (*context.cast::<Declarations>()).declare(vars, count, set) };
    let Err(failure) = declared else { return OK };
    REFUSED.store(true, Ordering::Relaxed);
    if let Ok(mut last) = LAST_EVENT.lock() {
        *last = failure.text;
    }
    failure.status as i32
}

unsafe extern "C" fn config_get(
    context: *mut c_void,
    name: *const u8,
    name_len: usize,
    out: *mut ConfigValue,
) -> i32 {
    // SAFETY: as config_declare.
    let code = unsafe { (*context.cast::<Declarations>()).get(name, name_len, out) };
    if code == Status::NoDevice as i32 {
        // SAFETY: the name is the provider's; the call above has read it.
        let name = unsafe { core::slice::from_raw_parts(name, name_len) };
        if let Ok(mut undeclared) = UNDECLARED.lock() {
            *undeclared = Some(String::from_utf8_lossy(name).into_owned());
        }
    }
    code
}

unsafe extern "C" fn log(_: *mut c_void, _level: u32, _text: *const u8, _len: usize) {}

unsafe extern "C" fn clock_ns(_: *mut c_void) -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

unsafe extern "C" fn async_event(_: *mut c_void, event: *const AsyncEvent) {
    // SAFETY: the record and the text are the provider's, borrowed for the call.
    let text = unsafe {
        if event.is_null() || (*event).text.is_null() {
            return;
        }
        core::slice::from_raw_parts((*event).text, (*event).text_len)
    };
    if let Ok(mut last) = LAST_EVENT.lock() {
        *last = String::from_utf8_lossy(text).into_owned();
    }
}

unsafe extern "C" fn pages_alloc(_: *mut c_void, len: usize) -> *mut c_void {
    // SAFETY: the call makes a new anonymous mapping.
    let at = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED { ptr::null_mut() } else { at }
}

unsafe extern "C" fn pages_free(_: *mut c_void, at: *mut c_void, len: usize) {
    // SAFETY: the provider passes an address that pages_alloc returned.
    let _ = unsafe { libc::munmap(at, len) };
}
