//! Tests of the cached result of a trial in a child process: within the process, and for later processes.

mod common;

use common::{open_with, refusal};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};
use tieline_bad_providers::Directory;

/// The variable with the directory to search, for the process that a test starts.
const DIRECTORY: &str = "TIELINE_TEST_DIRECTORY";

/// Prints the refusal of the provider `segv`, in the second process of the test.
fn say(directory: &str) {
    let mode = std::env::var("TIELINE_TEST_MODE").expect("a mode");
    let settings = [("TIELINE_PROVIDER_PATH", directory), ("TIELINE_PROBE", mode.as_str())];
    for _ in 0..2 {
        println!("SAID {}", refusal(&open_with(&[], &settings), "segv").2);
    }
}

/// Starts a new process, and returns for each of two results whether it came from the cache.
fn ask(directory: &Directory, cache: &Directory, mode: &str) -> Vec<bool> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_crash_is_remembered_until_the_file_changes", "--nocapture"])
        .env(DIRECTORY, directory.path())
        .env("TIELINE_TEST_MODE", mode)
        .env("XDG_CACHE_HOME", cache.path())
        .output()
        .expect("this program again");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    let said = text.lines().filter_map(|line| line.split_once("SAID ")).map(|(_, said)| said);
    said.inspect(|said| assert!(said.contains("killed by SIGSEGV"), "{said}"))
        .map(|said| said.contains("remembered"))
        .collect()
}

#[test]
fn a_crash_is_remembered_until_the_file_changes() {
    if let Ok(directory) = std::env::var(DIRECTORY) {
        return say(&directory);
    }
    let (directory, cache) = (Directory::new(), Directory::new());
    let _ = directory.compile("segv", &["CONSTRUCTOR=raise(SIGSEGV)"]);
    let ask = |mode: &str| ask(&directory, &cache, mode);
    assert_eq!(ask("nocache"), [false, false]);
    assert!(!cache.path().join("tieline").exists());
    assert_eq!(ask("on"), [false, true]);
    assert_eq!(ask("on"), [true, true]);
    let _ = directory.compile("segv", &["CONSTRUCTOR=raise(SIGSEGV)", "VERSION=\"1.0.1\""]);
    assert_eq!(ask("on"), [false, true]);
}

#[test]
fn cached_crash_is_valid_for_a_day_and_only_from_private_file() {
    let (directory, cache) = (Directory::new(), Directory::new());
    let _ = directory.compile("segv", &["CONSTRUCTOR=raise(SIGSEGV)"]);
    assert_eq!(ask(&directory, &cache, "on"), [false, true]);
    let file = cache.path().join("tieline/probes");
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let written = fs::read_to_string(&file).unwrap();
    // The eighth word is the time of the trial. Valid providers beside this program have separate lines.
    let line = written.lines().find(|line| line.contains("SIGSEGV")).expect("what was found");
    let found_at = |at: u64| {
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        words[7] = at.to_string();
        fs::write(&file, words.join(" ") + "\n").unwrap();
        ask(&directory, &cache, "on")[0]
    };
    assert!(found_at(now - 23 * 3600));
    assert!(!found_at(now - 25 * 3600));
    assert!(!found_at(now + 3600), "nothing is known of the future");
    for (others_may_write, believed) in [(0o600, true), (0o620, false), (0o602, false)] {
        let _ = found_at(now);
        fs::set_permissions(&file, fs::Permissions::from_mode(others_may_write)).unwrap();
        assert_eq!(ask(&directory, &cache, "on")[0], believed, "{others_may_write:o}");
    }
}
