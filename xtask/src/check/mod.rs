//! `cargo xtask test`: every check that a change has to pass, in order of what fails first and cheapest.
//!
//! A check that fails does not end the run: the last line counts them all. One that cannot run here says
//! why and counts as skipped.

mod c_programs;
mod circles;
mod examples;
pub(crate) mod instructions;
mod kit;
mod least;
mod licences;
mod memory;
mod oldest;
mod open_mpi;
mod processors;
mod python;
mod quotes;
mod rules;
pub(crate) mod suite;
mod words;
mod yardstick;

use crate::setup;
use crate::sh::{Outcome, cargo, heading, lines, show_time, within};
use std::process::Command;
use std::time::{Duration, Instant};

/// How one check, or a whole suite of tests, ended.
#[derive(Debug, Default)]
pub(crate) struct Count {
    pub(crate) passed: usize,
    /// What failed, each with its reason.
    pub(crate) failed: Vec<String>,
    /// What could not run, each with its reason.
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

/// A check: what it is, in how many minutes it has ended on a busy machine, and how it is done.
type Check = (&'static str, u64, fn() -> Count);

const CHECKS: &[Check] = &[
    ("formatting", 2, || quiet(&mut cargo(&["fmt", "--all", "--check"]))),
    ("rules of the house", 2, rules::check),
    ("licences and sources of what is used", 3, licences::check),
    ("clippy", 20, || {
        let args = ["clippy", "--workspace", "--all-targets"];
        quiet(cargo(&args).args(suite::HOOKS).args(["--", "-D", "warnings"]))
    }),
    ("the library without its own providers", 10, || {
        quiet(&mut cargo(&["check", "-p", "tieline", "--no-default-features"]))
    }),
    ("programs, providers, examples and tests build", 30, suite::build),
    ("the generated header is fresh", 2, || suite::with_build(words::header)),
    ("docs/configuration.md is fresh", 2, || suite::with_build(words::configuration)),
    ("tests", 20, || suite::with_build(suite::tests)),
    ("tests with real processes, and conformance of every provider", 25, || {
        suite::with_build(suite::processes_and_conformance)
    }),
    ("examples of the documentation", 15, suite::doctests),
    ("documentation has no warnings", 10, || {
        let args = ["doc", "--workspace", "--no-deps", "--document-private-items"];
        quiet(cargo(&args).env("RUSTDOCFLAGS", "-D warnings"))
    }),
    ("the C library exports what its file says", 5, || suite::with_build(c_programs::exports)),
    ("the C library from C and C++, under valgrind and AddressSanitizer", 10, || {
        suite::with_build(c_programs::surface)
    }),
    ("the Python module, over the C library", 5, || suite::with_build(python::check)),
    ("a vendor's provider, from what is installed alone", 10, || suite::with_build(kit::check)),
    ("an unmodified Open MPI over the C library", 10, || suite::with_build(open_mpi::run)),
    ("examples, each as a job of processes", 15, || suite::with_build(examples::run)),
    ("every order of the shared-memory ring (loom)", 15, suite::loom),
    ("instructions of posting and polling", 20, instructions::check),
    ("the records of rdma-core and libfabric, beside their crates", 15, yardstick::check),
    ("the demo", 15, crate::demo::check),
    ("the oldest Rust that is promised", 20, oldest::check),
    ("another processor, as far as types go", 20, processors::check),
    ("the lab: RDMA drivers and several hosts", 90, || {
        suite::with_build(|| crate::lab::check(crate::lab::Selection::Ci))
    }),
];

/// `cargo xtask test [FILTER...]`: all checks, or those whose names contain a filter.
pub(crate) fn run(filters: &[&str]) -> Outcome {
    let started = Instant::now();
    let is_chosen =
        |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter));
    let chosen: Vec<&Check> = CHECKS.iter().filter(|(name, ..)| is_chosen(name)).collect();
    if chosen.is_empty() {
        let names: Vec<_> = CHECKS.iter().map(|(name, ..)| *name).collect();
        return Err(format!("no check has that in its name: they are {}", names.join(", ")));
    }
    heading("setup");
    setup::install_or_say(setup::TEST);
    let mut total = Count::default();
    for (name, minutes, check) in chosen {
        heading(name);
        let began = Instant::now();
        let count = within(Duration::from_secs(minutes * 60), check);
        for text in &count.failed {
            println!("FAILED: {text}");
        }
        for reason in &count.skipped {
            println!("skipped: {reason}");
        }
        let verdict = if count.failed.is_empty() { "ok" } else { "FAILED" };
        let Count { passed, failed, skipped } = &count;
        println!(
            "{verdict}: {passed} passed, {} failed, {} skipped in {}",
            failed.len(),
            skipped.len(),
            show_time(began.elapsed())
        );
        let named = |texts: &[String]| texts.iter().map(|text| format!("{name}: {text}")).collect();
        total.add(Count {
            passed: count.passed,
            failed: named(&count.failed),
            skipped: named(&count.skipped),
        });
    }
    heading(&format!("all checks ({})", show_time(started.elapsed())));
    for text in &total.failed {
        println!("failed: {text}");
    }
    for reason in &total.skipped {
        println!("skipped: {reason}");
    }
    println!(
        "{} passed, {} failed, {} skipped",
        total.passed,
        total.failed.len(),
        total.skipped.len()
    );
    match total.failed.len() {
        0 => Ok(()),
        1 => Err("a check failed".into()),
        n => Err(format!("{n} checks failed")),
    }
}

/// Runs a command whose output is of interest only when it fails.
fn quiet(command: &mut Command) -> Count {
    let mut said = Vec::new();
    let outcome = lines(command, |line| said.push(line.to_owned()));
    Count::one(told(outcome, &said))
}

/// How a command ended, which has said this.
fn told(outcome: Outcome<bool>, said: &[String]) -> Outcome {
    outcome.and_then(|ok| {
        if ok {
            return Ok(());
        }
        said.iter().for_each(|line| println!("{line}"));
        Err("see above".into())
    })
}
