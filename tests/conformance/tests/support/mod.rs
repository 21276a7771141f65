//! What both suites of this package need: the program under test, shared objects, a runner that can skip.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// `Ok`, or why the test cannot be run here. A failure panics.
pub(crate) type Verdict = Result<(), String>;

/// Its name, and what it does.
pub(crate) type Test = (&'static str, fn() -> Verdict);

/// Runs those whose name contains a word of the command line, or all.
pub(crate) fn run_all(tests: &[Test]) -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let mut failed = 0;
    for (name, test) in tests {
        if !wanted.is_empty() && !wanted.iter().any(|w| name.contains(w.as_str())) {
            continue;
        }
        match std::panic::catch_unwind(test) {
            Ok(Ok(())) => println!("test {name} ... ok"),
            Ok(Err(reason)) => println!("test {name} ... skipped: {reason}"),
            Err(_) => {
                println!("test {name} ... FAILED");
                failed += 1;
            }
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The program under test; cargo puts shared objects beside it.
pub(crate) fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_tieline-conformance"))
}

pub(crate) fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Builds a package's shared object with this test's own profile.
pub(crate) fn built(package: &str, library: &str) -> PathBuf {
    let folder = binary().parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    let cargo = cargo
        .current_dir(source())
        .args(["build", "--quiet", "--package", package, "--target-dir"])
        .arg(folder.parent().unwrap());
    if folder.ends_with("release") {
        let _ = cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "{cargo:?}");
    folder.join(library)
}
