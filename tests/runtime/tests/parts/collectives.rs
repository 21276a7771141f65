//! Tests of collectives, whose results every rank can compute by itself.

use super::{Numbers, bytes};
use tieline::Error;
use tieline_runtime::Runtime;

const ROUNDS: u64 = 20;

pub(crate) fn all(runtime: &Runtime) -> Result<(), Error> {
    let (rank, size) = (runtime.rank(), runtime.size());
    for round in 0..ROUNDS {
        // The message of the application must not match a receive of a collective. A message of a collective must not match a
        // receive of the application.
        let message = runtime.send((rank + 1) % size, round, &bytes(rank, 0, round, 50))?;
        let any = runtime.receive(None, 0, u64::MAX)?;

        let words = |rank: usize, count: u64| -> Vec<u64> {
            let mut numbers = Numbers::of(round * 100 + rank as u64);
            (0..count).map(|_| numbers.next()).collect()
        };
        let count = [0, 1, 3, 1000, 20_000][round as usize % 5];
        let ops: [fn(u64, u64) -> u64; 3] = [u64::wrapping_add, u64::max, |a, b| a ^ b];
        for op in ops {
            let mut mine = words(rank, count);
            runtime.allreduce(&mut mine, op)?;
            let all =
                (1..size).map(|rank| words(rank, count)).fold(words(0, count), |sum, next| {
                    sum.into_iter().zip(next).map(|(a, b)| op(a, b)).collect()
                });
            assert!(mine == all, "round {round}: {count} words on rank {rank}");
        }

        // The parts have different lengths: some are empty, and some are long enough for a rendezvous.
        let len = |from: usize, to: usize| (from * 7 + to * 13) * (round as usize % 4) * 100;
        let parts: Vec<_> = (0..size).map(|to| bytes(rank, to, round, len(rank, to))).collect();
        let got = runtime.alltoall(&parts)?;
        for (from, got) in got.iter().enumerate() {
            assert!(
                *got == bytes(from, rank, round, len(from, rank)),
                "round {round}, from {from}"
            );
        }
        let names = runtime.allgather(format!("rank {rank}").as_bytes())?;
        assert!(
            names.iter().zip(0..).all(|(name, rank)| *name == format!("rank {rank}").as_bytes())
        );

        let before = (rank + size - 1) % size;
        let received = runtime.wait(any)?;
        assert_eq!((received.source, received.tag), (before, round));
        assert_eq!(received.bytes, bytes(before, 0, round, 50));
        runtime.wait_sent(message)?;
        runtime.barrier()?;
    }
    Ok(())
}
