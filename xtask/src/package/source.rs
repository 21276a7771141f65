//! Makes Debian's source package, which builds the packages without a network.
//!
//! The sources are files that git knows, in one archive; the required crates are in a second archive, which is unpacked to `vendor`
//! in the tree, where `debian/rules` expects them.

use super::{build, deb};
use crate::sh::{
    Outcome, bytes, capture, cargo, command, entries, make_folder, name_of, on, packages, read,
    root, target, write,
};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const NAME: &str = concat!("tieline-", env!("CARGO_PKG_VERSION"));

/// The archives, and their names in a source rpm.
pub(super) const ARCHIVES: [(&str, &str); 2] = [
    (
        concat!("tieline_", env!("CARGO_PKG_VERSION"), ".orig.tar.xz"),
        concat!("tieline-", env!("CARGO_PKG_VERSION"), ".tar.xz"),
    ),
    (
        concat!("tieline_", env!("CARGO_PKG_VERSION"), ".orig-vendor.tar.xz"),
        concat!("tieline-", env!("CARGO_PKG_VERSION"), "-vendor.tar.xz"),
    ),
];

/// The targets of the build. Crates that only other targets need are kept as empty crates, since `Cargo.lock` names them.
const PLATFORMS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

pub(super) const NEEDS: &str = "dpkg-source git tar xz";

pub(super) fn folder() -> PathBuf {
    target().join("packages/source")
}

/// Makes the source package in a directory; returns its files.
pub(super) fn make(folder: &Path) -> Outcome<Vec<PathBuf>> {
    super::there(NEEDS)?;
    build::emptied(folder)?;
    let files = known_to_git()?;
    let [original, crates] = ARCHIVES.map(|(name, _)| folder.join(name));
    let mut tar = archive(&original, &root())?;
    // Links refer to files of the tree, and are not changed.
    let _ = tar.args(["--no-recursion", &format!("--transform=s,^,{NAME}/,S")]);
    let list = folder.join("files");
    write(&list, files.join("\0"))?;
    let _ = capture(tar.args(["--null", "--files-from"]).arg(&list))?;
    on(&list, std::fs::remove_file(&list))?;
    let unpacked = folder.join("unpacked");
    vendor(&unpacked.join("vendor"))?;
    let mut tar = archive(&crates, &unpacked)?;
    let _ = capture(tar.arg("vendor"))?;
    let tree = unpacked.join(NAME);
    make_folder(&tree)?;
    let mut tar = command("tar", &["--extract", "--file"]);
    let _ = tar.arg(original).arg("--directory");
    let _ = capture(tar.arg(&unpacked))?;
    on(&tree, std::fs::rename(unpacked.join("vendor"), tree.join("vendor")))?;
    deb::describe(&tree, deb::VERSION)?;
    let mut dpkg = command("dpkg-source", &["--build"]);
    // dpkg-source reads the tree and the archives in this directory, and writes its own archives to the same directory.
    deb::told_in(dpkg.arg(&tree).current_dir(folder), &folder.join("build.log"))?;
    on(&unpacked, std::fs::remove_dir_all(&unpacked))?;
    let mut made = build::files(folder)?;
    made.retain(|file| file.extension().is_some_and(|e| e == "dsc" || e == "xz"));
    Ok(made)
}

/// Returns the files that git tracks and new files, without deleted files: relative to the root, sorted.
pub(crate) fn known_to_git() -> Outcome<Vec<String>> {
    let words = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let said = capture(&mut command("git", &words))
        .map_err(|text| format!("git does not name the files: {text}"))?;
    let there = |file: &&str| std::fs::symlink_metadata(root().join(file)).is_ok();
    let files: BTreeSet<&str> = said.split('\0').filter(|f| !f.is_empty()).filter(there).collect();
    Ok(files.into_iter().map(str::to_owned).collect())
}

