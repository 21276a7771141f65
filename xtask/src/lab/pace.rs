//! The slowness of this machine. Deadlines detect hangs, and must not end tests on slow hosts. Each deadline is stated for an idle
//! machine, and multiplied by a factor that is derived from the boot time of the hosts. The time for which a host waits for a
//! processor of this machine does not count.

use std::fs;
use std::time::{Duration, Instant};

/// The time that each host adds to the boot on an idle machine with two processors.
const BOOT_OF_ONE: Duration = Duration::from_millis(2500);

/// The maximum factor: a run must end even on a machine that is permanently busy.
const SLOWEST: u32 = 8;

/// Returns the factor by which this machine is slower than an idle one, as a whole number.
pub(super) fn slowness(boot: Duration, hosts: usize) -> u32 {
    let nominal = BOOT_OF_ONE.as_secs_f64() * hosts.max(2) as f64;
    ((boot.as_secs_f64() / nominal).ceil() as u32).clamp(1, SLOWEST)
}

/// A deadline of a test or of a part of it.
pub(super) struct Deadline {
    began: Instant,
    length: Duration,
    slowness: u32,
    qemus: Vec<(u32, Duration)>,
}

impl Deadline {
    /// Makes a deadline after `length` on an idle machine. `qemus` are the processes whose waits for a processor do not count.
    pub(super) fn new(length: Duration, slowness: u32, qemus: impl Iterator<Item = u32>) -> Self {
        let qemus = qemus.map(|id| (id, waited(id))).collect();
        Deadline { began: Instant::now(), length, slowness, qemus }
    }

    pub(super) fn bring_forward(&mut self, length: Duration) {
        self.length = length.min(self.left() / self.slowness);
        self.began = Instant::now();
        for (id, before) in &mut self.qemus {
            *before = waited(*id);
        }
    }

    /// Returns the longest time for which any of the hosts has waited for a processor since the start; the other hosts waited for
    /// that host.
    pub(super) fn waited(&self) -> Duration {
        let waits = self.qemus.iter().map(|(id, before)| waited(*id).saturating_sub(*before));
        waits.max().unwrap_or_default()
    }

    pub(super) fn left(&self) -> Duration {
        let allowed = self.length * self.slowness + self.waited();
        allowed.min(self.length * SLOWEST).saturating_sub(self.began.elapsed())
    }
}

/// Returns the time for which a process was ready to run and had no processor, of the thread that waited longest.
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
