//! `cargo xtask lab`: tests on hosts with real RDMA drivers, on a machine that has none.
//!
//! Every host is a virtual machine with Debian's kernel, soft RoCE on its links and this machine's files
//! as its root; `tests/lab` holds what runs there. `docs/lab.md` is for who writes a test.

mod hosts;
mod kernel;
mod machine;
mod network;
mod pace;
mod show;
mod test;

use crate::check::Count;
use crate::setup;
use crate::sh::{Outcome, root, target, which};
pub(crate) use hosts::Hosts;
use machine::{Ended, Lab};
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
    let count = match possible() {
        Ok(kernel) => wish.fulfil(&kernel)?,
        Err(reason) => Count { skipped: vec![reason], ..Count::default() },
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
        Err(reason) => return Count { skipped: vec![reason], ..Count::default() },
    };
    let all = Wish { what: What::Tests(Vec::new()), second_try: true, ..Wish::default() };
    all.fulfil(&kernel).unwrap_or_else(|text| Count { failed: vec![text], ..Count::default() })
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
                tests.retain(|test| match &test.unsteady {
                    Some(why) if !filters.contains(&test.name) => {
                        let name = &test.name;
                        left_out.push(format!("{name}: {why}; `cargo xtask lab {name}` runs it"));
                        false
                    }
                    _ => true,
                });
                // Tests of like hosts follow each other: others are booted anew.
                tests.sort_by_key(|test| (test.cpus, test.devices));
                if tests.is_empty() {
                    return Err(format!(
                        "no test's name contains {}; see --list",
                        filters.join(" or ")
                    ));
                }
                tests
            }
            What::File(file) => vec![self.foreign_test(&folder, file)?],
            What::Commands(_) | What::Shell | What::List => Vec::new(),
        };
        let tests = repeated(tests, self.repeat);
        let hosts = tests.iter().map(|test| test.hosts).max().unwrap_or(self.hosts);
        // Longer than everything in it may take, so that a machine whose lab was killed ends by itself.
        let deadline = tests.iter().map(|test| test.timeout).sum::<Duration>() * 2
            + self.timeout
            + Duration::from_secs(if matches!(self.what, What::Shell) { 7200 } else { 300 });
        let boot = |cpus| Lab::boot(kernel, &folder, hosts, self.cpus.unwrap_or(cpus), deadline);
        let mut count = match &self.what {
            What::Commands(commands) => {
                let test = self.command_test(&folder, 0, commands)?;
                let ended = boot(1)?.run(&test, &mut |host, line| println!("h{host}| {line}"))?;
                Count::default().with(&test, &ended)
            }
            What::Shell => self.shell(&mut boot(1)?, &folder)?,
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
        boot: impl Fn(usize) -> Outcome<Lab>,
        tests: &[Test],
        started: Instant,
    ) -> Outcome<Count> {
        let mut lab: Option<Lab> = None;
        let mut count = Count::default();
        let mut rows = Vec::new();
        for (number, test) in tests.iter().enumerate() {
            let mut running = match lab.take() {
                Some(lab) => lab,
                None => {
                    let lab = boot(test.cpus)?;
                    let name = format!("({} hosts start)", lab.hosts());
                    rows.push(show::Row { name, time: lab.boot_time(), verdict: "" });
                    lab
                }
            };
            let mut ended = running.run(test, &mut |_, _| {})?;
            if let (Verdict::Failed(reason), true) = (&ended.verdict, self.second_try) {
                // It is shown as it failed; what passes then was the emulation's fault, or is unsteady.
                println!(
                    "test {} ... FAILED, and is tried again on new hosts: {reason}",
                    test.name
                );
                ended.story.print_failure();
                rows.push(show::Row {
                    name: test.name.clone(),
                    time: ended.time,
                    verdict: "again",
                });
                drop(running);
                running = boot(test.cpus)?;
                let again = Test { name: format!("{}.again", test.name), ..test.clone() };
                ended = running.run(&again, &mut |_, _| {})?;
                if let Verdict::Passed = ended.verdict {
                    println!("test {} passed at the second try: it is unsteady", test.name);
                }
            }
            count = count.with(test, &ended);
            if matches!(ended.verdict, Verdict::Failed(_)) {
                ended.story.print_failure();
            } else if self.log {
                ended.story.print();
            }
            let (name, verdict) = (test.name.clone(), ended.verdict.word());
            rows.push(show::Row { name, time: ended.time, verdict });
            // Hosts that did not end a test are not trusted with another one, and rdma_rxe is not trusted to
            // work on a second device after a run of tests on one: messages were lost there for good.
            let same = tests
                .get(number + 1)
                .is_none_or(|next| (next.cpus, next.devices) == (test.cpus, test.devices));
            lab = (running.whole() && same).then_some(running);
        }
        show::table(&rows, started.elapsed());
        Ok(count)
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
            unsteady: None,
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
