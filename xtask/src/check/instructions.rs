//! The regression gate that does not depend on how busy the machine is: instructions per operation.
//!
//! `core/examples/instructions.rs` is the program that is counted. `instructions list` prints the names of its
//! cases, one a line; `instructions CASE N` does the case N times, and callgrind counts what happens inside
//! `measured_CASE`, but for what [`TIMED`] does there. Two runs of different N are counted, so that the first
//! calls' extra fall out of the difference. The providers are the files of this build, so that every call
//! crosses into a `.so`.

use super::{Count, least};
use crate::sh::{Outcome, capture, cargo, command, root, run as run_command, target, which};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;

const SHORT: u64 = 1_600;
const LONG: u64 = 17_600;
/// What runs as often as the clock says, and not as often as the operation: how much of it falls to one operation
/// depends on how fast the machine is, and is not counted.
const TIMED: &str = "slow_progress";

/// Checks the counts against the accepted ones.
pub(super) fn check() -> Count {
    if which("valgrind").is_none() {
        return Count::skip("valgrind is not installed (apt-get install valgrind)");
    }
    let mut total = Count::default();
    match (measure(), Accepted::read()) {
        (Ok(found), Ok(accepted)) => {
            for case in accepted.vanished(&found) {
                total.add(Count::one(Err(case)));
            }
            for (case, count) in found {
                total.add(Count::one(accepted.compare(&case, count)));
            }
            total = least::or_failed("instructions", total);
        }
        (Err(text), _) | (_, Err(text)) => total.add(Count::one(Err(text))),
    }
    total
}

/// `cargo xtask instructions [--accept]`.
pub(crate) fn run(accept: bool) -> Outcome {
    let found = measure()?;
    let mut accepted = Accepted::read()?;
    if !accept {
        let failed = found.iter().filter(|(case, count)| accepted.compare(case, **count).is_err());
        return match failed.count() + accepted.vanished(&found).len() {
            0 => Ok(()),
            n => Err(format!(
                "{n} counts differ; if that is right: cargo xtask instructions --accept"
            )),
        };
    }
    for (case, count) in &found {
        println!("{case}: {count}");
    }
    accepted.counts = found;
    accepted.write()
}

fn measure() -> Outcome<BTreeMap<String, u64>> {
    run_command(&mut cargo(&[
        "build",
        "--release",
        "--quiet",
        "-p",
        "tieline",
        "--lib",
        "--example",
        "instructions",
        "-p",
        "tieline-provider-shm-plugin",
        "-p",
        "tieline-provider-shm-cma-plugin",
    ]))?;
    let program = target().join("release/examples/instructions");
    let cases = capture(&mut command(&program, &["list"]))?;
    let mut found = BTreeMap::new();
    for case in cases.split_whitespace() {
        let (short, long) = (count(&program, case, SHORT)?, count(&program, case, LONG)?);
        let each = long.saturating_sub(short).div_ceil(LONG - SHORT);
        let _ = found.insert(case.to_owned(), each);
    }
    if found.is_empty() { Err("`instructions list` names no case".into()) } else { Ok(found) }
}

fn count(program: &PathBuf, case: &str, times: u64) -> Outcome<u64> {
    let file = target().join("callgrind.out.xtask");
    let mut valgrind = command("valgrind", &["--tool=callgrind", "--quiet"]);
    let _ = valgrind
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(format!("--toggle-collect=*measured_{case}*"))
        .env("TIELINE_PROVIDER_PATH", target().join("release"))
        .arg(program);
    let _ = capture(valgrind.args([case, &times.to_string()]))?;
    let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let _ = std::fs::remove_file(&file);
    let (total, timed) = counted(&text)
        .ok_or_else(|| format!("callgrind did not say how many instructions {case} took"))?;
    if case == "poll" && timed == 0 {
        return Err(format!(
            "no poll called `{TIMED}`: what looks at the clock has another name now"
        ));
    }
    Ok(total - timed)
}

