//! A test is a shell file. The first lines of the file describe the requirements of the test. The ends of the test's parts
//! determine the verdict.

use super::machine::{RESULTS, SCRIPTS};
use super::scripts;
use crate::sh::{Outcome, files_of, read, write};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Clone)]
pub(super) struct Test {
    pub(super) name: String,
    /// A sentence that states what holds when the test passes.
    pub(super) about: String,
    pub(super) file: PathBuf,
    pub(super) hosts: usize,
    /// The number of RDMA devices of each host.
    pub(super) devices: usize,
    pub(super) cpus: usize,
    pub(super) timeout: Duration,
    pub(super) modules: bool,
    /// Whether the test must be the last on its hosts, because its changes last until the next boot.
    pub(super) last: bool,
    /// Whether the test belongs to the core, which runs at every commit.
    pub(super) core: bool,
    /// The reason why the test runs only by name: it takes a long time, or its result is not always the same.
    pub(super) by_name: Option<String>,
}

pub(super) fn all() -> Outcome<Vec<Test>> {
    let folder = scripts().join("tests");
    files_of(folder, "sh")?.iter().map(|file| Test::read(file)).collect()
}

impl Test {
    /// Returns the requirements for the boot: tests with equal requirements may run on the same hosts. Every host boots with a
    /// device, even for tests without one.
    pub(super) fn boot(&self) -> (usize, usize) {
        (self.cpus, self.devices.max(1))
    }

    pub(super) fn written(folder: &Path, name: &str, text: &str) -> Outcome<Test> {
        let file = folder.join(format!("{name}.sh"));
        write(&file, text)?;
        Ok(Test { file: Path::new(RESULTS).join(format!("{name}.sh")), ..Test::read(&file)? })
    }

    fn read(file: &Path) -> Outcome<Test> {
        let said = |text: String| format!("{}: {text}", file.display());
        let text = read(file)?;
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
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Test {
            file: Path::new(SCRIPTS).join("tests").join(format!("{name}.sh")),
            name,
            about: value("about").unwrap_or_default(),
            hosts: number("hosts", 2, 9)?.max(1),
            devices: number("devices", 1, 2)?,
            cpus: number("cpus", 1, 8)?.max(1),
            timeout: Duration::from_secs(number("timeout", 30, 3600)? as u64),
            modules: number("modules", 0, 1)? == 1,
            last: number("last", 0, 1)? == 1,
            core: number("core", 0, 1)? == 1,
            by_name: value("by_name"),
        })
    }
}

/// The end of one host's part of a test.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Part {
    Ended(i32),
    /// The lab ended the part when the time limit had passed.
    Late,
    /// The part did not end even then, although its host still answers.
    Stuck,
    /// The part did not end even then, and its host does not answer.
    Silent,
    /// The part ended because its host ended.
    Gone,
}

#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Passed,
    Failed(String),
    /// A host does not answer, and its kernel reported no reason: the emulation may be the cause.
    Silent(String),
    Skipped(String),
}

impl Verdict {
    /// Makes the verdict on a test from its parts, one for each host from `first` on. `skipped` is the test's own reason, and
    /// `kernel` is an error on a console.
    pub(super) fn on(
        parts: &[Part],
        first: usize,
        skipped: Option<String>,
        kernel: Option<String>,
    ) -> Verdict {
        let mut failures = Vec::new();
        for (part, host) in parts.iter().zip(first..) {
            let text = match part {
                Part::Ended(0) => continue,
                Part::Ended(77) if skipped.is_some() => continue,
                Part::Ended(status) => format!("ended with {status}"),
                Part::Late => "was ended when its time was over".into(),
                Part::Stuck => "does not end, though its host answers".into(),
                Part::Silent => "does not end: the machine hangs".into(),
                Part::Gone => "ended with its machine".into(),
            };
            failures.push(format!("h{host} {text}"));
        }
        failures.extend(kernel.clone());
        let text = failures.join(", ");
        let any = |other: Part| parts.contains(&other);
        match skipped {
            _ if kernel.is_some() || any(Part::Gone) => Verdict::Failed(text),
            Some(reason) if !any(Part::Stuck) && !any(Part::Silent) => {
                Verdict::Skipped(reason.trim().to_owned())
            }
            _ if text.is_empty() => Verdict::Passed,
            _ if any(Part::Silent) => Verdict::Silent(text),
            _ => Verdict::Failed(text),
        }
    }

    pub(super) fn word(&self) -> &'static str {
        match self {
            Verdict::Passed => "ok",
            Verdict::Failed(_) => "FAILED",
            Verdict::Silent(_) => "silent",
            Verdict::Skipped(_) => "skipped",
        }
    }
}

/// The permission to repeat one test of a run after a host has stopped answering. The hosts are then booted again, and the test is
/// repeated. A second such host is a failure, as any other error is immediately.
#[derive(Default)]
pub(super) struct Chance {
    taken: bool,
}

impl Chance {
    pub(super) fn repeats(&mut self, verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::Silent(_)) && !std::mem::replace(&mut self.taken, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(parts: &[Part]) -> Verdict {
        Verdict::on(parts, 0, None, None)
    }

    #[test]
    fn one_silent_machine_is_booted_anew_and_a_second_is_a_failure() {
        let mut chance = Chance::default();
        let silent = verdict(&[Part::Ended(0), Part::Silent]);
        assert_eq!(silent, Verdict::Silent("h1 does not end: the machine hangs".into()));
        assert!(chance.repeats(&silent));
        assert!(!chance.repeats(&silent));
    }

    #[test]
    fn a_test_that_fails_or_is_late_on_hosts_that_answer_is_not_repeated() {
        let mut chance = Chance::default();
        for parts in [
            [Part::Ended(1), Part::Ended(0)],
            [Part::Ended(0), Part::Late],
            [Part::Stuck, Part::Ended(0)],
            [Part::Ended(77), Part::Ended(0)],
        ] {
            let failed = verdict(&parts);
            assert!(matches!(failed, Verdict::Failed(_)), "{failed:?}");
            assert!(!chance.repeats(&failed));
        }
        assert!(chance.repeats(&Verdict::Silent(String::new())), "none of them took the chance");
    }

    #[test]
    fn trouble_of_a_kernel_is_a_failure_whatever_else_the_test_says() {
        let mut chance = Chance::default();
        let words = || Some("the kernel of h0 said: Oops".to_owned());
        for failed in [
            verdict(&[Part::Gone, Part::Silent]),
            Verdict::on(&[Part::Silent], 0, None, words()),
            Verdict::on(&[Part::Ended(0)], 0, None, words()),
            Verdict::on(&[Part::Ended(77)], 0, Some("no module".into()), words()),
        ] {
            assert!(matches!(failed, Verdict::Failed(_)), "{failed:?}");
            assert!(!chance.repeats(&failed));
        }
    }

    #[test]
    fn test_with_a_skipped_part_is_skipped_once_all_parts_have_ended() {
        let reason = || Some("no rping\n".to_owned());
        let of = |parts: &[Part]| Verdict::on(parts, 0, reason(), None);
        assert_eq!(of(&[Part::Ended(77), Part::Ended(0)]), Verdict::Skipped("no rping".into()));
        assert_eq!(of(&[Part::Ended(77), Part::Ended(1)]), Verdict::Skipped("no rping".into()));
        assert_eq!(of(&[Part::Ended(77), Part::Late]), Verdict::Skipped("no rping".into()));
        assert!(matches!(of(&[Part::Ended(77), Part::Stuck]), Verdict::Failed(_)));
        assert_eq!(verdict(&[Part::Ended(0), Part::Ended(0)]), Verdict::Passed);
    }
}
