//! Makes the Debian packages.

use super::{build, stage};
use crate::sh::{Outcome, capture, command, files_of, listened, read, root, target, write};
use std::path::{Path, PathBuf};

pub(super) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-1");

/// The version of packages that upgrade the packages above.
pub(super) const NEXT: &str = concat!(env!("CARGO_PKG_VERSION"), "-2");

pub(super) const NEEDS: &str = "dpkg-buildpackage dh perl";

/// Builds all files and makes the packages; returns the package files.
pub(super) fn make(version: &str) -> Outcome<Vec<PathBuf>> {
    super::there(NEEDS)?;
    let tree = stage::make(&libdir()?, &target().join("packages/stage-deb"))?;
    cut(&tree, version, &target().join("packages/deb"))
}

pub(super) fn again(version: &str, folder: &Path) -> Outcome {
    cut(&target().join("packages/stage-deb"), version, folder).map(|_| ())
}

fn libdir() -> Outcome<String> {
    let architecture = ["-qDEB_HOST_MULTIARCH"];
    let triplet = capture(&mut command("dpkg-architecture", &architecture))?;
    Ok(format!("/usr/lib/{}", triplet.trim()))
}

fn cut(tree: &Path, version: &str, folder: &Path) -> Outcome<Vec<PathBuf>> {
    build::emptied(folder)?;
    let source = folder.join("tieline");
    describe(&source, version)?;
    for file in ["CHANGELOG.md", "capi/libtieline.symbols"] {
        build::copy(&root().join(file), &source.join(file))?;
    }
    let mut dpkg =
        command("dpkg-buildpackage", &["--build=binary", "--no-sign", "--no-check-builddeps"]);
    let _ = dpkg.current_dir(&source).env("TIELINE_STAGE", tree);
    let _ = dpkg.env("DEB_BUILD_OPTIONS", "nocheck");
    let log = folder.join("build.log");
    told_in(&mut dpkg, &log)?;
    files_of(folder, "deb")
}

/// Adds the directory `debian` for packages of this version to a tree, with the helpers of this source, which other packages get
/// from libtieline-dev.
pub(super) fn describe(tree: &Path, version: &str) -> Outcome {
    let (packaging, debian) = (root().join("packaging"), tree.join("debian"));
    let from = packaging.join("debian");
    for file in build::files(&from)? {
        build::copy(&file, &debian.join(file.strip_prefix(&from).unwrap_or(&file)))?;
    }
    for (file, place) in [
        ("debhelper/tieline.pm", "perl/Debian/Debhelper/Sequence/tieline.pm"),
        ("debhelper/dh_tieline", "perl/bin/dh_tieline"),
        ("tieline-note", "perl/bin/tieline-note"),
    ] {
        build::copy(&packaging.join(file), &debian.join(place))?;
    }
    let changelog = debian.join("changelog");
    let text = read(&changelog)?;
    write(&changelog, text.replacen(VERSION, version, 1))
}

/// Runs a command with long output, which is written to a log. Prints the end of the output if the command fails.
pub(super) fn told_in(command: &mut std::process::Command, log: &Path) -> Outcome {
    let (ok, said) = listened(command);
    write(log, said.join("\n") + "\n")?;
    if ok? {
        return Ok(());
    }
    println!("{}", said[said.len().saturating_sub(30)..].join("\n"));
    Err(format!("it failed: see above, and {}", log.display()))
}

pub(super) fn show(packages: &[PathBuf]) {
    for file in packages {
        let bytes = std::fs::metadata(file).map_or(0, |meta| meta.len());
        println!("{:>8} KiB  {}", bytes.div_ceil(1024), file.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_one_wherever_it_is_written() {
        let read =
            |file: &str| std::fs::read_to_string(root().join("packaging").join(file)).unwrap();
        let changelog = read("debian/changelog");
        let first = changelog.lines().next().unwrap();
        assert!(first.starts_with(&format!("tieline ({VERSION}) ")), "{first}");
        let spec = read("rpm/tieline.spec");
        let of = |tag: &str| spec.lines().find_map(|line| line.strip_prefix(tag)).unwrap().trim();
        assert_eq!(of("Version:"), env!("CARGO_PKG_VERSION"));
        let entry = spec.lines().find(|line| line.starts_with("* ")).unwrap();
        assert!(entry.ends_with(&format!(" - {VERSION}")), "{entry}");
        assert!(read("test/60-upgrade.sh").contains(&format!("grep -qx '{NEXT}'")));
    }

    #[test]
    fn each_symbol_needs_the_version_that_brought_it() {
        let rules = std::fs::read_to_string(root().join("packaging/debian/rules")).unwrap();
        let scripts = rules.lines().filter_map(|line| {
            let script = line.split("sed -n '").nth(1)?.split('\'').next()?;
            Some(script.replace("$$", "$"))
        });
        let said: Vec<String> = scripts
            .map(|script| {
                let list = "printf 'tieline_open@TIELINE_0.1\\ntieline_more@TIELINE_0.12\\n'";
                let words = format!("{list} | sed -n '{script}'");
                capture(&mut command("sh", &["-c", &words])).unwrap()
            })
            .collect();
        assert_eq!(
            said,
            [
                " TIELINE_0.1@TIELINE_0.1 0.1\n TIELINE_0.12@TIELINE_0.12 0.12\n",
                " tieline_open@TIELINE_0.1 0.1\n tieline_more@TIELINE_0.12 0.12\n",
            ]
        );
    }
}
