//! The loading of one provider: dlopen, entry symbol, tables, layouts. The module also has the state of a loaded provider.
//!
//! A provider is never unloaded, not even one that is refused after dlopen. A provider's constructors have run. Thread-local
//! destructors, atexit handlers and threads that cannot be listed may point into the provider's code. Unmapping the file could
//! cause a crash at a later time, in unrelated code. The file is therefore loaded with `RTLD_NODELETE`, and the handle is leaked.

#![allow(unsafe_code)]

use super::abi::grown::{Unlisted, listed};
use super::abi::host::Services;
use super::abi::{EndpointTable, Tables, layout};
use super::identity::{Origin, Refusal};
use super::objects::{base_of, defined_in, object_of};
use super::room::Room;
use super::search::Checked;
use super::settings::Settings;
use super::{loads, sys};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{OsStr, c_int, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tieline_explain::{Error, Log, LogLine};
use tieline_plugin_api::abi::{DomainAttr, ENTRY_SYMBOL, EntryFn};
use tieline_plugin_api::process::{Call, Kept};
use tieline_plugin_api::{CoreNote, Status};
use tieline_trial::{FileKey, Unfit};

/// The step at which a provider refuses to start because of a configuration value.
pub const REFUSED_VALUE: &str = "value";

/// The step at which a provider does not start because its device is missing.
pub(crate) const NO_DEVICE: &str = "device";

/// The ABI version of this core, as a note in every file that links the core.
#[used]
// SAFETY: a note section holds constants without pointers, and `CoreNote` contains nothing else.
#[unsafe(link_section = ".note.tieline.core")]
static NOTE: CoreNote = CoreNote::new();

/// A provider that is in use.
pub struct LoadedProvider {
    /// The name of the provider.
    pub name: String,
    /// The version that the provider's file or the program states.
    pub version: semver::Version,
    /// The file, or "built in".
    pub origin: Origin,
    pub(crate) tables: Tables,
    state: *mut c_void,
    endpoint_table: &'static EndpointTable,
    services: &'static Services,
    poisoned: AtomicBool,
    poisoned_by: Mutex<String>,
}

// SAFETY: by the ABI, several threads may call the functions of a provider concurrently; `state` is only passed to them.
unsafe impl Send for LoadedProvider {}
// SAFETY: the reason for `Send` applies.
unsafe impl Sync for LoadedProvider {}

impl Drop for LoadedProvider {
    fn drop(&mut self) {
        // SAFETY: every object opened from the provider held an `Arc` of it, so this is the last call to the provider.
        unsafe { (self.tables.provider.quiesce)(self.state) }
        self.services.close();
    }
}

fn refuse<T>(
    phase: &'static str,
    expected: impl Into<String>,
    found: impl Into<String>,
) -> Result<T, Refusal> {
    Err((phase, Unfit { expected: expected.into(), found: found.into() }))
}

/// The files that this process has loaded, identified as in its mappings, with the versions that they reported. A forked child
/// inherits the list.
static LOADED: Kept<(sys::MappedFile, semver::Version)> = Kept::new();

/// Begins to use the loader. A child that was forked during a load is refused.
pub(super) fn begin() -> Result<Call<'static>, Refusal> {
    loads::begin().ok_or_else(|| {
        let expected = "a process whose parent was loading no file at the fork".to_string();
        let found = "a thread of the parent was loading a provider file at the fork, so the loader may have it in part. \
                     Start the child by exec, or open a context before the fork";
        ("fork", Unfit { expected, found: found.to_string() })
    })
}

/// Checks whether the loader already has an object of this path. If so, its constructors have run or are running, and the loader
/// would use that object.
pub(crate) fn is_loaded(path: &Path) -> bool {
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()) else {
        return false;
    };
    // SAFETY: with RTLD_NOLOAD nothing is loaded and no code runs; the reference is returned immediately. If the reference was the
    // last one, the object remains loaded, because the core loads every file with RTLD_NODELETE.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        !handle.is_null() && libc::dlclose(handle) == 0
    }
}

