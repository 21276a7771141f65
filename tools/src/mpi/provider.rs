//! Finds the file of the provider for libfabric.

use crate::misuse;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use tieline::Error;

const FILE: &str = "libtieline-fi.so";

/// The name of the provider's directory. libfabric loads all its files whose names end in `fi.so`.
const FOLDER: &str = "libfabric-tieline";

/// The directory of libraries of the installation, if this command belongs to one.
const LIBDIR: Option<&str> = option_env!("TIELINE_LIBDIR");

/// Returns the directory of the provider: the one that is given, one in which libfabric searches already, or one that belongs to
/// this command.
pub(super) fn find(given: Option<&Path>, searched: Option<OsString>) -> Result<PathBuf, Error> {
    let itself = std::env::current_exe().ok();
    find_in(given.map(Path::to_path_buf), candidates(searched, LIBDIR, itself.as_deref()))
}

fn candidates(
    searched: Option<OsString>,
    libdir: Option<&str>,
    itself: Option<&Path>,
) -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> = searched
        .iter()
        .flat_map(std::env::split_paths)
        .filter(|place| place.is_absolute())
        .collect();
    places.extend(libdir.map(|libdir| Path::new(libdir).join(FOLDER)));
    // A build has the directory beside the command; another prefix has it in its own `lib`.
    let beside = itself
        .and_then(Path::parent)
        .map(|folder| [folder.join(FOLDER), folder.join("../lib").join(FOLDER)]);
    places.extend(beside.into_iter().flatten());
    places
}

fn find_in(given: Option<PathBuf>, candidates: Vec<PathBuf>) -> Result<PathBuf, Error> {
    let places = given.map_or(candidates, |given| vec![given]);
    let found = places.iter().find(|place| place.join(FILE).is_file());
    let found = found.and_then(|place| std::fs::canonicalize(place).ok());
    found.ok_or_else(|| {
        let shown: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
        misuse(
            format!("there is no {FILE}"),
            format!("it is in none of these directories: {}", shown.join(", ")),
            "install tieline-libfabric, or name its directory with --provider",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provider_is_found_in_searched_installed_and_built_directories() {
        let places = candidates(
            Some("/opt/more:relative".into()),
            Some("/usr/lib64"),
            Some(Path::new("/src/target/debug/tieline")),
        );
        let shown: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
        assert_eq!(
            shown,
            [
                "/opt/more",
                "/usr/lib64/libfabric-tieline",
                "/src/target/debug/libfabric-tieline",
                "/src/target/debug/../lib/libfabric-tieline",
            ]
        );
    }

    #[test]
    fn missing_provider_is_an_error_with_all_places() {
        let folder = std::env::temp_dir().join(format!("tieline-fi-{}", std::process::id()));
        let there = folder.join("there");
        std::fs::create_dir_all(&there).unwrap();
        std::fs::write(there.join(FILE), "").unwrap();
        let nowhere = folder.join("nowhere");
        let found = find_in(None, vec![nowhere.clone(), there.clone()]).unwrap();
        assert_eq!(found, std::fs::canonicalize(&there).unwrap());
        let error = find_in(Some(nowhere.clone()), vec![there]).unwrap_err().to_string();
        assert!(error.contains(&nowhere.display().to_string()), "{error}");
        assert!(error.contains("install tieline-libfabric"), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
