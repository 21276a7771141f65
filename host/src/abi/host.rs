//! The host's services, which every provider gets as a table: log, configuration, clock, events, pages.
//!
//! A provider may call these services from any thread, at any time, until the process ends. So the table and its objects are never
//! freed. Settings and log are released when the provider ends. After that, only the clock and `pages_free` serve its calls. A
//! later provider of the same name may reuse the memory. The number in the table's `context` distinguishes calls of the two
//! providers. A table is reused once more than [`RESTING`] tables of its name are unused. The services print nothing: lines are
//! added to a log that the report shows.

use crate::settings::Settings;
use std::cell::UnsafeCell;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use tieline_explain::upper;
use tieline_explain::{Log, LogLine, is_plain};
use tieline_plugin_api::abi::{
    ABI_MAJOR, ABI_MINOR, AsyncEvent, ConfigValue, ConfigVar, Declarations, Declared, Host,
};
use tieline_plugin_api::{Failure, OK, Status, async_kind, log_level};

/// The maximum number of bytes of a provider's text that are read.
const MOST_LINE_BYTES: usize = 1024;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Words {
    /// The first refused value, otherwise the last refused list.
    refused: Option<(Status, String)>,
    reported: Option<String>,
}

/// The state of a provider that is in use.
struct Open {
    provider: String,
    log: Arc<Log<LogLine>>,
    settings: Arc<dyn Settings>,
}

/// The state behind a provider's host functions. The object's address is a multiple of `GENERATIONS`: the low bits of a table's
/// `context` hold a number.
#[repr(align(1024))]
pub struct Services {
    /// The table, which is never freed, and is changed only while no provider uses it.
    host: UnsafeCell<Host>,
    /// The number of times that the table was opened, and the current provider.
    open: RwLock<(usize, Option<Arc<Open>>)>,
    declarations: Declarations,
    /// The variables that the entry function has declared.
    declared: Mutex<Vec<Declared>>,
    /// The text of a refused declaration, and the provider's last report.
    words: Mutex<Words>,
    page_bytes: AtomicUsize,
}

/// The number of values that fit into the low bits of the address of a [`Services`].
const GENERATIONS: usize = align_of::<Services>();

// SAFETY: only `Services::open` changes the table, while no provider uses it; locks protect everything else.
unsafe impl Sync for Services {}
// SAFETY: the reasons for `Sync` apply; the addresses in the table are those of functions and of this value itself.
unsafe impl Send for Services {}

/// The number of unused tables of a name that are not reused.
const RESTING: usize = 8;

/// The tables without a provider, the longest unused first. The lock is tried without waiting, because a forked child may find it
/// locked forever.
static UNUSED: Mutex<BTreeMap<String, VecDeque<&'static Services>>> = Mutex::new(BTreeMap::new());

impl Services {
    /// Opens a host table for one provider. The table stays valid for the life of the process.
    pub fn open(
        provider: &str,
        log: Arc<Log<LogLine>>,
        settings: Arc<dyn Settings>,
    ) -> (&'static Services, &'static Host) {
        let services = Services::unused(provider).unwrap_or_else(Services::new);
        let mut open = services.open.write().unwrap_or_else(PoisonError::into_inner);
        let number = open.0.wrapping_add(1);
        *open = (number, Some(Arc::new(Open { provider: provider.to_string(), log, settings })));
        let context = std::ptr::from_ref(services).wrapping_byte_add(number % GENERATIONS);
        // SAFETY: no provider uses the table, except for a late call of an earlier one, which reads one word.
        unsafe {
            let place = &raw mut (*services.host.get()).context;
            AtomicPtr::from_ptr(place).store(context.cast_mut().cast(), Ordering::Release);
            (services, &*services.host.get())
        }
    }

