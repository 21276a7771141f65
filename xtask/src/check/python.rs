//! Checks the Python module over the C library of this build: its tests, and its example from a wheel that contains the library.

use super::{Count, c_programs, quiet, told};
use crate::c_library::SONAME;
use crate::package::emptied;
use crate::sh::{Outcome, capture, command, lines, root, run, target, which};
use std::path::Path;
use std::process::Command;

pub(super) fn check() -> Count {
    if which("python3").is_none() {
        return Count::skip("python3 is not installed");
    }
    let checked = c_programs::library().map(|folder| {
        let library = folder.join(SONAME);
        let mut total = tests(&library);
        total.add(from_a_wheel(&library).map(|mut example| quiet(&mut example)).into());
        total
    });
    checked.into()
}

/// Returns a Python command with the providers of this build; it writes no files to the source directories.
fn python(words: &[&str]) -> Command {
    let mut python = command("python3", words);
    let _ = python.current_dir(root().join("python"));
    let _ = python.env("PYTHONDONTWRITEBYTECODE", "1");
    let _ = python.env("TIELINE_PROVIDER_PATH", target().join("debug"));
    python
}

fn tests(library: &Path) -> Count {
    let (mut said, mut ran) = (Vec::new(), 0);
    let mut python = python(&["-m", "unittest", "discover", "tests"]);
    // Warnings, for instance of objects that were not closed, count as failures.
    let _ = python.env("PYTHONPATH", ".").env("PYTHONWARNINGS", "error");
    let outcome = lines(python.env("TIELINE_LIBRARY", library), |line| {
        let count = line.strip_prefix("Ran ").and_then(|rest| rest.split(' ').next());
        if let Some(count) = count.and_then(|count| count.parse().ok()) {
            ran = count;
        }
        said.push(line.to_owned());
    });
    match told(outcome, &said) {
        Ok(()) if ran >= LEAST => Count { passed: ran, ..Count::default() },
        Ok(()) => Count::one(Err(format!("{ran} tests of Python ran, and there are {LEAST}"))),
        Err(text) => Count::one(Err(format!("the Python module: {text}"))),
    }
}

const LEAST: usize = 23;

/// Returns the command of the example, from an unpacked wheel that contains the library.
fn from_a_wheel(library: &Path) -> Outcome<Command> {
    let folder = target().join("debug/python");
    emptied(&folder)?;
    let wheel = capture(python(&["tools/wheel.py"]).arg(library).arg("--to").arg(&folder))?;
    let unpacked = folder.join("installed");
    run(python(&["-m", "zipfile", "-e", wheel.trim()]).arg(&unpacked))?;
    let mut example = python(&["examples/exchange.py"]);
    let _ = example.env("PYTHONPATH", &unpacked).env_remove("TIELINE_LIBRARY");
    Ok(example)
}
