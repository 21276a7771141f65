//! Checks of the payload of a message: its bits, its lifetime, and the memory of its sender.

use super::messages::check;
use crate::case::{Case, Desk, Mailbox, NEAR_COOKIE};
use crate::random::Random;
use crate::report::{Checked, Stop, equal, fail, refused, same_bytes, succeeds};
use tieline_plugin_api::{Status, access, caps};

const IDS: [u32; 7] = [0, 0x1_0000, 0xff, 0xffff, 0x89ab_cdef, 0x8001, u32::MAX];
const HEADERS: [u64; 7] =
    [0, 1, 0x1_0000_0000, 0x8000_0000_0000_0000, 0x0123_4567_89ab_cdef, u64::MAX, 0xffff_ffff];

fn ways(case: &Case) -> Vec<&'static str> {
    let ways = [
        (caps::AM_SHORT, "am_short"),
        (caps::AM_PACKED, "am_packed"),
        (caps::AM_ZCOPY, "am_zcopy"),
    ];
    ways.into_iter().filter(|(cap, _)| case.has(*cap)).map(|(_, way)| way).collect()
}

fn send(
    desk: &mut Desk,
    case: &Case,
    way: &str,
    (id, header): (u32, u64),
    data: &[u8],
) -> Result<Result<(), Status>, Stop> {
    let endpoint = desk.endpoint();
    let code = match way {
        "am_short" => desk.retry(|| endpoint.am_short(id, header, data))?,
        "am_packed" => desk.retry(|| {
            endpoint.am_packed(id, header, data.len(), |room| {
                room[..data.len()].copy_from_slice(data);
                data.len() as i64
            })
        })?,
        _ => {
            let local = case.memory(data.len().max(8), access::REMOTE_READ)?;
            local.write(0, data);
            let iov = [local.piece(0..data.len())];
            let code = desk.retry(|| endpoint.am_zcopy(id, header, &iov, 77))?;
            return Ok(desk.complete(code, 77)?.map(drop));
        }
    };
    Ok(code.map(drop))
}

pub(super) fn every_bit_of_id_and_header_arrives_by_every_way(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    for way in ways(case) {
        let limit = match way {
            "am_short" => case.attr.max_short,
            "am_packed" => case.attr.max_packed,
            _ => case.attr.max_zcopy,
        };
        for len in [0, 5, limit.min(3000)] {
            let data = Random(len as u64 + 1).bytes(len.min(limit));
            for n in 0..IDS.len() {
                let (id, header) = (IDS[n], HEADERS[(n + len) % HEADERS.len()]);
                let sent = send(&mut desk, case, way, (id, header), &data)?;
                let what = format!("{way} of {len} bytes with id {id:#x} and header {header:#x}");
                if id > u32::from(u16::MAX) && sent.is_err() {
                    // The core does not use such ids: a module without them refuses them, and never truncates.
                    refused(what, sent, &[Status::Invalid, Status::TooLarge, Status::Unsupported])?;
                    continue;
                }
                succeeds(&what, sent)?;
                let message = desk.receive()?;
                equal(format!("the id of {what}"), id, message.id)?;
                equal(format!("the header of {what}"), header, message.header)?;
                same_bytes(what, &data, &message.data)?;
            }
        }
    }
    Ok(())
}

pub(super) fn an_identity_of_the_stated_length_arrives_whole(case: &Case) -> Checked {
    let most = case.attr.max_identity_len as usize;
    if case.connects_to_endpoint() || most == 0 {
        return Err(Stop::Skip("the module carries no identity".to_string()));
    }
    let mut desk = case.desk()?;
    let address = case.address_of(&desk.far().interface)?;
    let mut lengths = vec![0, 1, 7, 64, 254, 255, 256, 257, most - 1, most];
    lengths.retain(|&len| len <= most);
    for (n, len) in lengths.into_iter().enumerate() {
        let identity = Random(n as u64 + 90).bytes(len);
        let before = desk.far().arrived.len();
        desk.connect_as(&address, &identity, NEAR_COOKIE + 3 + n as u64)?;
        desk.send(1, n as u64, b"")?;
        let message = desk.receive()?;
        check(&message, 1, n as u64, b"")?;
        let arrived = desk.far().arrived.get(before..).unwrap_or(&[]).to_vec();
        let what = format!("an identity of {len} bytes, of {most} that the module states");
        match arrived.last() {
            Some(arrival) => same_bytes(what, &identity, &arrival.data)?,
            // One connection may serve all endpoints of a pair, whose identity then came with the first message.
            None if n > 0 => return longest_first(case, most),
            None => return Err(fail("arrivals", "one for a new connection", "none")),
        }
    }
    Ok(())
}

fn longest_first(case: &Case, most: usize) -> Checked {
    let mut desk = Desk::of(case, Mailbox::new(case.interface()?));
    let (address, identity) = (case.address_of(&desk.boxes[0].interface)?, Random(91).bytes(most));
    desk.connect_as(&address, &identity, NEAR_COOKIE)?;
    desk.send(1, 1, b"")?;
    let _ = desk.receive()?;
    same_bytes(format!("an identity of {most} bytes"), &identity, &desk.boxes[0].arrived[0].data)
}

