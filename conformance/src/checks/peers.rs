//! Checks of several peers: the sender of each message, and the effect of one peer's end on the others.

use crate::case::Case;
use crate::hub::{Hub, OUT};
use crate::report::{Checked, equal, same_bytes};
use crate::watch::waits_for;
use core::ops::Range;

/// The number of peers, which exceeds a table of eight.
const PEERS: usize = 12;

fn payload(peer: u32, n: u64) -> [u8; 8] {
    (u64::from(peer) << 32 | n).to_le_bytes()
}

/// Returns the bytes, cut to the module's `max_short`, which may be less than 8.
fn cut(case: &Case, bytes: &[u8; 8]) -> Vec<u8> {
    bytes[..case.attr.max_short.min(8)].to_vec()
}

pub(super) fn messages_go_to_the_peer_of_their_endpoint(case: &Case) -> Checked {
    let mut hub = Hub::of(case, PEERS)?;
    for n in 0..20 {
        // The order is alternately ascending and descending, with some peers twice.
        for step in 0..PEERS {
            let at = if n % 2 == 0 { step } else { PEERS - 1 - step };
            let number = hub.spokes[at].number;
            for twice in 0..=(n + at as u64) % 2 {
                hub.send(at, true, 2 * n + twice, &cut(case, &payload(number, n)))?;
            }
        }
        let order: Vec<usize> = match (hub.reaches_others(), n % 2) {
            (true, _) | (false, 0) => (0..PEERS).collect(),
            (false, _) => (0..PEERS).rev().collect(),
        };
        for at in order {
            let number = hub.spokes[at].number;
            for twice in 0..=(n + at as u64) % 2 {
                let message = hub.receive(Some(at))?;
                let what = format!("message {n} that was sent to peer {number} of {PEERS}");
                same_bytes(&what, &cut(case, &payload(number, n)), &message.data)?;
                equal(format!("the header of {what}"), 2 * n + twice, message.header)?;
            }
        }
    }
    Ok(())
}

/// Lets all peers send to the central interface, which must identify the sender of each message.
fn all_are_heard(case: &Case, hub: &mut Hub<'_>, rounds: Range<u64>) -> Checked {
    for n in rounds {
        for at in 0..hub.spokes.len() {
            let number = hub.spokes[at].number;
            hub.send(at, false, n, &cut(case, &payload(number, n)))?;
        }
        let mut missing: Vec<u32> = hub.spokes.iter().map(|spoke| spoke.number).collect();
        while !missing.is_empty() {
            let message = hub.receive(None)?;
            let sent = |number: &u32| cut(case, &payload(*number, n)) == message.data;
            let Some(at) = missing.iter().position(sent) else {
                let found = format!("{:02x?}", message.data);
                return Err(crate::report::fail(
                    "a message to the middle",
                    "one that was sent",
                    found,
                ));
            };
            hub.is_from(&message, missing.swap_remove(at))?;
        }
    }
    Ok(())
}

pub(super) fn a_message_says_which_of_many_peers_it_is_from(case: &Case) -> Checked {
    let mut hub = Hub::of(case, PEERS)?;
    all_are_heard(case, &mut hub, 0..20)
}

pub(super) fn a_number_means_one_peer_until_that_has_left(case: &Case) -> Checked {
    let mut hub = Hub::of(case, 4)?;
    all_are_heard(case, &mut hub, 0..2)?;
    for n in 0..30 {
        let gone = hub.spokes.remove(n * 7 % hub.spokes.len());
        drop(gone);
        if n % 3 == 0 {
            hub.turn()?;
        }
        hub.add()?;
        all_are_heard(case, &mut hub, n as u64..n as u64 + 2)?;
    }
    Ok(())
}

pub(super) fn the_end_of_one_peer_ends_no_other(case: &Case) -> Checked {
    let mut hub = Hub::of(case, 5)?;
    all_are_heard(case, &mut hub, 0..2)?;
    let mut expected = 5;
    for at in [2, 0, 2] {
        let gone = hub.spokes.remove(at);
        let cookie = OUT + u64::from(gone.number);
        drop(gone);
        expected -= 1;
        for _ in 0..50 {
            hub.turn()?;
        }
        let others = hub.middle.failed.iter().filter(|event| event.cookie != cookie);
        equal("ENDPOINT_FAILED of endpoints whose peer is there", 0, others.count())?;
        hub.middle.failed.clear();
        all_are_heard(case, &mut hub, 10..12)?;
        for at in 0..expected {
            let number = hub.spokes[at].number;
            hub.send(at, true, 7, &cut(case, &payload(number, 7)))?;
            let message = hub.receive(Some(at))?;
            same_bytes(
                "a message to a peer that stayed",
                &cut(case, &payload(number, 7)),
                &message.data,
            )?;
        }
    }
    Ok(())
}

pub(super) fn two_endpoints_to_one_peer_have_separate_orders_and_ends(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    let Some(second) = desk.second(case)? else {
        return Err(crate::report::Stop::Skip(
            "each connection is a pair of endpoints".to_string(),
        ));
    };
    let mut next = [0u64; 2];
    for n in 0..200u64 {
        let which = usize::from(n % 3 == 0);
        let endpoint = if which == 0 { desk.endpoint() } else { second.clone() };
        let data = cut(case, &payload(which as u32, next[which]));
        let code = desk.retry(|| endpoint.am_short(which as u32, next[which], &data))?;
        equal("am_short", Ok(0), code)?;
        next[which] += 1;
    }
    let mut seen = [0u64; 2];
    while seen != next {
        let message = desk.receive()?;
        let which = message.id as usize % 2;
        equal(format!("the next header on endpoint {which} of two"), seen[which], message.header)?;
        seen[which] += 1;
    }
    drop(desk.endpoint.take());
    desk.endpoint = Some(second);
    waits_for("a message on an endpoint whose twin was closed");
    for n in 0..20 {
        desk.send(1, n, b"")?;
        equal("a header on the endpoint that stayed", n, desk.receive()?.header)?;
        desk.turn()?;
    }
    Ok(())
}
