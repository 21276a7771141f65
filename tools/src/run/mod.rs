//! `tieline run`: starts N processes of a program, on this host or on other hosts, and serves the exchange by which they connect.

mod hosts;
mod launch;
mod output;
mod remote;
mod status;
mod supervise;
mod variables;

use hosts::Host;
use std::ffi::OsString;
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;
use tieline::Error;

/// Start N processes of a program, on this machine or over ssh
///
/// Each process gets TIELINE_RANK, TIELINE_SIZE, TIELINE_LOCAL_RANK, TIELINE_LOCAL_SIZE, TIELINE_JOB and TIELINE_EXCHANGE, through
/// which `Job::from_env` of the library exchanges addresses between all processes. If a process fails, the others are ended, one
/// line names the failed process, and its exit code becomes the exit code of this command. SIGTERM is forwarded to all processes.
/// Processes that ranks leave behind are ended after the last rank. With --keep-going the other processes continue, for programs
/// that handle the loss of a process.
///
/// With --hosts each rank is started by `ssh HOST sh` in the directory with the same path on that host, with this shell's TIELINE_
/// variables. The job's secret (TIELINE_SECRET, or a new one) is sent through ssh, and is never part of a command line.
#[derive(clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:\n  tieline run -n 4 --cpus 0,1 -- ./halo --steps 100\n  tieline run -n 8 --hosts \
                  nodea,nodeb -- ./halo"
)]
pub(crate) struct Args {
    /// Number of processes
    #[arg(short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    processes: u32,
    /// Processors to which the processes are pinned, in turn
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "hosts")]
    cpus: Vec<usize>,
    /// Let the other ranks continue when a rank fails; the exit code is then that of the last rank to end
    #[arg(long)]
    keep_going: bool,
    /// Print `[rank]` before every line of the processes' output
    #[arg(long)]
    tag: bool,
    /// Hosts that run the processes, each with its number of ranks: `nodea,nodeb` or `nodea:2,nodeb:4`
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    hosts: Vec<String>,
    /// The command that reaches a host; the host and `sh` are added to it
    #[arg(long, value_name = "COMMAND", default_value = "ssh", requires = "hosts")]
    ssh: String,
    /// The address at which the hosts reach this host [default: all addresses of this host, in turn]
    #[arg(long, value_name = "ADDRESS", requires = "hosts")]
    address: Option<IpAddr>,
    /// Time between SIGTERM to this command and the kill of ranks that have not ended
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    kill_after: Duration,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| format!("`{text}` is no number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|e| format!("`{text}`: {e}"))
}

pub(crate) fn main(args: &Args) -> Result<ExitCode, Error> {
    let hosts: Result<Vec<Host>, String> =
        args.hosts.iter().map(|text| Host::parse(text)).collect();
    let hosts = hosts.map_err(|why| {
        crate::misuse("cannot read --hosts", why, "write nodea,nodeb or nodea:2,nodeb:4")
    })?;
    launch::Launch::start(args, &hosts)?.supervise()
}