/// Loads a file and returns its entry function. The call runs the file's constructors. The file is never unloaded.
///
/// # Errors
/// The loader refuses the file, or the file has no entry function of its own.
pub fn entry_of(path: &Path) -> Result<EntryFn, Refusal> {
    const RTLD_NODELETE: c_int = libc::RTLD_NODELETE;
    let flags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
    let load = begin()?;
    // SAFETY: loading a provider implies running its constructors. In a search, only root or this user can have installed the file.
    // A trial in a child process came before, unless it was omitted or could not be made.
    let library = unsafe { Library::open(Some(path.as_os_str()), flags) };
    drop(load);
    let library = match library {
        Ok(library) => library,
        Err(error) => return Err(not_loaded(why(&error))),
    };
    // SAFETY: the symbol's name contains the major version of the ABI, which determines its type.
    let entry = unsafe { library.get::<EntryFn>(symbol_name().as_bytes()) }.map(|symbol| *symbol);
    // The library is never closed: see the module documentation.
    let handle = library.into_raw();
    match entry {
        // SAFETY: the handle was opened above and stays open.
        Ok(entry) if unsafe { defined_in(handle, entry as *const c_void) } => Ok(entry),
        Ok(_) => Err(foreign_symbol()),
        Err(_) => Err(no_symbol()),
    }
}

/// Loads a file whose location, structure and note were checked. The call runs the file's constructors.
///
/// The file is loaded by its path, and not by `/proc/self/fd`, because debuggers, `$ORIGIN` and the loader's list identify objects
/// by name. [`tieline_trial::Trust`] makes sure that other users cannot replace the file meanwhile. Root and this user still can,
/// so the mapped file is compared with the checked one. The comparison is too late for constructors, but precedes the call of the
/// entry function.
pub(crate) fn open_file(
    path: &Path,
    checked: &Checked<'_>,
    version: &semver::Version,
    maps: &sys::Mappings,
    warn: impl FnOnce(String),
) -> Result<EntryFn, Refusal> {
    let entry = entry_of(path)?;
    compare_files(entry as *const c_void, path, checked, version, maps, warn).map(|()| entry)
}

/// The refusal of a file that the loader does not accept, in the loader's words.
pub(crate) fn not_loaded(found: String) -> Refusal {
    ("dlopen", Unfit { expected: "a file that the loader accepts".into(), found })
}

/// The refusal of a file without the entry symbol.
pub(crate) fn no_symbol() -> Refusal {
    let expected = format!("the symbol {ENTRY_SYMBOL}");
    ("symbol", Unfit { expected, found: "no such symbol".into() })
}

/// The refusal of a file whose entry symbol is found in another object.
pub(crate) fn foreign_symbol() -> Refusal {
    let found = "one that belongs to another object that the file depends on".into();
    ("symbol", Unfit { expected: format!("{ENTRY_SYMBOL} in the file itself"), found })
}

/// Checks that the loader mapped the file that was checked. An earlier file of the same path that this process had loaded is
/// accepted with a warning.
fn compare_files(
    entry: *const c_void,
    path: &Path,
    checked: &Checked<'_>,
    version: &semver::Version,
    maps: &sys::Mappings,
    warn: impl FnOnce(String),
) -> Result<(), Refusal> {
    let Some((wanted, mapped)) = maps.compare(checked.file.file(), &checked.meta, entry) else {
        // Without /proc, the check is that the path still leads to the same file.
        let now = std::fs::metadata(path).map(|meta| FileKey::of(&meta));
        return match now {
            Ok(now) if now == FileKey::of(&checked.meta) => Ok(()),
            _ => refuse("dlopen", "the file that was checked", "another one lies there now"),
        };
    };
    if mapped == wanted {
        if !LOADED.iter().any(|(known, _)| *known == mapped) {
            let _ = LOADED.add((mapped, version.clone()));
        }
        return Ok(());
    }
    match LOADED.iter().find(|(known, _)| *known == mapped) {
        // The loader identifies objects by name, so a loaded object is used again even if its file was replaced.
        Some((_, first)) => {
            warn(format!(
                "{} was replaced since this process loaded it: version {first} stays in use, {version} comes with the next start",
                path.display()
            ));
            Ok(())
        }
        None => refuse(
            "dlopen",
            format!("the file that was checked, {wanted}"),
            format!("another one was loaded, {mapped}"),
        ),
    }
}

fn symbol_name() -> String {
    format!("{ENTRY_SYMBOL}\0")
}

/// Returns the loader's own text, without that of the wrapper.
fn why(error: &libloading::Error) -> String {
    match error {
        libloading::Error::DlOpen { desc } => format!("{desc:?}").trim_matches('"').to_string(),
        other => other.to_string(),
    }
}

