//! Recognizes an MPI by the output of its launcher's `--version`.

use crate::{misuse, system_error};
use std::ffi::OsStr;
use std::fmt;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use tieline::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mpi {
    /// MPICH 4 and later
    Mpich,
    /// Open MPI 4
    Openmpi4,
    /// Open MPI 5
    Openmpi5,
    /// Intel MPI 2019 and later
    Intel,
}

impl fmt::Display for Mpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mpi::Mpich => "MPICH",
            Mpi::Openmpi4 => "Open MPI 4",
            Mpi::Openmpi5 => "Open MPI 5",
            Mpi::Intel => "Intel MPI",
        })
    }
}

/// The beginnings of the names of launchers, for which `--version` starts no program of the user.
const LAUNCHERS: [&str; 4] = ["mpiexec", "mpirun", "orterun", "prterun"];

const NAME_IT: &str = "name the MPI: --mpi mpich, openmpi4, openmpi5 or intel";

/// The time within which a launcher prints its version, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks a launcher for its version; returns its MPI, and the name and version.
pub(super) fn ask(launcher: &OsStr) -> Result<(Mpi, String), Error> {
    let shown = launcher.to_string_lossy();
    let name = Path::new(launcher).file_name().unwrap_or_default().to_string_lossy();
    let what = || format!("cannot recognize the MPI of `{shown}`");
    if !LAUNCHERS.iter().any(|beginning| name.starts_with(beginning)) {
        let why = format!("its name begins with none of {}", LAUNCHERS.join(", "));
        return Err(misuse(what(), why, NAME_IT));
    }
    let said = version(launcher).map_err(|e| {
        let what = format!("cannot run `{shown} --version`");
        system_error(what, &e, "check its path and that it may be executed, or use --mpi")
    })?;
    read(&said).map_err(|refusal| match refusal {
        Refusal::Unknown(why) => misuse(what(), why, NAME_IT),
        Refusal::Unfit(why) => misuse(format!("the MPI of `{shown}` cannot use Tieline"), why, FIT),
    })
}

/// The reason why no MPI is returned.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    Unknown(String),
    /// The MPI is known, and this version or build of it cannot use the provider.
    Unfit(String),
}

const FIT: &str =
    "use MPICH 4 or later with libfabric, Open MPI 4 or 5, or Intel MPI 2019 or later";

/// Returns the output of `--version`. Errors of the launcher go to standard error.
fn version(launcher: &OsStr) -> Result<String, std::io::Error> {
    let mut command = Command::new(launcher);
    let _ = command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let output = child.stdout.take();
    let (sender, receiver) = mpsc::channel();
    let _ = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = output.map_or(Ok(0), |mut output| output.read_to_end(&mut bytes));
        let _ = sender.send(read.map(|_| bytes));
    });
    let said = receiver.recv_timeout(PATIENCE).unwrap_or_else(|_| {
        let text = format!("it has not ended within {} s", PATIENCE.as_secs());
        Err(std::io::Error::new(std::io::ErrorKind::TimedOut, text))
    });
    let _ = child.kill();
    let _ = child.wait();
    said.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the MPI whose launcher printed this, with its name and version, or the reason why there is none.
fn read(said: &str) -> Result<(Mpi, String), Refusal> {
    let line = said.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("nothing");
    if let Some((_, rest)) = line.split_once("(Open MPI) ") {
        return match major(rest) {
            Some(4) => Ok((Mpi::Openmpi4, format!("Open MPI {}", word(rest)))),
            Some(5) => Ok((Mpi::Openmpi5, format!("Open MPI {}", word(rest)))),
            _ => Err(Refusal::Unknown(format!(
                "it is Open MPI {}, and versions 4 and 5 are known",
                word(rest)
            ))),
        };
    }
    if line.starts_with("Intel(R) MPI Library") {
        let version = line.split_once("Version ").map_or("", |(_, rest)| rest);
        return match major(version) {
            Some(year) if year >= 2019 => Ok((Mpi::Intel, format!("Intel MPI {}", word(version)))),
            _ => Err(Refusal::Unfit("an Intel MPI before 2019 does not use libfabric".into())),
        };
    }
    if line.starts_with("HYDRA build details") {
        return hydra(said);
    }
    Err(Refusal::Unknown(format!("`--version` prints {line:?}, which is of no known MPI")))
}

