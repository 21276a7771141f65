//! Messages whose operation ends with the target's acknowledgement: when the handler returns, or later by an object that the handler
//! has taken.

use super::long::end_of;
use super::sends::{note, payload};
use super::{ENDS, Heard, Run, What};
use crate::program::Acknowledges;
use std::cell::RefCell;
use std::collections::HashSet;
use std::panic::resume_unwind;
use std::rc::Rc;
use tieline::{Acknowledgement, CompletionError, Error, SendOptions, Worker};

/// The ids of these messages, by the behaviour of their handler.
const IDS: [u16; 4] = [16, 17, 18, 19];

#[derive(Default)]
pub(super) struct Acknowledged {
    kept: Vec<(u64, Acknowledgement)>,
    given: HashSet<u64>,
    dropped: HashSet<u64>,
    /// The ends whose acknowledgements the target no longer keeps.
    gives: [bool; ENDS],
}

impl Acknowledged {
    /// Makes the target keep the acknowledgements of this end again.
    pub(super) fn keep_those_of(&mut self, end: usize) {
        self.gives[end] = false;
    }
}

pub(super) fn listen(b: &Worker, heard: &Rc<RefCell<Heard>>) -> Result<(), Error> {
    use Acknowledges::{Drops, Keeps, Panics, Returns};
    for (how, id) in [Returns, Keeps, Drops, Panics].into_iter().zip(IDS) {
        let log = heard.clone();
        b.on_message(id, move |message| {
            note(&log, message);
            let serial = message.header();
            let mut heard = log.borrow_mut();
            let log = &mut heard.acknowledged;
            match how {
                Returns => _ = log.given.insert(serial),
                Keeps if log.gives[end_of(serial)] => _ = log.given.insert(serial),
                Keeps => log.kept.extend(message.acknowledgement().map(|kept| (serial, kept))),
                Drops => {
                    let _ = (log.dropped.insert(serial), message.acknowledgement());
                }
                Panics => {
                    let _ = log.dropped.insert(serial);
                    drop(heard);
                    resume_unwind(Box::new("a handler that panics"));
                }
            }
        })?;
    }
    Ok(())
}

impl Run {
    pub(super) fn deliver(
        &mut self,
        end: usize,
        len: usize,
        how: Acknowledges,
    ) -> Result<(), String> {
        let serial = self.next_serial(end);
        let (id, bytes, head) = (IDS[how as usize], payload(serial, len), serial.to_le_bytes());
        let options = SendOptions::new().delivered();
        let options = if serial % 2 == 0 { options.header_bytes(&head) } else { options };
        let sent = self.end(end).endpoint.send_with(id, serial, &bytes, &options);
        if sent.as_ref().is_ok_and(|sent| sent.is_done()) {
            return Err(format!("message {serial:#x} was acknowledged within its call"));
        }
        if self.posted(end, What::Delivery(serial), sent, None, None)? {
            self.end(end).sent.push((serial, len));
        }
        Ok(())
    }

    /// Makes the target give or drop an acknowledgement that it has kept.
    pub(super) fn acknowledge(&mut self, nth: usize, gives: bool) {
        let mut heard = self.heard.borrow_mut();
        let log = &mut heard.acknowledged;
        if log.kept.is_empty() {
            return;
        }
        let (serial, kept) = log.kept.swap_remove(nth % log.kept.len());
        let _ = if gives { log.given.insert(serial) } else { log.dropped.insert(serial) };
        drop(heard);
        if gives {
            kept.give();
        }
    }

    /// Makes the target give all acknowledgements of this end, also those of later messages.
    pub(super) fn acknowledge_all_of(&mut self, end: usize, gives: bool) {
        let mut heard = self.heard.borrow_mut();
        let log = &mut heard.acknowledged;
        log.gives[end] |= gives;
        let is_its = |one: &(u64, Acknowledgement)| gives && end_of(one.0) == end;
        let (given, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut log.kept).into_iter().partition(is_its);
        log.kept = kept;
        log.given.extend(given.iter().map(|(serial, _)| *serial));
        drop(heard);
        given.into_iter().for_each(|(_, kept)| kept.give());
    }

    pub(super) fn acknowledge_rest(&mut self) {
        (0..ENDS).for_each(|end| self.acknowledge_all_of(end, true));
    }

    pub(super) fn is_delivered(&self, serial: u64) -> Result<(), String> {
        let heard = self.heard.borrow();
        match heard.headers.contains(&serial) && heard.acknowledged.given.contains(&serial) {
            true => Ok(()),
            false => Err(format!("message {serial:#x} ended, and was not acknowledged")),
        }
    }

    /// Checks the failure of such a message on an endpoint that continues.
    pub(super) fn is_not_delivered(
        &mut self,
        serial: u64,
        canceled: bool,
        error: &CompletionError,
    ) -> Result<(), String> {
        let heard = self.heard.borrow();
        let (came, dropped) =
            (heard.headers.contains(&serial), heard.acknowledged.dropped.contains(&serial));
        drop(heard);
        match error {
            CompletionError::Canceled(_) if dropped => Ok(()),
            CompletionError::Canceled(_) if canceled && !came => {
                self.failing.is_unsent(serial);
                Ok(())
            }
            _ => Err(format!("message {serial:#x} was not delivered: {error}")),
        }
    }
}
