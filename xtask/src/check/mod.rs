//! `cargo xtask test`: runs the checks that a change has to pass, starting with the cheapest checks and those that fail most
//! frequently.
//!
//! A check that fails does not end the run: the last line counts all checks. A check that cannot run here counts as skipped, with
//! its reason. Long checks, and those that boot virtual machines, run with `--selection` or `--all`, or by name.

mod c_programs;
mod changed;
mod examples;
pub(crate) mod instructions;
mod kit;
mod least;
mod licences;
mod memory;
mod nixl;
mod oldest;
mod open_mpi;
pub(crate) mod prose;
pub(crate) mod python;
mod quotes;
mod rules;
mod statics;
pub(crate) mod suite;
mod words;
mod yardstick;

use crate::lab::{self, Selection};
use crate::setup;
use crate::sh::{Outcome, WHOLE, cargo, heading, listened, show_time, within};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The result of one check or of a whole suite of tests.
#[derive(Debug, Default)]
pub(crate) struct Count {
    pub(crate) passed: usize,
    pub(crate) failed: Vec<String>,
    pub(crate) skipped: Vec<String>,
}

impl Count {
    pub(crate) fn one(outcome: Outcome) -> Count {
        match outcome {
            Ok(()) => Count { passed: 1, ..Count::default() },
            Err(text) => Count { failed: vec![text], ..Count::default() },
        }
    }

    pub(crate) fn skip(reason: impl Into<String>) -> Count {
        Count { skipped: vec![reason.into()], ..Count::default() }
    }

    pub(crate) fn add(&mut self, other: Count) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
    }
}

impl From<Outcome<Count>> for Count {
    fn from(outcome: Outcome<Count>) -> Count {
        outcome.unwrap_or_else(|text| Count::one(Err(text)))
    }
}

#[derive(Clone, Copy, PartialEq)]
enum When {
    /// The check runs in `cargo xtask test`, in `--all`, and by name.
    Test,
    /// The check runs in `cargo xtask test --selection` and `--all`, and by name.
    Selection,
    /// The check runs only in `cargo xtask test --selection`, and is a part of a check of `--all`.
    Part,
    /// The check runs in `cargo xtask test --all`, and by name.
    All,
}

enum How {
    Alone(fn() -> Count),
    /// A check that needs the files of the build.
    Built(fn() -> Count),
}

use How::{Alone, Built};

