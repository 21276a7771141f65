//! The test suites: built once in the development profile, and counted test by test.

use super::{Count, quiet};
use crate::sh::{cargo, command, lines, root, target, which};
use std::process::Command;

/// The places where tests end a process.
const HOOKS: &str = "tieline-provider-shm/test-hooks";

/// Everything that tests run: the command, the provider files, the examples.
pub(super) fn build() -> Count {
    quiet(&mut cargo(&[
        "build",
        "--workspace",
        "--features",
        HOOKS,
        "--lib",
        "--bins",
        "--examples",
    ]))
}

pub(super) fn tests() -> Count {
    if which("cargo-nextest").is_some() {
        let args = [
            "nextest",
            "run",
            "--workspace",
            "--features",
            HOOKS,
            "--no-fail-fast",
            "--color",
            "never",
        ];
        let output = ["--success-output", "immediate", "--failure-output", "immediate"];
        return nextest(cargo(&args).args(output).env("NEXTEST_HIDE_PROGRESS_BAR", "1"));
    }
    let args = [
        "test",
        "--workspace",
        "--features",
        HOOKS,
        "--lib",
        "--bins",
        "--tests",
        "--no-fail-fast",
        "--",
    ];
    libtest(cargo(&args).arg("--show-output"))
}

pub(super) fn doctests() -> Count {
    libtest(&mut cargo(&["test", "--workspace", "--doc", "--no-fail-fast"]))
}

/// Built with another standard of atomics, so in a directory of its own.
pub(super) fn loom() -> Count {
    let manifest = root().join("providers/shm/Cargo.toml");
    if !std::fs::read_to_string(manifest).is_ok_and(|text| text.contains("loom")) {
        return Count::skip("the provider shm has no loom tests yet");
    }
    let args = ["test", "--release", "-p", "tieline-provider-shm", "--lib", "loom"];
    let mut command = cargo(&args);
    let _ = command
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_TARGET_DIR", target().join("loom"));
    let count = libtest(&mut command);
    if count.passed == 0 && count.failed.is_empty() {
        return Count::one(Err("no loom test ran".into()));
    }
    count
}

/// Counts what nextest says, one test at a time. A test that prints `skipped: reason` counts as skipped.
fn nextest(command: &mut Command) -> Count {
    let mut count = Count::default();
    let mut name = String::new();
    let mut skipped = false;
    let mut failing = false;
    let outcome = lines(command, |line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [
                "PASS" | "SLOW" | "LEAK" | "FAIL" | "SIGABRT" | "SIGSEGV" | "SIGKILL" | "TIMEOUT",
                rest @ ..,
            ] if line.starts_with(' ') && line.contains('[') && !line.contains("TRY") => {
                failing = !matches!(words[0], "PASS" | "SLOW" | "LEAK");
                if words[0] == "SLOW" {
                    println!("{}", line.trim());
                    return;
                }
                // `PASS [   0.003s] (1/9) crate test`: what comes after the last bracket.
                let after = line.rfind([']', ')']).map_or("", |at| &line[at + 1..]);
                let told = after.trim().to_owned();
                let again = told == name;
                name = if told.is_empty() { rest.join(" ") } else { told };
                if again {
                    return; // nextest repeats failures at the end
                }
                skipped = false;
                if failing {
                    if !count.failed.contains(&name) {
                        count.failed.push(name.clone());
                    }
                } else {
                    count.passed += 1;
                }
                println!("{}", line.trim());
            }
            _ if line.trim_start().starts_with("skipped: ") && !skipped && !failing => {
                skipped = true;
                count.passed = count.passed.saturating_sub(1);
                count
                    .skipped
                    .push(format!("{name}: {}", line.trim().trim_start_matches("skipped: ")));
            }
            ["Summary", ..] | ["error:", ..] | ["error[", ..] => println!("{}", line.trim()),
            _ if failing || line.starts_with("error") || line.starts_with("warning") => {
                println!("{line}")
            }
            _ => {}
        }
    });
    ended(count, outcome)
}

/// Counts what the built-in test runner says.
fn libtest(command: &mut Command) -> Count {
    let mut count = Count::default();
    let mut said = Vec::new();
    let mut section = String::new();
    let outcome = lines(command, |line| {
        said.push(line.to_owned());
        if let Some(test) = line.strip_prefix("test ") {
            if test.ends_with(" ... ok") {
                count.passed += 1;
            } else if let Some(name) = test.strip_suffix(" ... FAILED") {
                count.failed.push(name.to_owned());
            } else if test.contains(" ... ignored") {
                count.skipped.push(test.to_owned());
            }
        } else if let Some(name) = line.strip_prefix("---- ") {
            section = name.split(" stdout").next().unwrap_or(name).to_owned();
        } else if let (Some(reason), false) = (line.strip_prefix("skipped: "), section.is_empty()) {
            count.passed = count.passed.saturating_sub(1);
            count.skipped.push(format!("{section}: {reason}"));
            section.clear();
        }
        if line.starts_with("test result:") {
            println!("{line}");
        }
    });
    if !matches!(outcome, Ok(true)) {
        said.iter().for_each(|line| println!("{line}"));
    }
    ended(count, outcome)
}

/// A suite that fails without a failing test did not build, or was ended.
fn ended(mut count: Count, outcome: Result<bool, String>) -> Count {
    match outcome {
        Ok(true) => {}
        Ok(false) if count.failed.is_empty() => {
            count.failed.push("the suite did not run to its end".into())
        }
        Ok(false) => {}
        Err(text) => count.failed.push(text),
    }
    count
}

/// The program of the command, in the development profile.
pub(super) fn tieline(args: &[&str]) -> Command {
    command(target().join("debug/tieline"), args)
}
