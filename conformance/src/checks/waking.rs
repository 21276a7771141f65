//! Checks of waking a sleeping worker: by events while it falls asleep, by a completion, and by room.

use super::waiting::{fall_asleep, meet};
use crate::case::{ALL_RIGHTS, Case, Desk, Mailbox};
use crate::endpoint::{Endpoint, Target};
use crate::interface::readable;
use crate::random::Random;
use crate::report::{Checked, Stop, equal, fail, holds, succeeds};
use crate::watch::{Patience, patience_ms, share, waits_for};
use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tieline_plugin_api::{Status, access, caps, op_flags};

/// The shared state of two threads, which consists of numbers that only grow.
#[derive(Default)]
struct Race {
    /// The number of the race in which the sleeper is about to poll for the last time before it sleeps.
    armed: AtomicU64,
    /// The duration of the sleeper's `arm`, in nanoseconds.
    window: AtomicU64,
    over: AtomicBool,
}

/// One thread falls asleep repeatedly, and the other sends a message each time, a little earlier or later.
pub(super) fn a_message_that_comes_while_an_interface_falls_asleep_wakes_it(
    case: &Case,
) -> Checked {
    let (to_sleeper, from_sender) = channel();
    let (to_sender, from_sleeper) = channel();
    let race = &Race::default();
    let both = std::thread::scope(|scope| {
        let sleeper = scope.spawn(move || {
            let mut mailbox = Mailbox::new(case.interface()?);
            let ended = meet(case, &mut mailbox, &to_sender, &from_sender)
                .and_then(|endpoint| sleep(race, &mut mailbox).map(|()| endpoint));
            race.over.store(true, SeqCst);
            ended.map(drop)
        });
        let sender = scope.spawn(move || {
            let mut mailbox = Mailbox::new(case.interface()?);
            let endpoint = meet(case, &mut mailbox, &to_sleeper, &from_sleeper)?;
            send(race, &mut mailbox, &endpoint)
        });
        [sleeper.join(), sender.join()]
    });
    both.into_iter()
        .try_for_each(|end| end.map_err(|_| Stop::Fail("a thread panicked".to_string()))?)
}

/// The maximum number of races; they end earlier after a third of the limit.
const RACES: u64 = 200_000;

fn sleep(race: &Race, mailbox: &mut Mailbox) -> Checked {
    let (fd, end) = (fall_asleep(mailbox)?, Instant::now() + share(4));
    for n in 1..=RACES {
        if Instant::now() > end && n > 1000 {
            break;
        }
        race.armed.store(n, SeqCst);
        waits_for("a message that was sent while its receiver fell asleep");
        while mailbox.messages.is_empty() {
            let began = Instant::now();
            let sleeps = succeeds("arm", mailbox.interface.arm())?;
            let took = u64::try_from(began.elapsed().as_nanos()).unwrap_or(0);
            let _ = race.window.fetch_max(took.min(20_000), SeqCst);
            if sleeps && !readable(fd, patience_ms()) {
                let polled = mailbox.turn()?;
                let found = match polled {
                    true => {
                        "silent, and the message has arrived: between the last poll and the flag"
                    }
                    false => "silent",
                };
                let what = format!(
                    "the descriptor after `arm` number {n}, during which a message was sent"
                );
                return Err(fail(what, "readable: raise the flag, then look once more", found));
            }
            let _ = mailbox.turn()?;
        }
        equal("the header of a message", n, mailbox.messages.pop_front().map_or(0, |m| m.header))?;
    }
    Ok(())
}

fn send(race: &Race, mailbox: &mut Mailbox, endpoint: &Endpoint) -> Checked {
    let (mut random, mut turns) = (Random(77), 0u32);
    for n in 1.. {
        while race.armed.load(SeqCst) < n {
            if race.over.load(SeqCst) {
                return Ok(());
            }
            // A message may still need the sender's progress; on a single processor the sleeper needs the processor.
            turns += 1;
            match turns % 256 {
                0 => drop(mailbox.turn()?),
                1 if n % 8 == 0 => std::thread::yield_now(),
                _ => spin_loop(),
            }
        }
        let window = race.window.load(SeqCst).max(200) as usize;
        let (began, delay) = (Instant::now(), Duration::from_nanos(random.below(window) as u64));
        while began.elapsed() < delay {
            spin_loop();
        }
        while let Err(status) = endpoint.am_short(1, n, b"wake up") {
            equal("am_short", Status::Again, status)?;
            let _ = mailbox.turn()?;
        }
    }
    Ok(())
}

