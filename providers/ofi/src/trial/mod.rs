//! Tests in a child process whether this process would survive libfabric's first query, once for each state of the library's file.
//!
//! Drivers that libfabric links or loads run arbitrary code in constructors and in the first `fi_getinfo`. On a machine whose
//! driver and library do not match, that code may crash or hang. The result belongs to the file (device, inode, size, time). It is
//! stored in `$XDG_CACHE_HOME/tieline/ofi-trials` (or `~/.cache/...`), one line per file. A "no" is valid for a day. If the cache
//! is unusable, or another user could have written it, it is ignored.
//!
//! A device gets its own trial in the same form before this process opens it, if its provider is not known to have moved data
//! without harm.

mod sys;

use std::ffi::CStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use sys::Trial;
use tieline_plugin_api::{Failure, Status, raised_rights};

/// The time limit for loading and the first query together.
const LIMIT: Duration = Duration::from_secs(20);
const NO_LASTS_SECONDS: u64 = 24 * 3600;
const MOST_BYTES: u64 = 64 * 1024;
const MOST_LINES: usize = 64;

/// Runs the trial of a library in a child, or reads its result from the cache.
///
/// # Errors The child did not survive.
pub(crate) fn passed(file: &CStr) -> Result<(), Failure> {
    let name = file.to_string_lossy().into_owned();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    // The loader resolves a name without a slash, so the key is that of the file that the loader would find.
    let key = known_place(&name).as_deref().and_then(key);
    let cache = cache_file();
    if let (Some(key), Some(cache)) = (&key, &cache) {
        if let Some(answer) = read(cache).iter().find_map(|line| answer(line, key, now)) {
            return answer.map_err(|why| refused(&name, &why, " (remembered)"));
        }
    }
    let why = match sys::attempt(file, LIMIT) {
        // No child can be made, or the loader refuses the file and will report that in this process. Nothing is known about the
        // file.
        None | Some(Trial::NothingDone) => return Ok(()),
        Some(Trial::Answered) => None,
        Some(Trial::Ended(_)) => Some("ended without an answer"),
        Some(Trial::TimedOut) => Some("did not come back within 20 s"),
    };
    if let (Some(key), Some(cache)) = (&key, &cache) {
        write(cache, key, &format!("{key} {now} {}", why.unwrap_or("answers")));
    }
    why.map_or(Ok(()), |why| Err(refused(&name, why, "")))
}

/// The reason why a device is not opened.
pub(crate) struct Deadly {
    pub(crate) words: String,
    /// Whether another trial may have a different result.
    pub(crate) may_change: bool,
}

/// The time limit for a device's trial. Its parts have their own limits, except for single calls of the library.
const DEVICE_LIMIT: Duration = Duration::from_secs(60);

/// Runs in a child what this process is about to do with a device, or reads the result from the cache. `device` identifies the
/// device in the cache. `act` returns whether it could open the device; if not, the trial has proved nothing.
///
/// # Errors The child did not survive.
pub(crate) fn survives(
    library: &str,
    device: &str,
    act: impl FnOnce() -> bool,
) -> Result<(), Deadly> {
    // Tests with the simulated library use no cache.
    let cache = cache_file().filter(|_| !cfg!(test));
    let file = known_place(library).as_deref().and_then(key).zip(cache);
    tried_on(file.as_ref(), device, DEVICE_LIMIT, act)
}

/// Does the work of [`survives`], with the key of the library's file and the path of the cache.
fn tried_on(
    known: Option<&(String, PathBuf)>,
    device: &str,
    limit: Duration,
    act: impl FnOnce() -> bool,
) -> Result<(), Deadly> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let one_word = |c: char| if c.is_whitespace() || c.is_control() { '_' } else { c };
    let device: String = device.chars().map(one_word).collect();
    let known = known.map(|(file, cache)| (format!("{file} {device}"), cache));
    let deadly = |why: &str, may_change| {
        let words = format!(
            "it is not opened: a child process that opened it and moved data between two interfaces of its own {why}; \
             TIELINE_OFI_PROVIDERS leaves it out, TIELINE_OFI_TRUST=delivery opens it untried"
        );
        Deadly { words, may_change }
    };
    if let Some((key, cache)) = &known {
        if let Some(answer) = read(cache).iter().find_map(|line| answer(line, key, now)) {
            return answer.map_err(|why| deadly(&format!("{why} (remembered)"), false));
        }
    }
    let why = match sys::attempt_here(act, limit) {
        // No child can be made, or the child has survived without a result: the next process tries again.
        None | Some(Trial::NothingDone) => return Ok(()),
        Some(Trial::Answered) => None,
        // The cause may be a busy host.
        Some(Trial::TimedOut) => {
            return Err(deadly(&format!("did not come back within {limit:?}"), true));
        }
        Some(Trial::Ended(Some(signal))) => Some(format!("was ended by signal {signal}")),
        Some(Trial::Ended(None)) => Some("ended without an answer".to_owned()),
    };
    if let Some((key, cache)) = &known {
        write(cache, key, &format!("{key} {now} {}", why.as_deref().unwrap_or("answers")));
    }
    why.map_or(Ok(()), |why| Err(deadly(&why, false)))
}