/// Calls the entry function and makes a provider from the record that it wrote.
pub(crate) fn start(
    name: &str,
    version: &semver::Version,
    origin: Origin,
    entry: EntryFn,
    settings: Arc<dyn Settings>,
    log: Arc<Log<LogLine>>,
) -> Result<Arc<LoadedProvider>, Refusal> {
    let (services, host) = Services::open(name, log, settings);
    let mut room = Room::new();
    // SAFETY: the entry function of a provider of our major, the host's table, and a record whose size is
    // set; `room` is larger than the record.
    let code = unsafe { entry(host, room.place()) };
    if code < 0 {
        let status = Status::from_code(code);
        let (of_a_value, text) = services.take_words(status);
        if of_a_value {
            services.tell_declared();
        }
        services.close();
        if status == Status::NoDevice {
            let found = text.unwrap_or_else(|| status.text().to_string());
            return refuse(NO_DEVICE, "its device", found);
        }
        let found =
            text.map_or_else(|| status.text().to_string(), |text| format!("{text} ({status})"));
        let phase = if of_a_value { REFUSED_VALUE } else { "init" };
        return refuse(phase, "a provider that starts", found);
    }
    // The provider's functions may rely on a value that was refused.
    let refused = services.refused_value();
    let tables = if room.is_whole() {
        // SAFETY: this is what the entry function wrote.
        unsafe { Tables::complete(&room.ops) }
    } else {
        Err("tables in front of the room that the entry function was given".to_string())
    };
    let checked = match tables {
        Ok(_) if refused.is_some() => {
            services.tell_declared();
            refuse(REFUSED_VALUE, "a provider that starts", refused.unwrap_or_default())
        }
        Ok(tables) => match layout::drift(&room.ops) {
            None => Ok(tables),
            Some(drift) => refuse("layout", drift.expected, drift.found),
        },
        Err(found) => refuse("tables", "complete tables", found),
    };
    let tables = match checked {
        Ok(tables) => tables,
        Err(refusal) => {
            if let Some(quiesce) = room.ops.quiesce {
                // SAFETY: the provider has started, and no other function of it is called after this one.
                unsafe { quiesce(room.ops.state) };
            }
            services.close();
            return Err(refusal);
        }
    };
    services.tell_declared();
    Ok(Arc::new(LoadedProvider {
        name: name.to_string(),
        version: version.clone(),
        origin,
        tables,
        state: room.ops.state,
        endpoint_table: tables.endpoint_forever(),
        services,
        poisoned: AtomicBool::new(false),
        poisoned_by: Mutex::new(String::new()),
    }))
}

impl LoadedProvider {
    /// Queries the provider's domains.
    pub fn domains(&self) -> Result<Vec<DomainAttr>, Error> {
        let what = || "its domains could not be listed".to_string();
        self.usable(&what)?;
        listed(DomainAttr::empty(), |out, capacity, count| {
            // SAFETY: this is the provider's function with its own state; `out` has space for `capacity` records.
            unsafe { (self.tables.provider.query_domains)(self.state, out, capacity, count) }
        })
        .map_err(|why| self.unlisted(why, "query_domains", &what))
    }

    /// Makes the error of a slot that has returned no list. A slot that wrote out of bounds takes the provider out of use.
    pub(crate) fn unlisted(&self, why: Unlisted, slot: &str, what: &dyn Fn() -> String) -> Error {
        if why == Unlisted::Overrun {
            let text = format!("its {slot} has written beside the room that it was given");
            self.poison(&format!("{text} ({})", self.origin));
        }
        match why {
            Unlisted::Code(code) => self.failed_call(code, what),
            Unlisted::Overrun => self.failure(Status::ProviderFailed as i32, &what()),
        }
    }

    /// Returns the first 1024 bytes of the provider's text for the last error of the calling thread; empty if there is none.
    pub fn last_error(&self) -> String {
        let mut buffer = [0; 1024];
        // SAFETY: this is the provider's function with its own state; the buffer has that capacity.
        let len = unsafe {
            (self.tables.provider.last_error)(self.state, buffer.as_mut_ptr(), buffer.len())
        };
        let len = usize::try_from(len).unwrap_or(0).min(buffer.len());
        String::from_utf8_lossy(&buffer[..len]).trim().to_string()
    }

