//! The operations of rendezvous messages. The sender's operation waits for the receiver's application, and the receiver's answer
//! follows the end of a transfer or a refusal.
//!
//! A flush waits only until the transport has accepted the RTS. The operation that ends with the receiver's answer is therefore in
//! a separate list, which fences and flushes ignore.

use super::*;

/// The bit that is set in an endpoint's index to form the index of its list of rendezvous messages.
pub(super) const APART: u32 = 0x0080_0000;

/// Returns the index of the endpoint that owns a list; `NOBODY` stays.
#[inline]
pub(super) fn home(owner: u32) -> u32 {
    if owner == NOBODY { owner } else { owner & !APART }
}

impl<B> Table<B> {
    /// Opens the operation of a rendezvous message. `Again`: the endpoint already has `limit` open operations, rendezvous messages
    /// included.
    pub fn open_announced(&mut self, owner: usize) -> Result<Id, Status> {
        if self.open_of(owner) + self.announced_of(owner) >= self.limit as usize {
            return Err(Status::Again);
        }
        let place = u32::try_from(owner).ok().filter(|owner| *owner < APART);
        let place = place.ok_or(Status::NoMemory)?;
        // Creates the list that receives failures whose error is not requested.
        let _ = self.own_list(owner);
        if self.apart.len() <= owner {
            self.apart.resize_with(owner + 1, List::default);
        }
        self.insert_into(place | APART, Kind::Announced, 0)
    }

    /// Returns the number of an endpoint's rendezvous messages that wait for the receiver's answer.
    pub fn announced_of(&self, owner: usize) -> usize {
        self.apart.get(owner).map_or(0, |list| list.open as usize)
    }

    /// Checks whether this is the open operation of a rendezvous message.
    pub fn is_announced(&self, id: Id) -> bool {
        self.asked(id).is_some_and(|(_, kind)| kind == Kind::Announced)
    }

    /// Checks whether the caller has canceled the operation.
    pub fn is_wanted_back(&self, id: Id) -> bool {
        self.slab.cold(id).is_some_and(|cold| cold.wanted_back)
    }

    /// Returns the failure that an endpoint's next flush reports.
    pub(super) fn late(&mut self, owner: u32) -> &mut Option<Error> {
        &mut self.list(home(owner)).late
    }

    /// Returns an endpoint's rendezvous messages that wait for the receiver's answer.
    pub fn ids_apart(&self, owner: usize) -> Vec<Id> {
        self.ids_from(self.apart.get(owner).map_or(NONE, |list| list.first), |_| true)
    }

    /// Removes the list of a dropped endpoint. Returns the endpoint's failed rendezvous operations whose error may still be
    /// requested.
    pub(super) fn forget_apart(&mut self, owner: usize) -> Vec<Id> {
        let Some(list) = self.apart.get_mut(owner) else { return Vec::new() };
        let last = std::mem::take(list).untold;
        while self.apart.last().is_some_and(|list| list.open == 0 && list.untold == NONE) {
            let _ = self.apart.pop();
        }
        self.untold_from(last)
    }

    /// Marks a transfer whose end needs handling: see [`Table::take_ended_transfer`].
    pub fn watch_transfer(&mut self, id: Id) {
        let Some(hot) = self.slab.get_mut(id) else { return };
        hot.set(TAKES);
        if hot.is(ENDED) {
            self.due.push(id);
        }
    }

    /// Takes one marked transfer that has ended.
    pub fn take_ended_transfer(&mut self) -> Option<Id> {
        let takes = |id: &Id| self.slab.get(*id).is_some_and(|hot| hot.is(TAKES));
        let at = self.due.iter().position(takes)?;
        Some(self.due.swap_remove(at))
    }
}
