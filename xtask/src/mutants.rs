//! `cargo xtask mutants`: breaks the promises of `promises.txt` in a copy of the tree, one at a time, and checks that a test fails
//! for each.
//!
//! cargo-mutants makes random changes (`.cargo/mutants.toml`).

use crate::package::{files, known_to_git};
use crate::sh::{
    Outcome, bytes, cargo, lines, make_folder, on, read, root, show_time, target, which, within,
    write,
};
use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const TABLE: &str = include_str!("../promises.txt");

/// The packages whose tests may detect a change below a directory. Later packages are tested if earlier ones detect nothing.
const NEAR: &[(&str, &[&str])] = &[
    ("choose/", &["tieline-choose", "tieline tieline-fake", LAST]),
    ("core/", &["tieline", "tieline-fake tieline-bad-providers", ABOVE, LAST]),
    ("host/", &["tieline-host", "tieline tieline-fake tieline-bad-providers", ABOVE, LAST]),
    ("lookup/", &["tieline-lookup", "tieline tieline-fake", LAST]),
    ("net/", &["tieline-net", "tieline-provider-tcp tieline-provider-verbs tieline-job", LAST]),
    ("order/", &["tieline-order", "tieline tieline-fake", LAST]),
    ("providers/memory-file/", &["tieline-memory-file tieline-provider-shm-cma", SHM, LAST]),
    ("providers/shm-knem/", &["tieline-provider-shm-knem"]),
    (
        "providers/single-copy/",
        &["tieline-single-copy", "tieline-provider-shm-knem tieline-provider-shm-xpmem"],
    ),
    ("providers/shm/", &[SHM, "tieline tieline-fake tieline-runtime", LAST]),
    ("providers/tcp/", &["tieline-provider-tcp", "tieline tieline-runtime", LAST]),
    ("providers/verbs/", &["tieline-provider-verbs", "tieline-tools"]),
    ("tag/", &["tieline-tag", "tieline-runtime"]),
    (
        "trial/",
        &["tieline-trial", "tieline-host tieline-provider-ofi", "tieline-bad-providers", LAST],
    ),
    ("wireup/", &["tieline-wireup", "tieline tieline-fake", LAST]),
];
const SHM: &str = "tieline-provider-shm";
const ABOVE: &str = "tieline-tools tieline-runtime tieline-capi tieline-provider-verbs";
/// The packages that are tested last. They have their own runners, and their tests start processes and need seconds each.
const LAST: &str = "tieline-conformance tieline-processes";
/// The packages whose tests end a process in the middle of a call, with the feature of the hooks.
const HOOKS: [&str; 3] = [SHM, "tieline-provider-shm-cma", "tieline-processes"];

/// The time limit for the tests of one change, including their build.
const LIMIT: Duration = Duration::from_secs(2 * 60 * 60);

/// A line of the table: a promise that is broken.
struct Promise {
    file: &'static str,
    place: &'static str,
    becomes: &'static str,
    broken: &'static str,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.broken)
    }
}

fn promises() -> Outcome<Vec<Promise>> {
    let (mut file, mut all) = ("", Vec::new());
    for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let Some(promise) = line.strip_prefix("  ") else {
            file = line;
            continue;
        };
        let &[broken, place, " -> ", becomes, ""] = &*promise.split('`').collect::<Vec<_>>() else {
            return Err(format!("promises.txt: `{line}` is no promise"));
        };
        let broken = broken.trim_end_matches(": ");
        all.push(Promise { file, place, becomes, broken });
    }
    Ok(all)
}

