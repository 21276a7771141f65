//! Checks of the end of a sender: data that a call has accepted reaches a living, polling peer although endpoint and interface are
//! closed directly afterwards.

use super::messages::check;
use super::waiting::{address_of, connect, reach};
use crate::case::{Case, Desk, Mailbox};
use crate::endpoint::Endpoint;
use crate::random::Random;
use crate::report::{Checked, Stop, equal, fail, succeeds};
use crate::watch::share;
use std::sync::mpsc::{Receiver, Sender, channel};
use tieline_plugin_api::{Status, caps};

/// The maximum number of messages that a sender sends before it leaves.
const MOST: u64 = 2000;
const LONGEST: usize = 32 << 10;
/// The number of consecutive polls without an event after which the receiver expects no more from a sender that has ended.
const QUIET: u32 = 100_000;

pub(super) fn messages_arrive_though_their_sender_leaves_directly(case: &Case) -> Checked {
    leave_all(case, &[1, 5, 100, MOST], 0, false)
}

/// The close of a TCP socket with unread data, for example, resets the connection in both directions.
pub(super) fn messages_arrive_though_their_sender_leaves_others_unread(case: &Case) -> Checked {
    leave_all(case, &[1, 100, MOST], 200, false)
}

pub(super) fn packed_messages_arrive_though_their_sender_leaves_directly(case: &Case) -> Checked {
    let fits = case.attr.max_packed >= case.attr.max_short.min(LONGEST);
    if fits { leave_all(case, &[1, 20, MOST], 0, true) } else { Ok(()) }
}

/// A test with two threads. The sender sends up to `most` messages and leaves. The receiver first sends `back` messages, which the
/// sender does not read.
#[derive(Clone, Copy)]
struct Leaving {
    most: u64,
    back: u64,
    packed: bool,
    /// Whether the receiver waits, before it polls, for the end of the sender: for at most a fortieth of the time limit.
    late: bool,
}

fn leave_all(case: &Case, numbers: &[u64], back: u64, packed: bool) -> Checked {
    numbers.iter().try_for_each(|&most| {
        [false, true]
            .into_iter()
            .try_for_each(|late| leave(case, Leaving { most, back, packed, late }))
    })
}

fn leave(case: &Case, leaving: Leaving) -> Checked {
    let (to_sender, from_receiver) = channel();
    let (to_receiver, from_sender) = channel();
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || send_and_leave(case, leaving, to_receiver, from_receiver));
        let receiver = scope.spawn(move || receive_all(case, leaving, to_sender, from_sender));
        [receiver, sender].into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| Stop::Fail("a thread panicked".to_string()))?
        })
    })
}

enum Word {
    Address(Vec<u8>),
    /// The receiver has sent its messages.
    Go,
    /// The sender has sent this number of messages, and is leaving.
    Sent(u64),
    /// The sender has ended.
    Gone,
}

fn gave_up() -> Stop {
    Stop::Fail("the other thread gave up".to_string())
}

/// Connects in both directions. Both sides have received a message when it returns.
fn meet(
    case: &Case,
    mailbox: &mut Mailbox,
    mine: &Sender<Word>,
    theirs: &Receiver<Word>,
) -> Result<Endpoint, Stop> {
    let tell = |address| mine.send(Word::Address(address)).map_err(|_| gave_up());
    let told = || match theirs.recv() {
        Ok(Word::Address(address)) => Ok(address),
        _ => Err(gave_up()),
    };
    let interface = mailbox.interface.clone();
    let endpoint = if case.connects_to_endpoint() {
        mailbox.cookies.push(1);
        let endpoint = connect(case, &interface, &[], &mut [])?;
        tell(address_of(case, &endpoint)?)?;
        succeeds("connect", endpoint.connect(&told()?))?;
        endpoint
    } else {
        tell(case.address_of(&interface)?)?;
        let address = told()?;
        reach(&interface, &address)?;
        connect(case, &interface, &address, &mut [mailbox])?
    };
    while let Err(status) = endpoint.am_short(1, 0, b"here") {
        equal("am_short", Status::Again, status)?;
        let _ = mailbox.turn()?;
    }
    while mailbox.messages.pop_front().is_none() {
        let _ = mailbox.turn()?;
    }
    // A side that has received the other's greeting continues alone, so its own greeting must have been sent before.
    tell(Vec::new())?;
    while !matches!(theirs.try_recv(), Ok(Word::Address(_))) {
        let _ = mailbox.turn()?;
    }
    Ok(endpoint)
}

fn send_and_leave(
    case: &Case,
    leaving: Leaving,
    mine: Sender<Word>,
    theirs: Receiver<Word>,
) -> Checked {
    let Leaving { most, packed, .. } = leaving;
    let mut mailbox = Mailbox::new(case.interface()?);
    let endpoint = meet(case, &mut mailbox, &mine, &theirs)?;
    if !matches!(theirs.recv(), Ok(Word::Go)) {
        return Err(gave_up());
    }
    let (mut random, mut sent) = (Random(21), 0);
    while sent < most {
        let data = payload(case, &mut random, sent);
        match send_one(case, &endpoint, sent, &data, packed) {
            Ok(_) => sent += 1,
            Err(Status::Again) => break,
            Err(status) => return Err(fail("sending before leaving", "success", status)),
        }
    }
    mine.send(Word::Sent(sent)).map_err(|_| gave_up())?;
    drop(endpoint);
    drop(mailbox);
    let _ = mine.send(Word::Gone); // a receiver that has failed reports the reason itself
    Ok(())
}

