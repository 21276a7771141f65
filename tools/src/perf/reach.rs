//! `tieline check` without a file: checks whether this process can communicate with itself and with another process, with the
//! present settings and over single providers.

use super::args::{Limit, Memory, Test};
use super::control::{Peer, Reply, Request, Spec};
use super::side::{Side, id};
use super::tests::{self, Asked};
use crate::say;
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tieline::{Context, Error, Status};

const ROUNDS: u64 = 50;
const SIZE: usize = 100_000;

#[derive(Serialize)]
pub(crate) struct Tried {
    /// The provider that was forced; `None` if the settings choose the provider.
    path: Option<String>,
    /// The peer: `itself` or `another process`.
    with: &'static str,
    /// The providers that carried the messages and the puts.
    over: String,
    failed: Option<String>,
}

/// A function that tries one route, and returns the providers that carried the data.
type Way = fn(Option<&str>, Duration) -> Result<String, Error>;

fn try_all(limit: Duration, mut told: impl FnMut(&Tried)) -> Result<Vec<Tried>, Error> {
    let (report, unusable) = Context::builder().report()?;
    if let Some(error) = unusable {
        return Err(error.into());
    }
    let carries = |module: &&tieline::report::ModuleView| module.role == "data path";
    let providers: BTreeSet<String> =
        report.modules.iter().filter(carries).map(|module| module.provider.clone()).collect();
    let mut all = Vec::new();
    let paths = std::iter::once(None).chain(providers.into_iter().map(Some));
    for path in paths {
        let name = path.as_deref();
        let ways: [(_, Way); 2] = [("itself", itself), ("another process", another)];
        for (with, way) in ways {
            let outcome = way(name, limit);
            let (over, failed) = match outcome {
                Ok(over) => (over, None),
                Err(error) => (String::new(), Some(error.to_string())),
            };
            let tried = Tried { path: path.clone(), with, over, failed };
            told(&tried);
            all.push(tried);
        }
    }
    Ok(all)
}

impl Tried {
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }
}

impl std::fmt::Display for Tried {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = self.path.as_deref().unwrap_or("as set");
        match &self.failed {
            None => write!(f, "ok      {path:<10} with {:<15}  {}", self.with, self.over),
            Some(why) => write!(f, "FAILED  {path:<10} with {:<15}  {why}", self.with),
        }
    }
}

/// Returns a function that a wait calls at intervals; the function returns an error when the time limit has passed.
fn within(limit: Duration) -> impl Fn() -> Result<(), Error> {
    let begun = Instant::now();
    move || {
        if begun.elapsed() < limit {
            return Ok(());
        }
        Err(Error::new(
            Status::TimedOut,
            "not everything arrived",
            format!("something that was sent is missing after {} s", limit.as_secs()),
            "see `tieline info --why`; --limit says how long it may take",
        ))
    }
}

fn itself(path: Option<&str>, limit: Duration) -> Result<String, Error> {
    let alive = within(limit);
    let mut side = Side::open(path, "", &alive)?;
    side.begin(false);
    let address = side.worker.address()?;
    side.connect(&address)?;
    side.send(id::END, 0, &[7; 8])?;
    side.wait_until(|| side.seen.ended.get())?;
    let (from, to) = (side.buffer(SIZE)?, side.region(Memory::Ordinary, SIZE)?);
    from.write(0, &[7; SIZE])?;
    let key = side.key(&to.remote_key()?)?;
    tests::check_path(&key.path(), path)?;
    let put = side.post(|| side.endpoint()?.put(&from, 0..SIZE, &key, 0))?;
    let _ = side.finish(put)?;
    side.flush()?;
    if to.to_vec(0..SIZE)? != [7; SIZE] {
        return Err(Error::new(Status::BadData, "a put arrived as something else", "", ""));
    }
    Ok(format!("messages {}, puts {}", side.endpoint()?.message_path(), key.path()))
}

/// Sends messages and puts between this process and a process that it starts, and checks each.
fn another(path: Option<&str>, limit: Duration) -> Result<String, Error> {
    let peer = Peer::start(None)?;
    let in_time = within(limit);
    let alive = || peer.check().and_then(|()| in_time());
    let mut side = Side::open(path, "", &alive)?;
    peer.ask(&Request::hello(side.worker.address()?, path))?;
    let Reply::Hello { address } = peer.reply(&side.worker)? else {
        return Err(Error::from_status(Status::BadData));
    };
    side.connect(&address)?;
    let mut over = Vec::new();
    for (name, test, size) in [("messages", Test::AmLat, 8), ("puts", Test::PutBw, SIZE)] {
        let key = Vec::new();
        let spec = Spec { test, size, memory: Memory::Ordinary, verify: true, key };
        let limit = Limit::Iterations(ROUNDS);
        let asked = Asked { spec, limit, window: 4, peer: &peer, path };
        over.push(format!("{name} {}", tests::run(&side, asked)?.path));
    }
    for hindrance in side.endpoint()?.hindrances().into_iter().filter(|_| path.is_none()) {
        over.push(format!("not {hindrance}"));
    }
    Ok(over.join(", "))
}

/// Prints the routes that work and those that do not. Returns the number of routes that do not work.
pub(crate) fn check_paths(json: bool, limit: Duration) -> Result<usize, Error> {
    let all = try_all(limit, |tried| {
        if !json {
            say::line(tried);
        }
    })?;
    let failed = all.iter().filter(|tried| tried.has_failed()).count();
    if json {
        let text = serde_json::to_string_pretty(&all).unwrap_or_default() + "\n";
        let _ = crate::info::print(&text)?;
    }
    Ok(failed)
}
