//! How slow this machine is. Deadlines are for hangs, and a slow host is no hang. Each deadline is written for a quiet machine and
//! stretched by the time that the hosts took to boot. It stops while a host waits for a processor of this machine.

use std::fs;
use std::time::{Duration, Instant};

/// The time that each host adds to the boot on a quiet machine with two processors.
const BOOT_OF_ONE: Duration = Duration::from_millis(2500);

/// Nothing is stretched further: even a machine that is busy for good must come to an end.
const SLOWEST: u32 = 8;

/// How much slower this machine is than a quiet one, as a whole number.
pub(super) fn slowness(boot: Duration, hosts: usize) -> u32 {
    let nominal = BOOT_OF_ONE.as_secs_f64() * hosts.max(2) as f64;
    ((boot.as_secs_f64() / nominal).ceil() as u32).clamp(1, SLOWEST)
}

/// A deadline of a test.
pub(super) struct Deadline {
    began: Instant,
    length: Duration,
    slowness: u32,
    qemus: Vec<(u32, Duration)>,
}

impl Deadline {
    /// One that is `length` away on a quiet machine; `qemus` are the processes that must not be kept waiting.
    pub(super) fn new(length: Duration, slowness: u32, qemus: impl Iterator<Item = u32>) -> Self {
        let qemus = qemus.map(|id| (id, waited(id))).collect();
        Deadline { began: Instant::now(), length, slowness, qemus }
    }

    /// No later than so long from now.
    pub(super) fn bring_forward(&mut self, length: Duration) {
        self.length = length.min(self.left() / self.slowness);
        self.began = Instant::now();
        for (id, before) in &mut self.qemus {
            *before = waited(*id);
        }
    }

    /// How long the host that waited longest, for which the others waited, had no processor since then.
    pub(super) fn waited(&self) -> Duration {
        let waits = self.qemus.iter().map(|(id, before)| waited(*id).saturating_sub(*before));
        waits.max().unwrap_or_default()
    }

    pub(super) fn left(&self) -> Duration {
        let allowed = self.length * self.slowness + self.waited();
        allowed.min(self.length * SLOWEST).saturating_sub(self.began.elapsed())
    }
}

/// How long a process was ready to run and had no processor: its thread that waited longest.
fn waited(id: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    let waits = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse().ok()
    });
    Duration::from_nanos(waits.max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_stretch_with_the_time_to_boot_and_only_so_far() {
        let boot = |seconds, hosts| slowness(Duration::from_secs(seconds), hosts);
        assert_eq!((boot(4, 2), boot(6, 2), boot(20, 2), boot(900, 2)), (1, 2, 4, SLOWEST));
        assert_eq!((boot(4, 1), boot(7, 3)), (1, 1));
    }

    #[test]
    fn a_deadline_that_is_brought_forward_never_moves_back() {
        let mut deadline = Deadline::new(Duration::from_secs(10), 2, [].into_iter());
        assert!(deadline.left() > Duration::from_secs(19));
        deadline.bring_forward(Duration::from_secs(60));
        assert!(deadline.left() <= Duration::from_secs(20));
        deadline.bring_forward(Duration::from_secs(1));
        assert!(deadline.left() <= Duration::from_secs(2));
    }
}