fn refused(name: &str, why: &str, remembered: &str) -> Failure {
    let text = format!(
        "{name} is not used: a child process that loaded it and asked for its providers {why}{remembered}; see \
         `fi_info`, or name another file in TIELINE_OFI_LIBRARY"
    );
    Failure::new(Status::NoDevice, text)
}

/// Returns the path at which the loader finds a library of this name: in the directories of the usual entries of its cache.
fn known_place(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name));
    }
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    let places = [format!("/usr/lib/{triple}"), "/usr/lib64".into(), "/usr/lib".into()];
    places.iter().map(|place| Path::new(place).join(name)).find(|path| path.exists())
}

fn key(path: &Path) -> Option<String> {
    let meta = fs::metadata(path).ok()?;
    let (device, inode, size) = (meta.dev(), meta.ino(), meta.size());
    Some(format!("{device} {inode} {size} {} {}", meta.mtime(), meta.mtime_nsec()))
}

/// Returns the result in a line, if the line is about this file and is still valid.
fn answer(line: &str, key: &str, now: u64) -> Option<Result<(), String>> {
    let (at, words) = line.strip_prefix(key)?.strip_prefix(' ')?.split_once(' ')?;
    let age = now.checked_sub(at.parse().ok()?)?;
    match words {
        "answers" => Some(Ok(())),
        why if age < NO_LASTS_SECONDS => {
            Some(Err(why.chars().filter(|c| !c.is_control()).collect()))
        }
        _ => None,
    }
}

fn cache_file() -> Option<PathBuf> {
    if raised_rights() {
        return None;
    }
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base =
        absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("tieline/ofi-trials"))
}

/// Checks whether only root and this user can have written the file.
fn ours(meta: &fs::Metadata) -> bool {
    (meta.uid() == sys::user() || meta.uid() == 0) && meta.mode() & 0o022 == 0
}

fn read(file: &Path) -> Vec<String> {
    let lines = || -> Option<Vec<String>> {
        let parent = fs::metadata(file.parent()?).ok()?;
        let open = fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(file)
            .ok()?;
        let meta = open.metadata().ok()?;
        if !meta.is_file() || !ours(&meta) || !ours(&parent) {
            return None;
        }
        let mut text = String::new();
        let _ = open.take(MOST_BYTES).read_to_string(&mut text).ok()?;
        Some(text.lines().map(str::to_owned).collect())
    };
    lines().unwrap_or_default()
}

