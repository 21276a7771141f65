//! Checks the Python module over the C library of this build: its tests and examples, from a wheel that contains the library and
//! providers.

use super::{Count, c_programs, told};
use crate::c_library::SONAME;
use crate::foreign;
use crate::package::emptied;
use crate::sh::{Outcome, capture, command, lines, root, run, target, which};
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) fn check() -> Count {
    if which("python3").is_none() {
        return Count::skip("python3 is not installed");
    }
    if let Err(text) = capture(&mut python(&["tools/native.py"])) {
        return match text.contains("install python3-dev") {
            true => Count::skip("the headers of Python are not installed"),
            false => Count::one(Err(text)),
        };
    }
    let installed = c_programs::library().and_then(|folder| from_a_wheel(&folder.join(SONAME)));
    installed.map_or_else(|text| Count::one(Err(text)), |folder| tests(&folder))
}

/// Returns a Python command, which writes no files to the source directories.
fn python(words: &[&str]) -> Command {
    let mut python = command("python3", words);
    let _ = python.current_dir(root().join("python"));
    let _ = python.env("PYTHONDONTWRITEBYTECODE", "1");
    python
}

/// Runs the tests, and the examples in them, with the module of an unpacked wheel.
fn tests(folder: &Path) -> Count {
    let (mut said, mut ran) = (Vec::new(), 0);
    let mut python = python(&["-m", "unittest", "discover", "tests"]);
    let _ = python.current_dir(folder).env("PYTHONPATH", folder.join("installed"));
    let _ = python.env_remove("TIELINE_LIBRARY").env_remove("TIELINE_PROVIDER_PATH");
    // Warnings, for instance of objects that were not closed, count as failures.
    let _ = python.env("PYTHONWARNINGS", "error").env("TIELINE_HEADERS", root().join("include"));
    let outcome = lines(&mut python, |line| {
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

const LEAST: usize = 100;

/// Makes a wheel with the library and the providers, and unpacks it in a folder beside copies of the tests and the examples.
fn from_a_wheel(library: &Path) -> Outcome<PathBuf> {
    let folder = target().join("debug/python");
    emptied(&folder)?;
    let mut make = python(&["tools/wheel.py"]);
    let _ = make.arg(library).args(providers("debug"));
    let wheel = capture(make.arg("--to").arg(&folder))?;
    run(python(&["-m", "zipfile", "-e", wheel.trim()]).arg(folder.join("installed")))?;
    run(command("cp", &["-r", "python/tests", "python/examples"])
        .current_dir(root())
        .arg(&folder))?;
    Ok(folder)
}

/// The providers in a wheel.
pub(crate) const PROVIDERS: [&str; 4] = ["shm", "shm-cma", "tcp", "tcp-connect"];

/// Returns the files of these providers.
pub(crate) fn providers(profile: &str) -> [PathBuf; 4] {
    let file = |name: &str| format!("libtieline_{}.so", name.replace('-', "_"));
    let built = target().join(foreign::folder(profile));
    PROVIDERS.map(|name| built.join(file(name)))
}
