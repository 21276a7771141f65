//! Checks of many operations at a time, and of flushes and fences among them.

use super::atomics;
use super::messages::cut;
use super::rma::{Bench, TARGET, bench};
use crate::case::{ALL_RIGHTS, Case, Desk};
use crate::endpoint::Target;
use crate::random::Random;
use crate::report::{Checked, Stop, equal, fail, holds, same_bytes};
use crate::watch::waits_for;
use core::cell::RefCell;
use core::ops::Range;
use tieline_plugin_api::abi::{Atomic, Iov};
use tieline_plugin_api::{Status, op_flags};

/// A number of operations that exceeds a table of 256.
const COUNT: usize = 300;
const STRIDE: usize = TARGET / COUNT / 8 * 8;
const COOKIES: u64 = 0x7700_0000_0000;
const FLUSH: u64 = 0x00f1_0054;
/// The accepted errors for a range beyond the region.
const OUTSIDE: &[Status] = &[Status::OutOfRange, Status::Invalid, Status::KeyRejected];

/// Operation `n` of a series: every other operation is a get, every seventh exceeds the region.
#[derive(Clone, Copy)]
struct Numbered(usize);

impl Numbered {
    fn is_put(self) -> bool {
        self.0 % 2 == 0
    }

    fn leaves(self) -> bool {
        self.0 % 7 == 3
    }

    fn range(self, case: &Case) -> Range<usize> {
        let limit = if self.is_put() { case.attr.max_put } else { case.attr.max_get };
        let most = if limit == 0 { STRIDE } else { limit.min(STRIDE) };
        self.0 * STRIDE..self.0 * STRIDE + most.min(1 + self.0 % STRIDE)
    }

    fn cookie(self) -> u64 {
        COOKIES + self.0 as u64
    }

    fn bytes(self, case: &Case) -> Vec<u8> {
        Random(self.0 as u64 + 1).bytes(self.range(case).len())
    }

    fn post(self, case: &Case, bench: &Bench) -> Result<i64, Status> {
        let Bench { desk, key, local, .. } = bench;
        let range = self.range(case);
        let count = case.attr.max_iov.clamp(1, 3) as usize;
        let pieces = cut(&mut Random(self.0 as u64 + 9), range.len(), count);
        let piece = |p: Range<usize>| local.piece(range.start + p.start..range.start + p.end);
        let iov: Vec<Iov> = pieces.into_iter().map(piece).collect();
        let beyond = if self.leaves() { TARGET as u64 } else { 0 };
        let remote = if self.0 % 3 == 0 || self.leaves() { op_flags::REMOTE_COMPLETION } else { 0 };
        // Every fourth operation lacks the hint that more follow, so the provider has to send it without a further post.
        let flags = remote | if self.0 % 4 < 3 { op_flags::MORE } else { 0 };
        let offset = range.start as u64 + beyond;
        let target = Target { key, offset, cookie: self.cookie(), flags };
        desk.endpoint().rma(self.is_put(), &iov, target)
    }

    fn has_ended(self, status: Result<(), Status>, case: &Case, bench: &Bench) -> Checked {
        let verb = if self.is_put() { "put" } else { "get" };
        let what = format!("{verb} {} of {COUNT} at once, by its cookie", self.0);
        if self.leaves() {
            return crate::report::refused(format!("{what}: a range outside"), status, OUTSIDE);
        }
        crate::report::succeeds(&what, status)?;
        match self.is_put() {
            true => Ok(()),
            false => self.bytes_are_there(case, bench, "has completed"),
        }
    }

    fn bytes_are_there(self, case: &Case, bench: &Bench, when: &str) -> Checked {
        if self.leaves() {
            return Ok(());
        }
        let (memory, verb) = match self.is_put() {
            true => (&bench.target, "the target of put"),
            false => (&bench.local, "local memory of get"),
        };
        let what = format!("{verb} {} of {COUNT} at once, which {when}", self.0);
        same_bytes(what, &self.bytes(case), &memory.read(self.range(case)))
    }
}