/// Replaces the file by a new one.
fn write(file: &Path, key: &str, line: &str) {
    let Some(directory) = file.parent() else { return };
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    if made.is_err() || !fs::metadata(directory).is_ok_and(|meta| ours(&meta)) {
        return;
    }
    let mut lines = read(file);
    lines.retain(|line| !line.starts_with(key));
    lines.drain(..lines.len().saturating_sub(MOST_LINES - 1)).for_each(drop);
    lines.push(line.to_owned());
    let new = directory.join(format!("ofi-trials.{}", std::process::id()));
    let written = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)
        .and_then(|mut out| out.write_all((lines.join("\n") + "\n").as_bytes()))
        .and_then(|()| fs::rename(&new, file));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_no_expires_after_a_day_and_yes_lasts_until_file_changes() {
        let key = "1 2 3 4 5";
        let (yes, no) = ("1 2 3 4 5 1000 answers", "1 2 3 4 5 1000 ended without an answer");
        assert_eq!(answer(yes, key, 1000 + 10 * NO_LASTS_SECONDS), Some(Ok(())));
        assert_eq!(answer(no, key, 1001), Some(Err("ended without an answer".into())));
        assert_eq!(answer(no, key, 1000 + NO_LASTS_SECONDS), None);
        assert_eq!(answer(yes, "1 2 3 4 6", 1001), None, "another file");
        assert_eq!(answer(yes, key, 999), None, "found in the future");
    }

    /// A temporary directory of one test.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let name = format!("tieline-ofi-{name}-{}", std::process::id());
            let place = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&place);
            Place(place)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn set_mode(path: &Path, mode: u32) {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn answers_are_kept_one_line_for_each_file_and_not_without_a_bound() {
        let place = Place::new("answers");
        let cache = place.0.join("tieline/ofi-trials");
        assert_eq!(read(&cache), [] as [String; 0]);
        write(&cache, "1 2", "1 2 first");
        write(&cache, "3 4", "3 4 other");
        write(&cache, "1 2", "1 2 second");
        assert_eq!(read(&cache), ["3 4 other", "1 2 second"]);
        assert_eq!(fs::metadata(cache.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(&cache).unwrap().mode() & 0o777, 0o600);
        for n in 0..100 {
            write(&cache, &format!("key {n} "), &format!("key {n} answers"));
        }
        let lines = read(&cache);
        assert_eq!((lines.len(), lines[0].as_str()), (MOST_LINES, "key 36 answers"));
        assert_eq!(lines.last().unwrap(), "key 99 answers");
        let beside = fs::read_dir(cache.parent().unwrap()).unwrap().count();
        assert_eq!(beside, 1, "nothing else is left there");
    }

    #[test]
    fn answers_that_somebody_else_could_have_written_are_none() {
        let place = Place::new("others");
        let cache = place.0.join("ofi-trials");
        write(&cache, "1 2", "1 2 answers");
        assert_eq!(read(&cache).len(), 1);
        for mode in [0o620, 0o602] {
            set_mode(&cache, mode);
            assert_eq!(read(&cache), [] as [String; 0], "{mode:o}");
        }
        set_mode(&cache, 0o644);
        assert_eq!(read(&cache).len(), 1, "others may read it");
        for mode in [0o770, 0o707] {
            set_mode(&place.0, mode);
            assert_eq!(read(&cache), [] as [String; 0], "{mode:o}");
            write(&cache, "3 4", "3 4 answers");
        }
        set_mode(&place.0, 0o755);
        assert_eq!(read(&cache), ["1 2 answers"], "nor is anything written there");
        let link = place.0.join("link");
        std::os::unix::fs::symlink(&cache, &link).unwrap();
        assert_eq!(read(&link), [] as [String; 0]);
        assert_eq!(read(&place.0), [] as [String; 0], "a directory is no file");
    }

    #[test]
    fn a_file_is_known_by_its_place_and_by_its_state() {
        let place = Place::new("states");
        fs::create_dir(&place.0).unwrap();
        let (one, two) = (place.0.join("one"), place.0.join("two"));
        fs::write(&one, "1").unwrap();
        fs::write(&two, "1").unwrap();
        let before = key(&one).unwrap();
        assert_eq!(key(&one), Some(before.clone()));
        assert_ne!(key(&two), Some(before.clone()));
        fs::write(&one, "22").unwrap();
        assert_ne!(key(&one), Some(before));
        assert_eq!(key(&place.0.join("three")), None);

        assert_eq!(known_place("here/it.so"), Some(PathBuf::from("here/it.so")));
        assert_eq!(known_place("no-library-has-this-name.so.7"), None);
        let words = refused("it.so", "ended without an answer", " (remembered)").text;
        assert!(words.starts_with("it.so is not used: a child process"), "{words}");
        assert!(words.contains("ended without an answer (remembered)"), "{words}");
    }

    #[test]
    fn deadly_device_is_not_opened_and_cached_for_its_library_file() {
        let place = Place::new("devices");
        let known = |file: &str| Some((file.to_owned(), place.0.join("tieline/ofi-trials")));
        let tried = |file: &str, device: &str, act: &dyn Fn() -> bool| {
            tried_on(known(file).as_ref(), device, LIMIT, act).map_err(|deadly| deadly.words)
        };
        let die = || std::process::abort();
        let words = tried("1 2", "ofi:one", &die).unwrap_err();
        assert!(words.contains("was ended by signal 6;"), "{words}");
        let words = tried("1 2", "ofi:one", &|| true).unwrap_err();
        assert!(words.contains("was ended by signal 6 (remembered);"), "{words}");
        for (file, device) in [("1 2", "ofi:other"), ("1 3", "ofi:one"), ("1 2", "with\na line")] {
            assert_eq!(tried(file, device, &|| true), Ok(()));
            assert_eq!(tried(file, device, &die), Ok(()), "remembered, and not done again");
        }
        let words = tried("1 2", "panics", &|| panic!()).unwrap_err();
        assert!(words.contains("ended without an answer;"), "{words}");
        let lines = read(&place.0.join("tieline/ofi-trials"));
        assert_eq!(lines.len(), 5, "{lines:?}");
        // The child opened nothing, for example because a queue did not fit, which other settings may cure.
        assert_eq!(tried("1 2", "ofi:closed", &|| false), Ok(()));
        assert!(tried("1 2", "ofi:closed", &die).is_err(), "who did nothing has proved nothing");
    }

    #[test]
    fn a_device_that_hangs_is_given_up_and_tried_again() {
        let place = Place::new("hangs");
        let known = Some(("1 2".to_owned(), place.0.join("tieline/ofi-trials")));
        let hang = || loop {
            std::thread::park();
        };
        let deadly = tried_on(known.as_ref(), "d", Duration::from_millis(50), hang).err().unwrap();
        assert!(deadly.may_change && deadly.words.contains("did not come back within 50ms"));
        assert!(tried_on(known.as_ref(), "d", LIMIT, || true).is_ok());
    }

    #[test]
    fn a_child_that_cannot_load_the_file_says_nothing_against_it() {
        let trial = sys::attempt(c"/nonexistent/libfabric.so.1", LIMIT);
        assert!(matches!(trial, Some(Trial::NothingDone)));
    }
}
