//! The test suites. Except for loom, they are built in the development profile with the same features, so that packages are not
//! built twice. Results are counted per test.

use super::{Count, least};
use crate::sh::{LIMIT, Outcome, cargo, command, lines, packages, target, which, within};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::OnceLock;
use tieline_testing::{built, hang};

/// The features with hooks by which tests end or stop a process. The suites except loom are built with these features, so that
/// packages are not built twice.
pub(super) const HOOKS: [&str; 2] = [
    "--features",
    "tieline-provider-shm/test-hooks,tieline-provider-shm-cma/test-hooks,tieline-processes/test-hooks",
];

/// Builds the files that tests run: the command, the provider files, the examples, and the tests.
pub(super) fn build() -> Count {
    Count::one(built().clone())
}

fn built() -> &'static Outcome {
    static BUILT: OnceLock<Outcome> = OnceLock::new();
    BUILT.get_or_init(|| {
        println!("building the command, providers, examples and tests: some minutes from nothing");
        let mut said = Vec::new();
        let mut build = cargo(&["build", "--workspace", "--all-targets"]);
        let outcome = lines(build.args(HOOKS), |line| said.push(line.to_owned()));
        super::told(outcome, &said)
    })
}

/// Runs a check that needs the programs of the build. If the check runs alone, the build runs first, with its own time limit.
pub(super) fn with_build(check: impl FnOnce() -> Count) -> Count {
    match within(LIMIT, built) {
        Ok(()) => check(),
        Err(text) => Count::one(Err(format!("it needs the build: {text}"))),
    }
}

/// Builds the programs of the lab's hosts, if only the lab runs: the same files as [`build`] makes, without the tests.
pub(crate) fn build_for_the_lab() -> Count {
    println!("building what the lab runs");
    let args = ["build", "--workspace", "--lib", "--bins", "--examples"];
    super::quiet(cargo(&args).args(HOOKS))
}

/// Runs built test programs by their names, and of their tests those with `filter` in their names.
fn built_tests(names: &[&str], filter: &str) -> Count {
    let mut test = cargo(&["test", "--workspace", "--no-fail-fast"]);
    let _ = test.args(HOOKS).args(names.iter().flat_map(|name| ["--test", name]));
    libtest(test.args(["--", filter]).env(built::GIVEN, target().join("debug")))
}

/// Runs the tests of the workspace except the test programs of [`OTHERS`].
pub(super) fn tests() -> Count {
    if which("cargo-nextest").is_some() {
        let others = OTHERS.map(|package| format!("package({package})")).join(" or ");
        let filter = format!("not (kind(test) and ({others}))");
        let mut told = nextest(&["--workspace", "-E", &filter]);
        told.packages.iter().for_each(|(package, ran)| println!("{package}: {ran} tests ran"));
        if told.count.failed.is_empty() {
            told.count.failed = least::missing(&told.packages);
        }
        return told.count;
    }
    let names = match test_programs() {
        Ok(names) => names,
        Err(text) => return Count::one(Err(text)),
    };
    // The command selects the whole workspace: with fewer packages, cargo builds some dependencies with other features.
    let mut test = cargo(&["test", "--workspace", "--no-fail-fast", "--lib", "--bins"]);
    let _ = test.args(names.iter().flat_map(|name| ["--test", name]));
    let _ = test.args(HOOKS).args(["--", "--show-output"]);
    least::or_failed("tests", libtest(test.env(built::GIVEN, target().join("debug"))))
}

fn test_programs() -> Outcome<Vec<String>> {
    let mut names = Vec::new();
    for package in packages(&["--no-deps"])? {
        let is_other = OTHERS.iter().any(|other| package["name"] == *other);
        for target in package["targets"].as_array().into_iter().flatten() {
            if !is_other && target["kind"][0] == "test" {
                names.extend(target["name"].as_str().map(str::to_owned));
            }
        }
    }
    Ok(names)
}

/// The packages whose test programs have their own runners: see [`processes_and_conformance`].
const OTHERS: [&str; 2] = ["tieline-processes", "tieline-conformance"];

/// Runs the tests in the libraries and programs of these packages and of the packages that depend on them; without cargo-nextest,
/// of all packages.
pub(super) fn unit_tests(packages: &[String]) -> Count {
    let units = ["--workspace", "--lib", "--bins"];
    if which("cargo-nextest").is_some() {
        let depend = packages.iter().map(|name| format!("rdeps(={name})")).collect::<Vec<_>>();
        return nextest(&[&units[..], &["-E", &depend.join(" + ")]].concat()).count;
    }
    libtest(cargo(&["test", "--no-fail-fast"]).args(units).args(HOOKS))
}

