//! A one-dimensional stencil: every rank puts its border cells directly into its neighbours' memory.
//!
//! `tieline run -n 4 -- target/release/examples/halo [STEPS]`

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tieline::{Context, Endpoint, Error, Job, PostError, Region, RemoteKey, Status, Worker};

const CELLS: usize = 1000;

/// The layout of a rank's memory, as indices of 8-byte words: the cells, two ghosts per side, and two counters of received borders.
/// Even and odd steps use different ghosts, because a neighbour is at most one step ahead.
const LEFT_GHOST: usize = CELLS;
const RIGHT_GHOST: usize = CELLS + 2;
const FROM_LEFT: usize = CELLS + 4;
const FROM_RIGHT: usize = CELLS + 5;
const WORDS: usize = CELLS + 6;

fn word(memory: &Region, index: usize) -> Result<&AtomicU64, Error> {
    memory.atomic_u64(index * 8)
}

/// A neighbour: the location of its ghost cell for this rank, and the counter that announces a new border.
struct Neighbour {
    endpoint: Endpoint,
    key: RemoteKey,
    ghost: usize,
    counter: usize,
}

impl Neighbour {
    /// Puts a border cell, then increments the neighbour's counter. A fence keeps this order.
    fn send(&self, worker: &Worker, step: usize, value: u64) -> Result<(), Error> {
        let (ghost, counter) = ((self.ghost + step % 2) as u64 * 8, self.counter as u64 * 8);
        let value = value.to_le_bytes();
        let _ = accepted(worker, || self.endpoint.put_bytes(&value, &self.key, ghost))?;
        accepted(worker, || self.endpoint.fence())?;
        let _ = accepted(worker, || self.endpoint.fetch_add(&self.key, counter, 1))?;
        Ok(())
    }
}

/// Posts an operation, and repeats it after progress while the post returns `Retry`, which means that nothing was posted.
fn accepted<T>(
    worker: &Worker,
    mut post: impl FnMut() -> Result<T, PostError>,
) -> Result<T, Error> {
    let mut posted = Err(Status::Again.into());
    let is_taken = || {
        posted = post();
        !matches!(posted, Err(PostError::Retry(_)))
    };
    let _ = worker.wait_until(is_taken, None)?;
    Ok(posted?)
}

pub(crate) fn main() -> Result<(), Error> {
    let steps = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(50);
    let job = Job::from_env()?;
    // If put is emulated, the progress thread answers for a rank that computes or waits in a barrier.
    let context = Context::builder().progress_thread(true).open()?;
    let worker = context.worker()?;
    let memory = context.alloc(WORDS * 8)?;
    let (rank, size) = (job.rank(), job.size());
    for cell in 0..CELLS {
        word(&memory, cell)?.store((rank * CELLS + cell) as u64, Ordering::Relaxed);
    }
    let addresses = job.exchange(&worker.address()?)?;
    let keys = job.exchange(&memory.remote_key()?)?;
    let neighbour = |rank: usize, ghost, counter| -> Result<Neighbour, Error> {
        let endpoint = worker.connect(&addresses[rank])?;
        let key = endpoint.import_key(&keys[rank])?;
        Ok(Neighbour { endpoint, key, ghost, counter })
    };
    let left = neighbour((rank + size - 1) % size, RIGHT_GHOST, FROM_RIGHT)?;
    let right = neighbour((rank + 1) % size, LEFT_GHOST, FROM_LEFT)?;

    let start = Instant::now();
    for step in 1..=steps {
        left.send(&worker, step, word(&memory, 0)?.load(Ordering::Relaxed))?;
        right.send(&worker, step, word(&memory, CELLS - 1)?.load(Ordering::Relaxed))?;
        for counter in [FROM_LEFT, FROM_RIGHT] {
            let count = word(&memory, counter)?;
            let _ = worker.wait_until(|| count.load(Ordering::Acquire) >= step as u64, None)?;
        }
        // The stencil: every cell takes its left neighbour's value, so the whole line rotates by one.
        let mut carried = word(&memory, LEFT_GHOST + step % 2)?.load(Ordering::Relaxed);
        for cell in 0..CELLS {
            carried = word(&memory, cell)?.swap(carried, Ordering::Relaxed);
        }
    }
    worker.flush()?;
    let took = start.elapsed();
    let turned = steps % (size * CELLS);
    let expected = ((rank * CELLS + size * CELLS - turned) % (size * CELLS)) as u64;
    let found = word(&memory, 0)?.load(Ordering::Relaxed);
    if found != expected {
        let why = format!("cell 0 of rank {rank} holds {found}, expected {expected}");
        return Err(Error::new(Status::BadData, "the halo exchange went wrong", why, ""));
    }
    println!(
        "rank {rank} puts to the left by {}, to the right by {}",
        left.key.path(),
        right.key.path()
    );
    if rank == 0 {
        let each = took / steps.max(1) as u32;
        println!("{steps} steps on {size} ranks verified, {each:?} each");
    }
    job.barrier()
}
