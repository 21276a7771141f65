//! Checks of active messages: complete, in order, bounded, from the stated sender.

use crate::case::{Case, Desk};
use crate::interface::Received;
use crate::random::Random;
use crate::report::{Checked, Stop, equal, fail, holds, refused, same_bytes, succeeds};
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{Status, access, caps, event_flags};

/// The length of the longest message that these checks send, even if the module allows more.
const LONGEST: usize = 1 << 20;

pub(super) fn an_interface_reaches_and_connects_to_itself(case: &Case) -> Checked {
    only_to_interfaces(case)?;
    let interface = case.interface()?;
    let address = case.address_of(&interface)?;
    if let Err(failure) = interface.reachable(&address) {
        return Err(fail("reachable with the interface's own address", "yes", failure));
    }
    case.self_desk().map(|_| ()).map_err(|stop| match stop {
        Stop::Skip(why) | Stop::Fail(why) => Stop::Fail(why),
    })
}

/// Skips the check if the module connects endpoints.
fn only_to_interfaces(case: &Case) -> Checked {
    match case.connects_to_endpoint() {
        true => Err(Stop::Skip("the module connects endpoints, never to their own".to_string())),
        false => Ok(()),
    }
}

pub(super) fn a_message_to_oneself_arrives(case: &Case) -> Checked {
    only_to_interfaces(case)?;
    let mut desk = case.self_desk()?;
    desk.send(7, 0x1122_3344_5566_7788, b"to me")?;
    let message = desk.receive()?;
    check(&message, 7, 0x1122_3344_5566_7788, b"to me")
}

pub(super) fn a_peer_arrives_with_its_identity_before_its_first_message(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    if case.connects_to_endpoint() {
        return a_message_names_the_endpoint(&mut desk);
    }
    desk.send(1, 2, b"hello")?;
    // `Mailbox::turn` fails on a message whose sender has not arrived.
    let message = desk.receive()?;
    equal("arrivals", 1, desk.far().arrived.len())?;
    let arrival = desk.far().arrived[0].clone();
    equal("the arrival's peer number and the message's", arrival.peer, message.peer)?;
    same_bytes("the identity", &case.identity(), &arrival.data)?;
    desk.send(1, 3, b"again")?;
    equal("the peer number of the next message", message.peer, desk.receive()?.peer)?;
    equal("arrivals after a second message", 1, desk.far().arrived.len())
}

/// Checks the sender of a message to an endpoint. A module that connects endpoints reports no arrivals: `peer` is the receiving
/// endpoint's own cookie.
fn a_message_names_the_endpoint(desk: &mut Desk) -> Checked {
    for n in 0..2 {
        desk.send(1, n, b"hello")?;
        let message = desk.receive()?;
        let own = desk.far().cookies.clone();
        equal("the peer of a message", own, vec![message.peer])?;
    }
    equal("arrivals at a module that connects to an endpoint", 0, desk.far().arrived.len())
}

