//! The trial of a provider file in a child process, and the cache of its results. If a function of the file crashes, hangs or ends
//! the process during the trial, this process survives, and the report records it.
//!
//! The child takes the steps below; the trial does not cover what a provider does later.
//!
//! 1. it loads the file and calls its entry function with the settings of this process,
//! 2. it lists the domains, and opens and closes up to four of them,
//! 3. it runs the file's finalizers, as at the end of a process.
//!
//! The result belongs to a file (device, inode, size, times), not to a path. The result is kept in the process, and in the cache
//! `tieline/probes` of the user ([`Cache`]). A refusal by the loader is not kept. A file whose domains take too long to open, or
//! that could not be tried, passes without a kept result.
//!
//! The values of `TIELINE_PROBE` are `on` (default), `nocache` (tries each file again and keeps nothing) and `off`.

use super::abi::host::Services;
use super::abi::watched::Broke;
use super::identity::Refusal;
use super::load;
use super::room::Room;
use super::settings::Settings;
use super::sys::{self, Call, Step, Trial};
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tieline_explain::Log;
use tieline_plugin_api::abi::{Declared, ENTRY_SYMBOL, Set};
use tieline_plugin_api::process::PerProcess;
use tieline_trial::{Answer, Answers, Cache, FileKey, Key, Trust, Unfit, now};

/// The time limit for all steps of a child process together.
const LIMIT: Duration = Duration::from_secs(5);
/// The maximum number of trials of a file, if loads of other threads disturb them.
const MOST_TRIALS: usize = 64;

/// The value of `TIELINE_PROBE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    On,
    NoCache,
    Off,
}

impl Mode {
    pub(crate) fn parse(value: Option<&str>) -> Mode {
        match value.map(str::to_ascii_lowercase).as_deref() {
            Some("off" | "0" | "no" | "false") => Mode::Off,
            Some("nocache") => Mode::NoCache,
            _ => Mode::On,
        }
    }
}

/// The answers that this process has looked up; `None` before the first.
static ANSWERS: PerProcess<Mutex<Option<Answers>>> = PerProcess::new();

/// Releases the answers about files that the search has not found.
pub(crate) fn end_search() {
    if let Some(answers) = &mut *ANSWERS.lock().unwrap_or_else(PoisonError::into_inner) {
        answers.keep_asked();
    }
}

/// Returns the kept result of a trial of this state of a file, if there is one that is still valid.
pub(crate) fn kept(meta: &fs::Metadata, mode: Mode, trust: &Trust) -> Option<Answer> {
    if mode != Mode::On {
        return None;
    }
    let key = Key::from(FileKey::of(meta));
    let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    let read = || cache().map_or_else(Answers::default, |cache| cache.answers_by(trust));
    let answers = answers.get_or_insert_with(read);
    if answers.lacks(&key) {
        answers.fill_up(read());
    }
    answers.valid(&key, now())
}

/// Checks by a trial, or by the kept result of one, that a process survives loading and starting `path`. If there is neither, or if
/// this process has loaded the file already, the file passes.
pub(crate) fn check(
    path: &Path,
    meta: &fs::Metadata,
    mode: Mode,
    known: Option<Answer>,
    settings: &dyn Settings,
) -> Result<(), Refusal> {
    // A file that this process has loaded needs no trial, because the child would call into a copy of the file.
    if mode == Mode::Off || load::is_loaded(path) {
        return Ok(());
    }
    if let Some(answer) = known {
        return told(&answer, true);
    }
    let trial = try_file(path, settings);
    if let Some(refusal) = refusal_of_loader(&trial) {
        return Err(refusal);
    }
    let Some(fault) = fault(trial) else { return Ok(()) };
    let (key, answer) = (Key::from(FileKey::of(meta)), Answer { fault, at: now() });
    if mode == Mode::On {
        let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
        answers.get_or_insert_default().add(&key, &answer);
        if let Some(cache) = cache() {
            cache.add(&key, &answer);
        }
    }
    told(&answer, false)
}

/// Returns the cache of results; `None` without XDG_CACHE_HOME and HOME, and in a setuid program.
fn cache() -> Option<Cache> {
    Cache::named("probes")
}

/// Returns the refusal of a file that the loader did not accept, or that has no entry symbol of its own.
fn refusal_of_loader(trial: &std::io::Result<Trial>) -> Option<Refusal> {
    match trial {
        Ok(Trial::Refused(words)) => Some(load::not_loaded(words.clone())),
        Ok(Trial::NoSymbol) => Some(load::no_symbol()),
        Ok(Trial::ForeignSymbol) => Some(load::foreign_symbol()),
        _ => None,
    }
}

/// Returns the result to keep: the objection of a trial to a file, or an inner `None` if there is none. The outer `None`: nothing
/// is kept, and the file passes.
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
        // No child could be made (limits, seccomp), or each trial was disturbed: nothing is known against the file.
        Err(_) => return None,
    })
}

/// Returns the words for a change that a function of the file made.
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

#[cfg(test)]
mod tests;
