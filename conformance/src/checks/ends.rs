//! Checks of the end of endpoints and interfaces.

use super::processes::meet;
use super::waiting::{address_of, connect};
use crate::case::{Case, Mailbox};
use crate::interface::readable;
use crate::load;
use crate::report::{Checked, Stop, equal, holds, succeeds};
use crate::watch::{Patience, patience_ms, waits_for};
use std::time::{Duration, Instant};
use tieline_plugin_api::Status;

pub(super) fn an_endpoint_that_is_closed_has_left_in_good_order(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    if desk.boxes.len() < 2 {
        return Err(Stop::Skip("the module connects only to itself".to_string()));
    }
    desk.send(1, 1, b"")?;
    let _ = desk.receive()?;
    desk.endpoint = None;
    let patience = Patience::new();
    loop {
        desk.turn()?;
        let far = desk.far();
        if let Some(left) = far.left.first() {
            return equal("the status of PEER_LEFT of a peer that has closed", 0, left.status);
        }
        if let Some(failed) = far.failed.first() {
            let status = Status::from_code(failed.status);
            return equal(
                "the status of ENDPOINT_FAILED whose peer has closed",
                Status::Closed,
                status,
            );
        }
        patience.still(
            "a peer that has closed its endpoint",
            "PEER_LEFT, or ENDPOINT_FAILED with CLOSED,",
            "neither",
        )?;
    }
}

pub(super) fn an_endpoint_that_leads_to_nobody_fails(case: &Case) -> Checked {
    let mut near = Mailbox::new(case.interface()?);
    let gone = case.interface()?;
    let address = match case.connects_to_endpoint() {
        true => {
            let there = connect(case, &gone, &[], &mut [])?;
            address_of(case, &there)?
        }
        false => case.address_of(&gone)?,
    };
    drop(gone);
    let endpoint = match case.connects_to_endpoint() {
        true => {
            let endpoint = connect(case, &near.interface, &[], &mut [])?;
            if endpoint.connect(&address).is_err() {
                return Ok(()); // the call reported the failure
            }
            endpoint
        }
        false => match near.interface.connect(&address, &case.identity(), 1) {
            Ok(endpoint) => endpoint,
            Err(_) => return Ok(()),
        },
    };
    let patience = Patience::new();
    loop {
        if endpoint.am_short(1, 1, b"").is_err_and(|status| status != Status::Again) {
            return Ok(());
        }
        if !near.failed.is_empty() {
            return Ok(());
        }
        if !near.turn()? {
            std::thread::yield_now();
        }
        patience.still("an endpoint whose peer was closed before", "ENDPOINT_FAILED", "nothing")?;
    }
}

pub(super) fn a_stranger_is_not_taken_for_the_peer(case: &Case) -> Checked {
    if !case.connects_to_endpoint() {
        return Err(Stop::Skip("a connecting peer identifies itself".to_string()));
    }
    let mut boxes = Vec::new();
    let mut endpoints = Vec::new();
    for _ in 0..3 {
        let mut mailbox = Mailbox::new(case.interface()?);
        mailbox.cookies.push(1);
        endpoints.push(connect(case, &mailbox.interface, &[], &mut [])?);
        boxes.push(mailbox);
    }
    let [ours, peers, strangers] = [&endpoints[0], &endpoints[1], &endpoints[2]];
    let (here, there) = (address_of(case, ours)?, address_of(case, peers)?);
    let turn = |boxes: &mut Vec<Mailbox>| boxes.iter_mut().try_for_each(|one| one.turn().map(drop));
    // The foreign peer knows the address, and connects first.
    let _ = strangers.connect(&here);
    for _ in 0..20 {
        turn(&mut boxes)?;
        let _ = strangers.am_short(6, 6, b"");
    }
    succeeds("connect", ours.connect(&there))?;
    for _ in 0..20 {
        turn(&mut boxes)?;
        let _ = strangers.am_short(6, 6, b"");
    }
    succeeds("connect", peers.connect(&here))?;
    let patience = Patience::new();
    while peers.am_short(5, 5, b"") == Err(Status::Again) {
        turn(&mut boxes)?;
        patience.still(
            "am_short of the peer",
            "success",
            "AGAIN for ever: another process has its place",
        )?;
    }
    while boxes[0].messages.is_empty() {
        turn(&mut boxes)?;
        patience.still("a message of the peer", "that it comes", "nothing")?;
    }
    for _ in 0..20 {
        turn(&mut boxes)?;
    }
    let strange = boxes[0].messages.iter().filter(|message| message.id != 5).count();
    equal("messages of whom the endpoint was not connected to", 0, strange)
}

pub(super) fn the_end_of_a_peer_wakes_also_when_a_call_has_found_it(case: &Case) -> Checked {
    for posts in [false, true] {
        let (mut desk, mut partner) = meet(case)?;
        partner.tell("echo 1")?;
        desk.send(1, 1, b"")?;
        let _ = desk.receive()?;
        let _ = partner.answer(&mut desk)?;
        let endpoint = desk.endpoint();
        partner.kill();
        let patience = Patience::new();
        while posts && endpoint.am_short(1, 2, b"").is_ok_and(|_| true) {
            patience.still(
                "am_short to a dead process",
                "an error, or AGAIN",
                "success for ever",
            )?;
        }
        let fd = succeeds("event_fd", desk.boxes[0].interface.event_fd())?;
        waits_for("ENDPOINT_FAILED or PEER_LEFT of a process that was killed");
        while desk.boxes[0].failed.is_empty() && desk.boxes[0].left.is_empty() {
            if succeeds("arm", desk.boxes[0].interface.arm())? {
                let what = "the descriptor of a sleeper whose peer has died";
                holds(readable(fd, patience_ms()), what, "readable", "silent")?;
            }
            let _ = desk.boxes[0].turn()?;
        }
    }
    Ok(())
}

pub(super) fn closing_does_not_wait_for_a_peer_that_does_nothing(case: &Case) -> Checked {
    const TIMEOUT: &str = "TIELINE_CLOSE_TIMEOUT";
    load::set(TIMEOUT, "300ms");
    let again = Case::open(&case.path, &case.name(), &case.peer_program).map_err(Stop::Fail)?;
    load::forget();
    let mut desk = again.desk()?;
    if desk.boxes.len() < 2 {
        return Err(Stop::Skip("the module connects only to itself".to_string()));
    }
    desk.send(1, 1, b"")?;
    let _ = desk.receive()?;
    let endpoint = desk.endpoint();
    let data = vec![1; case.attr.max_short.max(case.attr.max_packed).min(4096)];
    for n in 0..1 << 20 {
        let sent = match data.len() > case.attr.max_short {
            true => endpoint.am_packed(1, n, data.len(), |room| {
                room[..data.len()].copy_from_slice(&data);
                data.len() as i64
            }),
            false => endpoint.am_short(1, n, &data),
        };
        if sent.is_err() {
            break;
        }
    }
    drop(endpoint);
    let near = desk.boxes.remove(0);
    desk.endpoint = None;
    let began = Instant::now();
    waits_for("the close of an interface whose peer does not poll");
    drop(near);
    let took = began.elapsed();
    let what = format!("close of an interface whose peer does not poll, with {TIMEOUT}=300ms");
    holds(took < Duration::from_secs(3), what, "an end about then", format!("{took:?}"))
}
