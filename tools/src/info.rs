//! `tieline info`: what is here, what is used, and why the rest is not.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use tieline::{Context, Error};

/// Show providers, domains, modules and paths.
#[derive(clap::Args)]
#[command(after_help = "Example: TIELINE_PROVIDERS=^shm-cma tieline info --why")]
pub(crate) struct Args {
    /// Say for everything that is used, and everything that is not, why.
    #[arg(long)]
    why: bool,
    /// Print the whole report as JSON.
    #[arg(long, conflicts_with = "why")]
    json: bool,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode, Error> {
    let (report, unusable) = Context::builder().report()?;
    let text = if args.json {
        report.to_json() + "\n"
    } else if args.why {
        report.why()
    } else {
        report.table()
    };
    let code = print(&text)?;
    match unusable {
        Some(error) if args.why || args.json => Err(brief(&error)),
        Some(error) => Err(error.into()),
        None => Ok(code),
    }
}

/// The error without the reasons, which stand above it already.
fn brief(error: &Error) -> Error {
    Error::new(error.status(), error.what(), "see above", error.fix())
}

/// Writes to standard output. A reader that has seen enough (`| head`) is no error.
pub(crate) fn print(text: &str) -> Result<ExitCode, Error> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(crate::system_error("the report cannot be written", &error, "see where it goes"))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
