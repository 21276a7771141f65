//! Checks of optional features of a module beyond messages, puts and gets: cancel, flush of an interface, operations without event,
//! declining, limits.

use super::rma::{Bench, TARGET, bench, most};
use crate::case::{ALL_RIGHTS, Case, Desk};
use crate::endpoint::{Endpoint, Target};
use crate::random::Random;
use crate::report::{Checked, Stop, equal, fail, holds, same_bytes, succeeds};
use crate::watch::{Patience, waits_for};
use core::ops::Range;
use tieline_plugin_api::abi::EndpointLimits;
use tieline_plugin_api::{Status, caps, op_flags};

/// The number of operations of a series; each has a range of its own.
const COUNT: usize = 60;
const STRIDE: usize = TARGET / COUNT / 8 * 8;
const LAST: u64 = 0x1a57;

fn is_put(n: usize) -> bool {
    n % 2 == 0
}

fn range(case: &Case, n: usize) -> Range<usize> {
    n * STRIDE..n * STRIDE + most(case).min(300)
}

fn bytes(case: &Case, n: usize) -> Vec<u8> {
    Random(n as u64 + 1).bytes(range(case, n).len())
}

fn prepared(case: &Case) -> Result<Bench, Stop> {
    let bench = bench(case, ALL_RIGHTS)?;
    bench.local.write(0, &[0xee; TARGET]);
    for n in 0..COUNT {
        let from = if is_put(n) { &bench.local } else { &bench.target };
        from.write(range(case, n).start, &bytes(case, n));
    }
    Ok(bench)
}

fn post(case: &Case, bench: &Bench, n: usize, flags: u64) -> Result<i64, Status> {
    let Bench { desk, key, local, .. } = bench;
    let (at, flags) = (range(case, n), flags | op_flags::REMOTE_COMPLETION);
    let target = Target { key, offset: at.start as u64, cookie: n as u64, flags };
    let endpoint = desk.endpoint();
    at_once(|| endpoint.rma(is_put(n), &[local.piece(at.clone())], target))
}

/// Posts without progress in between, and retries a few times after AGAIN.
pub(super) fn at_once(post: impl Fn() -> Result<i64, Status>) -> Result<i64, Status> {
    let answer = (0..4).map(|_| post()).find(|answer| *answer != Err(Status::Again));
    answer.unwrap_or(Err(Status::Again))
}

fn written(case: &Case, bench: &Bench, n: usize) -> Vec<u8> {
    let to = if is_put(n) { &bench.target } else { &bench.local };
    to.read(range(case, n))
}

fn has_happened(case: &Case, bench: &Bench, n: usize, what: &str) -> Checked {
    same_bytes(what, &bytes(case, n), &written(case, bench, n))
}

fn has_not_happened(case: &Case, bench: &Bench, n: usize, what: &str) -> Checked {
    same_bytes(what, &vec![0xee; range(case, n).len()], &written(case, bench, n))
}

