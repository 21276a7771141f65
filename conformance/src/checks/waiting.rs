//! Checks of sleeping on a descriptor, and of interfaces in separate threads.

use super::messages::check;
use crate::case::{Case, Desk, Mailbox};
use crate::endpoint::Endpoint;
use crate::interface::{Interface, readable};
use crate::report::{Checked, Stop, equal, fail, holds, succeeds};
use crate::watch::patience_ms;
use std::sync::mpsc::{Receiver, Sender, channel};
use tieline_plugin_api::{Status, caps};

/// The number of times a module may ask for another poll before it agrees to sleep. In between, the check waits for its descriptor,
/// for at most a millisecond. On a busy machine each wait may take a scheduling slice of some milliseconds.
pub(super) const TRIES: u32 = 300;

/// Polls until the interface agrees to sleep.
pub(super) fn fall_asleep(mailbox: &mut Mailbox) -> Result<i32, Stop> {
    let fd = succeeds("event_fd", mailbox.interface.event_fd())?;
    holds(fd >= 0, "event_fd", "a descriptor", fd)?;
    for _ in 0..TRIES {
        while mailbox.turn()? {}
        if succeeds("arm", mailbox.interface.arm())? {
            return Ok(fd);
        }
        let _ = readable(fd, 1);
    }
    let within = format!("0 (sleep) in {TRIES} tries");
    Err(fail("arm with nothing to poll", within, "1 (poll first)"))
}

pub(super) fn a_message_wakes_a_sleeping_interface(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    desk.send(1, 0, b"first")?;
    let _ = desk.receive()?;
    for n in 0..100u64 {
        let fd = fall_asleep(desk.far())?;
        desk.send(1, n, b"wake up")?;
        holds(
            readable(fd, patience_ms()),
            format!("the descriptor after message {n}"),
            "readable",
            "silent",
        )?;
        check(&desk.receive()?, 1, n, b"wake up")?;
    }
    Ok(())
}

pub(super) fn a_first_contact_wakes_a_sleeping_interface(case: &Case) -> Checked {
    let mut far = Mailbox::new(case.interface()?);
    let address = case.address_of(&far.interface)?;
    let near = case.interface()?;
    let mut there = None;
    let (endpoint, fd) = if case.connects_to_endpoint() {
        let there = there.insert(connect(case, &far.interface, &[], &mut [])?);
        far.cookies.push(1);
        let endpoint = connect(case, &near, &[], &mut [])?;
        succeeds("connect", there.connect(&address_of(case, &endpoint)?))?;
        let fd = fall_asleep(&mut far)?;
        succeeds("connect", endpoint.connect(&address_of(case, there)?))?;
        (endpoint, fd)
    } else {
        reach(&near, &address)?;
        let fd = fall_asleep(&mut far)?;
        (connect(case, &near, &address, &mut [&mut far])?, fd)
    };
    while let Err(status) = endpoint.am_short(1, 1, b"hello") {
        equal("am_short", Status::Again, status)?;
        let _ = succeeds("poll", near.poll(16))?;
        if readable(fd, 0) {
            let _ = far.turn()?;
        }
    }
    while far.messages.is_empty() {
        let fd = fall_asleep(&mut far)?;
        if far.messages.is_empty() {
            let _ = succeeds("poll", near.poll(16))?;
            holds(
                readable(fd, patience_ms()),
                "the descriptor after a first contact",
                "readable",
                "silent",
            )?;
        }
    }
    Ok(())
}

pub(super) fn address_of(case: &Case, endpoint: &Endpoint) -> Result<Vec<u8>, Stop> {
    let capacity = case.attr.max_endpoint_address_len as usize;
    succeeds("the endpoint's address", endpoint.address(capacity))
}

pub(super) fn reach(near: &Interface, address: &[u8]) -> Checked {
    near.reachable(address).map_err(|why| Stop::Skip(format!("not reachable: {why}")))
}

pub(super) fn connect(
    case: &Case,
    near: &Interface,
    address: &[u8],
    others: &mut [&mut Mailbox],
) -> Result<Endpoint, Stop> {
    loop {
        match near.connect(address, &case.identity(), 1) {
            Err(failure) if failure.status == Status::Again => {
                let _ = succeeds("poll", near.poll(16))?;
                for other in others.iter_mut() {
                    let _ = other.turn()?;
                }
            }
            other => return succeeds("connect", other),
        }
    }
}

pub(super) fn two_threads_exchange_messages(case: &Case) -> Checked {
    let (to_a, from_b) = channel();
    let (to_b, from_a) = channel();
    std::thread::scope(|scope| {
        let a = scope.spawn(|| converse(case, to_b, from_b));
        let b = scope.spawn(|| converse(case, to_a, from_a));
        [a, b].into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| Stop::Fail("a thread panicked".to_string()))?
        })
    })
}

pub(super) fn meet(
    case: &Case,
    mailbox: &mut Mailbox,
    mine: &Sender<Vec<u8>>,
    theirs: &Receiver<Vec<u8>>,
) -> Result<Endpoint, Stop> {
    let gone = || Stop::Fail("the other thread gave up".to_string());
    let interface = mailbox.interface.clone();
    if case.connects_to_endpoint() {
        mailbox.cookies.push(1);
        let endpoint = connect(case, &interface, &[], &mut [])?;
        mine.send(address_of(case, &endpoint)?).map_err(|_| gone())?;
        let address = theirs.recv().map_err(|_| gone())?;
        succeeds("connect", endpoint.connect(&address))?;
        return Ok(endpoint);
    }
    mine.send(case.address_of(&interface)?).map_err(|_| gone())?;
    let address = theirs.recv().map_err(|_| gone())?;
    reach(&interface, &address)?;
    connect(case, &interface, &address, &mut [mailbox])
}

fn converse(case: &Case, mine: Sender<Vec<u8>>, theirs: Receiver<Vec<u8>>) -> Checked {
    const MESSAGES: u64 = 4_000;
    let gone = || Stop::Fail("the other thread gave up".to_string());
    let mut mailbox = Mailbox::new(case.interface()?);
    let endpoint = meet(case, &mut mailbox, &mine, &theirs)?;
    let (mut sent, mut received) = (0, 0);
    while sent < MESSAGES || received < MESSAGES {
        let before = sent;
        if sent < MESSAGES {
            match endpoint.am_short(1, sent, &sent.to_le_bytes()) {
                Ok(_) => sent += 1,
                Err(Status::Again) => {}
                Err(status) => return Err(fail("am_short between threads", "success", status)),
            }
        }
        // If there is room for few messages, the other thread needs the processor after each few.
        if !mailbox.turn()? && sent == before {
            std::thread::yield_now();
        }
        while let Some(message) = mailbox.messages.pop_front() {
            check(&message, 1, received, &received.to_le_bytes())?;
            received += 1;
        }
    }
    // Neither side closes while the other still waits for its messages.
    mine.send(Vec::new()).map_err(|_| gone())?;
    while theirs.try_recv().is_err() {
        if !mailbox.turn()? {
            std::thread::yield_now();
        }
    }
    Ok(())
}

pub(super) fn an_endpoint_that_is_closed_at_once_harms_nobody(case: &Case) -> Checked {
    for _ in 0..50 {
        let mut desk: Desk = case.desk()?;
        desk.close_endpoints();
        desk.turn()?;
    }
    Ok(())
}

pub(super) const WAITS: u64 = caps::EVENT_FD | caps::AM_SHORT;
