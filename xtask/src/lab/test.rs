//! A test is a shell file, whose first lines say about it what the lab has to know. Its parts have ends, of which a verdict
//! is made.

use super::machine::{RESULTS, SCRIPTS};
use super::scripts;
use crate::sh::{Outcome, files_of, read, write};
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
    /// Nothing else runs on its hosts after it: its changes last as long as the kernel runs.
    pub(super) last: bool,
    /// It belongs to the core, which runs at every commit.
    pub(super) core: bool,
    /// Why it is run only when it is named: it takes long, or does not always end the same way yet.
    pub(super) by_name: Option<String>,
}

/// Every test, by name.
pub(super) fn all() -> Outcome<Vec<Test>> {
    let folder = scripts().join("tests");
    files_of(folder, "sh")?.iter().map(|file| Test::read(file)).collect()
}

impl Test {
    /// Tests that may run on the same hosts have the same. Every host boots with a device, also for tests without one.
    pub(super) fn boot(&self) -> (usize, usize) {
        (self.cpus, self.devices.max(1))
    }

    /// A test of this text, which is written where the hosts find it.
    pub(super) fn written(folder: &Path, name: &str, text: &str) -> Outcome<Test> {
        let file = folder.join(format!("{name}.sh"));
        write(&file, text)?;
        Ok(Test { file: Path::new(RESULTS).join(format!("{name}.sh")), ..Test::read(&file)? })
    }

    /// Reads the assignments of a test's head, which docs/lab.md lists.
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

/// How one host's part of a test ended.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Part {
    /// With this status.
    Ended(i32),
    /// By the lab, when the time was over.
    Late,
    /// Not even then, though its host still answers.
    Stuck,
    /// Not even then, and its host does not answer.
    Silent,
    /// With its host.
    Gone,
}

/// How a test ended.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Passed,
    Failed(String),
    /// A host does not answer, and its kernel gave no reason: the emulation may be at fault.
    Silent(String),
    Skipped(String),
}

impl Verdict {
    /// The verdict on a test from its parts, one for each host from `first` on. `skipped` is the test's own reason, and
    /// `kernel` is trouble on a console.
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

    /// In one word, for a table.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Verdict::Passed => "ok",
            Verdict::Failed(_) => "FAILED",
            Verdict::Silent(_) => "silent",
            Verdict::Skipped(_) => "skipped",
        }
    }
}

/// The one machine of a run that may stop answering. The hosts are booted anew then, and the test is repeated. A second such
/// machine is a failure, as any other trouble is at once.
#[derive(Default)]
pub(super) struct Chance {
    taken: bool,
}

impl Chance {
    /// Whether the test that ended so is repeated.
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