/// The instructions in a callgrind file, and how many of them are those of [`TIMED`] and of what it called.
fn counted(text: &str) -> Option<(u64, u64)> {
    let words = |rest: &str| rest.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (mut total, mut timed) = (None, 0);
    // A name is written where it comes first, behind its number; then the number stands for it.
    let mut timed_numbers = BTreeSet::new();
    // The line behind `calls=` ends with the instructions of all of them.
    let (mut callee_is_timed, mut behind_calls) = (false, false);
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("totals:").or(line.strip_prefix("summary:")) {
            total = total.or(words(rest).first()?.parse::<u64>().ok());
        } else if let Some(name) = line.strip_prefix("cfn=").or(line.strip_prefix("fn=")) {
            let number = name.split(' ').next()?;
            if name.contains(TIMED) {
                let _ = timed_numbers.insert(number.to_owned());
            }
            callee_is_timed = line.starts_with("cfn=") && timed_numbers.contains(number);
        } else if behind_calls && callee_is_timed {
            timed += words(line).last()?.parse::<u64>().ok()?;
        }
        behind_calls = line.starts_with("calls=");
    }
    total.filter(|total| *total >= timed).map(|total| (total, timed))
}

/// xtask/instructions.toml.
struct Accepted {
    tolerance_percent: u64,
    counts: BTreeMap<String, u64>,
}

impl Accepted {
    fn file() -> PathBuf {
        root().join("xtask/instructions.toml")
    }

    fn read() -> Outcome<Accepted> {
        let text = std::fs::read_to_string(Accepted::file()).unwrap_or_default();
        Accepted::parse(&text)
    }

    fn parse(text: &str) -> Outcome<Accepted> {
        let mut accepted = Accepted { tolerance_percent: 10, counts: BTreeMap::new() };
        for line in text.lines().map(|line| line.split('#').next().unwrap_or("").trim()) {
            if line.is_empty() {
                continue;
            }
            let wrong = || format!("xtask/instructions.toml: `{line}` is not `name = number`");
            let (name, number) = line.split_once('=').ok_or_else(wrong)?;
            let number = number.trim().parse().map_err(|_| wrong())?;
            if name.trim() == "tolerance_percent" {
                accepted.tolerance_percent = number;
            } else {
                let _ = accepted.counts.insert(name.trim().to_owned(), number);
            }
        }
        Ok(accepted)
    }

    fn write(&self) -> Outcome {
        let mut text = String::from(
            "# Accepted instructions per operation, release build, counted by callgrind.\n\
             # Written by `cargo xtask instructions --accept`; say in the commit why a count grew.\n",
        );
        let _ = writeln!(text, "tolerance_percent = {}", self.tolerance_percent);
        for (case, count) in &self.counts {
            let _ = writeln!(text, "{case} = {count}");
        }
        std::fs::write(Accepted::file(), text).map_err(|e| format!("xtask/instructions.toml: {e}"))
    }

    /// Cases that were accepted once and are not counted any more, in words: `--accept` takes them out.
    fn vanished(&self, found: &BTreeMap<String, u64>) -> Vec<String> {
        let gone = self.counts.keys().filter(|case| !found.contains_key(*case));
        gone.map(|case| {
            format!("{case} is accepted in xtask/instructions.toml and was not counted")
        })
        .collect()
    }

    /// More than was accepted fails; much less is worth accepting, and said.
    fn compare(&self, case: &str, found: u64) -> Outcome {
        let Some(&accepted) = self.counts.get(case) else {
            return Err(format!("{case}: {found} instructions, and no count is accepted yet"));
        };
        let slack = (accepted * self.tolerance_percent).div_ceil(100);
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
            Accepted::parse("tolerance_percent = 10 # a new compiler\npost = 50\n").unwrap();
        assert!(accepted.compare("post", 55).is_ok());
        assert!(accepted.compare("post", 56).is_err());
        assert!(accepted.compare("post", 10).is_ok());
        assert!(accepted.compare("poll", 10).unwrap_err().contains("no count is accepted"));
    }

    #[test]
    fn what_the_clock_calls_for_is_told_apart_from_the_operation() {
        let file = "summary: 1000\n\nfn=(1) poll\n7 300\ncfn=(2) State::slow_progress\ncalls=4 0\n\
                    8 250\ncfn=(3) push\ncalls=9 0\n9 100\n\nfn=(2)\n5 50\ncfn=(4) maintain\n\
                    calls=4 0\n6 200\n\nfn=(1)\ncfn=(2)\ncalls=1 0\n8 50\n\ntotals: 1000\n";
        assert_eq!(counted(file), Some((1000, 300)));
        assert_eq!(counted(&file.replace("slow_progress", "other")), Some((1000, 0)));
        assert_eq!(counted("fn=(1) poll\n7 300\n"), None);
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
