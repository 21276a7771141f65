//! Measurements with more ranks than processors: an example of Tieline under `tieline run`, and the same pattern as an MPI program
//! under `mpirun`, both confined to two processors.

use super::source::compiled;
use crate::sh::{Outcome, capture, command, is_root, target};
use std::time::{Duration, Instant};

/// The options that bind a command and its children to two processors.
const CONFINED: [&str; 2] = ["-c", "0,1"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counts {
    /// The time that the program reports for its loop.
    Loop,
    /// The time from the start to the end, including the launcher.
    Everything,
}

pub(crate) fn ours(name: &str, ranks: usize, size: u64, counts: Counts) -> Outcome<f64> {
    let program = target().join("release/examples").join(name);
    let mut job = command("taskset", &CONFINED);
    let _ = job.arg(target().join("release/tieline")).args(["run", "-n", &ranks.to_string(), "--"]);
    measured(job.arg(program).arg(size.to_string()), counts)
}

pub(crate) fn open_mpi(name: &str, ranks: usize, size: u64, counts: Counts) -> Outcome<f64> {
    let source = format!("xtask/src/bench/mpi/{name}.c");
    let program = compiled("mpicc", &source, "", "libopenmpi-dev")?;
    let mut job = command("taskset", &CONFINED);
    let _ = job.arg("mpirun");
    if is_root() {
        let _ = job.arg("--allow-run-as-root");
    }
    let _ = job.args(["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]);
    // This route is by far the fastest of Open MPI's routes for one-sided operations on one host.
    let _ = job.args(["--mca", "pml", "ob1", "--mca", "btl", "self,vader", "--mca", "osc", "sm"]);
    measured(job.args(["-np", &ranks.to_string()]).arg(program).arg(size.to_string()), counts)
}

/// Returns the measured time in nanoseconds.
fn measured(job: &mut std::process::Command, counts: Counts) -> Outcome<f64> {
    let start = Instant::now();
    let said = capture(job)?;
    let took = start.elapsed();
    match counts {
        Counts::Everything => Ok(took.as_nanos() as f64),
        Counts::Loop => {
            let time = said.split([' ', ',', '\n']).find_map(time);
            time.map(|t| t.as_nanos() as f64).ok_or_else(|| format!("no time in `{}`", said.trim()))
        }
    }
}

/// Parses a time as Rust prints it: `1.5ms`.
fn time(word: &str) -> Option<Duration> {
    let end = word.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(word.len());
    let (number, unit) = word.split_at(end);
    let number: f64 = number.parse().ok()?;
    let ns = match unit {
        "ns" => 1.0,
        "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    Some(Duration::from_nanos((number * ns) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_found_among_the_words_of_a_program() {
        let found = |said: &str| said.split([' ', ',', '\n']).find_map(time);
        let halo = "2000 steps on 16 ranks verified, 793.255µs each\n";
        assert_eq!(found(halo), Some(Duration::from_nanos(793_255)));
        let counter = "1600 increments by 16 ranks in 1.5s, none lost; by shm/ring\n";
        assert_eq!(found(counter), Some(Duration::from_millis(1500)));
        assert_eq!(found("93367ns\n"), Some(Duration::from_nanos(93_367)));
        assert_eq!(found("rank 3 has the wrong cell"), None);
    }
}