/// The messages are too long for a slot of a ring, and lie in memory that the sender reuses. The sender must not reuse the memory
/// before they are read, even if the endpoint is closed.
pub(super) fn messages_keep_their_bytes_though_their_sender_sends_to_others(
    case: &Case,
) -> Checked {
    let mut desk = case.desk()?;
    let mut third = Mailbox::new(case.interface()?);
    let near = desk.boxes[0].interface.clone();
    let (other, back) = if case.connects_to_endpoint() {
        desk.boxes[0].cookies.push(1);
        third.cookies.push(1);
        let other = connect(case, &near, &[], &mut [])?;
        let back = connect(case, &third.interface, &[], &mut [])?;
        succeeds("connect", other.connect(&address_of(case, &back)?))?;
        succeeds("connect", back.connect(&address_of(case, &other)?))?;
        (other, Some(back))
    } else {
        let address = case.address_of(&third.interface)?;
        reach(&near, &address)?;
        (connect(case, &near, &address, &mut [&mut third])?, None)
    };
    desk.send(1, 0, b"here")?;
    let _ = desk.receive()?;
    while let Err(status) = other.am_short(1, 0, b"here") {
        equal("am_short", Status::Again, status)?;
        look(case, &mut desk, &mut third)?;
    }
    while third.messages.pop_front().is_none() {
        look(case, &mut desk, &mut third)?;
    }
    let packed = if case.has(caps::AM_PACKED) { case.attr.max_packed } else { 0 };
    let data = |n: u64| Random(n + 1).bytes(case.attr.max_short.max(packed).min(1000));
    let send = |endpoint: &Endpoint, numbers: std::ops::Range<u64>| {
        let mut sent = numbers.clone();
        let taken = sent.find(|&n| send_one(case, endpoint, n, &data(n), false).is_err());
        taken.unwrap_or(numbers.end)
    };
    let sent = send(&desk.endpoint(), 0..25);
    desk.endpoint = None;
    // The far end learns of the close while more messages are pending than one poll delivers.
    look(case, &mut desk, &mut third)?;
    let more = send(&other, 1000..1025);
    for n in 0..sent {
        check(&desk.receive()?, 2, n, &data(n))?;
    }
    for n in 1000..more {
        let message = loop {
            if let Some(message) = third.messages.pop_front() {
                break message;
            }
            look(case, &mut desk, &mut third)?;
        };
        check(&message, 2, n, &data(n))?;
    }
    drop(back);
    Ok(())
}

/// Polls each interface once, the far end first. Interfaces that can sleep are armed before, since arming checks the event sources.
fn look(case: &Case, desk: &mut Desk, third: &mut Mailbox) -> Checked {
    for mailbox in desk.boxes.iter_mut().rev().chain([third]) {
        if case.has(caps::EVENT_FD) {
            let _ = succeeds("arm", mailbox.interface.arm())?;
        }
        let _ = mailbox.turn()?;
    }
    Ok(())
}

fn send_one(
    case: &Case,
    endpoint: &Endpoint,
    number: u64,
    data: &[u8],
    packed: bool,
) -> Result<i64, Status> {
    match !packed && data.len() <= case.attr.max_short {
        true => endpoint.am_short(2, number, data),
        false => endpoint.am_packed(2, number, data.len(), |room| {
            room[..data.len()].copy_from_slice(data);
            data.len() as i64
        }),
    }
}

fn payload(case: &Case, random: &mut Random, number: u64) -> Vec<u8> {
    let packed = if case.has(caps::AM_PACKED) { case.attr.max_packed } else { 0 };
    let len = match number % 8 {
        0 => case.attr.max_short,
        5 => packed.max(case.attr.max_short),
        _ => random.below(case.attr.max_short.min(256) + 1),
    };
    random.bytes(len.min(LONGEST))
}

fn receive_all(
    case: &Case,
    leaving: Leaving,
    mine: Sender<Word>,
    theirs: Receiver<Word>,
) -> Checked {
    let mut mailbox = Mailbox::new(case.interface()?);
    let endpoint = meet(case, &mut mailbox, &mine, &theirs)?;
    for n in 0..leaving.back {
        if endpoint.am_short(1, n, &[n as u8; 16][..case.attr.max_short.min(16)]).is_err() {
            break;
        }
    }
    mine.send(Word::Go).map_err(|_| gave_up())?;
    let Ok(Word::Sent(sent)) = theirs.recv() else { return Err(gave_up()) };
    let (mut random, mut quiet, mut gone) = (Random(21), 0, false);
    if leaving.late {
        gone = matches!(theirs.recv_timeout(share(40)), Ok(Word::Gone));
    }
    for n in 0..sent {
        let message = loop {
            if let Some(message) = mailbox.messages.pop_front() {
                break message;
            }
            if mailbox.turn()? {
                quiet = 0;
                continue;
            }
            gone |= matches!(theirs.try_recv(), Ok(Word::Gone));
            quiet += u32::from(gone);
            if quiet > QUIET {
                let expected = format!("all {sent} accepted messages");
                return Err(fail("messages of a sender that left", expected, n));
            }
            std::thread::yield_now();
        };
        quiet = 0;
        check(&message, 2, n, &payload(case, &mut random, n))?;
    }
    Ok(())
}
