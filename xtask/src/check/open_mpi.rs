//! Runs an unmodified Open MPI over the C library, through a provider of libfabric; contrib/libfabric describes the purpose.

use super::{Count, c_programs, told};
use crate::sh::{listened, root, target};
use std::process::Command;

pub(super) fn run() -> Count {
    let libraries = match c_programs::library() {
        Ok(folder) => folder,
        Err(text) => return Count::one(Err(text)),
    };
    let mut command = Command::new(root().join("contrib/libfabric/run"));
    let _ = command
        .env("TIELINE_INCLUDE", root().join("include"))
        .env("TIELINE_LIB", libraries)
        .env("TIELINE_PROVIDER_PATH", target().join("debug"));
    let (outcome, said) = listened(&mut command);
    if let Some(reason) = said.iter().find_map(|line| line.strip_prefix("skipped: ")) {
        return Count::skip(reason);
    }
    // The counts of carried messages, with the provider that carried each.
    said.iter().filter(|line| line.contains("by Tieline")).for_each(|line| println!("{line}"));
    Count::one(told(outcome, &said))
}
