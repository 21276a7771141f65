//! Provider files of this workspace.

use std::path::PathBuf;

pub(crate) fn built(package: &str, library: &str) -> PathBuf {
    let folder = tieline_testing::built::folder(&[(package, library)]);
    folder.unwrap_or_else(|reason| panic!("{reason}")).join(library)
}
