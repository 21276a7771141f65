//! Rendezvous messages: the target keeps the announcements, and receives or refuses the messages later.

use super::closing::{Closing, Own};
use super::{Heard, Run, What, lies};
use crate::driver::sends::payload;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use tieline::{
    CompletionError, Error, Message, Outcome, PostError, Rendezvous, Request, Status, Worker,
};

pub(super) const LONG: u16 = 14;
/// The serial number that represents a message that was never sent.
pub(super) const NOT_SENT: u64 = u64::MAX;
/// The byte that fills the destination of a receive and its surroundings.
const GUARD: u8 = 0xee;
/// The length in bytes of the guard on either side.
const GUARDED: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Well,
    Badly,
}

struct Taking {
    serial: u64,
    request: Request,
    own: Own,
    len: usize,
}

#[derive(Default)]
pub(super) struct Long {
    /// The length of each sent message, by its serial number.
    lens: HashMap<u64, usize>,
    taking: Vec<Taking>,
    taken: HashMap<u64, Taken>,
    /// The messages whose sender was notified that the sender owns the bytes again.
    back: Vec<u64>,
    /// The memory of receives that may still be in use.
    closing: Closing,
}

fn hear(heard: &RefCell<Heard>, message: &Message<'_>) {
    let (serial, announcement) = (message.header(), message.rendezvous());
    let mut log = heard.borrow_mut();
    log.headers.push(serial);
    match announcement {
        Some(announcement) if log.refuses[end_of(serial)] => {
            log.refused.push(serial);
            drop(log);
            announcement.refuse();
        }
        Some(announcement) => log.kept.push((serial, announcement)),
        None if message.payload() == payload(serial, message.payload().len()) => {}
        None => log.trouble = Some(format!("message {serial:#x} has other bytes than were sent")),
    }
}

pub(super) fn end_of(serial: u64) -> usize {
    (serial >> 56) as usize
}

impl Run {
    pub(super) fn send_long(&mut self, end: usize, more: usize) -> Result<(), String> {
        let serial = self.next_serial(end);
        let own = self.ends[end].as_ref().expect("an end");
        let Ok(most) = own.endpoint.max_message() else { return Ok(()) };
        let len = most + 1 + more;
        let sent = own.endpoint.send(LONG, serial, &payload(serial, len));
        if matches!(&sent, Err(PostError::Correct(why)) if why.status() == Status::TooLarge) {
            // On a lane whose messages are this small, the RTS itself is too long.
            return if most < 512 { Ok(()) } else { Err(format!("{sent:?}")) };
        }
        if self.posted(end, What::Long(serial), sent, None, None)? {
            self.end(end).sent.push((serial, len));
            let _ = self.long.lens.insert(serial, len);
        }
        Ok(())
    }

    /// Makes the target receive a message, or its first bytes.
    pub(super) fn take(&mut self, nth: usize, quarters: usize) -> Result<(), String> {
        let mut heard = self.heard.borrow_mut();
        if heard.kept.is_empty() {
            return Ok(());
        }
        let at = nth % heard.kept.len();
        let (serial, announcement) = heard.kept.remove(at);
        drop(heard);
        self.take_this(serial, announcement, quarters)
    }

