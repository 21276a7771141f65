//! What a message costs in instructions: run under callgrind, which counts them and is not disturbed by
//! whatever else the machine does.
//!
//! `valgrind --tool=callgrind --toggle-collect='*measured_post*' target/release/examples/instructions`
//! counts 100 rounds of 16 posts of 8 bytes; `*measured_poll*` the same messages' way to their handler,
//! `*measured_idle*` as many polls that find nothing, `*measured_put*` and `*measured_fetch_add*` as many
//! operations on memory of `Context::alloc`. `cargo xtask test` divides and compares.

use std::cell::Cell;
use std::rc::Rc;
use tieline::{Context, Endpoint, Error, Outcome, RemoteKey, Worker};

const ROUNDS: usize = 100;
const BATCH: usize = 16;

#[inline(never)]
fn measured_post(endpoint: &Endpoint) -> Result<(), Error> {
    for i in 0..BATCH as u64 {
        let _ = endpoint.send(1, i, &i.to_le_bytes())?;
    }
    Ok(())
}

#[inline(never)]
fn measured_poll(worker: &Worker, seen: &Cell<usize>) {
    while seen.get() < BATCH {
        let _ = worker.progress();
    }
}

#[inline(never)]
fn measured_idle(worker: &Worker) {
    for _ in 0..BATCH {
        let _ = worker.progress();
    }
}

#[inline(never)]
fn measured_put(endpoint: &Endpoint, key: &RemoteKey) -> Result<(), Error> {
    for i in 0..BATCH as u64 {
        let _ = endpoint.put_bytes(&i.to_le_bytes(), key, 8)?;
    }
    Ok(())
}

#[inline(never)]
fn measured_fetch_add(endpoint: &Endpoint, key: &RemoteKey) -> Result<(), Error> {
    for _ in 0..BATCH {
        let Outcome::Done(_) = endpoint.fetch_add(key, 0, 1)? else {
            return Err(tieline::Status::Unsupported.into());
        };
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let context = Context::open()?;
    let worker = context.worker()?;
    let seen = Rc::new(Cell::new(0));
    let count = seen.clone();
    worker.on_message(1, move |_| count.set(count.get() + 1))?;
    let me = worker.connect(&worker.address()?)?;
    let memory = context.alloc(4096)?;
    let key = me.import_key(&memory.remote_key()?)?;
    // Past the threshold of fast boxes, and until the key's mapping has arrived.
    for _ in 0..200 {
        let outcome = me.send(1, 0, b"warm up!")?;
        let _ = worker.finish(outcome)?;
        let _ = worker.progress();
    }
    while key.is_settling() || seen.get() < 200 {
        let _ = worker.progress();
    }
    for _ in 0..ROUNDS {
        seen.set(0);
        measured_post(&me)?;
        measured_poll(&worker, &seen);
        measured_idle(&worker);
        measured_put(&me, &key)?;
        measured_fetch_add(&me, &key)?;
    }
    println!("{ROUNDS} rounds of {BATCH}; path {}, memory by {}", me.message_path(), key.path());
    Ok(())
}