fn post(
    desk: &mut Desk,
    case: &Case,
    kind: &str,
    cookie: u64,
    at: &Local,
) -> Result<Result<i64, Status>, Stop> {
    let endpoint = desk.endpoint();
    let target = |key| Target { key, offset: 0, cookie, flags: op_flags::REMOTE_COMPLETION };
    let pieces = [at.memory.piece(0..at.memory.len().min(case.attr.max_short.max(8)))];
    desk.retry(|| match (kind, &at.key) {
        ("am_zcopy", _) => endpoint.am_zcopy(3, cookie, &pieces, cookie),
        ("put", Some(key)) => endpoint.rma(true, &pieces, target(key)),
        ("get", Some(key)) => endpoint.rma(false, &pieces, target(key)),
        _ => endpoint.flush(cookie),
    })
}

struct Local {
    memory: crate::sys::Memory,
    key: Option<crate::endpoint::Key>,
    _target: Option<crate::sys::Memory>,
}

pub(super) fn a_completion_wakes_a_sleeping_interface(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    let len = case.attr.max_zcopy.clamp(8, 4096);
    let (mut key, mut target) = (None, None);
    if case.has(caps::PUT | caps::GET) {
        let region = case.memory(len, ALL_RIGHTS)?;
        let packed = case.key_of(&region)?;
        key = Some(succeeds("import_key", desk.import(&packed)?)?);
        target = Some(region);
    }
    let local = Local { memory: case.memory(len, access::REMOTE_READ)?, key, _target: target };
    let mut kinds = vec!["flush"];
    kinds.extend(if case.has(caps::AM_ZCOPY) { &["am_zcopy"][..] } else { &[] });
    kinds.extend(if local.key.is_some() { &["put", "get"][..] } else { &[] });
    let mut pending = 0;
    for n in 0..60 {
        let kind = kinds[n % kinds.len()];
        let cookie = 500 + n as u64;
        let code = succeeds(kind, post(&mut desk, case, kind, cookie, &local)?)?;
        if code != 1 {
            continue;
        }
        pending += 1;
        waits_for(format!("the COMPLETION of a {kind}"));
        let patience = Patience::new();
        let taken = |desk: &mut Desk| {
            let done = &mut desk.boxes[0].completions;
            let at = done.iter().position(|event| event.cookie == cookie);
            at.map(|at| drop(done.remove(at))).is_some()
        };
        // The far end makes progress. The near end polls only when it may not sleep, or has been woken.
        let fd = succeeds("event_fd", desk.boxes[0].interface.event_fd())?;
        while !taken(&mut desk) {
            let sleeps = succeeds("arm", desk.boxes[0].interface.arm())?;
            while sleeps && !readable(fd, 1) {
                if desk.boxes.len() > 1 {
                    let _ = desk.far().turn()?;
                }
                let what = format!("the descriptor of a sleeper whose {kind} is to complete");
                patience.still(&what, "that it gets readable", "silent")?;
            }
            let _ = desk.boxes[0].turn()?;
        }
        desk.boxes.iter_mut().try_for_each(|mailbox| mailbox.turn().map(drop))?;
        desk.far().messages.clear();
    }
    match pending {
        0 => Err(Stop::Skip("every operation was complete when its call returned".to_string())),
        _ => Ok(()),
    }
}

pub(super) fn room_after_again_wakes_a_sleeping_sender(case: &Case) -> Checked {
    let mut desk = case.desk()?;
    if desk.boxes.len() < 2 {
        return Err(Stop::Skip("sender and receiver are one interface".to_string()));
    }
    let endpoint = desk.endpoint();
    let data = vec![0x29; case.attr.max_short.min(1024)];
    desk.send(4, 0, &data)?;
    let _ = desk.receive()?;
    for round in 0..5 {
        // A sender whose polls are finished finds no room by itself.
        let _ = fall_asleep(&mut desk.boxes[0])?;
        let mut sent = 0;
        while endpoint.am_short(4, sent, &data) != Err(Status::Again) {
            sent += 1;
            holds(sent < 1 << 22, "a receiver that does not poll", "AGAIN", "room without end")?;
        }
        let fd = fall_asleep(&mut desk.boxes[0])?;
        let mut again = endpoint.am_short(4, sent, &data);
        let (mut received, patience) = (0, Patience::new());
        waits_for("room after AGAIN, while the receiver polls");
        while again == Err(Status::Again) {
            let _ = desk.far().turn()?;
            received += desk.far().messages.len();
            desk.far().messages.clear();
            if !readable(fd, 0) {
                let what = format!("the descriptor of a sender after AGAIN (round {round})");
                let found = format!("silent, with {received} of {sent} messages polled");
                patience.still(&what, "readable when there is room", &found)?;
                continue;
            }
            let _ = desk.boxes[0].turn()?;
            again = endpoint.am_short(4, sent, &data);
            let _ = fall_asleep(&mut desk.boxes[0])?;
        }
        equal("am_short with room", Ok(0), again)?;
        while received < sent as usize + 1 {
            desk.turn()?;
            received += desk.far().messages.len();
            desk.far().messages.clear();
        }
    }
    Ok(())
}
