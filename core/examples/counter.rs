//! A distributed counter: every rank adds to one word of rank 0 and no increment is lost.
//!
//! `tieline run -n 4 -- target/release/examples/counter [INCREMENTS]`

use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;
use tieline::{Context, Error, Job, Status};

fn main() -> Result<(), Error> {
    let increments = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(100_000);
    let job = Job::from_env()?;
    let context = Context::open()?;
    let worker = context.worker()?;
    let memory = context.alloc(8)?;
    let addresses = job.exchange(&worker.address()?)?;
    let keys = job.exchange(&memory.remote_key()?)?;
    let home = worker.connect(&addresses[0])?;
    let counter = home.import_key(&keys[0])?;

    job.barrier()?;
    let start = Instant::now();
    let mut last = None;
    for _ in 0..increments {
        let before = worker.finish(home.fetch_add(&counter, 0, 1)?)?;
        // The values that a rank reads only increase.
        if last.is_some_and(|last| before <= last) {
            let why = format!("{before} after {last:?}");
            return Err(Error::new(Status::BadData, "the counter went back", why, ""));
        }
        last = Some(before);
    }
    let expected = increments * job.size() as u64;
    if job.rank() == 0 {
        // This wait makes progress, which serves the first contact of the other ranks.
        let count = memory.atomic_u64(0)?;
        let _ = worker.wait_until(|| count.load(SeqCst) >= expected, None)?;
        println!(
            "{expected} increments by {} ranks in {:?}, none lost; by {}",
            job.size(),
            start.elapsed(),
            counter.path()
        );
    }
    job.barrier()
}
