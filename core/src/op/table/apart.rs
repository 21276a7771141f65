//! Operations of rendezvous messages: at the sender, which waits for the receiver's application, and at the receiver, whose answer
//! follows the end of a transfer.
//!
//! Once the RTS is sent the transport has it, and a flush waits for nothing else. The operation that ends with the receiver's
//! answer is therefore in a list of its own. A fence or a flush never waits for the receiver's application.

use super::*;

/// Added to an endpoint's index to form the index of its second list.
pub(super) const APART: u32 = 0x0080_0000;

/// The index of the endpoint that owns a list.
pub(super) fn home(owner: u32) -> u32 {
    if owner == NOBODY { owner } else { owner & !APART }
}

impl Table {
    /// Opens the operation of a rendezvous message. `Again`: the endpoint is at its limit.
    pub(crate) fn open_announced(&mut self, owner: usize) -> Result<Id, Status> {
        if self.open_of(owner) + self.announced_of(owner) >= self.limit as usize {
            return Err(Status::Again);
        }
        let place = u32::try_from(owner).ok().filter(|owner| *owner < APART);
        let place = place.ok_or(Status::NoMemory)?;
        // Creates the list that receives failures which are not requested.
        let _ = self.own_list(owner);
        if self.apart.len() <= owner {
            self.apart.resize_with(owner + 1, List::default);
        }
        self.insert_into(place | APART, Kind::Announced, 0)
    }

    /// The number of an endpoint's rendezvous messages that wait for the receiver's answer.
    pub(crate) fn announced_of(&self, owner: usize) -> usize {
        self.apart.get(owner).map_or(0, |list| list.open as usize)
    }

    /// Whether it is the open operation of a rendezvous message.
    pub(crate) fn is_announced(&self, id: Id) -> bool {
        self.asked(id).is_some_and(|(_, kind)| kind == Kind::Announced)
    }

    /// Whether the caller has canceled it.
    pub(crate) fn is_wanted_back(&self, id: Id) -> bool {
        self.slab.cold(id).is_some_and(|cold| cold.wanted_back)
    }

    /// The failure that an endpoint's next flush reports.
    pub(super) fn late(&mut self, owner: u32) -> &mut Option<Error> {
        &mut self.list(home(owner)).late
    }

    pub(crate) fn ids_apart(&self, owner: usize) -> Vec<Id> {
        self.ids_from(self.apart.get(owner).map_or(NONE, |list| list.first), |_| true)
    }

    /// The endpoint is gone. Returns its failed rendezvous operations whose error may still be requested.
    pub(super) fn forget_apart(&mut self, owner: usize) -> Vec<Id> {
        let Some(list) = self.apart.get_mut(owner) else { return Vec::new() };
        let last = std::mem::take(list).untold;
        while self.apart.last().is_some_and(|list| list.open == 0 && list.untold == NONE) {
            let _ = self.apart.pop();
        }
        self.untold_from(last)
    }

    // ---- at the receiver ----

    /// Marks a transfer whose end needs handling: see [`Table::take_ended_transfer`].
    pub(crate) fn watch_transfer(&mut self, id: Id) {
        let Some(hot) = self.slab.get_mut(id) else { return };
        hot.set(TAKES);
        if hot.is(ENDED) {
            self.due.push(id);
        }
    }

    /// Takes one such transfer that has ended.
    pub(crate) fn take_ended_transfer(&mut self) -> Option<Id> {
        let takes = |id: &Id| self.slab.get(*id).is_some_and(|hot| hot.is(TAKES));
        let at = self.due.iter().position(takes)?;
        Some(self.due.swap_remove(at))
    }
}
