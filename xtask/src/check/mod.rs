//! `cargo xtask test`: every check that a change has to pass, in order of what fails first and cheapest.
//!
//! A check that fails does not end the run: the last line counts them all. One that cannot run here says
//! why and counts as skipped.

mod examples;
pub(crate) mod instructions;
mod suite;
mod words;

use crate::setup;
use crate::sh::{Outcome, cargo, heading, lines, show_time};
use std::process::Command;
use std::time::Instant;

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
    fn one(outcome: Outcome) -> Count {
        match outcome {
            Ok(()) => Count { passed: 1, ..Count::default() },
            Err(text) => Count { failed: vec![text], ..Count::default() },
        }
    }

    fn skip(reason: impl Into<String>) -> Count {
        Count { skipped: vec![reason.into()], ..Count::default() }
    }

    fn add(&mut self, other: Count) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
    }
}

type Check = (&'static str, fn() -> Count);

const CHECKS: &[Check] = &[
    ("formatting", || quiet(&mut cargo(&["fmt", "--all", "--check"]))),
    ("clippy", || {
        let args = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
        quiet(&mut cargo(&args))
    }),
    ("the generated header is fresh", words::header),
    ("programs, providers and examples build", suite::build),
    ("docs/configuration.md is fresh", words::configuration),
    ("tests", suite::tests),
    ("tests with real processes", suite::processes),
    ("conformance of every provider", suite::conformance),
    ("examples of the documentation", suite::doctests),
    ("documentation has no warnings", || {
        let args = ["doc", "--workspace", "--no-deps", "--document-private-items"];
        quiet(cargo(&args).env("RUSTDOCFLAGS", "-D warnings"))
    }),
    ("examples, each as a job of processes", examples::run),
    ("every order of the shared-memory ring (loom)", suite::loom),
    ("instructions of posting and polling", instructions::check),
    ("the lab: RDMA drivers and several hosts", crate::lab::check),
];

pub(crate) fn run() -> Outcome {
    let started = Instant::now();
    heading("setup");
    setup::install_or_say(setup::TEST);
    let mut total = Count::default();
    for (name, check) in CHECKS {
        heading(name);
        let began = Instant::now();
        let count = check();
        for text in &count.failed {
            println!("FAILED: {text}");
        }
        for reason in &count.skipped {
            println!("skipped: {reason}");
        }
        let verdict = if count.failed.is_empty() { "ok" } else { "FAILED" };
        println!("{verdict} ({})", show_time(began.elapsed()));
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
    let outcome = outcome.and_then(|ok| {
        if ok {
            return Ok(());
        }
        said.iter().for_each(|line| println!("{line}"));
        Err("see above".into())
    });
    Count::one(outcome)
}
