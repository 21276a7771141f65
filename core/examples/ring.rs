//! A token passes through a ring of N processes; each process adds its rank. After a hundred rounds rank 0 checks the sum.
//!
//! `tieline run -n 8 -- target/release/examples/ring`

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;
use tieline::{Context, Error, Job, Status};

const TOKEN: u16 = 1;
const ADDRESS: u32 = 1;
const ROUNDS: u64 = 100;

fn main() -> Result<(), Error> {
    let job = Job::from_env()?;
    let context = Context::open()?;
    let worker = context.worker()?;
    let arrived: Rc<Cell<Option<u64>>> = Rc::default();
    let slot = arrived.clone();
    worker.on_message(TOKEN, move |message| slot.set(Some(message.header())))?;

    // Each rank looks up only the address of the next rank.
    job.publish(ADDRESS, &worker.address()?)?;
    let (rank, size) = (job.rank() as u64, job.size() as u64);
    let next = worker.connect(&job.lookup((job.rank() + 1) % job.size(), ADDRESS)?)?;
    let receive = || -> Result<u64, Error> {
        let _ = worker.wait_until(|| arrived.get().is_some(), None)?;
        Ok(arrived.take().unwrap_or_default())
    };
    let pass_on =
        |value: u64| -> Result<u64, Error> { Ok(worker.finish(next.send(TOKEN, value, b"")?)?) };

    let start = Instant::now();
    let mut token = 0;
    for _ in 0..ROUNDS {
        if rank == 0 {
            let _ = pass_on(token)?;
            token = receive()?;
        } else {
            let _ = pass_on(receive()? + rank)?;
        }
    }
    if rank == 0 {
        let expected = ROUNDS * size * (size - 1) / 2;
        if token != expected {
            let why = format!("{token}, expected {expected}");
            return Err(Error::new(Status::BadData, "the token is wrong", why, ""));
        }
        let each = start.elapsed() / (ROUNDS * size) as u32;
        println!("{ROUNDS} rounds through {size} processes: sum {token}, {each:?} per hop");
    }
    job.barrier()
}
