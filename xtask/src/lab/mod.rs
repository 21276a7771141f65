//! `cargo xtask lab`: tests on hosts with real RDMA drivers, on a machine that has none.
//!
//! Every host is a virtual machine with Debian's kernel, soft RoCE on its links and this machine's files
//! as its root; `tests/lab` holds what runs there. `docs/lab.md` is for who writes a test.

mod hosts;
mod kernel;
mod machine;
mod modules;
mod network;
mod pace;
mod show;
mod test;

use crate::check::{Count, suite};
use crate::setup;
use crate::sh::{Outcome, root, target, which};
pub(crate) use hosts::Hosts;
use machine::{Ended, Lab};
use modules::Built;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use test::{Test, Verdict};

const HELP: &str = "\
cargo xtask lab [FILTER...]        run the tests of tests/lab/tests whose names contain a FILTER
cargo xtask lab --list             name them
cargo xtask lab --run 'COMMAND'    run a command on every host at once
cargo xtask lab --on h0 'COMMAND' --on h1 'COMMAND'
                                   run a command of its own on each host
cargo xtask lab --file FILE        run one test from a file anywhere
cargo xtask lab --shell            keep the hosts up and run what comes, line by line: `COMMAND` or `h0 COMMAND`

  --hosts N  --devices N  --timeout SECONDS   of --run, --on and --shell (2, 1, 60)
  --cpus N                                    processors of each host (what a test asks for, or 1)
  --second-try                                a test that fails is run once more, on hosts that were booted anew
  --repeat N                                  run the tests so often, one after another, to see which are unsteady
  --log                                       show the output of tests that pass, too
";

/// What stands behind `lab` on the command line.
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
    setup::install_or_say(setup::LAB);
    let missing =
        if wish.what.needs_build() { suite::build_for_the_lab() } else { Count::default() };
    if !missing.failed.is_empty() {
        return Err("what the lab runs does not build: see above".into());
    }
    let count = match possible() {
        Ok(kernel) => wish.fulfil(&kernel)?,
        Err(reason) => none_ran(&reason),
    };
    for reason in &count.skipped {
        println!("skipped: {reason}");
    }
    println!(
        "{} passed, {} failed, {} skipped",
        count.passed,
        count.failed.len(),
        count.skipped.len()
    );
    if count.failed.is_empty() { Ok(()) } else { Err(count.failed.join("; ")) }
}

/// The lab as one step of `cargo xtask test`: what failed and what was skipped is named.
pub(crate) fn check() -> Count {
    setup::install_or_say(setup::LAB);
    let kernel = match possible() {
        Ok(kernel) => kernel,
        Err(reason) => return none_ran(&reason),
    };
    let all = Wish { what: What::Tests(Vec::new()), second_try: true, ..Wish::default() };
    all.fulfil(&kernel).unwrap_or_else(|text| Count { failed: vec![text], ..Count::default() })
}

/// Without a lab each of its tests is skipped, and counts as one.
fn none_ran(reason: &str) -> Count {
    let tests = match test::all() {
        Ok(tests) => tests,
        Err(text) => return Count { failed: vec![text], ..Count::default() },
    };
    let skipped = tests.iter().map(|test| format!("{}: {reason}", test.name)).collect();
    Count { skipped, ..Count::default() }
}

/// The kernel to boot, or why there can be no lab here.
fn possible() -> Result<kernel::Kernel, String> {
    for (program, package) in [
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("busybox", "busybox-static"),
        ("cpio", "cpio"),
        ("modprobe", "kmod"),
        ("rdma", "iproute2"),
        ("unshare", "util-linux"),
    ] {
        if which(program).is_none() {
            return Err(format!("no {program}: apt-get install {package}"));
        }
    }
    kernel::prepared()
}

enum What {
    /// The tests whose names contain one of these; all where there are none.
    Tests(Vec<String>),
    File(PathBuf),
    /// A command and the host it is for; every host where none is named.
    Commands(Vec<(Option<String>, String)>),
    Shell,
    List,
}

impl What {
    /// Whether it runs the tests, whose programs have to be those of this tree.
    fn needs_build(&self) -> bool {
        matches!(self, What::Tests(_) | What::File(_))
    }
}

struct Wish {
    what: What,
    hosts: usize,
    devices: usize,
    /// Of every host, whatever its test asks for.
    cpus: Option<usize>,
    timeout: Duration,
    repeat: usize,
    /// A test that fails is run once more, on hosts that were booted anew.
    second_try: bool,
    log: bool,
}

