//! Every rank greets the next one and waits for its own greeting.
//!
//! `tieline run -n 4 -- target/release/examples/hello`

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use tieline::{Context, Error, Job, Status};

const GREETING: u16 = 1;
/// The maximum time that a rank waits for its greeting.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn main() -> Result<(), Error> {
    let job = Job::from_env()?;
    let context = Context::open()?;
    let worker = context.worker()?;
    let greeted = Rc::new(Cell::new(false));
    let seen = greeted.clone();
    let rank = job.rank();
    worker.on_message(GREETING, move |message| {
        let text = String::from_utf8_lossy(message.payload());
        println!("rank {rank}: rank {} says: {text}", message.header());
        seen.set(true);
    })?;

    let addresses = job.exchange(&worker.address()?)?;
    let to = (rank + 1) % job.size();
    let next = worker.connect(&addresses[to])?;
    println!("rank {rank} reaches rank {to} by {}", next.path());
    let sent = next.send(GREETING, rank as u64, b"hello from the other side")?;
    let _ = worker.finish(sent)?;
    // If the endpoint to the next rank fails, this rank stops waiting. The job then ends instead of waiting until the time limit.
    let _ = worker.wait_until(|| greeted.get() || next.error().is_some(), Some(PATIENCE))?;
    match next.error() {
        Some(error) => Err(error.into()),
        None if greeted.get() => job.barrier(),
        None => Err(Error::new(
            Status::TimedOut,
            format!("rank {rank} was not greeted"),
            format!("nothing came in {PATIENCE:?}"),
            "see what the other ranks say",
        )),
    }
}
