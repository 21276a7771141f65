//! The results and the ends of operations: of one, or of all of an endpoint or of an interface at once. Also keeps
//! the failures of operations whose result was not requested, for the next flush.

use super::*;
use crate::Scope;

impl<B> Table<B> {
    /// Takes the unreported failure, for the flush that reports it.
    pub fn take_late(&mut self, owner: usize) -> Option<Error> {
        let list = self.lists.get_mut(owner)?;
        list.failed = None;
        list.late.take()
    }

    /// Puts a failure back, for the endpoint's next flush.
    pub fn keep_late(&mut self, owner: usize, error: Error) {
        let _ = self.own_list(owner).late.get_or_insert(error);
    }

    /// Drops the result, which will not be requested any more. The owner's next flush reports an unreported failure. A tracked or
    /// counted operation is left unchanged.
    #[inline]
    pub fn forget(&mut self, id: Id) {
        if !self.slab.remove_hot_if(id, |hot| hot.kind_and_flags == plain::ENDED_PLAIN) {
            self.forget_other(id);
        }
    }

    fn forget_other(&mut self, id: Id) {
        let asked = |hot: &&mut Hot| !hot.is(TRACKED | COUNTED);
        let Some(hot) = self.slab.get_mut(id).filter(asked) else { return };
        if !hot.is(ENDED) {
            hot.set(DETACHED);
            return;
        }
        self.forget_ended(id);
    }

    /// Drops an ended operation, even if it was tracked or counted.
    pub(super) fn forget_ended(&mut self, id: Id) {
        let Some(hot) = self.slab.get(id) else { return };
        if hot.is(PLAIN) {
            return self.slab.remove_hot(id);
        }
        let (owner, untold) = (hot.owner(), hot.is_untold());
        if untold {
            self.unlink_untold(id);
        }
        let error = self.slab.remove(id).and_then(|cold| cold.error).filter(|_| untold);
        if let Some(error) = error {
            let _ = self.late(owner).get_or_insert(error);
        }
    }

    /// Adds a failed operation to the list of those whose error may be requested.
    pub(super) fn link_untold(&mut self, id: Id) {
        let Some(owner) = self.slab.get(id).map(Hot::owner) else { return };
        let at = id.place() as u32;
        let next = std::mem::replace(&mut self.list(owner).untold, at);
        if let Some(hot) = self.hot_at(next) {
            hot.before = at;
        }
        if let Some(hot) = self.slab.get_mut(id) {
            (hot.before, hot.after) = (NONE, next);
        }
    }

    fn unlink_untold(&mut self, id: Id) {
        let Some(&hot) = self.slab.get(id) else { return };
        match self.hot_at(hot.before) {
            Some(before) => before.after = hot.after,
            None => self.list(hot.owner()).untold = hot.after,
        }
        if let Some(after) = self.hot_at(hot.after) {
            after.before = hot.before;
        }
    }

    /// Takes the result of an operation that has ended, and forgets the operation; see [`Table::result`] and [`Table::forget`].
    #[inline]
    pub fn take(&mut self, id: Id) -> Option<Result<u64, Error>> {
        match self.slab.get(id) {
            Some(hot) if !hot.is(ENDED) => None,
            Some(hot) if hot.kind_and_flags == plain::ENDED_PLAIN => {
                let value = hot.value();
                self.slab.remove_hot(id);
                Some(Ok(value))
            }
            _ => self.take_other(id),
        }
    }

    fn take_other(&mut self, id: Id) -> Option<Result<u64, Error>> {
        let result = self.result(id)?;
        self.forget(id);
        Some(result)
    }

    /// Returns the result of an operation that has ended; the operation remains. `None`: it has not ended. An operation that is not
    /// in the table is `Closed`.
    pub fn result(&mut self, id: Id) -> Option<Result<u64, Error>> {
        let Some(&hot) = self.slab.get(id) else {
            return Some(Err(Error::from_status(Status::Closed)));
        };
        if !hot.is(ENDED) {
            return None;
        }
        if !hot.is(FAILED) {
            return Some(Ok(hot.value()));
        }
        self.told(id);
        let error = self.cold_mut(id).and_then(|cold| cold.error.clone());
        Some(Err(error.unwrap_or_else(|| Error::from_status(Status::Closed))))
    }

    /// Takes memory that an ended operation used, and the operation's value if it has succeeded.
    pub fn take_freed(&mut self) -> Option<Freed<B>> {
        self.freed.pop()
    }

    /// Checks whether the operation has failed; [`Table::take`] returns the error.
    pub fn has_failed(&self, id: Id) -> bool {
        self.slab.get(id).is_some_and(|hot| hot.is(FAILED))
    }

    /// Records that the operation's failure has been reported.
    pub(super) fn told(&mut self, id: Id) {
        let Some(hot) = self.slab.get_mut(id).filter(|hot| hot.is_untold()) else { return };
        hot.set(TOLD);
        self.unlink_untold(id);
    }