fn prepared(case: &Case) -> Result<Bench, Stop> {
    let bench = bench(case, ALL_RIGHTS)?;
    for n in (0..COUNT).map(Numbered) {
        let (start, bytes) = (n.range(case).start, n.bytes(case));
        match n.is_put() {
            true => bench.local.write(start, &bytes),
            false => bench.target.write(start, &bytes),
        }
    }
    Ok(bench)
}

/// The number of posted operations, and the indices of those that are pending.
struct Series {
    posted: usize,
    pending: Vec<usize>,
    /// The number of operations posted before the flush, as long as the flush has not ended.
    flush: Option<usize>,
}

impl Series {
    fn collect(&mut self, case: &Case, bench: &mut Bench) -> Checked {
        for done in core::mem::take(&mut bench.desk.boxes[0].completions) {
            if done.cookie == FLUSH {
                let Some(before) = self.flush.take() else {
                    return Err(fail("COMPLETION of a flush", "one", "a second one"));
                };
                told(match done.status {
                    0 => Ok(0),
                    status => Err(Status::from_code(status)),
                })?;
                flushed(case, bench, before)?;
                continue;
            }
            let at = self.pending.iter().position(|n| Numbered(*n).cookie() == done.cookie);
            let Some(at) = at else {
                let expected = "the cookie of an operation that is pending, once for each";
                return Err(fail("COMPLETION", expected, format!("{:#x}", done.cookie)));
            };
            let ended = match done.status {
                0 => Ok(()),
                status => Err(Status::from_code(status)),
            };
            Numbered(self.pending.swap_remove(at)).has_ended(ended, case, bench)?;
        }
        Ok(())
    }
}

/// Flushes the endpoint of the desk. The check fails unless the flush succeeds.
pub(super) fn settled(desk: &mut Desk) -> Checked {
    let endpoint = desk.endpoint();
    let code = desk.retry(|| endpoint.flush(FLUSH))?;
    equal("flush", Ok(()), desk.complete(code, FLUSH)?.map(drop))
}

/// Accepts a flush that succeeds, or that reports an error from [`OUTSIDE`], which an earlier operation has reported, too.
fn told(flush: Result<i64, Status>) -> Checked {
    match flush {
        Err(status) if OUTSIDE.contains(&status) => Ok(()),
        other => equal("flush", Ok(0), other),
    }
}

/// Checks the bytes of the operations that were posted before a completed flush.
fn flushed(case: &Case, bench: &Bench, before: usize) -> Checked {
    (0..before).try_for_each(|n| {
        Numbered(n).bytes_are_there(case, bench, "was posted before a flush that has ended")
    })
}

pub(super) fn many_operations_at_once_have_each_its_bytes_cookie_and_end(case: &Case) -> Checked {
    let mut bench = prepared(case)?;
    let mut series = Series { posted: 0, pending: Vec::new(), flush: None };
    while series.posted < COUNT {
        let n = Numbered(series.posted);
        match n.post(case, &bench) {
            Err(Status::Again) => {
                waits_for("room for one of many operations at once");
                bench.desk.turn()?;
                series.collect(case, &mut bench)?;
                continue;
            }
            Ok(1) => series.pending.push(n.0),
            Ok(0) => n.has_ended(Ok(()), case, &bench)?,
            Ok(other) => return Err(fail("what a data call returns", "0, 1 or a status", other)),
            Err(status) => n.has_ended(Err(status), case, &bench)?,
        }
        series.posted += 1;
        // A flush is posted in the middle of the series, and may find no room either.
        while series.posted == COUNT / 2 && series.flush.is_none() {
            match bench.desk.endpoint().flush(FLUSH) {
                Err(Status::Again) => {
                    bench.desk.turn()?;
                    series.collect(case, &mut bench)?;
                }
                Ok(1) => series.flush = Some(series.posted),
                other => {
                    told(other)?;
                    flushed(case, &bench, series.posted)?;
                    break;
                }
            }
        }
    }
    waits_for("the COMPLETION of one of many operations at once");
    while !series.pending.is_empty() || series.flush.is_some() {
        bench.desk.turn()?;
        series.collect(case, &mut bench)?;
    }
    for _ in 0..20 {
        bench.desk.turn()?;
    }
    series.collect(case, &mut bench)?;
    let endpoint = bench.desk.endpoint();
    let code = bench.desk.retry(|| endpoint.flush(FLUSH))?;
    told(bench.desk.complete(code, FLUSH)?.map(|_| 0))?;
    flushed(case, &bench, COUNT)
}

