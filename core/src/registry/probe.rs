//! The trial of a provider file in a child process, and the cache of its results. If a constructor or an entry function crashes,
//! hangs or ends the process, only the child is affected, and the report records it.
//!
//! The child takes the steps below; the trial does not cover what a provider does later.
//!
//! 1. it loads the file and calls its entry function with the settings of this process,
//! 2. it lists and opens the domains and closes them,
//! 3. it runs the file's finalizers, as at the end of a process.
//!
//! The result belongs to a file (device, inode, size, times), not to a path. The result is kept in the process, and in
//! `$XDG_CACHE_HOME/tieline/probes` (or `~/.cache/tieline/probes`): one line per file. The cache only saves time. The cache is
//! ignored without a message if it cannot be read or written, or if another user could have written or placed it. A negative answer
//! is valid for a day, because the cause of a crash may be removed without a change of the file. A refusal by the loader is cheap
//! to repeat and is not kept.
//!
//! The values of `TIELINE_PROBE` are `on` (default), `nocache` (tries each file again and keeps nothing) and `off`.

use super::abi::host::Services;
use super::abi::watched::Broke;
use super::elf::Unfit;
use super::identity::Refusal;
use super::load;
use super::room::Room;
use super::settings::Settings;
use super::sys::{self, Call, Step, Trial};
use super::trust::Trust;
use crate::config::effective_uid;
use std::collections::HashMap;
use std::ffi::CString;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tieline_explain::Log;
use tieline_plugin_api::abi::{Declared, ENTRY_SYMBOL, Set};
use tieline_plugin_api::process::PerProcess;
use tieline_plugin_api::raised_rights;

/// The time limit for constructors and entry function together.
const LIMIT: Duration = Duration::from_secs(5);
/// The number of trials of a file, if loads of other threads disturb them.
const MOST_TRIALS: usize = 64;
/// The time in seconds for which a negative answer is valid.
const NO_LASTS_SECONDS: u64 = 24 * 3600;
/// The maximum number of files in the cache; the latest ones are kept.
const MOST_ENTRIES: usize = 256;
const MOST_CACHE_BYTES: u64 = 256 * 1024;

/// The value of `TIELINE_PROBE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    On,
    NoCache,
    Off,
}

impl Mode {
    pub(super) fn parse(value: Option<&str>) -> Mode {
        match value.map(str::to_ascii_lowercase).as_deref() {
            Some("off" | "0" | "no" | "false") => Mode::Off,
            Some("nocache") => Mode::NoCache,
            _ => Mode::On,
        }
    }
}

/// The identity of one state of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FileKey([i64; 7]);

impl FileKey {
    pub(super) fn of(meta: &fs::Metadata) -> FileKey {
        FileKey([
            meta.dev() as i64,
            meta.ino() as i64,
            meta.size() as i64,
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec(),
        ])
    }
}

/// A result in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The fault; `None`: the file loads and starts.
    pub(super) fault: Option<String>,
    /// The time of the trial, in seconds since 1970.
    pub(super) at: u64,
}

impl Answer {
    /// Checks whether the answer is still valid. A negative answer is valid for a day; an answer with a time in the future is
    /// invalid.
    pub(super) fn holds(&self, now: u64) -> bool {
        self.fault.is_none() || now.checked_sub(self.at).is_some_and(|age| age < NO_LASTS_SECONDS)
    }
}

/// Checks that this process would survive loading and starting `path`.
pub(super) fn check(
    path: &Path,
    meta: &fs::Metadata,
    mode: Mode,
    settings: &dyn Settings,
) -> Result<(), Refusal> {
    static ANSWERS: PerProcess<Mutex<Option<HashMap<FileKey, Answer>>>> = PerProcess::new();
    if mode == Mode::Off {
        return Ok(());
    }
    let key = FileKey::of(meta);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    if mode == Mode::On {
        let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
        let answers =
            answers.get_or_insert_with(|| cache_file().map_or_else(HashMap::new, |f| read(&f)));
        if let Some(answer) = answers.get(&key).filter(|answer| answer.holds(now)) {
            return told(answer, true);
        }
    }
    let trial = try_file(path, settings);
    if let Some(refusal) = refusal_of_loader(&trial) {
        return Err(refusal);
    }
    let Some(fault) = fault(trial) else { return Ok(()) };
    let answer = Answer { fault, at: now };
    if mode == Mode::On {
        let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = answers.get_or_insert_default().insert(key, answer.clone());
        if let Some(file) = cache_file() {
            add(&file, key, &answer);
        }
    }
    told(&answer, false)
}