    /// Removes an endpoint's failed operations whose error may still be requested. The caller links these to another endpoint or to
    /// none.
    fn take_untold(&mut self, owner: usize) -> Vec<Id> {
        let list = self.lists.get_mut(owner);
        let last = list.map_or(NONE, |list| std::mem::replace(&mut list.untold, NONE));
        self.untold_from(last)
    }

    pub(super) fn untold_from(&self, last: u32) -> Vec<Id> {
        let before = |id: &Id| self.slab.at(self.slab.get(*id)?.after as usize);
        std::iter::successors(self.slab.at(last as usize), before).collect()
    }

    pub(super) fn ids_of(&self, owner: usize, only: impl Fn(&Hot) -> bool) -> Vec<Id> {
        let first = self.lists.get(owner).map_or(NONE, |list| list.first);
        self.ids_from(first, only)
    }

    pub(super) fn ids_from(&self, first: u32, only: impl Fn(&Hot) -> bool) -> Vec<Id> {
        let (mut ids, mut at) = (Vec::new(), first);
        while let Some(id) = self.slab.at(at as usize) {
            let Some(hot) = self.slab.get(id) else { break };
            if only(hot) {
                ids.push(id);
            }
            at = hot.after;
        }
        ids
    }

    /// Cancels an operation of which nothing has taken effect. The operation ends with this error, and no flush reports it.
    pub fn cancel(&mut self, id: Id, error: Error) {
        self.spoil(id, error.clone());
        let Some(hot) = self.open_hot(id) else { return };
        hot.set(TOLD);
        let hot = *hot;
        self.note_failure(&hot, &error);
        self.end(id, 0, false, false);
        self.run();
    }

    /// Records that the caller canceled an operation, and that the provider, or the receiver of a rendezvous message, is asked to
    /// cancel it. If a provider then reports the operation as canceled, no flush reports it.
    pub fn want_back(&mut self, id: Id) {
        if let Some(cold) = self.cold_mut(id) {
            cold.wanted_back = true;
        }
    }

    /// Returns the open parts of an operation.
    pub fn parts_of(&self, whole: Id) -> Vec<Id> {
        let Some(hot) = self.slab.get(whole) else { return Vec::new() };
        let is_part = |id: &Id| self.slab.cold(*id).is_some_and(|cold| cold.then.contains(&whole));
        let mut parts = self.ids_of(hot.owner() as usize, |_| true);
        parts.retain(is_part);
        parts
    }

    /// Returns the interface to which an operation is posted.
    pub fn posted_at(&self, id: Id) -> Option<usize> {
        let hot = self.slab.get(id).filter(|hot| !hot.is(ENDED) && hot.is(POSTED))?;
        Some(usize::from(hot.interface()))
    }

    /// Ends an operation whose outcome a provider reports as unknown, at the interface to which it was posted. A device may still
    /// access its memory. Returns the owner, and the operation's memory, if there is any, which the caller keeps. `None`: there is
    /// no such operation.
    pub fn completed_unknown(
        &mut self,
        cookie: u64,
        interface: usize,
        error: Error,
    ) -> Option<(usize, Option<Unfinished<B>>)> {
        let id = Id::from_raw(cookie)?;
        let (owner, interface) = (self.owner(id)?, narrow(interface));
        let kept = self.cold_mut(id).and_then(|cold| cold.local_buffer.take());
        if !self.completed(cookie, interface, Err(error)) {
            if let Some(local_buffer) = kept {
                self.set_local_buffer(id, local_buffer);
            }
            return None;
        }
        // The provider reports nothing more, so without memory nothing has to be kept.
        let kept = kept.map(|kept| Unfinished { id, interface, local_buffer: Some(kept) });
        Some((owner, kept))
    }

    /// Ends every open operation of an endpoint with `error`, or with an error that the operation had already. Returns the
    /// operations that providers still have: their memory must be kept, see [`crate::held`].
    #[must_use]
    pub fn fail_owner(&mut self, owner: usize, error: &Error) -> Vec<Unfinished<B>> {
        self.explain(owner, error);
        let mut ids = self.ids_of(owner, |_| true);
        ids.extend(self.ids_apart(owner));
        self.fail(&ids, error, false)
    }

    /// Does the same as [`Table::fail_owner`] for an endpoint without flushes that could report the failures.
    #[must_use]
    pub fn cancel_owner(&mut self, owner: usize, error: &Error) -> Vec<Unfinished<B>> {
        for id in self.ids_of(owner, |_| true).into_iter().chain(self.ids_apart(owner)) {
            if let Some(hot) = self.slab.get_mut(id) {
                hot.set(TOLD);
            }
        }
        self.fail_owner(owner, error)
    }

