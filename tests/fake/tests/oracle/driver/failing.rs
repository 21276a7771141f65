//! Single operations that fail or are cancelled, on endpoints that remain usable.

use super::{ENDS, Own, Run, What};
use tieline::{CompletionError, PostError, Status};
use tieline_fake::{Act, Rule, Slot};

pub(super) const PLANNED: Status = Status::KeyRejected;

#[derive(Default)]
pub(super) struct Failing {
    /// Whether operations of each end's worker may fail after this point.
    planned: [bool; ENDS],
    back: Vec<What>,
    unsent: Vec<u64>,
}

impl Failing {
    pub(super) fn stands(&self, serial: u64) -> bool {
        !self.unsent.contains(&serial)
    }

    pub(super) fn is_unsent(&mut self, serial: u64) {
        self.unsent.push(serial);
    }

    pub(super) fn is_asked_back(&self, what: What) -> bool {
        self.back.contains(&what)
    }
}

impl Run {
    pub(super) fn is_planned(&self, end: usize, status: Status) -> bool {
        self.failing.planned[end] && status == PLANNED
    }

    pub(super) fn may_be_planned(&self, end: usize) -> bool {
        self.failing.planned[end]
    }

    pub(super) fn plan(&mut self, end: usize, slot: usize, lane: usize, later: bool) {
        let Some(world) = self.world else { return };
        let slots = [Slot::Put, Slot::PutNotify, Slot::Get, Slot::Atomic, Slot::Flush];
        let lanes = world.lanes();
        let act = if later { Act::FailLater(PLANNED) } else { Act::Refuse(PLANNED) };
        let at = world.interface(end + 1, lanes[lane % lanes.len()]);
        world.rule(Rule::next(slots[slot % slots.len()], act).at(at));
        self.failing.planned[end] = true;
        let number = self.end(end).number;
        self.model.doubt_end(number);
    }

    pub(super) fn inherit_plan(&mut self, end: usize, number: usize) {
        if self.failing.planned[end] {
            self.model.doubt_end(number);
        }
    }

    pub(super) fn calm(&mut self) {
        self.failing.planned = [false; ENDS];
        self.model.calm();
    }

    pub(super) fn cancel(&mut self, end: usize, nth: usize) -> Result<(), String> {
        let own = self.ends[end].as_ref().expect("an end");
        let Some(open) = own.open.get(nth % own.open.len().max(1)) else { return Ok(()) };
        let what = open.what;
        match self.workers[end].cancel(open.request()) {
            Ok(()) => {
                if let What::Memory(op) = what {
                    self.model.doubt(op);
                }
                self.failing.back.push(what);
                Ok(())
            }
            Err(PostError::Correct(why)) if why.status() == Status::Unsupported => Ok(()),
            Err(error) => Err(format!("{what:?} cannot be taken back: {error}")),
        }
    }

    /// Drops a request. If its cancellation was requested, its result stays unknown, since no flush reports the result.
    pub(super) fn give_up(&mut self, what: What) {
        self.notices.is_not_well(what);
        if let (What::Memory(op), true) = (what, self.failing.back.contains(&what)) {
            self.model.lose(op);
        }
    }

    /// Records an operation that has failed on an endpoint that continues. Returns an error if the failure is not allowed.
    pub(super) fn failed(
        &mut self,
        end: usize,
        what: What,
        error: &CompletionError,
        memory: [Option<Own>; 2],
    ) -> Result<(), String> {
        let canceled =
            matches!(error, CompletionError::Canceled(_)) && self.failing.back.contains(&what);
        self.notices.is_not_well(what);
        match what {
            What::Long(serial) => return self.is_not_taken(end, serial, error),
            What::Delivery(serial) => return self.is_not_delivered(serial, canceled, error),
            What::Notice(serial) => return self.is_not_sent(end, serial, error),
            // A flush reports the failure of a notification for which it waited, whatever the reason.
            What::Flush { end: number, posted } if self.notices.may_have_failed(end, posted) => {
                self.model.flush_failed(number, posted);
                return Ok(());
            }
            What::Key { published: false } if error.status() == Status::KeyRejected => {
                return Ok(());
            }
            _ => {}
        }
        if !canceled && !self.is_planned(end, error.status()) {
            return Err(format!("{what:?} failed: {error} ({:?})", error.status()));
        }
        match what {
            // The cancelled operation has had no effect.
            What::Memory(op) if canceled => {
                self.model.fail(op)?;
                self.model.refuse(op);
            }
            What::Memory(op) => {
                self.model.fail(op)?;
                self.model.lose(op);
            }
            What::Message(serial) if canceled => self.failing.is_unsent(serial),
            What::Flush { end: number, posted } if !canceled => {
                self.model.flush_failed(number, posted)
            }
            What::Flush { .. } | What::FlushMessages { .. } | What::Key { .. } if canceled => {}
            _ => return Err(format!("{what:?} failed with a memory operation's {error}")),
        }
        // The operation has ended: the application owns the memory.
        memory.into_iter().flatten().try_for_each(|own| self.closing.close(own))
    }
}
