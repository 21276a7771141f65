//! `tieline mpi`: starts an unmodified MPI program over Tieline's provider for libfabric.

mod provider;
mod recognize;
mod settings;

use crate::{misuse, say, system_error};
use recognize::Mpi;
use settings::{Given, Plan};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use tieline::Error;

/// Run an unmodified MPI program over Tieline
///
/// Sets the variables with which an MPI uses Tieline's provider for libfabric, prints them to standard error, and then becomes the
/// launcher. A variable that is already set keeps its value. If such a value excludes Tieline, the command refuses to start the
/// program. The provider is in the package tieline-libfabric.
///
/// The MPI is recognized by the output of `LAUNCHER --version`: MPICH 4 and later, Open MPI 4 and 5, Intel MPI 2019 and later. A
/// launcher is a program whose name begins with mpiexec, mpirun, orterun or prterun. Other launchers, such as srun, serve every MPI:
/// --mpi names the MPI.
///
/// With Open MPI, messages use the component mtl/ofi. If the parameter `pml` is `ob1`, they use btl/ofi, which also carries puts,
/// gets and atomics. For other hosts, `-x` options forward the variables of libfabric and Tieline; the other launchers forward all.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tieline mpi -- mpiexec -n 4 ./program\n  tieline mpi -- mpirun -n 4 --mca pml ob1 \
                  ./program\n  tieline mpi --mpi mpich -- srun -n 4 --mpi=pmi2 ./program"
)]
pub(crate) struct Args {
    /// The MPI of the program, for launchers that serve every MPI
    #[arg(long, value_enum, value_name = "MPI")]
    mpi: Option<Mpi>,
    /// The directory of libtieline-fi.so [default: that of the package, or of the build of this command]
    #[arg(long, value_name = "DIR")]
    provider: Option<PathBuf>,
    /// The launcher and its arguments
    #[arg(last = true, required = true, value_name = "LAUNCHER")]
    launcher: Vec<OsString>,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode, Error> {
    let (launcher, words) = args.launcher.split_first().ok_or_else(|| {
        misuse("nothing to start", "no launcher was named", "tieline mpi -- mpiexec -n 2 ./program")
    })?;
    let (mpi, name) = match args.mpi {
        Some(mpi) => (mpi, mpi.to_string()),
        None => recognize::ask(launcher)?,
    };
    let variables = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let directory = provider::find(args.provider.as_deref(), variables("FI_PROVIDER_PATH"))?;
    let forwarded = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let forwarded = forwarded.filter(|name| name.starts_with("TIELINE_")).collect();
    let given = Given { variable: &variables, words, forwarded };
    let plan = settings::plan(mpi, &given, &directory)?;
    show(&name, &plan);
    let mut command = Command::new(launcher);
    let _ = command.args(&plan.options).args(words).envs(plan.set);
    let error = command.exec();
    let what = format!("cannot start `{}`", launcher.to_string_lossy());
    Err(system_error(what, &error, "check its path and that it may be executed"))
}

/// Prints the changes to the environment and the command line.
fn show(name: &str, plan: &Plan) {
    let assignment =
        |(name, value): &(String, OsString)| format!("{name}={}", quoted(&value.to_string_lossy()));
    let list =
        |all: &[(String, OsString)]| all.iter().map(assignment).collect::<Vec<_>>().join(" ");
    let set = if plan.set.is_empty() { "nothing".to_owned() } else { list(&plan.set) };
    say::error(format!("{name}: sets {set}"));
    if !plan.kept.is_empty() {
        say::error(format!("{name}: keeps {}", list(&plan.kept)));
    }
    if !plan.options.is_empty() {
        let words: Vec<_> = plan.options.iter().map(|word| word.to_string_lossy()).collect();
        say::error(format!("{name}: adds {}", words.join(" ")));
    }
}

/// Returns a value as a shell accepts it.
fn quoted(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,=+@%".contains(c);
    match !value.is_empty() && value.chars().all(plain) {
        true => value.to_owned(),
        false => format!("'{}'", value.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_values_are_quoted_for_a_shell() {
        assert_eq!(quoted("/usr/lib:a,b=c"), "/usr/lib:a,b=c");
        assert_eq!(quoted("tcp;ofi_rxm"), "'tcp;ofi_rxm'");
        assert_eq!((quoted(""), quoted("it's")), ("''".into(), "'it'\\''s'".into()));
    }
}
