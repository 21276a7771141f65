//! The test suites: built once in the development profile, and counted test by test.

use super::{Count, quiet};
use crate::sh::{cargo, command, lines, root, target, which};
use std::process::Command;

/// The places where tests end or stop a process.
const HOOKS: &str = "tieline-provider-shm/test-hooks,tieline-provider-shm-cma/test-hooks";

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
            "--exclude",
            "tieline-processes",
            "--exclude",
            "tieline-conformance",
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
        "--exclude",
        "tieline-processes",
        "--exclude",
        "tieline-conformance",
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

/// Tests with real processes bring their own runner: they are killed, locked away and counted by it.
pub(super) fn processes() -> Count {
    at_least(
        20,
        libtest(&mut cargo(&["test", "-p", "tieline-processes", "--features", "test-hooks"])),
    )
}

/// Conformance over every provider of the workspace, in processes of its own.
pub(super) fn conformance() -> Count {
    at_least(8, libtest(&mut cargo(&["test", "-p", "tieline-conformance"])))
}

/// A suite whose tests were not found must not look like one that passed.
fn at_least(tests: usize, mut count: Count) -> Count {
    if count.failed.is_empty() && count.passed + count.skipped.len() < tests {
        count.failed.push(format!("fewer than {tests} tests ran"));
    }
    count
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

fn nextest(command: &mut Command) -> Count {
    let mut told = Nextest::default();
    let outcome = lines(command, |line| {
        if told.hear(line) {
            println!("{}", line.trim_end());
        }
    });
    ended(told.count, outcome)
}

/// Counts what nextest says, one test at a time. A test that prints `skipped: reason` counts as skipped.
#[derive(Default)]
struct Nextest {
    count: Count,
    /// The test whose output comes now.
    name: String,
    failing: bool,
    skipped: bool,
}

impl Nextest {
    /// Takes one line; says whether a reader wants to see it.
    fn hear(&mut self, line: &str) -> bool {
        if let Some((passed, name)) = verdict(line) {
            return self.ended(passed, name);
        }
        if let Some(reason) = skip_reason(line) {
            if !self.skipped && !self.failing {
                self.skipped = true;
                self.count.passed = self.count.passed.saturating_sub(1);
                self.count.skipped.push(format!("{}: {reason}", self.name));
            }
            return false;
        }
        let first = line.split_whitespace().next().unwrap_or("");
        self.failing
            || first == "Summary"
            || line.starts_with("error")
            || line.starts_with("warning")
    }

    fn ended(&mut self, passed: bool, name: &str) -> bool {
        if self.count.failed.iter().any(|failed| failed == name) {
            return false; // failures are listed once more at the end
        }
        name.clone_into(&mut self.name);
        (self.failing, self.skipped) = (!passed, false);
        match passed {
            true => self.count.passed += 1,
            false => self.count.failed.push(name.to_owned()),
        }
        true
    }
}

/// `    PASS [   0.003s] (1/9) crate test`: how it ended, and what comes after the last bracket.
fn verdict(line: &str) -> Option<(bool, &str)> {
    let rest = line.strip_prefix("  ")?.trim_start();
    let word = rest.split_whitespace().next()?;
    let passed = match word {
        "PASS" | "LEAK" => true,
        "FAIL" | "TIMEOUT" => false,
        _ if word.starts_with("SIG") => false,
        _ => return None,
    };
    let name = rest.get(rest.find(']')? + 1..)?.trim_start();
    // A position such as `(12/345)` may stand before the name.
    let name = if name.starts_with('(') { name.get(name.find(')')? + 1..)?.trim() } else { name };
    Some((passed, name))
}

/// The reason in `skipped: reason`, also as the end of a test runner's own line.
fn skip_reason(line: &str) -> Option<&str> {
    let line = line.trim();
    line.strip_prefix("skipped: ").or_else(|| {
        let (test, reason) = line.split_once(" ... skipped: ")?;
        test.starts_with("test ").then_some(reason)
    })
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
            } else if test.contains(" ... ignored") || test.contains(" ... skipped") {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(text: &str) -> Nextest {
        let mut told = Nextest::default();
        for line in text.lines() {
            let _ = told.hear(line);
        }
        told
    }

    #[test]
    fn a_test_that_says_it_was_skipped_is_no_pass() {
        let told = heard(
            "        PASS [   0.009s] (1/3) tieline::bin/tieline a::b\n\
             \x20 stdout ───\n\
             \x20   skipped: needs root\n\
             \x20   skipped: and said twice\n\
             \x20       PASS [   0.007s] tieline-conformance::providers shm/am\n\
             \x20   test shm/am ... skipped: no such module\n\
             \x20       PASS [   0.007s] (3/3) tieline c\n\
             \x20    Summary [   0.011s] 3 tests run: 3 passed, 21 skipped\n",
        );
        assert_eq!(told.count.passed, 1);
        assert_eq!(
            told.count.skipped,
            [
                "tieline::bin/tieline a::b: needs root",
                "tieline-conformance::providers shm/am: no such module"
            ]
        );
        assert!(told.count.failed.is_empty());
    }

    #[test]
    fn a_failure_counts_once_however_often_it_is_listed() {
        let told = heard(
            "        FAIL [   0.002s] (1/3) crate a\n\
             \x20     SIGKILL [   0.002s] (2/3) crate b\n\
             \x20       PASS [   0.007s] (3/3) crate c\n\
             ────────────\n\
             \x20    Summary [   0.011s] 3 tests run: 1 passed, 2 failed\n\
             \x20       FAIL [   0.002s] (1/3) crate a\n\
             \x20     SIGKILL [   0.002s] (2/3) crate b\n",
        );
        assert_eq!(told.count.passed, 1);
        assert_eq!(told.count.failed, ["crate a", "crate b"]);
    }
}
