//! Checks of the C library from C: its exports, and programs that are compiled against its header as C11 and as C++17.

use super::{Count, quiet};
use crate::c_library::{self, SONAME, check_exports};
use crate::sh::{Outcome, command, files_of, root, run, target, which};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The program with errors that a caller can make.
const MISUSE: &str = "capi/tests/misuse.c";
/// The program that covers the calls of the library.
const SURFACE: &str = "capi/tests/surface.c";
/// The program with two processes that connect by their own exchange.
const EXCHANGE: &str = "capi/tests/own_exchange.c";
const AGAIN: &str = "capi/tests/again.c";
const HELLO: &str = "capi/examples/hello.c";

pub(super) fn library() -> Outcome<PathBuf> {
    c_library::link("debug")
}

pub(super) fn exports() -> Count {
    Count::one(library().and_then(|folder| check_exports(&folder.join(SONAME))))
}

/// Compiles a program of one file, as C or as C++; the program finds the library in the build directory.
pub(super) fn compiled(source: &Path, as_cxx: bool, more: &[&str]) -> Outcome<PathBuf> {
    compiled_with(&c_library::folder("debug"), source, as_cxx, more)
}

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

pub(super) fn sources(folder: &str, ending: &str) -> Vec<PathBuf> {
    files_of(root().join(folder), ending).unwrap_or_default()
}

/// Runs the programs of misuse and of the whole interface: as C and as C++, under valgrind, and with AddressSanitizer.
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
            // A forked child does not release the memory of its parent, so only one program is checked for leaks.
            let leaks = if source.ends_with(SURFACE) { "full" } else { "no" };
            let leaks = format!("--leak-check={leaks}");
            let (show, errors) = ("--show-leak-kinds=definite", "--errors-for-leak-kinds=definite");
            let valgrind = ["valgrind", "--quiet", "--error-exitcode=9", &leaks, show, errors];
            run(false, &[], &valgrind);
        }
        run(false, &["-fsanitize=address"], &[]);
    }
    total.add(again());
    total.add(static_program());
    total
}

/// Checks that contexts leave no resource, with the counts of a program and with LeakSanitizer. Many contexts are opened with a
/// small number of providers.
fn again() -> Count {
    let mut total = Count::default();
    let address: &[&str] = &["-fsanitize=address"];
    let few = "shm,shm-cma";
    for (more, rounds, providers) in [(&[][..], "500", few), (&[], "60", ""), (address, "20", "")] {
        let program = compiled(&root().join(AGAIN), false, more);
        total.add(program.map(|program| counted(&program, rounds, providers)).into());
    }
    total
}

fn counted(program: &Path, rounds: &str, providers: &str) -> Count {
    let mut command = command(program, &[rounds]);
    // Freed memory that a thread caches counts as in use.
    let _ = command.env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
    let _ = command.env("ASAN_OPTIONS", "detect_leaks=1").env("TIELINE_PROVIDERS", providers);
    quiet(command.env("TIELINE_PROVIDER_PATH", target().join("debug")))
}

/// Checks that a program without a dynamic loader uses the built-in providers, and reports that it refuses files.
fn static_program() -> Count {
    let folder = c_library::folder("debug");
    let program = folder.join("hello.static");
    let mut compiler = command("cc", &["-std=c11", "-D_DEFAULT_SOURCE", "-static", "-pthread"]);
    let _ = compiler.arg("-I").arg(root().join("include")).arg(root().join(HELLO));
    let _ = compiler.arg("-o").arg(&program).arg(folder.join("libtieline.a"));
    let _ = compiler.args(["-lgcc_eh", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"]);
    match compiler.output() {
        Ok(output) if output.status.success() => {}
        _ => return Count::skip("a static program: this compiler links none".to_owned()),
    }
    let mut total = Count::default();
    let providers = target().join("debug");
    let runs = || {
        let mut command = command(&program, &[]);
        let _ = command.env("TIELINE_PROVIDER_PATH", &providers);
        command
    };
    total.add(quiet(&mut runs()));
    // Providers that exist only as files are refused with a reason.
    let refused = runs().env("TIELINE_PROVIDERS", "tcp,tcp-connect").output();
    let said = refused.map(|output| {
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_refused = output.status.code().is_some_and(|code| code != 0);
        if is_refused && words.contains("linked statically") { Ok(()) } else { Err(words) }
    });
    total.add(Count::one(said.unwrap_or_else(|error| Err(error.to_string()))));
    total
}

/// Runs a program with the providers of this build, with these words before it.
fn ran(program: &Path, before: &[&str]) -> Count {
    let program = program.as_os_str();
    let mut words = before.iter().map(OsStr::new).chain([program]);
    let mut command = command(words.next().unwrap_or(program), &[]);
    // valgrind and `again` search for leaks. A request for more memory than is available must return null.
    let options = "detect_leaks=0:allocator_may_return_null=1";
    let command = command.args(words).env("ASAN_OPTIONS", options);
    quiet(command.env("TIELINE_PROVIDER_PATH", target().join("debug")))
}
