//! The latency of messages of 8 bytes between two driven workers, beside ordinary workers, in alternating rounds.
//!
//! `tieline run -n 2 -- target/release/examples/driven` (`ROUNDS=9 MESSAGES=2000` set the length)

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tieline::{Context, Error, Job};

const PING: u16 = 1;

/// Who answers at rank 1, and who notices the answer at rank 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Ordinary workers, which wait.
    Ordinary,
    /// Driven workers, whose callers wait.
    Waiting,
    /// Driven workers, where only the progress threads make progress.
    Thread,
}

fn main() -> Result<(), Error> {
    let (rounds, messages) = (setting("ROUNDS", 9), setting("MESSAGES", 2000));
    let job = Job::from_env()?;
    let context = Context::open()?;
    let (ordinary, driven) = (context.worker()?, context.driven_worker()?);
    let addresses = [job.exchange(&ordinary.address()?)?, job.exchange(&driven.address()?)?];
    let peer = (job.rank() + 1) % job.size();
    let is_first = job.rank() == 0;

    let (plain, shared) = (Rc::new(Cell::new(0u64)), Arc::new(AtomicU64::new(0)));
    let to = Rc::new(ordinary.connect(&addresses[0][peer])?);
    let (count, back) = (plain.clone(), to.clone());
    ordinary.on_message(PING, move |message| {
        count.set(count.get() + 1);
        if !is_first {
            let _ = back.send(PING, message.header(), message.payload());
        }
    })?;
    let by_thread = driven.connect(&addresses[1][peer])?;
    let (count, back) = (shared.clone(), by_thread.clone());
    driven.on_message(PING, move |message| {
        if !is_first {
            let _ = back.send(PING, message.header(), message.payload());
        }
        let _ = count.fetch_add(1, Ordering::Release);
    })?;

    let mut took = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (at, way) in [Way::Ordinary, Way::Waiting, Way::Thread].into_iter().enumerate() {
            plain.set(0);
            shared.store(0, Ordering::Relaxed);
            job.barrier()?;
            let begun = Instant::now();
            for number in 1..=messages {
                match (way, is_first) {
                    (Way::Ordinary, true) => drop(to.send(PING, number, b"8 bytes.")?),
                    (_, true) => drop(by_thread.send(PING, number, b"8 bytes.")?),
                    (_, false) => {}
                }
                let came = || shared.load(Ordering::Acquire) >= number;
                match way {
                    Way::Ordinary => _ = ordinary.wait_until(|| plain.get() >= number, None)?,
                    Way::Waiting => _ = driven.wait_until(came, None)?,
                    Way::Thread if is_first => {
                        while !came() {
                            std::thread::yield_now();
                        }
                    }
                    Way::Thread => {
                        while shared.load(Ordering::Acquire) < messages {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        break;
                    }
                }
            }
            took[at].push(begun.elapsed().as_secs_f64() / messages as f64 * 1e6);
            job.barrier()?;
        }
    }
    if is_first {
        let median = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        let [ordinary, waiting, thread] = &mut took;
        let base = median(ordinary);
        println!("ordinary workers: {base:.2} us there and back");
        for (name, times) in [("callers wait", waiting), ("only the threads", thread)] {
            let time = median(times);
            println!("driven workers, {name}: {time:.2} us, {:.2} times as long", time / base);
        }
    }
    Ok(())
}

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(usual)
}
