//! Finds the packages that differ from main: committed, staged, in the work tree, or new.

use crate::sh::{self, Outcome, capture, command, root};
use std::path::{Path, PathBuf};

/// Returns the names of the packages in whose directories a file differs from main, sorted.
///
/// A change outside of all packages, such as of a page, selects no package. A change of the workspace's manifest or lock file
/// selects all packages.
pub(super) fn packages() -> Outcome<Vec<String>> {
    let folders: Vec<(PathBuf, String)> = sh::packages(&["--no-deps"])?
        .iter()
        .filter_map(|package| {
            let folder = Path::new(package["manifest_path"].as_str()?).parent()?;
            let folder = folder.strip_prefix(root()).ok()?.to_path_buf();
            Some((folder, package["name"].as_str()?.to_owned()))
        })
        .collect();
    Ok(owners(&files()?, &folders))
}

fn files() -> Outcome<Vec<String>> {
    let git = |words: &[&str]| capture(&mut command("git", words));
    let base = ["origin/main", "main"].into_iter().find_map(|main| {
        git(&["merge-base", main, "HEAD"]).ok().map(|commit| commit.trim().to_owned())
    });
    let base = base.ok_or("there is no branch main to compare with")?;
    let changed = git(&["diff", "--name-only", "-z", &base])?;
    let new = git(&["ls-files", "-z", "--others", "--exclude-standard"])?;
    let all = changed.split('\0').chain(new.split('\0'));
    Ok(all.filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

/// Returns the packages of these files: each file belongs to the innermost package directory that contains it.
fn owners(files: &[String], folders: &[(PathBuf, String)]) -> Vec<String> {
    let every = files.iter().any(|file| file == "Cargo.toml" || file == "Cargo.lock");
    let owner = |file: &String| {
        let holds = |(folder, _): &&(PathBuf, String)| Path::new(file).starts_with(folder);
        folders.iter().filter(holds).max_by_key(|(folder, _)| folder.components().count())
    };
    let mut named: Vec<String> = match every {
        true => folders.iter().map(|(_, name)| name.clone()).collect(),
        false => files.iter().filter_map(owner).map(|(_, name)| name.clone()).collect(),
    };
    named.sort();
    named.dedup();
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_file_belongs_to_innermost_package() {
        let folders: Vec<(PathBuf, String)> =
            [("tests/fake", "fake"), ("xtask", "xtask"), ("xtask/header", "header")]
                .map(|(folder, name)| (PathBuf::from(folder), name.to_owned()))
                .to_vec();
        let owners = |files: &[&str]| {
            let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
            owners(&files, &folders)
        };
        assert_eq!(owners(&["xtask/header/src/lib.rs", "README.md"]), ["header"]);
        assert_eq!(
            owners(&["xtask/src/a.rs", "xtask/src/b.rs", "tests/fake/x"]),
            ["fake", "xtask"]
        );
        assert_eq!(owners(&["xtask-notes.md"]), [""; 0]);
        assert_eq!(owners(&["Cargo.lock"]).len(), 3);
    }
}