pub(super) fn a_flush_does_not_end_before_what_stands_before_it(case: &Case) -> Checked {
    for many in [1, 7, 60] {
        let mut bench = prepared(case)?;
        let endpoint = bench.desk.endpoint();
        let mut posted = 0;
        while posted < many {
            match Numbered(posted).post(case, &bench) {
                Err(Status::Again) => break,
                _ => posted += 1,
            }
        }
        // For a while only this end makes progress: operations that need the other end cannot have ended.
        let mut ended = match endpoint.flush(FLUSH) {
            Ok(1) => false,
            Err(Status::Again) => continue,
            other => {
                told(other)?;
                true
            }
        };
        let mut polls = 0;
        waits_for("the COMPLETION of a flush");
        while !ended {
            match polls < 200 {
                true => drop(bench.desk.boxes[0].turn()?),
                false => bench.desk.turn()?,
            }
            polls += 1;
            ended = bench.desk.boxes[0].completions.iter().any(|done| done.cookie == FLUSH);
        }
        flushed(case, &bench, posted)?;
    }
    Ok(())
}

pub(super) fn a_message_behind_a_fence_comes_behind_the_puts_before_it(case: &Case) -> Checked {
    let mut bench = prepared(case)?;
    let endpoint = bench.desk.endpoint();
    for round in 0..20u64 {
        bench.target.write(0, &[0xee; TARGET]);
        let first = round as usize % 5 * 4;
        let puts: Vec<Numbered> =
            (first..first + 24).map(Numbered).filter(|n| n.is_put() && !n.leaves()).collect();
        for n in &puts {
            let mut code = n.post(case, &bench);
            while code == Err(Status::Again) {
                bench.desk.turn()?;
                code = n.post(case, &bench);
            }
            let _ = crate::report::succeeds("put", code)?;
        }
        bench.desk.fence()?;
        bench.desk.send(8, round, b"")?;
        // The receiver alone makes progress for a while: it must not see the message before the operations before the fence.
        let mut polls = 0;
        waits_for("the message behind a fence");
        while bench.desk.far().messages.is_empty() {
            polls += 1;
            match polls < 200 {
                true => drop(bench.desk.far().turn()?),
                false => bench.desk.turn()?,
            }
        }
        let message = bench.desk.receive()?;
        equal("the header of the message behind the fence", round, message.header)?;
        for n in &puts {
            n.bytes_are_there(case, &bench, "precedes a fence whose next message has arrived")?;
        }
        let code = bench.desk.retry(|| endpoint.flush(FLUSH))?;
        equal("flush", Ok(()), bench.desk.complete(code, FLUSH)?.map(drop))?;
        bench.desk.boxes[0].completions.clear();
    }
    Ok(())
}

