//! Checks that a test leaves no processes, no hosts, and no files of Tieline in the directories that Tieline uses by default.

use crate::{Node, hosts};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The environment variable that marks the processes of one test.
pub const MARK: &str = "PROCESSES_TEST";

static NOW: Mutex<Option<(String, PathBuf)>> = Mutex::new(None);

/// Returns the mark of the running test, and its directory.
#[must_use]
pub fn current() -> (String, PathBuf) {
    let now = NOW.lock().unwrap_or_else(PoisonError::into_inner);
    now.clone().unwrap_or_else(|| ("none".to_string(), std::env::temp_dir()))
}

/// The state before a test.
pub struct Before {
    mark: String,
    folder: PathBuf,
    files: BTreeSet<PathBuf>,
}

impl Before {
    /// Records the state, and makes the test's directory.
    #[must_use]
    pub fn look(test: &str) -> Before {
        let pid = std::process::id();
        let mark = format!("{pid}-{test}");
        let folder = std::env::temp_dir().join(format!("processes-{pid}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("tmp")).expect("a folder for the test");
        let own = folder.join("run");
        fs::DirBuilder::new().mode(0o700).create(&own).expect("a folder for sockets");
        *NOW.lock().unwrap_or_else(PoisonError::into_inner) = Some((mark.clone(), folder.clone()));
        Before { mark, folder, files: files() }
    }

    /// Panics if something is left. Processes that were told to end, or were killed, get a short time to do so.
    ///
    /// # Panics
    /// Panics if something is left.
    pub fn check(self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut left = processes(&self.mark);
        while !left.is_empty() && Instant::now() < deadline {
            std::thread::yield_now();
            left = processes(&self.mark);
        }
        assert!(left.is_empty(), "processes are left: {left:?}");
        let hosts = hosts::left();
        assert!(hosts.is_empty(), "network namespaces are left: {hosts:?}");
        let new: Vec<PathBuf> = files().difference(&self.files).cloned().collect();
        assert!(new.is_empty(), "files are left: {new:?}");
        let mut own = Vec::new();
        walk(&self.folder, &mut own);
        if !own.is_empty() {
            // The next process of the same user removes the files of killed processes.
            Node::start("sweeper").end();
            own.clear();
            walk(&self.folder, &mut own);
        }
        assert!(own.is_empty(), "files are left: {own:?}");
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns all files in /dev/shm, /tmp and /run with the name of Tieline. Directories do not count: Tieline makes none there, but
/// tests of other crates may make some at the same time.
fn files() -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for place in ["/dev/shm", "/tmp", "/run"] {
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let folder = entry.file_type().is_ok_and(|t| t.is_dir());
            if name.starts_with("tieline") && !folder {
                let _ = found.insert(entry.path());
            }
        }
    }
    found
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            walk(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// Returns the number of processes of this test.
#[must_use]
pub fn count() -> usize {
    processes(&current().0).len()
}

/// Returns the numbers of the processes with the mark. Zombies do not count, because init or their parent will reap them.
fn processes(mark: &str) -> Vec<String> {
    let wanted = format!("{MARK}={mark}\0");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.bytes().all(|b| b.is_ascii_digit()) {
            continue;
        }
        let Ok(environment) = fs::read(entry.path().join("environ")) else { continue };
        if environment.windows(wanted.len()).any(|w| w == wanted.as_bytes()) {
            found.push(name);
        }
    }
    found
}
