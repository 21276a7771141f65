//! `cargo xtask lab`: tests on hosts with real RDMA drivers, on a machine that has none.
//!
//! Every host is a virtual machine with Debian's kernel, soft RoCE on its links, and this machine's files as its root. `tests/lab`
//! contains the scripts and programs that run on the hosts. `docs/lab.md` explains how to write a test.

mod hosts;
mod kernel;
mod machine;
mod modules;
mod network;
mod pace;
mod parts;
mod run;
mod show;
mod test;

use crate::check::{Count, closing_line, suite};
use crate::setup;
use crate::sh::{Outcome, read, root, target, write};
pub(crate) use hosts::Hosts;
use machine::Lab;
use parts::Chosen;
pub(crate) use parts::{Selection, turn};
use run::Run;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use test::{Test, Verdict};

const HELP: &str = "\
cargo xtask lab [FILTER...]        run the tests of tests/lab/tests whose names contain a FILTER
cargo xtask lab --core             run the tests of the core
cargo xtask lab --part N           run one of the parts, 0 to 3, that share the rest
cargo xtask lab --ci               run the core, and the part whose turn it is at this commit
cargo xtask lab --list             name all tests
cargo xtask lab --run 'COMMAND'    run a command on every host at once
cargo xtask lab --on h0 'COMMAND' --on h1 'COMMAND'
                                   run a command of its own on each host
cargo xtask lab --file FILE        run one test from a file anywhere
cargo xtask lab --shell            keep the hosts up and run what comes, line by line: `COMMAND` or `h0 COMMAND`

  --hosts N  --devices N  --timeout SECONDS   of --run, --on and --shell (2, 1, 60)
  --cpus N                                    processors of each host (what a test asks for, or 1)
  --repeat N                                  run the tests so often, one after another, to see which are unsteady
  --log                                       show the output of tests that pass, too
";

pub(crate) fn run(words: &[&str]) -> Outcome {
    let Some(wish) = Wish::parse(words)? else {
        print!("{HELP}");
        return Ok(());
    };
    if let What::List = wish.what {
        for test in test::all()? {
            println!("{:<32} {}", test.name, test.about);
        }
        return Ok(());
    }
    let missing =
        if wish.what.needs_build() { suite::build_for_the_lab() } else { Count::default() };
    if !missing.failed.is_empty() {
        return Err("what the lab runs does not build: see above".into());
    }
    let count = wish.tried()?;
    for reason in &count.skipped {
        println!("skipped: {reason}");
    }
    closing_line(&count).map_err(|_| count.failed.join("; "))
}

/// Runs the lab as one step of `cargo xtask test`.
pub(crate) fn check(selection: Selection) -> Count {
    let wish = Wish { what: What::Tests(selection), ..Wish::default() };
    wish.tried().into()
}

/// Returns the kernel to boot, or the reason why the lab cannot run on this machine.
fn possible() -> Outcome<kernel::Kernel> {
    setup::install(setup::LAB)?;
    kernel::prepared()
}

enum What {
    Tests(Selection),
    File(PathBuf),
    /// Commands, each with the host that runs it; a command without a host runs on every host.
    Commands(Vec<(Option<String>, String)>),
    Shell,
    List,
}

impl What {
    /// Checks whether the command runs the tests, whose programs have to be built from this tree.
    fn needs_build(&self) -> bool {
        matches!(self, What::Tests(_) | What::File(_))
    }
}

struct Wish {
    what: What,
    hosts: usize,
    devices: usize,
    /// The number of processors of each host, if it is set for all tests.
    cpus: Option<usize>,
    timeout: Duration,
    repeat: usize,
    log: bool,
}

impl Default for Wish {
    fn default() -> Wish {
        Wish {
            what: What::Tests(Selection::All),
            hosts: 2,
            devices: 1,
            cpus: None,
            timeout: Duration::from_secs(60),
            repeat: 1,
            log: false,
        }
    }
}

