//! Loads the file, and offers it the host's services with the settings of the checks.

#![allow(unsafe_code)]

use core::ffi::c_void;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use tieline_explain::Log;
use tieline_host::{Refusal, Services, Settings};
use tieline_plugin_api::Status;
use tieline_plugin_api::abi::{ConfigValue, Declared, EntryFn, Host, NOTE_SECTION, Set};

pub(crate) fn entry(path: &Path) -> Result<EntryFn, String> {
    tieline_host::entry_of(path).map_err(words)
}

/// Returns the descriptor of the file's note. None of its code runs.
pub(crate) fn note(path: &Path) -> Result<Vec<u8>, String> {
    let file = File::open(path).map_err(|error| format!("it cannot be read: {error}"))?;
    let note = tieline_host::note_of(&file).map_err(words)?;
    note.ok_or_else(|| format!("the file has no section {NOTE_SECTION}"))
}

pub(crate) fn words((_, unfit): Refusal) -> String {
    format!("{} in place of {}", unfit.found, unfit.expected)
}

/// Returns the name under which this process passes a variable to a process that it starts. The provider does not know that name,
/// so it gets the value from the host or not at all.
pub(crate) fn variable(name: &str) -> String {
    format!("CHECK_{name}")
}

static SETTINGS: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

pub(crate) fn set(name: &str, value: &str) {
    if let Ok(mut settings) = SETTINGS.lock() {
        settings.push((name.to_string(), value.to_string()));
    }
}

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

/// The settings of the checks; a name without a setting is read from the environment.
struct Given;

impl Settings for Given {
    fn get(&self, name: &str) -> Option<Set> {
        setting(name).map(|text| (text, Some("environment".to_owned())))
    }
    fn all(&self) -> Vec<(String, Set)> {
        Vec::new()
    }
    /// Permits every name: a check of its own tests the names.
    fn may_declare(&self, _: &str, _: &str) -> bool {
        true
    }
    fn declared(&self, _: &str, variable: &Declared) {
        if let Ok(mut declared) = DECLARED.lock() {
            declared.retain(|known: &Declared| known.name != variable.name);
            declared.push(variable.clone());
        }
    }
}

static DECLARED: Mutex<Vec<Declared>> = Mutex::new(Vec::new());
/// The last variable that was read without a declaration.
static UNDECLARED: Mutex<Option<String>> = Mutex::new(None);

pub(crate) fn undeclared() -> Option<String> {
    UNDECLARED.lock().ok()?.clone()
}

pub(crate) fn declared() -> Vec<Declared> {
    DECLARED.lock().map(|list| list.clone()).unwrap_or_default()
}

type ConfigGet = unsafe extern "C" fn(*mut c_void, *const u8, usize, *mut ConfigValue) -> i32;
/// The host's own function, of which [`config_get`] watches the answers.
static CONFIG_GET: OnceLock<ConfigGet> = OnceLock::new();

/// Opens a host table for one call of the entry function. A check may change the returned copy.
pub(crate) fn host() -> (&'static Services, Host) {
    let (services, host) = Services::open("checked", Arc::new(Log::default()), Arc::new(Given));
    if let Some(function) = host.config_get {
        let _ = CONFIG_GET.get_or_init(|| function);
    }
    (services, Host { config_get: Some(config_get), ..*host })
}

unsafe extern "C" fn config_get(
    context: *mut c_void,
    name: *const u8,
    name_len: usize,
    out: *mut ConfigValue,
) -> i32 {
    let Some(get) = CONFIG_GET.get() else { return Status::Invalid as i32 };
    // SAFETY: the provider passes the context of a table of `host`, and its name and record for the call.
    let code = unsafe { get(context, name, name_len, out) };
    if code == Status::NoDevice as i32 {
        // SAFETY: the name is the provider's; the call above has read it.
        let name = unsafe { core::slice::from_raw_parts(name, name_len) };
        if let Ok(mut undeclared) = UNDECLARED.lock() {
            *undeclared = Some(String::from_utf8_lossy(name).into_owned());
        }
    }
    code
}
