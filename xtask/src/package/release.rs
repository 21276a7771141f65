//! `cargo xtask release DIR`: a directory that users' package managers read.
//!
//! | folder | contents |
//! |---|---|
//! | `apt` | a repository for apt: packages for all architectures, the source package |
//! | `yum` | a repository for dnf: rpms for all architectures |
//! | `wheels` | the Python module and the backend for NIXL for all architectures, with the index that pip reads |
//! | `crates` | the crates as they would be published |
//!
//! `SHA256SUMS` names every file. `NOTES.md` is the newest part of the change log. The key of `TIELINE_RELEASE_KEY` (a name that gpg
//! knows) signs the repositories and the sums; its public part is `tieline.asc`.

use super::build::{copy, files};
use super::{crates, cross, source, test};
use crate::check::closing_line;
use crate::sh::{Outcome, capture, command, make_folder, name_of, on, read, root, target, write};
use std::path::{Path, PathBuf};

/// The variable that names the key.
const KEY: &str = "TIELINE_RELEASE_KEY";

pub(super) const NEEDS: &str = "gpg apt-ftparchive createrepo_c sha256sum gzip";

const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];

const USAGE: &str =
    "cargo xtask release DIR [--made]: with --made, of the packages that were made before";

pub(crate) fn run(words: &[&str]) -> Outcome {
    let (folder, is_made) = match words {
        [folder] => (folder, false),
        [folder, "--made"] => (folder, true),
        _ => return Err(format!("usage: {USAGE}")),
    };
    super::there(NEEDS)?;
    let key = std::env::var(KEY).ok().filter(|key| !key.is_empty());
    let key =
        key.ok_or(format!("{KEY} names no key: a name or number that `gpg --list-keys` shows"))?;
    if !is_made {
        // The wheels come first, because they need programs that no package of Debian has.
        for (architecture, what) in ARCHITECTURES.iter().flat_map(|a| [(a, "wheel"), (a, "nixl")]) {
            cross::aimed(architecture, &[what])?;
        }
        for architecture in ARCHITECTURES {
            let _ = (cross::make(architecture)?, cross::rpms(architecture)?);
        }
        let _ = (source::make(&source::folder())?, crates::make()?);
    }
    let folder = on(Path::new(folder), std::path::absolute(folder))?;
    lay(&folder, &key)?;
    let count = test::release(&folder);
    count.failed.iter().for_each(|text| println!("FAILED: {text}"));
    count.skipped.iter().for_each(|text| println!("skipped: {text}"));
    closing_line(&count)
}

/// Fills a directory with what was made.
pub(super) fn lay(folder: &Path, key: &str) -> Outcome {
    if folder.exists() && !crate::sh::entries(folder)?.is_empty() {
        return Err(format!("{} is not empty", folder.display()));
    }
    make_folder(folder)?;
    apt(&folder.join("apt"), key)?;
    yum(&folder.join("yum"), key)?;
    wheels(&folder.join("wheels"))?;
    collect(&target().join("packages/crates/package"), &["crate"], &folder.join("crates"))?;
    write(folder.join("NOTES.md"), notes(&read(root().join("CHANGELOG.md"))?)?)?;
    let public = capture(&mut command("gpg", &["--batch", "--armor", "--export", key]))?;
    write(folder.join("tieline.asc"), public)?;
    sums(folder, key)
}

fn apt(folder: &Path, key: &str) -> Outcome {
    let pool = folder.join("pool");
    let made = |name: &str| target().join("packages").join(name);
    for name in ["deb", "deb-arm64", "nixl", "nixl-arm64"] {
        collect(&made(name), &["deb"], &pool)?;
    }
    collect(&made("source"), &["dsc", "xz"], &pool)?;
    let dists = folder.join("dists/stable");
    let archive = |words: &[&str]| capture(command("apt-ftparchive", words).current_dir(folder));
    for architecture in ARCHITECTURES {
        let index = dists.join(format!("main/binary-{architecture}"));
        make_folder(&index)?;
        compressed(
            &index.join("Packages"),
            &archive(&["--arch", architecture, "packages", "pool"])?,
        )?;
    }
    let index = dists.join("main/source");
    make_folder(&index)?;
    compressed(&index.join("Sources"), &archive(&["sources", "pool"])?)?;
    let architectures =
        format!("APT::FTPArchive::Release::Architectures={}", ARCHITECTURES.join(" "));
    let options = [
        "APT::FTPArchive::Release::Origin=Tieline",
        "APT::FTPArchive::Release::Suite=stable",
        "APT::FTPArchive::Release::Components=main",
        &architectures,
    ];
    let mut words: Vec<&str> = options.iter().flat_map(|option| ["-o", option]).collect();
    words.extend(["release", "dists/stable"]);
    write(dists.join("Release"), archive(&words)?)?;
    sign(&dists.join("Release"), &dists.join("InRelease"), &["--clearsign"], key)
}

