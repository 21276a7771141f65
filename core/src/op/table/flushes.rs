//! Flushes: what makes one complete, what they ask lanes for, and who is told of a failure.
//!
//! A put that has completed locally stands in no list. Its lane keeps its failure, and tells it once, to what asks that lane next. So
//! every open flush that covers something on a lane waits for whatever asks that lane, and hears what it says, be it posted
//! for another flush, for a fence, for a notification, or for another endpoint that uses the same connection.

use super::*;

impl Table {
    /// Makes a flush of an operation that was opened before: it is complete when everything that its owner opened before it is.
    /// `lanes`: those over which puts may have gone that have completed locally; where there are any, it is then due, see
    /// [`Table::take_due`]. `late`: an earlier failure that it tells.
    pub(crate) fn start_flush(&mut self, id: Id, lanes: u64, late: Option<Error>) {
        if let Some(cold) = self.cold_mut(id) {
            (cold.lanes, cold.error) = (lanes, late);
        }
        let Some(hot) = self.slab.get_mut(id) else { return };
        if lanes != 0 {
            hot.set(THEN_LANES);
        }
        let owner = hot.owner();
        if self.list(owner).first == id.place() as u32 {
            self.at_head(id);
        }
        self.run();
    }

    /// A flush has nothing before it any more.
    pub(super) fn at_head(&mut self, id: Id) {
        let Some(hot) = self.slab.get_mut(id) else { return };
        if hot.is(REACHED) {
            return;
        }
        hot.set(REACHED);
        if hot.is(THEN_LANES) {
            self.due.push(id);
        } else {
            self.todo.push(Part { id, result: Ok(0), bare: false });
        }
    }

    /// A flush that has reached the head of its list and is to ask lanes now, whose it is, and those among which they are.
    pub(crate) fn take_due(&mut self) -> Option<(Id, usize, u64)> {
        let (mut takes, mut found) = (Vec::new(), None);
        while let Some(id) = self.due.pop() {
            match self.slab.get(id) {
                Some(hot) if hot.is(TAKES) => takes.push(id),
                Some(hot) if !hot.is(ENDED) => {
                    found = Some(id);
                    break;
                }
                _ => {}
            }
        }
        self.due.append(&mut takes);
        let id = found?;
        let lanes = self.slab.cold(id)?.lanes;
        Some((id, self.slab.get(id)?.owner() as usize, lanes))
    }

    /// Whether there are any.
    pub(crate) fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// A failure is told by every flush that waits for it; where there is none, and nobody else asks, by the next. Returns
    /// whether one waits.
    pub(super) fn tell_flushes(&mut self, failed: &Hot, error: &Error, unheard: bool) -> bool {
        let mut at = failed.after;
        let mut told = false;
        while let Some(id) = self.slab.at(at as usize) {
            let Some(&hot) = self.slab.get(id) else { break };
            if hot.is_kind(Kind::Flush) {
                self.note_error(id, error.clone());
                told = true;
            }
            at = hot.after;
        }
        if !told && unheard && failed.is(DETACHED) {
            let _ = self.late(failed.owner()).get_or_insert_with(|| error.clone());
        }
        told
    }

    /// An operation of an endpoint asks a lane what became of everything that was posted there. Whoever it is a part of hears that, and
    /// so does every flush that covers something there; where there is none, the next one does.
    pub(crate) fn asks(&mut self, ask: Id, lanes: u64) {
        let Some(owner) = self.owner(ask) else { return };
        let Some(cold) = self.cold_mut(ask) else { return };
        cold.lanes = lanes;
        let askers = cold.then.clone();
        for asker in &askers {
            // It has asked for itself: what others ask there later is not its business.
            if let Some(cold) = self.cold_mut(*asker) {
                cold.lanes &= !lanes;
            }
        }
        for flush in self.flushes_over(owner, lanes) {
            self.then(ask, flush);
        }
    }

    /// The same for another endpoint that uses that lane: whether it is told now.
    pub(crate) fn asks_for(&mut self, ask: Id, owner: usize, lanes: u64) -> bool {
        let Ok(also) = self.insert(owner, Kind::Native, DETACHED) else { return false };
        self.then(ask, also);
        self.asks(also, lanes);
        let _ = self.part(also, Ok(0));
        true
    }

    /// What asks these lanes for an endpoint, and has not ended.
    pub(crate) fn open_asks(&self, owner: usize, lanes: u64) -> Vec<Id> {
        let mut asks = self.ids_of(owner, |hot| hot.is_kind(Kind::Native));
        asks.retain(|id| self.slab.cold(*id).is_some_and(|cold| cold.lanes & lanes != 0));
        asks
    }

    /// Lanes of an endpoint are lost, and what had completed locally there with them. Whether a flush tells it.
    pub(crate) fn lost_lanes(&mut self, owner: usize, lanes: u64, error: &Error) -> bool {
        let mut flushes = self.flushes_over(owner, lanes);
        flushes.retain(|flush| self.is_asked_for(*flush));
        flushes.iter().for_each(|flush| self.note_error(*flush, error.clone()));
        !flushes.is_empty()
    }

    /// The open flushes that cover something on these lanes, and have not asked them.
    fn flushes_over(&self, owner: usize, lanes: u64) -> Vec<Id> {
        let mut flushes = self.ids_of(owner, |hot| hot.is(THEN_LANES));
        flushes.retain(|id| self.slab.cold(*id).is_some_and(|cold| cold.lanes & lanes != 0));
        flushes
    }

    /// Whether it is a flush whose result somebody asks for, or waits for.
    pub(super) fn is_asked_for(&self, id: Id) -> bool {
        self.is_flush(id) && !self.is_fence(id)
    }

    /// Whether it is a flush of the core's own that nothing hears of: what it finds out, the next one tells.
    pub(super) fn is_fence(&self, id: Id) -> bool {
        let alone = || self.slab.cold(id).is_some_and(|cold| cold.then.is_empty());
        self.is_flush(id) && self.slab.get(id).is_some_and(|hot| hot.is(DETACHED)) && alone()
    }

    fn is_flush(&self, id: Id) -> bool {
        self.slab.get(id).is_some_and(|hot| hot.is_kind(Kind::Flush))
    }
}
