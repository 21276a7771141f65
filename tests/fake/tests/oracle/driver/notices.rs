//! Notifications with bytes, which follow other operations.

use super::puts::op_of;
use super::sends::payload;
use super::{Heard, Open, Run, What};
use crate::program::{Follows, TARGET};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use tieline::{After, CompletionError, Error, Outcome, PostError, Region, Status, Worker};

pub(super) const ID: u16 = 21;

/// What the target has seen.
pub(super) enum Seen {
    /// The notification of a put.
    Word(u32),
    /// A notification with bytes, after this number of messages.
    Notice { serial: u64, messages: usize },
}

/// A notification that was posted.
struct Notice {
    end: usize,
    /// The number of its endpoint.
    number: usize,
    /// The operations on memory that it follows, and whether each has to succeed.
    follows: Vec<(usize, bool)>,
    /// The messages that arrive before it.
    messages: Vec<u64>,
    /// The operations that it follows, of any kind. `None`: everything.
    after: Option<Vec<What>>,
    has_arrived: bool,
    /// Whether it has to arrive, because its operation has succeeded.
    owes: bool,
    /// The moment at which its own result has reported its failure.
    failed: Option<u64>,
    /// Whether an operation that it follows had failed before.
    must_fail: bool,
    /// Whether it failed with an error that any operation of the end may have.
    is_excused: bool,
}

#[derive(Default)]
pub(super) struct Notices {
    posted: HashMap<u64, Notice>,
    /// The moment after which an endpoint's operations have to succeed for a notification that follows everything.
    since: HashMap<usize, u64>,
    /// The failed operations of every kind, and those whose result is unknown.
    not_well: HashSet<What>,
}

impl Notices {
    /// Records that the end's notifications may be lost, because its connection is.
    pub(super) fn may_be_lost(&mut self, end: usize) {
        let own = self.posted.values_mut().filter(|notice| notice.end == end);
        own.for_each(|notice| notice.owes = false);
    }

    /// Records that a notification ended with its worker, so that it may or may not arrive.
    pub(super) fn is_lost(&mut self, serial: u64) {
        if let Some(notice) = self.posted.get_mut(&serial) {
            notice.owes = false;
        }
    }

    /// Records that the endpoint's next notification that follows everything starts anew.
    pub(super) fn start_anew(&mut self, number: usize, now: u64) {
        let _ = self.since.insert(number, now);
    }

    /// Records that an operation that the notification follows had failed before.
    pub(super) fn must_fail(&mut self, serial: u64) {
        if let Some(notice) = self.posted.get_mut(&serial) {
            notice.must_fail = true;
        }
    }

    /// Checks whether a flush of the end that was posted at this moment may report a notification. Each failure is reported once: not
    /// by a flush that was posted after the notification's own result had reported it.
    pub(super) fn may_have_failed(&self, end: usize, posted: u64) -> bool {
        let may = |notice: &Notice| {
            !notice.owes && !notice.has_arrived && notice.failed.is_none_or(|at| at > posted)
        };
        self.posted.values().any(|notice| notice.end == end && may(notice))
    }

    /// Checks whether a notification of the end may wait for the target's answer to a message.
    pub(super) fn wait_for_answers(&self, end: usize) -> bool {
        let waits = |what: &What| matches!(what, What::Delivery(_) | What::Long(_));
        let open = |notice: &&Notice| {
            notice.end == end && !notice.has_arrived && !notice.owes && notice.failed.is_none()
        };
        let mut open = self.posted.values().filter(open);
        open.any(|notice| notice.after.as_ref().is_some_and(|after| after.iter().any(waits)))
    }

    /// Records an operation that may not have succeeded.
    pub(super) fn is_not_well(&mut self, what: What) {
        let _ = self.not_well.insert(what);
    }
}

