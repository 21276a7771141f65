//! Provider files for tests, which cargo builds unless a directory of built files is given.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable with the directory of files that are already built. `cargo xtask test` builds them once for all suites.
pub const GIVEN: &str = "BUILT_FOR_TESTS";

/// A package and the name of the file that it builds.
pub type Made<'a> = (&'a str, &'a str);

/// The providers over TCP.
pub const TCP: [Made<'static>; 2] = [
    ("tieline-provider-tcp-plugin", "libtieline_tcp.so"),
    ("tieline-provider-tcp-connect-plugin", "libtieline_tcp_connect.so"),
];

/// Returns the directory with these files, built by cargo with the profile of the calling program, unless [`GIVEN`] names a
/// directory that contains the files.
///
/// # Errors
/// Returns the reason why the files cannot be built on this machine; the caller then skips its test.
///
/// # Panics
/// Panics if the files do not compile, or if the directory of [`GIVEN`] lacks one.
pub fn folder(files: &[Made<'_>]) -> Result<PathBuf, String> {
    if let Some(given) = std::env::var_os(GIVEN) {
        let given = PathBuf::from(given);
        for (_, file) in files {
            assert!(given.join(file).exists(), "{GIVEN}: no {file} in {}", given.display());
        }
        return Ok(given);
    }
    let program = std::env::current_exe().map_err(|e| format!("this program's path: {e}"))?;
    let profile = profile(&program).ok_or("this program lies nowhere")?;
    // The command is the cargo that runs this test, if there is one.
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let _ = cargo
        .current_dir(source)
        .args(["build", "--quiet", "--offline", "--locked", "--target-dir"])
        .arg(profile.parent().ok_or("there is no target folder")?);
    for (package, _) in files {
        let _ = cargo.args(["--package", package]);
    }
    if profile.ends_with("release") {
        let _ = cargo.arg("--release");
    }
    let built = cargo.status().map_err(|e| format!("cargo cannot be started: {e}"))?;
    assert!(built.success(), "{cargo:?} failed");
    Ok(profile.to_path_buf())
}

/// Returns the directory with the provider over libfabric.
///
/// # Errors
/// Returns the reason why the provider cannot run on this machine; the caller then skips its test.
pub fn libfabric() -> Result<PathBuf, String> {
    let listed = Command::new("ldconfig").arg("-p").output();
    let is_there = |list: &[u8]| String::from_utf8_lossy(list).contains("libfabric.so.1");
    if !listed.is_ok_and(|listed| is_there(&listed.stdout)) {
        return Err("libfabric is not installed (libfabric1)".into());
    }
    folder(&[("tieline-provider-ofi-plugin", "libtieline_ofi.so")])
}

/// Returns cargo's target directory, which contains the calling program.
///
/// # Errors
/// Returns an error if the program is elsewhere.
pub fn target() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|e| format!("this program's path: {e}"))?;
    let target = profile(&program).and_then(Path::parent);
    target.map(Path::to_path_buf).ok_or_else(|| "this program lies nowhere".into())
}

/// Returns `target/debug` for a program in this directory, or in its `deps` or `examples`.
fn profile(program: &Path) -> Option<&Path> {
    let folder = program.parent()?;
    if folder.ends_with("deps") || folder.ends_with("examples") {
        folder.parent()
    } else {
        Some(folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_is_the_folder_above_those_that_cargo_makes_in_it() {
        let at = |path: &str| profile(Path::new(path)).map(|p| p.display().to_string());
        assert_eq!(at("/t/debug/tieline").as_deref(), Some("/t/debug"));
        assert_eq!(at("/t/debug/deps/over_tcp-1").as_deref(), Some("/t/debug"));
        assert_eq!(at("/t/release/examples/ring").as_deref(), Some("/t/release"));
    }
}
