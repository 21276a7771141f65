//! Checks of remote atomics.

use super::rma::{Bench, bench};
use crate::case::{ALL_RIGHTS, Case, Desk};
use crate::endpoint::Key;
use crate::random::Random;
use crate::report::{Checked, Stop, equal, refused, succeeds};
use crate::watch::share;
use core::cell::RefCell;
use std::time::Instant;
use tieline_plugin_api::abi::Atomic;
use tieline_plugin_api::{Status, access, atomic_op, caps, op_flags};

fn oracle(op: u32, width: u32, old: u64, operand: u64, compare: u64) -> u64 {
    let mask = if width == 4 { u64::from(u32::MAX) } else { u64::MAX };
    let (operand, compare) = (operand & mask, compare & mask);
    mask & match op {
        atomic_op::ADD => old.wrapping_add(operand),
        atomic_op::AND => old & operand,
        atomic_op::OR => old | operand,
        atomic_op::XOR => old ^ operand,
        atomic_op::SWAP => operand,
        atomic_op::COMPARE_SWAP if old == compare => operand,
        atomic_op::MIN => old.min(operand),
        atomic_op::MAX => old.max(operand),
        _ => old,
    }
}

pub(super) fn operation(
    op: u32,
    width: u32,
    offset: u64,
    operand: u64,
    compare: u64,
    fetch: bool,
) -> Atomic {
    Atomic {
        op,
        width,
        key: core::ptr::null_mut(),
        offset,
        operand,
        compare,
        result: core::ptr::null_mut(),
        cookie: 0xa70,
        flags: op_flags::REMOTE_COMPLETION | if fetch { op_flags::FETCH } else { 0 },
    }
}

/// Runs an operation from post to completion. Returns the previous value, if the operation fetches.
pub(crate) fn run(desk: &mut Desk, key: &Key, op: Atomic) -> Result<Result<u64, Status>, Stop> {
    const UNTOUCHED: u64 = 0x5eed_5eed_0bad_0bad;
    // The result stays at its address as long as the provider may write to it.
    let (endpoint, result) = (desk.endpoint(), Box::new(RefCell::new(UNTOUCHED)));
    let code = desk.retry(|| endpoint.atomic(key, op, &result))?;
    desk.synchronous(code, "atomic")?;
    let at_once = code == Ok(0);
    let end = desk.complete(code, op.cookie)?;
    if code == Ok(1) {
        let what = "the inline result of an atomic that was PENDING";
        equal(what, UNTOUCHED, *result.borrow())?;
    }
    Ok(end.map(|value| if at_once { *result.borrow() } else { value }))
}

/// Returns the claimed operations: `(op, width, fetching)`.
fn claimed(case: &Case) -> Vec<(u32, u32, bool)> {
    let masks = [
        (case.attr.atomic_post32, 4, false),
        (case.attr.atomic_post64, 8, false),
        (case.attr.atomic_fetch32, 4, true),
        (case.attr.atomic_fetch64, 8, true),
    ];
    let ops = |(mask, width, fetch)| {
        (0..8).filter(move |op| mask & (1 << op) != 0).map(move |op| (op, width, fetch))
    };
    masks.into_iter().flat_map(ops).collect()
}

pub(super) fn every_claimed_atomic_does_what_its_name_says(case: &Case) -> Checked {
    let mut bench = bench(case, ALL_RIGHTS)?;
    let mut random = Random(9);
    for (op, width, fetch) in claimed(case) {
        for n in 0..40u64 {
            let edge = [0, 1, u64::MAX, 1 << 31, 1 << 63, u64::from(u32::MAX)];
            let mut pick = || if n % 2 == 0 { edge[random.below(6)] } else { random.next() };
            let (old, operand, mut compare) = (pick(), pick(), pick());
            if n % 3 == 0 {
                compare = old;
            }
            let offset = 64 + (n as usize % 5) * width as usize;
            let width_bytes = width as usize;
            bench.target.write(48, &[0xee; 80]);
            bench.target.write(offset, &old.to_ne_bytes()[..width_bytes]);
            let old = if width == 4 { old & u64::from(u32::MAX) } else { old };
            let what =
                format!("atomic {op} of {width} bytes on {old:#x} with {operand:#x}, {compare:#x}");
            let Bench { desk, key, .. } = &mut bench;
            let end = run(desk, key, operation(op, width, offset as u64, operand, compare, fetch))?;
            let before = succeeds(&what, end)?;
            if fetch {
                equal(format!("{what}: the value from before"), old, before)?;
            }
            let mut expected = [0xee; 80];
            let new = oracle(op, width, old, operand, compare);
            expected[offset - 48..][..width_bytes]
                .copy_from_slice(&new.to_ne_bytes()[..width_bytes]);
            crate::report::same_bytes(&what, &expected, &bench.target.read(48..128))?;
        }
    }
    Ok(())
}

