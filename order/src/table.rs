//! The table of open operations.
//!
//! An operation has an *owner*: the endpoint on which it was posted. The owner's list holds its open operations in posting order, apart from rendezvous messages, which have a list of their own. A flush is an operation
//! too. When the flush is the first one in the list, it is complete, or it flushes the lanes of locally completed puts
//! (`flushes.rs`). A flush therefore waits for the operations before it that complete later: a device's put, a copy shared with a
//! peer, an emulated atomic, a queued message.
//!
//! An operation ends once: by the events that it requires, by a failure, by a cancellation or by its removal. A provider's
//! completion counts only for an operation posted to that interface; interfaces from 254 on count as one. The core passes a peer's
//! answer only to an operation that requested one ([`Table::asked`]).

mod apart;
mod ends;
mod flushes;
mod follow;
mod hot;
mod keys;
mod looks;
mod plain;
mod tracked;

pub use follow::Followed;
pub use hot::Kind;
use hot::*;
pub use looks::Oldest;
use tracked::Completed;
pub use tracked::Counts;

use super::held::{Unfinished, narrow};
use super::slab::{Id, Slab};
use crate::{Error, Status};
use std::collections::VecDeque;

/// The state that few operations have.
struct Cold<B> {
    local_buffer: Option<B>,
    error: Option<Error>,
    /// Whether the caller has canceled the operation, and the provider or the receiver of the rendezvous message has been asked to
    /// cancel it.
    wanted_back: bool,
    /// The lanes that the operations covered by a flush may have used and that the flush has not asked itself. In an operation that
    /// asks lanes, this field holds those lanes.
    lanes: u64,
    /// The operations that contain this one as a part, or that wait for it.
    then: Vec<Id>,
    /// The endpoint that carries the request to the peer, if that is not the owner.
    carrier: Option<usize>,
    /// The index of the descriptor of a list that this operation carries out.
    index: Option<usize>,
}

impl<B> Default for Cold<B> {
    fn default() -> Cold<B> {
        Cold {
            local_buffer: None,
            error: None,
            wanted_back: false,
            lanes: 0,
            then: Vec::new(),
            carrier: None,
            index: None,
        }
    }
}

/// A list of operations: those of an endpoint, or the orphans.
struct List {
    first: u32,
    last: u32,
    open: u32,
    /// The first unreported failure, which the next flush reports.
    late: Option<Error>,
    /// The first failure since the last flush, or since the last notification that follows everything; see `follow.rs`.
    failed: Option<Error>,
    /// The last of the failed operations whose error may still be requested.
    untold: u32,
    /// The first [`MOST_BARE`] operations that a provider has reported as failed, since the last call of `explain`. `explain` adds
    /// the text that the provider supplies later.
    bare: Vec<Id>,
}

impl Default for List {
    fn default() -> List {
        List {
            first: NONE,
            last: NONE,
            open: 0,
            late: None,
            failed: None,
            untold: NONE,
            bare: Vec::new(),
        }
    }
}

/// The maximum length of `bare`.
const MOST_BARE: usize = 256;

/// One event of an operation that has yet to be processed.
struct Part {
    id: Id,
    result: Result<u64, Error>,
    bare: bool,
}

/// The memory of an ended operation, and the operation's value if it has succeeded.
pub type Freed<B> = (B, Option<u64>);

/// The open operations of a worker, and the ended ones whose result may still be requested.
pub struct Table<B> {
    slab: Slab<Hot, Cold<B>>,
    lists: Vec<List>,
    /// The operations for which no flush waits, also by endpoint.
    apart: Vec<List>,
    /// The operations of dropped endpoints that a provider still has.
    orphans: List,
    /// The number of open operations of an endpoint at which the application's next operation is refused.
    limit: u32,
    open: usize,
    todo: Vec<Part>,
    /// The flushes at the head of their list that must flush their lanes next, and the watched transfers that have ended, in any
    /// order.
    due: Vec<Id>,
    /// The tracked operations that have ended, in the order of their ends, until the application takes them.
    completed: VecDeque<Completed>,
    /// The greatest length of `completed` since it was last empty.
    most_completed: usize,
    /// The counters of counted operations.
    counters: Slab<(), Counts>,
    /// The memory of ended operations. The caller drops this memory while nothing is borrowed, because the drop may run code of the
    /// application.
    freed: Vec<Freed<B>>,
}

