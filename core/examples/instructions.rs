//! The cost of an operation in instructions. The program runs under callgrind, which counts instructions independently of the
//! machine's load. `cargo xtask instructions` runs the program and compares the results.
//!
//! `instructions list` names the cases. `instructions CASE N` executes every case N times, and `valgrind --tool=callgrind
//! --toggle-collect='*measured_CASE*'` counts one of them. `post` measures the sending of an 8-byte message, and `poll` its
//! delivery to the handler. `put` and `fetch_add` access memory of `Context::alloc`.

use std::cell::Cell;
use std::rc::Rc;
use tieline::{Context, Endpoint, Error, Outcome, RemoteKey, Worker};

const CASES: [&str; 4] = ["post", "poll", "put", "fetch_add"];
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
    let args: Vec<String> = std::env::args().skip(1).collect();
    let times = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["list"] => {
            println!("{}", CASES.join("\n"));
            return Ok(());
        }
        [case, times] if CASES.contains(&case) => times.parse().unwrap_or(0),
        _ => return Err(tieline::Status::Invalid.into()),
    };
    let context = Context::open()?;
    let worker = context.worker()?;
    let seen = Rc::new(Cell::new(0));
    let count = seen.clone();
    worker.on_message(1, move |_| count.set(count.get() + 1))?;
    let me = worker.connect(&worker.address()?)?;
    let memory = context.alloc(4096)?;
    let key = me.import_key(&memory.remote_key()?)?;
    // The messages exceed the number after which a fast box is used, and the key's mapping arrives meanwhile.
    for _ in 0..200 {
        let outcome = me.send(1, 0, b"warm up!")?;
        let _ = worker.finish(outcome)?;
        let _ = worker.progress();
    }
    while key.is_settling() || seen.get() < 200 {
        let _ = worker.progress();
    }
    for _ in 0..times / BATCH {
        seen.set(0);
        measured_post(&me)?;
        measured_poll(&worker, &seen);
        measured_put(&me, &key)?;
        measured_fetch_add(&me, &key)?;
    }
    Ok(())
}
