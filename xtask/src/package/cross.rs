//! Debian packages for another architecture, cross-built from the source package in a root of the oldest release that has a
//! sufficient compiler.

use super::roots::{self, Processor, Root};
use super::{build, deb, source};
use crate::sh::{Outcome, capture, command, files_of, make_folder, target};
use std::path::{Path, PathBuf};

/// The architectures for which `debian/control` has packages.
const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];

const RELEASE: &str = "trixie";

/// Builds the packages from the source package, and the next version's packages from the same staged tree. The tree of the other
/// version is unpacked anew, so that only its changelog differs.
const BUILD: &str = r#"
mount -t tmpfs shm /dev/shm
cd /scratch
dpkg-source --extract /packages/*.dsc tieline
cd tieline
dpkg-buildpackage --host-arch=$ARCHITECTURE --build=binary --no-sign
mkdir /made
mv ../*.deb /made/
mv debian/stage /stage
cd ..
rm -rf tieline
dpkg-source --extract /packages/*.dsc tieline
cd tieline
sed -i "1s/($VERSION)/($NEXT)/" debian/changelog
TIELINE_STAGE=/stage dpkg-buildpackage --host-arch=$ARCHITECTURE --build=binary --no-sign
mkdir /next
mv ../*.deb /next/
"#;

/// Makes the packages for an architecture; returns the package files.
pub(super) fn make(architecture: &str) -> Outcome<Vec<PathBuf>> {
    if !ARCHITECTURES.contains(&architecture) {
        let all = ARCHITECTURES.join(", ");
        return Err(format!("there are no packages for `{architecture}`: {all}"));
    }
    if capture(&mut command("dpkg", &["--print-architecture"]))?.trim() == architecture {
        return deb::make(deb::VERSION);
    }
    let folder = compilers(architecture)??;
    let made = make_in(&folder, architecture);
    let _ = std::fs::remove_dir_all(&folder);
    made?;
    files_of(packages(architecture), "deb")
}

/// Returns a root with compilers for an architecture, and the emulator of its programs.
pub(super) fn compilers(architecture: &str) -> Outcome<Root> {
    let more = format!(
        "cargo,rustc,libstd-rust-dev:{architecture},crossbuild-essential-{architecture},qemu-user-static"
    );
    roots::root(RELEASE, &more, Processor::With(architecture))
}

/// Returns the folder of the packages for an architecture.
pub(super) fn packages(architecture: &str) -> PathBuf {
    target().join(format!("packages/deb-{architecture}"))
}

/// Returns the folder of the packages of the next version.
pub(super) fn next(architecture: &str) -> PathBuf {
    target().join(format!("packages/deb-{architecture}-next"))
}

/// Makes the packages in a root with compilers.
pub(super) fn make_in(folder: &Path, architecture: &str) -> Outcome {
    println!("building for {architecture} from the source package: some minutes");
    for file in source::make(&source::folder())? {
        build::copy(&file, &folder.join("packages").join(crate::sh::name_of(&file)))?;
    }
    make_folder(folder.join("scratch"))?;
    let mut script = roots::script(folder, None, BUILD);
    let _ = script.env("ARCHITECTURE", architecture).env("VERSION", deb::VERSION);
    let _ = script.env("NEXT", deb::NEXT);
    let log = target().join(format!("packages/deb-{architecture}.log"));
    deb::told_in(&mut script, &log)?;
    for (from, to) in [("made", packages(architecture)), ("next", next(architecture))] {
        build::emptied(&to)?;
        for file in files_of(folder.join(from), "deb")? {
            build::copy(&file, &to.join(crate::sh::name_of(&file)))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sh::root;

    #[test]
    fn packages_exist_for_the_architectures_of_debians_control_file() {
        let control = std::fs::read_to_string(root().join("packaging/debian/control")).unwrap();
        let named = control.lines().filter_map(|line| line.strip_prefix("Architecture: "));
        for named in named.filter(|named| *named != "all") {
            assert_eq!(named, ARCHITECTURES.join(" "));
        }
        let refused = make("m68k").unwrap_err();
        assert_eq!(refused, "there are no packages for `m68k`: amd64, arm64");
    }
}
