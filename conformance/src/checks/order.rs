//! Checks of the order across the ways to send, and of guarantees to a packer, a fence and a handler.

use super::flight::settled;
use super::messages::check;
use super::rma::{Bench, bench};
use crate::case::{ALL_RIGHTS, Case, Desk};
use crate::endpoint::Target;
use crate::hub::Hub;
use crate::random::Random;
use crate::report::{Checked, Stop, equal, fail, same_bytes, succeeds};
use crate::watch::{Patience, waits_for};
use tieline_plugin_api::{Status, access, caps, event};

fn post(case: &Case, desk: &Desk, local: &crate::sys::Memory, n: u64) -> Result<i64, Status> {
    let (endpoint, data) = (desk.endpoint(), bytes(case, n));
    match way(case, n) {
        caps::AM_PACKED => endpoint.am_packed(2, n, data.len(), |room| {
            room[..data.len()].copy_from_slice(&data);
            data.len() as i64
        }),
        caps::AM_ZCOPY => {
            let at = n as usize % 64 * 256;
            local.write(at, &data);
            endpoint.am_zcopy(2, n, &[local.piece(at..at + data.len())], n)
        }
        _ => endpoint.am_short(2, n, &data),
    }
}

fn way(case: &Case, n: u64) -> u64 {
    let ways: Vec<u64> = [caps::AM_SHORT, caps::AM_PACKED, caps::AM_ZCOPY]
        .into_iter()
        .filter(|way| case.has(*way))
        .collect();
    ways[(n / 3) as usize % ways.len()]
}

fn bytes(case: &Case, n: u64) -> Vec<u8> {
    let limits = [(caps::AM_PACKED, case.attr.max_packed), (caps::AM_ZCOPY, case.attr.max_zcopy)];
    let limit = limits.iter().find(|(cap, _)| *cap == way(case, n));
    Random(n + 3).bytes(limit.map_or(case.attr.max_short, |(_, limit)| *limit).min(200))
}

pub(super) fn messages_of_all_ways_keep_one_order(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    let local = case.memory(64 * 256, access::REMOTE_READ)?;
    // The list states whether each accepted message is empty.
    let (mut sent, mut seen): (Vec<bool>, u64) = (Vec::new(), 0);
    let patience = Patience::new();
    for round in 0..40 {
        let mut again = 0;
        while again < 9 && (sent.len() as u64) < seen + 5000 {
            let n = sent.len() as u64;
            match post(case, &desk, &local, n) {
                Ok(_) => sent.push(false),
                Err(Status::Again) => {
                    again += 1;
                    // If one call finds no room, another one may; a message that got AGAIN was not sent.
                    match desk.endpoint().am_short(2, n, &[]) {
                        Ok(_) => sent.push(true),
                        _ => drop(desk.boxes[0].turn()?),
                    }
                }
                Err(status) => return Err(fail("posting a message", "success or AGAIN", status)),
            }
        }
        // At times only the receiver makes progress, which makes room for the next messages while others wait at the sender.
        for _ in 0..40 {
            match round % 2 {
                0 => drop(desk.far().turn()?),
                _ => desk.turn()?,
            }
        }
        seen = taken(case, &mut desk, seen, &sent)?;
    }
    while seen < sent.len() as u64 {
        desk.turn()?;
        seen = taken(case, &mut desk, seen, &sent)?;
        patience.still("messages by several calls", "all", "some are missing")?;
    }
    Ok(())
}

fn taken(case: &Case, desk: &mut Desk, mut seen: u64, sent: &[bool]) -> Result<u64, Stop> {
    desk.boxes[0].completions.clear();
    while let Some(message) = desk.far().messages.pop_front() {
        let empty = sent.get(seen as usize).copied().unwrap_or(false);
        check(&message, 2, seen, &if empty { Vec::new() } else { bytes(case, seen) })?;
        seen += 1;
    }
    Ok(seen)
}

pub(super) fn a_packer_may_send_on_another_endpoint(case: &Case) -> Checked {
    let mut hub = Hub::of(case, 2)?;
    for at in 0..2 {
        hub.send(at, true, 0, b"")?;
        let _ = hub.receive(Some(at))?;
    }
    let (one, other) = (hub.spokes[0].out.clone(), hub.spokes[1].out.clone());
    let len = case.attr.max_packed.min(64);
    for n in 0..20 {
        let mut inside = Ok::<i64, ()>(0);
        let mut patience = None;
        loop {
            let packed = one.am_packed(3, n, len, |room| {
                // Some AGAIN are acceptable, but not for ever.
                inside = (0..20).map(|_| other.am_short(4, n, b"")).find_map(Result::ok).ok_or(());
                room[..len].fill(7);
                len as i64
            });
            match packed {
                Err(Status::Again) => {
                    hub.turn()?;
                    let patience = patience.get_or_insert_with(Patience::new);
                    patience.still("am_packed", "room", "AGAIN for ever")?;
                }
                other => {
                    let _ = succeeds("am_packed", other)?;
                    break;
                }
            }
        }
        let what = "am_short on another endpoint, which is idle, while a packer runs";
        equal(what, Ok(0), inside)?;
        for at in [1, 0] {
            equal("the header of a message", n, hub.receive(Some(at))?.header)?;
        }
    }
    Ok(())
}

