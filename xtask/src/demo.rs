//! `cargo xtask demo [FILE]`: builds the command and some providers, and moves a file between two processes.

use crate::setup;
use crate::sh::{
    self, Outcome, capture, cargo, command, entries, heading, root, show_time, target,
};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The providers of the demo, which need no device.
const SHOWN: [&str; 4] = ["shm", "shm-cma", "tcp", "tcp-connect"];

const NOT_BUILT: &str = "the C library and the providers verbs, ofi, shm-xpmem and shm-knem";

pub(crate) fn run(file: Option<&str>) -> Outcome {
    let started = Instant::now();
    let file = match file {
        Some(name) => absolute(name)?,
        None => largest_of_rust()?,
    };
    let shown = SHOWN.join(", ");
    println!("building the command and the providers {shown}: a minute when nothing is there");
    step("Build", || {
        if sh::which("cc").is_none() {
            setup::install(setup::DEMO)?;
        }
        let plugins = SHOWN.map(|name| format!("--package=tieline-provider-{name}-plugin"));
        let mut build = cargo(&["build", "--profile", "demo", "--package", "tieline-tools"]);
        sh::run(build.args(plugins))?;
        println!("programs and providers are in {}", target().join("demo").display());
        println!("not built: {}; `cargo build --release` builds everything", NOT_BUILT);
        Ok(())
    })?;
    let built = Instant::now();
    let tieline = target().join("demo/tieline");
    step("The providers found here, and why each is used or not", || {
        sh::run(&mut command(&tieline, &["info", "--why"]))
    })?;
    let moved = |settings: &[(&str, &str)]| {
        let mut launch = command(&tieline, &["run", "-n", "2"]);
        let _ = launch.envs(settings.iter().copied()).args(cpus());
        let outcome = sh::run(launch.arg("--").arg(&tieline).arg("demo").arg(&file));
        outcome.map_err(|text| format!("{text}: the demo did not verify"))
    };
    step("Two processes move a file", || moved(&[]))?;
    step("The same two over TCP, as if they had no memory in common", || {
        moved(&[("TIELINE_PROVIDERS", "tcp,tcp-connect")])
    })?;
    step("How fast: two processes, each on a processor of its own", || speeds(&tieline))?;
    let (behind, all) = (show_time(built.elapsed()), show_time(started.elapsed()));
    println!("\nEverything was verified. {behind} after the build, {all} in all.");
    println!("By hand: {} --help", tieline.display());
    Ok(())
}

/// Runs the demo as one step of `cargo xtask test`.
pub(crate) fn check() -> crate::check::Count {
    crate::check::Count::one(run(None))
}

/// The measurements: the description, and the command.
const SPEEDS: &[(&str, &str, &str)] = &[
    ("8 B message, one way", "p50_ns", "--test am_lat --size 8"),
    ("8 B put, memory of alloc, one way", "p50_ns", "--test put_lat --size 8 --memory alloc"),
    ("8 B fetch-add, memory of alloc", "p50_ns", "--test fadd_lat --memory alloc"),
    ("64 KiB messages", "bytes_per_second", "--test am_bw --size 64k"),
    ("1 MiB puts, memory of alloc", "bytes_per_second", "--test put_bw --size 1m --memory alloc"),
    ("1 MiB puts, ordinary memory", "bytes_per_second", "--test put_bw --size 1m"),
    ("1 MiB gets, ordinary memory", "bytes_per_second", "--test get_bw --size 1m"),
    ("8 B message over TCP, one way", "p50_ns", "--test am_lat --size 8 --path tcp,tcp-connect"),
    ("1 MiB puts over TCP", "bytes_per_second", "--test put_bw --size 1m --path tcp,tcp-connect"),
];

fn speeds(tieline: &Path) -> Outcome {
    for (what, field, args) in SPEEDS {
        let mut perf = command(tieline, &["perf", "--json", "--seconds", "0.2"]);
        let said = capture(perf.args(args.split(' ')).args(cpus()))?;
        let record: serde_json::Value = serde_json::from_str(said.trim())
            .map_err(|e| format!("tieline perf printed `{}`: {e}", said.trim()))?;
        let value = record[field].as_f64().unwrap_or(0.0);
        let shown = match *field {
            "p50_ns" => format!("{value:.0} ns"),
            _ => format!("{:.1} GB/s", value / 1e9),
        };
        println!("  {what:<34} {shown:>12}  {}", record["path"].as_str().unwrap_or(""));
    }
    Ok(())
}

fn step(title: &str, body: impl FnOnce() -> Outcome) -> Outcome {
    heading(title);
    let started = Instant::now();
    body()?;
    println!("({})", show_time(started.elapsed()));
    Ok(())
}

/// Returns the options that select two processors, if there are two.
fn cpus() -> &'static [&'static str] {
    match std::thread::available_parallelism() {
        Ok(n) if n.get() > 1 => &["--cpus", "0,1"],
        _ => &[],
    }
}

fn absolute(name: &str) -> Outcome<PathBuf> {
    let file = std::env::current_dir().unwrap_or_else(|_| root()).join(name);
    match std::fs::metadata(&file) {
        Ok(m) if m.is_file() => Ok(file),
        Ok(_) => Err(format!("cannot move {name}: it is not a file; name a file")),
        Err(e) => Err(format!("cannot read {name}: {e}; name a file that is there")),
    }
}

/// Returns the largest library of the Rust installation, which every machine that can build this project has.
fn largest_of_rust() -> Outcome<PathBuf> {
    let sysroot = capture(&mut command("rustc", &["--print", "sysroot"]))?;
    let lib = Path::new(sysroot.trim()).join("lib");
    let files = entries(&lib)?.into_iter().filter_map(|file| {
        let m = std::fs::metadata(&file).ok()?;
        m.is_file().then_some((m.len(), file))
    });
    let (_, file) = files.max().ok_or_else(|| format!("no file in {}; name one", lib.display()))?;
    Ok(file)
}
