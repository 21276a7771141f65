//! `tieline info`: prints the providers, modules and paths that were found, with `--why` the reasons, or with `--pid` the state of
//! a running process.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use tieline::{Context, Error};

/// Show providers, domains, modules and paths, or the state of a running process.
#[derive(clap::Args)]
#[command(after_help = "Example: TIELINE_PROVIDERS=^shm-cma tieline info --why")]
pub(crate) struct Args {
    /// Print the reason why each provider and module is used or not.
    #[arg(long)]
    why: bool,
    /// With --why: print all details, such as how waits spend their time, and what providers log
    #[arg(long, requires = "why")]
    all: bool,
    /// Print the whole report as JSON.
    #[arg(long, conflicts_with = "why")]
    json: bool,
    /// Show the state and the waits of this running process; root may show processes of other users.
    #[arg(long, value_name = "PROCESS", conflicts_with = "why")]
    pid: Option<u32>,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode, Error> {
    if let Some(pid) = args.pid {
        return print(&running(pid, args.json)?);
    }
    let mut builder = Context::builder();
    if args.all && std::env::var_os("TIELINE_LOG").is_none() {
        // The report then includes reasons that providers log for devices they do not use.
        builder = builder.set("TIELINE_LOG", "info");
    }
    let (report, unusable) = builder.report()?;
    let text = if args.json {
        report.to_json() + "\n"
    } else if args.why {
        let width = crate::sys::width();
        if args.all { report.why_within(width) } else { report.why_briefly_within(width) }
    } else {
        report.table_within(crate::sys::width())
    };
    let code = print(&text)?;
    match unusable {
        Some(error) if args.why || args.json => Err(brief(&error)),
        Some(error) => Err(error.into()),
        None => Ok(code),
    }
}

/// Describes the contexts of a running process.
fn running(pid: u32, json: bool) -> Result<String, Error> {
    let contexts = tieline::live::status_of(pid)?;
    if json {
        let all: Vec<String> = contexts.iter().map(tieline::live::Status::to_json).collect();
        return Ok(format!("[{}]\n", all.join(",\n")));
    }
    let all: Vec<String> = contexts.iter().map(ToString::to_string).collect();
    Ok(all.join("\n"))
}

/// Returns the error without the reasons, which the output above already contains.
fn brief(error: &Error) -> Error {
    Error::new(error.status(), error.what(), "see above", error.fix())
}

/// Writes to standard output. If the reader closes the pipe (`| head`), the call succeeds.
pub(crate) fn print(text: &str) -> Result<ExitCode, Error> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(crate::system_error("the report cannot be written", &error, "see where it goes"))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
