//! Checks of the death of a process: its report, and the messages and operations of the time before.

use super::messages::check;
use super::processes::{Partner, join, meet};
use super::waiting::address_of;
use crate::case::{ALL_RIGHTS, Case, Desk, NEAR_COOKIE};
use crate::endpoint::{Endpoint, Target};
use crate::peer::{REGION, hex, unhex};
use crate::report::{Checked, Stop, equal, fail, holds, succeeds};
use crate::watch::{Patience, share, waits_for};
use std::time::Instant;
use tieline_plugin_api::{Status, caps, op_flags};

fn exchange(desk: &mut Desk, partner: &mut Partner) -> Checked {
    partner.tell("echo 1")?;
    desk.send(1, 1, b"")?;
    let _ = desk.receive()?;
    partner.answer(desk).map(drop)
}

fn look_on(desk: &mut Desk) -> Checked {
    let began = Instant::now();
    while began.elapsed() < share(20) {
        desk.turn()?;
    }
    Ok(())
}

pub(super) fn a_death_is_told_once_to_each_endpoint_and_to_no_other(case: &Case) -> Checked {
    let (mut desk, mut first) = meet(case)?;
    exchange(&mut desk, &mut first)?;
    let gone: Vec<u64> = desk.boxes[0].arrived.iter().map(|arrival| arrival.peer).collect();
    let mut cookies = vec![NEAR_COOKIE];
    let ours = desk.endpoint();
    let twin;
    if case.connects_to_endpoint() {
        first.tell("twin")?;
        let there = unhex(&first.answer(&mut desk)?);
        desk.connect_as(&[], &case.identity(), NEAR_COOKIE + 1)?;
        let here = address_of(case, &desk.endpoint())?;
        succeeds("connecting to the endpoint", desk.endpoint().connect(&there))?;
        first.tell(&format!("bind-twin {}", hex(&here)))?;
        let _ = first.answer(&mut desk)?;
        twin = desk.endpoint.take();
        cookies.push(NEAR_COOKIE + 1);
    } else {
        first.tell("address")?;
        let address = unhex(&first.answer(&mut desk)?);
        desk.connect_as(&address, &case.identity(), NEAR_COOKIE + 1)?;
        twin = desk.endpoint.take();
        cookies.push(NEAR_COOKIE + 1);
    }
    let mut second = join(case, &mut desk, NEAR_COOKIE + 2)?;
    exchange(&mut desk, &mut second)?;
    first.kill();
    let patience = Patience::new();
    loop {
        let near = &desk.boxes[0];
        let failed = |cookie: &u64| near.failed.iter().any(|event| event.cookie == *cookie);
        let left = |peer: &u64| near.left.iter().any(|event| event.peer == *peer);
        if cookies.iter().all(failed) && gone.iter().all(left) {
            break;
        }
        let expected = "ENDPOINT_FAILED with the cookie of each endpoint to it, and PEER_LEFT of each number of it,";
        let found = format!(
            "ENDPOINT_FAILED of {} of {}, PEER_LEFT of {} of {}",
            cookies.iter().filter(|cookie| failed(cookie)).count(),
            cookies.len(),
            gone.iter().filter(|peer| left(peer)).count(),
            gone.len()
        );
        patience.still("a process that was killed", expected, &found)?;
        desk.turn()?;
    }
    look_on(&mut desk)?;
    let near = &desk.boxes[0];
    for event in &near.failed {
        let count = near.failed.iter().filter(|other| other.cookie == event.cookie).count();
        equal(format!("ENDPOINT_FAILED with cookie {:#x}", event.cookie), 1, count)?;
        holds(
            cookies.contains(&event.cookie),
            "ENDPOINT_FAILED",
            "endpoints to the dead process",
            "another",
        )?;
        let status = Status::from_code(event.status);
        let closed = "an error, and not CLOSED, which is for an orderly close";
        let what = "the status of ENDPOINT_FAILED whose peer was killed";
        holds(event.status < 0 && status != Status::Closed, what, closed, status)?;
        holds(!event.data.is_empty(), "the reason in ENDPOINT_FAILED", "words", "nothing")?;
    }
    for event in &near.left {
        holds(gone.contains(&event.peer), "PEER_LEFT", "the dead process", "another one")?;
        holds(
            event.status < 0,
            "the status of PEER_LEFT of a dead process",
            "an error",
            event.status,
        )?;
    }
    exchange(&mut desk, &mut second)?;
    let flush = ours.flush(77);
    // A synchronous module waits for nothing, and so has nothing to report.
    let refused = flush.is_err_and(|status| status != Status::Again) || case.has(caps::SYNCHRONOUS);
    holds(refused, "flush of an endpoint that has failed", "its error", format!("{flush:?}"))?;
    drop((ours, twin));
    Ok(())
}

