//! `tieline perf`: how fast it is here, between this process and a peer process of its own.

mod args;
mod control;
mod footprint;
mod output;
mod plot;
mod side;
mod stats;
mod tests;

use crate::{sys, system_error};
pub(crate) use args::Args;
use args::Test;
use control::{Peer, Reply, Request, Spec};
pub(crate) use footprint::{FootprintArgs, main as footprint};
pub(crate) use output::scaled;
use output::{Output, Record};
use side::Side;
use std::io::{BufRead, Write};
use std::process::ExitCode;
use tests::Asked;
use tieline::{Error, Status};

pub(crate) fn main(args: &Args) -> Result<ExitCode, Error> {
    if let Some(&cpu) = args.cpus.first() {
        let fix = "give --cpus the numbers of processors that are online";
        sys::pin(cpu)
            .map_err(|e| system_error(format!("cannot run on processor {cpu}"), &e, fix))?;
    }
    let mut results = Results::new(args);
    let (alone, between): (Vec<_>, Vec<_>) =
        args.runs().into_iter().partition(|(t, _)| t.is_limit());
    for (test, size) in alone {
        let (samples, path) = match test {
            Test::Memcpy => (tests::limits::memcpy(size, args.limit())?.summary(size, 1), "memcpy"),
            _ => {
                (tests::limits::crossing(&args.cpus, args.limit())?.summary(size, 2), "cache line")
            }
        };
        results.add(Record::new(test, size, path.into(), samples))?;
    }
    if !between.is_empty() {
        measure_between(args, &between, &mut results)?;
    }
    results.plot(args)?;
    Ok(ExitCode::SUCCESS)
}

fn measure_between(
    args: &Args,
    runs: &[(Test, usize)],
    results: &mut Results,
) -> Result<(), Error> {
    let path = args.path.as_deref();
    let peer = Peer::start(path, args.cpus.get(1).copied())?;
    let alive = || peer.check();
    let mut side = Side::open(path, &alive)?;
    peer.ask(&Request::Hello { address: side.worker.address()? })?;
    let Reply::Hello { address } = peer.reply(&side.worker)? else {
        return Err(Error::from_status(Status::BadData));
    };
    side.connect(&address)?;
    for &(test, size) in runs {
        let longest = side.endpoint()?.max_message()?;
        if test.is_message() && size > longest {
            eprintln!(
                "tieline: {} of {} skipped: a message here has at most {} bytes; use put or get",
                test.name(),
                crate::size::show(size),
                crate::size::show(longest)
            );
            continue;
        }
        let spec = Spec { test, size, memory: args.memory, verify: args.verify, key: Vec::new() };
        let asked = Asked { spec, limit: args.limit(), peer: &peer, path };
        let (samples, path) = tests::run(&side, asked)?;
        let legs = if matches!(test, Test::AmLat | Test::PutLat) { 2 } else { 1 };
        results.add(Record::new(test, size, path, samples.summary(size, legs)))?;
    }
    Ok(())
}

/// What was measured so far, printed as it comes.
struct Results {
    output: Output,
    records: Vec<Record>,
}

impl Results {
    fn new(args: &Args) -> Results {
        let output = if args.json { Output::Json } else { Output::Table { headed: false } };
        Results { output, records: Vec::new() }
    }

    fn add(&mut self, record: Record) -> Result<(), Error> {
        let failed = |e| system_error("cannot print the result", &e, "see where the output goes");
        self.output.write(&mut std::io::stdout().lock(), &record).map_err(failed)?;
        self.records.push(record);
        Ok(())
    }

    fn plot(&self, args: &Args) -> Result<(), Error> {
        let Some(file) = &args.plot else { return Ok(()) };
        std::fs::write(file, plot::svg(&self.records)).map_err(|e| {
            let what = format!("cannot write {}", file.display());
            system_error(what, &e, "name a file in a directory that you may write to")
        })
    }
}

/// The peer process of `tieline perf`; started by it, never by hand.
#[derive(clap::Args)]
pub(crate) struct PeerArgs {
    #[arg(long)]
    path: Option<String>,
}

pub(crate) fn peer(args: &PeerArgs) -> Result<ExitCode, Error> {
    if let Err(error) = serve(args) {
        // The measuring process says it; when it is gone there is nobody left to tell.
        let _ = answer(&Reply::Failed { text: error.to_string() });
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn serve(args: &PeerArgs) -> Result<(), Error> {
    // The kernel ends this process with the one that started it, so there is nothing to look at.
    let alive = || Ok(());
    let mut side = Side::open(args.path.as_deref(), &alive)?;
    for line in std::io::stdin().lock().lines() {
        let request = line.ok().and_then(|line| serde_json::from_str(&line).ok());
        let reply = match request {
            Some(Request::Hello { address }) => {
                side.connect(&address)?;
                Reply::Hello { address: side.worker.address()? }
            }
            Some(Request::Serve(spec)) => {
                let wrong = tests::serve(&side, &spec, |key| answer(&Reply::Ready { key }))?;
                Reply::Served { wrong }
            }
            None => return Err(Error::from_status(Status::BadData)),
        };
        answer(&reply)?;
    }
    Ok(())
}

fn answer(reply: &Reply) -> Result<(), Error> {
    let mut line = serde_json::to_vec(reply).unwrap_or_default();
    line.push(b'\n');
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(&line)
        .and_then(|()| stdout.flush())
        .map_err(|e| system_error("cannot answer", &e, "run it again"))
}
