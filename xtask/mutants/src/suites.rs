//! The suites that are to notice a mutant: those that are near its file, the quick ones first, and then the tests with
//! processes that are killed, locked away or live on hosts of their own, one by one. The lab is left out.
//! What does not come by a mutant without one is not asked about it.

use crate::find::Mutant;
use crate::tree::{REACHED, SWITCH, cargo};
use std::collections::HashSet;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tieline_testing::built;
use tieline_testing::hang::{self, Limit};

/// Whose tests are to notice a mutant of the sources in front (the first that fit), the package's own before others.
const NEAR: &[(&str, &[&str])] = &[
    ("config/src", &["tieline-config", "tieline", "tieline-bad-providers", "tieline-tools"]),
    ("job/src", &["tieline-job", "tieline", "tieline-tools", "tieline-runtime"]),
    (
        "core/src",
        &[
            "tieline",
            "tieline-fake",
            "tieline-bad-providers",
            "tieline-tools",
            "tieline-runtime",
            "tieline-provider-verbs",
            "tieline-capi",
        ],
    ),
    (
        "plugin-api/src",
        &[
            "tieline-plugin-api",
            "tieline-fake",
            "tieline-conformance",
            "tieline-bad-providers",
            "tieline",
            "tieline-config",
            "tieline-provider-shm",
            "tieline-provider-tcp",
            "tieline-provider-verbs",
        ],
    ),
    (
        "net/src",
        &[
            "tieline-net",
            "tieline-provider-tcp-connect",
            "tieline-provider-tcp",
            "tieline-job",
            "tieline-provider-verbs",
            "tieline",
        ],
    ),
    (
        "providers/memory-file/src",
        &[
            "tieline-memory-file",
            "tieline-provider-shm-cma",
            "tieline-provider-shm-knem",
            "tieline-provider-shm-xpmem",
            "tieline-provider-shm",
            "tieline",
        ],
    ),
    (
        "providers/shm/src",
        &[
            "tieline-provider-shm",
            "tieline-conformance",
            "tieline",
            "tieline-fake",
            "tieline-runtime",
        ],
    ),
    (
        "providers/shm-cma/src",
        &["tieline-provider-shm-cma", "tieline-conformance", "tieline", "tieline-runtime"],
    ),
    ("providers/shm-knem/src", &["tieline-provider-shm-knem"]),
    ("providers/shm-xpmem/src", &["tieline-provider-shm-xpmem"]),
    (
        "providers/tcp/src",
        &[
            "tieline-provider-tcp",
            "tieline-conformance",
            "tieline",
            "tieline-fake",
            "tieline-runtime",
        ],
    ),
    (
        "providers/tcp-connect/src",
        &["tieline-provider-tcp-connect", "tieline-conformance", "tieline", "tieline-tools"],
    ),
    (
        "providers/registration/src",
        &["tieline-registration", "tieline-provider-verbs", "tieline-provider-ofi"],
    ),
    ("providers/ofi/src", &["tieline-provider-ofi", "tieline-conformance", "tieline-tools"]),
    ("providers/verbs/src", &["tieline-provider-verbs", "tieline-tools"]),
    ("tag/src", &["tieline-tag", "tieline-runtime"]),
    ("wireup/src", &["tieline-wireup", "tieline", "tieline-fake", "tieline-provider-verbs"]),
];
/// What tests load and run beside what cargo builds for them.
const EXAMPLES: &[&str] = &["fake_*", "bad_*"];
/// Its tests take seconds each, so each is asked alone; and one at a time, since they look for what is left on the machine.
const WITH_PROCESSES: &str = "tieline-processes";
/// Its tests are asked one by one, too, since each of them runs a provider of its own.
const ONE_BY_ONE: [&str; 2] = [WITH_PROCESSES, "tieline-conformance"];
/// A test that takes longer than this alone is left out for mutants of other packages.
const QUICK: Duration = Duration::from_secs(60);
/// Nothing hangs before it has taken so long: what tests wait for has limits of its own, and those are caught.
const PATIENCE: Duration = Duration::from_secs(150);
/// So many suites that hang say enough.
const HANGS: usize = 4;
/// Tests of a program at once: those that hang must not keep others from failing.
const AT_ONCE: &str = "8";

