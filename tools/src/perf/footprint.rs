//! The fixed cost of the library: the time to open a context and a worker, and the memory that they hold. `cargo xtask bench` runs
//! this command.

use super::args::{Limit, Memory, Test};
use super::control::{Peer, Reply, Request, Spec};
use super::side::Side;
use super::tests::{self, Asked};
use crate::system_error;
use serde::Serialize;
use std::process::ExitCode;
use std::time::Instant;
use tieline::{Error, Status};

/// The number of messages after which a peer counts as active.
const TALK: u64 = 1000;

/// The cost of a context, a worker and a peer, as one JSON object.
#[derive(clap::Args)]
pub(crate) struct FootprintArgs {}

#[derive(Serialize)]
struct Footprint {
    /// The time to open a context and a worker, in nanoseconds.
    open_ns: u64,
    /// The growth of the process's memory by the context and the worker.
    idle_bytes: u64,
    /// The memory that the worker reports for one peer with an open lane.
    quiet_peer_bytes: u64,
    /// The memory that the worker reports for one peer after many messages, including committed message buffers.
    talking_peer_bytes: u64,
    buffer_bytes: u64,
    /// The growth of the process's memory by that peer, including the memory of other libraries.
    grown_peer_bytes: u64,
}

pub(crate) fn main(_: &FootprintArgs) -> Result<ExitCode, Error> {
    let peer = Peer::start(None)?;
    let alive = || peer.check();
    let before = written_bytes()?;
    let began = Instant::now();
    let mut side = Side::open(None, "", &alive)?;
    let open_ns = began.elapsed().as_nanos() as u64;
    let idle_bytes = written_bytes()?.saturating_sub(before);

    peer.ask(&Request::hello(side.worker.address()?, None))?;
    let Reply::Hello { address } = peer.reply(&side.worker)? else {
        return Err(Error::from_status(Status::BadData));
    };
    let before = written_bytes()?;
    side.connect(&address)?;
    let _ = side.endpoint()?.max_message()?; // opens the lane, and sends nothing
    let quiet_peer_bytes = per_peer(&side);
    for test in [Test::AmLat, Test::AmBw] {
        let (memory, verify) = (Memory::Ordinary, false);
        let spec = Spec { test, size: 8, memory, verify, key: Vec::new() };
        let limit = Limit::Iterations(TALK);
        let _ = tests::run(&side, Asked { spec, limit, window: 16, peer: &peer, path: None })?;
    }
    let buffer_bytes = side.worker.memory().iter().map(|m| m.buffer_bytes).sum::<u64>();
    let talking_peer_bytes = per_peer(&side) + buffer_bytes;
    let grown_peer_bytes = written_bytes()?.saturating_sub(before);
    let footprint = Footprint {
        open_ns,
        idle_bytes,
        quiet_peer_bytes,
        talking_peer_bytes,
        buffer_bytes,
        grown_peer_bytes,
    };
    crate::say::line(serde_json::to_string(&footprint).unwrap_or_default());
    Ok(ExitCode::SUCCESS)
}

fn per_peer(side: &Side<'_>) -> u64 {
    side.worker.memory().iter().map(|m| m.peer_bytes.checked_div(m.peers).unwrap_or(0)).sum()
}

/// Returns the memory of this process without program files: anonymous and shared memory. Pages of a program file count as written
/// for a while after the program was built.
fn written_bytes() -> Result<u64, Error> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").map_err(|e| {
        system_error("cannot see the memory of this process", &e, "see that /proc is mounted")
    })?;
    let own = text.lines().filter_map(|line| {
        let rest = line.strip_prefix("Pss_Anon:").or(line.strip_prefix("Pss_Shmem:"))?;
        rest.trim().split(' ').next()?.parse::<u64>().ok()
    });
    Ok(own.sum::<u64>() * 1024)
}