impl Promise {
    fn near(&self) -> Outcome<&'static [&'static str]> {
        let near = NEAR.iter().find(|(folder, _)| self.file.starts_with(folder));
        near.map(|(_, packages)| *packages).ok_or(format!("no tests are near {}", self.file))
    }

    /// Returns the file's text without the promise.
    fn broken_in(&self, text: &str) -> Outcome<String> {
        let Promise { file, place, becomes, .. } = self;
        let parts: Vec<&str> = text.split(place).collect();
        let &[before, after] = &*parts else {
            return Err(format!("promises.txt: `{place}` is {} times in {file}", parts.len() - 1));
        };
        if !place.starts_with("fn ") {
            return Ok(format!("{before}{becomes}{after}"));
        }
        let (rest, body) =
            after.split_once(" {\n").ok_or(format!("{file}: {place} has no body"))?;
        Ok(format!("{before}{place}{rest} {{ return {becomes};\n{body}"))
    }

    /// Returns the verdict of the tests near the promise. These tests have to pass without a change first.
    fn verdict(&self, tree: &Path, sound: &mut HashSet<&str>) -> Outcome<Verdict> {
        let file = tree.join(self.file);
        let text = read(&file)?;
        let broken = self.broken_in(&text)?;
        let mut verdict = Verdict::Missed;
        for packages in self.near()? {
            if sound.insert(packages) {
                let passed = ask(tree, packages)?;
                if !matches!(passed, Verdict::Missed) {
                    return Err(format!("the tests have to pass without a change: {passed}"));
                }
            }
            write(&file, &broken)?;
            let asked = ask(tree, packages);
            write(&file, &text)?;
            match asked? {
                Verdict::Missed => {}
                caught @ Verdict::Caught(_) => return Ok(caught),
                hang => verdict = hang,
            }
        }
        Ok(verdict)
    }
}

pub(crate) fn run(words: &[&str]) -> Outcome {
    let (is_list, filters) = match words {
        ["--list", filters @ ..] => (true, filters),
        filters => (false, filters),
    };
    if filters.iter().any(|word| word.starts_with('-')) {
        return Err("mutants [--list] [FILTER...]".into());
    }
    let mut promises = promises()?;
    promises.retain(|promise| {
        let name = promise.to_string();
        filters.is_empty() || filters.iter().any(|filter| name.contains(filter))
    });
    if promises.is_empty() {
        return Err("no promise has that in its name".into());
    }
    if is_list {
        promises.iter().for_each(|promise| println!("{promise}"));
        return Ok(());
    }
    if which("cargo-nextest").is_none() {
        return Err("it needs cargo-nextest: cargo install cargo-nextest --locked".into());
    }
    let tree = target().join("mutants/tree");
    copy(&tree)?;
    let (mut sound, mut unnoticed) = (HashSet::new(), Vec::new());
    for promise in &promises {
        let began = Instant::now();
        let verdict = promise.verdict(&tree, &mut sound)?;
        let line = format!("{verdict}: {promise}");
        println!("{line} ({})", show_time(began.elapsed()));
        if !matches!(verdict, Verdict::Caught(_)) {
            unnoticed.push(line);
        }
    }
    println!("\n{} of {} are caught", promises.len() - unnoticed.len(), promises.len());
    if unnoticed.is_empty() { Ok(()) } else { Err(unnoticed.join("\n")) }
}

enum Verdict {
    Caught(String),
    /// This test has reached its time limit, and no other test has failed.
    Hang(String),
    Missed,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Caught(by) => write!(f, "caught by {by}"),
            Verdict::Hang(by) => write!(f, "HANG in {by}"),
            Verdict::Missed => f.write_str("MISSED"),
        }
    }
}

/// Runs the tests of these packages until some fail. A failure has precedence over a hang.
fn ask(tree: &Path, packages: &str) -> Outcome<Verdict> {
    let (mut caught, mut hung, mut said) = (None, None, Vec::new());
    let hear = |line: &str| {
        if let Some((verdict, test)) = noticed(line) {
            let first = if verdict == "TMT" { &mut hung } else { &mut caught };
            let _ = first.get_or_insert(test.to_owned());
        }
        said.push(line.to_owned());
    };
    let well = within(LIMIT, || lines(&mut tests_of(packages, tree), hear))?;
    match (caught, hung) {
        (Some(test), _) => Ok(Verdict::Caught(test)),
        (None, Some(test)) => Ok(Verdict::Hang(test)),
        (None, None) if well => Ok(Verdict::Missed),
        (None, None) => {
            said.iter().for_each(|line| println!("{line}"));
            Err(format!("the tests of {packages} do not run"))
        }
    }
}

