//! Checks of modules that connect endpoints: addresses of endpoints, calls before `connect`, and endpoints that wait.

use super::connecting::only_to_endpoints;
use super::messages::check;
use super::resources::leaves_nothing;
use super::waiting::{address_of, connect};
use crate::case::{ALL_RIGHTS, Case, Mailbox};
use crate::endpoint::Endpoint;
use crate::random::Random;
use crate::report::{Checked, Stop, equal, fail, holds, refused, same_bytes, succeeds};
use crate::watch::Patience;
use tieline_plugin_api::{Status, caps};

/// Returns an interface with an unconnected endpoint, which has this cookie, and that endpoint's address.
fn fresh(case: &Case, cookie: u64) -> Result<(Mailbox, Endpoint, Vec<u8>), Stop> {
    let mut mailbox = Mailbox::new(case.interface()?);
    let (endpoint, address) = another(case, &mut mailbox, cookie)?;
    Ok((mailbox, endpoint, address))
}

fn another(case: &Case, mailbox: &mut Mailbox, cookie: u64) -> Result<(Endpoint, Vec<u8>), Stop> {
    mailbox.cookies.push(cookie);
    let endpoint = succeeds("connect", mailbox.interface.connect(&[], &[], cookie))?;
    let address = address_of(case, &endpoint)?;
    Ok((endpoint, address))
}

fn turn(mailboxes: &mut [&mut Mailbox]) -> Checked {
    let mut any = false;
    for mailbox in mailboxes {
        any |= mailbox.turn()?;
    }
    if !any {
        std::thread::yield_now();
    }
    Ok(())
}

pub(super) fn the_address_of_an_endpoint_fits_its_stated_length_and_stays(case: &Case) -> Checked {
    only_to_endpoints(case)?;
    let (mut near, endpoint, here) = fresh(case, 1)?;
    let (mut far, back, there) = fresh(case, 1)?;
    let most = case.attr.max_endpoint_address_len as usize;
    let what = "the length of an endpoint's address";
    holds((1..=most).contains(&here.len()), what, format!("1 to {most}"), here.len())?;
    for capacity in [0, 1, here.len() - 1, here.len()] {
        let (len, overrun) = endpoint.address_into(capacity);
        equal(format!("{what} with room for {capacity}"), here.len() as i64, len)?;
        let what = format!("the address of an endpoint into {capacity} bytes");
        holds(!overrun, what, "no byte beyond them", "some")?;
    }
    let (_, second) = another(case, &mut near, 2)?;
    holds(here != second, "the addresses of two endpoints", "different ones", "the same")?;
    succeeds("connecting to the endpoint", endpoint.connect(&there))?;
    same_bytes("its address, once it was connected", &here, &address_of(case, &endpoint)?)?;
    // The peer may have learned the address before.
    succeeds("connecting to the endpoint", back.connect(&here))?;
    let patience = Patience::new();
    while back.am_short(1, 1, b"") == Err(Status::Again) {
        turn(&mut [&mut near, &mut far])?;
        patience.still("am_short of a peer that has connected", "success", "AGAIN for ever")?;
    }
    while near.messages.is_empty() {
        turn(&mut [&mut near, &mut far])?;
        patience.still("a message of a peer that had the address early", "it", "nothing")?;
    }
    same_bytes("its address, once its peer has sent", &here, &address_of(case, &endpoint)?)
}

/// The possible results of `connect` for bytes that are no address.
const NO_ADDRESS: &[Status] = &[Status::BadData, Status::Invalid, Status::Unreachable];

