//! A distributed counter: every rank adds to one word of rank 0 and nobody loses an increment.
//!
//! `tieline run -n 4 -- target/release/examples/counter`

use std::sync::atomic::Ordering::SeqCst;
use tieline::{Context, Error, Job, Status};

const INCREMENTS: u64 = 100_000;

fn main() -> Result<(), Error> {
    let job = Job::from_env()?;
    let context = Context::open()?;
    let worker = context.worker()?;
    let memory = context.alloc(8)?;
    let addresses = job.exchange(&worker.address()?)?;
    let keys = job.exchange(&memory.remote_key()?)?;
    let home = worker.connect(&addresses[0])?;
    let counter = home.import_key(&keys[0])?;

    let mut last = None;
    for _ in 0..INCREMENTS {
        let before = worker.finish(home.fetch_add(&counter, 0, 1)?)?;
        // Each rank sees the counter only rise.
        if last.is_some_and(|last| before <= last) {
            let why = format!("{before} after {last:?}");
            return Err(Error::new(Status::BadData, "the counter went back", why, ""));
        }
        last = Some(before);
    }
    let expected = INCREMENTS * job.size() as u64;
    if job.rank() == 0 {
        // Making progress serves the others' first contact.
        while memory.atomic_u64(0)?.load(SeqCst) < expected {
            let _ = worker.progress();
        }
        println!("{expected} increments by {} ranks, none lost; by {}", job.size(), counter.path());
    }
    job.barrier()
}
