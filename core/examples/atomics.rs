//! Every operation of the atomics, by all ranks concurrently on the same words of rank 0: no update is lost.
//!
//! `tieline run -n 4 -- target/release/examples/atomics`
//!
//! With `TIELINE_ATOMICS=device` a network adapter executes them, if one supports atomics.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tieline::{AtomicOp, Context, Error, Job, Outcome, Status, Width};

const ROUNDS: u64 = 20;

/// The offsets of the words in rank 0's memory; the two halves of `SUMS` are words of 32 bits.
const SUM: u64 = 0;
const BITS: u64 = 8;
const KEPT: u64 = 16;
const PARITY: u64 = 24;
const LEAST: u64 = 32;
const MOST: u64 = 40;
const TOKEN: u64 = 48;
const TICKETS: u64 = 56;
const SUMS: u64 = 64;

fn main() -> Result<(), Error> {
    let job = Job::from_env()?;
    let context = Context::open()?;
    let worker = context.worker()?;
    let memory = context.alloc(72)?;
    let (rank, ranks) = (job.rank() as u64, job.size() as u64);
    if rank == 0 {
        memory.atomic_u64(KEPT as usize)?.store(u64::MAX, SeqCst);
        memory.atomic_u64(LEAST as usize)?.store(u64::MAX, SeqCst);
    }
    let addresses = job.exchange(&worker.address()?)?;
    let keys = job.exchange(&memory.remote_key()?)?;
    let home = worker.connect(&addresses[0])?;
    let words = home.import_key(&keys[0])?;
    let finish = |outcome: Outcome| worker.finish(outcome);

    let mut token = rank + 1; // swapped in and out: no token is lost or duplicated
    let bit = 1 << (rank % 64);
    for round in 0..ROUNDS {
        let number = round * ranks + rank;
        let post = |op, at, n| -> Result<u64, Error> {
            Ok(finish(home.atomic(op, Width::Bits64, &words, at, n)?)?)
        };
        let _ = post(AtomicOp::Add, SUM, number)?;
        let _ = post(AtomicOp::Or, BITS, bit)?;
        let _ = post(AtomicOp::And, KEPT, !bit)?;
        let _ = post(AtomicOp::Xor, PARITY, bit)?;
        let _ = post(AtomicOp::Min, LEAST, number + 5)?;
        let _ = post(AtomicOp::Max, MOST, number)?;
        token = finish(home.fetch(AtomicOp::Swap, Width::Bits64, &words, TOKEN, token)?)?;
        for half in [SUMS, SUMS + 4] {
            let before = home.fetch(AtomicOp::Add, Width::Bits32, &words, half, 3)?;
            check("a 32-bit sum", finish(before)? % 3, 0)?;
        }
        let mut seen = 0;
        loop {
            let ticket = home.compare_swap(Width::Bits64, &words, TICKETS, seen, seen + 1)?;
            match finish(ticket)? {
                before if before == seen => break,
                before => seen = before,
            }
        }
    }
    // Rank 0 answers the requests of the other ranks meanwhile.
    job.barrier_while(|| worker.wait(Some(Duration::from_millis(1))).map(drop))?;
    let tokens = job.exchange(&token.to_le_bytes())?;
    if rank == 0 {
        let word = |at: u64| Ok::<u64, Error>(memory.atomic_u64(at as usize)?.load(SeqCst));
        let all = ROUNDS * ranks;
        let bits = (0..ranks).fold(0, |bits, rank| bits | 1 << (rank % 64));
        check("the sum", word(SUM)?, all * (all - 1) / 2)?;
        check("the bits", word(BITS)?, bits)?;
        check("the bits kept", word(KEPT)?, !bits)?;
        check("the parity", word(PARITY)?, 0)?;
        check("the least", word(LEAST)?, 5)?;
        check("the most", word(MOST)?, all - 1)?;
        check("the tickets", word(TICKETS)?, all)?;
        check("the lower sum", u64::from(memory.atomic_u32(SUMS as usize)?.load(SeqCst)), 3 * all)?;
        let upper = memory.atomic_u32(SUMS as usize + 4)?.load(SeqCst);
        check("the upper sum", u64::from(upper), 3 * all)?;
        let number = |token: &Vec<u8>| Some(u64::from_le_bytes(token[..].try_into().ok()?));
        let held: u64 = tokens.iter().filter_map(number).sum();
        check("the tokens", held + word(TOKEN)?, ranks * (ranks + 1) / 2)?;
        println!("{} atomics by {ranks} ranks, none lost; by {}", 10 * all, words.path());
    }
    job.barrier()
}

fn check(what: &str, is: u64, expected: u64) -> Result<(), Error> {
    if is == expected {
        return Ok(());
    }
    Err(Error::new(Status::BadData, format!("{what} is {is}"), format!("expected {expected}"), ""))
}
