//! Measurements: batches of one operation, and their statistics.

use super::args::Limit;
use std::ops::Range;
use std::time::{Duration, Instant};
use tieline::Error;

/// The duration of a batch at which reading the clock (some 30 ns) takes less than one percent.
const BATCH: Duration = Duration::from_micros(5);
/// The limits of the warm-up: about this number of operations or this time, whichever ends first.
const WARM_UP: (u64, Duration) = (10_000, Duration::from_millis(50));
/// The maximum number of samples; above it, every second sample is dropped.
const SAMPLES: usize = 1 << 18;

/// The samples: nanoseconds per operation of each batch.
#[derive(Debug)]
pub(crate) struct Samples {
    batches: Vec<f64>,
    operations: u64,
    elapsed: Duration,
}

/// Runs `one` until the limit, and `close` once at the end, whose time counts in the total. The argument of `one` is the number of
/// the operation, counted from 0 through warm-up and measurement.
pub(crate) fn measure(
    limit: Limit,
    mut one: impl FnMut(u64) -> Result<(), Error>,
    close: impl FnOnce(u64) -> Result<(), Error>,
) -> Result<Samples, Error> {
    let started = Instant::now();
    let mut number = 0;
    let warm_up = match limit {
        Limit::Iterations(n) => WARM_UP.0.min(n.div_ceil(10)),
        Limit::Time(_) => WARM_UP.0,
    };
    while number < warm_up && started.elapsed() < WARM_UP.1 {
        let until = warm_up.min(number + 16);
        repeat(number..until, &mut one)?;
        number = until;
    }
    let each = started.elapsed().as_nanos() as u64 / number.max(1);
    let mut batch = (BATCH.as_nanos() as u64 / each.max(1)).clamp(1, 4096);
    if let Limit::Iterations(n) = limit {
        batch = batch.min(n.div_ceil(10));
    }

    let first = number;
    let mut batches = Vec::with_capacity(SAMPLES);
    let (mut every, mut skipped) = (1, 0);
    let begin = Instant::now();
    let mut before = begin;
    loop {
        let count = match limit {
            Limit::Iterations(n) => batch.min(n - (number - first)),
            Limit::Time(time) if before - begin >= time => 0,
            Limit::Time(_) => batch,
        };
        if count == 0 {
            break;
        }
        repeat(number..number + count, &mut one)?;
        number += count;
        let now = Instant::now();
        skipped += 1;
        if skipped == every {
            skipped = 0;
            if batches.len() == SAMPLES {
                let mut index = 0;
                batches.retain(|_| {
                    index += 1;
                    index % 2 == 0
                });
                every *= 2;
            }
            batches.push((now - before).as_nanos() as u64 as f64 / count as f64);
        }
        before = now;
    }
    close(number)?;
    Ok(Samples { batches, operations: number - first, elapsed: begin.elapsed() })
}

/// Runs `one` for each number. This is the only call of `one`, so the compiler can make one loop of both.
#[inline(never)]
fn repeat(
    numbers: Range<u64>,
    one: &mut impl FnMut(u64) -> Result<(), Error>,
) -> Result<(), Error> {
    for number in numbers {
        one(number)?;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) iterations: u64,
    pub(crate) p50_ns: f64,
    pub(crate) p99_ns: f64,
    pub(crate) mean_ns: f64,
    pub(crate) bytes_per_second: f64,
    pub(crate) messages_per_second: f64,
}

impl Samples {
    /// Computes the statistics. `legs` is 2 for a ping and its pong: the times are then halved, and both messages are counted.
    pub(crate) fn summary(mut self, size: usize, legs: u32) -> Summary {
        self.batches.sort_by(f64::total_cmp);
        let legs = f64::from(legs);
        let operations = self.operations as f64 * legs;
        let seconds = self.elapsed.as_secs_f64().max(1e-9);
        Summary {
            iterations: self.operations,
            p50_ns: percentile(&self.batches, 0.50) / legs,
            p99_ns: percentile(&self.batches, 0.99) / legs,
            mean_ns: seconds * 1e9 / operations.max(1.0),
            bytes_per_second: operations * size as f64 / seconds,
            messages_per_second: operations / seconds,
        }
    }
}

/// Returns the value that this share of the samples does not exceed (nearest rank).
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).or(sorted.last()).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_nearest_rank() {
        let sorted: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&sorted, 0.50), 50.0);
        assert_eq!(percentile(&sorted, 0.99), 99.0);
        assert_eq!(percentile(&[7.0], 0.99), 7.0);
        assert_eq!(percentile(&[], 0.5), 0.0);
    }

    #[test]
    fn every_operation_is_counted_once_and_numbered_in_order() {
        let (mut next, mut closed) = (0, 0);
        let one = |number| {
            assert_eq!(number, next);
            next += 1;
            Ok(())
        };
        let samples = measure(Limit::Iterations(12_345), one, |number| {
            closed = number;
            Ok(())
        });
        let samples = samples.unwrap();
        assert_eq!(samples.operations, 12_345);
        assert_eq!(closed, next);
        assert_eq!(samples.summary(8, 1).iterations, 12_345);
    }

    #[test]
    fn a_round_trip_counts_both_messages_and_half_the_time() {
        let samples = || Samples {
            batches: vec![100.0, 200.0, 300.0],
            operations: 10,
            elapsed: Duration::from_nanos(2000),
        };
        let (one, two) = (samples().summary(8, 1), samples().summary(8, 2));
        assert_eq!((one.p50_ns, two.p50_ns), (200.0, 100.0));
        assert_eq!((one.mean_ns, two.mean_ns), (200.0, 100.0));
        assert_eq!(two.messages_per_second, 2.0 * one.messages_per_second);
    }

    #[test]
    fn an_error_ends_the_measurement() {
        let error = Error::from_status(tieline::Status::PeerFailed);
        let fails = |number| if number < 5 { Ok(()) } else { Err(error.clone()) };
        assert!(measure(Limit::Iterations(100), fails, |_| Ok(())).is_err());
    }
}