/// Adds the index of an operation within a list to its error, which may have an index within the operation.
fn behind(index: usize, error: Error) -> Error {
    let within = error.index().unwrap_or(0);
    error.at_index(Some(index + within))
}

impl<B> Table<B> {
    /// Makes a table in which the application may have `limit` operations open per endpoint, and at least one.
    pub fn new(limit: usize) -> Table<B> {
        Table {
            slab: Slab::default(),
            lists: Vec::new(),
            apart: Vec::new(),
            orphans: List::default(),
            limit: u32::try_from(limit).unwrap_or(u32::MAX).max(1),
            open: 0,
            todo: Vec::new(),
            due: Vec::new(),
            completed: VecDeque::new(),
            most_completed: 0,
            counters: Slab::default(),
            freed: Vec::new(),
        }
    }

    /// Returns the number of open operations.
    pub fn open_count(&self) -> usize {
        self.open
    }

    /// Returns the number of open operations of an endpoint, without rendezvous messages.
    pub fn open_of(&self, owner: usize) -> usize {
        self.lists.get(owner).map_or(0, |list| list.open as usize)
    }

    /// Returns the number of open operations of an endpoint that are no parts of others, without rendezvous messages.
    pub fn open_wholes(&self, owner: usize) -> usize {
        let whole = |id: &Id| self.slab.cold(*id).is_none_or(|cold| cold.then.is_empty());
        let whole = |id: &Id| whole(id) || self.is_followed(*id);
        self.ids_of(owner, |_| true).iter().filter(|id| whole(id)).count()
    }

    /// Opens an operation that ends after one event. `Again`: the endpoint already has `limit` open operations.
    pub fn open(&mut self, owner: usize, kind: Kind) -> Result<Id, Status> {
        self.open_with(owner, kind, 0)
    }

    fn open_with(&mut self, owner: usize, kind: Kind, flags: u16) -> Result<Id, Status> {
        if self.open_of(owner) >= self.limit as usize {
            return Err(Status::Again);
        }
        self.insert(owner, kind, flags)
    }

    /// Opens an operation that the core posts for itself. The limit does not apply.
    pub fn open_inner(&mut self, owner: usize, kind: Kind) -> Result<Id, Status> {
        self.insert(owner, kind, 0)
    }

    /// Opens an operation whose result is not requested: the next flush reports its failure.
    pub fn open_late(&mut self, owner: usize, kind: Kind) -> Result<Id, Status> {
        self.insert(owner, kind, DETACHED)
    }

    /// Opens a part of another operation: `of` waits for the part.
    pub fn open_part(&mut self, of: Id, owner: usize, kind: Kind) -> Result<Id, Status> {
        let id = self.insert(owner, kind, DETACHED)?;
        self.then(id, of);
        Ok(id)
    }

    fn insert(&mut self, owner: usize, kind: Kind, flags: u16) -> Result<Id, Status> {
        let owner = u32::try_from(owner).ok().filter(|owner| *owner < apart::APART);
        let owner = owner.ok_or(Status::NoMemory)?;
        let _ = self.own_list(owner as usize);
        self.insert_into(owner, kind, flags)
    }

    fn insert_into(&mut self, owner: u32, kind: Kind, flags: u16) -> Result<Id, Status> {
        let owner_and_interface = owner | u32::from(NOWHERE) << 24;
        let kind_and_flags = (kind as u16) << KIND_SHIFT | flags;
        let hot = Hot { kind_and_flags, parts: 1, owner_and_interface, ..Hot::default() };
        let id = self.slab.insert(hot).ok_or(Status::NoMemory)?;
        self.link(id, owner);
        self.open += 1;
        Ok(id)
    }

