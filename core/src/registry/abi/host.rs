//! The host's services behind the table that every provider gets: log, configuration, clock, events, pages.
//!
//! A provider may call these from any thread, at any time, until the process ends. So the table and what
//! it points to are never freed; what they hold on to (the settings) is let go when the provider is.
//! Nothing here prints: lines go into a log that the report shows.

use crate::log::Log;
use crate::registry::settings::Settings;
use std::collections::HashMap;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use tieline_plugin_api::abi::{ABI_MAJOR, ABI_MINOR, Host};
use tieline_plugin_api::{Status, log_level};

/// One line that a provider logged.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct LogLine {
    /// Who logged it.
    pub(crate) provider: String,
    /// `TIELINE_LOG_*`.
    pub(crate) level: u32,
    /// The line.
    pub(crate) text: String,
}

/// How long a line may be.
const MOST_LINE_BYTES: usize = 1024;

impl From<String> for LogLine {
    fn from(text: String) -> LogLine {
        LogLine { provider: "tieline".into(), level: log_level::WARN, text }
    }
}

impl Log<LogLine> {
    /// Adds a line of a provider's.
    pub(in crate::registry) fn push(&self, provider: &str, level: u32, text: String) {
        self.add(LogLine { provider: provider.to_string(), level, text });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a provider's host functions work on.
pub(crate) struct Services {
    provider: String,
    log: Arc<Log<LogLine>>,
    settings: RwLock<Option<Arc<dyn Settings>>>,
    defaults: RwLock<HashMap<String, String>>,
    event: Mutex<Option<(i32, String)>>,
    page_bytes: AtomicUsize,
}

impl Services {
    /// A host table for one provider. It stays valid for the life of the process.
    pub(in crate::registry) fn open(
        provider: &str,
        log: Arc<Log<LogLine>>,
        settings: Arc<dyn Settings>,
    ) -> (&'static Services, &'static Host) {
        let services: &'static Services = Box::leak(Box::new(Services {
            provider: provider.to_string(),
            log,
            settings: RwLock::new(Some(settings)),
            defaults: RwLock::new(HashMap::new()),
            event: Mutex::new(None),
            page_bytes: AtomicUsize::new(0),
        }));
        let host = Box::leak(Box::new(Host {
            size: size_of::<Host>(),
            abi_major: u32::from(ABI_MAJOR),
            abi_minor: u32::from(ABI_MINOR),
            context: std::ptr::from_ref(services).cast_mut().cast(),
            log: Some(log_line),
            config_get: Some(config_get),
            clock_ns: Some(clock_ns),
            async_event: Some(async_event),
            pages_alloc: Some(pages_alloc),
            pages_free: Some(pages_free),
        }));
        (services, host)
    }

    /// Declared defaults: what `config_get` answers when nobody has set a variable.
    pub(in crate::registry) fn set_defaults(&self, defaults: HashMap<String, String>) {
        *self.defaults.write().unwrap_or_else(PoisonError::into_inner) = defaults;
    }

    /// The last event that the provider reported, taken.
    pub(in crate::registry) fn take_event(&self) -> Option<(i32, String)> {
        lock(&self.event).take()
    }

    /// Bytes that the provider holds from `pages_alloc`.
    #[cfg(test)]
    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes.load(Ordering::Relaxed)
    }

    /// The provider is done: what the settings hold may go.
    pub(in crate::registry) fn close(&self) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = None;
        self.set_defaults(HashMap::new());
    }

    fn config(&self, name: &str) -> Option<String> {
        let settings = self.settings.read().unwrap_or_else(PoisonError::into_inner).clone();
        settings.and_then(|settings| settings.get(name)).or_else(|| {
            self.defaults.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
        })
    }
}

/// Runs a host function for a provider. A panic ends here: it must not unwind into the provider.
///
/// # Safety
/// `context` is the one of a table from [`Services::open`].
unsafe fn serve<R>(
    context: *mut c_void,
    broken: R,
    body: impl FnOnce(&'static Services) -> R,
) -> R {
    if context.is_null() {
        return broken;
    }
    // SAFETY: the context is a `Services` that is never freed.
    let services: &'static Services = unsafe { &*context.cast::<Services>() };
    catch_unwind(AssertUnwindSafe(|| body(services))).unwrap_or(broken)
}

/// A provider's text: lossy, one line, of bounded length.
///
/// # Safety
/// `text` is null or readable for `len` bytes.
unsafe fn line(text: *const u8, len: usize) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: no more than the caller's `len`.
    let bytes = unsafe { std::slice::from_raw_parts(text, len.min(MOST_LINE_BYTES)) };
    String::from_utf8_lossy(bytes).replace(|c: char| c.is_control(), " ")
}

unsafe extern "C" fn log_line(context: *mut c_void, level: u32, text: *const u8, len: usize) {
    // SAFETY: a provider calls with its table's context, and with text that it lends for the call.
    unsafe {
        serve(context, (), |services| {
            services.log.push(&services.provider, level, line(text, len))
        });
    }
}

unsafe extern "C" fn config_get(
    context: *mut c_void,
    name: *const u8,
    name_len: usize,
    out: *mut u8,
    capacity: usize,
) -> i64 {
    let broken = Status::Invalid as i64;
    // SAFETY: a provider calls with its table's context.
    unsafe {
        serve(context, broken, |services| {
            if name.is_null() || (out.is_null() && capacity > 0) {
                return broken;
            }
            // SAFETY: the provider lends the name for the call.
            let name = std::slice::from_raw_parts(name, name_len);
            let Ok(name) = std::str::from_utf8(name) else { return broken };
            let Some(value) = services.config(name) else { return Status::NoDevice as i64 };
            let len = value.len().min(capacity);
            if len > 0 {
                // SAFETY: the provider's buffer has room for `capacity` bytes.
                std::ptr::copy_nonoverlapping(value.as_ptr(), out, len);
            }
            i64::try_from(value.len()).unwrap_or(broken)
        })
    }
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub(crate) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec. It cannot fail for this clock.
    let _ = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

unsafe extern "C" fn clock_ns(_: *mut c_void) -> u64 {
    now_ns()
}

unsafe extern "C" fn async_event(context: *mut c_void, status: i32, text: *const u8, len: usize) {
    // SAFETY: as log_line.
    unsafe {
        serve(context, (), |services| {
            let text = line(text, len);
            let level = if status < 0 { log_level::WARN } else { log_level::INFO };
            services.log.push(&services.provider, level, text.clone());
            *lock(&services.event) = Some((status, text));
        });
    }
}

unsafe extern "C" fn pages_alloc(context: *mut c_void, len: usize) -> *mut c_void {
    let none = std::ptr::null_mut();
    // SAFETY: a provider calls with its table's context.
    unsafe {
        serve(context, none, |services| {
            if len == 0 || len > isize::MAX as usize {
                return std::ptr::null_mut();
            }
            // SAFETY: a new anonymous mapping touches nothing that is there.
            let pages = libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            if pages == libc::MAP_FAILED {
                return std::ptr::null_mut();
            }
            let _ = services.page_bytes.fetch_add(len, Ordering::Relaxed);
            pages
        })
    }
}

unsafe extern "C" fn pages_free(context: *mut c_void, pages: *mut c_void, len: usize) {
    // SAFETY: a provider calls with its table's context.
    unsafe {
        serve(context, (), |services| {
            // SAFETY: the provider gives back, once, what `pages_alloc` gave it.
            if !pages.is_null() && libc::munmap(pages, len) == 0 {
                let _ = services.page_bytes.fetch_sub(len, Ordering::Relaxed);
            }
        });
    }
}