    fn unused(provider: &str) -> Option<&'static Services> {
        let mut unused = UNUSED.try_lock().ok()?;
        let resting = unused.get_mut(provider)?;
        if resting.len() > RESTING { resting.pop_front() } else { None }
    }

    fn new() -> &'static Services {
        let host = Host {
            size: size_of::<Host>(),
            abi_major: u32::from(ABI_MAJOR),
            abi_minor: u32::from(ABI_MINOR),
            context: std::ptr::null_mut(),
            log: Some(log_line),
            config_declare: Some(config_declare),
            config_get: Some(config_get),
            clock_ns: Some(clock_ns),
            async_event: Some(async_event),
            pages_alloc: Some(pages_alloc),
            pages_free: Some(pages_free),
        };
        Box::leak(Box::new(Services {
            host: UnsafeCell::new(host),
            open: RwLock::new((0, None)),
            declarations: Declarations::new(),
            declared: Mutex::default(),
            words: Mutex::default(),
            page_bytes: AtomicUsize::new(0),
        }))
    }

    /// Returns the state of the current provider.
    fn now(&self) -> Option<Arc<Open>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Returns the reason that the entry function failed with this status: the declaration that was refused with it, else the last
    /// report, else another refused declaration. The flag is set if the status is `Invalid` and the text is not about a declaration
    /// that was refused otherwise.
    pub fn take_words(&self, status: Status) -> (bool, Option<String>) {
        let Words { refused, reported } = std::mem::take(&mut *lock(&self.words));
        let reported = reported.filter(|words| !words.is_empty());
        let is_invalid = status == Status::Invalid;
        match refused {
            Some((with, words)) if with == status || reported.is_none() => {
                (is_invalid && with == status, Some(words))
            }
            _ => (is_invalid, reported),
        }
    }

    /// Checks whether a declaration was refused.
    #[must_use]
    pub fn has_refused(&self) -> bool {
        lock(&self.words).refused.is_some()
    }

    /// Takes the text about a refused declaration; `None` if it was not refused because of a value.
    pub(crate) fn refused_value(&self) -> Option<String> {
        let refused = lock(&self.words).refused.take();
        refused.filter(|(status, _)| *status == Status::Invalid).map(|(_, words)| words)
    }

    /// Publishes the declarations, after the provider has started, or would have started except for a refused value.
    pub fn tell_declared(&self) {
        let declared = std::mem::take(&mut *lock(&self.declared));
        if let Some(open) = self.now() {
            declared.iter().for_each(|variable| open.settings.declared(&open.provider, variable));
        }
    }

    /// Returns the number of bytes that the provider holds from `pages_alloc`.
    #[cfg(test)]
    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes.load(Ordering::Relaxed)
    }

    /// Handles the end of the provider: releases its settings and log, and disables its calls. A later provider can reuse the table
    /// if this one holds no pages.
    pub fn close(&'static self) {
        let ended = self.open.write().unwrap_or_else(PoisonError::into_inner).1.take();
        let Some(ended) = ended else { return };
        self.declarations.clear();
        lock(&self.declared).clear();
        *lock(&self.words) = Words::default();
        // The provider still holds pages that it did not free, and their count must stay correct.
        if self.page_bytes.load(Ordering::Relaxed) == 0 {
            if let Ok(mut unused) = UNUSED.try_lock() {
                unused.entry(ended.provider.clone()).or_default().push_back(self);
            }
        }
    }

    /// # Safety
    /// The conditions are those of [`Declarations::declare`].
    unsafe fn declare(&self, open: &Open, vars: *const ConfigVar, count: usize) -> i32 {
        let Open { provider, settings, .. } = open;
        let mut list = Vec::new();
        // SAFETY: the caller guarantees the conditions of `declare`.
        let declared = unsafe {
            self.declarations.declare(vars, count, |variable| {
                if let Some(known) = settings.core_declaration(&variable.name) {
                    *variable = known;
                } else if !settings.may_declare(provider, &variable.name) {
                    return Err(Failure::new(
                        Status::ProviderFailed,
                        format!(
                            "variable {:?}: it is neither the core's nor named TIELINE_{}_...",
                            variable.name,
                            upper(provider)
                        ),
                    ));
                }
                list.push(variable.clone());
                Ok(settings.get(&variable.name))
            })
        };
        // A malformed list is discarded; a list with a refused value is kept.
        if declared.as_ref().err().is_none_or(|failure| failure.status == Status::Invalid) {
            lock(&self.declared).append(&mut list);
        }
        declared.map_or_else(
            |failure| {
                let refused = &mut lock(&self.words).refused;
                if refused.as_ref().is_none_or(|(status, _)| *status != Status::Invalid) {
                    *refused = Some((failure.status, failure.text));
                }
                failure.status as i32
            },
            |()| OK,
        )
    }
}

/// Runs a host function for a provider. A call by a provider that has ended has no effect. A panic is caught, because it must not
/// unwind into the provider.
///
/// # Safety
/// `context` comes from a table of [`Services::open`].
unsafe fn serve<R>(
    context: *mut c_void,
    broken: R,
    body: impl FnOnce(&'static Services, &Open) -> R,
) -> R {
    // SAFETY: the caller guarantees the origin of `context`.
    let Some((services, number)) = (unsafe { behind(context) }) else { return broken };
    let open = {
        let open = services.open.read().unwrap_or_else(PoisonError::into_inner);
        open.1.clone().filter(|_| open.0 % GENERATIONS == number)
    };
    let Some(open) = open else { return broken };
    catch_unwind(AssertUnwindSafe(|| body(services, &open))).unwrap_or(broken)
}

/// Returns the object that a table's `context` refers to, and the number in `context`.
///
/// # Safety
/// `context` is null or comes from a table of [`Services::open`].
unsafe fn behind(context: *mut c_void) -> Option<(&'static Services, usize)> {
    let number = context.addr() % GENERATIONS;
    let services = context.wrapping_byte_sub(number).cast::<Services>();
    // SAFETY: the address is that of a `Services`, which is never freed.
    unsafe { services.as_ref() }.map(|services| (services, number))
}

/// Converts a provider's text to one line of bounded length; invalid UTF-8 is replaced.
///
/// # Safety
/// `text` is null or readable for `len` bytes.
unsafe fn line(text: *const u8, len: usize) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the length is at most the caller's `len`.
    let bytes = unsafe { std::slice::from_raw_parts(text, len.min(MOST_LINE_BYTES)) };
    String::from_utf8_lossy(bytes).replace(|c: char| !is_plain(c), " ")
}