pub(super) fn canceled_operations_end_once_and_the_others_continue(case: &Case) -> Checked {
    let mut any = false;
    for round in 0..4 {
        let mut bench = prepared(case)?;
        let endpoint = bench.desk.endpoint();
        let mut pending = Vec::new();
        for n in 0..COUNT {
            match post(case, &bench, n, 0) {
                Ok(1) => pending.push(n),
                Err(Status::Again) => break,
                code => drop(succeeds("a put or get", code)?),
            }
        }
        any |= !pending.is_empty();
        let mut asked = Vec::new();
        for n in pending.iter().copied().filter(|n| n % 3 == round % 3) {
            match endpoint.cancel(n as u64) {
                Ok(0) => asked.push(n),
                Err(Status::Invalid) => {} // the operation has ended, and its completion is not polled yet
                code => {
                    return Err(fail(
                        "cancel",
                        "0, or INVALID of what has ended",
                        format!("{code:?}"),
                    ));
                }
            }
        }
        let unknown = endpoint.cancel(0xdead);
        equal("cancel of an unknown operation", Err(Status::Invalid), unknown)?;
        let patience = Patience::new();
        while !pending.is_empty() {
            for done in core::mem::take(&mut bench.desk.boxes[0].completions) {
                let Some(at) = pending.iter().position(|n| *n as u64 == done.cookie) else {
                    let expected = "the cookie of an operation that is pending, once for each";
                    return Err(fail("COMPLETION", expected, format!("{:#x}", done.cookie)));
                };
                let n = pending.swap_remove(at);
                match done.status {
                    0 => has_happened(case, &bench, n, "an operation beside canceled ones")?,
                    status => {
                        let status = Status::from_code(status);
                        let what = format!("the status of operation {n} of {COUNT}");
                        let expected = if asked.contains(&n) {
                            "0 or CANCELED"
                        } else {
                            "0: it was not canceled"
                        };
                        let fine = asked.contains(&n) && status == Status::Canceled;
                        holds(fine, what, expected, status)?;
                        let what = "what an operation that has ended with CANCELED was to write";
                        has_not_happened(case, &bench, n, what)?;
                    }
                }
            }
            bench.desk.turn()?;
            let found = format!("none of {}", pending.len());
            patience.still(
                "operations some of which were canceled",
                "a COMPLETION of each",
                &found,
            )?;
        }
        for _ in 0..20 {
            bench.desk.turn()?;
        }
        let more = bench.desk.boxes[0].completions.len();
        equal("completions beyond one for each operation", 0, more)?;
        for n in asked {
            let again = endpoint.cancel(n as u64);
            equal("cancel of what has ended", Err(Status::Invalid), again)?;
        }
        let Bench { desk, key, local, .. } = &mut bench;
        let put = desk.rma(true, &[local.piece(0..8)], key, 0)?;
        equal("put behind what was canceled", Ok(()), put)?;
    }
    match any {
        true => Ok(()),
        false => Err(Stop::Skip("every operation was complete when its call returned".to_string())),
    }
}

/// Polls until a flush that returned `code` has ended. For a while only the near end is polled: operations that need the other end
/// cannot have ended before.
fn wait_for_flush(desk: &mut Desk, code: Result<i64, Status>) -> Checked {
    let pends = succeeds("flush", code)? == 1;
    waits_for("the COMPLETION of a flush");
    for polls in 0.. {
        let done = &mut desk.boxes[0].completions;
        if let Some(at) = done.iter().position(|done| done.cookie == LAST) {
            return equal("the status of a flush", 0, done.remove(at).status);
        }
        if !pends {
            break;
        }
        match polls < 100 {
            true => drop(desk.boxes[0].turn()?),
            false => desk.turn()?,
        }
    }
    Ok(())
}

pub(super) fn a_flush_of_the_interface_covers_all_its_endpoints(case: &Case) -> Checked {
    let Bench { mut desk, target, packed, key, local } = prepared(case)?;
    let near = desk.boxes[0].interface.clone();
    let mut endpoints = vec![desk.endpoint()];
    let mut keys = vec![key];
    for _ in 0..2 {
        if let Some(endpoint) = desk.second(case)? {
            keys.push(succeeds(
                "import_key",
                desk.retry(|| endpoint.import(&packed).map_err(|f| f.status))?,
            )?);
            endpoints.push(endpoint);
        }
    }
    let count = endpoints.len();
    let puts: Vec<usize> = (0..COUNT).filter(|n| is_put(*n)).collect();
    // In each round a different endpoint has operations in flight; in the last round all endpoints have.
    for round in 0..=count {
        target.write(0, &[0xee; TARGET]);
        let mut posted = Vec::new();
        for &n in &puts {
            let which = if round < count { round } else { n / 2 % count };
            let (at, key) = (range(case, n), &keys[which]);
            let to = Target { key, offset: at.start as u64, cookie: n as u64, flags: 0 };
            match at_once(|| endpoints[which].rma(true, &[local.piece(at.clone())], to)) {
                Err(Status::Again) => break,
                code => drop(succeeds("put", code)?),
            }
            posted.push(n);
        }
        let code = desk.retry(|| near.flush(LAST))?;
        wait_for_flush(&mut desk, code)?;
        for n in posted {
            let what = "what was put on one of several endpoints before a flush of the interface that has ended";
            same_bytes(what, &bytes(case, n), &target.read(range(case, n)))?;
        }
        desk.boxes[0].completions.clear();
    }
    drop((keys, endpoints));
    match case.connects_to_endpoint() || !case.has(caps::PEER_FAILURE) || desk.boxes.len() < 2 {
        true => Ok(()),
        false => flush_beside_a_failure(case, &mut desk),
    }
}

