//! Hosts that remain running for scripts of other commands: the measurements of `cargo xtask bench --lab`.

use super::kernel::Kernel;
use super::machine::{self, Lab};
use super::test::{Test, Verdict};
use crate::sh::Outcome;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) struct Hosts {
    kernel: Kernel,
    folder: PathBuf,
    count: usize,
    cpus: usize,
    /// The number of RDMA devices of each host.
    devices: usize,
    lab: Option<Lab>,
}

impl Hosts {
    /// Boots two hosts with one device each. Returns the reason if the lab cannot run on this machine.
    pub(crate) fn boot() -> Outcome<Hosts> {
        Hosts::of(2, 1, 1)
    }

    /// Boots one host with two processors, for which the modules of `tests/lab/modules` are built. Returns the reason if this is
    /// impossible on this machine.
    pub(crate) fn with_modules() -> Outcome<Hosts> {
        let hosts = Hosts::of(1, 2, 0)?;
        super::modules::missing(&hosts.kernel)?.map_or(Ok(hosts), Err)
    }

    fn of(count: usize, cpus: usize, devices: usize) -> Outcome<Hosts> {
        let kernel = super::possible()?;
        let folder = machine::results()?;
        let mut hosts = Hosts { kernel, folder, count, cpus, devices, lab: None };
        hosts.lab = Some(hosts.up()?);
        Ok(hosts)
    }

    fn up(&self) -> Outcome<Lab> {
        let lab = Lab::boot(&self.kernel, &self.folder, self.count, self.cpus)?;
        lab.ok_or_else(|| machine::NOT_UP.into())
    }

    /// Runs the functions of a script, `h0` and so on, to their end. Hosts that were lost during the script are booted again for
    /// the next script.
    pub(crate) fn run(&mut self, name: &str, script: &str, timeout: Duration) -> Outcome {
        let test = Test::written(&self.folder, name, script)?;
        let test = Test { hosts: self.count, devices: self.devices, timeout, ..test };
        let mut lab = self.lab.take().map_or_else(|| self.up(), Ok)?;
        let ended = lab.run(&test, &mut |_, _| {})?;
        self.lab = lab.whole.then_some(lab);
        match ended.verdict {
            Verdict::Passed => Ok(()),
            Verdict::Skipped(why) => Err(why),
            Verdict::Failed(why) | Verdict::Silent(why) => {
                Err(format!("{why}; see {}", self.results(name).display()))
            }
        }
    }

    pub(crate) fn results(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}
