//! `cargo xtask package nixl`: the backend for NIXL as a wheel, with the library and providers, and as a Debian package for the
//! library that is installed.
//!
//! The plug-in is compiled in a root of Debian bullseye. Its C++ library is linked statically, because systems with glibc 2.28
//! have an older one. Without such a root, the plug-in is compiled for this machine.

use super::wheel::{self, Binaries};
use super::{build, clean_root};
use crate::c_library::SONAME;
use crate::foreign;
use crate::nixl;
use crate::sh::{
    Outcome, capture, command, files_of, make_folder, name_of, root, run, target, write,
};
use std::path::{Path, PathBuf};

/// The release whose compiler makes plug-ins for old systems.
const OLD: &str = "bullseye";
const PLUGIN: &str = "libplugin_TIELINE.so";
/// The newest versions of symbols of the C library and of the compiler's libraries that manylinux_2_28 allows.
const NEWEST: [(&str, [u32; 2]); 2] = [("GLIBC_", [2, 28]), ("GLIBCXX_", [0, 0])];

pub(super) fn make() -> Outcome {
    let folder = target().join("packages").join(foreign::place("nixl"));
    let made = Binaries::make(&folder)?;
    let plugin = folder.join(PLUGIN);
    let is_portable = match in_old_root(&made.files[0], &plugin)? {
        None => made.is_portable,
        Some(reason) if foreign::is_foreign() => return Err(reason),
        Some(reason) => {
            println!("the plug-in is compiled for this machine: {reason}");
            let _ = std::fs::copy(nixl::build("release")?, &plugin).map_err(|e| e.to_string())?;
            false
        }
    };
    run(command(foreign::tool("strip"), &["--strip-unneeded"]).arg(&plugin))?;
    let mut wheel = wheel::python("integrations/nixl/wheel.py");
    let _ = wheel.arg(&plugin).args(&made.files).arg("--notices").arg(&made.notices);
    let _ = wheel.args(["--platform", &wheel::tag(is_portable), "--to"]).arg(&folder);
    print!("{}", capture(&mut wheel)?);
    println!("{}", deb(&folder, &plugin)?.display());
    Ok(())
}

/// Makes the Debian package alone, over the library of a staged tree. Returns the reason if there is no root of the old release.
pub(super) fn package(staged: &Path, folder: &Path) -> Outcome<Result<PathBuf, String>> {
    build::emptied(folder)?;
    let is_library = |file: &PathBuf| file.ends_with(SONAME);
    let library = build::files(&staged.join("usr/lib"))?.into_iter().find(is_library);
    let library = library.ok_or(format!("{} has no {SONAME}", staged.display()))?;
    let plugin = folder.join(PLUGIN);
    if let Some(reason) = in_old_root(&library, &plugin)? {
        return Ok(Err(reason));
    }
    run(command(foreign::tool("strip"), &["--strip-unneeded"]).arg(&plugin))?;
    deb(folder, &plugin).map(Ok)
}

/// Compiles the plug-in in a root of the old release. Returns the reason if there is no such root.
fn in_old_root(library: &Path, plugin: &Path) -> Outcome<Option<String>> {
    let compiler = format!("g++-{}", foreign::gnu());
    let place = match clean_root(OLD, if foreign::is_foreign() { &compiler } else { "" })? {
        Ok(place) => place,
        Err(reason) => return Ok(Some(reason)),
    };
    let compiled = compiled_in(&place, library, plugin);
    let _ = std::fs::remove_dir_all(&place);
    compiled?;
    let mut objdump = command(foreign::tool("objdump"), &["--dynamic-syms"]);
    let needs = capture(objdump.arg(plugin))?;
    match too_new(&needs) {
        None => Ok(None),
        Some(symbol) => Err(format!("{PLUGIN} needs {symbol}, which systems with glibc 2.28 lack")),
    }
}