/// Checks a flush beside a failed endpoint. A failed endpoint does not fail the flush, because its own event reports the failure.
fn flush_beside_a_failure(case: &Case, desk: &mut Desk) -> Checked {
    let (near, gone) = (desk.boxes[0].interface.clone(), case.interface()?);
    let address = case.address_of(&gone)?;
    let failing = succeeds("connect", near.connect(&address, &case.identity(), 0xdead))?;
    drop(gone);
    let patience = Patience::new();
    while !desk.boxes[0].failed.iter().any(|event| event.cookie == 0xdead) {
        desk.turn()?;
        patience.still("an endpoint whose peer has closed", "ENDPOINT_FAILED", "nothing")?;
    }
    let code = desk.retry(|| near.flush(LAST))?;
    wait_for_flush(desk, code)?;
    drop(failing);
    Ok(())
}

pub(super) fn an_operation_without_event_has_ended_with_the_next_one(case: &Case) -> Checked {
    for with_flush in [false, true] {
        let mut bench = prepared(case)?;
        let mut posted = 0;
        while posted < 40 {
            match post(case, &bench, posted, op_flags::NO_EVENT) {
                Err(Status::Again) => break,
                code => drop(succeeds("a put or get with NO_EVENT", code)?),
            }
            posted += 1;
        }
        end_series(case, &mut bench, with_flush)?;
        for n in 0..posted {
            let what = "what a put or get with NO_EVENT was to write, when the next one has ended";
            has_happened(case, &bench, n, what)?;
        }
        for _ in 0..20 {
            bench.desk.turn()?;
        }
        let events = bench.desk.boxes[0].completions.len();
        equal("completions of operations with NO_EVENT that succeeded", 0, events)?;
    }
    if !case.has(caps::CHECKS_KEYS) {
        return Ok(());
    }
    // The event of a failure precedes that of the next completion.
    let mut bench = prepared(case)?;
    let pends = (0..10).step_by(2).map(|n| post(case, &bench, n, op_flags::NO_EVENT));
    let pends: Vec<_> = pends.collect();
    if bench.target.refuse_keys().is_err() {
        return Ok(()); // an access is in progress
    }
    let endpoint = bench.desk.endpoint();
    let code = bench.desk.retry(|| endpoint.flush(LAST))?;
    if code == Ok(1) {
        let _ = bench.desk.complete(code, LAST)?; // the flush may report an earlier failure
    }
    for (n, code) in (0..10).step_by(2).zip(pends) {
        let told = bench.desk.boxes[0]
            .completions
            .iter()
            .any(|done| done.cookie == n as u64 && done.status < 0);
        if code == Ok(1) && !told {
            let what = "a put with NO_EVENT that made no event, when a flush behind it has ended";
            has_happened(case, &bench, n, what)?;
        }
    }
    Ok(())
}

