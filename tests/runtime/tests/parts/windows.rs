//! Tests of windows: puts, gets, atomics and locks.

use super::bytes;
use tieline::{AtomicOp, Error};
use tieline_runtime::Runtime;

/// The number of bytes of a window that each rank may write.
const PART: usize = 40_000;

/// Returns one of a rank's eight bits in a word; eight ranks share a word.
fn bit(rank: usize, n: usize) -> u64 {
    1 << ((rank * 8 + n) % 64)
}

pub(crate) fn put_and_get(runtime: &Runtime) -> Result<(), Error> {
    let (rank, size) = (runtime.rank(), runtime.size());
    let words = size * PART; // behind the parts: sums, and the words for `and`
    let window = runtime.window(words + 16 * 8)?;
    window.write(words + 64, &[0xff; 64])?;
    window.fence()?;
    for round in 0..4u64 {
        for to in 0..size {
            // The puts have many lengths, and the last one ends at the end of the part.
            let data = bytes(rank, to, round, PART);
            let (mut at, mut len) = (0, 1 + round as usize);
            while at < PART {
                let end = (at + len).min(PART);
                window.put(to, rank * PART + at, &data[at..end])?;
                (at, len) = (end, len * 2);
            }
            let sums: Vec<u64> = (0..8).map(|n| rank as u64 + n).collect();
            window.accumulate(to, words, AtomicOp::Add, &sums)?;
            let masks: Vec<u64> = (0..8).map(|n| !bit(rank, n)).collect();
            window.accumulate(to, words + 64, AtomicOp::And, &masks)?;
        }
        window.fence()?;
        for owner in [rank, (rank + 1) % size, (rank + size / 2) % size] {
            let there = window.get(owner, 0..words + 128)?;
            assert!(owner != rank || there == window.read(0..words + 128)?);
            for from in 0..size {
                let part = &there[from * PART..(from + 1) * PART];
                assert!(
                    part == bytes(from, owner, round, PART),
                    "round {round}: {from} to {owner}"
                );
            }
            let word = |n: usize| {
                let bytes = &there[words + 8 * n..words + 8 * n + 8];
                bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
            };
            for n in 0..8 {
                let sum: u64 = (0..size).map(|rank| (rank + n) as u64).sum();
                assert_eq!(word(n), sum * (round + 1), "round {round}: word {n} of {owner}");
                let left = (0..size).fold(u64::MAX, |left, rank| left & !bit(rank, n));
                assert_eq!(word(8 + n), left);
            }
        }
        window.fence()?; // the next round starts after all ranks have checked
    }
    // An access beyond the end of the window is an error, and changes nothing.
    assert!(window.put(rank, words + 128, b"x").is_err() || window.flush(rank).is_err());
    assert!(window.get((rank + 1) % size, words..words + 129).is_err());
    window.close()
}

pub(crate) fn locks(runtime: &Runtime) -> Result<(), Error> {
    const TURNS: u64 = 50;
    let (rank, size) = (runtime.rank(), runtime.size());
    let window = runtime.window(64)?;
    window.fence()?;
    for turn in 0..TURNS {
        // The increment is neither atomic nor contiguous: only the lock prevents lost updates between two ranks.
        let owner = (turn as usize) % size;
        window.lock(owner)?;
        let there = window.get(owner, 0..64)?;
        let count = there[0];
        assert!(there.iter().all(|byte| *byte == count), "{there:?} on rank {rank}");
        for at in (0..64).step_by(16) {
            window.put(owner, at, &[count.wrapping_add(1); 16])?;
        }
        window.unlock(owner)?;
    }
    window.fence()?;
    let turns = (0..TURNS).filter(|turn| *turn as usize % size == rank).count();
    assert_eq!(window.read(0..64)?, [(turns * size) as u8; 64]);
    assert!(window.unlock(rank).is_err(), "nobody has locked it");
    window.close()
}
