//! Runs the examples of the library, in Rust and in C, and those of the test runtime, except [`NO_JOBS`], under several ways to
//! start a job: `tieline run`, a bootstrap by hand, and mpirun. The C examples are also compiled as C++, and run once.

use super::{Count, c_programs, least, quiet, suite};
use crate::sh::{Outcome, command, read, target, which};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

const FOLDERS: [&str; 2] = ["core/examples", "tests/runtime/examples"];
/// The examples that are measured and not run as jobs: see [`super::instructions`] and `cargo xtask bench`; `lists` starts its own child.
const NO_JOBS: [&str; 3] = ["instructions", "lists", "tags"];

/// A script that starts each rank by hand, the first rank last. `$0` is the program, `$1` the number of ranks.
const BY_HAND: &str = "rank=$1; pids=; while [ $rank -gt 0 ]; do rank=$((rank - 1)); \
                       TIELINE_RANK=$rank TIELINE_SIZE=$1 \"$0\" & pids=\"$pids $!\"; done; \
                       for pid in $pids; do wait $pid || exit 1; done";

pub(super) fn run() -> Count {
    least::or_failed("jobs", jobs().into())
}

fn jobs() -> Outcome<Count> {
    let mut total = Count::default();
    for (program, what) in [("mpirun", "under mpirun (openmpi-bin)"), ("c++", "as C++")] {
        if which(program).is_none() {
            total.add(Count::skip(format!("{what}: {program} is not installed")));
        }
    }
    for folder in FOLDERS {
        for source in c_programs::sources(folder, "rs") {
            let program = target().join("debug/examples").join(stem(&source));
            if !NO_JOBS.contains(&&*stem(&source)) {
                total.add(example(&source, Ok(program)).into());
            }
        }
    }
    let _ = c_programs::library()?;
    for source in c_programs::sources("capi/examples", "c") {
        total.add(example(&source, c_programs::compiled(&source, false, &[])).into());
        if which("c++").is_some() {
            total.add(example_as_cxx(&source).into());
        }
    }
    Ok(total)
}

fn stem(source: &Path) -> String {
    source.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn example(source: &Path, program: Outcome<PathBuf>) -> Outcome<Count> {
    let (program, processes, mut total) = (program?, processes_of(source)?, Count::default());
    for (way, count) in ways(&program, &processes) {
        let verdict = if count.failed.is_empty() { "ok" } else { "FAILED" };
        println!("{} {way}: {verdict}", program.file_name().unwrap_or_default().to_string_lossy());
        total.add(count);
    }
    Ok(total)
}

/// Runs an example that is compiled as C++. The example runs once, since the library is the same.
fn example_as_cxx(source: &Path) -> Outcome<Count> {
    let program = c_programs::compiled(source, true, &[])?;
    let mut launch = suite::tieline(&["run", "-n", &processes_of(source)?, "--"]);
    Ok(quiet(with_providers(launch.arg(program))))
}

fn processes_of(source: &Path) -> Outcome<String> {
    let text = read(source)?;
    let no_line = || format!("{} has no `tieline run -n N -- ...` at its top", source.display());
    processes(&text).map(|n| n.to_string()).ok_or_else(no_line)
}

/// Passes the providers of this build, which a program in another directory would not find.
fn with_providers(command: &mut Command) -> &mut Command {
    command.env("TIELINE_PROVIDER_PATH", target().join("debug"))
}

fn ways(program: &Path, processes: &str) -> Vec<(&'static str, Count)> {
    let mut launch = suite::tieline(&["run", "-n", processes, "--"]);
    let mut ways = vec![("under tieline run", quiet(with_providers(launch.arg(program))))];
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let by_hand = match free {
        Ok(address) => {
            let mut shell = command("sh", &["-c", BY_HAND]);
            let _ = shell.arg(program).arg(processes);
            quiet(with_providers(shell.env("TIELINE_BOOTSTRAP", address.to_string())))
        }
        Err(e) => Count::one(Err(format!("no free port: {e}"))),
    };
    ways.push(("by a bootstrap", by_hand));
    if which("mpirun").is_some() {
        let args = ["--allow-run-as-root", "--oversubscribe", "-np", processes];
        ways.push(("under mpirun", quiet(with_providers(command("mpirun", &args).arg(program)))));
    }
    ways
}

/// Returns the N of the first `tieline run -n N` in a `//!` line, or in a line of the first C comment.
fn processes(source: &str) -> Option<usize> {
    let is_doc = |line: &&str| ["//!", "/*", " *"].iter().any(|begin| line.starts_with(begin));
    let docs = source.lines().filter(is_doc);
    let rest = docs.filter_map(|line| line.split("tieline run -n ").nth(1)).next()?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_processes_comes_from_the_examples_own_docs() {
        assert_eq!(
            processes("//! A ring.\n//! tieline run -n 4 -- target/ring\nfn main() {}"),
            Some(4)
        );
        assert_eq!(processes("// tieline run -n 4 -- target/ring"), None);
    }

    #[test]
    fn by_hand_every_rank_runs_and_one_that_fails_is_noticed() {
        let ran = |script: &str| {
            let dir = std::env::temp_dir().join(format!("tieline-hand-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            let program = dir.join("program");
            std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&program, mode).unwrap();
            let output = command("sh", &["-c", BY_HAND]).arg(&program).arg("3").output().unwrap();
            std::fs::remove_dir_all(&dir).unwrap();
            let mut lines: Vec<String> =
                String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
            lines.sort();
            (output.status.success(), lines)
        };
        let (well, lines) = ran("echo $TIELINE_RANK of $TIELINE_SIZE");
        assert!(well);
        assert_eq!(lines, ["0 of 3", "1 of 3", "2 of 3"]);
        assert!(!ran("exit $TIELINE_RANK").0);
    }
}