/// Returns the result of a test that did not pass, and its name; for nextest, the result of the second attempt.
fn noticed(line: &str) -> Option<(&str, &str)> {
    if let Some((name, _)) = line.strip_prefix("test ").and_then(|l| l.split_once(" ... FAILED")) {
        return Some(("FAIL", name));
    }
    let (verdict, name) = line.trim_start().strip_prefix("TRY 2 ")?.split_once(" [")?;
    let is_over = !["PASS", "LEAK", "SLOW", "TRMNTG"].contains(&verdict);
    is_over.then_some((verdict, name.split_once(") ")?.1))
}

/// Returns the command that runs the tests of these packages in the copy, without lints.
fn tests_of(packages: &str, tree: &Path) -> Command {
    let nextest = ["nextest", "run", "--max-fail=3", "--retries=1", "--color=never"];
    let mut cargo = cargo(if packages == LAST { &["test"] } else { &nextest });
    let _ = cargo
        .current_dir(tree)
        .env("CARGO_TARGET_DIR", target().join("mutants/build"))
        .env("RUSTFLAGS", "--cap-lints allow")
        .env("PROPTEST_FAILURE_PERSISTENCE", "off");
    for package in packages.split(' ') {
        let _ = cargo.args(["--package", package]);
        if HOOKS.contains(&package) {
            let _ = cargo.args(["--features", &format!("{package}/test-hooks")]);
        }
    }
    cargo
}

/// Copies the files that git knows. A file that has not changed keeps its time, so that cargo does not build it again.
fn copy(tree: &Path) -> Outcome {
    let names = known_to_git()?;
    for file in files(tree).unwrap_or_default() {
        let name = file.strip_prefix(tree).unwrap_or(&file).to_string_lossy();
        if names.binary_search(&name.into_owned()).is_err() {
            let _ = std::fs::remove_file(file);
        }
    }
    for name in names {
        let (from, to) = (root().join(&name), tree.join(&name));
        let bytes = bytes(&from)?;
        if std::fs::read(&to).ok() != Some(bytes) {
            make_folder(to.parent().unwrap_or(tree))?;
            let _ = on(&from, std::fs::copy(&from, &to))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_promise_is_in_its_file_once_and_has_tests_near() {
        let all = promises().unwrap();
        assert!(all.len() >= 78, "{} promises", all.len());
        for promise in all {
            let text = std::fs::read_to_string(root().join(promise.file)).unwrap();
            assert_ne!(promise.broken_in(&text).unwrap(), text, "{promise}");
            assert!(promise.near().is_ok(), "{promise}");
        }
    }

    #[test]
    fn a_function_returns_at_once_and_other_texts_are_replaced() {
        let text = "fn f(\n    a: u32,\n) -> u32 {\n    note(a);\n    a + 1\n}\n";
        let broken =
            |place, becomes| Promise { file: "f.rs", place, becomes, broken: "" }.broken_in(text);
        assert_eq!(broken("a + 1", "a"), Ok(text.replace("a + 1", "a")));
        assert_eq!(broken("note(a);", ""), Ok(text.replace("note(a);", "")));
        assert_eq!(broken("fn f(", "7"), Ok(text.replace("{\n", "{ return 7;\n")));
        assert!(broken("a", "b").unwrap_err().contains("is 3 times in f.rs"));
        assert!(broken("c", "b").unwrap_err().contains("is 0 times in f.rs"));
    }

    #[test]
    fn a_test_that_fails_twice_is_told_from_one_that_hangs() {
        let fail = "  TRY 2 FAIL [   0.092s] (3/4) tieline::over_tcp a::b";
        assert_eq!(noticed(fail), Some(("FAIL", "tieline::over_tcp a::b")));
        assert_eq!(noticed("  TRY 2 TMT [   2.006s] (4/4) tieline c"), Some(("TMT", "tieline c")));
        assert_eq!(noticed("test a_test ... FAILED: why"), Some(("FAIL", "a_test")));
        for other in ["  TRY 1 FAIL [   0.2s] (1/2) a b", "  TRY 2 PASS [   0.2s] (1/2) a b"] {
            assert_eq!(noticed(other), None);
        }
        assert_eq!(noticed("    test a ... FAILED"), None, "the output of a first attempt");
    }
}
