//! A regression check that does not depend on the load of the machine: instructions per operation.
//!
//! `core/examples/instructions.rs` is the program that is counted. `instructions list` prints the names of its cases, one per line;
//! `instructions CASE N` runs the case N times, and callgrind counts the instructions inside `measured_CASE`, except for functions
//! that a [`Subject`] excludes. Two runs with different N are counted, so that the difference excludes the additional cost of the
//! first calls. The providers are files of this build, so that calls of a provider cross into a `.so`.
//!
//! If a case needs a library or a device, a test over a double is counted in the same manner, without the double's instructions:
//! [`played`]. The test runs its cases in turn; `TIELINE_COUNTED` states the number of repetitions.

use super::{Count, c_programs, least};
use crate::c_library;
use crate::sh::{
    Outcome, capture, cargo, command, read, root, run as run_command, target, which, write,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

const SHORT: u64 = 1_600;
const LONG: u64 = 17_600;

struct Subject {
    program: PathBuf,
    cases: Vec<String>,
    /// A function that adds the arguments: the case, and the number of calls.
    told: fn(&mut Command, &str, u64),
    /// A part of the names of functions that are not counted, including all functions that they call.
    left_out: &'static str,
    /// The case in which the excluded function is certainly called; `None` if it is called in all cases.
    calls_it: Option<&'static str>,
}

pub(super) fn check() -> Count {
    if cfg!(not(target_arch = "x86_64")) {
        return Count::skip("the accepted counts are those of x86-64");
    }
    if which("valgrind").is_none() {
        return Count::skip("valgrind is not installed (apt-get install valgrind)");
    }
    let checked = || -> Outcome<Count> {
        let (found, accepted, mut total) = (measure()?, Accepted::read()?, Count::default());
        for case in accepted.vanished(&found) {
            total.add(Count::one(Err(case)));
        }
        for (case, count) in found {
            total.add(Count::one(accepted.compare(&case, count)));
        }
        Ok(least::or_failed("instructions", total))
    };
    checked().into()
}

pub(crate) fn run(accept: bool) -> Outcome {
    let found = measure()?;
    let mut accepted = Accepted::read()?;
    if !accept {
        let failed = found.iter().filter(|(case, count)| accepted.compare(case, **count).is_err());
        let words = "counts differ; if that is right: cargo xtask instructions --accept";
        return match failed.count() + accepted.vanished(&found).len() {
            0 => Ok(()),
            n => Err(format!("{n} {words}")),
        };
    }
    for (case, count) in &found {
        println!("{case}: {count}");
    }
    accepted.counts = found;
    accepted.write()
}

/// Builds the cases that are counted over `shm` and in C. The build also selects the command's package, without building its
/// program, because its dependencies determine the features of common crates.
fn build() -> Outcome {
    let packages = ["tieline", "tieline-capi", "tieline-tools"].map(|name| ["--package", name]);
    let files = ["shm", "shm-cma"].map(|name| format!("--package=tieline-provider-{name}-plugin"));
    let mut build = cargo(&["build", "--release", "--quiet", "--lib", "--example", "instructions"]);
    run_command(build.args(packages.as_flattened()).args(files))
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn over_shm() -> Outcome<Subject> {
    let program = target().join("release/examples/instructions");
    let cases = words(&capture(&mut command(&program, &["list"]))?);
    if cases.is_empty() {
        return Err("`instructions list` names no case".into());
    }
    Ok(Subject {
        program,
        cases,
        // The other providers are also built, and are not counted.
        told: |command, case, times| {
            let _ = command.args([case, &times.to_string()]);
            let _ = command.env("TIELINE_PROVIDERS", "shm,shm-cma");
        },
        // The function runs at intervals of the clock, independently of the number of operations, so its share per operation
        // depends on the speed of the machine.
        left_out: "slow_progress",
        calls_it: Some("poll"),
    })
}

const PLAYED: &str = "instructions_tests::messages_and_puts_arrive_however_many_there_are";

/// Returns the tests of providers over doubles: `ofi` over a libfabric, and `rc` of `verbs` over a device below the whole core. The
/// build also selects the packages of the tools, which have no library, because their dependencies determine the features of common
/// crates.
fn played() -> Outcome<Vec<Subject>> {
    let args = "test --release --quiet -p tieline-provider-ofi -p tieline-provider-verbs -p tieline-tools --lib \
                --no-run --message-format=json";
    let built = capture(&mut cargo(&args.split(' ').collect::<Vec<_>>()))?;
    let subject = |name: &str, cases: &str| -> Outcome<Subject> {
        let executable = |line: &str| {
            let value: serde_json::Value = serde_json::from_str(line).ok()?;
            (value["target"]["name"] == name)
                .then(|| value["executable"].as_str().map(PathBuf::from))?
        };
        let program = built.lines().find_map(executable);
        Ok(Subject {
            program: program.ok_or(format!("cargo did not say where the tests of {name} are"))?,
            cases: words(cases),
            told: |command, _, times| {
                let _ = command.args(["--exact", PLAYED]).env("TIELINE_COUNTED", times.to_string());
            },
            left_out: "double",
            calls_it: None,
        })
    };
    let over_rc = "rc_post rc_receive rc_put rc_local rc_end rc_region_put rc_region_end rc_idle";
    let over_ofi = subject("tieline_provider_ofi", "ofi_post ofi_poll ofi_put ofi_idle")?;
    Ok(vec![over_ofi, subject("tieline_provider_verbs", over_rc)?])
}

/// Returns the cases of [`over_shm`] through the C library. The aim is that the C library adds at most 25 instructions, which is
/// not reached yet.
fn in_c() -> Outcome<Subject> {
    let source = root().join("capi/tests/instructions.c");
    let program =
        c_programs::compiled_with(&c_library::link("release")?, &source, false, &["-O2"])?;
    Ok(Subject {
        program,
        cases: words("c_post c_poll c_put c_raw_put c_raw_get c_fetch_add"),
        told: |command, case, times| {
            let _ = command.args([case, &times.to_string()]);
        },
        left_out: "slow_progress",
        calls_it: Some("c_poll"),
    })
}

fn measure() -> Outcome<BTreeMap<String, u64>> {
    build()?;
    let subjects: Vec<Subject> = [over_shm()?, in_c()?].into_iter().chain(played()?).collect();
    let cases: Vec<_> =
        subjects.iter().flat_map(|s| s.cases.iter().map(move |case| (s, case))).collect();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let each = || -> Outcome {
        while let Some((subject, case)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (short, long) = (count(subject, case, SHORT)?, count(subject, case, LONG)?);
            let (name, rarer) = rarer(case);
            let each = (long.saturating_sub(short) * rarer).div_ceil(LONG - SHORT);
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = found.insert(name.to_owned(), each);
        }
        Ok(())
    };
    // Other processes on the machine do not change the counts.
    std::thread::scope(|scope| {
        let beside = scope.spawn(each);
        each().and(beside.join().unwrap_or(Err("a count panicked".into())))
    })?;
    Ok(found.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Returns the name of a listed case, and the number of repetitions for which it runs once.
fn rarer(case: &str) -> (&str, u64) {
    case.split_once('/').map_or((case, 1), |(name, n)| (name, n.parse().unwrap_or(1)))
}

fn count(subject: &Subject, case: &str, times: u64) -> Outcome<u64> {
    let (case, _) = rarer(case);
    let file = target().join(format!("callgrind.out.{case}"));
    let mut valgrind = command("valgrind", &["--tool=callgrind", "--quiet"]);
    let _ = valgrind
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(format!("--toggle-collect=*measured_{case}*"))
        .env("TIELINE_PROVIDER_PATH", target().join("release"))
        .arg(&subject.program);
    (subject.told)(&mut valgrind, case, times);
    let _ = capture(&mut valgrind)?;
    let text = read(&file)?;
    let _ = std::fs::remove_file(&file);
    let name = subject.left_out;
    let (total, left_out) = counted(&text, name)
        .ok_or_else(|| format!("callgrind did not say how many instructions {case} took"))?;
    if left_out == 0 && subject.calls_it.is_none_or(|calls_it| calls_it == case) {
        return Err(format!("no {case} called `{name}`: what is not counted has another name now"));
    }
    Ok(total - left_out)
}

/// Returns the instructions in a callgrind file, and the instructions of functions whose names contain `left_out`, including those
/// of called functions.
fn counted(text: &str, left_out: &str) -> Option<(u64, u64)> {
    let (mut total, mut instructions) = (None, 0);
    // callgrind writes a name after its number at the first occurrence; later only the number is written.
    let mut numbers = BTreeSet::new();
    // The line after `calls=` ends with the instructions of all these calls, including those of functions called from there.
    let (mut caller_is_one, mut callee_is_one, mut behind_calls) = (false, false, false);
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("totals:").or(line.strip_prefix("summary:")) {
            total = total.or(words(rest).first()?.parse::<u64>().ok());
        } else if let Some(name) = line.strip_prefix("cfn=").or(line.strip_prefix("fn=")) {
            let number = name.split(' ').next()?;
            if name.contains(left_out) {
                let _ = numbers.insert(number.to_owned());
            }
            let is_one = numbers.contains(number);
            if line.starts_with("cfn=") {
                callee_is_one = is_one && !caller_is_one;
            } else {
                (caller_is_one, callee_is_one) = (is_one, false);
            }
        } else if behind_calls && callee_is_one {
            instructions += words(line).last()?.parse::<u64>().ok()?;
        }
        behind_calls = line.starts_with("calls=");
    }
    total.filter(|total| *total >= instructions).map(|total| (total, instructions))
}

struct Accepted {
    /// The tolerance of the cases without one of their own, in percent.
    tolerance_percent: u64,
    /// The tolerances of single cases, in percent: of cases that allocate or use hash tables.
    tolerances: BTreeMap<String, u64>,
    counts: BTreeMap<String, u64>,
}

/// The beginning of the name of a line that states the tolerance of one case.
const TOLERANCE_OF: &str = "tolerance_percent.";

impl Accepted {
    fn file() -> PathBuf {
        root().join("xtask/instructions.toml")
    }

    fn read() -> Outcome<Accepted> {
        Accepted::parse(&read(Accepted::file()).unwrap_or_default())
    }

    fn parse(text: &str) -> Outcome<Accepted> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or("").trim());
        let counts = lines.filter(|line| !line.is_empty()).map(|line| {
            let parts = line.split_once('=');
            let parts =
                parts.and_then(|(name, n)| Some((name.trim().into(), n.trim().parse().ok()?)));
            parts.ok_or_else(|| format!("xtask/instructions.toml: `{line}` is not `name = number`"))
        });
        let mut counts: BTreeMap<String, u64> = counts.collect::<Outcome<_>>()?;
        let tolerance_percent = counts.remove("tolerance_percent").unwrap_or(2);
        let (of_one, counts): (BTreeMap<_, _>, _) =
            counts.into_iter().partition(|(name, _)| name.starts_with(TOLERANCE_OF));
        let tolerances = of_one.into_iter().map(|(name, n)| (name.replace(TOLERANCE_OF, ""), n));
        Ok(Accepted { tolerance_percent, tolerances: tolerances.collect(), counts })
    }

    fn write(&self) -> Outcome {
        let mut text = String::from(
            "# Accepted instructions per operation, release build, counted by callgrind.\n\
             # `cargo xtask instructions --accept` writes this file; a commit that raises a count states the reason.\n",
        );
        let _ = writeln!(text, "tolerance_percent = {}", self.tolerance_percent);
        for (case, percent) in &self.tolerances {
            let _ = writeln!(text, "{TOLERANCE_OF}{case} = {percent}");
        }
        for (case, count) in &self.counts {
            let _ = writeln!(text, "{case} = {count}");
        }
        write(Accepted::file(), text)
    }

    /// Returns the number of instructions by which a case may exceed its accepted count.
    fn slack(&self, case: &str, accepted: u64) -> u64 {
        let percent = self.tolerances.get(case).copied().unwrap_or(self.tolerance_percent);
        (accepted * percent).div_ceil(100)
    }

    /// Describes the cases that were accepted and are no longer counted: `--accept` removes them.
    fn vanished(&self, found: &BTreeMap<String, u64>) -> Vec<String> {
        let gone = self.counts.keys().filter(|case| !found.contains_key(*case));
        gone.map(|case| {
            format!("{case} is accepted in xtask/instructions.toml and was not counted")
        })
        .collect()
    }

    /// Checks a count: a count above the accepted one fails, and a much smaller count is reported, so that it can be accepted.
    fn compare(&self, case: &str, found: u64) -> Outcome {
        let Some(&accepted) = self.counts.get(case) else {
            return Err(format!("{case}: {found} instructions, and no count is accepted yet"));
        };
        let slack = self.slack(case, accepted);
        println!("{case}: {found} instructions, accepted {accepted}");
        if found > accepted + slack {
            return Err(format!("{case}: {found} instructions, {accepted} + {slack} are accepted"));
        }
        if found + slack < accepted {
            println!("{case} is better than accepted: cargo xtask instructions --accept");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_beyond_the_tolerance_fails_and_shrinking_does_not() {
        let accepted =
            Accepted::parse("tolerance_percent = 10 # a new compiler\npost = 50\nlong = 100\ntolerance_percent.long = 50\n")
                .unwrap();
        assert!(accepted.compare("long", 150).is_ok());
        assert!(accepted.compare("long", 151).is_err());
        assert!(accepted.compare("post", 55).is_ok());
        assert!(accepted.compare("post", 56).is_err());
        assert!(accepted.compare("post", 10).is_ok());
        assert!(accepted.compare("poll", 10).unwrap_err().contains("no count is accepted"));
    }

    #[test]
    fn work_of_the_clock_is_separated_from_the_operation() {
        let file = "summary: 1000\n\nfn=(1) poll\n7 300\ncfn=(2) State::slow_progress\ncalls=4 0\n\
                    8 250\ncfn=(3) push\ncalls=9 0\n9 100\n\nfn=(2)\n5 50\ncfn=(4) maintain\n\
                    calls=4 0\n6 200\n\nfn=(1)\ncfn=(2)\ncalls=1 0\n8 50\n\ntotals: 1000\n";
        let counted = |file: &str| super::counted(file, "slow_progress");
        assert_eq!(counted(file), Some((1000, 300)));
        assert_eq!(counted(&file.replace("slow_progress", "other")), Some((1000, 0)));
        assert_eq!(counted("fn=(1) poll\n7 300\n"), None);
    }

    #[test]
    fn double_counts_once_however_often_it_calls_itself() {
        let file = "summary: 900\n\nfn=(1) send\n7 300\ncfn=(2) double::sys::sendmsg\ncalls=4 0\n\
                    8 500\n\nfn=(2)\n5 50\ncfn=(3) double::sys::deliver\ncalls=4 0\n6 450\n\n\
                    fn=(3)\n6 450\n\nfn=(4) poll\n6 90\ncfn=(3)\ncalls=1 0\n9 10\n\ntotals: 900\n";
        assert_eq!(counted(file, "double"), Some((900, 510)));
    }

    #[test]
    fn an_accepted_case_that_is_not_counted_any_more_fails() {
        let accepted = Accepted::parse("post = 50\npoll = 10\n").unwrap();
        let found = BTreeMap::from([("post".to_owned(), 50), ("put".to_owned(), 7)]);
        assert_eq!(
            accepted.vanished(&found),
            ["poll is accepted in xtask/instructions.toml and was not counted"]
        );
    }

    #[test]
    fn a_line_that_is_no_count_is_refused() {
        assert!(Accepted::parse("post = many").is_err());
        assert!(Accepted::parse("post").is_err());
    }
}
