//! The cost of threads: the number of 8-byte messages per second that several threads send to a peer by four methods. Each thread
//! has its own worker; or all threads share one worker with a lock; or all pass their messages to the thread that owns the worker; or
//! all use a driven worker.
//!
//! `tieline run -n 2 -- target/release/examples/threads` (rank 1 receives; `SECONDS=1 THREADS=1,2,4` set the duration and the
//! numbers of threads)

#![allow(unsafe_code)] // for `Movable::new`, whose conditions the application meets

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tieline::{Context, Endpoint, Error, Job, Movable, PostError, Worker};

const MESSAGE: u16 = 1;
const LAST: u16 = 2;

/// A method by which several threads send; returns the number of messages sent.
type Way = fn(&Context, &[u8], usize, Duration) -> Result<u64, Error>;

fn main() -> Result<(), Error> {
    let job = Job::from_env()?;
    let context = Context::open()?;
    let worker = context.worker()?;
    let addresses = job.exchange(&worker.address()?)?;
    let last = Rc::new(Cell::new(0));
    let note = last.clone();
    worker.on_message(MESSAGE, |_| {})?;
    worker.on_message(LAST, move |_| note.set(note.get() + 1))?;
    let ways: [(&str, Way); 4] = [
        ("a worker each", each_its_own),
        ("one worker, behind a lock", behind_a_lock),
        ("one worker, by tasks", by_tasks),
        ("a driven worker", driven),
    ];
    let mut sent = 0;
    for threads in threads() {
        for (name, way) in ways {
            if job.rank() == 0 {
                let begun = Instant::now();
                let count = way(&context, &addresses[1 % job.size()], threads, length())?;
                let rate = count as f64 / begun.elapsed().as_secs_f64() / 1e6;
                println!("{threads} threads, {name}: {rate:.2} million messages a second");
            }
            sent += 1;
            let told = || job.rank() == 0 || last.get() >= sent;
            let _ = worker.wait_until(told, None)?;
            job.barrier()?;
        }
    }
    Ok(())
}

fn threads() -> Vec<usize> {
    let list = std::env::var("THREADS").unwrap_or_else(|_| "1,2,4".into());
    list.split(',').filter_map(|count| count.parse().ok()).filter(|count| *count > 0).collect()
}

fn length() -> Duration {
    let seconds = std::env::var("SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs_f64(seconds.unwrap_or(0.2))
}

/// Posts one message, and makes progress on the worker until the endpoint accepts the message.
fn send(worker: &Worker, there: &Endpoint, id: u16, header: u64) -> Result<(), Error> {
    loop {
        match there.send(id, header, b"8 bytes.") {
            Err(PostError::Retry(_)) => drop(worker.wait(Some(Duration::from_micros(50)))?),
            sent => return sent.map(drop).map_err(Error::from),
        }
    }
}

/// Notifies the peer that one method has been measured.
fn tell_last(worker: &Worker, there: &Endpoint) -> Result<(), Error> {
    send(worker, there, LAST, 0)?;
    Ok(worker.flush()?)
}

fn each_its_own(
    context: &Context,
    peer: &[u8],
    threads: usize,
    length: Duration,
) -> Result<u64, Error> {
    let until = Instant::now() + length;
    let sends = || -> Result<u64, Error> {
        let worker = context.worker()?;
        let there = worker.connect(peer)?;
        let mut count = 0;
        while count % 64 != 0 || Instant::now() < until {
            send(&worker, &there, MESSAGE, count)?;
            count += 1;
        }
        worker.flush()?;
        Ok(count)
    };
    let all = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(sends)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).collect::<Vec<_>>()
    });
    let worker = context.worker()?;
    tell_last(&worker, &worker.connect(peer)?)?;
    all.into_iter().sum()
}