pub(super) fn a_payload_stays_until_the_next_poll_though_more_is_sent(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    let endpoint = desk.endpoint();
    let most = case.attr.max_short.min(2048);
    desk.send(1, 0, b"")?;
    let _ = desk.receive()?;
    let (mut sent, mut seen) = (0u64, 0u64);
    let whole =
        |n: u64| vec![(n ^ (n >> 7)) as u8 ^ 0x5c; (1 + (n as usize * 31) % most.max(1)).min(most)];
    let fill = |sent: &mut u64, most: u64| {
        let end = *sent + most;
        while *sent < end && endpoint.am_short(2, *sent, &whole(*sent)).is_ok() {
            *sent += 1;
        }
    };
    let patience = crate::watch::Patience::new();
    for round in 0..40 {
        // The number of pending messages is alternately three, and the number for which there is room.
        fill(&mut sent, if round % 2 == 0 { 3 } else { 5000 });
        let last = desk.boxes.len() - 1;
        let near = desk.boxes[0].interface.clone();
        let polled = desk.boxes[last].interface.poll_and_look_again(8, |received| {
            // Each polled message may have made room, and so may the sender's own poll.
            if last > 0 && !received.is_empty() {
                let _ = near.poll(16);
            }
            fill(&mut sent, 5000);
        });
        let (received, changed) = succeeds("poll", polled)?;
        if let Some(at) = changed {
            let what =
                format!("payload {at} of {}, looked at again before the next poll", received.len());
            let found = "other bytes: its place was used for what was sent meanwhile";
            return Err(fail(what, "the bytes that it had", found));
        }
        for message in received {
            if message.kind != tieline_plugin_api::event::MESSAGE {
                continue;
            }
            if message.flags & tieline_plugin_api::event_flags::LENT != 0 {
                desk.far().interface.release(message.cookie);
            }
            check(&message, 2, seen, &whole(seen))?;
            seen += 1;
        }
    }
    while seen < sent {
        let message = desk.receive()?;
        check(&message, 2, seen, &whole(seen))?;
        seen += 1;
        patience.still("messages that were sent", "all", "some are missing")?;
    }
    Ok(())
}

pub(super) fn gathered_messages_in_flight_keep_their_bytes_and_cookies(case: &Case) -> Checked {
    const COUNT: u64 = 300;
    let mut desk = case.desk()?;
    let endpoint = desk.endpoint();
    let len = case.attr.max_zcopy.min(512);
    let local = case.memory(COUNT as usize * len.max(1), access::REMOTE_READ)?;
    for n in 0..COUNT as usize {
        local.write(n * len, &Random(n as u64 + 1).bytes(len));
    }
    let (mut seen, mut open) = (0, Vec::new());
    for n in 0..COUNT {
        let start = n as usize * len;
        let pieces =
            super::messages::cut(&mut Random(n + 5), len, case.attr.max_iov.clamp(1, 3) as usize);
        let iov: Vec<_> =
            pieces.iter().map(|p| local.piece(start + p.start..start + p.end)).collect();
        loop {
            match endpoint.am_zcopy(6, n, &iov, 9000 + n) {
                Err(Status::Again) => {
                    desk.turn()?;
                    ended(&mut desk, &mut open, &local, len)?;
                }
                Ok(0) => break local.write(start, &vec![0xdb; len]),
                Ok(_) => break open.push(9000 + n),
                Err(status) => return Err(fail("am_zcopy", "success", status)),
            }
        }
        while let Some(message) = desk.far().messages.pop_front() {
            check(&message, 6, seen, &Random(seen + 1).bytes(len))?;
            seen += 1;
        }
    }
    crate::watch::waits_for("the COMPLETION of gathered messages, or their arrival");
    while seen < COUNT || !open.is_empty() {
        desk.turn()?;
        ended(&mut desk, &mut open, &local, len)?;
        while let Some(message) = desk.far().messages.pop_front() {
            check(&message, 6, seen, &Random(seen + 1).bytes(len))?;
            seen += 1;
        }
    }
    Ok(())
}

/// Handles a completion: the memory belongs to the sender again, which overwrites the memory immediately.
fn ended(desk: &mut Desk, open: &mut Vec<u64>, local: &crate::sys::Memory, len: usize) -> Checked {
    for done in desk.boxes[0].completions.drain(..) {
        let Some(at) = open.iter().position(|cookie| *cookie == done.cookie) else {
            return Err(fail(
                "a COMPLETION",
                "the cookie of one that is pending",
                format!("{:#x}", done.cookie),
            ));
        };
        equal("the status of a gathered message", 0, done.status)?;
        local.write((open.swap_remove(at) - 9000) as usize * len, &vec![0xdb; len]);
    }
    Ok(())
}