/// Runs the tests with real processes and, at the same time, the tests of the conformance suite over providers: each leaves the
/// processors idle while it waits.
pub(super) fn processes_and_conformance() -> Count {
    let conformance =
        || least::or_failed("conformance", built_tests(&["providers", "networks"], ""));
    std::thread::scope(|scope| {
        let beside = scope.spawn(conformance);
        let mut count = least::or_failed("processes", built_tests(&["processes"], ""));
        let conformance = beside.join();
        count.add(conformance.unwrap_or_else(|_| Count::one(Err("conformance panicked".into()))));
        count
    })
}

/// Runs the conformance suite on providers with known bugs, each of which the suite has to detect.
pub(super) fn mutations() -> Count {
    least::or_failed("mutations", built_tests(&["mutations"], ""))
}

pub(super) fn page_of_checks() -> Count {
    let page = built_tests(&["mutations"], "the_page_of_checks_is_fresh");
    least::or_failed("page of checks", page)
}

pub(super) fn doctests() -> Count {
    let mut command = cargo(&["test", "--workspace", "--doc", "--no-fail-fast"]);
    least::or_failed("doctests", libtest(command.args(HOOKS)))
}

/// Runs the loom tests, which are built with replaced atomics and therefore in a separate directory.
pub(super) fn loom() -> Count {
    let args = ["test", "--release", "-p", "tieline-provider-shm", "--lib", "loom"];
    let mut command = cargo(&args);
    let _ = command
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_TARGET_DIR", target().join("loom"));
    least::or_failed("loom", libtest(&mut command))
}

fn nextest(words: &[&str]) -> Nextest {
    let args = ["nextest", "run", "--no-fail-fast", "--no-tests", "pass", "--color", "never"];
    let mut command = cargo(&args);
    let output = ["--success-output", "immediate", "--failure-output", "immediate"];
    let _ = command.args(words).args(HOOKS).args(output).env("NEXTEST_HIDE_PROGRESS_BAR", "1");
    let mut told = Nextest::default();
    let outcome = lines(command.env(built::GIVEN, target().join("debug")), |line| {
        if told.hear(line) {
            println!("{}", line.trim_end());
        }
        if told.is_slow(line) {
            println!("what waits for what now:");
            print!("{}", hang::told(std::process::id(), &target()));
        }
    });
    told.count = ended(std::mem::take(&mut told.count), outcome);
    told
}

/// Counts nextest's results for each test. A test that prints `skipped: reason` counts as skipped.
#[derive(Default)]
struct Nextest {
    count: Count,
    /// The name of the test whose output is being read.
    name: String,
    failing: bool,
    skipped: bool,
    /// The number of tests of each package that ran, without skipped tests.
    packages: BTreeMap<String, usize>,
    slow: BTreeSet<String>,
}

impl Nextest {
    /// Handles one line; returns whether the line should be printed.
    fn hear(&mut self, line: &str) -> bool {
        if let Some((passed, name)) = verdict(line) {
            return self.ended(passed, name);
        }
        if let Some(reason) = skip_reason(line) {
            if !self.skipped && !self.failing {
                self.skipped = true;
                self.count.passed = self.count.passed.saturating_sub(1);
                self.count.skipped.push(format!("{}: {reason}", self.name));
                let ran = self.packages.entry(package(&self.name).to_owned()).or_default();
                *ran = ran.saturating_sub(1);
            }
            return false;
        }
        let first = line.split_whitespace().next().unwrap_or("");
        self.failing
            || first == "Summary"
            || line.starts_with("error")
            || line.starts_with("warning")
    }

    /// Checks whether a line reports a slow test, which is then printed once for that test.
    fn is_slow(&mut self, line: &str) -> bool {
        let line = line.trim_start();
        line.starts_with("SLOW")
            && line.split_once(']').is_some_and(|(_, name)| self.slow.insert(name.trim().into()))
    }

    fn ended(&mut self, passed: bool, name: &str) -> bool {
        if self.count.failed.iter().any(|failed| failed == name) {
            return false; // failures are listed once more at the end
        }
        name.clone_into(&mut self.name);
        (self.failing, self.skipped) = (!passed, false);
        *self.packages.entry(package(name).to_owned()).or_default() += 1;
        match passed {
            true => self.count.passed += 1,
            false => self.count.failed.push(name.to_owned()),
        }
        true
    }
}

fn package(name: &str) -> &str {
    let binary = name.split_whitespace().next().unwrap_or("");
    binary.split("::").next().unwrap_or("")
}

