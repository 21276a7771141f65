//! Common parts of the suites of this package: this program as the checks' processes, shared objects, a runner that can skip.

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tieline_conformance::child;
use tieline_testing::hang::{self, Limit};

/// `Ok`, or the reason why the test cannot run on this machine. A failure panics.
pub(crate) type Verdict = Result<(), String>;

pub(crate) type Test = (&'static str, fn() -> Verdict);

const LIMIT: Duration = Duration::from_secs(400);

/// Runs the tests whose name contains a word of the command line, or all, one per processor at a time but at most four.
pub(crate) fn run_all(tests: &[Test]) -> ExitCode {
    if let Some(code) = child(&std::env::args_os().skip(1).collect::<Vec<_>>()) {
        return code;
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    let wanted: Vec<&String> = words.iter().filter(|word| !word.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|w| name.contains(*w));
    let chosen: Vec<&Test> = tests.iter().filter(|(name, _)| is_wanted(name)).collect();
    if words.iter().any(|word| word == "--list") {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let at_once = std::thread::available_parallelism().map_or(1, |n| n.get().min(4));
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            let _ = scope.spawn(|| {
                while let Some((name, test)) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let name = *name;
                    let limit = Limit::new(LIMIT, move || expired(name));
                    match catch_unwind(test) {
                        Ok(Ok(())) => println!("test {name} ... ok"),
                        Ok(Err(reason)) => println!("test {name} ... skipped: {reason}"),
                        Err(_) => {
                            println!("test {name} ... FAILED");
                            let _ = failed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    drop(limit);
                }
            });
        }
    });
    if failed.into_inner() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Ends the whole run after a test that hangs, because others wait for the same processes.
fn expired(name: &str) {
    println!("test {name} does not end; what waits for what:");
    print!("{}", hang::told(std::process::id(), &source().join("target")));
    hang::end(std::process::id());
    println!("test {name} ... FAILED");
    std::process::exit(1);
}

/// Returns the program that the suite starts for a check and for a peer: this program.
pub(crate) fn program() -> PathBuf {
    std::env::current_exe().unwrap()
}

pub(crate) fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