pub(super) fn the_array_of_pieces_is_not_used_after_the_call(case: &Case) -> Checked {
    if case.attr.max_iov < 2 {
        return Err(Stop::Skip("the module accepts one piece only".to_string()));
    }
    for put in [true, false] {
        let mut bench = prepared(case)?;
        // `Endpoint::rma` overwrites the array and the record as soon as the call has returned.
        let chosen: Vec<Numbered> =
            (0..40).map(Numbered).filter(|n| n.is_put() == put && !n.leaves()).collect();
        for n in chosen {
            let mut code = n.post(case, &bench);
            while code == Err(Status::Again) {
                bench.desk.turn()?;
                code = n.post(case, &bench);
            }
            equal("a data call", Ok(()), bench.desk.complete(code, n.cookie())?.map(drop))?;
            let endpoint = bench.desk.endpoint();
            let code = bench.desk.retry(|| endpoint.flush(FLUSH))?;
            equal("flush", Ok(()), bench.desk.complete(code, FLUSH)?.map(drop))?;
            n.bytes_are_there(case, &bench, "was posted from an array that was overwritten since")?;
        }
    }
    Ok(())
}

pub(super) fn closing_an_endpoint_drops_what_is_pending_and_leaves_its_memory_alone(
    case: &Case,
) -> Checked {
    for far_polls in [false, true] {
        let bench = prepared(case)?;
        let mut pending = 0;
        for n in (0..40).map(Numbered) {
            pending += usize::from(n.post(case, &bench) == Ok(1));
        }
        let Bench { mut desk, target, key, local, .. } = bench;
        desk.boxes[0].completions.clear();
        drop(key);
        desk.endpoint = None;
        // The memory belongs to the application again.
        local.write(0, &[0xab; TARGET]);
        for _ in 0..300 {
            match far_polls {
                true => desk.turn()?,
                false => drop(desk.boxes[0].turn()?),
            }
        }
        same_bytes("local memory after its endpoint was closed", &[0xab; TARGET], &local.all())?;
        let late = desk.boxes[0].completions.len();
        holds(
            late == 0,
            format!("{pending} operations that were pending when their endpoint was closed"),
            "no COMPLETION",
            format!("{late}"),
        )?;
        drop(target);
    }
    Ok(())
}

pub(super) fn many_atomics_at_once_bring_each_its_own_value(case: &Case) -> Checked {
    const MANY: usize = 200;
    let mut bench = bench(case, ALL_RIGHTS)?;
    let Some((op, width)) = atomics::fetching(case) else {
        return Err(Stop::Skip("claims no atomic that fetches".to_string()));
    };
    let width = width as usize;
    let value = |n: usize| n as u64 * 1001 + 7;
    let bytes = |n: usize| value(n).to_ne_bytes()[..width].to_vec();
    for n in 0..MANY {
        bench.target.write(n * 8, &bytes(n));
    }
    let results: Vec<RefCell<u64>> = (0..MANY).map(|_| RefCell::new(0)).collect();
    let mut pending = Vec::new();
    let endpoint = bench.desk.endpoint();
    waits_for("the COMPLETION of one of many atomics at once");
    let collect = |desk: &mut Desk, pending: &mut Vec<usize>| -> Checked {
        desk.turn()?;
        for done in core::mem::take(&mut desk.boxes[0].completions) {
            let at = pending.iter().position(|n| COOKIES + *n as u64 == done.cookie);
            let Some(at) = at else {
                return Err(fail("COMPLETION", "the cookie of a pending atomic", done.cookie));
            };
            let which = pending.swap_remove(at);
            equal("the status of an atomic", 0, done.status)?;
            equal("the value that an atomic fetched, by its cookie", value(which), done.header)?;
        }
        Ok(())
    };
    for (n, result) in results.iter().enumerate() {
        let atomic = atomics::operation(op, width as u32, n as u64 * 8, 1, 0, true);
        let atomic = Atomic { cookie: COOKIES + n as u64, ..atomic };
        loop {
            match endpoint.atomic(&bench.key, atomic, result) {
                Err(Status::Again) => collect(&mut bench.desk, &mut pending)?,
                Ok(1) => break pending.push(n),
                other => {
                    equal("atomic", Ok(0), other)?;
                    break equal("the value that an atomic fetched", value(n), *result.borrow())?;
                }
            }
        }
    }
    while !pending.is_empty() {
        collect(&mut bench.desk, &mut pending)?;
    }
    Ok(())
}