/// The loader's own refusal of a file. Once loaded, a file stays until the process ends, and then its finalizers run.
fn refusal_of_loader(trial: &std::io::Result<Trial>) -> Option<Refusal> {
    match trial {
        Ok(Trial::Refused(words)) => Some(load::not_loaded(words.clone())),
        Ok(Trial::NoSymbol) => Some(load::no_symbol()),
        Ok(Trial::ForeignSymbol) => Some(load::foreign_symbol()),
        _ => None,
    }
}

/// The objection of a trial to a file; `None` if there is none, or if it is not worth caching.
fn fault(trial: std::io::Result<Trial>) -> Option<Option<String>> {
    let child = |step| match step {
        Step::Loading => "a child process that loaded it",
        Step::Starting => "a child process that called its entry function",
        Step::Opening => "a child process that opened its domains",
        Step::Ending => "a child process that ran its finalizers",
    };
    Some(match trial {
        Ok(Trial::Ran) => None,
        Ok(Trial::Broke(step, broke)) => {
            Some(format!("{} found that {}", child(step), words(broke)))
        }
        Ok(Trial::Killed(step, signal)) => {
            Some(format!("{} was killed by {}", child(step), signal_name(signal)))
        }
        // The device may be slow to open, and this process can wait for it.
        Ok(Trial::TimedOut(Step::Opening)) => return None,
        Ok(Trial::Disturbed) => return None,
        Ok(Trial::TimedOut(step)) => Some(format!(
            "{} did not come back within {} s and was killed",
            child(step),
            LIMIT.as_secs()
        )),
        Ok(Trial::Exited(step, status)) => {
            Some(format!("{} exited with status {status}", child(step)))
        }
        Ok(Trial::Vanished(step)) => Some(format!("{} ended without an answer", child(step))),
        Ok(Trial::Refused(_) | Trial::NoSymbol | Trial::ForeignSymbol) => return None,
        // No child can be made (limits, seccomp): nothing is known against the file.
        Err(_) => return None,
    })
}

/// The words for a change that a function of the file made.
fn words(broke: Broke) -> &'static str {
    match broke {
        Broke::Registers => "a function had changed registers that belong to its caller",
        Broke::Stack => "a function had written over the stack of its caller",
        Broke::Memory => "a function had written beside the room that it was given",
    }
}

fn told(answer: &Answer, remembered: bool) -> Result<(), Refusal> {
    let Some(fault) = &answer.fault else { return Ok(()) };
    let note = if remembered { " (remembered; TIELINE_PROBE=nocache tries again)" } else { "" };
    let expected = "a file whose constructors, functions and finalizers run to their end";
    Err(("probe", Unfit { expected: expected.to_string(), found: format!("{fault}{note}") }))
}

/// A copy of the settings, for a child that must not take any lock of this process.
struct Snapshot(Vec<(String, Set)>);

impl Settings for Snapshot {
    fn get(&self, name: &str) -> Option<Set> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }
    fn all(&self) -> Vec<(String, Set)> {
        self.0.clone()
    }
    /// Permits every declaration: the trial has no provider name, and this process checks the declarations again.
    fn may_declare(&self, _: &str, _: &str) -> bool {
        true
    }
    fn declared(&self, _: &str, _: &Declared) {}
}

fn try_file(path: &Path, settings: &dyn Settings) -> std::io::Result<Trial> {
    let symbol = CString::new(ENTRY_SYMBOL)?;
    let settings = Arc::new(Snapshot(settings.all()));
    let (services, host) = Services::open("trial", Arc::new(Log::default()), settings);
    let mut call = Call { host, room: Room::new() };
    let trial = CString::new(path.as_os_str().as_bytes())
        .map_err(std::io::Error::from)
        .and_then(|file| undisturbed(path, || sys::try_file(&file, &symbol, &mut call, LIMIT)));
    services.close();
    trial
}