unsafe extern "C" fn log_line(context: *mut c_void, level: u32, text: *const u8, len: usize) {
    // SAFETY: a provider passes the context of its table, and text that stays valid for the call.
    unsafe {
        serve(context, (), |_, open| open.log.push(&open.provider, level, line(text, len)));
    }
}

unsafe extern "C" fn config_declare(
    context: *mut c_void,
    vars: *const ConfigVar,
    count: usize,
) -> i32 {
    // SAFETY: a provider passes the context of its table, and records that stay valid for the call.
    unsafe {
        serve(context, Status::Closed as i32, |services, open| services.declare(open, vars, count))
    }
}

unsafe extern "C" fn config_get(
    context: *mut c_void,
    name: *const u8,
    name_len: usize,
    out: *mut ConfigValue,
) -> i32 {
    // SAFETY: a provider passes the context of its table; the name and the record stay valid for the call.
    unsafe {
        serve(context, Status::Invalid as i32, |services, _| {
            services.declarations.get(name, name_len, out)
        })
    }
}

/// Returns the time of CLOCK_MONOTONIC in ns.
pub(crate) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec. The call cannot fail for this clock.
    let _ = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

unsafe extern "C" fn clock_ns(_: *mut c_void) -> u64 {
    now_ns()
}

unsafe extern "C" fn async_event(context: *mut c_void, event: *const AsyncEvent) {
    // SAFETY: a provider passes the context of its table, and a record and texts that stay valid for the call. Fields that a
    // shorter record lacks are zero; additional fields of a longer record are ignored.
    unsafe {
        serve(context, (), |services, open| {
            if event.is_null() {
                return;
            }
            let mut known = AsyncEvent::empty();
            let size = (*event.cast::<usize>()).min(size_of::<AsyncEvent>());
            if size < std::mem::offset_of!(AsyncEvent, domain) {
                let text =
                    format!("it has reported an event whose size is {size}: it cannot be read");
                lock(&services.words).reported = Some(text.clone());
                open.log.push(&open.provider, log_level::WARN, text);
                return;
            }
            std::ptr::copy_nonoverlapping(
                event.cast::<u8>(),
                std::ptr::from_mut(&mut known).cast(),
                size,
            );
            let text = line(known.text, known.text_len);
            let (level, event) = match known.kind {
                async_kind::PORT_DOWN => (log_level::WARN, Some("port_down")),
                async_kind::PORT_UP => (log_level::INFO, Some("port_up")),
                async_kind::DEVICE_GONE => (log_level::WARN, Some("device_gone")),
                // The provider's own record already reports the missing device.
                _ if known.status == Status::NoDevice as i32 => (log_level::DEBUG, None),
                _ if known.status < 0 => (log_level::WARN, None),
                _ => (log_level::INFO, None),
            };
            if event.is_none() {
                lock(&services.words).reported = Some(text.clone());
            }
            let domain = line(known.domain, known.domain_len);
            let text = match (domain.as_str(), line(known.module, known.module_len).as_str()) {
                ("", _) => text,
                (domain, "") => format!("{domain}: {text}"),
                (domain, module) => format!("{domain}/{module}: {text}"),
            };
            open.log.add(LogLine { provider: open.provider.clone(), level, text, event });
        });
    }
}

unsafe extern "C" fn pages_alloc(context: *mut c_void, len: usize) -> *mut c_void {
    let none = std::ptr::null_mut();
    // SAFETY: a provider passes the context of its table.
    unsafe {
        serve(context, none, |services, _| {
            if len == 0 || len > isize::MAX as usize {
                return std::ptr::null_mut();
            }
            // SAFETY: a new anonymous mapping does not affect existing memory.
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
    // SAFETY: a provider passes the context of its table.
    unsafe {
        // A provider that has ended may still free pages.
        let Some((services, _)) = behind(context) else { return };
        {
            // SAFETY: the provider frees, once, pages that `pages_alloc` returned.
            if !pages.is_null() && libc::munmap(pages, len) == 0 {
                let _ = services.page_bytes.fetch_sub(len, Ordering::Relaxed);
            }
        }
    }
}
