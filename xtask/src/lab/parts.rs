//! The tests of a run: all tests, or the core and one of four parts that together contain the other tests.

use super::kernel;
use super::test::{self, Test};
use crate::sh::{Outcome, capture, command, on, read};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;

/// The number of parts that share the tests outside the core.
pub(super) const PARTS: usize = 4;

pub(crate) enum Selection {
    All,
    /// The tests whose names contain one of these texts.
    Named(Vec<String>),
    /// The tests with `core=1`.
    Core,
    Part(usize),
    /// The core, and the part whose turn it is at this commit.
    Ci,
}

#[derive(Default)]
pub(super) struct Chosen {
    pub(super) tests: Vec<Test>,
    /// The tests that run only by name, each with the reason.
    pub(super) left_out: Vec<String>,
    pub(super) part: Option<usize>,
}

impl Selection {
    /// Finds the tests. If a part is selected, prints it and the last successful commit of each part.
    pub(super) fn chosen(&self) -> Outcome<Chosen> {
        let all = test::all()?;
        let parts = parts(&all);
        let part = match self {
            Selection::Part(part) => Some(*part),
            Selection::Ci => Some(turn()),
            _ => None,
        };
        let mut chosen = Chosen { part, ..Chosen::default() };
        for test in all {
            let is_in_part = part.is_some() && part == parts.get(&test.name).copied();
            let is_chosen = match self {
                Selection::All => true,
                Selection::Named(words) => words.iter().any(|word| test.name.contains(word)),
                Selection::Core | Selection::Ci if test.core => true,
                _ => is_in_part,
            };
            let is_named = matches!(self, Selection::Named(words) if words.contains(&test.name));
            match &test.by_name {
                Some(why) if is_chosen && !is_named => {
                    let name = &test.name;
                    let words = format!("{name}: {why}; `cargo xtask lab {name}` runs it");
                    chosen.left_out.push(words);
                }
                _ if is_chosen => chosen.tests.push(test),
                _ => {}
            }
        }
        if chosen.tests.is_empty() && chosen.left_out.is_empty() {
            return Err("no test has such a name; see --list".into());
        }
        chosen.tests.sort_by_key(Test::boot);
        if let Some(part) = part {
            let core = chosen.tests.iter().filter(|test| test.core).count();
            println!("{core} tests of the core, {} of part {part}", chosen.tests.len() - core);
            let text = kernel::cache().and_then(|cache| read(cache.join("parts")));
            for part in 0..PARTS {
                let green = last_green(text.as_deref().unwrap_or_default(), part);
                println!("part {part}: {}", green.unwrap_or("not yet green on this machine"));
            }
        }
        Ok(chosen)
    }
}

/// Maps the name of each test outside the core to its part, except those that run only by name. The tests are in the order of their
/// boots, so that a part needs a small number of boots, and are divided into parts of about equal time. A new test moves only tests
/// next to a boundary between parts.
fn parts(tests: &[Test]) -> HashMap<String, usize> {
    let mut rest: Vec<&Test> =
        tests.iter().filter(|test| !test.core && test.by_name.is_none()).collect();
    rest.sort_by_key(|test| (test.boot(), test.hosts.min(2), &test.name));
    let whole: usize = rest.iter().map(|test| cost(test)).sum();
    let mut before = 0;
    let part = |test: &&Test| {
        let middle = 2 * before + cost(test);
        before += cost(test);
        (test.name.clone(), middle * PARTS / (2 * whole).max(1))
    };
    rest.iter().map(part).collect()
}

/// Returns a measure of the time that a test takes; two tests of one host run at the same time.
fn cost(test: &Test) -> usize {
    test.timeout.as_secs() as usize * test.hosts.min(2)
}

pub(crate) fn turn() -> usize {
    let commits = git(&["rev-list", "--count", "HEAD"]).and_then(|count| count.parse().ok());
    if commits.is_none() {
        println!("git does not count the commits here: part 0 is run");
    }
    commits.unwrap_or(0) % PARTS
}

fn git(args: &[&str]) -> Option<String> {
    capture(&mut command("git", args)).ok().map(|said| said.trim().to_owned())
}

fn last_green(text: &str, part: usize) -> Option<&str> {
    text.lines().rev().find_map(|line| line.strip_prefix(&format!("{part} ")))
}

pub(super) fn was_green(part: usize) {
    let commit = git(&["describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]);
    let commit = commit.unwrap_or_else(|| "a commit without a name".into());
    let file = kernel::cache().map(|cache| cache.join("parts")).and_then(|parts| {
        let file = File::options().append(true).create(true).open(&parts);
        on(parts, file.and_then(|mut file| writeln!(file, "{part} green at {commit}")))
    });
    if let Err(text) = file {
        println!("that part {part} is green cannot be kept: {text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn all() -> Vec<Test> {
        test::all().unwrap()
    }

    fn sums(tests: &[Test], parts: &HashMap<String, usize>) -> [usize; PARTS] {
        let mut sums = [0; PARTS];
        for test in tests {
            if let Some(part) = parts.get(&test.name) {
                sums[*part] += cost(test);
            }
        }
        sums
    }

    #[test]
    fn every_test_is_in_the_core_or_in_one_part_or_runs_by_its_name_alone() {
        let (tests, parts) = (all(), parts(&all()));
        for test in &tests {
            let places = [test.core, parts.contains_key(&test.name), test.by_name.is_some()];
            assert_eq!(places.iter().filter(|is_there| **is_there).count(), 1, "{}", test.name);
        }
        let ran = |selection: Selection| selection.chosen().unwrap().tests.len();
        let whole = (0..PARTS).map(|part| ran(Selection::Part(part))).sum::<usize>();
        assert_eq!(whole + ran(Selection::Core), ran(Selection::All));
        let ci = Selection::Ci.chosen().unwrap();
        assert_eq!(ci.tests.len(), ran(Selection::Core) + ran(Selection::Part(ci.part.unwrap())));
    }

    #[test]
    fn parts_take_about_equally_long_and_the_core_a_quarter_of_all_at_most() {
        let tests = all();
        let sums = sums(&tests, &parts(&tests));
        let longest = tests.iter().map(cost).max().unwrap();
        let (least, most) = (sums.iter().min().unwrap(), sums.iter().max().unwrap());
        assert!(most - least <= longest, "{sums:?}");
        let core: usize = tests.iter().filter(|test| test.core).map(cost).sum();
        assert!(4 * core <= core + sums.iter().sum::<usize>(), "{core} {sums:?}");
    }

    #[test]
    fn a_new_test_moves_few_others_to_another_part() {
        let mut tests = all();
        let before = parts(&tests);
        let mut new = tests[tests.len() / 2].clone();
        new.name = "aaa".into();
        (new.core, new.timeout) = (false, Duration::from_secs(120));
        tests.insert(0, new);
        let after = parts(&tests);
        let moved = before.iter().filter(|(name, part)| after[*name] != **part).count();
        assert!(moved <= PARTS, "{moved}");
    }

    #[test]
    fn the_last_green_commit_of_a_part_is_its_last_line() {
        let text = "2 green at abc\n0 green at def\n2 green at ghi\n";
        let of = |part| last_green(text, part);
        assert_eq!((of(0), of(1), of(2)), (Some("green at def"), None, Some("green at ghi")));
    }
}