/// Returns lengths at which a transport may behave differently: small ones, those around powers of two, and `most`.
fn lengths(most: usize) -> Vec<usize> {
    let most = most.min(LONGEST);
    let mut lengths: Vec<usize> = (0..=17).collect();
    for power in 5..=20 {
        for delta in [-24i64, -16, -9, -8, -7, -1, 0, 1, 7, 8, 9, 16, 24] {
            lengths.push(((1i64 << power) + delta).max(0) as usize);
        }
    }
    lengths.extend([most, most.saturating_sub(1)]);
    lengths.retain(|&len| len <= most);
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

pub(super) fn short_messages_of_every_length_arrive_whole(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    let mut random = Random(1);
    for len in lengths(case.attr.max_short) {
        let (id, header, data) = (random.next() as u32 & 0xffff, random.next(), random.bytes(len));
        desk.send(id, header, &data)?;
        check(&desk.receive()?, id, header, &data)?;
    }
    nothing_more(&mut desk)
}

pub(super) fn a_message_longer_than_the_limit_is_refused_or_arrives_whole(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    let endpoint = desk.endpoint();
    desk.send(1, 1, b"first")?;
    check(&desk.receive()?, 1, 1, b"first")?;
    for beyond in [1, 64, 1 << 16] {
        let len = case.attr.max_short.saturating_add(beyond);
        if len > LONGEST {
            continue;
        }
        let data = vec![beyond as u8; len];
        let sent = desk.retry(|| endpoint.am_short(2, 2, &data))?;
        refused_or_arrives(&mut desk, format!("am_short of {len} bytes"), sent, &data)?;
    }
    desk.send(3, 3, b"last")?;
    check(&desk.receive()?, 3, 3, b"last")?;
    nothing_more(&mut desk)
}

fn refused_or_arrives(
    desk: &mut Desk,
    what: String,
    sent: Result<i64, Status>,
    data: &[u8],
) -> Checked {
    match sent {
        Ok(_) => check(&desk.receive()?, 2, 2, data),
        failed => refused(what, failed, &[Status::TooLarge, Status::Invalid]),
    }
}

pub(super) fn ten_thousand_messages_keep_their_order(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    let mut random = Random(2);
    let most = case.attr.max_short.min(256);
    let data = random.bytes(most);
    let mut received = 0u64;
    for n in 0..10_000u64 {
        desk.send(3, n, &data[..(n as usize * 37) % (most + 1)])?;
        while let Some(message) = desk.far().messages.pop_front() {
            check(&message, 3, received, &data[..(received as usize * 37) % (most + 1)])?;
            received += 1;
        }
    }
    while received < 10_000 {
        let message = desk.receive()?;
        check(&message, 3, received, &data[..(received as usize * 37) % (most + 1)])?;
        received += 1;
    }
    nothing_more(&mut desk)
}

pub(super) fn a_flood_is_answered_again_and_loses_nothing(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    let endpoint = desk.endpoint();
    let len = case.attr.max_short.min(1024);
    let bound = (256 << 20) / len.max(64);
    let mut sent = 0u64;
    // The first contact may need progress; the flood gets none.
    desk.send(4, sent, &vec![0; len])?;
    sent += 1;
    loop {
        match endpoint.am_short(4, sent, &vec![sent as u8; len]) {
            Ok(_) => sent += 1,
            Err(Status::Again) => break,
            Err(status) => return Err(fail("am_short in a flood", "success or AGAIN", status)),
        }
        if sent as usize > bound {
            let found = format!("{sent} messages of {len} bytes accepted");
            return Err(fail("a receiver that does not poll", "AGAIN before 256 MiB", found));
        }
    }
    for n in 0..sent {
        check(&desk.receive()?, 4, n, &vec![n as u8; len])?;
    }
    nothing_more(&mut desk)?;
    for n in sent..sent + 100 {
        desk.send(4, n, &vec![n as u8; len])?;
    }
    for n in sent..sent + 100 {
        check(&desk.receive()?, 4, n, &vec![n as u8; len])?;
    }
    nothing_more(&mut desk)
}

pub(super) fn a_packed_message_is_what_the_callback_wrote(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    let endpoint = desk.endpoint();
    let mut random = Random(3);
    for len in lengths(case.attr.max_packed) {
        let data = random.bytes(len);
        let mut offered = 0;
        let packed = desk.retry(|| {
            endpoint.am_packed(9, len as u64, len, |buffer| {
                offered = buffer.len();
                if buffer.len() >= len {
                    buffer[..len].copy_from_slice(&data);
                }
                len as i64
            })
        })?;
        holds(
            offered >= len,
            "room that the callback is offered",
            format!("at least {len}"),
            offered,
        )?;
        equal("what am_packed returns", Ok(len as i64), packed)?;
        check(&desk.receive()?, 9, len as u64, &data)?;
    }
    // The packer writes fewer bytes than were announced.
    let most = case.attr.max_packed.min(LONGEST);
    let written = most / 3;
    let packed = desk.retry(|| {
        endpoint.am_packed(9, 1, most, |buffer| {
            buffer[..written].fill(0x77);
            written as i64
        })
    })?;
    equal("what am_packed returns when less was written", Ok(written as i64), packed)?;
    check(&desk.receive()?, 9, 1, &vec![0x77; written])?;
    nothing_more(&mut desk)
}

pub(super) fn a_packer_may_send_and_nothing_is_lost(case: &Case) -> Checked {
    const MOST_INSIDE: u64 = 1000;
    let mut desk = case.desk()?;
    let endpoint = desk.endpoint();
    desk.send_packed(5, b"first")?;
    check(&desk.receive()?, 5, 0, b"first")?;
    let len = case.attr.max_packed.min(64);
    let (mut inside, mut refused) = (0, None);
    let packed = desk.retry(|| {
        endpoint.am_packed(6, 6, len, |buffer| {
            while inside < MOST_INSIDE && refused.is_none() {
                match endpoint.am_short(7, inside, b"inside") {
                    Ok(_) => inside += 1,
                    Err(Status::Again) => break,
                    Err(status) => refused = Some(status),
                }
            }
            buffer[..len].fill(0x66);
            len as i64
        })
    })?;
    equal("what am_packed returns", Ok(len as i64), packed)?;
    equal("am_short while a message is packed on its endpoint", None, refused)?;
    // The contract does not say which of the two messages comes first.
    let (mut next, mut whole) = (0, 0);
    for _ in 0..=inside {
        let message = desk.receive()?;
        if message.id == 6 {
            check(&message, 6, 6, &vec![0x66; len])?;
            whole += 1;
        } else {
            check(&message, 7, next, b"inside")?;
            next += 1;
        }
    }
    equal("messages that were packed, and sent meanwhile", (1, inside), (whole, next))?;
    nothing_more(&mut desk)
}

pub(super) fn again_means_that_the_packer_was_not_called(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    let endpoint = desk.endpoint();
    let most = case.attr.max_packed;
    let mut next = 0u64;
    // The first contact may need progress; the floods get none.
    desk.send_packed(5, b"first")?;
    check(&desk.receive()?, 5, 0, b"first")?;
    // Short messages may take another path than long ones.
    for len in [8, most.min(100), most.min(8 << 10)] {
        let bound = next + (256 << 20) / len.max(64) as u64;
        let first = next;
        loop {
            let mut calls = 0;
            let sent = endpoint.am_packed(6, next, len, |buffer| {
                calls += 1;
                buffer[..len].fill(next as u8);
                len as i64
            });
            match sent {
                Ok(_) => {
                    equal("calls of the packer for a message that was sent", 1, calls)?;
                    next += 1;
                }
                Err(Status::Again) => {
                    equal("calls of the packer before AGAIN", 0, calls)?;
                    break;
                }
                Err(status) => {
                    return Err(fail("am_packed in a flood", "success or AGAIN", status));
                }
            }
            let text = format!("{} messages of {len} bytes accepted", next - first);
            holds(next < bound, "a receiver that does not poll", "AGAIN before 256 MiB", text)?;
        }
        // A packer that fails and one that claims too much get the same buffer, and leave no trace.
        for answer in [i64::from(Status::Canceled as i32), i64::MAX] {
            let mut calls = 0;
            let refused = endpoint.am_packed(6, 0, len, |_| {
                calls += 1;
                answer
            });
            if refused == Err(Status::Again) {
                equal("calls of the packer before AGAIN", 0, calls)?;
            }
        }
        for n in first..next {
            check(&desk.receive()?, 6, n, &vec![n as u8; len])?;
        }
        nothing_more(&mut desk)?;
    }
    desk.send_packed(7, b"last")?;
    check(&desk.receive()?, 7, 0, b"last")?;
    nothing_more(&mut desk)
}

pub(super) fn an_error_of_the_pack_callback_comes_back_and_sends_nothing(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    let endpoint = desk.endpoint();
    desk.send_packed(1, b"first")?;
    let most = case.attr.max_packed.min(64);
    for status in [Status::Canceled, Status::Invalid] {
        let mut called = false;
        let sent = desk.retry(|| {
            endpoint.am_packed(2, 2, most, |_| {
                called = true;
                i64::from(status as i32)
            })
        })?;
        refused("am_packed whose callback fails", sent, &[status])?;
        holds(called, "the callback", "called", "not called")?;
    }
    desk.send_packed(3, b"last")?;
    check(&desk.receive()?, 1, 0, b"first")?;
    check(&desk.receive()?, 3, 0, b"last")?;
    nothing_more(&mut desk)
}

pub(super) fn a_pack_callback_that_claims_too_much_is_refused(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    let endpoint = desk.endpoint();
    let sent = desk.retry(|| endpoint.am_packed(2, 2, 8, |buffer| buffer.len() as i64 + 1))?;
    refused(
        "a callback that claims more than its buffer",
        sent,
        &[Status::Invalid, Status::TooLarge],
    )?;
    if let Some(len) = case.attr.max_packed.checked_add(1).filter(|&len| len <= LONGEST) {
        let data = vec![0x2f; len];
        let sent = desk.retry(|| {
            endpoint.am_packed(2, 2, len, |buffer| {
                let room = buffer.len().min(len);
                buffer[..room].fill(0x2f);
                if room == len { len as i64 } else { i64::from(Status::TooLarge as i32) }
            })
        })?;
        refused_or_arrives(&mut desk, format!("am_packed of {len} bytes"), sent, &data)?;
    }
    desk.send_packed(3, b"last")?;
    check(&desk.receive()?, 3, 0, b"last")?;
    nothing_more(&mut desk)
}

pub(super) fn a_gathered_message_arrives_in_the_order_of_its_pieces(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    let endpoint = desk.endpoint();
    let mut random = Random(4);
    let most = case.attr.max_zcopy.min(LONGEST);
    let local = case.memory(most.max(1), access::REMOTE_READ)?;
    for (n, len) in lengths(case.attr.max_zcopy).into_iter().enumerate() {
        let data = random.bytes(len);
        local.write(0, &data);
        let pieces = cut(&mut random, len, (n % case.attr.max_iov.clamp(1, 64) as usize) + 1);
        let iov: Vec<Iov> = pieces.iter().map(|range| local.piece(range.clone())).collect();
        let cookie = 100 + n as u64;
        let code = desk.retry(|| endpoint.am_zcopy(11, n as u64, &iov, cookie))?;
        let message = desk.receive()?;
        equal(format!("am_zcopy of {len} bytes"), Ok(()), desk.complete(code, cookie)?.map(drop))?;
        check(&message, 11, n as u64, &data)?;
    }
    nothing_more(&mut desk)
}

pub(super) fn cut(random: &mut Random, len: usize, count: usize) -> Vec<core::ops::Range<usize>> {
    let mut ends: Vec<usize> = (1..count).map(|_| random.below(len + 1)).collect();
    ends.sort_unstable();
    ends.push(len);
    let mut start = 0;
    ends.into_iter().map(|end| core::mem::replace(&mut start, end)..end).collect()
}

pub(super) fn a_lent_payload_stays_until_it_is_released(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    desk.far().keeps_lent = true;
    let len = case.attr.max_short.min(512);
    let mut kept: Vec<Received> = Vec::new();
    for n in 0..200u64 {
        desk.send(12, n, &vec![n as u8; len])?;
        let message = desk.receive()?;
        check(&message, 12, n, &vec![n as u8; len])?;
        if message.flags & event_flags::LENT != 0 {
            if kept.len() < 4 {
                kept.push(message);
            } else {
                desk.far().interface.release(message.cookie);
            }
        }
    }
    for message in kept {
        same_bytes("a kept payload after many polls", &message.data, &message.again())?;
        desk.far().interface.release(message.cookie);
    }
    desk.far().keeps_lent = false;
    desk.send(12, 1000, b"after")?;
    check(&desk.receive()?, 12, 1000, b"after")
}

pub(super) fn closing_with_messages_in_flight_harms_nobody(case: &Case) -> Checked {
    for polls in [0, 1, 3] {
        let mut desk = case.desk()?;
        for n in 0..50u64 {
            desk.send(5, n, &[n as u8; 8])?;
        }
        for _ in 0..polls {
            desk.turn()?;
        }
        desk.close_endpoints();
        // Received messages must be complete and in order; not all need arrive.
        for _ in 0..20 {
            desk.turn()?;
        }
        for (n, message) in desk.far().messages.iter().enumerate() {
            check(message, 5, n as u64, &[n as u8; 8])?;
        }
    }
    // The interface itself is closed, with messages that were not polled.
    let mut desk = case.desk()?;
    for n in 0..50u64 {
        desk.send(5, n, &[0; 8])?;
    }
    drop(desk);
    let mut desk = case.desk()?;
    desk.send(6, 1, b"works")?;
    check(&desk.receive()?, 6, 1, b"works")
}

pub(super) fn polling_after_a_peer_has_left_brings_nothing_twice(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    desk.send(5, 0, b"one")?;
    let peer = desk.receive()?.peer;
    desk.close_endpoints();
    for _ in 0..50 {
        desk.turn()?;
    }
    let left = desk.far().left.iter().filter(|event| event.peer == peer).count();
    holds(left <= 1, "PEER_LEFT of one peer", "at most 1", left)?;
    equal("messages after the peer has left", 0, desk.far().messages.len())
}

pub(super) fn the_memory_report_is_sane(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    desk.send(5, 0, b"one")?;
    let _ = desk.receive()?;
    let used = desk.far().interface.memory_use();
    if used.is_err_and(|status| status == Status::Unsupported) {
        return Err(Stop::Skip("has no slot memory".to_string()));
    }
    let used = succeeds("memory", used)?;
    let total = used.base_bytes.saturating_add(used.peer_bytes).saturating_add(used.buffer_bytes);
    let (all, what) = (crate::measure::address_space(), "the memory of an interface");
    holds(total <= all, what, format!("at most what this process has mapped, {all}"), total)
}

impl Desk {
    fn send_packed(&mut self, id: u32, data: &[u8]) -> Checked {
        let endpoint = self.endpoint();
        let sent = self.retry(|| {
            endpoint.am_packed(id, 0, data.len(), |buffer| {
                buffer[..data.len()].copy_from_slice(data);
                data.len() as i64
            })
        })?;
        equal("what am_packed returns", Ok(data.len() as i64), sent)
    }
}

pub(crate) fn check(message: &Received, id: u32, header: u64, data: &[u8]) -> Checked {
    equal("a message's header", header, message.header)?;
    equal("a message's id", id, message.id)?;
    same_bytes(format!("the payload of message {header}"), data, &message.data)
}

/// Checks that a few polls deliver no further message.
pub(crate) fn nothing_more(desk: &mut Desk) -> Checked {
    for _ in 0..5 {
        desk.turn()?;
    }
    equal("messages that were not sent", 0, desk.far().messages.len())
}

pub(super) const SHORT: u64 = caps::AM_SHORT;
pub(super) const PACKED: u64 = caps::AM_PACKED | caps::AM_SHORT;
pub(super) const ZCOPY: u64 = caps::AM_ZCOPY;