pub(super) fn a_payload_stays_though_its_receiver_answers(case: &Case) -> Checked {
    let mut hub = Hub::of(case, 1)?;
    if hub.spokes[0].back.is_none() {
        return Err(Stop::Skip("sender and receiver are one interface".to_string()));
    }
    hub.send(0, true, 0, b"")?;
    let _ = hub.receive(Some(0))?;
    let local = case.memory(4096, access::REMOTE_READ)?;
    for round in 0..60u64 {
        let data = Random(round + 1).bytes(case.attr.max_short.min(500));
        hub.send(0, false, round, &data)?;
        let (out, patience) = (hub.spokes[0].out.clone(), Patience::new());
        loop {
            let polled = hub.middle.interface.poll_and_look_again(8, |received| {
                if received.iter().all(|event| event.kind != event::MESSAGE) {
                    return;
                }
                // A handler answers by each available call.
                let other = vec![0xdb; case.attr.max_packed.min(500)];
                let _ = out.am_short(9, 0, &other[..other.len().min(case.attr.max_short)]);
                let _ = out.am_packed(9, 0, other.len(), |room| {
                    room[..other.len()].copy_from_slice(&other);
                    other.len() as i64
                });
                let piece = local.piece(0..case.attr.max_zcopy.min(500));
                let _ = out.am_zcopy(9, 0, &[piece], 1);
            });
            let (received, changed) = succeeds("poll", polled)?;
            if changed.is_some() {
                let what = "a payload while its receiver sends";
                return Err(fail(what, "the bytes that it had until the next poll", "others"));
            }
            let message = received.into_iter().find(|event| event.kind == event::MESSAGE);
            if let Some(message) = message {
                if message.flags & tieline_plugin_api::event_flags::LENT != 0 {
                    hub.middle.interface.release(message.cookie);
                }
                break same_bytes("a message", &data, &message.data)?;
            }
            if let Some(mailbox) = &mut hub.spokes[0].mailbox {
                let _ = mailbox.turn()?;
            }
            patience.still("a message that was sent", "its arrival", "nothing")?;
        }
        waits_for("a connection to be idle again");
        for _ in 0..5 {
            hub.turn()?;
        }
        hub.middle.completions.clear();
        if let Some(mailbox) = &mut hub.spokes[0].mailbox {
            mailbox.messages.clear();
        }
    }
    Ok(())
}

pub(super) fn a_put_behind_a_fence_does_not_change_what_a_get_before_it_reads(
    case: &Case,
) -> Checked {
    let mut bench = bench(case, ALL_RIGHTS)?;
    let limit = |most: usize| if most == 0 { 4096 } else { most.min(4096) };
    let (len, endpoint) =
        (limit(case.attr.max_get).min(limit(case.attr.max_put)), bench.desk.endpoint());
    for round in 0..12 {
        let many = [1, 4, 30, 100][round % 4];
        bench.target.write(0, &vec![0xee; len]);
        bench.local.write(0, &vec![0x11; 2 * len]);
        bench.local.write(2 * len, &vec![0x22; len]);
        let mut pending = Vec::new();
        let mut post = |bench: &mut Bench, put: bool, n: usize| -> Checked {
            let from = if put { 2 * len } else { usize::from(n == 1) * len };
            let target = Target { key: &bench.key, offset: 0, cookie: n as u64, flags: 0 };
            let piece = [bench.local.piece(from..from + len)];
            let code = bench.desk.retry(|| endpoint.rma(put, &piece, target))?;
            if succeeds("a get, or a put behind a fence", code)? == 1 {
                pending.push(n as u64);
            }
            Ok(())
        };
        // The last operation writes to a separate place.
        for n in (0..many).rev() {
            post(&mut bench, false, if n == 0 { 1 } else { 1000 * n })?;
        }
        bench.desk.fence()?;
        post(&mut bench, true, 0)?;
        // For a while the owner of the memory makes progress alone, so its answers may fill the path to the requester.
        for _ in 0..200 {
            let _ = bench.desk.far().turn()?;
        }
        for cookie in pending {
            let done = bench.desk.complete(Ok(1), cookie)?;
            let _ = succeeds("a get, or a put behind a fence", done)?;
        }
        let what = "the bytes of a get before a fence and a put";
        same_bytes(what, &vec![0xee; len], &bench.local.read(len..2 * len))?;
        settled(&mut bench.desk)?;
    }
    Ok(())
}