pub(super) fn misaligned_and_out_of_range_atomics_are_refused(case: &Case) -> Checked {
    let mut bench = bench(case, ALL_RIGHTS)?;
    let end = bench.target.len() as u64;
    let Some(&(op, width, fetch)) = claimed(case).last() else {
        return Err(Stop::Skip("claims no atomic".to_string()));
    };
    let Bench { desk, key, .. } = &mut bench;
    for offset in [1, 2, u64::from(width) - 1, u64::from(width) + 1] {
        let done = run(desk, key, operation(op, width, offset, 1, 0, fetch))?;
        refused(format!("an atomic at offset {offset}"), done, &[Status::Misaligned])?;
    }
    for offset in [end, end + 64, u64::MAX - 7] {
        let done = run(desk, key, operation(op, width, offset, 1, 0, fetch))?;
        refused(format!("an atomic at {offset:#x}"), done, &[Status::OutOfRange, Status::Invalid])?;
    }
    let done = run(desk, key, operation(op, 3, 0, 1, 0, fetch))?;
    refused(
        "an atomic of 3 bytes",
        done,
        &[Status::Invalid, Status::Unsupported, Status::Misaligned],
    )?;
    let done = run(desk, key, operation(99, width, 0, 1, 0, fetch))?;
    refused("an atomic that does not exist", done, &[Status::Invalid, Status::Unsupported])?;
    crate::report::same_bytes("the target", &vec![0xee; end as usize], &bench.target.all())
}

pub(super) fn an_atomic_without_the_right_or_after_deregister_is_rejected(case: &Case) -> Checked {
    let Some(&(op, width, fetch)) = claimed(case).last() else {
        return Err(Stop::Skip("claims no atomic".to_string()));
    };
    let mut weak = bench(case, access::REMOTE_READ | access::REMOTE_WRITE)?;
    let done = run(&mut weak.desk, &weak.key, operation(op, width, 0, 1, 0, fetch))?;
    refused("an atomic without the right to", done, &[Status::KeyRejected, Status::Permission])?;
    let mut bench = bench(case, ALL_RIGHTS)?;
    succeeds("deregister", bench.desk.revoke(&mut bench.target)?)?;
    let done = run(&mut bench.desk, &bench.key, operation(op, width, 0, 1, 0, fetch))?;
    refused("an atomic with a revoked key", done, &[Status::KeyRejected])
}

pub(super) fn fetching(case: &Case) -> Option<(u32, u32)> {
    let add = |(op, _, fetch): &(u32, u32, bool)| *op == atomic_op::ADD && *fetch;
    claimed(case).into_iter().find(add).map(|(op, width, _)| (op, width))
}

pub(super) fn add_width(case: &Case) -> Result<usize, Stop> {
    Ok(add(case)?.1 as usize)
}

pub(super) fn add(case: &Case) -> Result<(u32, u32, bool), Stop> {
    let add = claimed(case).into_iter().find(|(op, ..)| *op == atomic_op::ADD);
    add.ok_or_else(|| Stop::Skip("claims no atomic add".to_string()))
}

/// Adds 1 at offset 8 of the region of the key `packed`, `times` times, and then flushes.
pub(crate) fn count(case: &Case, desk: &mut Desk, packed: &[u8], times: u64) -> Checked {
    let (op, width, fetch) = add(case)?;
    let key = desk.import(packed)?;
    let key = succeeds("import_key", key)?;
    for _ in 0..times {
        let end = run(desk, &key, operation(op, width, 8, 1, 0, fetch))?;
        let _ = succeeds("add", end)?;
    }
    let endpoint = desk.endpoint();
    let code = desk.retry(|| endpoint.flush(1))?;
    equal("flush", Ok(()), desk.complete(code, 1)?.map(|_| ()))
}

/// Counts like [`count`], with operations in flight until there is no room: at least `least`, and up to `most` while there is time.
fn count_at_once(
    case: &Case,
    desk: &mut Desk,
    packed: &[u8],
    (least, most): (u64, u64),
) -> Result<u64, Stop> {
    let end = Instant::now() + share(8);
    let (op, width, fetch) = add(case)?;
    let key = desk.import(packed)?;
    let key = succeeds("import_key", key)?;
    let (endpoint, result) = (desk.endpoint(), RefCell::new(0));
    let (mut posted, mut pending) = (0, 0);
    crate::watch::waits_for("the COMPLETION of one of many adds");
    let mut more = true;
    while more || pending > 0 {
        more = more && posted < most && (posted < least || Instant::now() < end);
        if more {
            match endpoint.atomic(&key, operation(op, width, 8, 1, 0, fetch), &result) {
                Err(Status::Again) => desk.turn()?,
                code => {
                    pending += succeeds("add", code)?;
                    posted += 1;
                }
            }
        }
        if !more || pending >= 100 {
            desk.turn()?;
        }
        for done in desk.boxes[0].completions.drain(..) {
            equal("the status of an add", 0, done.status)?;
            pending -= 1;
        }
    }
    let code = desk.retry(|| endpoint.flush(1))?;
    equal("flush", Ok(()), desk.complete(code, 1)?.map(|_| ()))?;
    Ok(posted)
}

pub(super) fn two_threads_that_count_together_lose_nothing(case: &Case) -> Checked {
    const EACH: (u64, u64) = (5_000, 200_000);
    let width = add_width(case)?;
    let counter = case.memory(64, ALL_RIGHTS)?;
    counter.write(0, &[0; 64]);
    let packed = case.key_of(&counter)?;
    let work = || -> Result<u64, Stop> {
        // Each thread has its own interfaces; the region belongs to the domain.
        count_at_once(case, &mut case.desk()?, &packed, EACH)
    };
    let added = std::thread::scope(|scope| {
        let threads = [scope.spawn(work), scope.spawn(work)];
        threads.into_iter().try_fold(0, |sum, thread| {
            let panicked = |_| Stop::Fail("a counting thread panicked".to_string());
            Ok(sum + thread.join().map_err(panicked)??)
        })
    })?;
    let mut sum = [0; 8];
    sum[..width].copy_from_slice(&counter.read(8..8 + width));
    equal("the sum of two threads", added, u64::from_ne_bytes(sum))
}

pub(super) const ATOMICS: u64 = caps::ATOMICS;