    /// Ends the operations posted to one interface while the endpoint continues. Flushes that wait for these operations end with
    /// the error.
    #[must_use]
    pub fn fail_posted(
        &mut self,
        owner: usize,
        interface: usize,
        error: &Error,
    ) -> Vec<Unfinished<B>> {
        let ids = self.ids_of(owner, |hot| hot.is_posted_to(interface));
        self.fail(&ids, error, true)
    }

    /// Ends the operations of `owner` whose requests another endpoint carries, because that endpoint has failed.
    #[must_use]
    pub fn fail_carried(&mut self, owner: usize, by: usize, error: &Error) -> Vec<Unfinished<B>> {
        let mut ids = self.ids_of(owner, |_| true);
        ids.retain(|id| self.slab.cold(*id).is_some_and(|cold| cold.carrier == Some(by)));
        self.fail(&ids, error, true)
    }

    /// Ends these open operations with an error. `tells`: flushes that wait for them are not among `ids` and report the error.
    #[must_use]
    pub fn fail(&mut self, ids: &[Id], error: &Error, tells: bool) -> Vec<Unfinished<B>> {
        let mut unfinished = Vec::new();
        if ids.is_empty() {
            return unfinished;
        }
        let error = error.clone().of(Scope::Connection);
        let mut indices = Vec::new();
        for id in ids {
            let mut posted = None;
            if let Some(hot) = self.slab.get_mut(*id) {
                posted = hot.is(POSTED).then(|| usize::from(hot.interface()));
                // A flush among these operations is not completed by the end of an earlier one: both end together.
                hot.set(REACHED);
            }
            if let Some(cold) = self.cold_mut(*id) {
                let own = cold.error.get_or_insert_with(|| error.clone()).clone();
                if let Some(index) = cold.index {
                    let lists = cold.then.iter();
                    indices.extend(lists.map(|list| (*list, behind(index, own.clone()))));
                }
                if let Some(interface) = posted {
                    let local_buffer = cold.local_buffer.take();
                    unfinished.push(Unfinished { id: *id, interface, local_buffer });
                }
            }
        }
        // A list may end before its descriptors do, so it learns their indices here.
        for (list, error) in indices {
            if self.is_open(list) {
                self.spoil(list, error);
            }
        }
        for id in ids {
            let Some(&hot) = self.slab.get(*id) else { continue };
            let unheard = self.cold_mut(*id).is_some_and(|cold| cold.then.is_empty());
            // A fence's flush has no failure of its own to report.
            let own = !hot.is_kind(Kind::Flush);
            if !tells && own && hot.is(DETACHED) && unheard && !hot.is(ENDED) {
                let _ = self.late(hot.owner()).get_or_insert_with(|| error.clone());
            }
            if !hot.is(ENDED) {
                self.end(*id, 0, false, tells);
                self.run();
            }
        }
        unfinished
    }

    /// Adds the provider's later error text to the operations of an endpoint in `bare` that ended with the same status.
    pub fn explain(&mut self, owner: usize, error: &Error) {
        let Some(list) = self.lists.get_mut(owner) else { return };
        for id in std::mem::take(&mut list.bare) {
            let cold = self.cold_mut(id);
            if let Some(ended) = cold.and_then(|cold| cold.error.as_mut()) {
                if ended.status() == error.status() {
                    *ended = error.clone().at_index(ended.index());
                }
            }
        }
    }

    /// Returns the operations of an endpoint that providers have, and their interfaces.
    pub fn posted_of(&self, owner: usize) -> Vec<(Id, usize)> {
        let at = |id: Id| Some((id, usize::from(self.slab.get(id)?.interface())));
        self.ids_of(owner, |hot| hot.is(POSTED)).into_iter().filter_map(at).collect()
    }

    /// Separates an operation from an endpoint that is dropped while the transport continues. A later flush of the endpoint does
    /// not become complete as a result; it ends with the endpoint, whose operations are failed next.
    pub fn orphan(&mut self, id: Id) {
        let Some(&hot) = self.slab.get(id) else { return };
        let _ = self.unlink(hot);
        self.link(id, NOBODY);
    }

    /// Removes the lists of a dropped endpoint.
    pub fn forget_owner(&mut self, owner: usize) {
        for id in self.take_untold(owner).into_iter().chain(self.forget_apart(owner)) {
            if let Some(hot) = self.slab.get_mut(id) {
                hot.set(TOLD);
            }
        }
        if let Some(list) = self.lists.get_mut(owner) {
            *list = List::default();
        }
        let empty = |list: &List| list.open == 0 && list.untold == NONE && list.late.is_none();
        while self.lists.last().is_some_and(empty) {
            let _ = self.lists.pop();
        }
        if self.lists.capacity() > 64 + 4 * self.lists.len() {
            self.lists.shrink_to(2 * self.lists.len());
        }
    }
}