pub(super) fn listen(b: &Worker, heard: &Rc<RefCell<Heard>>, target: &Region) -> Result<(), Error> {
    let (log, memory) = (heard.clone(), target.clone());
    b.on_message(ID, move |message| {
        let (serial, mut log) = (message.header(), log.borrow_mut());
        if message.payload() != payload(serial, message.payload().len()) {
            log.trouble = Some(format!("notification {serial:#x} has other bytes"));
        }
        let seen = Seen::Notice { serial, messages: log.headers.len() };
        log.told.push((seen, memory.to_vec(0..TARGET).unwrap_or_default()));
    })
}

impl Run {
    pub(super) fn notify(
        &mut self,
        end: usize,
        follows: Follows,
        len: usize,
    ) -> Result<(), String> {
        let serial = self.next_serial(end);
        let bytes = payload(serial, len);
        let own = self.ends[end].as_ref().expect("an end");
        let (from, by_number) = match follows {
            Follows::Everything => return self.notify_after_everything(end, serial, &bytes),
            Follows::Operations(from) => (from, false),
            Follows::Numbers(from) => (from, true),
        };
        let open: Vec<&Open> = own.open.iter().skip(from % own.open.len().max(1)).take(3).collect();
        let outcomes: Vec<&Outcome> = open.iter().map(|open| &open.outcome).collect();
        let numbers: Vec<u64> = open.iter().map(|open| open.request().number()).collect();
        let after = if by_number { After::Numbers(&numbers) } else { After::Operations(&outcomes) };
        let sent = own.endpoint.notify(after, ID, serial, &bytes);
        let tracked = open.iter().any(|open| open.word.is_some());
        if tracked
            && matches!(&sent, Err(PostError::Correct(why)) if why.status() == Status::Invalid)
        {
            return Ok(()); // the completion list has the result of one of them
        }
        let after: Vec<What> = open.iter().map(|open| open.what).collect();
        let memory = after.iter().filter_map(|what| match what {
            What::Memory(op) => Some((*op, true)),
            _ => None,
        });
        self.add_notice(end, serial, (memory.collect(), Vec::new()), Some(after));
        self.notice_posted(end, serial, sent).map(|_| ())
    }

    fn notify_after_everything(
        &mut self,
        end: usize,
        serial: u64,
        bytes: &[u8],
    ) -> Result<(), String> {
        let (number, now) = (self.end(end).number, self.model.now());
        let since = self.notices.since.get(&number).copied().unwrap_or(0);
        let follows = self.model.posted_by(number, since);
        let messages = self.end(end).sent.iter().map(|(serial, _)| *serial).collect();
        let sent = self.end(end).endpoint.notify(After::Everything, ID, serial, bytes);
        self.add_notice(end, serial, (follows, messages), None);
        if self.notice_posted(end, serial, sent)? {
            self.notices.start_anew(number, now);
        }
        Ok(())
    }

    pub(super) fn add_notice(
        &mut self,
        end: usize,
        serial: u64,
        (follows, messages): (Vec<(usize, bool)>, Vec<u64>),
        after: Option<Vec<What>>,
    ) {
        let number = self.end(end).number;
        let notice = Notice {
            end,
            number,
            follows,
            messages,
            after,
            has_arrived: false,
            owes: false,
            failed: None,
            must_fail: false,
            is_excused: false,
        };
        let _ = self.notices.posted.insert(serial, notice);
    }

    pub(super) fn notice_posted(
        &mut self,
        end: usize,
        serial: u64,
        sent: Result<Outcome, PostError>,
    ) -> Result<bool, String> {
        let posted = self.posted(end, What::Notice(serial), sent, None, None)?;
        if !posted {
            let _ = self.notices.posted.remove(&serial);
        }
        Ok(posted)
    }