    /// Returns the list of an endpoint, which is created if it does not exist.
    #[inline(always)] // inlined into the functions that open a put
    fn own_list(&mut self, owner: usize) -> &mut List {
        if self.lists.len() <= owner {
            self.make_list(owner);
        }
        &mut self.lists[owner]
    }

    #[cold]
    fn make_list(&mut self, owner: usize) {
        self.lists.resize_with(owner + 1, List::default);
    }

    fn list(&mut self, owner: u32) -> &mut List {
        match self.lists.get_mut(owner as usize) {
            Some(list) => list,
            None => match self.apart.get_mut((owner ^ apart::APART) as usize) {
                Some(list) => list,
                None => &mut self.orphans,
            },
        }
    }

    fn link(&mut self, id: Id, owner: u32) {
        let at = id.place() as u32;
        let list = self.list(owner);
        let last = std::mem::replace(&mut list.last, at);
        list.open += 1;
        if last == NONE {
            list.first = at;
        } else if let Some(hot) = self.hot_at(last) {
            hot.after = at;
        }
        if let Some(hot) = self.slab.get_mut(id) {
            (hot.before, hot.after) = (last, NONE);
            hot.owner_and_interface = hot.owner_and_interface & !NOBODY | owner;
        }
    }

    fn hot_at(&mut self, place: u32) -> Option<&mut Hot> {
        self.slab.at_mut(place as usize)
    }

    /// Removes an operation from its owner's list. Returns the flush that reaches the head as a result, if there is one.
    fn unlink(&mut self, hot: Hot) -> Option<Id> {
        self.unlink_between(hot.owner(), hot.before, hot.after)
    }

    /// Removes the operation between these two neighbours from its owner's list.
    #[inline(always)]
    fn unlink_between(&mut self, owner: u32, before: u32, after: u32) -> Option<Id> {
        let mut flush = false;
        if after != NONE {
            if let Some(hot) = self.hot_at(after) {
                hot.before = before;
                flush = hot.is_kind(Kind::Flush);
            }
        }
        let list = self.list(owner);
        list.open -= 1;
        if after == NONE {
            list.last = before;
        }
        if before == NONE {
            list.first = after;
            return if flush { self.slab.at(after as usize) } else { None };
        }
        if let Some(hot) = self.hot_at(before) {
            hot.after = after;
        }
        None
    }

    fn open_hot(&mut self, id: Id) -> Option<&mut Hot> {
        self.slab.get_mut(id).filter(|hot| !hot.is(ENDED))
    }

    /// Checks whether the table contains the operation and it has not ended.
    pub fn is_open(&self, id: Id) -> bool {
        self.slab.get(id).is_some_and(|hot| !hot.is(ENDED))
    }

    /// Sets the memory that is kept with the operation until the operation ends.
    pub fn set_local_buffer(&mut self, id: Id, local_buffer: B) {
        if let Some(cold) = self.cold_mut(id) {
            cold.local_buffer = Some(local_buffer);
        }
    }

    /// Records that a provider has accepted the operation at this interface and will report its outcome.
    #[inline]
    pub fn posted(&mut self, id: Id, interface: usize) {
        let interface = narrow(interface) as u32;
        if let Some(hot) = self.open_hot(id) {
            hot.set(POSTED);
            hot.owner_and_interface = hot.owner_and_interface & NOBODY | interface << 24;
        }
    }

    /// Makes the operation drop the value that its completion carries.
    pub fn silence(&mut self, id: Id) {
        if let Some(hot) = self.slab.get_mut(id) {
            hot.set(SILENT);
        }
    }