/// A check: its name, its time limit in minutes on a busy machine, the runs that include it, and its kind.
type Check = (&'static str, u64, When, How);

const CHECKS: &[Check] = &[
    ("formatting", 2, When::Test, Alone(formatting)),
    ("rules of the house", 2, When::Test, Alone(rules::check)),
    ("plain English", 2, When::Test, Alone(prose::check)),
    ("licences and sources of what is used", 3, When::Test, Alone(licences::check)),
    ("programs, providers, examples and tests build", 30, When::Test, Alone(suite::build)),
    ("the generated header is fresh", 2, When::Test, Built(words::header)),
    ("docs/configuration.md is fresh", 2, When::Test, Built(words::configuration)),
    ("docs/checks.md is fresh", 2, When::Test, Built(suite::page_of_checks)),
    ("tests", 20, When::Test, Built(suite::tests)),
    (
        "tests with real processes, and conformance of every provider",
        25,
        When::Test,
        Built(suite::processes_and_conformance),
    ),
    ("clippy", 20, When::Test, Alone(clippy)),
    ("the library without its own providers", 10, When::Test, Alone(without_providers)),
    ("examples of the documentation", 15, When::Test, Alone(suite::doctests)),
    ("documentation has no warnings", 10, When::Test, Alone(documentation)),
    ("the C library exports what its file says", 5, When::Test, Built(c_programs::exports)),
    (
        "the C library from C and C++, under valgrind and AddressSanitizer",
        10,
        When::Test,
        Built(c_programs::surface),
    ),
    ("the Python module, over the C library", 5, When::Test, Built(python::check)),
    ("a vendor's provider, from what is installed alone", 10, When::Test, Built(kit::check)),
    ("the plug-in for NIXL, under an unmodified wheel", 10, When::Test, Built(nixl::check)),
    ("an unmodified Open MPI over the libfabric provider", 10, When::Test, Built(open_mpi::run)),
    ("an unmodified MPICH over the libfabric provider", 30, When::Test, Built(open_mpi::mpich)),
    ("examples, each as a job of processes", 15, When::Test, Built(examples::run)),
    (
        "mutants of the examples, which the conformance suite has to find",
        15,
        When::All,
        Built(suite::mutations),
    ),
    (
        "mutants of the examples, in the turn of the lab's first part",
        15,
        When::Part,
        Built(|| in_turn(0, suite::mutations)),
    ),
    (
        "the oldest Rust and another processor, in the turn of the lab's second part",
        20,
        When::Part,
        Alone(|| in_turn(1, oldest::check)),
    ),
    ("every order of the shared-memory ring (loom)", 15, When::Selection, Alone(suite::loom)),
    ("instructions of posting and polling", 20, When::Selection, Alone(instructions::check)),
    ("the demo", 15, When::Selection, Alone(crate::demo::check)),
    (
        "the lab: the core selection and a quarter of the other tests",
        40,
        When::Part,
        Built(|| lab::check(Selection::Ci)),
    ),
    (
        "the records of rdma-core and libfabric, beside their crates",
        15,
        When::All,
        Alone(yardstick::check),
    ),
    (
        "the oldest Rust that is promised, and another processor",
        20,
        When::All,
        Alone(oldest::check),
    ),
    (
        "unit tests under emulation of 64-bit Arm",
        20,
        When::All,
        Alone(crate::package::emulated_unit_tests),
    ),
    (
        "the lab: RDMA drivers and several hosts",
        90,
        When::All,
        Built(|| lab::check(Selection::All)),
    ),
];

/// Runs a check if it is the turn of its part at this commit.
fn in_turn(part: usize, check: fn() -> Count) -> Count {
    match lab::turn() {
        turn if turn == part => check(),
        turn => Count::skip(format!("this commit has the turn of part {turn}, and not of {part}")),
    }
}

pub(crate) fn run(words: &[&str]) -> Outcome {
    let is_chosen = |(name, _, when, _): &Check| match words {
        [] => *when == When::Test,
        ["--all"] => *when != When::Part,
        ["--selection"] => matches!(when, When::Selection | When::Part),
        filters => *when != When::Part && filters.iter().any(|filter| name.contains(filter)),
    };
    let (chosen, left): (Vec<&Check>, Vec<&Check>) =
        CHECKS.iter().partition(|check| is_chosen(check));
    if chosen.is_empty() {
        let names: Vec<_> = CHECKS.iter().map(|(name, ..)| *name).collect();
        return Err(format!("no check has that in its name: they are {}", names.join(", ")));
    }
    WHOLE.store(words == ["--all"], Ordering::Relaxed);
    let outcome = run_all(chosen);
    if words.is_empty() {
        let names = left.iter().filter(|check| check.2 != When::Part).map(|check| check.0);
        println!("left out: {}", names.collect::<Vec<_>>().join("; "));
        println!("`cargo xtask test --all` runs these too: about an hour, with virtual machines");
    }
    outcome
}

/// Runs `cargo xtask check`, the quick checks of a change: formatting, rules, clippy, and the unit tests of the packages that
/// differ from main and of the packages that depend on them.
pub(crate) fn run_changed() -> Outcome {
    let packages = changed::packages()?;
    println!("packages that differ from main: {}", packages.join(", "));
    let mut total = Count::default();
    run_one("formatting", 2, &formatting, &mut total);
    run_one("rules of the house", 2, &rules::check, &mut total);
    if !packages.is_empty() {
        // Cargo does not check packages again that the change does not affect.
        run_one("clippy", 20, &clippy, &mut total);
        run_one("unit tests", 20, &|| suite::unit_tests(&packages), &mut total);
    }
    closing_line(&total)
}

fn run_all(checks: Vec<&Check>) -> Outcome {
    let started = Instant::now();
    heading("setup");
    setup::install_or_say(setup::TEST);
    let mut total = Count::default();
    for (name, minutes, _, how) in checks {
        let check = || match how {
            Alone(check) => check(),
            Built(check) => suite::with_build(check),
        };
        run_one(name, *minutes, &check, &mut total);
    }
    heading(&format!("all checks ({})", show_time(started.elapsed())));
    for text in &total.failed {
        println!("failed: {text}");
    }
    for reason in &total.skipped {
        println!("skipped: {reason}");
    }
    closing_line(&total)
}

fn run_one(name: &str, minutes: u64, check: &dyn Fn() -> Count, total: &mut Count) {
    heading(name);
    let began = Instant::now();
    let Count { passed, failed, skipped } = within(Duration::from_secs(minutes * 60), check);
    failed.iter().for_each(|text| println!("FAILED: {text}"));
    skipped.iter().for_each(|reason| println!("skipped: {reason}"));
    println!(
        "{}: {passed} passed, {} failed, {} skipped in {}",
        if failed.is_empty() { "ok" } else { "FAILED" },
        failed.len(),
        skipped.len(),
        show_time(began.elapsed())
    );
    let named = |texts: &[String]| texts.iter().map(|text| format!("{name}: {text}")).collect();
    total.add(Count { passed, failed: named(&failed), skipped: named(&skipped) });
}

/// Prints the line that counts all checks, the last line if no check was omitted. Returns an error if a check failed.
pub(crate) fn closing_line(Count { passed, failed, skipped }: &Count) -> Outcome {
    println!("{passed} passed, {} failed, {} skipped", failed.len(), skipped.len());
    match failed.len() {
        0 => Ok(()),
        1 => Err("a check failed".into()),
        n => Err(format!("{n} checks failed")),
    }
}

fn formatting() -> Count {
    quiet(&mut cargo(&["fmt", "--all", "--check"]))
}

fn clippy() -> Count {
    let mut command = cargo(&["clippy", "--workspace", "--all-targets"]);
    quiet(command.args(suite::HOOKS).args(["--", "-D", "warnings"]))
}

fn without_providers() -> Count {
    quiet(&mut cargo(&["check", "-p", "tieline", "--no-default-features"]))
}

fn documentation() -> Count {
    let args = ["doc", "--workspace", "--no-deps", "--document-private-items"];
    quiet(cargo(&args).env("RUSTDOCFLAGS", "-D warnings"))
}

/// Runs a command whose output is printed only if the command fails.
fn quiet(command: &mut Command) -> Count {
    let (outcome, said) = listened(command);
    Count::one(told(outcome, &said))
}

fn told(outcome: Outcome<bool>, said: &[String]) -> Outcome {
    outcome.and_then(|ok| {
        if ok {
            return Ok(());
        }
        said.iter().for_each(|line| println!("{line}"));
        Err("see above".into())
    })
}
