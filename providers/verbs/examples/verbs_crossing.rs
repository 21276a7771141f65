//! Two processes open many connections to each other simultaneously, to test that two crossing requests form one connection.
//!
//! ```text
//! TIELINE_BOOTSTRAP=nodea:29400 TIELINE_SIZE=2 TIELINE_RANK=0 verbs_crossing 500 4   # connections, rounds
//! ```
//!
//! In every round each process has a new worker and `connections` endpoints to the other process. The two processes number their
//! endpoints in opposite orders, and each sends the number over each endpoint. The test passes if every number arrives once, no
//! connection failed, and both workers have exactly `connections` connections. With a third argument, a file, the connections of
//! the last round stay open until that file exists.

use std::cell::RefCell;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tieline::{Context, Endpoint, Error, Job, PostError, Status, Worker};

const HELLO: u16 = 1;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("failed: {error}");
            ExitCode::from(3)
        }
    }
}

fn run() -> Result<(), Error> {
    let argument = |n| std::env::args().nth(n).and_then(|text| text.parse::<usize>().ok());
    let (count, rounds) = (argument(1).unwrap_or(100), argument(2).unwrap_or(1));
    let hold = std::env::args().nth(3).map(std::path::PathBuf::from);
    let job = Job::from_env()?;
    let context = Context::open()?;
    let began = Instant::now();
    let mut sent_again = 0;
    for round in 0..rounds {
        let hold = hold.as_ref().filter(|_| round + 1 == rounds);
        sent_again += cross(&job, &context, count, || {
            if let Some(file) = hold {
                println!("standing");
                while !file.exists() {
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        })?;
    }
    println!(
        "{} connections in {rounds} rounds of {:.1} s, {sent_again} messages of wire-up were sent again",
        count * rounds,
        began.elapsed().as_secs_f64() / rounds as f64,
    );
    Ok(())
}

/// Runs one round. Returns the number of retransmitted wire-up messages.
fn cross(job: &Job, context: &Context, count: usize, last: impl FnOnce()) -> Result<u64, Error> {
    let worker = context.worker()?;
    let came = Rc::new(RefCell::new(vec![0u32; count]));
    let (seen, trouble) = (came.clone(), Rc::new(RefCell::new(None)));
    worker.on_message(HELLO, move |message| {
        if let Some(times) = seen.borrow_mut().get_mut(message.header() as usize) {
            *times += 1;
        }
    })?;
    let failure = trouble.clone();
    worker.on_peer_failure(move |_, error| {
        let _ = failure.borrow_mut().get_or_insert_with(|| error.clone());
    });
    let addresses = job.exchange(&worker.address()?)?;
    let peer = &addresses[1 - job.rank()];
    let mut endpoints = Vec::with_capacity(count);
    for at in 0..count {
        endpoints.push((worker.connect(peer)?, if job.rank() == 0 { at } else { count - 1 - at }));
    }
    let mut unsent: Vec<&(Endpoint, usize)> = endpoints.iter().collect();
    let complete = || came.borrow().iter().all(|times| *times > 0);
    while !unsent.is_empty() || worker.pending() > 0 || !complete() {
        let mut left = Vec::new();
        for pair in unsent {
            match pair.0.send(HELLO, pair.1 as u64, b"") {
                Ok(_) => {}
                Err(PostError::Retry(_)) => left.push(pair),
                Err(error) => return Err(error.into()),
            }
        }
        unsent = left;
        let _ = worker.wait(Some(Duration::from_millis(20)))?;
        if let Some(error) = trouble.borrow_mut().take() {
            return Err(error);
        }
        // A connection that was never established is not a peer failure; its endpoint has the error.
        if let Some(error) = endpoints.iter().find_map(|(endpoint, _)| endpoint.error()) {
            return Err(error.into());
        }
    }
    // A duplicate can arrive until the other side has received everything.
    job.barrier_while(|| worker.wait(Some(Duration::from_millis(5))).map(drop))?;
    let twice = came.borrow().iter().filter(|times| **times != 1).count();
    if twice > 0 {
        return Err(wrong(format!("{twice} messages came more than once")));
    }
    let (made, stand) = (worker.counters().connections, standing(&worker));
    if made != count as u64 || stand != count as u64 {
        return Err(wrong(format!("{made} connections were formed and {stand} stand for {count}")));
    }
    if worker.counters().failed_connections > 0 {
        return Err(wrong(format!("{} did not come about", worker.counters().failed_connections)));
    }
    last();
    let again = worker.counters().wireup_retransmissions;
    // Closing must wait until the other side has counted its connections.
    job.barrier_while(|| worker.wait(Some(Duration::from_millis(5))).map(drop))?;
    Ok(again)
}

/// Returns the number of connections of module rc.
fn standing(worker: &Worker) -> u64 {
    let modules = worker.memory();
    modules.iter().filter(|module| module.path.ends_with("/rc")).map(|module| module.peers).sum()
}

fn wrong(why: String) -> Error {
    Error::new(Status::BadData, "the connections are not as they should be", why, "")
}
