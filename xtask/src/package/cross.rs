//! Debian packages for another architecture, cross-built from the source package in a root of the oldest release that has a
//! sufficient compiler.

use super::roots::{self, Processor, Root};
use super::{build, deb, rpm, source};
use crate::foreign;
use crate::sh::{Outcome, capture, command, files_of, make_folder, run, target};
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

/// Builds the rpms from the source rpm.
const BUILD_RPMS: &str = r#"
mount -t tmpfs shm /dev/shm
cd /scratch
export TIELINE_TARGET=$PROCESSOR-unknown-linux-gnu
rpmbuild --rebuild --nodeps --target $PROCESSOR-linux --define "_topdir $PWD/top" --define "_libdir $LIBDIR" \
    --define "__strip $PROCESSOR-linux-gnu-strip" "$@" /packages/*.src.rpm
mkdir /rpms
mv top/RPMS/*/*.rpm /rpms/
"#;

/// Checks whether an architecture is that of this machine. The error names the architectures for which there are packages.
fn is_own(architecture: &str) -> Outcome<bool> {
    if !ARCHITECTURES.contains(&architecture) {
        let all = ARCHITECTURES.join(", ");
        return Err(format!("there are no packages for `{architecture}`: {all}"));
    }
    Ok(capture(&mut command("dpkg", &["--print-architecture"]))?.trim() == architecture)
}

/// Returns the name of an architecture's processor outside Debian.
fn processor(architecture: &str) -> &'static str {
    if architecture == "arm64" { "aarch64" } else { "x86_64" }
}

/// Runs `cargo xtask package` with these words, with an architecture as the target.
pub(super) fn aimed(architecture: &str, words: &[&str]) -> Outcome {
    let own = std::env::current_exe().map_err(|e| format!("this program's path: {e}"))?;
    let mut package = command(own, &["package"]);
    if !is_own(architecture)? {
        let target = format!("{}-unknown-linux-gnu", processor(architecture));
        let _ = package.env(foreign::TARGET, target);
    }
    run(package.args(words))
}

/// Makes the rpms for an architecture; returns their files.
pub(super) fn rpms(architecture: &str) -> Outcome<Vec<PathBuf>> {
    if is_own(architecture)? {
        return rpm::make();
    }
    let folder = compilers(architecture)??;
    let made = rpms_in(&folder, architecture);
    let _ = std::fs::remove_dir_all(&folder);
    made
}

/// Makes the rpms in a root with compilers, in which Debian packages may have been made before; returns their files.
pub(super) fn rpms_in(folder: &Path, architecture: &str) -> Outcome<Vec<PathBuf>> {
    println!("building rpms for {architecture} from the source rpm: some minutes");
    let source = rpm::source(&rpm::sources())?;
    build::emptied(&folder.join("packages"))?;
    build::copy(&source, &folder.join("packages").join(crate::sh::name_of(&source)))?;
    build::emptied(&folder.join("scratch"))?;
    let mut script = roots::script(folder, None, BUILD_RPMS);
    let _ = script.env("PROCESSOR", processor(architecture)).env("LIBDIR", rpm::LIBDIR);
    let _ = script.arg("rpmbuild").args(rpm::STEADY.iter().flat_map(|it| ["--define", it]));
    let log = target().join(format!("packages/rpm-{architecture}.log"));
    deb::told_in(&mut script, &log)?;
    let to = target().join(format!("packages/rpm-{architecture}"));
    build::emptied(&to)?;
    for file in files_of(folder.join("rpms"), "rpm")? {
        build::copy(&file, &to.join(crate::sh::name_of(&file)))?;
    }
    files_of(&to, "rpm")
}

/// Makes the packages for an architecture; returns the package files.
pub(super) fn make(architecture: &str) -> Outcome<Vec<PathBuf>> {
    if is_own(architecture)? {
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
        "cargo,rustc,libstd-rust-dev:{architecture},crossbuild-essential-{architecture},qemu-user-static,{}",
        rpm::TOOLS
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