impl Wish {
    fn parse(words: &[&str]) -> Outcome<Option<Wish>> {
        let mut wish = Wish::default();
        let mut commands = Vec::new();
        let mut words = words.iter().copied();
        while let Some(word) = words.next() {
            let mut next = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word {
                "--help" | "-h" => return Ok(None),
                "--list" => wish.what = What::List,
                "--core" => wish.what = What::Tests(Selection::Core),
                "--part" => {
                    let part = number(next()?, 0, parts::PARTS - 1)?;
                    wish.what = What::Tests(Selection::Part(part));
                }
                "--ci" => wish.what = What::Tests(Selection::Ci),
                "--shell" => wish.what = What::Shell,
                "--file" => wish.what = What::File(next()?.into()),
                "--run" => commands.push((None, next()?.to_owned())),
                "--on" => commands.push((Some(host_name(next()?)?), next()?.to_owned())),
                "--hosts" => wish.hosts = number(next()?, 1, 9)?,
                "--devices" => wish.devices = number(next()?, 0, 2)?,
                "--cpus" => wish.cpus = Some(number(next()?, 1, 8)?),
                "--repeat" => wish.repeat = number(next()?, 1, 1000)?,
                "--timeout" => {
                    wish.timeout = Duration::from_secs(number(next()?, 1, 3600)? as u64);
                }
                "--log" => wish.log = true,
                filter if !filter.starts_with('-') => match &mut wish.what {
                    What::Tests(Selection::Named(filters)) => filters.push(filter.to_owned()),
                    What::Tests(all @ Selection::All) => {
                        *all = Selection::Named(vec![filter.to_owned()]);
                    }
                    _ => return Err(format!("{filter}: tests are not chosen here")),
                },
                _ => return Err(format!("no such option: {word}; see cargo xtask lab --help")),
            }
        }
        if !commands.is_empty() {
            wish.what = What::Commands(commands);
        }
        Ok(Some(wish))
    }

    fn tried(&self) -> Outcome<Count> {
        match possible() {
            Ok(kernel) => self.fulfil(&kernel),
            Err(reason) => self.none_ran(&reason),
        }
    }

    /// Counts each test as skipped if the lab cannot run.
    fn none_ran(&self, reason: &str) -> Outcome<Count> {
        let What::Tests(selection) = &self.what else { return Err(reason.into()) };
        let Chosen { tests, mut left_out, .. } = selection.chosen()?;
        left_out.extend(tests.iter().map(|test| format!("{}: {reason}", test.name)));
        Ok(Count { skipped: left_out, ..Count::default() })
    }

    fn fulfil(&self, kernel: &kernel::Kernel) -> Outcome<Count> {
        let started = Instant::now();
        let folder = machine::results()?;
        let Chosen { mut tests, mut left_out, part } = match &self.what {
            What::Tests(selection) => selection.chosen()?,
            What::File(file) => {
                Chosen { tests: vec![foreign_test(&folder, file)?], ..Chosen::default() }
            }
            _ => Chosen::default(),
        };
        // Tests of modules that need the kernel's headers are skipped if there are no headers.
        let needs_modules = tests.is_empty() || tests.iter().any(|test| test.modules);
        if let Some(reason) = if needs_modules { modules::missing(kernel)? } else { None } {
            println!("there are no modules of tests/lab: {reason}");
            let without = |test: &Test| format!("{}: {reason}", test.name);
            left_out.extend(tests.iter().filter(|test| test.modules).map(without));
            tests.retain(|test| !test.modules);
        }
        let boot = |cpus, hosts| Lab::boot(kernel, &folder, hosts, self.cpus.unwrap_or(cpus));
        let up = || boot(1, self.hosts)?.ok_or_else(|| machine::NOT_UP.to_owned());
        let mut count = match &self.what {
            What::Commands(commands) => {
                command(&mut up()?, &self.command_test(&folder, "command", commands)?)?
            }
            What::Shell => self.shell(up()?, &folder)?,
            _ => {
                let mut run = Run { log: self.log, ..Run::default() };
                let outcome = run.tests(&repeated(tests, self.repeat), boot);
                show::table(&run.rows, started.elapsed());
                run.count.failed.extend(outcome.err());
                run.count
            }
        };
        for reason in &left_out {
            println!("skipped: {reason}");
        }
        count.skipped.extend(left_out);
        if let Some(part) = part.filter(|_| count.failed.is_empty() && count.skipped.is_empty()) {
            parts::was_green(part);
        }
        println!("logs: {}", folder.display());
        Ok(count)
    }

    fn command_test(
        &self,
        folder: &Path,
        name: &str,
        commands: &[(Option<String>, String)],
    ) -> Outcome<Test> {
        let part = |(host, command): &(Option<String>, String)| {
            format!("{}() {{\n{command}\n}}\n", host.as_deref().unwrap_or("every"))
        };
        let test = Test::written(folder, name, &commands.iter().map(part).collect::<String>())?;
        Ok(Test { hosts: self.hosts, devices: self.devices, timeout: self.timeout, ..test })
    }

