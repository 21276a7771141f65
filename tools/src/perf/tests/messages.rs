//! The tests am_lat and am_bw.

use crate::perf::args::Limit;
use crate::perf::control::Spec;
use crate::perf::side::{Side, id, pattern};
use crate::perf::stats::{Samples, measure};
use tieline::Error;

/// Measures a ping and its pong: both directions together.
pub(super) fn latency(side: &Side<'_>, spec: &Spec, limit: Limit) -> Result<Samples, Error> {
    let mut payload = vec![0; spec.size];
    let ping = |number: u64| {
        if spec.verify {
            pattern::fill(number, &mut payload);
        }
        side.send(id::PING, number, &payload)?;
        side.wait_until(|| side.seen.turns.get() > number)
    };
    measure(limit, ping, |_| Ok(()))
}

pub(super) fn to_itself(side: &Side<'_>, size: usize, limit: Limit) -> Result<Samples, Error> {
    let payload = vec![0; size];
    side.begin(false);
    let one = |number: u64| {
        side.send(id::PING, number, &payload)?;
        while side.seen.turns.get() <= number {
            side.step()?;
        }
        Ok(())
    };
    measure(limit, one, |_| Ok(()))
}

pub(super) fn serve_latency(side: &Side<'_>, size: usize, verify: bool) -> Result<(), Error> {
    let mut payload = vec![0; size];
    let mut answered = 0;
    while !side.seen.stopped.get() {
        side.wait_until(|| side.seen.stopped.get() || answered < side.seen.turns.get())?;
        while answered < side.seen.turns.get() {
            if verify {
                pattern::fill(answered, &mut payload);
            }
            side.send(id::PONG, answered, &payload)?;
            answered += 1;
        }
    }
    Ok(())
}

/// Measures a stream, until the receiver has acknowledged every byte. Before the measurement, the receiver acknowledges zero bytes,
/// so that its connection back is established.
pub(super) fn bandwidth(side: &Side<'_>, spec: &Spec, limit: Limit) -> Result<Samples, Error> {
    let size = spec.size;
    let mut payload = vec![0; size];
    acknowledged(side, 0)?;
    let send = |number: u64| {
        if spec.verify {
            pattern::fill(number, &mut payload);
        }
        side.send(id::STREAM, number, &payload)
    };
    measure(limit, send, |sent| acknowledged(side, sent * size as u64))
}

/// Waits until the receiver has acknowledged `sent` bytes.
fn acknowledged(side: &Side<'_>, sent: u64) -> Result<(), Error> {
    side.send(id::END, 0, &[])?;
    let said = || side.seen.acknowledged.take();
    let mut arrived = None;
    side.wait_until(|| {
        arrived = arrived.or_else(said);
        arrived.is_some()
    })?;
    match arrived {
        Some(bytes) if bytes == sent => Ok(()),
        other => Err(super::differs(format!(
            "{sent} bytes were sent and {} arrived",
            other.unwrap_or(0)
        ))),
    }
}

pub(super) fn serve_bandwidth(side: &Side<'_>) -> Result<(), Error> {
    while !side.seen.stopped.get() {
        side.wait_until(|| side.seen.stopped.get() || side.seen.ended.get())?;
        if side.seen.ended.take() {
            side.send(id::ACK, side.seen.bytes.get(), &[])?;
        }
    }
    Ok(())
}