pub(super) fn messages_of_a_dead_process_arrive(case: &Case) -> Checked {
    const MESSAGES: u64 = 40;
    let (mut desk, mut partner) = meet(case)?;
    exchange(&mut desk, &mut partner)?;
    partner.tell(&format!("send {MESSAGES}"))?;
    partner.tell("flush")?;
    // For a quarter of the limit there is no poll: a delivery that needs no progress in this process ends meanwhile.
    let alone = Instant::now();
    let mut answers = 0;
    waits_for("a process that sends some messages and flushes");
    while answers < 2 {
        let polls = alone.elapsed() > share(4);
        match partner.try_answer()? {
            Some(_) => answers += 1,
            None if polls => desk.turn()?,
            None => std::thread::yield_now(),
        }
    }
    partner.kill();
    waits_for("the messages that a process had flushed before it was killed");
    let mut seen = 0;
    desk.boxes[0].at_once = 1; // one event per poll, so that the death may be detected before all messages have been polled
    while seen < MESSAGES {
        while let Some(message) = desk.boxes[0].messages.pop_front() {
            check(&message, 2, seen, &seen.to_le_bytes())?;
            seen += 1;
        }
        let near = &desk.boxes[0];
        if seen < MESSAGES && (!near.left.is_empty() || !near.failed.is_empty()) {
            // The failure may come with the poll that delivers the rest; a connection of this side may end first.
            let told = |desk: &Desk| {
                !desk.boxes[0].left.is_empty()
                    || case.connects_to_endpoint() && !desk.boxes[0].failed.is_empty()
            };
            if told(&desk) && desk.boxes[0].messages.is_empty() {
                let found = format!("{seen}, and then the end of the peer");
                return Err(fail(
                    "messages that were flushed before their sender died",
                    format!("all {MESSAGES}"),
                    found,
                ));
            }
        }
        desk.turn()?;
    }
    Ok(())
}

/// Posts operations until there is no room, up to a bound. They stay pending because the other process is stopped.
fn post_all(
    case: &Case,
    endpoint: &Endpoint,
    key: Option<&crate::endpoint::Key>,
    local: &crate::sys::Memory,
) -> Result<Vec<u64>, Stop> {
    let mut pending = Vec::new();
    for n in 0..90u64 {
        let piece = |n: u64| [local.piece(n as usize * 64..n as usize * 64 + 8)];
        let target =
            |key| Target { key, offset: n * 8, cookie: n, flags: op_flags::REMOTE_COMPLETION };
        let code = match (n % 3, key) {
            (0, Some(key)) => endpoint.rma(true, &piece(n), target(key)),
            (1, Some(key)) => endpoint.rma(false, &piece(n), target(key)),
            (2, _) if n % 10 == 2 => endpoint.flush(n),
            _ if case.has(caps::AM_ZCOPY) => endpoint.am_zcopy(5, n, &piece(n), n),
            _ => continue,
        };
        match code {
            Ok(1) => pending.push(n),
            Ok(_) => {}
            Err(Status::Again) => break,
            Err(status) => {
                return Err(fail("an operation towards a stopped process", "PENDING", status));
            }
        }
    }
    Ok(pending)
}

pub(super) fn pending_operations_end_once_when_the_peer_dies(case: &Case) -> Checked {
    let mut pending = 0;
    for polls in [false, true] {
        pending += pending_at_death(case, polls)?;
    }
    match pending {
        0 => Err(Stop::Skip("nothing was pending".to_string())),
        _ => Ok(()),
    }
}

/// Returns the number of operations that were pending at the death, after each has ended.
fn pending_at_death(case: &Case, polls: bool) -> Result<usize, Stop> {
    let (mut desk, mut partner) = meet(case)?;
    exchange(&mut desk, &mut partner)?;
    let endpoint = desk.endpoint();
    let mut key = None;
    if case.has(caps::PUT | caps::GET) {
        partner.tell("key")?;
        let packed = unhex(&partner.answer(&mut desk)?);
        key = Some(succeeds("import_key", desk.import(&packed)?)?);
    }
    let local = case.memory(REGION, ALL_RIGHTS)?;
    partner.stop();
    let pending = post_all(case, &endpoint, key.as_ref(), &local)?;
    if polls {
        let _ = desk.boxes[0].turn()?;
    }
    partner.kill();
    desk.boxes[0].at_once = 1; // one event per poll, so that the death may be detected before all operations have completed
    let patience = Patience::new();
    let ended = |desk: &Desk, cookie: u64| {
        desk.boxes[0].completions.iter().filter(|done| done.cookie == cookie).count()
    };
    while !pending.iter().all(|cookie| ended(&desk, *cookie) > 0) {
        desk.turn()?;
        let missing = pending.iter().filter(|cookie| ended(&desk, **cookie) == 0).count();
        let what = format!("{} operations that were pending when their peer died", pending.len());
        patience.still(&what, "a COMPLETION for each", &format!("none for {missing}"))?;
    }
    look_on(&mut desk)?;
    for cookie in &pending {
        let what = format!("COMPLETIONs of the operation with cookie {cookie}");
        equal(what, 1, ended(&desk, *cookie))?;
    }
    let all = desk.boxes[0].completions.len();
    equal("COMPLETIONs of operations that were pending", pending.len(), all)?;
    Ok(pending.len())
}

pub(super) fn the_death_of_a_peer_raises_no_signal(case: &Case) -> Checked {
    let (mut desk, mut partner) = meet(case)?;
    exchange(&mut desk, &mut partner)?;
    if case.has(caps::EVENT_FD) {
        // A sleeping worker is woken by a death.
        partner.tell("sleep")?;
        let _ = partner.answer(&mut desk)?;
    }
    // The check behaves like a C program: signals that Rust programs ignore would end such a program.
    let signals = crate::watch::Broken::watched();
    partner.kill();
    let endpoint = desk.endpoint();
    let data = vec![0; case.attr.max_short.min(2048)];
    let patience = Patience::new();
    let mut refused = 0;
    waits_for("posting to a dead process to be refused");
    for n in 0.. {
        match endpoint.am_short(1, n, &data) {
            Ok(_) => {}
            Err(Status::Again) => {
                patience.still("am_short to a dead process", "a hard error", "AGAIN for ever")?
            }
            Err(_) => refused += 1,
        }
        if refused > 3 {
            break;
        }
        desk.turn()?;
    }
    drop(endpoint);
    desk.close_endpoints();
    desk.turn()?;
    holds(
        !signals.raised(),
        "a write to a peer that has died",
        "an error, of a send with MSG_NOSIGNAL",
        "SIGPIPE, which ends a program in C",
    )
}
