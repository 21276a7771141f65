//! The tests of `tieline perf`, in a file for each family. A test has two sides: the requesting process measures, and its peer
//! serves until it receives the request to stop.

mod atomics;
pub(crate) mod limits;
mod messages;
mod rma;

use super::args::{Limit, Test, check_size};
use super::control::{Peer, Reply, Request, Spec};
use super::side::{Side, id, pattern};
use super::stats::Samples;
use tieline::explain::Verdict;
use tieline::{Endpoint, Error, Region, RemoteKey, Status};

pub(crate) struct Asked<'a> {
    pub(crate) spec: Spec,
    pub(crate) limit: Limit,
    /// The number of puts or gets in flight in a stream.
    pub(crate) window: usize,
    pub(crate) peer: &'a Peer,
    pub(crate) path: Option<&'a str>,
}

/// The result of a test, and the path that it used.
pub(crate) struct Measured {
    pub(crate) samples: Samples,
    pub(crate) path: String,
    /// The number of preemptions of the peer during the test.
    pub(crate) preempted: u64,
}

pub(crate) fn run(side: &Side<'_>, mut asked: Asked<'_>) -> Result<Measured, Error> {
    side.begin(asked.spec.verify);
    let landing = side.region(asked.spec.memory, room(asked.spec.size))?;
    asked.spec.key = landing.remote_key()?;
    asked.peer.ask(&Request::Serve(asked.spec.clone()))?;
    let Reply::Ready { key } = asked.peer.reply(&side.worker)? else {
        return Err(out_of_turn());
    };
    let key = if asked.spec.test.is_message() { None } else { Some(side.key(&key)?) };
    let (samples, path) = match &key {
        None => (message(side, &asked.spec, asked.limit)?, message_path(side)?),
        Some(key) => {
            let path = key_path(side, asked.spec.test, key)?;
            check_path(&path, asked.path)?;
            (with_key(side, &asked, key, &landing)?, path)
        }
    };
    side.send(id::STOP, 0, &[])?;
    let Reply::Served { wrong, preempted } = asked.peer.reply(&side.worker)? else {
        return Err(out_of_turn());
    };
    match wrong + side.seen.wrong.get() {
        0 => Ok(Measured { samples, path, preempted }),
        wrong => Err(differs(format!("{wrong} payloads arrived as something else"))),
    }
}

fn message(side: &Side<'_>, spec: &Spec, limit: Limit) -> Result<Samples, Error> {
    match spec.test {
        Test::AmLat => messages::latency(side, spec, limit),
        _ => messages::bandwidth(side, spec, limit),
    }
}

pub(crate) fn run_messages(
    side: &Side<'_>,
    spec: &Spec,
    limit: Limit,
) -> Result<(Samples, String), Error> {
    let samples = message(side, spec, limit)?;
    side.send(id::STOP, 0, &[])?;
    side.flush()?;
    Ok((samples, message_path(side)?))
}

/// Measures messages of one thread to itself, from the call that sends to the end of the handler.
pub(crate) fn to_itself(
    size: usize,
    limit: Limit,
    path: Option<&str>,
) -> Result<(Samples, String), Error> {
    let mut side = Side::open(path, "", &|| Ok(()))?;
    let own = side.worker.address()?;
    side.connect(&own)?;
    let longest = side.longest_message()?;
    if size > longest {
        return Err(crate::misuse(
            format!("cannot measure messages of {size} bytes"),
            super::whole_messages(longest),
            "give --size less",
        ));
    }
    Ok((messages::to_itself(&side, size, limit)?, message_path(&side)?))
}

pub(crate) fn serve_messages(side: &Side<'_>, spec: &Spec) -> Result<(), Error> {
    match spec.test {
        Test::AmLat => messages::serve_latency(side, spec.size, spec.verify)?,
        _ => messages::serve_bandwidth(side)?,
    }
    match side.seen.wrong.get() {
        0 => Ok(()),
        wrong => Err(differs(format!("{wrong} payloads arrived as something else"))),
    }
}