/// Parses a line such as `    PASS [   0.003s] (1/9) crate test`: returns whether the test passed, and the text after the last
/// bracket.
fn verdict(line: &str) -> Option<(bool, &str)> {
    let rest = line.strip_prefix("  ")?.trim_start();
    let word = rest.split_whitespace().next()?;
    let passed = match word {
        "PASS" | "LEAK" => true,
        "FAIL" | "TIMEOUT" => false,
        _ if word.starts_with("SIG") || word.starts_with("FAIL") => false,
        _ => return None,
    };
    let name = rest.get(rest.find(']')? + 1..)?.trim_start();
    // A position such as `(12/345)` may precede the name.
    let name = if name.starts_with('(') { name.get(name.find(')')? + 1..)?.trim() } else { name };
    Some((passed, name))
}

/// Returns the reason in `skipped: reason`, including at the end of a test runner's line.
fn skip_reason(line: &str) -> Option<&str> {
    let line = line.trim();
    line.strip_prefix("skipped: ").or_else(|| {
        let (test, reason) = line.split_once(" ... skipped: ")?;
        test.starts_with("test ").then_some(reason)
    })
}

pub(super) fn libtest(command: &mut Command) -> Count {
    let (mut told, mut said) = (Libtest::default(), Vec::new());
    let outcome = lines(command, |line| {
        if told.hear(line) {
            println!("{line}");
        }
        said.push(line.to_owned());
    });
    if !matches!(outcome, Ok(true)) {
        said.iter().for_each(|line| println!("{line}"));
    }
    told.ended(outcome)
}

/// Counts the results of the built-in test runner. A test that prints `skipped: reason` counts as skipped.
#[derive(Default)]
struct Libtest {
    count: Count,
    /// The name of the test whose output is being read, unless it was reported as skipped.
    section: String,
    slow: BTreeSet<String>,
}

impl Libtest {
    /// Handles one line; returns whether the line should be printed immediately.
    fn hear(&mut self, line: &str) -> bool {
        if let Some(name) = slow(line) {
            return self.slow.insert(name.to_owned());
        }
        if let Some(test) = line.strip_prefix("test ") {
            let _ = self.slow.remove(test.split(" ... ").next().unwrap_or(test));
            if test.ends_with(" ... ok") {
                self.count.passed += 1;
            } else if let Some(name) = test.strip_suffix(" ... FAILED") {
                self.count.failed.push(name.to_owned());
            } else if test.contains(" ... ignored") || test.contains(" ... skipped") {
                self.count.skipped.push(test.to_owned());
            }
        } else if let Some(name) = line.strip_prefix("---- ") {
            name.split(" stdout").next().unwrap_or(name).clone_into(&mut self.section);
        } else if let (Some(reason), false) =
            (line.strip_prefix("skipped: "), self.section.is_empty())
        {
            self.count.passed = self.count.passed.saturating_sub(1);
            self.count.skipped.push(format!("{}: {reason}", self.section));
            self.section.clear();
        }
        line.starts_with("test result:")
    }

    /// Handles the end of the program. If the program was ended by the time limit, the error names the processes for which it
    /// waited.
    fn ended(mut self, outcome: Result<bool, String>) -> Count {
        if outcome.is_err() {
            let hangs = self.slow.into_iter().map(|name| format!("{name} does not end"));
            self.count.failed.extend(hangs);
        }
        ended(self.count, outcome)
    }
}

/// Returns the slow test in `test NAME has been running for over 60 seconds`.
fn slow(line: &str) -> Option<&str> {
    let (name, _) = line.strip_prefix("test ")?.split_once(" has been running for over ")?;
    Some(name)
}

/// Returns the count of a suite. A suite that fails without a failing test did not build, or was ended.
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
        assert_eq!(told.packages["tieline"], 1, "those that were skipped did not run");
        assert_eq!(told.packages["tieline-conformance"], 0);
    }

    #[test]
    fn a_slow_test_is_told_once_and_fails_when_it_is_ended() {
        let mut told = Nextest::default();
        let line = "        SLOW [> 60.000s] (─────────) tieline::over_tcp hangs";
        assert!(told.is_slow(line) && !told.is_slow(line));
        let _ = told.hear("     TIMEOUT [ 180.004s] (2/3) tieline::over_tcp hangs");
        assert_eq!(told.count.failed, ["tieline::over_tcp hangs"]);
    }

    #[test]
    fn a_test_that_hangs_in_a_program_that_is_ended_is_named() {
        let mut told = Libtest::default();
        for slow in ["a::b", "c"] {
            assert!(told.hear(&format!("test {slow} has been running for over 60 seconds")));
        }
        assert!(!told.hear("test c ... ok"));
        let count = told.ended(Err("it did not end and was ended".into()));
        assert_eq!(count.passed, 1);
        assert_eq!(count.failed, ["a::b does not end", "it did not end and was ended"]);
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
