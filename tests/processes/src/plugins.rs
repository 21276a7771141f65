//! The network providers as shared objects, in a separate directory, built with this test's profile.
//!
//! The providers are not linked into the library, and files in the directory of the test program may be outdated.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tieline_testing::built;

/// The variable that names a directory with these files, for hosts without cargo.
const GIVEN: &str = "PROCESSES_PROVIDERS";

/// Returns the directory, or the reason why there is none.
///
/// # Errors
/// Returns an error without cargo.
///
/// # Panics
/// Panics if the providers do not compile.
pub fn folder() -> Result<&'static Path, String> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| match std::env::var_os(GIVEN) {
        Some(given) => Ok(given.into()),
        None => build(),
    });
    folder.as_deref().map_err(Clone::clone)
}

/// Returns a directory that contains only the provider over libfabric.
///
/// # Errors
/// Returns an error without cargo, or without libfabric.
///
/// # Panics
/// Panics if the provider does not compile.
pub fn libfabric() -> Result<&'static Path, String> {
    const FILES: [built::Made<'static>; 1] = [("tieline-provider-ofi-plugin", "libtieline_ofi.so")];
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let listed = std::process::Command::new("ldconfig").arg("-p").output();
    let is_there = |list: &[u8]| String::from_utf8_lossy(list).contains("libfabric.so.1");
    if !listed.is_ok_and(|listed| is_there(&listed.stdout)) {
        return Err("libfabric is not installed (libfabric1)".into());
    }
    let folder = FOLDER.get_or_init(|| match std::env::var_os(GIVEN) {
        Some(given) if Path::new(&given).join(FILES[0].1).exists() => Ok(given.into()),
        Some(given) => {
            Err(format!("{GIVEN}: no {} in {}", FILES[0].1, Path::new(&given).display()))
        }
        None => gathered("processes-libfabric", &FILES),
    });
    folder.as_deref().map_err(Clone::clone)
}

/// Returns a directory with the provider over libfabric and the network providers.
///
/// # Errors
/// Returns the errors of [`libfabric`].
///
/// # Panics
/// Panics as [`libfabric`] does.
pub fn libfabric_and_network() -> Result<PathBuf, String> {
    let _ = libfabric()?;
    let [tcp, connect] = built::TCP;
    let files = [("tieline-provider-ofi-plugin", "libtieline_ofi.so"), tcp, connect];
    match std::env::var_os(GIVEN) {
        Some(given) => Ok(given.into()),
        None => gathered("processes-libfabric-and-network", &files),
    }
}

fn build() -> Result<PathBuf, String> {
    gathered("processes-providers", &built::TCP)
}

fn gathered(name: &str, files: &[built::Made<'_>]) -> Result<PathBuf, String> {
    let profile = built::folder(files)?;
    let folder = profile.join(name);
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for (_, file) in files {
        let (from, to) = (profile.join(file), folder.join(file));
        let _ = std::fs::remove_file(&to);
        std::fs::hard_link(&from, &to).map_err(|e| format!("{}: {e}", from.display()))?;
    }
    Ok(folder)
}
