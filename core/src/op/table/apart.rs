//! Operations of messages that are announced: at the sender, which waits for the receiver's application, and at the receiver, whose
//! answer follows the end of a transfer.
//!
//! The announcement of a message is in the transport's hands when it has been sent, and a flush waits for no more. So the operation that
//! ends with the receiver's word stands in a list of its own: what a fence or a flush orders never waits for an application over there.

use super::*;

/// What is added to an endpoint's index for its second list.
pub(super) const APART: u32 = 0x0080_0000;

/// The index of the endpoint that a list is of.
pub(super) fn home(owner: u32) -> u32 {
    if owner == NOBODY { owner } else { owner & !APART }
}

impl Table {
    /// Opens the operation of a message that is announced. `Again`: the endpoint has as many open as it may.
    pub(crate) fn open_announced(&mut self, owner: usize) -> Result<Id, Status> {
        if self.open_of(owner) + self.announced_of(owner) >= self.limit as usize {
            return Err(Status::Again);
        }
        let place = u32::try_from(owner).ok().filter(|owner| *owner < APART);
        let place = place.ok_or(Status::NoMemory)?;
        // Where a failure goes that nobody asks for.
        let _ = self.own_list(owner);
        if self.apart.len() <= owner {
            self.apart.resize_with(owner + 1, List::default);
        }
        self.insert_into(place | APART, Kind::Announced, 0)
    }

    /// How many of an endpoint's announcements wait for the receiver's word.
    pub(crate) fn announced_of(&self, owner: usize) -> usize {
        self.apart.get(owner).map_or(0, |list| list.open as usize)
    }

    /// Whether it is the open operation of a message that was announced.
    pub(crate) fn is_announced(&self, id: Id) -> bool {
        self.asked(id).is_some_and(|(_, kind)| kind == Kind::Announced)
    }

    /// Whether who posted it wants it back.
    pub(crate) fn is_wanted_back(&self, id: Id) -> bool {
        self.slab.cold(id).is_some_and(|cold| cold.wanted_back)
    }

    /// Where a failure goes that is for an endpoint's next flush.
    pub(super) fn late(&mut self, owner: u32) -> &mut Option<Error> {
        &mut self.list(home(owner)).late
    }

    pub(crate) fn ids_apart(&self, owner: usize) -> Vec<Id> {
        self.ids_from(self.apart.get(owner).map_or(NONE, |list| list.first), |_| true)
    }

    /// The endpoint is gone. Returns what failed of these and may still be asked for.
    pub(super) fn forget_apart(&mut self, owner: usize) -> Vec<Id> {
        let Some(list) = self.apart.get_mut(owner) else { return Vec::new() };
        let last = std::mem::take(list).untold;
        while self.apart.last().is_some_and(|list| list.open == 0 && list.untold == NONE) {
            let _ = self.apart.pop();
        }
        self.untold_from(last)
    }

    // ---- at the receiver ----

    /// The end of this transfer is to be dealt with: see [`Table::take_ended_transfer`].
    pub(crate) fn watch_transfer(&mut self, id: Id) {
        let Some(hot) = self.slab.get_mut(id) else { return };
        hot.set(TAKES);
        if hot.is(ENDED) {
            self.due.push(id);
        }
    }

    /// One that has ended.
    pub(crate) fn take_ended_transfer(&mut self) -> Option<Id> {
        let takes = |id: &Id| self.slab.get(*id).is_some_and(|hot| hot.is(TAKES));
        let at = self.due.iter().position(takes)?;
        Some(self.due.swap_remove(at))
    }
}
