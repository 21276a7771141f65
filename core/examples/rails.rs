//! Large puts by rank 0 into rank 1's memory, and gets that check them. The program shows the devices in use, the number of rounds,
//! and the effect of losing a device.
//!
//! Two ranks on one host: `tieline run -n 2 -- target/release/examples/rails`. Two hosts for ten seconds, with `TIELINE_RANK=1` on
//! the other host:
//!
//! `TIELINE_BOOTSTRAP=nodea:29400 TIELINE_SIZE=2 TIELINE_RANK=0 rails 10`
//!
//! `rails 10 1` continues until it has survived one failure, however long the detection takes.
//!
//! The program prints the reason of a failed round and repeats the round, unless the data is damaged or more than 100 rounds have
//! failed. If the endpoint itself has failed, so that the delivery of messages is unknown, the two ranks connect again.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tieline::{
    Context, Endpoint, Error, Job, Outcome, PostError, Region, RemoteKey, Status, Worker,
};

const LEN: usize = 1 << 20;
const ROUND: u16 = 1;
const END: u16 = 2;

fn main() -> Result<(), Error> {
    let argument = |n| std::env::args().nth(n).and_then(|text| text.parse::<u64>().ok());
    let (seconds, losses) = (argument(1).unwrap_or(1), argument(2).unwrap_or(0));
    let job = Job::from_env()?;
    let context = Context::open()?;
    let worker = context.worker()?;
    let memory = context.alloc(LEN)?;
    let addresses = job.exchange(&worker.address()?)?;
    let keys = job.exchange(&memory.remote_key()?)?;
    match job.rank() {
        0 => {
            let peer = (&addresses[1][..], &keys[1][..]);
            ask(&worker, &memory, &context.alloc(LEN)?, peer, seconds, losses)?;
        }
        _ => answer(&worker)?,
    }
    // This rank answers the last request of the other rank meanwhile.
    job.barrier_while(|| worker.wait(Some(Duration::from_millis(1))).map(drop))
}

/// A connection to the peer, and the key of the peer's memory.
struct Way {
    endpoint: Endpoint,
    key: RemoteKey,
}

/// Connects to the peer. Waits until all devices are connected if `all` is set, otherwise until one is, but not longer than the
/// endpoint is usable.
fn connect(worker: &Worker, (address, key): (&[u8], &[u8]), all: bool) -> Result<Way, Error> {
    let endpoint = worker.connect(address)?;
    let key = endpoint.import_key(key)?;
    let usable = || !all && !key.path().starts_with("emulated");
    while key.is_settling() && !usable() && endpoint.error().is_none() {
        let _ = worker.wait(Some(Duration::from_millis(10)))?;
    }
    println!("messages over {}, puts and gets over {}", endpoint.message_path(), key.path());
    Ok(Way { endpoint, key })
}

/// Puts a pattern into the peer's memory, gets the pattern back, and notifies the peer.
fn round(
    worker: &Worker,
    way: &Way,
    number: u64,
    source: &Region,
    back: &Region,
) -> Result<(), Error> {
    let pattern = vec![number as u8; LEN];
    source.write(0, &pattern)?;
    let _ = worker.finish(way.endpoint.put(source, 0..LEN, &way.key, 0)?)?;
    let _ = worker.finish(way.endpoint.get(back, 0..LEN, &way.key, 0)?)?;
    if back.to_vec(0..LEN)? != pattern {
        let what = format!("what came back in round {number} is not what was put");
        return Err(Error::new(Status::BadData, what, "the data is damaged", ""));
    }
    let _ = worker.finish(tried(worker, || way.endpoint.send(ROUND, number, b""))?)?;
    Ok(())
}

fn tried(
    worker: &Worker,
    mut post: impl FnMut() -> Result<Outcome, PostError>,
) -> Result<Outcome, Error> {
    loop {
        match post() {
            Err(PostError::Retry(_)) => {
                let _ = worker.wait(Some(Duration::from_millis(10)))?;
            }
            other => return Ok(other?),
        }
    }
}

fn ask(
    worker: &Worker,
    source: &Region,
    back: &Region,
    peer: (&[u8], &[u8]),
    seconds: u64,
    losses: u64,
) -> Result<(), Error> {
    let mut way = connect(worker, peer, true)?;
    for record in way.endpoint.report() {
        println!("{} {}", record.subject(), record.verdict);
    }
    let until = Instant::now() + Duration::from_secs(seconds);
    let (mut done, mut failed, mut since) = (0u64, 0u64, 0u64);
    while Instant::now() < until || failed < losses || since < 3 {
        match round(worker, &way, done + 1, source, back) {
            Ok(()) => {
                done += 1;
                since += 1;
                if since == 3 {
                    println!("running after {failed} failures");
                }
            }
            Err(error) if error.status() == Status::BadData => return Err(error),
            Err(error) => {
                println!("failed: {error}");
                (failed, since) = (failed + 1, 0);
                if failed > 100 {
                    return Err(error);
                }
                if way.endpoint.error().is_some() {
                    way = connect(worker, peer, false)?;
                }
            }
        }
    }
    println!("{done} rounds of {LEN} bytes each way, {failed} failures");
    let _ = worker.finish(tried(worker, || way.endpoint.send(END, done, b""))?)?;
    let _ = worker.finish(way.endpoint.flush_messages()?)?;
    Ok(())
}

fn answer(worker: &Worker) -> Result<(), Error> {
    let (rounds, end) = (Rc::new(Cell::new(0u64)), Rc::new(Cell::new(None)));
    let (count, last) = (rounds.clone(), end.clone());
    worker.on_message(ROUND, move |_| count.set(count.get() + 1))?;
    worker.on_message(END, move |message| last.set(Some(message.header())))?;
    worker.on_peer_failure(|peer, error| println!("{peer} is lost: {error}"));
    while end.get().is_none() {
        let _ = worker.wait(Some(Duration::from_millis(10)))?;
    }
    println!("{} rounds heard of", rounds.get());
    Ok(())
}
