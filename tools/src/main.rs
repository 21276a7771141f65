//! The command `tieline`: providers and their state (`info`, `config`), conformance (`check`), performance (`perf`), a launcher
//! (`run`), the start of MPI programs (`mpi`), a generator of providers (`new-provider`), and commands for the project and its packages.
//!
//! A subcommand is a module with its arguments and a function that returns `Result<ExitCode, Error>`. An error is one line:
//! `tieline: what: why; what to do`.

mod check;
mod completions;
mod config;
mod demo;
mod info;
mod man;
mod mpi;
mod new_provider;
mod perf;
mod run;
mod say;
mod size;
mod sys;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use tieline::Error;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Transports that are found at run time: look at them, measure them, run on them.
#[derive(Parser)]
#[command(name = "tieline", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Info(info::Args),
    Config(config::Args),
    Check(check::Args),
    NewProvider(new_provider::Args),
    Perf(perf::Args),
    /// The other side of `perf`
    #[command(hide = true)]
    PerfPeer(perf::PeerArgs),
    #[command(hide = true)]
    Demo(demo::Args),
    #[command(hide = true)]
    Footprint(perf::FootprintArgs),
    Run(run::Args),
    Mpi(mpi::Args),
    #[command(hide = true)]
    Man(man::Args),
    #[command(hide = true)]
    Completions(completions::Args),
}

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(code) = tieline_conformance::child(&words) {
        return code;
    }
    let outcome = match Cli::parse().command {
        Command::Info(args) => info::main(&args),
        Command::Config(args) => config::main(&args),
        Command::Check(args) => check::main(&args),
        Command::NewProvider(args) => new_provider::main(&args),
        Command::Perf(args) => perf::main(&args),
        Command::PerfPeer(args) => perf::peer(&args),
        Command::Demo(args) => demo::main(&args),
        Command::Footprint(args) => perf::footprint(&args),
        Command::Run(args) => run::main(&args),
        Command::Mpi(args) => mpi::main(&args),
        Command::Man(args) => man::main(&args),
        Command::Completions(args) => completions::main(&args),
    };
    outcome.unwrap_or_else(|error| {
        say::error(error);
        ExitCode::FAILURE
    })
}

/// Makes an error of the system, with a description of the failed action and a remedy.
fn system_error(what: impl Into<String>, why: &std::io::Error, fix: &str) -> Error {
    Error::new(tieline::Status::Io, what, why.to_string(), fix)
}

/// Makes an error of the user who called the program.
fn misuse(what: impl Into<String>, why: impl Into<String>, fix: impl Into<String>) -> Error {
    Error::new(tieline::Status::Invalid, what, why, fix)
}
