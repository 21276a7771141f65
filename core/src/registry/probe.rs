//! Tries a provider file in a child process first, so that a constructor that crashes or hangs costs a line
//! of text and not the process; and remembers the answer.
//!
//! The answer belongs to a file (device, inode, size, times), not to a path. It is kept in the process, and
//! in `$XDG_CACHE_HOME/tieline/probes` (or `~/.cache/tieline/probes`): one line per file. The cache is only
//! ever a shortcut: one that cannot be read or written, or that somebody else could have written, is not
//! used and not mentioned. "No" is believed for a day, because what made a constructor crash may be mended
//! without touching the file; what the loader itself refuses is cheap to ask again, and not kept.
//!
//! `TIELINE_PROBE`: `on` (default), `nocache` (asks anew and keeps nothing), `off`.

use super::elf::Unfit;
use super::identity::Refusal;
use super::sys::{self, Trial};
use std::collections::HashMap;
use std::ffi::CString;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tieline_plugin_api::abi::ENTRY_SYMBOL;

/// How long a constructor may take.
const LIMIT: Duration = Duration::from_secs(5);
/// How long a "no" is believed.
const NO_LASTS_SECONDS: u64 = 24 * 3600;
/// The cache keeps this many files, the last ones asked about.
const MOST_ENTRIES: usize = 256;
const MOST_CACHE_BYTES: u64 = 256 * 1024;

/// What `TIELINE_PROBE` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    On,
    NoCache,
    Off,
}

impl Mode {
    pub(super) fn parse(value: Option<&str>) -> Mode {
        match value {
            Some("off" | "0" | "no" | "false") => Mode::Off,
            Some("nocache") => Mode::NoCache,
            _ => Mode::On,
        }
    }
}

/// What tells one state of a file from another.
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

/// An answer that is worth keeping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// Why not; `None`: it loads.
    pub(super) fault: Option<String>,
    /// When it was found, seconds since 1970.
    pub(super) at: u64,
}

/// Asks whether this process would survive loading `path`.
pub(super) fn check(path: &Path, meta: &fs::Metadata, mode: Mode) -> Result<(), Refusal> {
    static ANSWERS: Mutex<Option<HashMap<FileKey, Answer>>> = Mutex::new(None);
    if mode == Mode::Off {
        return Ok(());
    }
    let key = FileKey::of(meta);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let kept = |answer: &Answer| {
        answer.fault.is_none() || now.saturating_sub(answer.at) < NO_LASTS_SECONDS
    };
    if mode == Mode::On {
        let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
        let answers =
            answers.get_or_insert_with(|| cache_file().map_or_else(HashMap::new, |f| read(&f)));
        if let Some(answer) = answers.get(&key).filter(|answer| kept(answer)) {
            return told(answer, true);
        }
    }
    let fault = match try_file(path) {
        Ok(Trial::Loaded) => None,
        Ok(Trial::Killed(signal)) => {
            Some(format!("a child process that loaded it was killed by {}", signal_name(signal)))
        }
        Ok(Trial::TimedOut) => Some(format!(
            "a child process that loaded it did not come back within {} s and was killed",
            LIMIT.as_secs()
        )),
        Ok(Trial::Exited(status)) => {
            Some(format!("a child process that loaded it ended itself with status {status}"))
        }
        Ok(Trial::Vanished) => {
            Some("a child process that loaded it ended without an answer".to_string())
        }
        // The loader says the same again, at once and without harm, when it is asked in this process.
        Ok(Trial::Refused(_) | Trial::NoSymbol) => return Ok(()),
        // No child can be made (limits, seccomp): nothing is known against the file.
        Err(_) => return Ok(()),
    };
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

fn told(answer: &Answer, remembered: bool) -> Result<(), Refusal> {
    let Some(fault) = &answer.fault else { return Ok(()) };
    let note = if remembered { " (remembered; TIELINE_PROBE=nocache asks anew)" } else { "" };
    let expected = "a file whose constructors run to their end".to_string();
    Err(("probe", Unfit { expected, found: format!("{fault}{note}") }))
}

fn try_file(path: &Path) -> std::io::Result<Trial> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let symbol = CString::new(ENTRY_SYMBOL)?;
    sys::try_loading(&path, &symbol, LIMIT)
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

/// Where the cache lies; `None` without a home, and in a set-uid process.
fn cache_file() -> Option<PathBuf> {
    if sys::is_set_uid() {
        return None;
    }
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base =
        absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("tieline/probes"))
}

/// Whether nobody but root and this user can have written it.
fn ours(meta: &fs::Metadata) -> bool {
    (meta.uid() == sys::effective_uid() || meta.uid() == 0) && meta.mode() & 0o022 == 0
}

/// Reads the cache; whatever is wrong with it makes it empty.
pub(super) fn read(file: &Path) -> HashMap<FileKey, Answer> {
    let mut text = String::new();
    let mut read = || -> Option<()> {
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

/// `<7 numbers> <when> ok` or `<7 numbers> <when> no <why>`.
fn parse(line: &str) -> Option<(FileKey, Answer)> {
    let mut words = line.splitn(10, ' ');
    let mut key = [0; 7];
    for number in &mut key {
        *number = words.next()?.parse().ok()?;
    }
    let at = words.next()?.parse().ok()?;
    let fault = match (words.next()?, words.next()) {
        ("ok", None) => None,
        ("no", Some(why)) => Some(why.chars().filter(|c| !c.is_control()).collect()),
        _ => return None,
    };
    Some((FileKey(key), Answer { fault, at }))
}

/// Adds one answer, by writing a new file in place of the old one.
pub(super) fn add(file: &Path, key: FileKey, answer: &Answer) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let Some(directory) = file.parent() else { return };
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
        let verdict = answer.fault.map_or_else(|| "ok".to_string(), |why| format!("no {why}"));
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
