//! The time that a wait may spin. Unless it is configured, it is zero at first if a job has more processes than processors.

use crate::config::{Config, vars};
use crate::{Error, job, sys};
use std::sync::OnceLock;
use std::time::Duration;

/// The spin time while every process has a processor: a running peer usually answers within this time, even with 64 KiB over a
/// network.
const ENOUGH: Duration = Duration::from_micros(100);

/// The facts that determine the spin time.
#[derive(Clone, Debug)]
pub(crate) struct Spin {
    /// The configured time, and the origin of the setting.
    asked: Option<(Duration, String)>,
    /// The number of processes that the environment states; a joined job may state more.
    processes: usize,
    /// The number of processors in the affinity mask of the thread that opened the context.
    allowed: usize,
    /// The number of processors that control groups grant, if it is below that of the affinity mask. It is read when it first
    /// matters: a process that is alone has a processor.
    quota: OnceLock<Option<usize>>,
}

impl Spin {
    pub(super) fn new(config: &Config) -> Result<Spin, Error> {
        let asked = match config.text(vars::SPIN).is_empty() {
            true => None,
            false => Some((config.duration(vars::SPIN)?, config.origin(vars::SPIN).to_string())),
        };
        let allowed = sys::processors_allowed().unwrap_or_else(granted);
        let processes = job::processes_on_this_host();
        let spin = Spin { asked, processes, allowed, quota: OnceLock::new() };
        if spin.asked.is_none() {
            // The clones of the workers get the quota of an ordinary job with the facts.
            let _ = spin.processors();
        }
        Ok(spin)
    }

    /// Returns the quota of the control groups that contain this process, if it is below the affinity mask of this thread.
    fn quota(&self) -> Option<usize> {
        *self.quota.get_or_init(|| {
            let (allowed, granted) = (sys::processors_allowed()?, granted());
            (granted < allowed).then_some(granted)
        })
    }

    /// Returns the number of processors for the processes of the job on this host, and whether a quota limits it.
    fn processors(&self) -> (usize, bool) {
        let quota = if self.processes() > 1 { self.quota() } else { None };
        match quota {
            Some(quota) if quota < self.allowed => (quota, true),
            _ => (self.allowed, false),
        }
    }

    /// Returns the time to spin. `shared`: whether this thread has found that other threads use its processor.
    pub(crate) fn budget(&self, shared: Option<bool>) -> Duration {
        if let Some((asked, _)) = &self.asked {
            return *asked;
        }
        let (processors, is_quota) = self.processors();
        let crowded = self.processes() > processors;
        match shared {
            _ if crowded && is_quota => Duration::ZERO,
            Some(true) => Duration::ZERO,
            None if crowded => Duration::ZERO,
            _ => ENOUGH,
        }
    }

    fn processes(&self) -> usize {
        self.processes.max(job::joined_processes())
    }

    /// Returns the text for the report: the first phase of waits, and the reason.
    pub(crate) fn text(&self) -> String {
        let spins = match self.budget(None) {
            Duration::ZERO => "yield their processor at once, then sleep".to_owned(),
            time => format!("spin for {time:?}, then yield their processor, then sleep"),
        };
        if let Some((_, origin)) = &self.asked {
            return format!("{spins}: {} was set ({origin})", vars::SPIN);
        }
        let count =
            |n: usize, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
        let (processors, is_quota) = self.processors();
        let quota = if is_quota { " by the quota of a control group" } else { "" };
        format!(
            "{spins}: {} of the job on this host, {}{quota}",
            count(self.processes(), "process", "processes"),
            count(processors, "processor", "processors"),
        )
    }

    /// Makes the value from the `granted` processors and the `allowed` ones in the affinity mask, if that is known.
    #[cfg(test)]
    fn with(processes: usize, granted: usize, allowed: Option<usize>) -> Spin {
        let quota = allowed.filter(|allowed| granted < *allowed).map(|_| granted);
        let allowed = allowed.unwrap_or(granted);
        Spin { asked: None, processes, allowed, quota: OnceLock::from(quota) }
    }

    #[cfg(test)]
    pub(crate) fn for_tests(processes: usize, processors: usize, by_quota: bool) -> Spin {
        Spin::with(processes, processors, by_quota.then_some(processors + 1))
    }
}

/// Returns the number of processors by the affinity mask of this thread and the quotas of control groups.
fn granted() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_is_named_only_if_below_affinity_mask() {
        for (granted, allowed, processors, quota) in [
            (4, Some(4), 4, false),
            (3, Some(4), 3, true),
            (4, Some(3), 3, false),
            (4, None, 4, false),
        ] {
            let spin = Spin::with(8, granted, allowed);
            assert_eq!(spin.processors(), (processors, quota));
            let text = spin.text();
            assert!(text.contains(&format!("{processors} processors")), "{text}");
            assert_eq!(text.ends_with(" by the quota of a control group"), quota, "{text}");
        }
    }

    #[test]
    fn quota_is_read_only_for_several_processes() {
        let spin = |processes| Spin { quota: OnceLock::new(), ..Spin::with(processes, 2, None) };
        let alone = spin(1);
        assert_eq!(alone.budget(None), ENOUGH);
        assert!(alone.text().ends_with("1 process of the job on this host, 2 processors"));
        assert_eq!(alone.quota.get(), None);
        let two = spin(2);
        let _ = two.budget(None);
        assert!(two.quota.get().is_some());
    }

    #[test]
    fn processes_spin_only_if_each_has_a_processor() {
        let spin = |processes| Spin::with(processes, 2, Some(2));
        for processes in [1, 2] {
            assert_eq!(spin(processes).budget(None), ENOUGH);
            assert!(
                spin(processes).text().starts_with("spin for 100µs"),
                "{}",
                spin(processes).text()
            );
        }
        assert_eq!(spin(3).budget(None), Duration::ZERO);
        let text = spin(3).text();
        assert_eq!(
            text,
            "yield their processor at once, then sleep: 3 processes of the job on this host, 2 processors"
        );
        assert!(
            Spin::with(1, 1, None)
                .text()
                .ends_with("1 process of the job on this host, 1 processor")
        );
    }

    #[test]
    fn observed_sharing_decides_unless_quota_is_too_small() {
        let (crowded, by_quota) = (Spin::with(3, 2, Some(2)), Spin::with(3, 2, Some(4)));
        assert_eq!(crowded.budget(Some(false)), ENOUGH);
        assert_eq!(by_quota.budget(Some(false)), Duration::ZERO);
        let roomy = Spin::with(2, 2, Some(4));
        assert_eq!((roomy.budget(None), roomy.budget(Some(false))), (ENOUGH, ENOUGH));
        assert_eq!(roomy.budget(Some(true)), Duration::ZERO);
    }

    #[test]
    fn configured_spin_time_always_applies_and_is_named() {
        let config = Config::builder().set(vars::SPIN, "3us").build().unwrap();
        let spin = Spin::new(&config).unwrap();
        for shared in [None, Some(true), Some(false)] {
            assert_eq!(spin.budget(shared), Duration::from_micros(3));
        }
        let text = spin.text();
        assert!(
            text.starts_with("spin for 3µs") && text.contains("TIELINE_SPIN was set"),
            "{text}"
        );
    }
}
