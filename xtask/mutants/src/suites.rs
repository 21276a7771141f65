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
    ("job/src", &["tieline-job", "tieline", "tieline-tools"]),
    ("core/src", &["tieline", "tieline-fake", "tieline-bad-providers", "tieline-tools"]),
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
    ("providers/shm/src", &["tieline-provider-shm", "tieline-conformance", "tieline"]),
    ("providers/shm-cma/src", &["tieline-provider-shm-cma", "tieline-conformance", "tieline"]),
    ("providers/shm-knem/src", &["tieline-provider-shm-knem"]),
    ("providers/shm-xpmem/src", &["tieline-provider-shm-xpmem"]),
    ("providers/tcp/src", &["tieline-provider-tcp", "tieline-conformance", "tieline"]),
    (
        "providers/tcp-connect/src",
        &["tieline-provider-tcp-connect", "tieline-conformance", "tieline"],
    ),
    (
        "providers/registration/src",
        &["tieline-registration", "tieline-provider-verbs", "tieline-provider-ofi"],
    ),
    ("providers/ofi/src", &["tieline-provider-ofi", "tieline-conformance"]),
    ("providers/verbs/src", &["tieline-provider-verbs"]),
    ("tag/src", &["tieline-tag"]),
];
/// What tests load and run beside what cargo builds for them.
const EXAMPLES: &[&str] = &["fake_*", "bad_*"];
/// Its tests take seconds each, so each is asked alone; and one at a time, since they look for what is left on the machine.
const WITH_PROCESSES: &str = "tieline-processes";
/// Its tests are asked one by one, too, since each of them runs a provider of its own.
const ONE_BY_ONE: [&str; 2] = [WITH_PROCESSES, "tieline-conformance"];
/// A program that takes longer than this without a mutant is left out for mutants of other packages. It is several times
/// what the suites that are meant take on a quiet machine: on a busy one they must not drop out, which looks like misses.
const QUICK: Duration = Duration::from_secs(150);
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

/// A test's program, or one test of it.
struct Program {
    package: String,
    name: String,
    /// Only this test.
    test: Option<String>,
    file: PathBuf,
    folder: PathBuf,
    /// How long it takes without a mutant.
    usual: Duration,
    /// Tests that fail without a mutant say nothing of one.
    fails: Vec<String>,
    /// The mutants that it comes by.
    reached: HashSet<u32>,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.package, self.test.as_ref().unwrap_or(&self.name))
    }
}

pub(crate) struct Suites {
    programs: Vec<Program>,
    /// Where a program notes by which mutants it comes.
    notes: PathBuf,
    built: PathBuf,
    /// Held while a test with processes runs.
    alone: Mutex<()>,
}

/// How a run of a program ended.
struct Ended {
    failed: Vec<String>,
    /// It ended badly, but no test says so.
    crashed: bool,
    hung: bool,
    took: Duration,
}