/// How a mutant ended.
pub(crate) enum Verdict {
    /// A test failed, or the process crashed.
    Caught(String),
    /// A suite did not end, and no test failed.
    Hang(String),
    Missed,
    /// No suite comes by it.
    Unreached,
}

impl Verdict {
    pub(crate) fn rank(&self) -> u8 {
        match self {
            Verdict::Caught(_) => 0,
            Verdict::Hang(_) => 1,
            Verdict::Missed | Verdict::Unreached => 2,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Caught(by) => write!(f, "caught by {by}"),
            Verdict::Hang(by) => write!(f, "HANG in {by}"),
            Verdict::Missed => f.write_str("MISSED"),
            Verdict::Unreached => f.write_str("MISSED (no suite comes by)"),
        }
    }
}

/// A program of tests.
struct Program {
    package: String,
    name: String,
    file: PathBuf,
    folder: PathBuf,
    /// Those that pass alone without a mutant: others say nothing of one.
    tests: Vec<Test>,
}

/// A test that was run alone, without a mutant.
struct Test {
    name: String,
    usual: Duration,
    /// The mutants that it comes by.
    reached: HashSet<u32>,
}

pub(crate) struct Suites {
    programs: Vec<Program>,
    built: PathBuf,
    /// Held while a test with processes runs.
    alone: Mutex<()>,
}

/// How a run of some tests of a program ended.
struct Ended {
    /// The first that failed.
    failed: Option<String>,
    /// It ended badly, but no test says so.
    crashed: bool,
    hung: bool,
    took: Duration,
}