fn yum(folder: &Path, key: &str) -> Outcome {
    // The package without an architecture is that of this machine.
    collect(&target().join("packages/rpm-arm64"), &["rpm"], folder)?;
    for file in files(&target().join("packages/rpm/RPMS"))? {
        copy(&file, &folder.join(name_of(&file)))?;
    }
    let _ = capture(command("createrepo_c", &["--quiet"]).arg(folder))?;
    let index = folder.join("repodata/repomd.xml");
    sign(&index, &folder.join("repodata/repomd.xml.asc"), &["--armor", "--detach-sign"], key)
}

/// Lays out wheels with an index, so that `pip install --index-url` and `--find-links` find them.
fn wheels(folder: &Path) -> Outcome {
    let mut links = String::new();
    for (project, made) in [("tieline", "wheel"), ("tieline-nixl", "nixl")] {
        let place = folder.join(project);
        for made in [made.to_owned(), format!("{made}-arm64")] {
            collect(&target().join("packages").join(made), &["whl"], &place)?;
        }
        links += &format!("<a href=\"{project}/\">{project}</a><br>\n");
        index(&place)?;
    }
    write(folder.join("index.html"), page(&links))
}

fn page(body: &str) -> String {
    format!("<!DOCTYPE html>\n<html><body>\n{body}</body></html>\n")
}

/// Writes the index of one project.
fn index(place: &Path) -> Outcome {
    let link = |file: &PathBuf| {
        let name = name_of(file);
        let sum = capture(command("sha256sum", &[]).arg(file))?;
        let sum = sum.split(' ').next().unwrap_or_default();
        Ok(format!("<a href=\"{name}#sha256={sum}\">{name}</a><br>\n"))
    };
    let links: Outcome<Vec<String>> = files(place)?.iter().map(link).collect();
    write(place.join("index.html"), page(&links?.concat()))
}

/// Copies files with these endings; there has to be one.
fn collect(from: &Path, endings: &[&str], to: &Path) -> Outcome {
    let mut found = if from.exists() { crate::sh::entries(from)? } else { Vec::new() };
    found.retain(|file| endings.iter().any(|end| file.extension().is_some_and(|e| e == *end)));
    if found.is_empty() {
        return Err(format!("{} has no .{}", from.display(), endings[0]));
    }
    found.iter().try_for_each(|file| copy(file, &to.join(name_of(file))))
}

fn compressed(file: &Path, text: &str) -> Outcome {
    write(file, text)?;
    capture(command("gzip", &["--keep", "--no-name", "-9"]).arg(file)).map(|_| ())
}

fn sign(file: &Path, to: &Path, how: &[&str], key: &str) -> Outcome {
    let mut gpg = command("gpg", &["--batch", "--yes", "--local-user", key]);
    let _ = gpg.args(how).arg("--output").arg(to).arg(file);
    capture(&mut gpg).map(|_| ())
}

/// Writes the checksums of all files, and signs them.
fn sums(folder: &Path, key: &str) -> Outcome {
    let all = files(folder)?;
    let names = all.iter().filter_map(|file| file.strip_prefix(folder).ok());
    let mut sum = command("sha256sum", &["--"]);
    let text = capture(sum.args(names).current_dir(folder))?;
    let file = folder.join("SHA256SUMS");
    write(&file, text)?;
    sign(&file, &folder.join("SHA256SUMS.asc"), &["--armor", "--detach-sign"], key)
}

/// Returns the newest part of a change log: from its first heading of a version to the next one.
fn notes(log: &str) -> Outcome<String> {
    let begin = log.find("\n## ").ok_or("CHANGELOG.md has no version")? + 1;
    let rest = &log[begin..];
    let end = rest[3..].find("\n## ").map_or(rest.len(), |at| at + 4);
    Ok(rest[..end].to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::build::emptied;
    use super::*;

    #[test]
    fn notes_are_the_part_of_the_newest_version() {
        let log = "# Changelog\n\nAbout.\n\n## 0.2.0\n\n### Added\n- a\n\n## 0.1.0\n- b\n";
        assert_eq!(notes(log).unwrap(), "## 0.2.0\n\n### Added\n- a\n\n");
        assert_eq!(notes("# C\n\n## 0.1.0\n- b\n").unwrap(), "## 0.1.0\n- b\n");
        assert!(notes("# Changelog\n").is_err());
        assert!(run(&[]).unwrap_err().contains("usage"));
    }

    #[test]
    fn directory_without_packages_is_named() {
        let folder = std::env::temp_dir().join(format!("tieline-release-{}", std::process::id()));
        emptied(&folder).unwrap();
        std::fs::write(folder.join("a.deb"), "").unwrap();
        let to = folder.join("to");
        assert_eq!(collect(&folder, &["deb"], &to), Ok(()));
        assert!(to.join("a.deb").exists());
        assert!(collect(&folder, &["rpm"], &to).unwrap_err().ends_with(" has no .rpm"));
        assert!(collect(&folder.join("nowhere"), &["deb"], &to).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
