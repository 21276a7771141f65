//! Output of rank 0: one line per finished step, and its progress while the step runs.

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

    /// One line. A reader that went away is no reason to stop.
    pub(super) fn line(&self, text: &str) {
        if self.speaks {
            let _ = writeln!(std::io::stdout(), "{text}");
        }
    }

    /// A step that is over: what, in which time, how fast, what was checked, over which path and why.
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

    /// A move that is over.
    pub(super) fn moved(&self, what: &str, len: usize, took: Duration, path: &str, why: &str) {
        let rate = scaled(len as f64 / took.as_secs_f64().max(1e-9), "B/s");
        self.step(what, took, &rate, "checksum ok", path, why);
    }

    pub(super) fn progress<'a>(&'a self, what: &'a str, len: usize) -> Progress<'a> {
        Progress { show: self, what, len, drawn: Instant::now() }
    }
}

/// A bar that is drawn over, where a terminal shows it.
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

/// `146.5 MiB`.
pub(super) fn bytes(count: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if count >= 1 << shift {
            return format!("{:.1} {unit}", count as f64 / (1_u64 << shift) as f64);
        }
    }
    format!("{count} B")
}