/// Repeats a trial that another thread's load has disturbed. The result is an error if each trial was disturbed, or if the other
/// thread has loaded the file.
fn undisturbed(
    path: &Path,
    mut trial: impl FnMut() -> std::io::Result<Trial>,
) -> std::io::Result<Trial> {
    for _ in 0..MOST_TRIALS {
        match trial() {
            Ok(Trial::Disturbed) => {}
            other => return other,
        }
        // This call waits for the loader's lock, which the other thread holds.
        if load::is_loaded(path) {
            break;
        }
    }
    Err(std::io::ErrorKind::ResourceBusy.into())
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGBUS => "SIGBUS",
        libc::SIGILL => "SIGILL",
        libc::SIGFPE => "SIGFPE",
        libc::SIGABRT => "SIGABRT",
        libc::SIGSYS => "SIGSYS",
        libc::SIGKILL => "SIGKILL",
        libc::SIGTERM => "SIGTERM",
        _ => return format!("signal {signal}"),
    };
    format!("{name} (signal {signal})")
}

/// Returns the path of the cache; `None` without a home directory, and in a setuid program.
fn cache_file() -> Option<PathBuf> {
    if raised_rights() {
        return None;
    }
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base =
        absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("tieline/probes"))
}

/// Checks whether only root and this user can have written the file.
fn ours(meta: &fs::Metadata) -> bool {
    (meta.uid() == effective_uid() || meta.uid() == 0) && meta.mode() & 0o022 == 0
}

/// Checks whether the existing part of a path avoids directories of other users. If a program runs with another user's HOME (as
/// under sudo), the cache there is neither read nor written.
fn is_of_ours(directory: &Path) -> bool {
    let there = directory.ancestors().find(|part| fs::symlink_metadata(part).is_ok());
    there.is_some_and(|there| Trust::current_process().follow(there).is_ok())
}

/// Reads the cache; any error yields an empty one.
pub(super) fn read(file: &Path) -> HashMap<FileKey, Answer> {
    let mut text = String::new();
    let mut read = || -> Option<()> {
        let _ours = file.parent().filter(|parent| is_of_ours(parent))?;
        let parent = fs::metadata(file.parent()?).ok()?;
        let file = fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(file)
            .ok()?;
        let meta = file.metadata().ok()?;
        if !meta.is_file() || !ours(&meta) || !ours(&parent) || meta.len() > MOST_CACHE_BYTES {
            return None;
        }
        file.take(MOST_CACHE_BYTES).read_to_string(&mut text).ok().map(|_| ())
    };
    if read().is_none() {
        return HashMap::new();
    }
    text.lines().filter_map(parse).collect()
}

/// Parses a line: `<7 numbers> <when> starts` or `<7 numbers> <when> no <why>`.
fn parse(line: &str) -> Option<(FileKey, Answer)> {
    let mut words = line.splitn(10, ' ');
    let mut key = [0; 7];
    for number in &mut key {
        *number = words.next()?.parse().ok()?;
    }
    let at = words.next()?.parse().ok()?;
    let fault = match (words.next()?, words.next()) {
        ("starts", None) => None,
        ("no", Some(why)) => Some(why.chars().filter(|c| !c.is_control()).collect()),
        _ => return None,
    };
    Some((FileKey(key), Answer { fault, at }))
}

/// Adds one answer by replacing the file with a new one.
pub(super) fn add(file: &Path, key: FileKey, answer: &Answer) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let Some(directory) = file.parent() else { return };
    if !is_of_ours(directory) {
        return;
    }
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    if made.is_err() || !fs::metadata(directory).is_ok_and(|meta| ours(&meta)) {
        return;
    }
    let mut entries: Vec<(FileKey, Answer)> =
        read(file).into_iter().filter(|e| e.0 != key).collect();
    entries.sort_by_key(|(_, answer)| std::cmp::Reverse(answer.at));
    entries.truncate(MOST_ENTRIES - 1);
    entries.push((key, answer.clone()));
    let mut text = String::new();
    for (FileKey(numbers), answer) in entries {
        for number in numbers {
            text.push_str(&format!("{number} "));
        }
        let verdict = answer.fault.map_or_else(|| "starts".to_string(), |why| format!("no {why}"));
        text.push_str(&format!("{} {verdict}\n", answer.at));
    }
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let new = directory.join(format!("probes.{}.{number}", std::process::id()));
    let written = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)
        .and_then(|mut out| out.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&new, file));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
}

#[cfg(test)]
mod tests;