    /// Makes `waits` wait for `of`, if both are open.
    pub fn then(&mut self, of: Id, waits: Id) {
        let open = self.is_open(of);
        let Some(hot) = self.open_hot(waits).filter(|_| open) else { return };
        hot.parts += 1;
        if let Some(cold) = self.cold_mut(of) {
            cold.then.push(waits);
        }
    }

    /// Checks the local memory of an operation that has not ended. `false`: there is none.
    pub fn holds(&self, id: u64, which: impl Fn(&B) -> bool) -> bool {
        let cold = Id::from_raw(id).and_then(|id| self.slab.cold(id));
        cold.and_then(|cold| cold.local_buffer.as_ref()).is_some_and(which)
    }

    /// Records that `of` is the descriptor with this index of the list that waits for it, or several descriptors from this index on. An
    /// error of `of` may then have an index among these.
    pub fn set_index(&mut self, of: Id, index: usize) {
        if let Some(cold) = self.cold_mut(of) {
            cold.index = Some(index);
        }
    }

    /// Returns the number of events that the operation still needs.
    pub fn parts(&self, id: Id) -> u16 {
        self.slab.get(id).filter(|hot| !hot.is(ENDED)).map_or(0, |hot| hot.parts)
    }

    /// Returns the first error that was recorded for an operation, or for the parts for which it waits.
    pub fn trouble(&mut self, id: Id) -> Option<Error> {
        self.cold_mut(id)?.error.clone()
    }

    /// Returns the owner of an open operation.
    pub fn owner(&self, id: Id) -> Option<usize> {
        let hot = self.slab.get(id).filter(|hot| !hot.is(ENDED))?;
        Some(apart::home(hot.owner()) as usize)
    }

    /// Records that another endpoint than the owner carries the request of an operation to the peer.
    pub fn carry(&mut self, id: Id, by: usize) {
        if let Some(cold) = self.cold_mut(id) {
            cold.carrier = Some(by);
        }
    }

    /// Returns the endpoint that carried the request of an open operation, and the operation's kind, if the operation waits for a
    /// peer's answer; `None` for all others.
    pub fn asked(&self, id: Id) -> Option<(usize, Kind)> {
        let hot = self.slab.get(id).filter(|hot| !hot.is(ENDED) && hot.kind().is_asked())?;
        let carrier = self.slab.cold(id).and_then(|cold| cold.carrier);
        Some((carrier.unwrap_or(apart::home(hot.owner()) as usize), hot.kind()))
    }

    /// Returns the destination of an open emulated get.
    pub fn buffer_of_get(&mut self, id: Id) -> Option<&mut B> {
        let _ = self.asked(id).filter(|(_, kind)| *kind == Kind::Get)?;
        self.cold_mut(id)?.local_buffer.as_mut()
    }

    /// Records one event of an operation. Returns `true` if this event has ended the operation.
    pub fn part(&mut self, id: Id, result: Result<u64, Error>) -> bool {
        if !self.is_open(id) {
            return false;
        }
        self.todo.push(Part { id, result, bare: false });
        self.run();
        !self.is_open(id)
    }

    /// Records the outcome of an operation at the interface to which it was posted, as the provider reports it. `false`: there is
    /// no such operation.
    pub fn completed(&mut self, cookie: u64, interface: usize, result: Result<u64, Error>) -> bool {
        let Some(id) = Id::from_raw(cookie) else { return false };
        let theirs = |hot: &&mut Hot| hot.is_kind(Kind::Native) && hot.is_posted_to(interface);
        let Some(hot) = self.open_hot(id).filter(theirs) else { return false };
        hot.kind_and_flags &= !POSTED;
        let canceled = result.as_ref().is_err_and(|error| error.status() == Status::Canceled);
        if canceled && self.cold_mut(id).is_some_and(|cold| cold.wanted_back) {
            // The caller asked for the cancellation, so no flush reports it.
            if let Some(hot) = self.slab.get_mut(id) {
                hot.set(TOLD);
            }
        }
        let bare = result.is_err();
        self.todo.push(Part { id, result, bare });
        self.run();
        true
    }