pub(super) fn bytes_that_are_no_address_of_an_endpoint_are_refused(case: &Case) -> Checked {
    only_to_endpoints(case)?;
    let (mut near, _, _) = fresh(case, 1)?;
    let (mut far, back, good) = fresh(case, 1)?;
    let mut random = Random(71);
    let mut short: Vec<Vec<u8>> = (0..good.len()).map(|len| good[..len].to_vec()).collect();
    short.push(Vec::new());
    for bytes in short {
        let (endpoint, _) = another(case, &mut near, 2)?;
        let said = endpoint.connect(&bytes);
        if let Err(failure) = &said {
            let what = "the reason why an endpoint is not connected";
            holds(!failure.text.is_empty(), what, "words", failure.status.constant())?;
        }
        let what = format!("connect to the first {} bytes of an address", bytes.len());
        refused(what, said, NO_ADDRESS)?;
    }
    // Bytes that resemble an address may be refused later, and do no harm.
    let mut suspects: Vec<Vec<u8>> = (0..60).map(|n| random.bytes(n * 2)).collect();
    suspects.push([good.as_slice(), &[0; 17]].concat());
    suspects.push(vec![0xff; 4096]);
    suspects.extend((0..good.len()).map(|at| {
        let mut flipped = good.clone();
        flipped[at] ^= 1 << (at % 8);
        flipped
    }));
    for bytes in suspects {
        let (endpoint, _) = another(case, &mut near, 3)?;
        if endpoint.connect(&bytes).is_ok() {
            let _ = endpoint.am_short(1, 1, b"anybody?");
        }
        let _ = near.turn()?;
        drop(endpoint);
        let _ = near.turn()?;
    }
    // The interface still works, and so does the endpoint whose address was altered.
    let (endpoint, here) = another(case, &mut near, 4)?;
    succeeds("connecting to the endpoint", endpoint.connect(&good))?;
    succeeds("connecting to the endpoint", back.connect(&here))?;
    let patience = Patience::new();
    let mut sent = false;
    while far.messages.is_empty() {
        sent = sent || endpoint.am_short(1, 5, b"").is_ok();
        turn(&mut [&mut near, &mut far])?;
        let what = "a message, behind invalid addresses";
        patience.still(what, "its arrival", "nothing")?;
    }
    check(&far.messages[0], 1, 5, b"")
}

pub(super) fn an_endpoint_that_is_not_connected_says_again(case: &Case) -> Checked {
    only_to_endpoints(case)?;
    let (mut near, endpoint, _) = fresh(case, 1)?;
    let memory = case.memory(4096, ALL_RIGHTS)?;
    let again = |what: &str, said: Result<i64, Status>| {
        let what = format!("{what} before the endpoint was connected");
        equal(what, Err(Status::Again), said)
    };
    for round in 0..5 {
        if case.has(caps::AM_SHORT) {
            again("am_short", endpoint.am_short(1, round, b""))?;
        }
        if case.has(caps::AM_PACKED) {
            let mut called = false;
            let said = endpoint.am_packed(1, round, 8, |_| {
                called = true;
                0
            });
            again("am_packed", said)?;
            holds(!called, "a packer before the endpoint was connected", "no call", "one")?;
        }
        if case.has(caps::AM_ZCOPY) {
            let said = endpoint.am_zcopy(1, round, &[memory.piece(0..8)], 9);
            again("am_zcopy", said)?;
        }
        if case.has(caps::PUT) {
            let said = endpoint.import(&case.key_of(&memory)?);
            again("import_key", said.map(|_| 0).map_err(|failure| failure.status))?;
        }
        let idle = endpoint.flush(7);
        let fine = idle == Ok(0) || idle == Err(Status::Again);
        let what = "flush before the endpoint was connected";
        holds(fine, what, "0, for nothing was posted, or AGAIN", format!("{idle:?}"))?;
        let _ = near.turn()?;
    }
    equal("completions of what was not posted", 0, near.completions.len())?;
    equal("ENDPOINT_FAILED of an endpoint that was not connected", 0, near.failed.len())
}

