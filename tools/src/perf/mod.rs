//! `tieline perf`: how fast it is here, between this process and a peer process of its own.

mod args;
mod output;
mod plot;
mod stats;
mod tests;

use crate::{sys, system_error};
pub(crate) use args::Args;
use args::Test;
use output::{Output, Record};
use std::process::ExitCode;
use tieline::Error;

pub(crate) fn main(args: &Args) -> Result<ExitCode, Error> {
    if let Some(&cpu) = args.cpus.first() {
        let fix = "give --cpus the numbers of processors that are online";
        sys::pin(cpu)
            .map_err(|e| system_error(format!("cannot run on processor {cpu}"), &e, fix))?;
    }
    let mut output = if args.json { Output::Json } else { Output::Table { headed: false } };
    let mut records = Vec::new();
    for (test, size) in args.runs() {
        let limit = args.limit();
        let (summary, path) = match test {
            Test::Memcpy => (tests::limits::memcpy(size, limit)?.summary(size, 1), "memcpy".into()),
            Test::Crossing => {
                (tests::limits::crossing(&args.cpus, limit)?.summary(size, 2), "cache line".into())
            }
            _ => continue,
        };
        let record = Record::new(test, size, path, summary);
        output.write(&mut std::io::stdout().lock(), &record).map_err(|e| {
            system_error("cannot print the result", &e, "see where the output goes")
        })?;
        records.push(record);
    }
    if let Some(file) = &args.plot {
        std::fs::write(file, plot::svg(&records)).map_err(|e| {
            let what = format!("cannot write {}", file.display());
            system_error(what, &e, "name a file in a directory that you may write to")
        })?;
    }
    Ok(ExitCode::SUCCESS)
}
