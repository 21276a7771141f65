//! Flushes: the condition for completion, the flushes of lanes, and the reporting of failures.
//!
//! A put that a provider has completed locally is in no list of the table. The put's lane keeps a failure and reports it once, to
//! the operation that next flushes the lane (*asks* it). Therefore an open flush that covers operations on a lane, and has not
//! asked the lane itself, waits for any operation that asks it. The flush takes over that operation's error. The asking operation
//! may belong to another flush, to a fence, to a notification, or to another endpoint on the same connection.

use super::*;

impl<B> Table<B> {
    /// Turns an operation opened before into a flush. The flush is complete when everything before it in its owner's list is
    /// complete and its lanes are flushed. `lanes`: the lanes that puts completed locally may have used. If `lanes` is not empty,
    /// the flush is due when it reaches the head, see [`Table::take_due`]. `late`: an earlier failure that the flush reports.
    pub fn start_flush(&mut self, id: Id, lanes: u64, late: Option<Error>) {
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

    /// Handles a flush that has reached the head of its list.
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

    /// Takes a flush that has reached the head of its list and must ask lanes: the flush, its owner, and the lanes.
    pub fn take_due(&mut self) -> Option<(Id, usize, u64)> {
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

    /// Checks whether a flush may be due, or a watched transfer may have ended.
    pub fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Reports the failure of an operation to every flush that waits for the operation, except the flushes of fences: nobody requests
    /// their results. If no flush waits and the result will not be requested, the next flush reports the failure. Returns whether a
    /// flush waits.
    pub(super) fn tell_flushes(&mut self, failed: &Hot, error: &Error, unheard: bool) -> bool {
        let mut at = failed.after;
        let mut told = false;
        while let Some(id) = self.slab.at(at as usize) {
            let Some(&hot) = self.slab.get(id) else { break };
            if hot.is_kind(Kind::Flush) && !self.is_fence(id) {
                self.spoil(id, error.clone());
                told = true;
            }
            at = hot.after;
        }
        if !told && unheard && failed.is(DETACHED) {
            let _ = self.late(failed.owner()).get_or_insert_with(|| error.clone());
        }
        told
    }

    /// Records that an operation of an endpoint asks a lane for the outcome of everything posted on that lane. The operation that
    /// contains `ask` gets the answer, and so does every flush that covers operations on the lane. If there is no such flush, the
    /// next one gets the answer.
    pub fn asks(&mut self, ask: Id, lanes: u64) {
        let Some(owner) = self.owner(ask) else { return };
        let Some(cold) = self.cold_mut(ask) else { return };
        cold.lanes = lanes;
        let askers = cold.then.clone();
        for asker in &askers {
            // The asking flush has asked these lanes itself, so later questions to them do not concern it.
            if let Some(cold) = self.cold_mut(*asker) {
                cold.lanes &= !lanes;
            }
        }
        for flush in self.flushes_over(owner, lanes) {
            self.then(ask, flush);
        }
    }

    /// Records the question for another endpoint that uses the same lane. `false`: the operation for it could not be opened, so
    /// that endpoint gets no answer.
    pub fn asks_for(&mut self, ask: Id, owner: usize, lanes: u64) -> bool {
        let Ok(also) = self.insert(owner, Kind::Native, DETACHED) else { return false };
        self.then(ask, also);
        self.asks(also, lanes);
        let _ = self.part(also, Ok(0));
        true
    }

    /// Returns the open operations of an endpoint that ask these lanes.
    pub fn open_asks(&self, owner: usize, lanes: u64) -> Vec<Id> {
        let mut asks = self.ids_of(owner, |hot| hot.is_kind(Kind::Native));
        asks.retain(|id| self.slab.cold(*id).is_some_and(|cold| cold.lanes & lanes != 0));
        asks
    }

    /// Records the loss of lanes of an endpoint, with the locally completed puts on them. Returns whether a flush reports the loss.
    pub fn lost_lanes(&mut self, owner: usize, lanes: u64, error: &Error) -> bool {
        let mut flushes = self.flushes_over(owner, lanes);
        flushes.retain(|flush| self.is_asked_for(*flush));
        flushes.iter().for_each(|flush| self.spoil(*flush, error.clone()));
        !flushes.is_empty()
    }

    /// Returns the open flushes that cover operations on these lanes and have not asked the lanes.
    fn flushes_over(&self, owner: usize, lanes: u64) -> Vec<Id> {
        let mut flushes = self.ids_of(owner, |hot| hot.is(THEN_LANES));
        flushes.retain(|id| self.slab.cold(*id).is_some_and(|cold| cold.lanes & lanes != 0));
        flushes
    }

    /// Checks whether the operation is a flush whose result is requested or awaited.
    pub(super) fn is_asked_for(&self, id: Id) -> bool {
        self.is_flush(id) && !self.is_fence(id)
    }

    /// Checks whether the operation is a flush without a waiter, whose error the next flush reports: a fence's internal flush, or
    /// one whose request was dropped.
    pub(super) fn is_fence(&self, id: Id) -> bool {
        let alone = || self.slab.cold(id).is_some_and(|cold| cold.then.is_empty());
        self.is_flush(id) && self.slab.get(id).is_some_and(|hot| hot.is(DETACHED)) && alone()
    }

    fn is_flush(&self, id: Id) -> bool {
        self.slab.get(id).is_some_and(|hot| hot.is_kind(Kind::Flush))
    }
}