pub(super) fn messages_sent_before_connect_arrive_though_their_sender_has_closed(
    case: &Case,
) -> Checked {
    only_to_endpoints(case)?;
    for most in [1, 10] {
        let (mut near, endpoint, here) = fresh(case, 1)?;
        let (mut far, back, there) = fresh(case, 1)?;
        succeeds("connecting to the endpoint", back.connect(&here))?;
        let mut sent = 0;
        for _ in 0..100 {
            while sent < most && back.am_short(3, sent, b"").is_ok() {
                sent += 1;
            }
            turn(&mut [&mut near, &mut far])?;
        }
        drop(back);
        turn(&mut [&mut near, &mut far])?;
        let connected = endpoint.connect(&there);
        if sent == 0 {
            continue; // the sends of this endpoint wait until both have connected
        }
        let what = "connecting to an endpoint that has sent, and was closed";
        succeeds(what, connected)?;
        let patience = Patience::new();
        let mut seen = 0;
        while seen < sent {
            turn(&mut [&mut near, &mut far])?;
            while let Some(message) = near.messages.pop_front() {
                check(&message, 3, seen, b"")?;
                seen += 1;
            }
            let what = "messages that were accepted before connect was called here";
            if seen < sent && !near.failed.is_empty() {
                let found = format!("{seen}, and then the end of the peer");
                return Err(fail(what, format!("all {sent} messages"), found));
            }
            patience.still(what, &format!("all {sent} messages"), &format!("{seen}"))?;
        }
    }
    Ok(())
}

/// A number of peers above the number of pending connections that an endpoint is likely to hold.
const STRANGERS: u64 = 12;

pub(super) fn an_endpoint_that_waits_keeps_no_other_waiting(case: &Case) -> Checked {
    only_to_endpoints(case)?;
    let (mut near, endpoint, here) = fresh(case, 1)?;
    let (mut crowd, mut strangers) = (Mailbox::new(case.interface()?), Vec::new());
    for n in 0..STRANGERS {
        let (stranger, _) = another(case, &mut crowd, 100 + n)?;
        let _ = stranger.connect(&here);
        strangers.push(stranger);
    }
    // The peer has to wait for its turn. So has another endpoint of its interface, whose peer never connects.
    let (mut far, back, there) = fresh(case, 1)?;
    succeeds("connecting to the endpoint", back.connect(&here))?;
    let (_silent, _never, silence) = fresh(case, 1)?;
    let (waits, _) = another(case, &mut far, 2)?;
    succeeds("connecting to the endpoint", waits.connect(&silence))?;
    let _ = far.turn()?;
    succeeds("connecting to the endpoint", endpoint.connect(&there))?;
    let patience = Patience::new();
    let mut sent = false;
    while near.messages.is_empty() {
        if !sent {
            match back.am_short(2, 4, b"the peer") {
                Ok(_) => sent = true,
                Err(status) => equal("am_short of the peer", Status::Again, status)?,
            }
        }
        turn(&mut [&mut near, &mut far, &mut crowd])?;
        let what = "a message of a peer, beside an endpoint whose own peer is absent";
        patience.still(what, "its arrival", "nothing")?;
    }
    check(&near.messages[0], 2, 4, b"the peer")
}

pub(super) fn strangers_leave_nothing_behind(case: &Case) -> Checked {
    only_to_endpoints(case)?;
    let (mut near, endpoint, here) = fresh(case, 1)?;
    let (_silent, _never, silence) = fresh(case, 1)?;
    succeeds("connecting to the endpoint", endpoint.connect(&silence))?;
    let mut others = Mailbox::new(case.interface()?);
    leaves_nothing("foreign peers that were refused", (600, 60), |n| {
        let stranger = connect(case, &others.interface, &[], &mut [])?;
        if stranger.connect(&here).is_ok() {
            let _ = stranger.am_short(1, n as u64, b"");
        }
        for _ in 0..3 {
            turn(&mut [&mut near, &mut others])?;
        }
        drop(stranger);
        turn(&mut [&mut near, &mut others])?;
        near.forget();
        others.forget();
        Ok(())
    })
}
