//! `tieline run`: starts N processes of a program on this machine and gives them a way to find each other.

mod launch;
mod output;

use std::ffi::OsString;
use std::process::ExitCode;
use tieline::Error;

/// Start N processes of a program on this machine
///
/// Each gets TIELINE_RANK, TIELINE_SIZE, TIELINE_LOCAL_RANK, TIELINE_JOB and TIELINE_EXCHANGE, through which
/// `Job::from_env` of the library hands addresses from each to all. When one fails, the others are ended, one
/// line says which it was, and its exit code becomes this command's.
#[derive(clap::Args)]
#[command(after_help = "Example: tieline run -n 4 --cpus 0,1 -- ./halo --steps 100")]
pub(crate) struct Args {
    /// How many processes
    #[arg(short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    processes: u32,
    /// Processors to pin them to, in turn
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Put `[rank]` before every line that they print
    #[arg(long)]
    tag: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode, Error> {
    launch::Launch::start(args)?.supervise()
}
