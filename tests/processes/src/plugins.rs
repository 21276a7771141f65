//! The providers of the network as shared objects, in a folder of their own, built with this test's profile.
//!
//! They are not linked into the library, and what else lies beside the test program may be of any age.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tieline_testing::built;

/// Names a folder that holds them already, for where there is no cargo.
const GIVEN: &str = "PROCESSES_PROVIDERS";

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
    let profile = built::folder(&built::TCP)?;
    let folder = profile.join("processes-providers");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for (_, file) in built::TCP {
        let (from, to) = (profile.join(file), folder.join(file));
        let _ = std::fs::remove_file(&to);
        std::fs::hard_link(&from, &to).map_err(|e| format!("{}: {e}", from.display()))?;
    }
    Ok(folder)
}