    /// Makes the error of a call to this provider: the status, with the provider's text as the reason.
    pub fn failure(&self, code: i32, what: &str) -> Error {
        let status = Status::from_code(code);
        let text = if self.poisoned() { self.poisoned_by() } else { self.last_error() };
        let why = if text.is_empty() { status.text().to_string() } else { text };
        let fix = match status {
            Status::ProviderFailed => {
                format!("leave it out with TIELINE_PROVIDERS=^{} and report it", self.name)
            }
            _ => String::new(),
        };
        Error::new(status, format!("provider {}: {what}", self.name), why, fix)
    }

    /// Checks whether the provider was taken out of use.
    #[inline]
    pub fn poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    /// Fails with `ProviderFailed` if the provider is out of use.
    pub(crate) fn check_alive(&self) -> Result<(), Status> {
        if self.poisoned() { Err(Status::ProviderFailed) } else { Ok(()) }
    }

    /// Returns the reason that the provider is out of use; empty if it is in use.
    pub fn poisoned_by(&self) -> String {
        self.poisoned_by.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes the provider out of use: from this call on, [`LoadedProvider::poisoned`] is true. Only the first reason is kept. The
    /// worker fails the open endpoints ([`super::abi::RawEndpoint::fail`]).
    pub fn poison(&self, why: &str) {
        let mut by = self.poisoned_by.lock().unwrap_or_else(PoisonError::into_inner);
        if by.is_empty() {
            *by = if why.is_empty() { "it failed".to_string() } else { why.to_string() };
        }
        self.poisoned.store(true, Ordering::Release);
    }

    /// Takes the provider out of use with this thread's error text, after a data call of this thread returned `PROVIDER_FAILED`.
    #[cold]
    pub fn broke(&self) {
        let words = self.last_error();
        self.poison(if words.is_empty() { "a data call returned PROVIDER_FAILED" } else { &words });
    }

    /// Returns the number of bytes that the provider holds from the host's page allocator.
    #[cfg(test)]
    pub(crate) fn page_bytes(&self) -> usize {
        self.services.page_bytes()
    }

    pub(crate) fn state(&self) -> *mut c_void {
        self.state
    }

    pub(crate) fn endpoint_table(&self) -> &'static EndpointTable {
        self.endpoint_table
    }

    /// Fails if the provider is out of use.
    pub(crate) fn usable(&self, what: &dyn Fn() -> String) -> Result<(), Error> {
        if self.poisoned() {
            return Err(self.failure(Status::ProviderFailed as i32, &what()));
        }
        Ok(())
    }

    /// Returns the value of a control call, or the error of its failure.
    pub fn checked(&self, code: i64, what: &dyn Fn() -> String) -> Result<i64, Error> {
        if code < 0 { Err(self.failed_call(code as i32, what)) } else { Ok(code) }
    }

    /// Checks the result of a call whose other errors are ignored: `PROVIDER_FAILED` still takes the provider out of use.
    #[inline]
    pub fn heard(&self, code: i32) {
        if code == Status::ProviderFailed as i32 {
            self.poison(&self.last_error());
        }
    }

    /// Makes the error of a failed control call. `PROVIDER_FAILED` takes the provider out of use.
    pub(crate) fn failed_call(&self, code: i32, what: &dyn Fn() -> String) -> Error {
        self.heard(code);
        self.failure(code, &what())
    }
}

impl std::fmt::Debug for LoadedProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LoadedProvider({} {} from {})", self.name, self.version, self.origin)
    }
}

/// Returns the path of the object that contains this code: the executable, or the library if the core is part of one.
pub(crate) fn own_object() -> Option<std::path::PathBuf> {
    let own = object_of(own_object as *const c_void)?;
    // SAFETY: the call reads the auxiliary vector.
    let headers = unsafe { libc::getauxval(libc::AT_PHDR) } as *const c_void;
    if base_of(headers) == Some(own.dli_fbase as usize) {
        // The loader's name of the executable is argv[0], which the calling process can choose freely.
        return std::env::current_exe().ok();
    }
    if own.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the text is the loader's, and its object is this one, which stays loaded.
    let name = unsafe { std::ffi::CStr::from_ptr(own.dli_fname) };
    let name: &OsStr = std::os::unix::ffi::OsStrExt::from_bytes(name.to_bytes());
    std::fs::canonicalize(name).ok()
}
