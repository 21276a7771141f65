//! Every example of the library, in Rust and in C, and one of the runtime that stands on it in the tests, runs unchanged under every way to start a job:
//! `tieline run`, a rendezvous by hand, and mpirun. Those in C are compiled as C and as C++.

use super::{Count, c_programs, least, quiet, suite};
use crate::sh::{command, root, target, which};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

/// Where they are.
const FOLDERS: [&str; 2] = ["core/examples", "tests/runtime/examples"];
/// Measured, not run: see [`super::instructions`] and `cargo xtask bench`.
const NO_JOBS: [&str; 2] = ["instructions", "tags"];

/// By hand: each rank is started on its own, the first one last. `$0` is the program, `$1` the number of ranks.
const BY_HAND: &str = "rank=$1; pids=; while [ $rank -gt 0 ]; do rank=$((rank - 1)); \
                       TIELINE_RANK=$rank TIELINE_SIZE=$1 \"$0\" & pids=\"$pids $!\"; done; \
                       for pid in $pids; do wait $pid || exit 1; done";

pub(super) fn run() -> Count {
    let mut total = Count::default();
    let mut files = Vec::new();
    for folder in FOLDERS.map(|folder| root().join(folder)) {
        match std::fs::read_dir(&folder) {
            Ok(entries) => files.extend(entries.flatten().map(|entry| entry.path())),
            Err(e) => return Count::one(Err(format!("{}: {e}", folder.display()))),
        }
    }
    if which("mpirun").is_none() {
        total.add(Count::skip("under mpirun: it is not installed (openmpi-bin)"));
    }
    files.sort();
    for file in files.iter().filter(|file| file.extension().is_some_and(|e| e == "rs")) {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if NO_JOBS.contains(&name.as_str()) {
            continue;
        }
        let source = std::fs::read_to_string(file).unwrap_or_default();
        let Some(processes) = processes(&source) else {
            total.add(Count::one(Err(format!(
                "{name} does not say `tieline run -n N -- ...` in its docs"
            ))));
            continue;
        };
        let program = target().join("debug/examples").join(&name);
        for (way, count) in ways(&program, &processes.to_string()) {
            println!("{name} {way}: {}", if count.failed.is_empty() { "ok" } else { "FAILED" });
            total.add(count);
        }
    }
    in_c(&mut total);
    least::or_failed("jobs", total)
}

/// The examples of the C library. What c++ makes of them runs once.
fn in_c(total: &mut Count) {
    if let Err(text) = c_programs::library() {
        return total.add(Count::one(Err(text)));
    }
    for file in c_programs::sources("capi/examples") {
        let name = format!("{} in C", file.file_stem().unwrap_or_default().to_string_lossy());
        let source = std::fs::read_to_string(&file).unwrap_or_default();
        let Some(processes) = processes(&source) else {
            let text =
                format!("{name} does not say `tieline run -n N -- ...` in its first comment");
            total.add(Count::one(Err(text)));
            continue;
        };
        let processes = processes.to_string();
        match c_programs::compiled(&file, false, &[]) {
            Ok(program) => {
                for (way, count) in ways(&program, &processes) {
                    println!(
                        "{name} {way}: {}",
                        if count.failed.is_empty() { "ok" } else { "FAILED" }
                    );
                    total.add(count);
                }
            }
            Err(text) => total.add(Count::one(Err(text))),
        }
        if which("c++").is_none() {
            total.add(Count::skip(format!("{name}, as C++: c++ is not installed")));
            continue;
        }
        match c_programs::compiled(&file, true, &[]) {
            Ok(program) => {
                let mut launch = suite::tieline(&["run", "-n", &processes, "--"]);
                total.add(quiet(with_providers(launch.arg(program))));
            }
            Err(text) => total.add(Count::one(Err(text))),
        }
    }
}

/// The providers of this build, which a program in another folder does not find beside itself.
fn with_providers(command: &mut Command) -> &mut Command {
    command.env("TIELINE_PROVIDER_PATH", target().join("debug"))
}

/// The program as a job, each way that there is here.
fn ways(program: &Path, processes: &str) -> Vec<(&'static str, Count)> {
    let mut launch = suite::tieline(&["run", "-n", processes, "--"]);
    let mut ways = vec![("under tieline run", quiet(with_providers(launch.arg(program))))];
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let by_hand = match free {
        Ok(address) => {
            let mut shell = command("sh", &["-c", BY_HAND]);
            let _ = shell.arg(program).arg(processes);
            quiet(with_providers(shell.env("TIELINE_RENDEZVOUS", address.to_string())))
        }
        Err(e) => Count::one(Err(format!("no free port: {e}"))),
    };
    ways.push(("at a rendezvous", by_hand));
    if which("mpirun").is_some() {
        let args = ["--allow-run-as-root", "--oversubscribe", "-np", processes];
        ways.push(("under mpirun", quiet(with_providers(command("mpirun", &args).arg(program)))));
    }
    ways
}

/// The N of the first `tieline run -n N` in a `//!` line, or in a line of C's first comment.
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
