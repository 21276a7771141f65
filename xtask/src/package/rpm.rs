//! Makes the packages for distributions that use rpm.

use super::{build, deb, source, stage};
use crate::sh::{Outcome, command, files_of, name_of, root, target};
use std::path::{Path, PathBuf};

pub(super) const LIBDIR: &str = "/usr/lib64";

/// The settings that make the bytes of a package the same for the same commit on every machine.
pub(super) const STEADY: [&str; 4] = [
    "_buildhost tieline",
    "use_source_date_epoch_as_buildtime 1",
    "clamp_mtime_to_source_date_epoch 1",
    "source_date_epoch_from_changelog 1",
];

const GENERATORS: &str = "/usr/lib/rpm/fileattrs";

pub(super) const NEEDS: &str = "rpmbuild perl";

/// The package of Debian with the tools by which rpm separates debug information, besides those of [`NEEDS`].
pub(super) const TOOLS: &str = "elfutils";

/// Builds all files and makes the packages; returns the package files.
pub(super) fn make() -> Outcome<Vec<PathBuf>> {
    super::there(NEEDS)?;
    let tree = stage::make(LIBDIR, &target().join("packages/stage-rpm"))?;
    cut(&tree, &target().join("packages/rpm"))
}

/// Returns the folder of the source rpm.
pub(super) fn sources() -> PathBuf {
    target().join("packages/srpm")
}

/// Makes the source rpm, of the archives of Debian's source package; returns its file.
pub(super) fn source(folder: &Path) -> Outcome<PathBuf> {
    super::there(NEEDS)?;
    let _ = source::make(&source::folder())?;
    build::emptied(folder)?;
    for (archive, name) in source::ARCHIVES {
        build::copy(&source::folder().join(archive), &folder.join("SOURCES").join(name))?;
    }
    // A source rpm contains the spec with all macros replaced, and so the path of this folder.
    let mut rpmbuild = command("rpmbuild", &["-bs", "--nodeps", "--define", "_topdir ."]);
    let _ = rpmbuild.current_dir(folder);
    steady(&mut rpmbuild);
    let _ = rpmbuild.arg(root().join("packaging/rpm/tieline.spec"));
    deb::told_in(&mut rpmbuild, &folder.join("build.log"))?;
    let made = files_of(folder.join("SRPMS"), "rpm")?;
    made.into_iter().next().ok_or(format!("{} has no rpm", folder.display()))
}

fn steady(rpmbuild: &mut std::process::Command) {
    let _ = rpmbuild.args(STEADY.iter().flat_map(|value| ["--define", value]));
}

pub(super) fn again(folder: &Path) -> Outcome {
    cut(&target().join("packages/stage-rpm"), folder).map(|_| ())
}

fn cut(tree: &Path, folder: &Path) -> Outcome<Vec<PathBuf>> {
    build::emptied(folder)?;
    let attributes = folder.join("attributes");
    let packaging = root().join("packaging");
    // rpm runs the generators that this directory lists: its own, and the generator of this source, which other packages get from
    // libtieline-devel.
    let own = ["tieline.attr", "tieline.req", "tieline.prov"];
    let own = own.map(|file| packaging.join("rpm").join(file));
    for file in build::files(Path::new(GENERATORS))?.into_iter().chain(own) {
        build::copy(&file, &attributes.join(name_of(&file)))?;
    }
    let here = attributes.display();
    let mut rpmbuild = command("rpmbuild", &["-bb", "--nodeps"]);
    let _ = rpmbuild.arg(format!("--load={}", attributes.join("tieline.attr").display()));
    for value in [
        format!("__tieline_requires {here}/tieline.req"),
        format!("__tieline_provides {here}/tieline.prov"),
        format!("_fileattrsdir {here}"),
        format!("_topdir {}", folder.display()),
        format!("_libdir {LIBDIR}"),
        format!("tieline_stage {}", tree.display()),
    ] {
        let _ = rpmbuild.arg("--define").arg(value);
    }
    steady(&mut rpmbuild);
    let path = std::env::var("PATH").unwrap_or_default();
    let _ = rpmbuild.env("PATH", format!("{}:{path}", packaging.display()));
    let _ = rpmbuild.arg(packaging.join("rpm/tieline.spec"));
    deb::told_in(&mut rpmbuild, &folder.join("build.log"))?;
    let mut packages = build::files(&folder.join("RPMS"))?;
    packages.retain(|file| file.extension().is_some_and(|e| e == "rpm"));
    Ok(packages)
}