    fn run(&mut self) {
        while let Some(part) = self.todo.pop() {
            self.take_part(part);
        }
    }

    fn take_part(&mut self, part: Part) {
        let Part { id, result, bare } = part;
        let Some(hot) = self.open_hot(id) else { return };
        hot.parts = hot.parts.saturating_sub(1);
        let (last, owner) = (hot.parts == 0, hot.owner());
        let value = match result {
            Ok(value) => value,
            Err(error) => {
                self.spoil(id, error);
                let list = self.list(owner);
                if bare && list.bare.len() < MOST_BARE {
                    list.bare.push(id);
                }
                0
            }
        };
        if last {
            self.end(id, value, bare, true);
        }
    }

    /// Records an error of an operation. The operation ends with the first one; a list ends with that of the lowest index.
    pub fn spoil(&mut self, id: Id, error: Error) {
        let Some(cold) = self.cold_mut(id) else { return };
        let is_later = |known: &Error| match (error.index(), known.index()) {
            (Some(index), Some(known)) => index >= known,
            // The list has the error of its endpoint, and a descriptor adds its index.
            (Some(_), None) => false,
            (None, _) => true,
        };
        if !cold.error.as_ref().is_some_and(is_later) {
            cold.error = Some(error);
        }
    }

    fn end(&mut self, id: Id, value: u64, bare: bool, tells: bool) {
        let Some(cold) = self.cold_mut(id) else { return };
        let local_buffer = cold.local_buffer.take();
        let (error, then) = (cold.error.clone(), std::mem::take(&mut cold.then));
        let (lanes, index) = (cold.lanes, cold.index);
        let result = if error.is_none() { Some(value) } else { None };
        self.freed.extend(local_buffer.map(|memory| (memory, result)));
        let Some(&hot) = self.slab.get(id) else { return };
        let asks = hot.is_kind(Kind::Native) && lanes != 0;
        let unheard = then.is_empty() || asks && !then.iter().any(|id| self.is_asked_for(*id));
        // The error of a flush is reported to its waiter or to the operation that contains the flush, and not to later flushes as
        // well. A fence's flush has neither.
        let heard = hot.is_kind(Kind::Flush) && !(hot.is(DETACHED) && unheard);
        let told = match &error {
            Some(error) if tells && !heard && !hot.is(TOLD) => {
                self.tell_flushes(&hot, error, unheard)
            }
            _ => false,
        };
        if let (Some(error), true) = (&error, tells) {
            self.note_failure(&hot, error);
        }
        let head = self.unlink(hot);
        self.open -= 1;
        if let Some(head) = head {
            self.at_head(head);
        }
        for waits in then {
            // If a fence asked the lane, the lane's error has been reported above.
            let error = error.clone().filter(|_| !(asks && self.is_fence(waits)));
            let error = match index {
                Some(index) => error.map(|error| behind(index, error)),
                None => error,
            };
            let result = error.map_or(Ok(value), Err);
            self.todo.push(Part { id: waits, result, bare });
        }
        let Some(hot) = self.slab.get_mut(id) else { return };
        if hot.is(DETACHED) {
            let _ = self.slab.remove(id);
            return;
        }
        hot.set(ENDED | if error.is_some() { FAILED } else { 0 } | if told { TOLD } else { 0 });
        hot.set_value(if hot.is(SILENT) { 0 } else { value });
        let watched = hot.is(TRACKED | COUNTED | TAKES);
        if hot.is_untold() {
            self.link_untold(id);
        }
        if watched {
            self.told_by_list_or_counter(id);
        }
    }

    /// Removes an operation that no provider has, without any report.
    pub fn withdraw(&mut self, id: Id) {
        if let Some(cold) = self.cold_mut(id) {
            cold.error = None;
        }
        if let Some(hot) = self.open_hot(id) {
            hot.set(DETACHED);
            self.end(id, 0, false, false);
            self.run();
        }
    }
}
