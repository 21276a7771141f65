//! How long a wait may spin: not at all where the processes of a job outnumber the processors that they may use.

use crate::config::{Config, vars};
use crate::{Error, job, sys};
use std::time::Duration;

/// While every process has a processor: the time in which a running peer answers.
const ENOUGH: Duration = Duration::from_micros(50);

/// What decides about it.
#[derive(Clone, Debug)]
pub(crate) struct Spin {
    /// What somebody asked for, and who.
    asked: Option<(Duration, String)>,
    /// As the environment says; a job that was joined knows better.
    processes: usize,
    processors: usize,
    /// A control group grants less time than there are processors: spinning uses it up.
    by_quota: bool,
}

impl Spin {
    pub(super) fn new(config: &Config) -> Result<Spin, Error> {
        let asked = match config.text(vars::SPIN).is_empty() {
            true => None,
            false => Some((config.duration(vars::SPIN)?, config.origin(vars::SPIN).to_string())),
        };
        let allowed = sys::processors_allowed();
        // The affinity mask, and the quotas of the control groups around this process.
        let granted = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Spin {
            asked,
            processes: job::processes_on_this_host(),
            processors: granted.min(allowed.unwrap_or(granted)),
            by_quota: allowed.is_some_and(|allowed| granted < allowed),
        })
    }

    /// The time to spin. `shared`: whether this thread's processor turned out to be wanted by others.
    pub(crate) fn budget(&self, shared: Option<bool>) -> Duration {
        if let Some((asked, _)) = &self.asked {
            return *asked;
        }
        let crowded = self.processes() > self.processors;
        match shared {
            _ if crowded && self.by_quota => Duration::ZERO,
            Some(true) => Duration::ZERO,
            None if crowded => Duration::ZERO,
            _ => ENOUGH,
        }
    }

    fn processes(&self) -> usize {
        self.processes.max(job::joined_processes())
    }

    /// For people: what waits begin with, and why.
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
        let quota = if self.by_quota { " by the quota of a control group" } else { "" };
        format!(
            "{spins}: {} of the job on this host, {}{quota}",
            count(self.processes(), "process", "processes"),
            count(self.processors, "processor", "processors"),
        )
    }

    #[cfg(test)]
    pub(crate) fn for_tests(processes: usize, processors: usize, by_quota: bool) -> Spin {
        Spin { asked: None, processes, processors, by_quota }
    }
}
