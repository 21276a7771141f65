//! The build for packages: the release profile, with the library directory of the installation, and without paths of the build
//! machine.

use crate::sh::{self, Outcome, command, entries, make_folder, on, root, target};
use std::path::{Path, PathBuf};
use std::process::Stdio;

pub(super) fn installed(libdir: &str, folder: &Path) -> Outcome {
    println!("building the release profile for {libdir}: some minutes when nothing is there");
    let own = std::env::current_exe().map_err(|e| format!("this program's path: {e}"))?;
    let mut install =
        command(own, &["install", "--unstripped", "--prefix", "/usr", "--libdir", libdir]);
    let _ = install.env("DESTDIR", folder).stdout(Stdio::null());
    let _ = install.env("CARGO_TARGET_DIR", target().join("packages/build"));
    let _ = install.env("CARGO_ENCODED_RUSTFLAGS", steady());
    sh::run(&mut install)
}

/// The option by which link-time optimisation names functions that it moves by their module. By default it uses a hash of compiled
/// code, whose bytes sometimes differ from build to build although the final instructions are the same. The names are part of the
/// build's identity (build ID).
const NAMES: &str = "-Cllvm-args=-use-source-filename-for-promoted-locals";

/// Returns the compiler options by which two builds have the same bytes. They replace the paths of sources, which appear in panics
/// and in debug information, by paths that are the same on every machine.
fn steady() -> String {
    let places = places();
    let paths = places.iter().map(|(from, to)| format!("--remap-path-prefix={from}={to}"));
    paths.chain([NAMES.to_owned()]).collect::<Vec<_>>().join("\u{1f}")
}

/// Returns the directories of sources on this machine, and their names in the build.
fn places() -> Vec<(String, &'static str)> {
    let home = std::env::var("CARGO_HOME").ok().filter(|home| !home.is_empty());
    let home = home.or_else(|| Some(format!("{}/.cargo", std::env::var("HOME").ok()?)));
    let registry = home.map(|home| (format!("{home}/registry/src"), "/crates"));
    let own = (root().display().to_string(), "/tieline");
    registry.into_iter().chain([own]).collect()
}

/// The number of files that one `grep` searches. Their paths have to fit into the arguments of a program.
const SEARCHED: usize = 500;

/// Checks that no file contains the path of a source directory of this machine (see `places`). `grep` searches, because this program
/// is built without optimisation and the files are not stripped yet.
pub(super) fn names_no_place(files: &[PathBuf]) -> Outcome {
    for ((place, _), files) in
        places().iter().flat_map(|place| files.chunks(SEARCHED).map(move |files| (place, files)))
    {
        let mut grep =
            command("grep", &["--fixed-strings", "--files-with-matches", "--max-count=1"]);
        let _ = grep.env("LC_ALL", "C").arg("--regexp").arg(place).arg("--").args(files);
        let said = grep.stdin(Stdio::null()).output().map_err(|e| format!("grep: {e}"))?;
        match said.status.code() {
            Some(1) => {}
            Some(0) => {
                let named = String::from_utf8_lossy(&said.stdout);
                let file = named.lines().next().unwrap_or_default();
                return Err(format!("{file} names {place}, where it was built"));
            }
            _ => return Err(format!("grep: {}", String::from_utf8_lossy(&said.stderr).trim())),
        }
    }
    Ok(())
}

pub(crate) fn emptied(folder: &Path) -> Outcome {
    if folder.exists() {
        on(folder, std::fs::remove_dir_all(folder))?;
    }
    make_folder(folder)
}

pub(super) fn copy(from: &Path, to: &Path) -> Outcome {
    let parent = to.parent().unwrap_or(Path::new("."));
    make_folder(parent)?;
    on(from, std::fs::copy(from, to).map(|_| ()))
}

/// Copies all files of a directory into another one.
pub(super) fn copied(from: &Path, to: &Path) -> Outcome {
    files(from)?.iter().try_for_each(|file| {
        let name = file.strip_prefix(from).unwrap_or(file);
        copy(file, &to.join(name))
    })
}

pub(crate) fn files(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in entries(folder)? {
        match entry.is_dir() && !entry.is_symlink() {
            true => found.extend(files(&entry)?),
            false => found.push(entry),
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_names_where_it_was_built_is_noticed() {
        let folder = std::env::temp_dir().join(format!("tieline-places-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("below")).unwrap();
        let (good, bad) = (folder.join("good"), folder.join("below/bad"));
        std::fs::write(&good, "/tieline/core/src/lib.rs").unwrap();
        std::fs::write(&bad, format!("\0{}/core\0", root().display())).unwrap();
        let all = files(&folder).unwrap();
        assert_eq!(all, [bad.clone(), good.clone()]);
        assert_eq!(names_no_place(&[good]), Ok(()));
        assert!(names_no_place(&all).unwrap_err().contains("below/bad names "));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
