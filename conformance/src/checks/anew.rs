//! Checks of closed endpoints and their successors: error texts, wake-ups, queues and the descriptor.

use super::messages::check;
use super::rma::{Bench, TARGET, bench, most};
use super::waiting::fall_asleep;
use crate::case::{ALL_RIGHTS, Case, Desk, NEAR_COOKIE};
use crate::connector::Connector;
use crate::endpoint::Target;
use crate::random::Random;
use crate::report::{Checked, Stop, equal, fail, holds, same_bytes, succeeds};
use crate::watch::Patience;
use tieline_plugin_api::abi::fixed_str;
use tieline_plugin_api::{Status, caps, op_flags};

/// Sends a message if the module can, and then closes the far end in an orderly way. Skips the check if the module connects only to
/// itself.
fn exchange_and_leave(case: &Case, desk: &mut Desk) -> Checked {
    if desk.boxes.len() < 2 {
        return Err(Stop::Skip("the module connects only to itself".to_string()));
    }
    if case.has(caps::AM_SHORT) {
        desk.send(1, 1, b"")?;
        let _ = desk.receive()?;
    }
    desk.far_leaves();
    Ok(())
}

/// Polls until the endpoint to a peer that has closed has failed.
fn await_end(desk: &mut Desk) -> Checked {
    let patience = Patience::new();
    let endpoint = desk.endpoint();
    while desk.boxes[0].failed.is_empty() {
        // A module may detect the end only when it sends data.
        let _ = endpoint.am_short(1, 2, b"");
        desk.turn()?;
        patience.still("an endpoint whose peer has closed", "ENDPOINT_FAILED", "nothing")?;
    }
    Ok(())
}

pub(super) fn the_words_of_an_end_stay_though_its_endpoint_is_closed(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    exchange_and_leave(case, &mut desk)?;
    await_end(&mut desk)?;
    desk.close_endpoints();
    let event = desk.boxes[0].failed.remove(0);
    let what = "the text of ENDPOINT_FAILED of a closed endpoint, before the next poll";
    same_bytes(what, &event.data, &event.again())
}

pub(super) fn an_interface_sleeps_again_when_an_endpoint_that_failed_is_closed(
    case: &Case,
) -> Checked {
    let mut desk = case.desk()?;
    for round in 0..4 {
        exchange_and_leave(case, &mut desk)?;
        await_end(&mut desk)?;
        equal("the cookie of ENDPOINT_FAILED", NEAR_COOKIE, desk.boxes[0].failed[0].cookie)?;
        desk.close_endpoints();
        let _ = fall_asleep(&mut desk.boxes[0])?;
        desk.forget();
        let next = crate::case::Mailbox::new(case.interface()?);
        desk.boxes.push(next);
        desk.connect_ends(case)?;
        if round == 2 {
            let _ = desk.boxes[0].turn()?;
        }
    }
    Ok(())
}

/// The distance between the ranges of the operations, in bytes.
const STRIDE: usize = 512;
const COUNT: usize = TARGET / STRIDE;

fn bytes(case: &Case, n: usize) -> Vec<u8> {
    Random(n as u64 + 5).bytes(most(case).min(300))
}

/// Posts up to `COUNT` operations without a poll, until there is no room. Returns the pending operations.
fn fill(case: &Case, bench: &Bench) -> Result<Vec<usize>, Stop> {
    let Bench { desk, key, local, target, .. } = bench;
    let (endpoint, mut pending) = (desk.endpoint(), Vec::new());
    for n in 0..COUNT {
        let (data, put) = (bytes(case, n), n % 2 == 0);
        if put { local } else { target }.write(n * STRIDE, &data);
        let iov = [local.piece(n * STRIDE..n * STRIDE + data.len())];
        let (offset, flags) = ((n * STRIDE) as u64, op_flags::REMOTE_COMPLETION);
        let to = Target { key, offset, cookie: n as u64, flags };
        match super::offers::at_once(|| endpoint.rma(put, &iov, to)) {
            Ok(1) => pending.push(n),
            Ok(_) => {}
            Err(Status::Again) => break,
            Err(status) => return Err(fail("a put or get", "0, PENDING or AGAIN", status)),
        }
    }
    Ok(pending)
}

