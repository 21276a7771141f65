//! Tests in a child process whether this process would survive libfabric's first query, unless the result for the library's file is
//! remembered.
//!
//! Drivers that libfabric links or loads may run arbitrary code in constructors and in the first `fi_getinfo`. On a machine whose
//! driver and library do not match, that code may crash or hang. The result belongs to the file (device, inode, size, times). It is
//! kept in the user's cache `tieline/ofi-probes` ([`Cache`]), if there is one.
//!
//! A device gets its own trial in the same form before this process opens it. Devices of proven providers, and those whose claims
//! are trusted, are opened without one.

mod sys;

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use sys::Trial;
use tieline_plugin_api::{Failure, Status};
use tieline_trial::{Answer, Cache, FileKey, Key, now};

/// The time limit for loading and the first query together.
const LIMIT: Duration = Duration::from_secs(20);

/// Runs the trial of a library in a child, or reads its result from the cache.
///
/// # Errors
/// The child did not survive, in this trial or in the one that the cache remembers.
pub(crate) fn passed(file: &CStr) -> Result<(), Failure> {
    let name = file.to_string_lossy().into_owned();
    let known = known_file(&name).map(Key::from).zip(Cache::named(CACHE));
    if let Some(answer) = known.as_ref().and_then(|(key, cache)| cache.valid(key)) {
        return answer.fault.map_or(Ok(()), |why| Err(refused(&name, &why, " (remembered)")));
    }
    let fault = match sys::attempt(file, LIMIT) {
        // No child can be made, or the loader refuses the file and will report that in this process. Nothing is known about the
        // file.
        None | Some(Trial::NothingDone) => return Ok(()),
        Some(Trial::Answered) => None,
        Some(Trial::Ended(_)) => Some("ended without an answer".to_owned()),
        Some(Trial::TimedOut) => Some("did not come back within 20 s".to_owned()),
    };
    let answer = Answer { fault, at: now() };
    if let Some((key, cache)) = &known {
        cache.add(key, &answer);
    }
    answer.fault.map_or(Ok(()), |why| Err(refused(&name, &why, "")))
}

/// The name of the cache.
const CACHE: &str = "ofi-probes";

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
/// # Errors
/// The child did not survive, in this trial or in the one that the cache remembers.
pub(crate) fn survives(
    library: &str,
    device: &str,
    act: impl FnOnce() -> bool,
) -> Result<(), Deadly> {
    // Tests with the simulated library use no cache.
    let cache = Cache::named(CACHE).filter(|_| !cfg!(test));
    tried_on(known_file(library).zip(cache), device, DEVICE_LIMIT, act)
}

/// Does the work of [`survives`], with the key of the library's file and the cache.
fn tried_on(
    known: Option<(FileKey, Cache)>,
    device: &str,
    limit: Duration,
    act: impl FnOnce() -> bool,
) -> Result<(), Deadly> {
    let known = known.map(|(file, cache)| (Key::of(file, device), cache));
    let deadly = |why: &str, may_change| {
        let words = format!(
            "it is not opened: a child process that opened it and moved data between two interfaces of its own {why}; \
             TIELINE_OFI_PROVIDERS leaves it out, TIELINE_OFI_TRUST=delivery opens it untried"
        );
        Deadly { words, may_change }
    };
    if let Some(answer) = known.as_ref().and_then(|(key, cache)| cache.valid(key)) {
        let refused = |why| Err(deadly(&format!("{why} (remembered)"), false));
        return answer.fault.map_or(Ok(()), refused);
    }
    let fault = match sys::attempt_here(act, limit) {
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
    let answer = Answer { fault, at: now() };
    if let Some((key, cache)) = &known {
        cache.add(key, &answer);
    }
    answer.fault.map_or(Ok(()), |why| Err(deadly(&why, false)))
}

fn refused(name: &str, why: &str, remembered: &str) -> Failure {
    let text = format!(
        "{name} is not used: a child process that loaded it and asked for its providers {why}{remembered}; see \
         `fi_info`, or name another file in TIELINE_OFI_LIBRARY"
    );
    Failure::new(Status::NoDevice, text)
}

/// Returns the path at which the loader is expected to find a library of this name. A name without a slash is looked up in the
/// usual directories.
fn known_place(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name));
    }
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    let places = [format!("/usr/lib/{triple}"), "/usr/lib64".into(), "/usr/lib".into()];
    places.iter().map(|place| Path::new(place).join(name)).find(|path| path.exists())
}

