//! Checks of new connections.

use super::messages::check;
use super::waiting::{address_of, connect};
use crate::case::{Case, Mailbox};
use crate::endpoint::Endpoint;
use crate::interface::readable;
use crate::report::{Checked, Stop, equal, fail, succeeds};
use crate::watch::Patience;
use tieline_plugin_api::Status;

const COOKIE: u64 = 1;

pub(super) fn only_to_endpoints(case: &Case) -> Checked {
    match case.connects_to_endpoint() {
        true => Ok(()),
        false => Err(Stop::Skip("the module connects to interfaces".to_string())),
    }
}

fn fresh(case: &Case) -> Result<(Mailbox, Endpoint, Vec<u8>), Stop> {
    let mut mailbox = Mailbox::new(case.interface()?);
    mailbox.cookies.push(COOKIE);
    let endpoint = connect(case, &mailbox.interface, &[], &mut [])?;
    let address = address_of(case, &endpoint)?;
    Ok((mailbox, endpoint, address))
}

pub(super) fn an_endpoint_that_leads_to_nobody_wakes_its_worker(case: &Case) -> Checked {
    only_to_endpoints(case)?;
    let (mut near, endpoint, _) = fresh(case)?;
    let (mut far, gone, address) = fresh(case)?;
    drop(gone);
    if endpoint.connect(&address).is_err() {
        return Ok(()); // the call reported the failure
    }
    // A device detects the missing peer when it sends data.
    let _ = endpoint.am_short(1, 1, b"is anybody there");
    let fd = succeeds("event_fd", near.interface.event_fd())?;
    let patience = Patience::new();
    while near.failed.is_empty() {
        let sleeps = succeeds("arm", near.interface.arm())?;
        while sleeps && !readable(fd, 1) {
            let _ = far.turn()?; // the peer's worker may have to report the failure
            let what = "the descriptor of a sleeper whose endpoint was connected to a closed one";
            patience.still(what, "readable: what a call has found out is an event", "silent")?;
        }
        let _ = (near.turn()?, far.turn()?);
        let what = "an endpoint that was connected to a closed one";
        patience.still(what, "ENDPOINT_FAILED, if connect does not refuse it", "nothing")?;
    }
    Ok(())
}

/// A number of peers above the number of pending connections that an endpoint is likely to hold.
const STRANGERS: u64 = 12;

pub(super) fn a_crowd_at_an_endpoint_keeps_its_peer_not_away(case: &Case) -> Checked {
    only_to_endpoints(case)?;
    let (mut near, endpoint, here) = fresh(case)?;
    let mut others = Vec::new();
    for n in 0..STRANGERS {
        let (mut mailbox, stranger, _) = fresh(case)?;
        // A provider may refuse a foreign peer at any time.
        if stranger.connect(&here).is_ok() {
            let _ = stranger.am_short(1, 1000 + n, b"a stranger");
        }
        let _ = mailbox.turn()?;
        others.push((mailbox, stranger));
    }
    let (mut far, back, there) = fresh(case)?;
    succeeds("connecting to the endpoint", back.connect(&here))?;
    let _ = far.turn()?;
    succeeds("connecting to the endpoint", endpoint.connect(&there))?;
    let patience = Patience::new();
    let (mut sent, mut heard) = (0, 0);
    while heard < 20 {
        if sent < 20 {
            match back.am_short(2, sent, b"the peer") {
                Ok(_) => sent += 1,
                Err(status) => equal("am_short of the peer", Status::Again, status)?,
            }
        }
        let _ = (near.turn()?, far.turn()?);
        for (mailbox, stranger) in &mut others {
            let _ = mailbox.turn()?;
            let _ = stranger.am_short(1, 1000, b"a stranger");
        }
        while let Some(message) = near.messages.pop_front() {
            check(&message, 2, heard, b"the peer")?;
            heard += 1;
        }
        let what = format!("messages of a peer, beside {STRANGERS} foreign peers");
        if let Some(event) = near.failed.first().or(far.failed.first()) {
            let why = format!("ENDPOINT_FAILED: {}", String::from_utf8_lossy(&event.data));
            return Err(fail(what, "that they come", why));
        }
        patience.still(&what, "that they come", &format!("{heard} of {sent}"))?;
    }
    Ok(())
}

pub(super) fn a_message_goes_as_soon_as_connect_has_returned(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    let endpoint = desk.endpoint();
    // A few AGAIN may have another reason even without a poll; a missing connection is no valid reason.
    let sent = super::offers::at_once(|| endpoint.am_short(1, 1, b"at once"));
    equal("am_short right behind connect, before any poll", Ok(0), sent)?;
    check(&desk.receive()?, 1, 1, b"at once")
}
