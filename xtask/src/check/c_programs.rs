//! The C library, from C: what it exports, and programs that are compiled against its header as C11 and as C++17.

use super::{Count, quiet};
use crate::c_library::{self, SONAME, check_exports};
use crate::sh::{Outcome, command, root, run, target, which};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A caller's mistakes, all of them.
const MISUSE: &str = "capi/tests/misuse.c";

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
        false => command("cc", &["-std=c11", "-D_POSIX_C_SOURCE=200809L"]),
    };
    let _ =
        compiler.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-pthread"]).args(more);
    let _ = compiler.arg("-I").arg(root().join("include")).arg(source).args(["-x", "none", "-o"]);
    let _ = compiler.arg(&program).arg("-L").arg(folder);
    run(compiler.arg(format!("-Wl,-rpath,{}", folder.display())).arg("-ltieline"))?;
    Ok(program)
}

/// The C files of a folder.
pub(super) fn sources(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join(folder)).into_iter().flatten().flatten();
    let is_c = |file: &PathBuf| file.extension().is_some_and(|end| end == "c");
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_c).collect();
    found.sort();
    found
}

/// A caller's mistakes: plainly as C and as C++, under valgrind, and with AddressSanitizer.
pub(super) fn misuse() -> Count {
    let mut total = Count::default();
    if let Err(text) = library() {
        return Count::one(Err(text));
    }
    let source = root().join(MISUSE);
    let ran = |program: Outcome<PathBuf>, before: &[&str]| match program {
        Ok(program) => {
            let mut words: Vec<&std::ffi::OsStr> = before.iter().map(AsRef::as_ref).collect();
            words.push(program.as_os_str());
            let mut command = Command::new(words[0]);
            quiet(command.args(&words[1..]).env("TIELINE_PROVIDER_PATH", target().join("debug")))
        }
        Err(text) => Count::one(Err(text)),
    };
    total.add(ran(compiled(&source, false, &[]), &[]));
    if which("c++").is_some() {
        total.add(ran(compiled(&source, true, &[]), &[]));
    } else {
        total.add(Count::skip("as C++: c++ is not installed"));
    }
    if which("valgrind").is_some() {
        // What a thread or a table keeps to the end of the process is no leak; what nobody can reach is.
        let words = [
            "valgrind",
            "--quiet",
            "--error-exitcode=9",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite",
        ];
        total.add(ran(compiled(&source, false, &[]), &words));
    } else {
        total.add(Count::skip("under valgrind: it is not installed"));
    }
    let sanitized = compiled(&source, false, &["-fsanitize=address"]);
    total.add(ran(sanitized, &[]));
    total
}