impl Suites {
    /// Builds every test of the copy, and runs each once without a mutant that may be asked about one of these. Those that
    /// do not pass then can say nothing of mutants, but what they come by.
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
            let tests = if ONE_BY_ONE.contains(&package) { listed(file) } else { vec![None] };
            programs.extend(tests.into_iter().map(|test| Program {
                package: package.to_owned(),
                name: said["target"]["name"].as_str().unwrap_or_default().to_owned(),
                test,
                file: file.into(),
                folder: folder.to_path_buf(),
                usual: Duration::ZERO,
                fails: Vec::new(),
                reached: HashSet::new(),
            }));
        }
        if !output.status.success() {
            return Err("the tests of the copy do not compile".into());
        }
        let (built, notes) = (work.join("build/debug"), work.join("reached"));
        let mut suites = Suites { programs: Vec::new(), notes, built, alone: Mutex::new(()) };
        let said = |e: std::io::Error| format!("{}: {e}", work.join("reached").display());
        for mut program in programs {
            if !mutants.iter().any(|mutant| distance(&program, &mutant.file).is_some()) {
                continue;
            }
            std::fs::write(&suites.notes, "").map_err(said)?;
            let ended = suites.run(&program, 0, Duration::from_secs(300));
            let Ended { failed, crashed, hung, took } = ended;
            println!("{:6.1} s  {program}", took.as_secs_f64());
            if hung || crashed {
                println!("          it does not pass without a mutant");
                if only_passing {
                    continue;
                }
            }
            failed.iter().for_each(|test| println!("          {test} fails without a mutant"));
            (program.usual, program.fails) = (took, failed);
            let reached = std::fs::read_to_string(&suites.notes).map_err(said)?;
            program.reached = reached.lines().filter_map(|id| id.parse().ok()).collect();
            suites.programs.push(program);
        }
        Ok(suites)
    }

    /// Whether the suites notice this mutant of that file.
    pub(crate) fn verdict(&self, file: &str, id: u32) -> Verdict {
        let mut programs = Vec::new();
        for program in self.programs.iter().filter(|program| program.reached.contains(&id)) {
            if let Some(distance) = distance(program, file) {
                programs.push((distance, program));
            }
        }
        if programs.is_empty() {
            return Verdict::Unreached;
        }
        programs.sort_by_key(|(_, program)| (program.test.is_some(), program.usual));
        let (mut hang, mut hung) = (None, 0);
        for (_, program) in programs {
            let limit = (program.usual * 5).max(PATIENCE);
            let ended = self.run(program, id, limit);
            if let Some(test) = ended.failed.first() {
                return Verdict::Caught(format!("{} {test}", program.name));
            }
            let name = program.to_string();
            if ended.crashed {
                return Verdict::Caught(format!("{name}, which crashed"));
            }
            // A suite that waits for the same thing hangs, too, but another one may say what is wrong.
            if ended.hung {
                let _ = hang.get_or_insert(name);
                hung += 1;
            }
            if hung == HANGS {
                break;
            }
        }
        hang.map_or(Verdict::Missed, Verdict::Hang)
    }

    /// Whether a suite comes by this mutant that is asked about that file, and the names of those that do and are not asked.
    pub(crate) fn reach(&self, file: &str, id: u32) -> (bool, Vec<String>) {
        let by = self.programs.iter().filter(|program| program.reached.contains(&id));
        let (asked, others): (Vec<_>, Vec<_>) = by.partition(|by| distance(by, file).is_some());
        (!asked.is_empty(), others.iter().map(ToString::to_string).collect())
    }

    /// Runs a program with a mutant turned on, or none, until its end or the first test that fails because of it.
    fn run(&self, program: &Program, id: u32, limit: Duration) -> Ended {
        let began = Instant::now();
        let is_alone = program.package == WITH_PROCESSES;
        let _alone = is_alone.then(|| crate::locked(&self.alone));
        let mut command = Command::new(&program.file);
        let _ = command
            .args(program.test.iter().flat_map(|test| ["--exact", test]))
            .current_dir(&program.folder)
            .env(SWITCH, id.to_string())
            .env("RUST_TEST_THREADS", AT_ONCE)
            .env(built::GIVEN, &self.built)
            .env("PROPTEST_FAILURE_PERSISTENCE", "off")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        if id == 0 {
            let _ = command.env(REACHED, &self.notes);
        }
        let Ok(mut child) = command.spawn() else {
            return Ended { failed: Vec::new(), crashed: true, hung: false, took: Duration::ZERO };
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
        let mut failed: Vec<String> = Vec::new();
        let output = child.stdout.take().map(BufReader::new);
        for line in output.into_iter().flat_map(BufRead::lines).map_while(Result::ok) {
            let name = line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... FAILED"));
            let Some(name) = name.filter(|name| !program.fails.iter().any(|f| f == name)) else {
                continue;
            };
            failed.push(name.to_owned());
            if id != 0 {
                end(process);
                break;
            }
        }
        let status = child.wait();
        drop(limit);
        let hung = hung.load(Ordering::Relaxed);
        let well = status.is_ok_and(|status| status.success());
        let crashed = !well && !hung && failed.is_empty() && program.fails.is_empty();
        Ended { failed, crashed, hung, took: began.elapsed() }
    }
}

/// How far the program is from the file; none where it is not asked about it.
fn distance(program: &Program, file: &str) -> Option<usize> {
    let near = NEAR.iter().find(|(of, _)| file.starts_with(of)).map_or(&[][..], |f| f.1);
    let distance = match program.test {
        Some(_) if program.package == WITH_PROCESSES => Some(near.len()),
        _ => near.iter().position(|near| program.package == *near),
    };
    distance.filter(|at| *at == 0 || program.usual < QUICK)
}

/// The tests of a program, by name.
fn listed(program: &str) -> Vec<Option<String>> {
    let output = Command::new(program).arg("--list").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let text = text.unwrap_or_default();
    text.lines().filter_map(|line| Some(Some(line.strip_suffix(": test")?.to_owned()))).collect()
}
