//! Registered memory over RDMA, and the errors for refused registrations and keys, in one process. Provider verbs is the only one
//! for data.
//!
//! ```text
//! TIELINE_PROVIDERS=verbs,tcp-connect verbs_memory open            # a worker
//! TIELINE_PROVIDERS=verbs,tcp-connect verbs_memory register 1048576
//! TIELINE_PROVIDERS=verbs,tcp-connect verbs_memory revoke          # a key whose region is gone
//! TIELINE_PROVIDERS=verbs,tcp-connect verbs_memory hold            # put and get, then wait for a line of input
//! ```
//!
//! On failure the program prints the reason and exits with status 3.

use std::process::ExitCode;
use tieline::{Context, Endpoint, Error, Outcome, PostError, Worker};

const WORDS: usize = 64 << 10;

fn main() -> ExitCode {
    let argument = |n| std::env::args().nth(n).unwrap_or_default();
    let result = match argument(1).as_str() {
        "open" => open(),
        "register" => register(argument(2).parse().unwrap_or(0)),
        "revoke" => revoke(),
        _ => hold(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("failed: {error}");
            ExitCode::from(3)
        }
    }
}

fn open() -> Result<(), Error> {
    let context = Context::open()?;
    let _worker = context.worker()?;
    println!("opened");
    Ok(())
}

fn register(bytes: usize) -> Result<(), Error> {
    let context = Context::open()?;
    let _region = context.alloc(bytes)?;
    for warning in context.report().warnings {
        println!("warning: {warning}");
    }
    Ok(())
}

fn progress(workers: [&Worker; 2]) {
    for worker in workers {
        let _ = worker.progress();
    }
}

/// Waits for an operation of the first worker while both workers make progress.
fn finish(workers: [&Worker; 2], posted: Result<Outcome, PostError>) -> Result<u64, Error> {
    match posted? {
        Outcome::Done(value) => Ok(value),
        Outcome::Pending(request) => loop {
            if let Some(result) = workers[0].test(&request) {
                return Ok(result?);
            }
            progress(workers);
        },
    }
}

fn put(
    workers: [&Worker; 2],
    peer: &Endpoint,
    source: &tieline::Region,
    key: &[u8],
) -> Result<u64, Error> {
    let key = peer.import_key(key)?;
    loop {
        match peer.put(source, 0..WORDS, &key, 0) {
            Err(PostError::Retry(_)) => {
                progress(workers);
            }
            posted => return finish(workers, posted),
        }
    }
}

fn revoke() -> Result<(), Error> {
    let (near, far) = (Context::open()?, Context::open()?);
    let (a, b) = (near.worker()?, far.worker()?);
    let workers = [&a, &b];
    let source = near.alloc(WORDS)?;
    let (kept, given_up) = (far.alloc(WORDS)?, far.alloc(WORDS)?);
    let (good, bad) = (kept.remote_key()?, given_up.remote_key()?);
    let address = b.address()?;
    let peer = a.connect(&address)?;
    let _ = put(workers, &peer, &source, &good)?;
    let _ = put(workers, &peer, &source, &bad)?;
    println!("put by {}", peer.message_path());
    drop(given_up);
    match put(workers, &peer, &source, &bad) {
        Err(error) => println!("refused: {error}"),
        Ok(_) => println!("the key of a region that is gone was taken"),
    }
    drop(peer);
    let again = a.connect(&address)?;
    println!("next by {}", again.message_path());
    let _ = put(workers, &again, &source, &good)?;
    println!("again by {}", again.message_path());
    Ok(())
}

fn hold() -> Result<(), Error> {
    let (near, far) = (Context::open()?, Context::open()?);
    let (a, b) = (near.worker()?, far.worker()?);
    let workers = [&a, &b];
    let (source, target) = (near.alloc(WORDS)?, far.alloc(WORDS)?);
    let key = target.remote_key()?;
    let peer = a.connect(&b.address()?)?;
    let _ = put(workers, &peer, &source, &key)?;
    println!("standing by {}", peer.message_path());
    let _ = std::io::stdin().read_line(&mut String::new());
    Ok(())
}