impl Suites {
    /// Builds every test of the copy, and runs each that may be asked about one of these alone, once, without a mutant: so it is
    /// known by which it comes. Those that do not pass then can say nothing of mutants, but what they come by.
    pub(crate) fn build(
        work: &Path,
        mutants: &[Mutant],
        only_passing: bool,
    ) -> Result<Suites, String> {
        println!("building the tests");
        let tree = work.join("tree");
        let hooks = "tieline-provider-shm/test-hooks,tieline-provider-shm-cma/test-hooks,tieline-processes/test-hooks";
        let mut build = cargo(&tree, work, &["build", "--workspace", "--lib", "--bins", "--tests"]);
        let _ = build.args(["--features", hooks]);
        let _ = build.args(EXAMPLES.iter().flat_map(|name| ["--example", name]));
        let others = ["xtask", "xtask-mutants", "xtask-header"];
        let output = build.args(others.iter().flat_map(|name| ["--exclude", name])).output();
        let output = output.map_err(|e| format!("cargo: {e}"))?;
        let mut programs = Vec::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Ok(said) = serde_json::from_str::<serde_json::Value>(line) else { continue };
            if said["message"]["level"] == "error" {
                println!("{}", said["message"]["rendered"].as_str().unwrap_or(""));
            }
            let file = said["executable"].as_str().filter(|_| said["profile"]["test"] == true);
            let (Some(file), Some(manifest)) = (file, said["manifest_path"].as_str()) else {
                continue;
            };
            let Some(folder) = Path::new(manifest).parent() else { continue };
            let text = std::fs::read_to_string(manifest).unwrap_or_default();
            let package = text.lines().find_map(|line| line.strip_prefix("name = "));
            let package = package.unwrap_or_default().trim_matches('"');
            let program = Program {
                package: package.to_owned(),
                name: said["target"]["name"].as_str().unwrap_or_default().to_owned(),
                file: file.into(),
                folder: folder.to_path_buf(),
                tests: Vec::new(),
            };
            if mutants.iter().any(|mutant| distance(&program, &mutant.file).is_some()) {
                programs.push(program);
            }
        }
        if !output.status.success() {
            return Err("the tests of the copy do not compile".into());
        }
        let suites =
            Suites { programs: Vec::new(), built: work.join("build/debug"), alone: Mutex::new(()) };
        println!("running each test alone, without a mutant");
        for program in &mut programs {
            let began = Instant::now();
            let names = listed(&program.file);
            program.tests = suites.baseline(program, &names, work, only_passing)?;
            let (passed, took) = (program.tests.len(), began.elapsed().as_secs_f64());
            println!("{took:6.1} s  {} {}: {passed} tests", program.package, program.name);
        }
        Ok(Suites { programs, ..suites })
    }

    /// Each of these tests alone, as many at once as there are processors.
    fn baseline(
        &self,
        program: &Program,
        names: &[String],
        work: &Path,
        only_passing: bool,
    ) -> Result<Vec<Test>, String> {
        let (next, found) = (Mutex::new(names.iter()), Mutex::new(Vec::new()));
        let at_once = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let one_after_another = |notes: &Path| -> std::io::Result<()> {
            loop {
                let Some(name) = crate::locked(&next).next() else { return Ok(()) };
                std::fs::write(notes, "")?;
                let limit = Duration::from_secs(300);
                let ended = self.run(program, &[name], 0, limit, Some(notes));
                if ended.failed.is_some() || ended.crashed || ended.hung {
                    println!("          {name} does not pass without a mutant");
                    if only_passing {
                        continue;
                    }
                }
                let text = std::fs::read_to_string(notes)?;
                let reached = text.lines().filter_map(|id| id.parse().ok()).collect();
                let test = Test { name: name.clone(), usual: ended.took, reached };
                crate::locked(&found).push(test);
            }
        };
        let ended: Vec<_> = std::thread::scope(|scope| {
            let workers = (0..at_once).map(|worker| {
                let notes = work.join(format!("reached.{worker}"));
                scope.spawn(move || one_after_another(&notes))
            });
            workers
                .collect::<Vec<_>>()
                .into_iter()
                .map(std::thread::ScopedJoinHandle::join)
                .collect()
        });
        for worker in ended {
            worker.map_err(|_| "a worker panicked")?.map_err(|e| format!("the notes: {e}"))?;
        }
        Ok(found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Whether the tests that come by it notice this mutant of that file: of each program those alone are run.
    pub(crate) fn verdict(&self, file: &str, id: u32) -> Verdict {
        let mut asked = Vec::new();
        for program in &self.programs {
            let Some(distance) = distance(program, file) else { continue };
            let comes_by =
                |test: &&Test| test.reached.contains(&id) && (distance == 0 || test.usual < QUICK);
            let tests: Vec<&Test> = program.tests.iter().filter(comes_by).collect();
            let one_by_one = ONE_BY_ONE.contains(&&*program.package);
            let groups = if one_by_one { 1 } else { tests.len().max(1) };
            for tests in tests.chunks(groups) {
                let usual: Duration = tests.iter().map(|test| test.usual).sum();
                asked.push((one_by_one, usual, program, tests.to_vec()));
            }
        }
        if asked.is_empty() {
            return Verdict::Unreached;
        }
        asked.sort_by_key(|(one_by_one, usual, ..)| (*one_by_one, *usual));
        let (mut hang, mut hung) = (None, 0);
        for (_, usual, program, mut tests) in asked {
            let limit = (usual * 5).max(PATIENCE);
            while !tests.is_empty() {
                let names: Vec<&str> = tests.iter().map(|test| &*test.name).collect();
                let ended = self.run(program, &names, id, limit, None);
                if let Some(test) = ended.failed {
                    if self.is_failed_by(program, &test, id, limit) {
                        return Verdict::Caught(format!("{} {test}", program.name));
                    }
                    println!("by chance, or because the machine was busy: {} {test}", program.name);
                    tests.retain(|other| other.name != test);
                    continue;
                }
                // Nobody says which test it was: once more, then.
                if ended.crashed && self.run(program, &names, id, limit, None).is_bad() {
                    return Verdict::Caught(format!("{}, which crashed", program.name));
                }
                // A suite that waits for the same thing hangs, too, but another one may say what is wrong.
                if ended.hung {
                    let _ = hang.get_or_insert(program.name.clone());
                    hung += 1;
                }
                break;
            }
            if hung == HANGS {
                break;
            }
        }
        hang.map_or(Verdict::Missed, Verdict::Hang)
    }

    /// Whether a test that has failed does so again with the mutant, alone, and not without.
    fn is_failed_by(&self, program: &Program, test: &str, id: u32, limit: Duration) -> bool {
        let is_bad = |id| self.run(program, &[test], id, limit, None).is_bad();
        is_bad(id) && !is_bad(0)
    }

    /// Whether a suite comes by this mutant that is asked about that file, and the names of those that do and are not asked.
    pub(crate) fn reach(&self, file: &str, id: u32) -> (bool, Vec<String>) {
        let comes_by = |program: &&Program| program.tests.iter().any(|t| t.reached.contains(&id));
        let by = self.programs.iter().filter(comes_by);
        let (asked, others): (Vec<_>, Vec<_>) = by.partition(|by| distance(by, file).is_some());
        (!asked.is_empty(), others.iter().map(|other| other.name.clone()).collect())
    }

    /// Runs these tests of a program with a mutant turned on, or none, until their end or the first that fails; where that is wanted, notes
    /// by which mutants they come.
    fn run(
        &self,
        program: &Program,
        tests: &[impl AsRef<std::ffi::OsStr>],
        id: u32,
        limit: Duration,
        notes: Option<&Path>,
    ) -> Ended {
        let is_alone = program.package == WITH_PROCESSES;
        let _alone = is_alone.then(|| crate::locked(&self.alone));
        let began = Instant::now();
        let mut command = Command::new(&program.file);
        let _ = command
            .arg("--exact")
            .args(tests)
            .current_dir(&program.folder)
            .env(SWITCH, id.to_string())
            .env("RUST_TEST_THREADS", AT_ONCE)
            .env(built::GIVEN, &self.built)
            .env("PROPTEST_FAILURE_PERSISTENCE", "off")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        if let Some(notes) = notes {
            let _ = command.env(REACHED, notes);
        }
        let Ok(mut child) = command.spawn() else {
            return Ended { failed: None, crashed: true, hung: false, took: Duration::ZERO };
        };
        // Those whose parent has ended already are known by their group.
        let end = |process: u32| {
            hang::end(process);
            let _ = Command::new("kill").args(["-KILL", "--", &format!("-{process}")]).status();
        };
        let hung = Arc::new(AtomicBool::new(false));
        let (told, process) = (hung.clone(), child.id());
        let limit = Limit::new(limit, move || {
            told.store(true, Ordering::Relaxed);
            end(process);
        });
        let mut failed = None;
        let output = child.stdout.take().map(BufReader::new);
        for line in output.into_iter().flat_map(BufRead::lines).map_while(Result::ok) {
            let name = line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... FAILED"));
            if let Some(name) = name {
                failed = Some(name.to_owned());
                end(process);
                break;
            }
        }
        let status = child.wait();
        drop(limit);
        let hung = hung.load(Ordering::Relaxed);
        let well = status.is_ok_and(|status| status.success());
        let crashed = !well && !hung && failed.is_none();
        Ended { failed, crashed, hung, took: began.elapsed() }
    }
}

impl Ended {
    fn is_bad(&self) -> bool {
        self.failed.is_some() || self.crashed
    }
}

/// How far the program is from the file; none where it is not asked about it.
fn distance(program: &Program, file: &str) -> Option<usize> {
    let near = NEAR.iter().find(|(of, _)| file.starts_with(of)).map_or(&[][..], |f| f.1);
    match program.package == WITH_PROCESSES {
        true => Some(near.len()),
        false => near.iter().position(|near| program.package == *near),
    }
}

/// The tests of a program, by name.
fn listed(program: &Path) -> Vec<String> {
    let output = Command::new(program).arg("--list").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let text = text.unwrap_or_default();
    text.lines().filter_map(|line| Some(line.strip_suffix(": test")?.to_owned())).collect()
}