fn with_key(
    side: &Side<'_>,
    asked: &Asked<'_>,
    key: &RemoteKey,
    landing: &Region,
) -> Result<Samples, Error> {
    match asked.spec.test {
        Test::PutLat => rma::put_latency(side, asked, key, landing),
        Test::PutBw => rma::put_bandwidth(side, asked, key),
        Test::GetLat => rma::get(side, asked, key, true),
        Test::GetBw => rma::get(side, asked, key, false),
        Test::AddLat => atomics::posted_add(side, asked, key),
        _ => atomics::fetching(side, asked, key),
    }
}

pub(crate) fn serve(
    side: &Side<'_>,
    spec: &Spec,
    ready: impl FnOnce(Vec<u8>) -> Result<(), Error>,
) -> Result<u64, Error> {
    side.begin(spec.verify);
    check_size(spec.size)?; // The value comes from another process, perhaps on a larger host.
    let landing = side.region(spec.memory, room(spec.size))?;
    if matches!(spec.test, Test::GetLat | Test::GetBw) {
        let mut payload = vec![0; spec.size];
        pattern::fill(0, &mut payload);
        landing.write(0, &payload)?;
    }
    let key = match spec.test {
        Test::PutLat => Some(side.endpoint()?.import_key(&spec.key)?),
        _ => None,
    };
    ready(landing.remote_key()?)?;
    match (spec.test, key) {
        (Test::PutLat, Some(key)) => {
            rma::serve_put_latency(side, &key, &landing, spec.size, spec.verify)?;
        }
        (Test::AmLat, _) => messages::serve_latency(side, spec.size, spec.verify)?,
        (Test::AmBw, _) => messages::serve_bandwidth(side)?,
        // If a device does all the work, the target sleeps soon: polling would take the processor from the driver. If messages do
        // the work, they wake the target.
        _ => side.wait_until(|| side.seen.stopped.get())?,
    }
    Ok(side.seen.wrong.get())
}

/// Returns the size of the memory, rounded up to whole words, so that the last byte is in a word.
fn room(size: usize) -> usize {
    size.next_multiple_of(8)
}

fn message_path(side: &Side<'_>) -> Result<String, Error> {
    Ok(chosen_for(side.endpoint()?, "message").next().unwrap_or("unknown".into()))
}

fn chosen_for(endpoint: &Endpoint, role: &'static str) -> impl Iterator<Item = String> {
    endpoint.report().into_iter().filter_map(move |record| match &record.verdict {
        Verdict::ChosenFor { roles, .. } if roles.iter().any(|r| r == role) => Some(format!(
            "{}/{}",
            record.domain.unwrap_or_default(),
            record.module.unwrap_or_default()
        )),
        _ => None,
    })
}

/// Returns the route of puts and gets, or the route of atomics, which may differ: not every module that copies supports atomics.
fn key_path(side: &Side<'_>, test: Test, key: &RemoteKey) -> Result<String, Error> {
    let path = key.path();
    let atomic = test.has_fixed_size();
    if !atomic || chosen_for(side.endpoint()?, "atomic").any(|module| module == path) {
        return Ok(path);
    }
    Ok(format!("emulated over {}", message_path(side)?))
}

pub(crate) fn check_path(taken: &str, forced: Option<&str>) -> Result<(), Error> {
    let first = forced.and_then(|path| path.split(',').next());
    let right = match first {
        None | Some("shm") => true, // where shm has no way to that memory, emulation over shm is what was asked for
        Some("emulated") => taken.starts_with("emulated"),
        // The forced name is a provider, as in `shm/ring`, or the provider of a device, as in `verbs:rxe0/rc`.
        Some(name) => taken.split(['/', ':']).next() == Some(name),
    };
    if right {
        return Ok(());
    }
    Err(Error::new(
        Status::Unreachable,
        format!("cannot force the path {}", first.unwrap_or("")),
        format!("this memory is reached by {taken}"),
        "see `tieline info --why`; --memory says where the target memory comes from",
    ))
}

fn differs(why: String) -> Error {
    Error::new(
        Status::BadData,
        "the data differs",
        why,
        "please report it with the output of `tieline info --json`",
    )
}

fn out_of_turn() -> Error {
    Error::new(Status::BadData, "the peer process answered out of turn", "", "run it again")
}