    /// Handles all notifications that the target has seen, in their order.
    pub(super) fn hear(&mut self) -> Result<(), String> {
        let told = std::mem::take(&mut self.heard.borrow_mut().told);
        for (seen, memory) in told {
            match seen {
                Seen::Word(word) => {
                    op_of(word).map_or(Ok(()), |op| self.model.notified(op, &memory))?;
                }
                Seen::Notice { serial, messages } => self
                    .notice_arrived(serial, messages, &memory)
                    .map_err(|why| format!("notification {serial:#x} has arrived: {why}"))?,
            }
        }
        Ok(())
    }

    fn notice_arrived(
        &mut self,
        serial: u64,
        messages: usize,
        memory: &[u8],
    ) -> Result<(), String> {
        let Some(notice) = self.notices.posted.get_mut(&serial) else {
            return Err("it was not posted".into());
        };
        if std::mem::replace(&mut notice.has_arrived, true) {
            return Err("it arrived before".into());
        }
        if notice.failed.is_some() || notice.must_fail {
            return Err("its operation, or one before it, has failed".into());
        }
        let follows = std::mem::take(&mut notice.follows);
        self.model.followed(&follows, memory)?;
        let heard = self.heard.borrow();
        let stays = |serial: &&u64| {
            let what = [What::Message(**serial), What::Delivery(**serial), What::Long(**serial)];
            self.failing.stands(**serial)
                && !what.iter().any(|what| self.failing.is_asked_back(*what))
        };
        let mut before = notice.messages.iter().filter(stays);
        match before.find(|serial| !heard.headers[..messages].contains(serial)) {
            Some(before) => Err(format!("message {before:#x} before it has not arrived")),
            None => Ok(()),
        }
    }

    pub(super) fn is_sent(&mut self, serial: u64) -> Result<(), String> {
        match self.notices.posted.get_mut(&serial) {
            Some(notice) if !notice.must_fail => {
                // The transport has accepted the message, and may lose it with the connection.
                notice.owes = self.ends[notice.end].as_ref().is_some_and(|own| !own.broken);
                Ok(())
            }
            _ => Err(format!("notification {serial:#x} ended well, behind a failure")),
        }
    }

    /// Checks the failure of a notification on an endpoint that continues.
    pub(super) fn is_not_sent(
        &mut self,
        end: usize,
        serial: u64,
        error: &CompletionError,
    ) -> Result<(), String> {
        let (is_excused, now) = (self.is_planned(end, error.status()), self.model.now());
        let Some(notice) = self.notices.posted.get_mut(&serial) else {
            return Err(format!("notification {serial:#x} failed, and was not posted"));
        };
        (notice.failed, notice.is_excused) = (Some(now), is_excused);
        let of_another =
            matches!(error, CompletionError::Canceled(_) | CompletionError::Refused(_));
        match (notice.has_arrived, is_excused || of_another || notice.must_fail) {
            (false, true) => {
                // The notification has reported the failure of its lanes, with the locally completed puts on them.
                if is_excused {
                    self.model.flush_failed(notice.number, now);
                }
                Ok(())
            }
            (came, _) => Err(format!("notification {serial:#x} (came: {came}) failed: {error}")),
        }
    }

    /// Returns a notification that was sent and has not arrived.
    pub(super) fn unseen(&self) -> Option<u64> {
        let mut posted = self.notices.posted.iter();
        let unseen = posted.find(|(_, notice)| notice.owes && !notice.has_arrived);
        unseen.map(|(serial, _)| *serial)
    }

    /// Checks that each failed notification follows an operation that failed.
    pub(super) fn notices_failed_for_a_reason(&self) -> Result<(), String> {
        let well = |what: &What| !self.notices.not_well.contains(what);
        let groundless = self.notices.posted.iter().find(|(_, notice)| {
            let is_bare = notice.failed.is_some() && !notice.is_excused;
            is_bare && notice.after.as_ref().is_some_and(|after| after.iter().all(well))
        });
        match groundless {
            Some((serial, notice)) => {
                Err(format!("notification {serial:#x} failed without reason: {:?}", notice.after))
            }
            None => Ok(()),
        }
    }
}
