//! The suites that are to notice a mutant: those of its package first, then the quick ones of the public interface.

use crate::tree::{SWITCH, cargo};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tieline_testing::built;
use tieline_testing::hang::{self, Limit};

/// Beside the package's own: programs of tests by package, and the part of their names.
const PUBLIC: &[&str] =
    &["tieline", "tieline-fake", "tieline-bad-providers", "tieline-conformance"];
/// A program that takes longer than this without a mutant is left out for mutants of other packages.
const QUICK: Duration = Duration::from_secs(20);
/// Nothing hangs before it has taken so long.
const PATIENCE: Duration = Duration::from_secs(20);

/// How a mutant ended.
pub(crate) enum Verdict {
    /// A test failed, or the process crashed.
    Caught(String),
    /// A suite did not end, and no test failed.
    Hang(String),
    Missed,
}

impl Verdict {
    pub(crate) fn rank(&self) -> u8 {
        match self {
            Verdict::Caught(_) => 0,
            Verdict::Hang(_) => 1,
            Verdict::Missed => 2,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Caught(by) => write!(f, "caught by {by}"),
            Verdict::Hang(by) => write!(f, "HANG in {by}"),
            Verdict::Missed => f.write_str("MISSED"),
        }
    }
}

/// A test's program.
struct Program {
    package: String,
    name: String,
    file: PathBuf,
    folder: PathBuf,
    /// How long it takes without a mutant.
    usual: Duration,
    /// Tests that fail without a mutant say nothing of one.
    fails: Vec<String>,
}

pub(crate) struct Suites {
    programs: Vec<Program>,
    built: PathBuf,
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
    /// Builds every test of the copy, and runs each once without a mutant.
    pub(crate) fn build(work: &Path) -> Result<Suites, String> {
        println!("building the tests");
        let tree = work.join("tree");
        let hooks =
            ["--features", "tieline-provider-shm/test-hooks,tieline-provider-shm-cma/test-hooks"];
        let others = ["--exclude", "tieline-processes", "--exclude", "tieline-tools"];
        let own = ["--exclude", "xtask", "--exclude", "xtask-mutants", "--exclude", "xtask-header"];
        let mut build = cargo(&tree, work, &["build", "--workspace", "--all-targets"]);
        let output = build.args(hooks).args(others).args(own).output();
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
            programs.push(Program {
                package: package.unwrap_or_default().trim_matches('"').to_owned(),
                name: said["target"]["name"].as_str().unwrap_or_default().to_owned(),
                file: file.into(),
                folder: folder.to_path_buf(),
                usual: Duration::ZERO,
                fails: Vec::new(),
            });
        }
        if !output.status.success() {
            return Err("the tests of the copy do not compile".into());
        }
        let mut suites = Suites { programs: Vec::new(), built: work.join("build/debug") };
        for mut program in programs {
            let ended = suites.run(&program, 0, Duration::from_secs(300));
            let Ended { failed, crashed, hung, took } = ended;
            println!("{:6.1} s  {} {}", took.as_secs_f64(), program.package, program.name);
            if hung || crashed {
                println!("          left out: it does not pass without a mutant");
                continue;
            }
            failed.iter().for_each(|test| println!("          {test} fails without a mutant"));
            (program.usual, program.fails) = (took, failed);
            suites.programs.push(program);
        }
        Ok(suites)
    }

    /// Whether the suites notice this mutant of that package.
    pub(crate) fn verdict(&self, package: &str, id: u32) -> Verdict {
        let own = self.programs.iter().filter(|program| program.package == package);
        let is_public = |program: &&Program| {
            program.package != package
                && PUBLIC.contains(&program.package.as_str())
                && program.usual < QUICK
        };
        let mut hang = None;
        for program in own.chain(self.programs.iter().filter(is_public)) {
            let limit = (program.usual * 5).max(PATIENCE);
            let ended = self.run(program, id, limit);
            let new = ended.failed.iter().find(|test| !program.fails.contains(*test));
            if let Some(test) = new {
                return Verdict::Caught(format!("{} {test}", program.name));
            }
            let name = format!("{} {}", program.package, program.name);
            if ended.crashed {
                return Verdict::Caught(format!("{name}, which crashed"));
            }
            // Two suites that hang say enough: others wait for the same.
            if ended.hung && hang.replace(name.clone()).is_some() {
                break;
            }
        }
        hang.map_or(Verdict::Missed, Verdict::Hang)
    }

    fn run(&self, program: &Program, id: u32, limit: Duration) -> Ended {
        let began = Instant::now();
        let mut command = Command::new(&program.file);
        let _ = command
            .current_dir(&program.folder)
            .env(SWITCH, id.to_string())
            .env(built::GIVEN, &self.built)
            .env("PROPTEST_FAILURE_PERSISTENCE", "off")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let Ok(mut child) = command.spawn() else {
            return Ended { failed: Vec::new(), crashed: true, hung: false, took: Duration::ZERO };
        };
        let hung = Arc::new(AtomicBool::new(false));
        let (told, process) = (hung.clone(), child.id());
        let limit = Limit::new(limit, move || {
            told.store(true, Ordering::Relaxed);
            hang::end(process);
            let _ = Command::new("kill").args(["-KILL", &process.to_string()]).status();
        });
        let mut said = Vec::new();
        if let Some(mut output) = child.stdout.take() {
            let _ = std::io::Read::read_to_end(&mut output, &mut said); // what was said until then
        }
        let status = child.wait();
        drop(limit);
        let said = String::from_utf8_lossy(&said).into_owned();
        let failed: Vec<String> = said
            .lines()
            .filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"))
            .map(str::to_owned)
            .collect();
        let hung = hung.load(Ordering::Relaxed);
        let well = status.is_ok_and(|status| status.success());
        let crashed = !well && !hung && failed.is_empty();
        Ended { failed, crashed, hung, took: began.elapsed() }
    }
}
