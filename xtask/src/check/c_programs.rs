//! The C library, from C: what it exports, and programs that are compiled against its header as C11 and as C++17.

use super::{Count, quiet};
use crate::c_library::{self, SONAME, check_exports};
use crate::sh::{Outcome, command, files_of, root, run, target, which};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A caller's mistakes, all of them.
const MISUSE: &str = "capi/tests/misuse.c";
/// Each call once at least.
const SURFACE: &str = "capi/tests/surface.c";
/// Two processes that find each other by an exchange of their own.
const EXCHANGE: &str = "capi/tests/own_exchange.c";
/// What is kept to the end of the process, and why.
const SUPPRESSIONS: &str = "capi/tests/valgrind.supp";

/// The library as the build has made it.
pub(super) fn library() -> Outcome<PathBuf> {
    c_library::link("debug")
}

pub(super) fn exports() -> Count {
    Count::one(library().and_then(|folder| check_exports(&folder.join(SONAME))))
}

/// A program of one file, as C or as C++, that finds the library where it was built.
pub(super) fn compiled(source: &Path, as_cxx: bool, more: &[&str]) -> Outcome<PathBuf> {
    compiled_with(&c_library::folder("debug"), source, as_cxx, more)
}

/// The same with the library in another folder.
pub(super) fn compiled_with(
    folder: &Path,
    source: &Path,
    as_cxx: bool,
    more: &[&str],
) -> Outcome<PathBuf> {
    let stem = source.file_stem().unwrap_or_default().to_string_lossy();
    let kind = if as_cxx { "cxx" } else { "c" };
    let program = folder.join(format!("{stem}.{kind}{}", more.join("").replace(['=', '-'], "")));
    let mut compiler = match as_cxx {
        true => command("c++", &["-std=c++17", "-x", "c++"]),
        false => command("cc", &["-std=c11", "-D_DEFAULT_SOURCE"]),
    };
    let _ =
        compiler.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-pthread"]).args(more);
    let _ = compiler.arg("-I").arg(root().join("include")).arg(source).args(["-x", "none", "-o"]);
    let _ = compiler.arg(&program).arg("-L").arg(folder);
    run(compiler.arg(format!("-Wl,-rpath,{}", folder.display())).arg("-ltieline"))?;
    Ok(program)
}

/// The files of a folder with this ending.
pub(super) fn sources(folder: &str, ending: &str) -> Vec<PathBuf> {
    files_of(root().join(folder), ending).unwrap_or_default()
}

/// A caller's mistakes and the whole surface: plainly as C and as C++, under valgrind, and with AddressSanitizer.
pub(super) fn surface() -> Count {
    let mut total = Count::default();
    for (program, what) in [("c++", "as C++"), ("valgrind", "under valgrind")] {
        if which(program).is_none() {
            total.add(Count::skip(format!("{what}: {program} is not installed")));
        }
    }
    if let Err(text) = library() {
        return Count::one(Err(text));
    }
    for source in [MISUSE, SURFACE, EXCHANGE].map(|file| root().join(file)) {
        let mut run = |as_cxx, more: &[&str], before: &[&str]| {
            let program = compiled(&source, as_cxx, more);
            total.add(program.map(|program| ran(&program, before)).into());
        };
        run(false, &[], &[]);
        if which("c++").is_some() {
            run(true, &[], &[]);
        }
        if which("valgrind").is_some() {
            let suppressions = format!("--suppressions={SUPPRESSIONS}");
            // A forked child leaves what it had.
            let leaks = if source.ends_with(SURFACE) { "full" } else { "no" };
            let leaks = format!("--leak-check={leaks}");
            let (show, errors) = ("--show-leak-kinds=definite", "--errors-for-leak-kinds=definite");
            let valgrind = ["valgrind", "--quiet", "--error-exitcode=9", &leaks, show, errors];
            run(false, &[], &[&valgrind[..], &[&suppressions]].concat());
        }
        run(false, &["-fsanitize=address"], &[]);
    }
    total
}

/// Runs a program with the providers of this build, after these words.
fn ran(program: &Path, before: &[&str]) -> Count {
    let program = program.as_os_str();
    let mut words = before.iter().map(OsStr::new).chain([program]);
    let mut command = command(words.next().unwrap_or(program), &[]);
    // What the core keeps of each provider is found by valgrind, which is told of it; who asks for more memory than there is gets none.
    let options = "detect_leaks=0:allocator_may_return_null=1";
    let command = command.args(words).env("ASAN_OPTIONS", options);
    quiet(command.env("TIELINE_PROVIDER_PATH", target().join("debug")))
}
