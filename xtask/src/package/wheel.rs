//! `cargo xtask package wheel`: the Python module in a wheel, with the C library and providers.
//!
//! With `cargo-zigbuild` and `ziglang` (both on PyPI) the wheel runs with every C library from glibc 2.28 on; without them, with that
//! of this machine and later ones. A wheel for another processor needs them, and Rust's standard library for that processor.

use crate::c_library::{self, SONAME};
use crate::check::python::{PROVIDERS, providers};
use crate::foreign;
use crate::sh::{Outcome, capture, cargo, command, root, run, target, which, write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a wheel contains: the library, then the providers.
pub(super) struct Binaries {
    pub(super) files: Vec<PathBuf>,
    /// The licences of what is linked into them.
    pub(super) notices: PathBuf,
    /// Whether they run with glibc 2.28.
    pub(super) is_portable: bool,
    compiler: String,
}

impl Binaries {
    /// Builds the library and the providers, and strips them in a directory, which is emptied before.
    pub(super) fn make(folder: &Path) -> Outcome<Binaries> {
        let is_portable = which("cargo-zigbuild").is_some()
            && capture(&mut command("python3", &["-m", "ziglang", "version"])).is_ok();
        let triple = foreign::triple();
        match (is_portable, foreign::is_foreign()) {
            (false, false) => println!("for manylinux_2_28: pip install ziglang cargo-zigbuild"),
            (false, true) => {
                return Err(format!("{triple} needs zig: pip install ziglang cargo-zigbuild"));
            }
            (true, false) => {}
            (true, true) => has_standard_library(&triple)?,
        }
        // cargo places the files of a named target in a folder of its own.
        let (verb, profile) = match (is_portable, foreign::is_foreign()) {
            (true, false) => ("zigbuild", format!("{triple}/release")),
            (true, true) => ("zigbuild", "release".to_owned()),
            (false, _) => ("build", "release".to_owned()),
        };
        let mut build = cargo(&[verb, "--locked", "--release", "-p", "tieline-capi"]);
        let _ = build.args(PROVIDERS.map(|name| format!("-ptieline-provider-{name}-plugin")));
        if is_portable {
            let _ = build.arg("--target").arg(format!("{triple}.2.28"));
        }
        run(&mut build)?;
        let compiler = match is_portable {
            true => format!("python3 -m ziglang cc -target {}.2.28", foreign::gnu()),
            false => "cc".to_owned(),
        };
        let words: Vec<&str> = compiler.split(' ').collect();
        let library = c_library::link_by(&words, &profile)?.join(SONAME);
        super::emptied(folder)?;
        let mut files = vec![library];
        files.extend(providers(&profile));
        for file in &mut files {
            let stripped = folder.join(file.file_name().unwrap_or_default());
            let mut strip = command(foreign::tool("strip"), &["--strip-unneeded", "-o"]);
            run(strip.arg(&stripped).arg(&*file))?;
            *file = stripped;
        }
        let mut linked = vec!["tieline-capi".to_owned()];
        linked.extend(PROVIDERS.map(|name| format!("tieline-provider-{name}-plugin")));
        let notices = folder.join("NOTICES");
        write(&notices, super::notices::text(&linked)?)?;
        Ok(Binaries { files, notices, is_portable, compiler })
    }
}

/// Checks whether the Rust compiler of this machine has the standard library of a target.
fn has_standard_library(triple: &str) -> Outcome {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let words = ["--print", "target-libdir", "--target", triple];
    match Path::new(capture(&mut command(rustc, &words))?.trim()).exists() {
        true => Ok(()),
        false => Err(format!("Rust has no standard library for it: rustup target add {triple}")),
    }
}

/// Returns the platform's tag of a wheel.
pub(super) fn tag(is_portable: bool) -> String {
    let from = if is_portable { "manylinux_2_28" } else { "linux" };
    format!("{from}_{}", foreign::processor())
}

pub(super) fn python(program: &str) -> Command {
    command("python3", &[&root().join(program).to_string_lossy()])
}

pub(super) fn make() -> Outcome {
    let folder = target().join("packages").join(foreign::place("wheel"));
    let made = Binaries::make(&folder)?;
    let native = folder.join("_native.abi3.so");
    let mut compile = python("python/tools/native.py");
    let _ = capture(compile.arg(&native).env("CC", &made.compiler))?;
    let mut wheel = python("python/tools/wheel.py");
    let _ = wheel.args(&made.files).arg("--native").arg(native).arg("--notices").arg(made.notices);
    let _ = wheel.args(["--platform", &tag(made.is_portable), "--to"]);
    print!("{}", capture(wheel.arg(&folder))?);
    Ok(())
}
