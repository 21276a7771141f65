//! Runs unmodified MPIs over the libfabric provider; integrations/libfabric/run and integrations/libfabric/suite have the details.

use super::{Count, told};
use crate::integrations;
use crate::sh::{command, listened, root, target, which};
use std::process::Command;

/// Runs programs over the provider, among them Open MPI of the system.
pub(super) fn run() -> Count {
    over_the_provider(command(root().join("integrations/libfabric/run"), &[]), "by Tieline")
}

/// Runs tests of mpi4py over the wheel of MPICH, by `tieline mpi`.
pub(super) fn mpich() -> Count {
    if which("python3").is_none() {
        return Count::skip("python3 is not installed");
    }
    let mut suite = command(root().join("integrations/libfabric/suite"), &["short", "--wrapper"]);
    let _ = suite.arg(target().join("debug/tieline")).arg("--provider");
    let _ = suite.env("PYTHONDONTWRITEBYTECODE", "1");
    over_the_provider(suite, " s {")
}

/// Runs a command whose last argument is the provider's file. Lines with `shown` report what the provider carried.
fn over_the_provider(mut command: Command, shown: &str) -> Count {
    let provider = match integrations::build("debug") {
        Ok(provider) => provider,
        Err(text) => return Count::one(Err(text)),
    };
    let _ = command.arg(provider).env("TIELINE_PROVIDER_PATH", target().join("debug"));
    let (outcome, said) = listened(&mut command);
    if let Some(reason) = said.iter().find_map(|line| line.strip_prefix("skipped: ")) {
        return Count::skip(reason);
    }
    said.iter().filter(|line| line.contains(shown)).for_each(|line| println!("{line}"));
    Count::one(told(outcome, &said))
}