/// Returns the state of the file that the loader is expected to find.
fn known_file(name: &str) -> Option<FileKey> {
    let meta = std::fs::metadata(known_place(name)?).ok()?;
    Some(FileKey::of(&meta))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A temporary directory of one test.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let name = format!("tieline-ofi-{name}-{}", std::process::id());
            let place = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&place);
            fs::create_dir(&place).unwrap();
            Place(place)
        }

        /// Returns the key of a file of this name, and a cache.
        fn known(&self, file: &str) -> (FileKey, Cache) {
            let at = self.0.join(file);
            if !at.exists() {
                fs::write(&at, file).unwrap();
            }
            let key = known_file(&at.to_string_lossy()).unwrap();
            (key, Cache::at(self.0.join("tieline/ofi-probes")))
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_is_known_by_its_place() {
        assert_eq!(known_place("here/it.so"), Some(PathBuf::from("here/it.so")));
        assert_eq!(known_place("no-library-has-this-name.so.7"), None);
        let words = refused("it.so", "ended without an answer", " (remembered)").text;
        assert!(words.starts_with("it.so is not used: a child process"), "{words}");
        assert!(words.contains("ended without an answer (remembered)"), "{words}");
    }

    #[test]
    fn deadly_device_is_not_opened_and_cached_for_its_library_file() {
        let place = Place::new("devices");
        let tried = |file: &str, device: &str, act: &dyn Fn() -> bool| {
            let known = place.known(file);
            tried_on(Some(known), device, LIMIT, act).map_err(|deadly| deadly.words)
        };
        let die = || std::process::abort();
        let words = tried("one", "ofi:one", &die).unwrap_err();
        assert!(words.contains("was ended by signal 6;"), "{words}");
        let words = tried("one", "ofi:one", &|| true).unwrap_err();
        assert!(words.contains("was ended by signal 6 (remembered);"), "{words}");
        for (file, device) in [("one", "ofi:other"), ("two", "ofi:one"), ("one", "with\na line")] {
            assert_eq!(tried(file, device, &|| true), Ok(()));
            assert_eq!(tried(file, device, &die), Ok(()), "remembered, and not done again");
        }
        let words = tried("one", "panics", &|| panic!()).unwrap_err();
        assert!(words.contains("ended without an answer;"), "{words}");
        let kept = place.known("one").1.read();
        assert_eq!(kept.len(), 5, "{kept:?}");
        // The child opened nothing, for example because a queue did not fit, which other settings may cure.
        assert_eq!(tried("one", "ofi:closed", &|| false), Ok(()));
        assert!(tried("one", "ofi:closed", &die).is_err(), "who did nothing has proved nothing");
    }

    #[test]
    fn a_device_that_hangs_is_given_up_and_tried_again() {
        let place = Place::new("hangs");
        let known = Some(place.known("one"));
        let hang = || loop {
            std::thread::park();
        };
        let deadly = tried_on(known.clone(), "d", Duration::from_millis(50), hang).err().unwrap();
        assert!(deadly.may_change && deadly.words.contains("did not come back within 50ms"));
        assert!(tried_on(known, "d", LIMIT, || true).is_ok());
    }

    #[test]
    fn a_child_that_cannot_load_the_file_says_nothing_against_it() {
        let trial = sys::attempt(c"/nonexistent/libfabric.so.1", LIMIT);
        assert!(matches!(trial, Some(Trial::NothingDone)));
    }
}