    fn shell(&self, mut lab: Lab, folder: &Path) -> Outcome<Count> {
        write(folder.join("shell"), "")?;
        println!("a line is a command for every host, or `h0 COMMAND` for one; end with ctrl-d");
        let mut count = Count::default();
        for (number, line) in std::io::stdin().lock().lines().enumerate() {
            let line = line.map_err(|e| format!("stdin: {e}"))?;
            if line.trim().is_empty() {
                continue;
            }
            let named = line.split_once(' ').filter(|(host, _)| host_name(host).is_ok());
            let words = named.map_or((None, &*line), |(host, command)| (Some(host), command));
            let words = (words.0.map(str::to_owned), words.1.to_owned());
            let test = self.command_test(folder, &format!("command-{}", number + 1), &[words])?;
            count.add(command(&mut lab, &test)?);
            if !lab.whole {
                return Err("a host was lost; see its console among the logs".into());
            }
        }
        Ok(count)
    }
}

fn command(lab: &mut Lab, test: &Test) -> Outcome<Count> {
    let ended = lab.run(test, &mut |host, line| println!("h{host}| {line}"))?;
    Ok(Count::of(test, &ended.verdict, ended.time))
}

/// Makes a test from a file in any directory: the hosts mount that directory under another path, or not at all.
fn foreign_test(folder: &Path, file: &Path) -> Outcome<Test> {
    let text = read(file)?;
    // The name must be one word of the hosts' command line.
    let name = file.file_stem().unwrap_or_default().to_string_lossy().replace(' ', "-");
    Test::written(folder, &name, &text)
}

impl Count {
    fn of(test: &Test, verdict: &Verdict, time: Duration) -> Count {
        let name = &test.name;
        let (word, count) = match verdict {
            Verdict::Passed => (format!("ok ({})", crate::sh::show_time(time)), Count::one(Ok(()))),
            Verdict::Skipped(why) => {
                (format!("skipped: {why}"), Count::skip(format!("{name}: {why}")))
            }
            Verdict::Failed(why) | Verdict::Silent(why) => {
                (format!("FAILED: {why}"), Count::one(Err(format!("{name}: {why}"))))
            }
        };
        println!("test {name} ... {word}");
        count
    }
}

fn repeated(mut tests: Vec<Test>, times: usize) -> Vec<Test> {
    let once = tests.clone();
    for time in 2..=times {
        let named = |test: &Test| Test { name: format!("{}.{time}", test.name), ..test.clone() };
        tests.extend(once.iter().map(named));
    }
    tests
}

fn host_name(word: &str) -> Outcome<String> {
    let digits = word.strip_prefix('h').filter(|rest| rest.len() == 1);
    match digits.and_then(|rest| rest.parse::<u8>().ok()) {
        Some(_) => Ok(word.to_owned()),
        None => Err(format!("{word} is no host: they are h0, h1, ...")),
    }
}

fn number(word: &str, least: usize, most: usize) -> Outcome<usize> {
    match word.parse() {
        Ok(n) if (least..=most).contains(&n) => Ok(n),
        _ => Err(format!("{word} is not a number from {least} to {most}")),
    }
}

fn scripts() -> PathBuf {
    root().join("tests/lab")
}

fn folder() -> PathBuf {
    target().join("lab")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_lab_every_test_of_the_selection_is_skipped_by_name() {
        let none_ran = |words: &[&str]| {
            let count = Wish::parse(words).unwrap().expect("no help").none_ran("no qemu").unwrap();
            assert_eq!((count.passed, count.failed.len()), (0, 0));
            count.skipped
        };
        let all = none_ran(&[]);
        assert_eq!(all.len(), test::all().unwrap().len());
        let core = none_ran(&["--core"]);
        assert!(core.len() > 5 && core.len() < all.len() / 2);
        assert!(core.iter().all(|skip| skip.ends_with(": no qemu")));
        assert_eq!(none_ran(&["netem"]), ["netem: no qemu"]);
        let by_name = "ofi-verbs-conformance";
        assert_eq!(none_ran(&[by_name]), [format!("{by_name}: no qemu")]);
    }

    #[test]
    fn programs_are_built_before_tests_and_before_nothing_else() {
        let needs_build = |words: &[&str]| {
            let wish = Wish::parse(words).unwrap().expect("it is no call for help");
            wish.what.needs_build()
        };
        for words in [&[][..], &["x"], &["x", "y", "--log"], &["--file", "/"], &["--ci"]] {
            assert!(needs_build(words), "{words:?}");
        }
        for words in [&["--run", "x"][..], &["--on", "h0", "x"], &["--shell"], &["--list"]] {
            assert!(!needs_build(words), "{words:?}");
        }
        assert!(Wish::parse(&["--help"]).unwrap().is_none());
        for words in [["--shell", "x"], ["--core", "x"], ["--part", "4"]] {
            assert!(Wish::parse(&words).is_err(), "{words:?}");
        }
    }
}
