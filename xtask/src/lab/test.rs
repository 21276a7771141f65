//! What a test is: a shell file whose first lines say about it what the lab has to know.

use super::scripts;
use crate::sh::Outcome;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One test of the lab.
#[derive(Clone)]
pub(super) struct Test {
    /// The file's name.
    pub(super) name: String,
    /// In a sentence, what holds when it passes.
    pub(super) about: String,
    /// As the hosts see it.
    pub(super) file: PathBuf,
    pub(super) hosts: usize,
    /// RDMA devices of each host.
    pub(super) devices: usize,
    /// Processors of each host.
    pub(super) cpus: usize,
    /// On a quiet machine.
    pub(super) timeout: Duration,
    /// It loads kernel modules of `tests/lab/modules`.
    pub(super) modules: bool,
    /// Nothing else runs on its hosts after it: what it changes lasts as long as the kernel runs.
    pub(super) last: bool,
    /// Why it is run only when it is named: it takes long, or does not always end the same way yet.
    pub(super) by_name: Option<String>,
}

impl Test {
    /// Tests that may run on the same hosts have the same.
    pub(super) fn boot(&self) -> (usize, usize) {
        (self.cpus, self.devices)
    }
}

/// How a test ended.
pub(super) enum Verdict {
    Passed,
    Failed(String),
    Skipped(String),
}

impl Verdict {
    /// In one word, for a table.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Verdict::Passed => "ok",
            Verdict::Failed(_) => "FAILED",
            Verdict::Skipped(_) => "skipped",
        }
    }
}

/// Every test, by name.
pub(super) fn all() -> Outcome<Vec<Test>> {
    let folder = scripts().join("tests");
    let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "sh"));
    files.sort();
    files.iter().map(|file| Test::read(file)).collect()
}

impl Test {
    /// Reads the assignments `about=`, `timeout=`, `hosts=`, `devices=`, `cpus=`, `modules=`, `last=` and `by_name=` of a test's file.
    pub(super) fn read(file: &Path) -> Outcome<Test> {
        let said = |text: String| format!("{}: {text}", file.display());
        let text = std::fs::read_to_string(file).map_err(|e| said(e.to_string()))?;
        let value = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
                .map(|value| value.trim().trim_matches('"').to_owned())
        };
        let number = |name: &str, unset: usize, most: usize| match value(name) {
            None => Ok(unset),
            Some(value) => match value.parse() {
                Ok(n) if n <= most => Ok(n),
                _ => Err(said(format!("{name}={value} is not a number up to {most}"))),
            },
        };
        Ok(Test {
            name: file.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            about: value("about").unwrap_or_default(),
            file: file.to_path_buf(),
            hosts: number("hosts", 2, 9)?.max(1),
            devices: number("devices", 1, 2)?,
            cpus: number("cpus", 1, 8)?.max(1),
            timeout: Duration::from_secs(number("timeout", 30, 3600)? as u64),
            modules: number("modules", 0, 1)? == 1,
            last: number("last", 0, 1)? == 1,
            by_name: value("by_name"),
        })
    }
}
