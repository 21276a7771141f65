//! The output of rank 0: a line for each finished step, and the progress of the running step.

use crate::perf::scaled;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

pub(super) struct Show {
    speaks: bool,
    draws: bool,
}

impl Show {
    pub(super) fn new(speaks: bool) -> Show {
        Show { speaks, draws: speaks && std::io::stderr().is_terminal() }
    }

    /// Prints a line. If the reader has closed the output, the program continues.
    pub(super) fn line(&self, text: &str) {
        if self.speaks {
            let _ = writeln!(std::io::stdout(), "{text}");
        }
    }

    /// Prints a finished step: its name, its time, its rate, the checks, and the path with the reason for the path.
    pub(super) fn step(
        &self,
        what: &str,
        took: Duration,
        rate: &str,
        checked: &str,
        path: &str,
        why: &str,
    ) {
        let seconds = took.as_secs_f64();
        self.line(&format!(
            "  {what:<21} {seconds:>6.3} s {rate:>10}  {checked:<11}  {path:<12}  {why}"
        ));
    }

    pub(super) fn moved(&self, what: &str, len: usize, took: Duration, path: &str, why: &str) {
        let rate = scaled(len as f64 / took.as_secs_f64().max(1e-9), "B/s");
        self.step(what, took, &rate, "checksum ok", path, why);
    }

    pub(super) fn progress<'a>(&'a self, what: &'a str, len: usize) -> Progress<'a> {
        Progress { show: self, what, len, drawn: Instant::now() }
    }
}

/// A progress bar that is overwritten, if the output is a terminal.
pub(super) struct Progress<'a> {
    show: &'a Show,
    what: &'a str,
    len: usize,
    drawn: Instant,
}

impl Progress<'_> {
    pub(super) fn at(&mut self, done: usize) {
        if self.show.draws && self.drawn.elapsed() > Duration::from_millis(50) {
            self.drawn = Instant::now();
            let tenths = done * 30 / self.len.max(1);
            let bar = "#".repeat(tenths.min(30));
            let percent = done * 100 / self.len.max(1);
            let _ = write!(std::io::stderr(), "\r  {:<21} [{bar:<30}] {percent:>3} %", self.what);
        }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if self.show.draws {
            let _ = write!(std::io::stderr(), "\r{:80}\r", "");
        }
    }
}

/// Formats a number of bytes: `146.5 MiB`.
pub(super) fn bytes(count: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if count >= 1 << shift {
            return format!("{:.1} {unit}", count as f64 / (1_u64 << shift) as f64);
        }
    }
    format!("{count} B")
}
