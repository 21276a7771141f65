//! The project's own commands: `cargo xtask COMMAND`.

mod bench;
mod c_library;
mod check;
mod demo;
mod foreign;
mod install;
mod integrations;
mod lab;
mod mutants;
mod nixl;
mod package;
mod setup;
mod sh;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask COMMAND

  demo [FILE]       build, show what was found and why, and move FILE between two processes
  check             formatting, rules, clippy, and the unit tests of what differs from main and of what depends on it
  test [FILTER...]  the checks that a change has to pass, or those whose names contain a filter; ends with
                    `N passed, N failed, N skipped`, and with what it left out
  test --all        every check: an hour, with virtual machines
  test --selection  of the checks that `test` leaves out those that CI runs for this commit
  bench [--lab]     measure beside the rivals that are installed; writes target/bench/report.{json,svg,md}. With --lab: in
                    the lab, beside perftest; writes target/bench/lab.{json,svg,md}. See bench --help
  lab [FILTER]      the tests that need RDMA drivers and several hosts, in virtual machines (docs/lab.md)
  package ...       packages for distributions: deb, rpm, source, wheel, crates; test tries them in clean roots
                    (docs/packaging.md)
  release DIR       a directory with repositories for apt and dnf, wheels, crates and checksums, signed (docs/packaging.md)
  setup [bench|package]
                    install the system packages that test (and bench, or package) need, or name them
  header [--check]  write include/tieline.h and include/tieline_provider.h, or see that they are fresh
  install --prefix DIR [--libdir DIR] [--debug] [--unstripped]
                    build and install the C library, headers, pkg-config files, providers, the command, its manual pages and
                    completions; below $DESTDIR where that is set; ends with the variables to set
  integrations      build the libfabric provider as target/release/libfabric-tieline/libtieline-fi.so (docs/mpi.md), and the plug-in
                    for NIXL, which needs a C++20 compiler, into target/release (docs/inference.md)
  mutants [--list] [FILTER...]
                    break the promises of xtask/promises.txt in a copy, and see that a test fails for each: hours, on a
                    quiet machine. Random changes: cargo mutants (.cargo/mutants.toml)
  instructions [--accept]
                    count the instructions of posting and polling, and compare or accept them
  prose [PATH...]   list sentences that make a reader stop, and names that are none (CONTRIBUTING.md)

Any of them with --no-install leaves this machine's packages as they are, and names what is missing.
";

/// Builds and runs the program that makes the headers, which is compiled only if it is used.
fn header(words: &[&str]) -> sh::Outcome {
    eprintln!("building xtask-header");
    let args = ["run", "--quiet", "--locked", "--package", "xtask-header", "--"];
    sh::run(sh::cargo(&args).args(words))
}

fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|word| word == "--no-install") {
        args.retain(|word| word != "--no-install");
        setup::keep();
    }
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["demo"] => demo::run(None),
        ["demo", file] if !file.starts_with('-') => demo::run(Some(file)),
        ["check"] => check::run_changed(),
        ["test", words @ ("--all" | "--selection")] => check::run(&[*words]),
        ["test", filters @ ..] if !filters.iter().any(|word| word.starts_with('-')) => {
            check::run(filters)
        }
        ["bench", words @ ..] => bench::run(words),
        ["package", words @ ..] => package::run(words),
        ["release", words @ ..] => package::release(words),
        ["setup"] => setup::install(setup::TEST),
        ["setup", "package"] => setup::install(setup::PACKAGE),
        ["setup", "bench"] => {
            setup::install(setup::TEST).and_then(|()| setup::install(setup::BENCH))
        }
        ["lab", words @ ..] => lab::run(words),
        ["mutants", words @ ..] => mutants::run(words),
        ["install", words @ ..] => install::install(words),
        ["integrations"] => integrations::build_all(),
        ["header", words @ ..] => header(words),
        ["prose", places @ ..] => check::prose::show(places),
        ["instructions"] => check::instructions::run(false),
        ["instructions", "--accept"] => check::instructions::run(true),
        ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("xtask: {text}");
            ExitCode::FAILURE
        }
    }
}
