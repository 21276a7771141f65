//! `cargo xtask integrations`: what puts unmodified programs on Tieline. It is no part of the library.

use crate::nixl;
use crate::sh::{Outcome, cargo, run, target};
use std::path::PathBuf;

/// The file that cargo builds.
pub(crate) const BUILT: &str = "libfi_tieline.so";
/// The directory of the provider. libfabric loads every file of its directory whose name ends in `fi.so`, so this directory has no
/// other file.
pub(crate) const FOLDER: &str = "libfabric-tieline";
/// The name of the provider's file in that directory.
pub(crate) const FILE: &str = "libtieline-fi.so";

/// Builds the libfabric provider in a profile, under the name that libfabric looks for.
pub(crate) fn build(profile: &str) -> Outcome<PathBuf> {
    let mut command = cargo(&["build", "--quiet", "--locked", "--package", "tieline-libfabric"]);
    if profile == "release" {
        let _ = command.arg("--release");
    }
    run(&mut command)?;
    let folder = target().join(profile);
    let (built, own) = (folder.join(BUILT), folder.join(FOLDER));
    let provider = own.join(FILE);
    let copied = std::fs::create_dir_all(&own).and_then(|()| std::fs::copy(&built, &provider));
    let _ = copied.map_err(|error| format!("{}: {error}", provider.display()))?;
    Ok(provider)
}

/// Builds the integrations as they are installed, and says how to use them.
pub(crate) fn build_all() -> Outcome {
    let provider = build("release")?;
    let folder = provider.parent().unwrap_or(&provider).display();
    println!(
        "{}\n\nexport FI_PROVIDER_PATH={folder} FI_PROVIDER=tieline   # docs/mpi.md",
        provider.display()
    );
    if !std::path::Path::new("/usr/include/rdma/fabric.h").exists() {
        println!(
            "its programs cannot be compiled: there is no /usr/include/rdma/fabric.h (libfabric-dev)"
        );
    }
    nixl::integrations()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sh::{read, root};

    #[test]
    fn the_place_of_the_libfabric_provider_is_one_wherever_it_is_written() {
        for (file, words) in [
            ("packaging/libfabric-environment.sh.in", format!("@libdir@/{FOLDER}$")),
            ("packaging/debian/tieline-libfabric.install", format!("usr/lib/*/{FOLDER}\n")),
            ("packaging/rpm/tieline.spec", format!("%{{_libdir}}/{FOLDER}\n")),
            ("packaging/test/25-libfabric.sh", format!("/usr/lib/*/{FOLDER}/{FILE}")),
            ("tools/src/mpi/provider.rs", format!("FOLDER: &str = \"{FOLDER}\";")),
            ("tools/src/mpi/provider.rs", format!("FILE: &str = \"{FILE}\";")),
            ("docs/mpi.md", format!("target/release/{FOLDER} ")),
        ] {
            let text = read(root().join(file)).unwrap();
            assert!(text.contains(&words), "{file} has no {words}");
        }
        assert!(FILE.ends_with("fi.so"), "libfabric does not load {FILE}");
    }
}
