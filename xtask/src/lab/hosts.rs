//! Hosts that stay up for somebody else's scripts: the measurements of `cargo xtask bench --lab`.

use super::kernel::Kernel;
use super::machine::{self, Lab};
use super::modules::Built;
use super::test::{Test, Verdict};
use crate::sh::Outcome;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the hosts live at most, whatever becomes of this process.
const DEADLINE: Duration = Duration::from_secs(3600);

/// Hosts that are alike.
pub(crate) struct Hosts {
    kernel: Kernel,
    folder: PathBuf,
    /// How many, and how many processors and devices each has.
    count: usize,
    cpus: usize,
    devices: usize,
    lab: Option<Lab>,
}

impl Hosts {
    /// Boots two with a device each, or says why there can be no lab here.
    pub(crate) fn boot() -> Outcome<Hosts> {
        Hosts::of(2, 1, 1)
    }

    /// Boots one with two processors, for which the modules of `tests/lab/modules` are built, or says why there can be none here.
    pub(crate) fn with_modules() -> Outcome<Hosts> {
        let mut hosts = Hosts::of(1, 2, 0)?;
        match super::modules::build(&hosts.kernel)? {
            Built::Yes => Ok(hosts),
            Built::Not(why) => {
                hosts.lab = None;
                Err(why)
            }
        }
    }

    fn of(count: usize, cpus: usize, devices: usize) -> Outcome<Hosts> {
        crate::setup::install_or_say(crate::setup::LAB);
        let kernel = super::possible()?;
        let folder = machine::results()?;
        let lab = Some(Lab::boot(&kernel, &folder, count, cpus, DEADLINE)?);
        Ok(Hosts { kernel, folder, count, cpus, devices, lab })
    }

    /// Runs a script's functions, `h0` and so on, to their end. Hosts that were lost on the way are booted anew for the
    /// next script.
    pub(crate) fn run(&mut self, name: &str, script: &str, timeout: Duration) -> Outcome {
        let file = self.folder.join(format!("{name}.sh"));
        std::fs::write(&file, script).map_err(|e| format!("{}: {e}", file.display()))?;
        let test = Test {
            name: name.to_owned(),
            about: String::new(),
            // Where the hosts see it.
            file: Path::new("/run/lab").join(format!("{name}.sh")),
            hosts: self.count,
            devices: self.devices,
            cpus: self.cpus,
            timeout,
            modules: false,
            last: false,
            by_name: None,
        };
        let mut lab = match self.lab.take() {
            Some(lab) => lab,
            None => Lab::boot(&self.kernel, &self.folder, self.count, self.cpus, DEADLINE)?,
        };
        let ended = lab.run(&test, &mut |_, _| {})?;
        self.lab = lab.whole().then_some(lab);
        match ended.verdict {
            Verdict::Passed => Ok(()),
            Verdict::Skipped(why) => Err(why),
            Verdict::Failed(why) => Err(format!("{why}; see {}", self.results(name).display())),
        }
    }

    /// What is `$RESULTS` to the script of this name.
    pub(crate) fn results(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}