fn compiled_in(place: &Path, library: &Path, plugin: &Path) -> Outcome {
    let (home, work) = (root().join("integrations/nixl"), place.join("work"));
    make_folder(&work)?;
    let mut sources = Vec::new();
    for folder in ["cpp", "h"] {
        for file in files_of(home.join("src"), folder)? {
            build::copy(&file, &work.join(name_of(&file)))?;
            if folder == "cpp" {
                sources.push(name_of(&file));
            }
        }
    }
    build::copy(&root().join("include/tieline.h"), &work.join("tieline.h"))?;
    build::copy(&home.join("exports.map"), &work.join("exports.map"))?;
    build::copy(library, &work.join(SONAME))?;
    let words = format!(
        "cd /work && {} {} -static-libstdc++ -static-libgcc '-DTIELINE_NIXL_VERSION=\"{}\"' -I . {} -Wl,--version-script=exports.map \
         -Wl,--allow-shlib-undefined {SONAME} -ldl -Wl,-rpath,'$ORIGIN:$ORIGIN/../../tieline_nixl' -o {PLUGIN}",
        foreign::tool("g++"),
        nixl::FLAGS,
        env!("CARGO_PKG_VERSION"),
        sources.join(" "),
    );
    run(command("chroot", &[]).arg(place).args(["sh", "-c", &words]))?;
    build::copy(&work.join(PLUGIN), plugin)
}

/// Returns the first symbol of a list of `objdump` that is newer than the old systems.
fn too_new(symbols: &str) -> Option<String> {
    let versions = symbols.split([' ', '\t', '\n', '(', ')']).filter_map(|word| {
        let (family, most) = NEWEST.iter().find(|(family, _)| word.starts_with(family))?;
        let mut numbers = word[family.len()..].split('.').map(|n| n.parse().unwrap_or(u32::MAX));
        let number = [numbers.next().unwrap_or(u32::MAX), numbers.next().unwrap_or(0)];
        (number > *most).then(|| word.to_owned())
    });
    versions.min()
}

/// Makes the Debian package, which needs the library's own package.
fn deb(folder: &Path, plugin: &Path) -> Outcome<PathBuf> {
    let host = ["--force", "--host-type", &foreign::gnu(), "--query"];
    let asked = |what: &str| capture(command("dpkg-architecture", &host).arg(what));
    let (triplet, architecture) = (asked("DEB_HOST_MULTIARCH")?, asked("DEB_HOST_ARCH")?);
    let (version, tree) = (super::deb::VERSION, folder.join("deb"));
    let own = tree.join(format!("usr/lib/{}/tieline-nixl", triplet.trim()));
    let doc = tree.join("usr/share/doc/tieline-nixl");
    build::copy(plugin, &own.join(PLUGIN))?;
    build::copy(&root().join("integrations/nixl/NOTICE"), &doc.join("NOTICE"))?;
    build::copy(&root().join("packaging/debian/copyright"), &doc.join("copyright"))?;
    build::copy(&root().join("docs/inference.md"), &doc.join("inference.md"))?;
    let control = format!(
        "Package: tieline-nixl\nVersion: {version}\nArchitecture: {}\nMaintainer: The Tieline authors <tieline@example.org>\n\
         Section: libs\nPriority: optional\nDepends: libtieline0 (>= {}), libc6 (>= 2.28)\n\
         Description: backend for NIXL over Tieline, for host memory\n \
         Inference engines move KV caches by NIXL. This package has the backend TIELINE\n \
         as a plug-in. inference.md describes how an installed NIXL finds it.\n",
        architecture.trim(),
        env!("CARGO_PKG_VERSION"),
    );
    make_folder(tree.join("DEBIAN"))?;
    write(tree.join("DEBIAN/control"), control)?;
    let mut modes = command("chmod", &["--recursive", "u=rwX,go=rX"]);
    run(modes.arg(&tree))?;
    // The linker makes its output executable. A plug-in is only loaded.
    run(command("chmod", &["644"]).arg(own.join(PLUGIN)))?;
    let file = folder.join(format!("tieline-nixl_{version}_{}.deb", architecture.trim()));
    let mut pack = command("dpkg-deb", &["--root-owner-group", "--build"]);
    let _ = capture(pack.arg(&tree).arg(&file).env("SOURCE_DATE_EPOCH", "0"))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_newer_than_glibc_2_28_or_of_the_shared_cxx_library_are_found() {
        let old = "0 DF *UND* 0 (GLIBC_2.2.5) memcpy\n0 DF *UND* 0 (GLIBC_2.28) fcntl64\n";
        assert_eq!(too_new(old), None);
        let new = format!("{old}0 DF *UND* 0 (GLIBC_2.34) pthread_create\n");
        assert_eq!(too_new(&new).as_deref(), Some("GLIBC_2.34"));
        let shared = format!("{old}0 DF *UND* 0 (GLIBCXX_3.4.21) _ZNSt\n");
        assert_eq!(too_new(&shared).as_deref(), Some("GLIBCXX_3.4.21"));
    }
}