/// Makes an archive of a directory that is the same for every user and at any time.
fn archive(file: &Path, folder: &Path) -> Outcome<Command> {
    let mut date = command("dpkg-parsechangelog", &["--show-field", "Timestamp", "--file"]);
    let date = capture(date.arg(root().join("packaging/debian/changelog")))?;
    let args = ["--create", "--xz", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"];
    let mut tar = command("tar", &args);
    let _ = tar.args(["--format=gnu", "--mode=u=rwX,go=rX", &format!("--mtime=@{}", date.trim())]);
    let _ = tar.arg("--file").arg(file).arg("--directory").arg(folder);
    // With several threads, the blocks of the archive would depend on the number of threads.
    let _ = tar.env("XZ_OPT", "--threads=1");
    Ok(tar)
}

pub(crate) fn vendor(folder: &Path) -> Outcome {
    let args = ["vendor", "--quiet", "--locked", "--versioned-dirs"];
    let _ = capture(cargo(&args).arg(folder))?;
    let needed = needed()?;
    for krate in entries(folder)? {
        match needed.contains(&name_of(&krate)) {
            true => without_foreign_programs(&krate)?,
            false => empty(&krate)?,
        }
    }
    Ok(())
}

/// Returns the crates of which code is compiled on a supported platform: `name-version`.
fn needed() -> Outcome<BTreeSet<String>> {
    let mut needed = BTreeSet::new();
    for platform in PLATFORMS {
        needed.extend(packages(&["--locked", "--filter-platform", platform])?.iter().filter_map(
            |package| {
                Some(format!("{}-{}", package["name"].as_str()?, package["version"].as_str()?))
            },
        ));
    }
    Ok(needed)
}

/// Removes the contents of a crate that is not needed, except for the files that cargo reads: the manifest, and the checksum that
/// `Cargo.lock` contains.
fn empty(krate: &Path) -> Outcome {
    let manifest = bytes(krate.join("Cargo.toml"))?;
    let mut sums = sums(krate)?;
    sums["files"] = serde_json::json!({});
    on(krate, std::fs::remove_dir_all(krate))?;
    make_folder(krate.join("src"))?;
    write(krate.join("Cargo.toml"), manifest)?;
    write(krate.join("src/lib.rs"), "")?;
    write(krate.join(SUMS), sums.to_string())
}

/// Removes Windows binaries from a crate, which are not built from its sources and are not used by this project.
fn without_foreign_programs(krate: &Path) -> Outcome {
    let mut sums = sums(krate)?;
    let files = sums["files"].as_object_mut().ok_or(format!("{}: {SUMS}", krate.display()))?;
    let before = files.len();
    for file in build::files(krate)? {
        if file.extension().is_some_and(|end| FOREIGN.iter().any(|foreign| end == *foreign)) {
            let name = file.strip_prefix(krate).unwrap_or(&file).to_string_lossy().into_owned();
            let _ = files.remove(&name);
            on(&file, std::fs::remove_file(&file))?;
        }
    }
    match files.len() == before {
        true => Ok(()),
        false => write(krate.join(SUMS), sums.to_string()),
    }
}

const FOREIGN: [&str; 3] = ["dll", "exe", "lib"];

fn sums(krate: &Path) -> Outcome<Value> {
    let file = krate.join(SUMS);
    serde_json::from_str(&read(&file)?).map_err(|e| format!("{}: {e}", file.display()))
}

/// The checksums that cargo compares with a vendored crate's files.
const SUMS: &str = ".cargo-checksum.json";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_holds_tracked_files_and_only_manifests_of_unneeded_crates() {
        match known_to_git() {
            Ok(files) => {
                for file in [".cargo/config.toml", "Cargo.lock", "packaging/debian/rules"] {
                    assert!(files.iter().any(|known| known == file), "{file}");
                }
                assert!(files.iter().all(|file| !file.starts_with("target/")));
            }
            Err(reason) => println!("no git here: {reason}"),
        }
        let krate = std::env::temp_dir().join(format!("tieline-vendor-{}", std::process::id()));
        std::fs::create_dir_all(krate.join("src")).unwrap();
        for (file, text) in [
            ("Cargo.toml", "[package]"),
            ("src/lib.rs", "fn main() {}"),
            ("foreign.dll", "MZ"),
            (SUMS, r#"{"files":{"foreign.dll":"12","src/lib.rs":"56"},"package":"34"}"#),
        ] {
            std::fs::write(krate.join(file), text).unwrap();
        }
        without_foreign_programs(&krate).unwrap();
        assert!(!krate.join("foreign.dll").exists());
        let sums = std::fs::read_to_string(krate.join(SUMS)).unwrap();
        assert_eq!(sums, r#"{"files":{"src/lib.rs":"56"},"package":"34"}"#);
        empty(&krate).unwrap();
        let left: Vec<PathBuf> = build::files(&krate).unwrap();
        assert_eq!(left, [SUMS, "Cargo.toml", "src/lib.rs"].map(|file| krate.join(file)));
        let sums = std::fs::read_to_string(krate.join(SUMS)).unwrap();
        assert_eq!(sums, r#"{"files":{},"package":"34"}"#);
        assert_eq!(std::fs::read_to_string(krate.join("src/lib.rs")).unwrap(), "");
        std::fs::remove_dir_all(&krate).unwrap();
    }
}