pub(super) fn pending_operations_end_with_closed_when_their_peer_closes(case: &Case) -> Checked {
    let mut any = false;
    for polled in [false, true] {
        let mut bench = bench(case, ALL_RIGHTS)?;
        if bench.desk.boxes.len() < 2 {
            return Err(Stop::Skip("the module connects only to itself".to_string()));
        }
        let mut pending = fill(case, &bench)?;
        any |= !pending.is_empty();
        if polled {
            // Some operations may have been carried out, or even completed.
            bench.desk.far().at_once = 1;
            (0..4).try_for_each(|_| bench.desk.far().turn().map(drop))?;
        }
        bench.desk.far_leaves();
        let patience = Patience::new();
        while !pending.is_empty() {
            for done in core::mem::take(&mut bench.desk.boxes[0].completions) {
                let at = pending.iter().position(|n| *n as u64 == done.cookie);
                let Some(at) = at else {
                    let expected = "the cookie of a pending operation, once for each";
                    return Err(fail("COMPLETION", expected, format!("{:#x}", done.cookie)));
                };
                let n = pending.swap_remove(at);
                if done.status != 0 {
                    let what = "the status of an operation that was pending when its peer closed";
                    equal(what, Status::Closed, Status::from_code(done.status))?;
                    continue;
                }
                let memory = if n % 2 == 0 { &bench.target } else { &bench.local };
                let found = memory.read(n * STRIDE..n * STRIDE + bytes(case, n).len());
                let what = "what an operation was to write that has ended well, though its peer closed meanwhile";
                same_bytes(what, &bytes(case, n), &found)?;
            }
            bench.desk.turn()?;
            let what = "operations that were pending when their peer closed";
            patience.still(what, "a COMPLETION of each", "none for some")?;
        }
    }
    match any {
        true => Ok(()),
        false => Err(Stop::Skip("nothing was pending".to_string())),
    }
}

pub(super) fn a_new_endpoint_has_nothing_of_the_one_before_it(case: &Case) -> Checked {
    const NEW: u32 = 900;
    let mut desk = case.desk()?;
    for round in 0..4u64 {
        // The endpoint is closed while all its slots are in use, without a poll.
        let memory = case.has(caps::PUT | caps::GET).then(|| case.memory(TARGET, ALL_RIGHTS));
        if let Some(memory) = memory.transpose()? {
            let packed = case.key_of(&memory)?;
            let key = succeeds("import_key", desk.import(&packed)?)?;
            let local = case.memory(TARGET, ALL_RIGHTS)?;
            let bench = Bench { desk, target: memory, packed, key, local };
            let _ = fill(case, &bench)?;
            desk = bench.desk;
        }
        let (endpoint, room) = (desk.endpoint(), case.attr.max_packed.min(4096));
        for n in 0..1 << 14 {
            let sent = match case.has(caps::AM_PACKED) {
                true => endpoint.am_packed(1, n, room, |at| {
                    at[..room].fill(0x3d);
                    room as i64
                }),
                false => endpoint.am_short(1, n, b"before"),
            };
            if sent.is_err() {
                break;
            }
        }
        drop(endpoint);
        desk.close_endpoints();
        if round % 2 == 1 {
            desk.turn()?;
        }
        desk.forget();
        desk.connect_ends(case)?;
        for n in 0..20 {
            desk.send(NEW, n, b"anew")?;
        }
        let mut seen = 0;
        while seen < 20 {
            let message = desk.receive()?;
            // If the peer is an interface, messages that were accepted before still arrive.
            if message.id != NEW && !case.connects_to_endpoint() {
                continue;
            }
            check(&message, NEW, seen, b"anew")?;
            seen += 1;
        }
        if case.has(caps::PUT | caps::GET) {
            let (target, local) = (case.memory(64, ALL_RIGHTS)?, case.memory(64, ALL_RIGHTS)?);
            let packed = case.key_of(&target)?;
            let key = succeeds("import_key", desk.import(&packed)?)?;
            for put in [true, false, true] {
                let ended = desk.rma(put, &[local.piece(0..8)], &key, 8)?;
                equal("a put or get of a new endpoint", Ok(()), ended)?;
            }
        }
        let strange = desk.boxes[0].completions.len();
        equal("completions of an endpoint that is closed", 0, strange)?;
    }
    Ok(())
}

pub(super) fn the_descriptor_of_an_interface_is_one(case: &Case) -> Checked {
    let same = |first: i32, again: i32| {
        equal("event_fd, asked for again: one descriptor for the interface's life", first, again)
    };
    if case.is_connector() {
        let module = fixed_str(&case.attr.name).unwrap_or("");
        let connector = succeeds("open_connector", Connector::open(&case.domain, module))?;
        let first = succeeds("event_fd", connector.event_fd())?;
        let _ = succeeds("poll", connector.poll(4))?;
        return same(first, succeeds("event_fd", connector.event_fd())?);
    }
    let mut desk = case.desk()?;
    let near = desk.boxes[0].interface.clone();
    let first = succeeds("event_fd", near.event_fd())?;
    for _ in 0..3 {
        desk.turn()?;
        let _ = succeeds("arm", near.arm())?;
        same(first, succeeds("event_fd", near.event_fd())?)?;
    }
    let what = "event_fd of two interfaces";
    let other = succeeds("event_fd", case.interface()?.event_fd())?;
    holds(first != other, what, "one for each", "the same")
}
