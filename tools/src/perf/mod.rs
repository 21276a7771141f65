//! `tieline perf`: measures latency and bandwidth between this process and a peer process that it starts, or a process on another
//! host that listens.

mod args;
mod control;
mod disturbed;
mod footprint;
mod output;
mod pairs;
mod plot;
mod reach;
mod remote;
mod side;
mod stats;
mod tests;

use crate::{say, size, sys, system_error};
pub(crate) use args::Args;
use args::{Limit, Memory, Test};
use control::{Peer, Reply, Request, Spec};
use disturbed::Quiet;
pub(crate) use footprint::{FootprintArgs, main as footprint};
pub(crate) use output::scaled;
use output::{Output, Record};
pub(crate) use reach::check_paths;
use side::Side;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::Duration;
use tests::Asked;
use tieline::{Error, Status};

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(crate) fn main(args: &Args) -> Result<ExitCode, Error> {
    if let Some(&cpu) = args.cpus.first() {
        let fix = "give --cpus the numbers of processors that are online";
        sys::pin(cpu)
            .map_err(|e| system_error(format!("cannot run on processor {cpu}"), &e, fix))?;
    }
    if let Some(address) = &args.listen {
        return listen(address, args);
    }
    args.runs().iter().try_for_each(|(_, size)| args::check_size(*size))?;
    if args.all_pairs {
        return pairs::measure(args);
    }
    let mut results = Results::new(args);
    let (alone, between): (Vec<_>, Vec<_>) =
        args.runs().into_iter().partition(|(t, _)| t.is_alone());
    for (test, size) in alone {
        let (limit, path) = (args.limit(), args.path.as_deref());
        let (samples, legs, path) = match test {
            Test::Memcpy => (tests::limits::memcpy(size, limit)?, 1, "memcpy".into()),
            Test::Crossing => (tests::limits::crossing(&args.cpus, limit)?, 2, "cache line".into()),
            _ => {
                let (samples, path) = tests::to_itself(size, limit, path)?;
                (samples, 1, path)
            }
        };
        results.add(Record::new(test, size, path, samples.summary(size, legs)))?;
        if results.output_is_closed(args) {
            return Ok(ExitCode::SUCCESS);
        }
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
    let (peer, secret) = match &args.connect {
        None => (Peer::start(args.cpus.get(1).copied())?, String::new()),
        Some(host) => {
            let secret = tieline::job::secret()?;
            (remote::connect(host, &secret)?, secret)
        }
    };
    let alive = || peer.check();
    let mut side = Side::open(path, &secret, &alive)?;
    peer.ask(&Request::hello(side.worker.address()?, path))?;
    let Reply::Hello { address } = peer.reply(&side.worker)? else {
        return Err(Error::from_status(Status::BadData));
    };
    side.connect(&address)?;
    for &(test, size) in runs {
        let longest = match test.is_message() {
            true => longest_message(&side, &peer, size, path)?,
            false => 0,
        };
        if test.is_message() && size > longest {
            say::error(format_args!(
                "{} of {} skipped: {}; use put or get for more",
                test.name(),
                crate::size::show(size),
                whole_messages(longest)
            ));
            continue;
        }
        let spec = Spec { test, size, memory: args.memory, verify: args.verify, key: Vec::new() };
        let asked = Asked { spec, limit: args.limit(), window: args.window, peer: &peer, path };
        let quiet = Quiet::begins();
        let measured = tests::run(&side, asked)?;
        let disturbed = quiet.ends(measured.preempted);
        let legs = if matches!(test, Test::AmLat | Test::PutLat) { 2 } else { 1 };
        let record = Record::new(test, size, measured.path, measured.samples.summary(size, legs));
        results.add(record.with(disturbed, side.endpoint()?.hindrances()))?;
        if results.output_is_closed(args) {
            break;
        }
    }
    Ok(())
}

/// Returns a description of the measured messages. The library sends messages of any length: a longer message becomes a rendezvous
/// message, which its receiver fetches.
fn whole_messages(longest: usize) -> String {
    let longest = size::show(longest);
    format!(
        "it measures messages that go as one, here of at most {longest}; the library sends longer ones in another way"
    )
}

/// Returns the length of the longest message that is measured as one message. Before its connection is established, an endpoint may
/// accept only shorter messages.
fn longest_message(
    side: &Side<'_>,
    peer: &Peer,
    size: usize,
    path: Option<&str>,
) -> Result<usize, Error> {
    let longest = side.endpoint()?.max_message()?;
    if size <= longest {
        return Ok(longest);
    }
    let (test, memory) = (Test::AmLat, Memory::Ordinary);
    let spec = Spec { test, size: 1, memory, verify: false, key: Vec::new() };
    let _ = tests::run(side, Asked { spec, limit: Limit::Iterations(1), window: 1, peer, path })?;
    Ok(side.endpoint()?.max_message()?)
}

/// The results; each result is printed when it is available.
struct Results {
    output: Output,
    records: Vec<Record>,
    /// Whether the reader of the output has closed it.
    closed: bool,
}

impl Results {
    fn new(args: &Args) -> Results {
        let output = if args.json {
            Output::Json
        } else {
            Output::Table { headed: false, told: Vec::new() }
        };
        Results { output, records: Vec::new(), closed: false }
    }

    fn add(&mut self, record: Record) -> Result<(), Error> {
        if !self.closed {
            match self.output.write(&mut std::io::stdout().lock(), &record) {
                Err(e) if e.kind() == ErrorKind::BrokenPipe => self.closed = true,
                Err(e) => {
                    let fix = "see where the output goes";
                    return Err(system_error("cannot print the result", &e, fix));
                }
                Ok(()) => {}
            }
        }
        self.records.push(record);
        Ok(())
    }

    /// Checks whether the output is closed, so that no further result would be read.
    fn output_is_closed(&self, args: &Args) -> bool {
        self.closed && args.plot.is_none()
    }

    fn plot(&self, args: &Args) -> Result<(), Error> {
        let Some(file) = &args.plot else { return Ok(()) };
        std::fs::write(file, plot::svg(&self.records)).map_err(|e| {
            let what = format!("cannot write {}", file.display());
            system_error(what, &e, "name a file in a directory that you may write to")
        })
    }
}

/// Runs `--listen`: serves one client after another until a signal ends this process, or serves only one client.
fn listen(address: &str, args: &Args) -> Result<ExitCode, Error> {
    let mut secret = tieline::job::secret()?;
    let is_new = secret.is_empty();
    if is_new {
        secret = remote::new_secret()?;
    }
    let clients = remote::Clients::listen(address, &secret)?;
    let at = clients.at;
    let mut said = format!("listening on {at}\n");
    if is_new {
        let host = match at.ip() {
            ip if ip.is_unspecified() => "HOST".to_owned(),
            std::net::IpAddr::V6(ip) => format!("[{ip}]"),
            ip => ip.to_string(),
        };
        said += &format!(
            "on the other host: TIELINE_SECRET={secret} tieline perf --connect {host}:{}\n",
            at.port()
        );
    }
    let _ = crate::info::print(&said)?;
    loop {
        let (stream, from) = clients.next()?;
        match serve_remote(&stream, &secret, args.patience()) {
            Ok(()) if args.once => return Ok(ExitCode::SUCCESS),
            Err(error) if args.once => return Err(error),
            Ok(()) => say::line(format_args!("served {from}")),
            Err(error) => say::error(format_args!("{from}: {error}")),
        }
    }
}

/// Serves a client on another host while the client shows signs of life.
fn serve_remote(stream: &TcpStream, secret: &str, patience: Duration) -> Result<(), Error> {
    let failed = |e| system_error("cannot use the connection", &e, "connect again");
    let timeouts = stream.set_read_timeout(Some(patience));
    timeouts.and_then(|()| stream.set_write_timeout(Some(patience))).map_err(failed)?;
    let life = control::Life::new(patience);
    let alive = || life.check(stream);
    let requests = BufReader::new(stream.try_clone().map_err(failed)?);
    let answer = |reply: &Reply| answer(&mut &*stream, reply);
    let heard = || life.heard();
    serve(requests, secret, &alive, &heard, &answer)
        .inspect_err(|e| drop(answer(&Reply::Failed { text: e.to_string() })))
}

/// The arguments of the peer process, which `tieline perf` starts. Users do not start it.
#[derive(clap::Args)]
pub(crate) struct PeerArgs {}

pub(crate) fn peer(_args: &PeerArgs) -> Result<ExitCode, Error> {
    // The kernel ends this process with the one that started it, so no check is needed.
    let alive = || Ok(());
    let answer = |reply: &Reply| answer(&mut std::io::stdout().lock(), reply);
    if let Err(error) = serve(std::io::stdin().lock(), "", &alive, &|| {}, &answer) {
        // The measuring process reports the error. If the measuring process is gone, the error is dropped.
        let _ = answer(&Reply::Failed { text: error.to_string() });
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Serves one measuring process until that process sends no more requests.
fn serve(
    requests: impl BufRead,
    secret: &str,
    alive: &dyn Fn() -> Result<(), Error>,
    heard: &dyn Fn(),
    answer: &dyn Fn(&Reply) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut side: Option<Side<'_>> = None;
    // An address or a key has some hundred bytes, so a longer line is refused.
    let mut requests = requests.take(0);
    loop {
        let mut line = String::new();
        requests.set_limit(1 << 20);
        match requests.read_line(&mut line) {
            Ok(0) => return Ok(()),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(control::silent());
            }
            Err(_) => return Ok(()),
            Ok(_) => heard(),
        }
        if line.trim().is_empty() {
            continue; // a sign of life
        }
        let reply = match (serde_json::from_str(&line).ok(), &mut side) {
            (Some(Request::Hello { version, .. }), _) if version != VERSION => {
                return Err(crate::misuse(
                    "the two sides are of different versions",
                    format!("{version} connects to {VERSION}"),
                    "install the same on both",
                ));
            }
            (Some(Request::Hello { address, path, .. }), _) => {
                let mut opened = Side::open(path.as_deref(), secret, alive)?;
                opened.connect(&address)?;
                let address = opened.worker.address()?;
                side = Some(opened);
                Reply::Hello { address }
            }
            (Some(Request::Serve(spec)), Some(side)) => {
                let quiet = Quiet::begins();
                let wrong = tests::serve(side, &spec, |key| answer(&Reply::Ready { key }))?;
                Reply::Served { wrong, preempted: quiet.preempted() }
            }
            _ => return Err(Error::from_status(Status::BadData)),
        };
        answer(&reply)?;
    }
}

fn answer(to: &mut dyn Write, reply: &Reply) -> Result<(), Error> {
    let mut line = serde_json::to_vec(reply).unwrap_or_default();
    line.push(b'\n');
    to.write_all(&line)
        .and_then(|()| to.flush())
        .map_err(|e| system_error("cannot answer", &e, "run it again"))
}
