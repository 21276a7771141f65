//! The providers of the network as shared objects, in a folder of their own, built with this test's profile.
//!
//! They are not linked into the library, and what else lies beside the test program may be of any age.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Names a folder that holds them already, for where there is no cargo.
const GIVEN: &str = "PROCESSES_PROVIDERS";

const PLUGINS: [(&str, &str); 2] = [
    ("tieline-provider-tcp-plugin", "libtieline_tcp.so"),
    ("tieline-provider-tcp-connect-plugin", "libtieline_tcp_connect.so"),
];

/// The folder, or why there is none.
///
/// # Errors
/// Without cargo.
///
/// # Panics
/// When they do not compile.
pub fn folder() -> Result<&'static Path, String> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| match std::env::var_os(GIVEN) {
        Some(given) => Ok(given.into()),
        None => build(),
    });
    folder.as_deref().map_err(Clone::clone)
}

fn build() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|e| format!("this program's path: {e}"))?;
    let profile = program.parent().and_then(Path::parent).ok_or("this program lies nowhere")?;
    let target = profile.parent().ok_or("there is no target folder")?;
    let mut cargo = Command::new(env!("CARGO"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let _ = cargo.current_dir(source).args(["build", "--quiet", "--target-dir"]).arg(target);
    for (package, _) in PLUGINS {
        let _ = cargo.args(["--package", package]);
    }
    if profile.ends_with("release") {
        let _ = cargo.arg("--release");
    }
    let built = cargo.status().map_err(|e| format!("cargo cannot be started: {e}"))?;
    assert!(built.success(), "the providers of the network do not compile");
    let folder = profile.join("processes-providers");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for (_, file) in PLUGINS {
        let (from, to) = (profile.join(file), folder.join(file));
        let _ = std::fs::remove_file(&to);
        std::fs::hard_link(&from, &to).map_err(|e| format!("{}: {e}", from.display()))?;
    }
    Ok(folder)
}