fn behind_a_lock(
    context: &Context,
    peer: &[u8],
    threads: usize,
    length: Duration,
) -> Result<u64, Error> {
    let worker = context.worker()?;
    let there = worker.connect(peer)?;
    worker.check_movable()?;
    // SAFETY: the value contains the endpoint, the worker has no handlers, and the endpoint is not cloned.
    let shared = Mutex::new(unsafe { Movable::new((worker, there)) });
    let until = Instant::now() + length;
    let sends = || -> Result<u64, Error> {
        let mut count = 0;
        while count % 64 != 0 || Instant::now() < until {
            let both = shared.lock().expect("no panic under the lock");
            send(&both.0, &both.1, MESSAGE, count)?;
            drop(both);
            count += 1;
        }
        Ok(count)
    };
    let all = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(sends)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).collect::<Vec<_>>()
    });
    let (worker, there) = shared.into_inner().expect("no panic under the lock").into_inner();
    tell_last(&worker, &there)?;
    all.into_iter().sum()
}

fn driven(context: &Context, peer: &[u8], threads: usize, length: Duration) -> Result<u64, Error> {
    let worker = context.driven_worker()?;
    let there = worker.connect(peer)?;
    let send = |id: u16, header: u64| -> Result<(), Error> {
        loop {
            match there.send(id, header, b"8 bytes.") {
                Err(PostError::Retry(_)) => {
                    let _ = worker.wait_until(|| false, Some(Duration::from_micros(50)))?;
                }
                sent => return sent.map(drop).map_err(Error::from),
            }
        }
    };
    let until = Instant::now() + length;
    let sends = || -> Result<u64, Error> {
        let mut count = 0;
        while count % 64 != 0 || Instant::now() < until {
            send(MESSAGE, count)?;
            count += 1;
        }
        Ok(count)
    };
    let all = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(sends)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).collect::<Vec<_>>()
    });
    send(LAST, 0)?;
    let _ = worker.flush(None)?;
    all.into_iter().sum()
}

fn by_tasks(
    context: &Context,
    peer: &[u8],
    threads: usize,
    length: Duration,
) -> Result<u64, Error> {
    let worker = context.worker()?;
    let there = worker.connect(peer)?;
    // If the endpoint refuses a message posted by a task, the worker's own thread sends the message afterwards.
    let late = Rc::new(Cell::new(0u64));
    let remote = worker.remote(256, (there.clone(), late.clone()))?;
    let (until, left) = (Instant::now() + length, AtomicU64::new(threads as u64));
    let failed = AtomicBool::new(false);
    let sends = || {
        let mut count = 0;
        while count % 64 != 0 || Instant::now() < until {
            let mut task = move |_: &Worker, (there, late): &(Endpoint, Rc<Cell<u64>>)| {
                if there.send(MESSAGE, count, b"8 bytes.").is_err() {
                    late.set(late.get() + 1);
                }
            };
            while let Err(not) = remote.run(task) {
                if !matches!(not.error, PostError::Retry(_)) {
                    failed.store(true, Ordering::Relaxed);
                    break;
                }
                task = not.task;
                std::thread::yield_now();
            }
            count += 1;
        }
        let _ = left.fetch_sub(1, Ordering::Release);
        // The worker's thread may be sleeping, and a task wakes it.
        let _ = remote.run(|_, _| ());
        count
    };
    let count = std::thread::scope(|scope| -> Result<u64, Error> {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(sends)).collect();
        loop {
            let done = left.load(Ordering::Acquire) == 0;
            let moved = worker.wait_until(
                || left.load(Ordering::Acquire) == 0,
                Some(Duration::from_micros(100)),
            )?;
            for _ in 0..late.take() {
                send(&worker, &there, MESSAGE, 0)?;
            }
            if done && moved && worker.progress() == 0 {
                break;
            }
        }
        Ok(threads.into_iter().map(|thread| thread.join().expect("a thread")).sum())
    })?;
    assert!(!failed.load(Ordering::Relaxed), "the worker was there all the time");
    tell_last(&worker, &there)?;
    Ok(count)
}
