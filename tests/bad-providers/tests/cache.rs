//! What a trial in a child process found is remembered: by the process, and by the next one.

mod common;

use common::{open_with, refusal};
use std::process::Command;
use tieline_bad_providers::Directory;

/// The directory to search, for the process that a test starts again.
const DIRECTORY: &str = "TIELINE_TEST_DIRECTORY";

/// The body of the test's second process: prints what is said of the provider `segv`.
fn say(directory: &str) {
    let mode = std::env::var("TIELINE_TEST_MODE").expect("a mode");
    let settings = [("TIELINE_PROVIDER_PATH", directory), ("TIELINE_PROBE", mode.as_str())];
    for _ in 0..2 {
        println!("SAID {}", refusal(&open_with(&[], &settings), "segv").2);
    }
}

#[test]
fn a_crash_is_remembered_until_the_file_changes() {
    if let Ok(directory) = std::env::var(DIRECTORY) {
        return say(&directory);
    }
    let (directory, cache) = (Directory::new(), Directory::new());
    let _ = directory.compile("segv", &["CONSTRUCTOR=raise(SIGSEGV)"]);
    let ask = |mode: &str| -> Vec<bool> {
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
    };
    assert_eq!(ask("nocache"), [false, false]);
    assert!(!cache.path().join("tieline").exists());
    assert_eq!(ask("on"), [false, true]);
    assert_eq!(ask("on"), [true, true]);
    let _ = directory.compile("segv", &["CONSTRUCTOR=raise(SIGSEGV)", "VERSION=\"1.0.1\""]);
    assert_eq!(ask("on"), [false, true]);
}