/// Reads the description that the launcher Hydra prints of itself.
fn hydra(said: &str) -> Result<(Mpi, String), Refusal> {
    let field = |name: &str| {
        let mut lines = said.lines().filter_map(|line| line.trim().strip_prefix(name));
        lines.next().map(str::trim)
    };
    let version = field("Version:").unwrap_or_default();
    if major(version).is_none_or(|major| major < 4) {
        return Err(Refusal::Unfit(format!("it is MPICH {version}")));
    }
    // Without the option, the default of the build is not known from here. MPICH itself stops then, if it has no libfabric.
    let options = field("Configure options:").unwrap_or_default();
    let device =
        options.split_once("--with-device=").map(|(_, rest)| word(rest).trim_end_matches('\''));
    match device {
        Some(device) if !device.contains("ofi") => {
            let text =
                format!("this MPICH {version} is built for {device}, without libfabric (ofi)");
            Err(Refusal::Unfit(text))
        }
        _ => Ok((Mpi::Mpich, format!("MPICH {version}"))),
    }
}

fn word(text: &str) -> &str {
    text.split_whitespace().next().unwrap_or("of no version")
}

fn major(version: &str) -> Option<u32> {
    version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hydra_with(version: &str, options: &str) -> String {
        format!(
            "HYDRA build details:\n    Version:                                 {version}\n    Release Date:  Fri\n    CC:  cc\n    \
             Configure options:                       {options}\n    Process Manager:  pmi\n"
        )
    }

    #[test]
    fn each_known_mpi_is_recognized_with_its_version() {
        let wheel = hydra_with("5.0.2", "--with-device=ch4:ucx,ofi --with-pm=hydra:gforker");
        for (said, mpi, name) in [
            (&*wheel, Mpi::Mpich, "MPICH 5.0.2"),
            (&hydra_with("4.2.0", "'--prefix=/usr'"), Mpi::Mpich, "MPICH 4.2.0"),
            ("mpirun (Open MPI) 4.1.4\n\nReport bugs to", Mpi::Openmpi4, "Open MPI 4.1.4"),
            ("mpiexec (Open MPI) 5.0.11\n", Mpi::Openmpi5, "Open MPI 5.0.11"),
            (
                "Intel(R) MPI Library for Linux* OS, Version 2021.19.0 Build 20260929 (id: 1821d9b)\nCopyright",
                Mpi::Intel,
                "Intel MPI 2021.19.0",
            ),
        ] {
            assert_eq!(read(said), Ok((mpi, name.to_owned())), "{said}");
        }
    }

    #[test]
    fn other_versions_builds_and_programs_are_refused_with_the_reason() {
        for (said, why) in [
            ("mpirun (Open MPI) 3.1.3", "it is Open MPI 3.1.3, and versions 4 and 5 are known"),
            (
                "Intel(R) MPI Library for Linux* OS, Version 2018 Update 4",
                "an Intel MPI before 2019",
            ),
            (&*hydra_with("3.4.1", ""), "it is MPICH 3.4.1"),
            (
                &hydra_with("4.0.2", "'--with-device=ch4:ucx' 'FFLAGS=-O2'"),
                "this MPICH 4.0.2 is built for ch4:ucx, without libfabric (ofi)",
            ),
            ("slurm 22.05.8", "prints \"slurm 22.05.8\", which is of no known MPI"),
            ("\n", "prints \"nothing\""),
        ] {
            let (Refusal::Unknown(refusal) | Refusal::Unfit(refusal)) = read(said).unwrap_err();
            assert!(refusal.contains(why), "{refusal}");
        }
    }

    #[test]
    fn program_that_is_no_launcher_is_not_started() {
        let error = ask(OsStr::new("/bin/false")).unwrap_err().to_string();
        assert!(error.contains("its name begins with none of mpiexec"), "{error}");
        assert!(error.contains("--mpi mpich"), "{error}");
    }
}
