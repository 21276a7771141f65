//! The close of workers: operations that were done or pending are at the target, or are reported as lost.

use super::{ENDS, End, NEVER, Open, Run, WAITING, What, progress};
use std::rc::Rc;
use std::time::Duration;
use tieline::{CompletionError, PostError, Status, Undelivered, Worker};

/// A time limit that is longer than any wait that does not hang.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Said {
    operations: usize,
    unconfirmed: bool,
}

#[derive(Default)]
pub(super) struct Unheard {
    lost: Vec<u64>,
    pub(super) forgotten: Vec<u64>,
}

impl Said {
    fn of(losses: &Undelivered) -> Said {
        let losses = &losses.losses;
        Said {
            operations: losses.iter().map(|loss| loss.operations).sum(),
            unconfirmed: losses.iter().any(|loss| loss.unconfirmed),
        }
    }
}

impl Run {
    pub(super) fn open_worker(&self) -> Option<Rc<Worker>> {
        let end = (0..ENDS).find(|end| !self.is_closed[*end])?;
        Some(self.workers[end].clone())
    }

    /// Flushes a worker. The flush waits for notifications, and these may wait for answers that only a step of the program gives. The
    /// target therefore answers this end meanwhile.
    pub(super) fn flush_worker(&mut self, end: usize) -> Result<(), String> {
        let answers = self.notices.wait_for_answers(end);
        if answers {
            self.refuse_all_of(end, true);
            self.acknowledge_all_of(end, true);
        }
        let (posted, number) = (self.model.now(), self.end(end).number);
        WAITING.set(true);
        let flushed = self.workers[end].flush();
        WAITING.set(false);
        if answers {
            self.refuse_all_of(end, false);
            self.heard.borrow_mut().acknowledged.keep_those_of(end);
        }
        self.notices.start_anew(number, posted);
        self.ask()?;
        let broken = self.end(end).broken;
        match flushed {
            Ok(()) if !broken => self.model.flushed(number, posted),
            Err(error)
                if self.is_planned(end, error.status())
                    || self.notices.may_have_failed(end, posted) =>
            {
                self.model.flush_failed(number, posted);
            }
            Err(error) if !broken => return Err(format!("the flush failed: {error}")),
            // The flush may report the failed endpoint or omit it.
            Ok(()) | Err(_) => {}
        }
        Ok(())
    }

    pub(super) fn close_worker(&mut self, end: usize, patient: bool) -> Result<(), String> {
        let (broken, number) = (self.end(end).broken, self.end(end).number);
        // The close waits for these messages.
        self.refuse_all_of(end, patient);
        self.acknowledge_all_of(end, patient);
        let posted = self.model.now();
        WAITING.set(true);
        let timeout = if patient { PATIENCE } else { Duration::ZERO };
        let closed = self.workers[end].close(timeout);
        WAITING.set(false);
        self.is_closed[end] = true;
        let doubts = self.notices.may_have_failed(end, posted);
        let said = match &closed {
            Ok(()) => Said::default(),
            Err(lost) if broken || self.is_planned(end, lost.error.status()) => Said::of(lost),
            // The close reports the failure of a notification, as a flush does.
            Err(lost) if doubts => Said::of(lost),
            Err(lost) if !patient && lost.error.status() == Status::TimedOut => Said::of(lost),
            Err(lost) => return Err(format!("closing: {lost} ({:?})", lost.error.status())),
        };
        self.has_lost[end] = closed.is_err();
        self.hear()?;
        let ended = self.end_all(end)?;
        if ended > said.operations && !broken {
            return Err(format!("{ended} operations ended as closed, and it said {closed:?}"));
        }
        // A failed message may be lost while later messages arrive.
        let known = closed.is_ok() || said.operations == 0 && !said.unconfirmed && !doubts;
        if known && !broken && !closed.is_err_and(|lost| self.is_planned(end, lost.error.status()))
        {
            let now = self.model.now();
            self.model.flushed(number, now);
        } else {
            if !said.unconfirmed && !broken {
                for _ in 0..NEVER / 20 {
                    let _ = progress(&self.b);
                    self.hear()?;
                }
                self.model.confirm(number);
            }
            self.model.lose_end(number);
        }
        if said.unconfirmed || broken {
            self.model.silence(number);
            self.notices.may_be_lost(end);
        } else {
            self.arrive(end, said.operations > 0)?;
        }
        self.is_over(end)?;
        let Some(End { number, endpoint, keys, sent, .. }) = self.ends[end].take() else {
            return Ok(());
        };
        drop((keys, endpoint));
        self.past.push((number, sent));
        Ok(())
    }

    /// Checks that all pending operations have ended. Returns the number of operations that ended as closed.
    fn end_all(&mut self, end: usize) -> Result<usize, String> {
        let mut lost = 0;
        self.ask_counted()?;
        for open in std::mem::take(&mut self.end(end).open) {
            let result = self.how(end, &open)?;
            let Open { what, landing, source, .. } = open;
            match result {
                None => return Err(format!("{what:?} is pending, and its worker is closed")),
                Some(Err(error)) if error.status() == Status::Closed && self.has_lost[end] => {
                    lost += 1;
                    self.lost(what, &error)?;
                    self.closing.add([landing, source]);
                }
                Some(result) => self.ended(end, what, result, landing, source)?,
            }
        }
        Ok(lost)
    }

    fn lost(&mut self, what: What, error: &CompletionError) -> Result<(), String> {
        self.notices.is_not_well(what);
        match what {
            What::Memory(op) => self.model.lose(op),
            // The message may have been sent, and then all earlier messages were sent too.
            What::Message(serial) | What::Long(serial) | What::Delivery(serial) => {
                self.unheard.lost.push(serial);
            }
            What::Notice(serial) => self.notices.is_lost(serial),
            What::Flush { .. } | What::FlushMessages { .. } | What::Key { .. } => {}
        }
        match error {
            CompletionError::Canceled(_) => Ok(()),
            _ => Err(format!("{what:?} ended with its worker as {error:?}")),
        }
    }

    /// Checks that sent messages are handled once the target polls. Messages whose requests were dropped may be `lost`.
    fn arrive(&mut self, end: usize, lost: bool) -> Result<(), String> {
        let Unheard { lost: known, forgotten } = &self.unheard;
        let stays = |serial: &u64| !(known.contains(serial) || lost && forgotten.contains(serial));
        let own = self.ends[end].as_ref().expect("an end");
        let sent: Vec<u64> = own.sent.iter().map(|(serial, _)| *serial).filter(stays).collect();
        for _ in self.turns() {
            let heard = self.heard.borrow();
            let left =
                |serial: &u64| !heard.headers.contains(serial) && self.failing.stands(*serial);
            if !sent.iter().any(left) {
                return Ok(());
            }
            drop(heard);
            let _ = progress(&self.b);
            self.hear()?;
        }
        Err("a message that was sent before its worker was closed has not arrived".into())
    }

    fn is_over(&self, end: usize) -> Result<(), String> {
        let worker = &self.workers[end];
        let own = self.ends[end].as_ref().expect("an end");
        let refused = match own.endpoint.send(1, 0, b"more") {
            Err(PostError::Reconnect(why)) => why.status() == Status::Closed || own.broken,
            _ => false,
        };
        let again = worker.close(Duration::ZERO).is_ok();
        match (refused, again, worker.pending()) {
            (true, true, 0) => Ok(()),
            said => Err(format!("a closed worker: refuses, closes again, has pending: {said:?}")),
        }
    }
}