impl Default for Wish {
    fn default() -> Wish {
        Wish {
            what: What::Tests(Vec::new()),
            hosts: 2,
            devices: 1,
            cpus: None,
            timeout: Duration::from_secs(60),
            repeat: 1,
            second_try: false,
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
                "--shell" => wish.what = What::Shell,
                "--file" => wish.what = What::File(absolute(next()?)?),
                "--run" => commands.push((None, next()?.to_owned())),
                "--on" => commands.push((Some(host_name(next()?)?), next()?.to_owned())),
                "--hosts" => wish.hosts = number(next()?, 1, 9)?,
                "--devices" => wish.devices = number(next()?, 0, 2)?,
                "--cpus" => wish.cpus = Some(number(next()?, 1, 8)?),
                "--repeat" => wish.repeat = number(next()?, 1, 1000)?,
                "--timeout" => {
                    wish.timeout = Duration::from_secs(number(next()?, 1, 3600)? as u64);
                }
                "--second-try" => wish.second_try = true,
                "--log" => wish.log = true,
                filter if !filter.starts_with('-') => match &mut wish.what {
                    What::Tests(filters) => filters.push(filter.to_owned()),
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

    fn fulfil(&self, kernel: &kernel::Kernel) -> Outcome<Count> {
        let started = Instant::now();
        let folder = machine::results()?;
        let mut left_out = Vec::new();
        let tests = match &self.what {
            What::Tests(filters) => {
                let mut tests = test::all()?;
                tests.retain(|test| {
                    filters.is_empty() || filters.iter().any(|filter| test.name.contains(filter))
                });
                tests.retain(|test| match &test.by_name {
                    Some(why) if !filters.contains(&test.name) => {
                        let name = &test.name;
                        left_out.push(format!("{name}: {why}; `cargo xtask lab {name}` runs it"));
                        false
                    }
                    _ => true,
                });
                // Tests of like hosts follow each other: others are booted anew.
                tests.sort_by_key(Test::boot);
                if tests.is_empty() {
                    return Err(format!(
                        "no test's name contains {}; see --list",
                        filters.join(" or ")
                    ));
                }
                // What is built on the headers of the kernel is skipped where there are none.
                if tests.iter().any(|test| test.modules) {
                    if let Built::Not(reason) = modules::build(kernel)? {
                        let without = |test: &Test| format!("{}: {reason}", test.name);
                        left_out.extend(tests.iter().filter(|test| test.modules).map(without));
                        tests.retain(|test| !test.modules);
                    }
                }
                tests
            }
            What::File(file) => vec![self.foreign_test(&folder, file)?],
            What::Commands(_) | What::Shell | What::List => Vec::new(),
        };
        if !matches!(self.what, What::Tests(_)) {
            if let Built::Not(reason) = modules::build(kernel)? {
                println!("there are no modules of tests/lab: {reason}");
            }
        }
        let tests = repeated(tests, self.repeat);
        // Longer than everything in it may take, so that a machine whose lab was killed ends by itself.
        let deadline = tests.iter().map(|test| test.timeout).sum::<Duration>() * 2
            + self.timeout
            + Duration::from_secs(if matches!(self.what, What::Shell) { 7200 } else { 300 });
        let boot =
            |cpus, hosts| Lab::boot(kernel, &folder, hosts, self.cpus.unwrap_or(cpus), deadline);
        let mut count = match &self.what {
            What::Commands(commands) => {
                let test = self.command_test(&folder, 0, commands)?;
                let ended = boot(1, self.hosts)?
                    .run(&test, &mut |host, line| println!("h{host}| {line}"))?;
                Count::default().with(&test, &ended)
            }
            What::Shell => self.shell(&mut boot(1, self.hosts)?, &folder)?,
            _ => self.tests(boot, &tests, started)?,
        };
        for reason in &left_out {
            println!("skipped: {reason}");
        }
        count.skipped.extend(left_out);
        println!("logs: {}", folder.display());
        Ok(count)
    }

    fn tests(
        &self,
        boot: impl Fn(usize, usize) -> Outcome<Lab>,
        tests: &[Test],
        started: Instant,
    ) -> Outcome<Count> {
        let mut count = Count::default();
        let mut rows = Vec::new();
        // Others are booted anew: rdma_rxe is not trusted to work on a second device after a run of tests on one, since
        // messages were lost there for good.
        for like in tests.chunk_by(|a, b| a.boot() == b.boot()) {
            let (mut alone, mut together): (Vec<Test>, Vec<Test>) =
                like.iter().cloned().partition(|test| test.hosts == 1);
            // The longest first, so that none is left for the end; but what spoils its host behind all others.
            alone.sort_by_key(|test| (test.last, std::cmp::Reverse(test.timeout)));
            together.sort_by_key(|test| test.last);
            let hosts = like.iter().map(|test| test.hosts).max().unwrap_or(1);
            let at_once = if alone.len() > 1 { hosts.max(2) } else { hosts };
            let boot = |rows: &mut Vec<show::Row>| -> Outcome<Lab> {
                let lab = boot(like.first().map_or(1, |test| test.cpus), at_once)?;
                let name = format!("({} hosts start)", lab.hosts());
                rows.push(show::Row { name, time: lab.boot_time(), verdict: "" });
                Ok(lab)
            };
            let mut lab = boot(&mut rows)?;
            let mut again = Vec::new();
            let mut over = |test: &Test, ended: Ended, count: &mut Count| {
                if let (Verdict::Failed(reason), true) = (&ended.verdict, self.second_try) {
                    // It is shown as it failed; what passes then was the emulation's fault, or is unsteady.
                    println!("test {} ... FAILED, and is tried again: {reason}", test.name);
                    ended.story.print_failure();
                    again.push((test.clone(), reason.clone()));
                } else {
                    *count = std::mem::take(count).with(test, &ended);
                    self.show(&ended);
                }
                let name = test.name.clone();
                rows.push(show::Row { name, time: ended.time, verdict: ended.verdict.word() });
            };
            let spoils = alone.iter().any(|test| test.last);
            loop {
                alone = lab.run_alone(&alone, |test, ended| over(test, ended, &mut count))?;
                if alone.is_empty() {
                    break;
                }
                drop(lab);
                lab = boot(&mut Vec::new())?;
            }
            let mut lab = Some(lab).filter(|lab| lab.whole() && !spoils);
            for test in &together {
                let mut running = match lab.take() {
                    Some(lab) => lab,
                    None => boot(&mut Vec::new())?,
                };
                let ended = running.run(test, &mut |_, _| {})?;
                // Where a test failed the machine may be what is broken, as a network card that sends nothing any more: the
                // next would fail there, too, and take its whole time for it.
                let failed = matches!(ended.verdict, Verdict::Failed(_));
                over(test, ended, &mut count);
                lab = Some(running).filter(|lab| lab.whole() && !failed && !test.last);
            }
            drop(lab);
            for (test, reason) in again {
                let mut lab = boot(&mut rows)?;
                let again = Test { name: format!("{}.again", test.name), ..test.clone() };
                let ended = lab.run(&again, &mut |_, _| {})?;
                count = count.at_the_second_try(&test, &reason, &ended);
                self.show(&ended);
                let name = again.name.clone();
                rows.push(show::Row { name, time: ended.time, verdict: ended.verdict.word() });
            }
        }
        show::table(&rows, started.elapsed());
        Ok(count)
    }

    /// What a test said, when somebody wants to read it.
    fn show(&self, ended: &Ended) {
        if matches!(ended.verdict, Verdict::Failed(_)) {
            ended.story.print_failure();
        } else if self.log {
            ended.story.print();
        }
    }

    /// A test from a file that the hosts may not see where it lies: /tmp, for example, is theirs.
    fn foreign_test(&self, folder: &Path, file: &Path) -> Outcome<Test> {
        let mut test = Test::read(file)?;
        let name = format!("{}.sh", test.name);
        let _ = std::fs::copy(file, folder.join(&name))
            .map_err(|e| format!("{}: {e}", file.display()))?;
        test.file = Path::new("/run/lab").join(name);
        Ok(test)
    }

    /// One test that runs these commands.
    fn command_test(
        &self,
        folder: &Path,
        number: usize,
        commands: &[(Option<String>, String)],
    ) -> Outcome<Test> {
        let name = if number == 0 { "command".to_owned() } else { format!("command-{number}") };
        let file = folder.join(format!("{name}.sh"));
        let text: String = commands
            .iter()
            .map(|(host, command)| {
                format!("{}() {{\n{command}\n}}\n", host.as_deref().unwrap_or("every"))
            })
            .collect();
        std::fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
        Ok(Test {
            name: name.clone(),
            about: String::new(),
            // Where the hosts see it.
            file: Path::new("/run/lab").join(format!("{name}.sh")),
            hosts: self.hosts,
            devices: self.devices,
            cpus: self.cpus.unwrap_or(1),
            timeout: self.timeout,
            modules: false,
            last: false,
            by_name: None,
        })
    }

    fn shell(&self, lab: &mut Lab, folder: &Path) -> Outcome<Count> {
        std::fs::write(folder.join("shell"), "")
            .map_err(|e| format!("{}: {e}", folder.display()))?;
        println!("a line is a command for every host, or `h0 COMMAND` for one; end with ctrl-d");
        let mut count = Count::default();
        for (number, line) in std::io::stdin().lock().lines().enumerate() {
            let line = line.map_err(|e| format!("stdin: {e}"))?;
            if line.trim().is_empty() {
                continue;
            }
            let command = match line.split_once(' ') {
                Some((host, command)) if host_name(host).is_ok() => {
                    (Some(host.to_owned()), command.to_owned())
                }
                _ => (None, line.clone()),
            };
            let test = self.command_test(folder, number + 1, &[command])?;
            let ended = lab.run(&test, &mut |host, line| println!("h{host}| {line}"))?;
            count = count.with(&test, &ended);
            if !lab.whole() {
                return Err("a host was lost; see its console among the logs".into());
            }
        }
        Ok(count)
    }
}

impl Count {
    /// Says how a test ended, and counts it.
    fn with(mut self, test: &Test, ended: &Ended) -> Count {
        let name = &test.name;
        match &ended.verdict {
            Verdict::Passed => {
                println!("test {name} ... ok ({})", crate::sh::show_time(ended.time));
                self.passed += 1;
            }
            Verdict::Skipped(reason) => {
                println!("test {name} ... skipped: {reason}");
                self.skipped.push(format!("{name}: {reason}"));
            }
            Verdict::Failed(reason) => {
                println!("test {name} ... FAILED: {reason}");
                self.failed.push(format!("{name}: {reason}"));
            }
        }
        self
    }

    /// The same of a test that failed at its first try. When it passes now it is unsteady: that is neither a pass, which
    /// nobody could rely on, nor a failure, so it is counted among what was not shown, with both.
    fn at_the_second_try(self, test: &Test, reason: &str, ended: &Ended) -> Self {
        if !matches!(ended.verdict, Verdict::Passed) {
            return self.with(test, ended);
        }
        self.unsteady(&test.name, reason)
    }

    fn unsteady(mut self, name: &str, reason: &str) -> Self {
        println!("test {name} passed at the second try: it is unsteady");
        self.skipped.push(format!(
            "{name}: unsteady: it passed at the second try and failed at the first: {reason}"
        ));
        self
    }
}

/// The same tests again and again, each time with a folder of results of their own.
fn repeated(mut tests: Vec<Test>, times: usize) -> Vec<Test> {
    let once = tests.clone();
    for time in 1..times {
        tests.extend(once.iter().cloned().map(|mut test| {
            test.name = format!("{}.{}", test.name, time + 1);
            test
        }));
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

fn absolute(file: &str) -> Outcome<PathBuf> {
    std::fs::canonicalize(file).map_err(|e| format!("{file}: {e}"))
}

/// The folder of the scripts that run on the hosts.
fn scripts() -> PathBuf {
    root().join("tests/lab")
}

/// Where the lab's results lie, below what cargo builds.
fn folder() -> PathBuf {
    target().join("lab")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsteady_test_and_one_that_cannot_run_are_skipped_by_name_and_not_passed() {
        let count = Count::default().unsteady("verbs-cut", "it hung");
        assert_eq!((count.passed, count.failed.len(), count.skipped.len()), (0, 0, 1));
        assert!(count.skipped[0].contains("verbs-cut") && count.skipped[0].contains("it hung"));
        let count = none_ran("no qemu");
        assert_eq!((count.passed, count.failed.len()), (0, 0));
        assert_eq!(count.skipped.len(), test::all().unwrap().len());
        assert!(count.skipped.iter().all(|skip| skip.ends_with(": no qemu")));
    }

    #[test]
    fn what_runs_tests_builds_their_programs_first_and_nothing_else_does() {
        let needs_build = |words: &[&str]| {
            let wish = Wish::parse(words).unwrap().expect("it is no call for help");
            wish.what.needs_build()
        };
        for words in [&[][..], &["x"], &["x", "y", "--log"], &["--file", "/"]] {
            assert!(needs_build(words), "{words:?}");
        }
        for words in [&["--run", "x"][..], &["--on", "h0", "x"], &["--shell"], &["--list"]] {
            assert!(!needs_build(words), "{words:?}");
        }
        assert!(Wish::parse(&["--help"]).unwrap().is_none());
        assert!(Wish::parse(&["--shell", "x"]).is_err(), "there are no tests to choose");
    }
}