/// Ends the posted operations: by one more operation, or by a flush.
fn end_series(case: &Case, bench: &mut Bench, with_flush: bool) -> Checked {
    let Bench { desk, key, local, .. } = bench;
    let endpoint = desk.endpoint();
    let at = range(case, COUNT - 2);
    let (offset, flags) = (at.start as u64, op_flags::REMOTE_COMPLETION);
    let target = Target { key, offset, cookie: LAST, flags };
    let code = desk.retry(|| match with_flush {
        true => endpoint.flush(LAST),
        false => endpoint.rma(true, &[local.piece(at.clone())], target),
    })?;
    equal("what ends operations with NO_EVENT", Ok(()), desk.complete(code, LAST)?.map(drop))
}

pub(super) fn declined_operations_have_no_effect(case: &Case) -> Checked {
    let Bench { mut desk, target, key, local, .. } = bench(case, ALL_RIGHTS)?;
    let (mut random, mut model, mut declined) = (Random(44), vec![0xee; TARGET], 0);
    for n in 0..200u64 {
        let len = 1 + random.below(most(case));
        let (offset, data) = (random.below(TARGET - len + 1), random.bytes(len));
        local.write(0, &data);
        let (endpoint, put) = (desk.endpoint(), n % 2 == 0);
        let to = Target {
            key: &key,
            offset: offset as u64,
            cookie: n,
            flags: op_flags::REMOTE_COMPLETION,
        };
        let iov = [local.piece(0..len)];
        let code = desk.retry(|| endpoint.rma_once(put, &iov, to))?;
        if code != Err(Status::Declined) {
            let ended = desk.complete(code, n)?.map(drop);
            equal("a put or get that was not declined", Ok(()), ended)?;
            if put {
                model[offset..offset + len].copy_from_slice(&data);
            }
            continue;
        }
        declined += 1;
        for _ in 0..5 {
            desk.turn()?;
        }
        same_bytes("local memory of what was declined", &data, &local.read(0..len))?;
        same_bytes("the target of what was declined", &model, &target.all())?;
    }
    for _ in 0..50 {
        desk.turn()?;
    }
    equal("completions of what was declined", 0, desk.boxes[0].completions.len())?;
    same_bytes("the target of what was declined", &model, &target.all())?;
    match declined {
        0 => Err(Stop::Skip("nothing was declined".to_string())),
        _ => Ok(()),
    }
}

fn limits(desk: &mut Desk, endpoint: &Endpoint, size: usize) -> Result<EndpointLimits, Stop> {
    let (told, behind) = succeeds("limits", desk.retry(|| endpoint.limits(size))?)?;
    holds(!behind, format!("limits into {size} bytes"), "no byte behind them", "some")?;
    Ok(told)
}

/// Checks that the limits of an endpoint stay and respect their record. The checks of lengths test whether limits are kept, because
/// they use the lower of module's and endpoint's limits.
pub(super) fn the_limits_of_an_endpoint_stay_and_respect_their_record(case: &Case) -> Checked {
    if !case.provider.tables.endpoint.has("limits") {
        return Err(Stop::Skip("has no slot limits".to_string()));
    }
    let mut desk = case.desk()?;
    let (endpoint, size) = (desk.endpoint(), size_of::<EndpointLimits>());
    if case.has(caps::AM_SHORT) {
        desk.send(1, 1, b"")?; // the limit is known when the connection is established
        let _ = desk.receive()?;
    }
    if desk.retry(|| endpoint.limits(size))?.is_err_and(|said| said == Status::Unsupported) {
        return Err(Stop::Skip("limits returns UNSUPPORTED".to_string()));
    }
    let first = limits(&mut desk, &endpoint, size)?;
    let packs = case.has(caps::AM_PACKED) && first.max_packed != 0;
    holds(
        first.max_packed >= 64 || !packs,
        "max_packed of an endpoint",
        "64 at least",
        first.max_packed,
    )?;
    for shorter in (8..size).step_by(8) {
        let _ = limits(&mut desk, &endpoint, shorter)?;
    }
    if case.has(caps::AM_SHORT) {
        desk.send(1, 1, b"")?;
        let _ = desk.receive()?;
    }
    equal("limits of an endpoint, asked again", first, limits(&mut desk, &endpoint, size)?)
}
