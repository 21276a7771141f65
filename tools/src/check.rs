//! `tieline check`: checks whether a provider file conforms to the provider ABI. Without a file, checks whether messages and puts
//! work on this machine.

use crate::info::print;
use crate::{misuse, say, system_error};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tieline::Error;
use tieline_conformance::{Contents, LIMIT, Outcome, Plan, Tally, Verdict, contents, run};

/// Check that messages and puts arrive with the present settings, or that a provider file conforms to the provider ABI.
///
/// Without a file, the command opens a worker as a program would. It then sends messages and puts to itself and to another process:
/// over the providers that the settings choose ("as set"), and over each provider alone with the providers that it needs,
/// regardless of TIELINE_PROVIDERS. It prints a line for each: ok, or FAILED with the reason.
///
/// With a file, the command runs every check against every module of the file, each in a separate process, and prints a line for
/// each: ok, FAILED: what, expected, found, or skipped: why. Checks for capabilities that a module does not claim are skipped.
///
/// Exit status: 0 if all checks passed or were skipped, 1 if a check or a route failed. 2 means that the settings, the file or the
/// command line cannot be used; 3 means that nothing was checked, because the provider finds no device on this machine.
#[derive(clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:\n  tieline check\n  tieline check ./libtieline_mine.so --module first --filter message"
)]
pub(crate) struct Args {
    /// The provider file to check
    #[arg(value_name = "PROVIDER.so")]
    file: Option<PathBuf>,
    /// Check only this module: MODULE or DOMAIN/MODULE
    #[arg(long, value_name = "MODULE", requires = "file")]
    module: Option<String>,
    /// Run only checks whose name contains this text
    #[arg(long, value_name = "TEXT", requires = "file")]
    filter: Option<String>,
    /// Print the modules of the file and the checks that they are for, and run nothing
    #[arg(long, requires = "file")]
    list: bool,
    /// Print one JSON object with every check, its verdict, text and duration
    #[arg(long, conflicts_with = "list")]
    json: bool,
    /// Time limit of a check in seconds [default: 10], or, without a file, of a route [default: 60]
    #[arg(long, value_name = "SECONDS")]
    limit: Option<u64>,
    /// End after the first check that fails
    #[arg(long, requires = "file")]
    until_failure: bool,
}

/// The time limit of one route. The limit exceeds the default timeout of a connection, so that the connection's own error is
/// reported.
const WAY_LIMIT: Duration = Duration::from_secs(60);
/// The exit status if no provider can be checked because of the settings, the file or the command line.
const UNUSABLE: u8 = 2;
/// The exit status if nothing was checked because the provider finds no device on this machine.
const NO_DEVICE: u8 = 3;

pub(crate) fn main(args: &Args) -> Result<ExitCode, Error> {
    checked(args).or_else(|error| {
        say::error(error);
        Ok(ExitCode::from(UNUSABLE))
    })
}

fn checked(args: &Args) -> Result<ExitCode, Error> {
    let Some(file) = &args.file else {
        let limit = args.limit.map_or(WAY_LIMIT, Duration::from_secs);
        return Ok(ExitCode::from(u8::from(crate::perf::check_paths(args.json, limit)? > 0)));
    };
    let unusable = |why: String| {
        misuse(
            format!("cannot check {}", file.display()),
            why,
            "name a provider file, and its contents",
        )
    };
    let own = |e| system_error("cannot find this program", &e, "call it by its path");
    let plan = Plan {
        // A name without a slash would be looked up by the dynamic linker.
        path: file.canonicalize().map_err(|e| unusable(e.to_string()))?,
        module: args.module.clone(),
        filter: args.filter.clone(),
        program: std::env::current_exe().map_err(own)?,
        limit: args.limit.map_or(LIMIT, Duration::from_secs),
        until_failure: args.until_failure,
    };
    let contents = contents(&plan).map_err(unusable)?;
    if let (Some(why), false) = (&contents.no_device, args.json) {
        say::line(format!("{}: skipped: no device here: {why}", contents.name));
        return Ok(ExitCode::from(NO_DEVICE));
    }
    if args.list {
        return print(&contents.list());
    }
    let mut checks = Vec::new();
    let tally = run(&plan, &contents, &mut |outcome| match args.json {
        true => checks.push(Check::of(outcome)),
        false => say::line(outcome),
    });
    let tally = tally.map_err(unusable)?;
    match args.json {
        true => drop(print(&json(&contents, checks, tally))?),
        false => say::line(tally),
    }
    Ok(ExitCode::from(match contents.no_device {
        Some(_) => NO_DEVICE,
        None => u8::from(tally.failed > 0),
    }))
}

#[derive(Serialize)]
struct Report<'a> {
    provider: &'a str,
    version: &'a str,
    /// The reason why there was nothing to check on this machine.
    no_device: Option<&'a str>,
    passed: usize,
    failed: usize,
    skipped: usize,
    checks: Vec<Check>,
}

#[derive(Serialize)]
struct Check {
    module: String,
    name: &'static str,
    verdict: &'static str,
    words: String,
    seconds: f64,
}

impl Check {
    fn of(outcome: Outcome) -> Check {
        let (verdict, words) = match outcome.verdict {
            Verdict::Passed => ("ok", String::new()),
            Verdict::Failed(words) => ("failed", words),
            Verdict::Skipped(words) => ("skipped", words),
        };
        let (name, seconds) = (outcome.check.name, outcome.took.as_secs_f64());
        Check { module: outcome.module, name, verdict, words, seconds }
    }
}

fn json(contents: &Contents, checks: Vec<Check>, tally: Tally) -> String {
    let Tally { passed, failed, skipped } = tally;
    let Contents { name, version, no_device, .. } = contents;
    let no_device = no_device.as_deref();
    let report = Report { provider: name, version, no_device, passed, failed, skipped, checks };
    serde_json::to_string_pretty(&report).unwrap_or_default() + "\n"
}
