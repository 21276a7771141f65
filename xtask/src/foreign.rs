//! Builds for another processor than that of this machine.
//!
//! `TIELINE_TARGET` names the target as cargo does, for example `aarch64-unknown-linux-gnu`. Compiler, linker and the tools for object
//! files then have the prefix of that target, as in Debian's cross compilers. A program of the target is not run: files that a
//! program writes come from the same program built for this machine.

use std::path::PathBuf;
use std::process::Command;

/// The variable that names the target. It is unset for this machine.
pub(crate) const TARGET: &str = "TIELINE_TARGET";

fn wanted() -> Option<String> {
    std::env::var(TARGET).ok().filter(|target| !target.is_empty())
}

/// Returns the target of the build, as cargo names it.
pub(crate) fn triple() -> String {
    wanted().unwrap_or_else(|| format!("{}-unknown-linux-gnu", std::env::consts::ARCH))
}

/// Returns the processor of the build, as the kernel names it: `aarch64`.
pub(crate) fn processor() -> String {
    triple().split('-').next().unwrap_or_default().to_owned()
}

/// Returns the target of the build, as a C compiler names it: `aarch64-linux-gnu`.
pub(crate) fn gnu() -> String {
    gnu_of(&triple())
}

fn gnu_of(target: &str) -> String {
    target.replacen("-unknown", "", 1)
}

/// Returns the prefix of the tools for a target: `aarch64-linux-gnu-`.
fn prefix(target: &str) -> String {
    gnu_of(target) + "-"
}

/// Returns the name of a tool for the object files of the build: `strip`, or `aarch64-linux-gnu-strip`.
pub(crate) fn tool(name: &str) -> String {
    wanted().map_or(name.to_owned(), |target| prefix(&target) + name)
}

/// Returns the C compiler of the build.
pub(crate) fn compiler() -> String {
    wanted().map_or("cc".to_owned(), |target| prefix(&target) + "gcc")
}

/// Returns the place of files for the target below `target/packages`: `name`, or `name-arm64` for another processor.
pub(crate) fn place(name: &str) -> String {
    match wanted().map(|_| processor()).as_deref() {
        None => name.to_owned(),
        Some("aarch64") => format!("{name}-arm64"),
        Some(processor) => format!("{name}-{processor}"),
    }
}

/// Returns the folder, below that of the build, in which cargo places the files of a profile.
pub(crate) fn folder(profile: &str) -> PathBuf {
    wanted().map_or_else(PathBuf::new, PathBuf::from).join(profile)
}

/// Makes a command of cargo build for the target.
pub(crate) fn aim(cargo: &mut Command) {
    let Some(target) = wanted() else { return };
    let variable = format!("CARGO_TARGET_{}_LINKER", target.to_uppercase().replace('-', "_"));
    let _ = cargo.args(["--target", &target]).env(variable, compiler());
}

/// Checks whether programs of the build run only on other machines.
pub(crate) fn is_foreign() -> bool {
    wanted().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_of_a_target_have_its_prefix_without_the_vendor() {
        assert_eq!(prefix("aarch64-unknown-linux-gnu"), "aarch64-linux-gnu-");
        assert_eq!(prefix("riscv64gc-unknown-linux-gnu"), "riscv64gc-linux-gnu-");
        assert_eq!((tool("strip").as_str(), compiler().as_str()), ("strip", "cc"), "this machine");
        assert_eq!(folder("release"), PathBuf::from("release"));
    }
}