    pub(super) fn take_this(
        &mut self,
        serial: u64,
        announcement: Rendezvous,
        quarters: usize,
    ) -> Result<(), String> {
        let sent = self.long.lens.get(&serial).copied();
        let id = if serial == NOT_SENT { lies::NEVER_SENT } else { LONG };
        if sent.is_some_and(|len| len != announcement.len()) || announcement.id() != id {
            return Err(format!("{announcement:?}, of which {sent:?} bytes were sent"));
        }
        let len = match serial {
            // A forged announcement may state any length.
            NOT_SENT => lies::LEN * quarters / 4,
            _ => announcement.len() * quarters / 4,
        };
        let more = len > announcement.len();
        let own = Own::new(&self.at_b, &vec![GUARD; len + 2 * GUARDED]);
        let own = own.map_err(|error| error.to_string())?;
        let received = match quarters % 2 {
            0 => announcement.receive_into(&own.region, GUARDED..GUARDED + len),
            _ => announcement.receive_into_pieces(&own.pieces(GUARDED, len)),
        };
        match received {
            Ok(_) if more => Err(format!("{len} bytes of a shorter message were taken")),
            Ok(Outcome::Done(_)) => self.has_taken(serial, own, len, Ok(0)),
            Ok(Outcome::Pending(request)) => {
                self.long.taking.push(Taking { serial, request, own, len });
                Ok(())
            }
            Err(not) if matches!(not.error, PostError::Retry(_)) && serial != NOT_SENT => {
                self.long.closing.add([Some(own)]);
                self.heard.borrow_mut().kept.push((serial, not.announcement));
                Ok(())
            }
            Err(not) if serial == NOT_SENT || self.may_fail(serial) => {
                self.long.closing.add([Some(own)]);
                if serial != NOT_SENT {
                    self.heard.borrow_mut().refused.push(serial);
                }
                not.announcement.refuse();
                Ok(())
            }
            Err(not) => Err(format!("long message {serial:#x} cannot be taken: {not}")),
        }
    }

    pub(super) fn refuse(&mut self, nth: usize) {
        let mut heard = self.heard.borrow_mut();
        if heard.kept.is_empty() {
            return;
        }
        let at = nth % heard.kept.len();
        let (serial, announcement) = heard.kept.remove(at);
        heard.refused.push(serial);
        drop(heard);
        announcement.refuse();
    }

    /// Makes the target drop the kept messages of this end, and all later messages.
    pub(super) fn refuse_all_of(&mut self, end: usize, refuses: bool) {
        let mut heard = self.heard.borrow_mut();
        heard.refuses[end] = refuses;
        let is_its = |one: &(u64, Rendezvous)| refuses && end_of(one.0) == end;
        let (refused, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut heard.kept).into_iter().partition(is_its);
        heard.kept = kept;
        heard.refused.extend(refused.iter().map(|(serial, _)| *serial));
        drop(heard);
        drop(refused);
    }

    /// Receives or refuses the remaining messages; afterwards the target keeps none.
    pub(super) fn take_rest(&mut self) -> Result<(), String> {
        self.heard.borrow_mut().refuses = [true; 2];
        let kept = std::mem::take(&mut self.heard.borrow_mut().kept);
        for (at, (serial, announcement)) in kept.into_iter().enumerate() {
            self.take_this(serial, announcement, 4 - at % 4)?;
        }
        for quarters in (0..=4).rev() {
            self.take_lie(quarters)?;
        }
        // The loop retries messages whose receive was refused.
        while !self.heard.borrow().kept.is_empty() {
            self.refuse(0);
        }
        Ok(())
    }

    fn may_fail(&self, serial: u64) -> bool {
        let end = end_of(serial);
        let number = (serial >> 32) as usize & 0xff_ffff;
        let goes_on = self.ends[end].as_ref().is_some_and(|own| own.number == number);
        !goes_on || self.has_broken[end] || self.may_be_planned(end)
    }

    pub(super) fn ask_taking(&mut self) -> Result<(), String> {
        for taking in std::mem::take(&mut self.long.taking) {
            match self.b.test(&taking.request) {
                None => self.long.taking.push(taking),
                Some(result) => {
                    let Taking { serial, request, own, len } = taking;
                    drop(request);
                    self.has_taken(serial, own, len, result)?;
                }
            }
        }
        // The regions are closed without progress, because progress runs handlers.
        self.long.closing.try_all(None)?;
        self.long.closing.look()
    }

