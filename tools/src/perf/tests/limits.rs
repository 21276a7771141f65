//! Tests of the machine's limits, with which the other tests are compared.

use crate::perf::args::Limit;
use crate::perf::stats::{Samples, measure};
use crate::{sys, system_error};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use tieline::Error;

pub(crate) fn memcpy(size: usize, limit: Limit) -> Result<Samples, Error> {
    let source = vec![0x5a_u8; size];
    let mut target = vec![0_u8; size];
    let copy = |_| {
        target.copy_from_slice(std::hint::black_box(&source));
        let _ = std::hint::black_box(&mut target);
        Ok(())
    };
    measure(limit, copy, |_| Ok(()))
}

#[repr(align(128))]
struct Line(AtomicU64);

/// Measures two threads that pass one cache line to each other: one thread writes the even numbers, the other the odd numbers.
pub(crate) fn crossing(cpus: &[usize], limit: Limit) -> Result<Samples, Error> {
    const STOP: u64 = u64::MAX;
    let line = Line(AtomicU64::new(0));
    let other = cpus.get(1).copied();
    thread::scope(|scope| {
        let answering = scope.spawn(|| {
            let pinned = other.map_or(Ok(()), sys::pin);
            loop {
                match line.0.load(Ordering::Acquire) {
                    STOP => return pinned,
                    n if n % 2 == 1 => line.0.store(n + 1, Ordering::Release),
                    _ => spin_loop(),
                }
            }
        });
        let bounce = |_| {
            let next = line.0.load(Ordering::Relaxed) + 2;
            line.0.store(next - 1, Ordering::Release);
            while line.0.load(Ordering::Acquire) != next {
                spin_loop();
            }
            Ok(())
        };
        let samples = measure(limit, bounce, |_| Ok(()));
        line.0.store(STOP, Ordering::Release);
        match answering.join() {
            Ok(Err(e)) => Err(system_error("cannot pin a thread", &e, "check --cpus")),
            _ => samples,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_limits_are_measured() {
        let copied = memcpy(4096, Limit::Iterations(100)).unwrap().summary(4096, 1);
        assert_eq!(copied.iterations, 100);
        let crossed = crossing(&[], Limit::Iterations(10)).unwrap().summary(8, 2);
        assert_eq!(crossed.iterations, 10);
        assert!(crossed.p50_ns > 0.0);
    }
}
