//! Disturbances of the two sides and their processors during a test. A disturbed measurement is no reliable figure for the path.

use crate::sys;

/// The counters of this process and of the machine at the start of a test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quiet {
    preemptions: u64,
    stolen: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Disturbed {
    /// The number of times that either side lost its processor to another process.
    pub(crate) preempted: u64,
    /// The time in milliseconds that the host of this virtual machine took away, over all processors.
    pub(crate) stolen_ms: u64,
}

impl Quiet {
    pub(crate) fn begins() -> Quiet {
        Quiet { preemptions: sys::preemptions(), stolen: stolen() }
    }

    /// Returns the number of preemptions of this process since the start.
    pub(crate) fn preempted(&self) -> u64 {
        sys::preemptions().saturating_sub(self.preemptions)
    }

    /// Returns the disturbances of both sides since the start. `theirs` is the number of preemptions of the other side.
    pub(crate) fn ends(&self, theirs: u64) -> Disturbed {
        Disturbed {
            preempted: self.preempted() + theirs,
            stolen_ms: stolen().saturating_sub(self.stolen) * 1000 / sys::ticks_per_second(),
        }
    }
}

impl Disturbed {
    /// Describes the disturbances; `None` if there were none.
    pub(crate) fn words(&self) -> Option<String> {
        let preempted = (self.preempted > 0).then(|| format!("preempted {} times", self.preempted));
        let stolen = (self.stolen_ms > 0).then(|| format!("{} ms stolen", self.stolen_ms));
        let words: Vec<String> = preempted.into_iter().chain(stolen).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }
}

/// Returns the ticks that the host of a virtual machine took away; 0 if the kernel does not report them.
fn stolen() -> u64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    stolen_in(&text).unwrap_or(0)
}

/// Reads the value after `cpu user nice system idle iowait irq softirq`, which is `steal`.
fn stolen_in(stat: &str) -> Option<u64> {
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    line.split_whitespace().nth(8)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_a_host_took_away_is_read_from_the_line_of_all_processors() {
        let stat = "cpu0 1 2 3 4 5 6 7 9 0 0\ncpu  1 2 3 4 5 6 7 80 9 10\n";
        assert_eq!(stolen_in(stat), Some(80));
        assert_eq!(stolen_in("cpu  1 2 3"), None);
    }

    #[test]
    fn undisturbed_test_has_no_words_and_both_kinds_of_disturbance_are_named() {
        assert_eq!(Disturbed::default().words(), None);
        let both = Disturbed { preempted: 3, stolen_ms: 20 };
        assert_eq!(both.words().unwrap(), "preempted 3 times, 20 ms stolen");
    }

    #[test]
    fn thread_that_shares_a_processor_is_preempted() {
        if std::thread::spawn(|| sys::pin(0)).join().unwrap().is_err() {
            return println!("skipped: processor 0 is not for this process");
        }
        let (begin, stop) = (Quiet::begins(), std::sync::atomic::AtomicBool::new(false));
        let is_over = || stop.load(std::sync::atomic::Ordering::Relaxed);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let _ = scope.spawn(|| {
                    let _ = sys::pin(0);
                    while !is_over() {
                        std::hint::spin_loop();
                    }
                });
            }
            while begin.preempted() == 0 {
                std::thread::yield_now();
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert!(begin.ends(5).preempted > 5);
    }
}