    fn has_taken(
        &mut self,
        serial: u64,
        own: Own,
        len: usize,
        result: Result<u64, CompletionError>,
    ) -> Result<(), String> {
        let bytes = own.bytes();
        let inner = &bytes[GUARDED..GUARDED + len];
        let guards = bytes[..GUARDED].iter().chain(&bytes[GUARDED + len..]);
        if guards.copied().any(|byte| byte != GUARD) {
            return Err(format!("long message {serial:#x} was written beside its range"));
        }
        self.long.closing.add([Some(own)]);
        if serial == NOT_SENT {
            return match result {
                Ok(_) if !lies::are_untouched(inner) => {
                    Err(format!("a lie was taken well, as {inner:x?}"))
                }
                _ => Ok(()),
            };
        }
        let what = What::Long(serial);
        let ended = match result {
            Ok(_) if inner != &payload(serial, len)[..] => {
                return Err(format!("long message {serial:#x} has other bytes than were sent"));
            }
            Ok(_) if self.long.back.contains(&serial) => {
                return Err(format!("{what:?} was taken, and its sender has it back"));
            }
            Ok(_) => Taken::Well,
            Err(_) if self.may_fail(serial) => Taken::Badly,
            Err(CompletionError::Canceled(_)) if self.failing.is_asked_back(what) => Taken::Badly,
            Err(error) => return Err(format!("{what:?} could not be taken: {error}")),
        };
        match self.long.taken.insert(serial, ended) {
            None => Ok(()),
            Some(before) => Err(format!("{what:?} was taken twice: {before:?}, {ended:?}")),
        }
    }

    pub(super) fn is_taken(&mut self, end: usize, serial: u64) -> Result<(), String> {
        self.ask_taking()?;
        let len = self.long.lens.get(&serial).copied();
        let own = self.ends[end].as_ref().expect("an end");
        let was_plain = || own.endpoint.max_message().is_ok_and(|most| len <= Some(most));
        match self.long.taken.get(&serial) {
            Some(Taken::Well) => Ok(()),
            None if was_plain() => Ok(()),
            other => Err(format!("long message {serial:#x} ended well, and is taken: {other:?}")),
        }
    }

    /// Records that the sender was notified of a refusal, or of the receive of a part.
    pub(super) fn is_not_taken(
        &mut self,
        end: usize,
        serial: u64,
        error: &CompletionError,
    ) -> Result<(), String> {
        self.ask_taking()?;
        let what = What::Long(serial);
        let failed = self.long.taken.get(&serial) == Some(&Taken::Badly);
        let is_refused = self.heard.borrow().refused.contains(&serial);
        match error {
            CompletionError::Refused(_) if is_refused => Ok(()),
            CompletionError::Canceled(_) if self.failing.is_asked_back(what) => {
                self.long.back.push(serial);
                // The message was cancelled in the queue, so the target never receives it.
                if !self.heard.borrow().headers.contains(&serial) {
                    self.failing.is_unsent(serial);
                }
                match self.long.taken.get(&serial) {
                    Some(Taken::Well) => Err(format!("{what:?} came back, and was taken")),
                    _ => Ok(()),
                }
            }
            _ if failed || self.is_planned(end, error.status()) => Ok(()),
            _ => Err(format!("{what:?} failed: {error} ({:?})", error.status())),
        }
    }

    /// Waits until the target has no receive in progress.
    pub(super) fn nothing_is_taken(&mut self) -> Result<(), String> {
        self.ask_taking()?;
        let open: Vec<u64> = self.long.taking.iter().map(|taking| taking.serial).collect();
        match open.is_empty() {
            true => Ok(()),
            false => Err(format!("the target never ends to take {open:x?}")),
        }
    }

    pub(super) fn memory_taken_into(&mut self) -> Option<String> {
        self.long.closing.held()
    }

    pub(super) fn is_taking_of(&self, end: usize) -> bool {
        self.long.taking.iter().any(|taking| end_of(taking.serial) == end)
    }

    pub(super) fn takes_nothing(&self) -> bool {
        self.long.taking.is_empty()
    }
}

pub(super) fn listen(b: &Worker, heard: &Rc<RefCell<Heard>>) -> Result<(), Error> {
    let log = heard.clone();
    b.on_message(LONG, move |message| hear(&log, message))
}
