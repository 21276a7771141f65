//! The operations of rendezvous messages and of acknowledged messages. The sender's operation waits for the receiver's application.
//! The receiver's answer follows the end of a transfer, a refusal or a handler.
//!
//! A flush waits only until the transport has accepted the RTS or the message. The operation that ends with the receiver's answer is
//! therefore in a separate list, which fences and flushes ignore.

use super::*;

/// The bit that is set in an endpoint's index to form the index of its list of rendezvous messages.
pub(super) const APART: u32 = 0x0080_0000;

/// The flags of a rendezvous message of which the cold part holds only the memory.
const ANNOUNCED_HELD: u16 = (Kind::Announced as u16) << KIND_SHIFT;

/// Returns the index of the endpoint that owns a list; `NOBODY` stays.
#[inline]
pub(super) fn home(owner: u32) -> u32 {
    if owner == NOBODY { owner } else { owner & !APART }
}

impl<B> Table<B> {
    /// Opens the operation of a rendezvous message, with its memory. `Again`: the endpoint already has `limit` open operations,
    /// rendezvous messages included. An error returns the memory.
    pub fn open_announced(&mut self, owner: usize, memory: B) -> Result<Id, (Status, B)> {
        if owner >= APART as usize {
            return Err((Status::NoMemory, memory));
        }
        let limit = self.limit;
        // The endpoint's own list receives failures whose error is not requested.
        let own = self.own_list(owner).open;
        if self.apart.len() <= owner {
            self.make_apart(owner);
        }
        let list = &self.apart[owner];
        if own + list.open >= limit {
            return Err((Status::Again, memory));
        }
        let (before, after) = (list.last, NONE);
        let owner_and_interface = owner as u32 | APART | u32::from(NOWHERE) << 24;
        let kind_and_flags = ANNOUNCED_HELD;
        let hot = Hot { kind_and_flags, parts: 1, owner_and_interface, before, after, user: 0 };
        let Some(id) = self.slab.insert(hot) else { return Err((Status::NoMemory, memory)) };
        if let Some(cold) = self.slab.cold_mut(id) {
            cold.local_buffer = Some(memory);
        }
        let at = id.place() as u32;
        self.open += 1;
        let list = &mut self.apart[owner];
        (list.last, list.open) = (at, list.open + 1);
        if before == NONE {
            list.first = at;
        } else if let Some(hot) = self.slab.at_mut(before as usize) {
            hot.after = at;
        }
        Ok(id)
    }

    #[cold]
    fn make_apart(&mut self, owner: usize) {
        self.apart.resize_with(owner + 1, List::default);
    }

    /// Records that the receiver of a rendezvous message has its bytes, and returns the memory. `None`: nothing has changed, and
    /// [`Table::part`] handles the answer.
    pub fn received(&mut self, id: Id) -> Option<B> {
        let hot = self.slab.get_mut(id).filter(|hot| hot.parts == 1)?;
        let (flags, owner, before, after) =
            (hot.kind_and_flags, hot.owner(), hot.before, hot.after);
        if flags & !DETACHED != ANNOUNCED_HELD {
            return None;
        }
        let cold = self.slab.cold_mut(id).filter(|cold| !cold.is_more_than_memory())?;
        let memory = cold.local_buffer.take()?;
        match self.slab.get_mut(id) {
            Some(hot) if flags == ANNOUNCED_HELD => {
                hot.kind_and_flags = plain::ENDED_PLAIN;
                hot.set_value(0);
            }
            _ => self.slab.remove_hot(id),
        }
        self.open -= 1;
        // No flush is in a list of rendezvous messages.
        let _ = self.unlink_between(owner, before, after);
        Some(memory)
    }

    /// Takes the memory of a tracked or counted rendezvous message, of which the receiver has the bytes. The operation stays open,
    /// and [`Table::part`] ends it. `None` for any other operation, and if more than the release of the memory is to be done.
    pub fn received_and_told(&mut self, id: Id) -> Option<B> {
        let hot = self.slab.get(id).filter(|hot| hot.parts == 1)?;
        if hot.kind_and_flags & !(DETACHED | TRACKED | COUNTED) != ANNOUNCED_HELD {
            return None;
        }
        let cold = self.slab.cold_mut(id).filter(|cold| !cold.is_more_than_memory())?;
        cold.local_buffer.take()
    }

    /// Opens the operation of a message whose receiver is to acknowledge it, with the same limit.
    pub fn open_delivery(&mut self, owner: usize) -> Result<Id, Status> {
        if self.open_of(owner) + self.announced_of(owner) >= self.limit as usize {
            return Err(Status::Again);
        }
        let place = u32::try_from(owner).ok().filter(|owner| *owner < APART);
        let place = place.ok_or(Status::NoMemory)?;
        // Creates the list that receives failures whose error is not requested.
        let _ = self.own_list(owner);
        if self.apart.len() <= owner {
            self.make_apart(owner);
        }
        self.insert_into(place | APART, Kind::Delivery, 0)
    }

    /// Returns the number of an endpoint's rendezvous messages and acknowledged messages that wait for the receiver's answer.
    pub fn announced_of(&self, owner: usize) -> usize {
        self.apart.get(owner).map_or(0, |list| list.open as usize)
    }

    /// Checks whether this is the open operation of a rendezvous message.
    pub fn is_announced(&self, id: Id) -> bool {
        self.asked(id).is_some_and(|(_, kind)| kind == Kind::Announced)
    }

    /// Takes the memory of an open rendezvous message whose endpoint ends, if `stays` accepts it, to hold it until the receiver
    /// answers the number `id`. `interface`: the interface of the answer.
    pub fn leave_memory(
        &mut self,
        id: Id,
        interface: usize,
        stays: impl Fn(&B) -> bool,
    ) -> Option<Unfinished<B>> {
        let local_buffer = self.slab.cold_mut(id)?.local_buffer.take_if(|memory| stays(memory))?;
        Some(Unfinished { id, interface: narrow(interface), local_buffer: Some(local_buffer) })
    }

    /// Checks whether the caller has canceled the operation.
    pub fn is_wanted_back(&self, id: Id) -> bool {
        self.slab.cold(id).is_some_and(|cold| cold.wanted_back)
    }

    /// Returns the failure that an endpoint's next flush reports.
    pub(super) fn late(&mut self, owner: u32) -> &mut Option<Error> {
        &mut self.list(home(owner)).late
    }

    /// Returns an endpoint's rendezvous messages and acknowledged messages that wait for the receiver's answer.
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

    /// Marks a transfer, or the gate of a notification, whose end needs handling: see [`Table::take_ended_transfer`].
    pub fn watch_transfer(&mut self, id: Id) {
        let Some(hot) = self.slab.get_mut(id) else { return };
        hot.set(TAKES);
        if hot.is(ENDED) {
            self.due.push(id);
        }
    }

    /// Takes the result of this marked operation if it has ended.
    pub fn take_ended(&mut self, id: Id) -> Option<Result<u64, Error>> {
        if self.is_open(id) {
            return None;
        }
        self.due.retain(|due| *due != id);
        self.take(id)
    }

    /// Takes one marked transfer that has ended.
    pub fn take_ended_transfer(&mut self) -> Option<Id> {
        let takes = |id: &Id| self.slab.get(*id).is_some_and(|hot| hot.is(TAKES));
        let at = self.due.iter().position(takes)?;
        Some(self.due.swap_remove(at))
    }
}
