//! The table of open operations.
//!
//! Every operation has an *owner*, the endpoint that it was posted on, and stands in its owner's list in the order of
//! posting. That order is all that a flush needs: it is an operation too, and it is complete when nothing stands before
//! it. So whatever completes later, a device's put, a copy that a peer shares, an emulated atomic, a queued message, is
//! waited for because it is here, and for no other reason.
//!
//! An operation ends once. What ends it depends on its kind: a provider's completion ends only what was posted to that
//! interface, an answer of a peer only what asks for one.

mod apart;
mod ends;
mod flushes;
mod keys;
mod looks;
mod plain;
mod tracked;

use tracked::Completed;
pub(crate) use tracked::Counts;

use super::LocalBuffer;
use super::held::{Unfinished, narrow};
use super::slab::{Id, Slab};
use crate::{Error, Status};
use std::collections::VecDeque;

/// What an operation waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Kind {
    /// To be sent: a message in the queue, or the sending of an emulated put that completes locally.
    #[default]
    Send,
    /// A provider's completion, once it is posted.
    Native,
    /// A peer's answer to an emulated put.
    Put,
    /// The data of an emulated get.
    Get,
    /// A peer's answer to an emulated atomic.
    Atomic,
    /// The same for one that brings the value from before.
    Fetch,
    /// A peer's answer that it has handled what was sent before.
    Ping,
    /// Both ends of a shared copy.
    Copy,
    /// Everything before it.
    Flush,
    /// Its parts, which are operations too.
    Whole,
    /// The receiver's word of a message that was announced. No flush waits for it: see `apart`.
    Announced,
    /// The key that a handle stands for, which its owner says.
    Key,
}

/// By number, with room for what sixteen kinds would be.
const KINDS: [Kind; 16] = {
    use Kind::*;
    [
        Send, Native, Put, Get, Atomic, Fetch, Ping, Copy, Flush, Whole, Announced, Key, Send,
        Send, Send, Send,
    ]
};

impl Kind {
    /// Whether a peer's word ends it.
    fn is_asked(self) -> bool {
        use Kind::*;
        matches!(self, Put | Get | Atomic | Fetch | Ping | Announced | Key)
    }
}

const ENDED: u16 = 1;
/// Ended, with an error.
const FAILED: u16 = 2;
/// Nobody will ask for its result.
const DETACHED: u16 = 4;
/// A provider has it, and may touch its memory until it says how it ended.
const POSTED: u16 = 8;
/// A flush that has something to do when it is at the head.
const THEN_LANES: u16 = 16;
/// A flush that has been at the head.
const REACHED: u16 = 32;
/// It brings no value, whatever comes with its end.
const SILENT: u16 = 64;
/// Somebody has heard how it failed, or nobody is left to hear it.
const TOLD: u16 = 128;
/// The worker's list of the completed tells how it ended, with the application's word.
const TRACKED: u16 = 256;
/// It is only counted; the application's word is the counter's number.
const COUNTED: u16 = 512;
/// The transfer of a message that was announced here: its end is due, see `apart`.
const TAKES: u16 = 1024;
/// Nothing of it is on the cold side, see `plain`.
const PLAIN: u16 = 2048;
/// Above the flags: what it waits for.
const KIND_SHIFT: u32 = 12;

const NOBODY: u32 = 0x00ff_ffff;
const NOWHERE: u8 = u8::MAX;
const NONE: u32 = u32::MAX;

/// What every use of an operation touches. With its number it fills half a cache line.
#[derive(Clone, Copy)]
struct Hot {
    kind_and_flags: u16,
    /// Events that must come before it is complete.
    parts: u16,
    /// The endpoint's index, and in the highest byte the interface that it is posted to.
    owner_and_interface: u32,
    /// Its neighbours in the owner's list while it is open, and in that of failures that nobody was told; its value otherwise.
    before: u32,
    after: u32,
    /// The application's word, of what is tracked; the counter's number, of what is counted.
    user: u64,
}

const _: () = assert!(size_of::<Hot>() == 24);

impl Default for Hot {
    fn default() -> Hot {
        Hot {
            kind_and_flags: 0,
            parts: 0,
            owner_and_interface: NOBODY | u32::from(NOWHERE) << 24,
            before: NONE,
            after: NONE,
            user: 0,
        }
    }
}

impl Hot {
    fn owner(&self) -> u32 {
        self.owner_and_interface & NOBODY
    }

    fn interface(&self) -> u8 {
        (self.owner_and_interface >> 24) as u8
    }

    fn is(&self, flag: u16) -> bool {
        self.kind_and_flags & flag != 0
    }

    fn set(&mut self, flags: u16) {
        self.kind_and_flags |= flags;
    }

    fn kind(&self) -> Kind {
        KINDS[usize::from(self.kind_and_flags >> KIND_SHIFT)]
    }

    /// The same, for less.
    fn is_kind(&self, kind: Kind) -> bool {
        self.kind_and_flags >> KIND_SHIFT == kind as u16
    }

    /// Whether it has failed, and who has its request may still ask how.
    fn is_untold(&self) -> bool {
        self.kind_and_flags & (FAILED | TOLD) == FAILED
    }

    /// Whether it is posted to this interface, and not complete.
    fn is_posted_to(&self, interface: usize) -> bool {
        self.is(POSTED) && usize::from(self.interface()) == narrow(interface)
    }

    fn value(&self) -> u64 {
        u64::from(self.before) | u64::from(self.after) << 32
    }

    fn set_value(&mut self, value: u64) {
        (self.before, self.after) = (value as u32, (value >> 32) as u32);
    }
}

/// What few operations have.
#[derive(Default)]
struct Cold {
    local_buffer: Option<LocalBuffer>,
    error: Option<Error>,
    /// Who posted it wants it back, and its provider has been asked.
    wanted_back: bool,
    /// Of a flush: the lanes over which what it covers may have gone, and that it has not asked itself. Of what asks a lane: that lane.
    lanes: u64,
    /// Operations that this one is a part of, or that wait for it.
    then: Vec<Id>,
}

/// An endpoint's operations.
struct List {
    first: u32,
    last: u32,
    open: u32,
    /// The first failure that nobody was told: the next flush says it.
    late: Option<Error>,
    /// The last of the operations that have failed, and that may still be asked for.
    untold: u32,
    /// Operations that failed with a status and no text; `explain` adds the text if the provider gives it later.
    bare: Vec<Id>,
}

impl Default for List {
    fn default() -> List {
        List { first: NONE, last: NONE, open: 0, late: None, untold: NONE, bare: Vec::new() }
    }
}

/// Most of these that are kept for each endpoint.
const MOST_BARE: usize = 256;

/// One event of an operation that is to be dealt with.
struct Part {
    id: Id,
    result: Result<u64, Error>,
    bare: bool,
}

/// The open operations of a worker, and the ended ones that somebody may still ask for.
pub(crate) struct Table {
    slab: Slab<Hot, Cold>,
    lists: Vec<List>,
    /// What no flush waits for, by endpoint too.
    apart: Vec<List>,
    /// What endpoints left behind when they were dropped and that a provider still has.
    orphans: List,
    /// How many operations an endpoint may have open.
    limit: u32,
    open: usize,
    todo: Vec<Part>,
    /// Flushes before which nothing stands any more, and that now have to flush their lanes. In any order.
    due: Vec<Id>,
    /// Tracked operations that have ended, in that order, until somebody takes them.
    completed: VecDeque<Completed>,
    /// The most that it had since it was empty.
    most_completed: usize,
    /// The counters that operations name.
    counters: Slab<(), Counts>,
    /// Memory of ended operations: to be let go when nothing is borrowed, since its owner's drop may do anything.
    freed: Vec<LocalBuffer>,
}

impl Table {
    /// A table in which each endpoint may have `limit` operations open.
    pub(crate) fn new(limit: usize) -> Table {
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

    /// How many operations are open.
    pub(crate) fn open_count(&self) -> usize {
        self.open
    }

    /// How many of them an endpoint has.
    pub(crate) fn open_of(&self, owner: usize) -> usize {
        self.lists.get(owner).map_or(0, |list| list.open as usize)
    }

    /// The same without operations that another one waits for.
    pub(crate) fn open_wholes(&self, owner: usize) -> usize {
        let whole = |id: &Id| self.slab.cold(*id).is_none_or(|cold| cold.then.is_empty());
        self.ids_of(owner, |_| true).iter().filter(|id| whole(id)).count()
    }

    // ---- opening ----

    /// Opens an operation that ends after one event. `Again`: the endpoint has as many as it may.
    pub(crate) fn open(&mut self, owner: usize, kind: Kind) -> Result<Id, Status> {
        if self.open_of(owner) >= self.limit as usize {
            return Err(Status::Again);
        }
        self.insert(owner, kind, 0)
    }

    /// The same for what an application did not ask for by itself, and that is bounded by what it belongs to.
    pub(crate) fn open_inner(&mut self, owner: usize, kind: Kind) -> Result<Id, Status> {
        self.insert(owner, kind, 0)
    }

    /// Opens an operation whose result nobody asks for: its failure is for the next flush.
    pub(crate) fn open_late(&mut self, owner: usize, kind: Kind) -> Result<Id, Status> {
        self.insert(owner, kind, DETACHED)
    }

    /// Opens a part of another operation: `of` ends only after the part has.
    pub(crate) fn open_part(&mut self, of: Id, owner: usize, kind: Kind) -> Result<Id, Status> {
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

    /// The list of an endpoint that is there, which may have had no operation yet.
    #[inline(always)] // into what opens a put
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

    /// Takes an operation out of its owner's list. Returns a flush that thereby is at the head.
    fn unlink(&mut self, hot: Hot) -> Option<Id> {
        self.unlink_between(hot.owner(), hot.before, hot.after)
    }

    /// The same of one that stands between these.
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

    // ---- while it is open ----

    fn open_hot(&mut self, id: Id) -> Option<&mut Hot> {
        self.slab.get_mut(id).filter(|hot| !hot.is(ENDED))
    }

    /// Whether it has not ended.
    pub(crate) fn is_open(&self, id: Id) -> bool {
        self.slab.get(id).is_some_and(|hot| !hot.is(ENDED))
    }

    /// What it reads from or writes to, to be kept until it ends.
    pub(crate) fn set_local_buffer(&mut self, id: Id, local_buffer: LocalBuffer) {
        if let Some(cold) = self.cold_mut(id) {
            cold.local_buffer = Some(local_buffer);
        }
    }

    /// A provider has taken the operation at this interface and will say how it ended.
    #[inline]
    pub(crate) fn posted(&mut self, id: Id, interface: usize) {
        let interface = narrow(interface) as u32;
        if let Some(hot) = self.open_hot(id) {
            hot.set(POSTED);
            hot.owner_and_interface = hot.owner_and_interface & NOBODY | interface << 24;
        }
    }

    /// Whatever value comes with its end, it brings none.
    pub(crate) fn silence(&mut self, id: Id) {
        if let Some(hot) = self.slab.get_mut(id) {
            hot.set(SILENT);
        }
    }

    /// `waits` does not end before `of` has.
    pub(crate) fn then(&mut self, of: Id, waits: Id) {
        let open = self.is_open(of);
        let Some(hot) = self.open_hot(waits).filter(|_| open) else { return };
        hot.parts += 1;
        if let Some(cold) = self.cold_mut(of) {
            cold.then.push(waits);
        }
    }

    /// Events that it still takes to end it.
    pub(crate) fn parts(&self, id: Id) -> u16 {
        self.slab.get(id).filter(|hot| !hot.is(ENDED)).map_or(0, |hot| hot.parts)
    }

    /// What has gone wrong with an open operation, or with what it waits for.
    pub(crate) fn trouble(&mut self, id: Id) -> Option<Error> {
        self.cold_mut(id)?.error.clone()
    }

    /// Whose an open operation is.
    pub(crate) fn owner(&self, id: Id) -> Option<usize> {
        let hot = self.slab.get(id).filter(|hot| !hot.is(ENDED))?;
        Some(apart::home(hot.owner()) as usize)
    }

    /// Whose an open operation is that only a peer's answer ends, and of which kind; `None` for all others.
    pub(crate) fn asked(&self, id: Id) -> Option<(usize, Kind)> {
        let hot = self.slab.get(id).filter(|hot| !hot.is(ENDED) && hot.kind().is_asked())?;
        Some((apart::home(hot.owner()) as usize, hot.kind()))
    }

    /// Where the data of an emulated get goes.
    pub(crate) fn buffer_of_get(&mut self, id: Id) -> Option<&mut LocalBuffer> {
        let _ = self.asked(id).filter(|(_, kind)| *kind == Kind::Get)?;
        self.cold_mut(id)?.local_buffer.as_mut()
    }

    // ---- ending ----

    /// One of its events has come; `true` when that was the last one.
    pub(crate) fn part(&mut self, id: Id, result: Result<u64, Error>) -> bool {
        if !self.is_open(id) {
            return false;
        }
        self.todo.push(Part { id, result, bare: false });
        self.run();
        !self.is_open(id)
    }

    /// A provider says how something ended that was posted to this interface; `false`: it has nothing of that number.
    pub(crate) fn completed(
        &mut self,
        cookie: u64,
        interface: usize,
        result: Result<u64, Error>,
    ) -> bool {
        let Some(id) = Id::from_raw(cookie) else { return false };
        let theirs = |hot: &&mut Hot| hot.is_kind(Kind::Native) && hot.is_posted_to(interface);
        let Some(hot) = self.open_hot(id).filter(theirs) else { return false };
        hot.kind_and_flags &= !POSTED;
        let canceled = result.as_ref().is_err_and(|error| error.status() == Status::Canceled);
        if canceled && self.cold_mut(id).is_some_and(|cold| cold.wanted_back) {
            // Who asked for that knows it.
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
                self.note_error(id, error);
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

    fn note_error(&mut self, id: Id, error: Error) {
        if let Some(cold) = self.cold_mut(id) {
            let _ = cold.error.get_or_insert(error);
        }
    }

    fn end(&mut self, id: Id, value: u64, bare: bool, tells: bool) {
        let Some(cold) = self.cold_mut(id) else { return };
        let local_buffer = cold.local_buffer.take();
        let (error, then) = (cold.error.clone(), std::mem::take(&mut cold.then));
        let lanes = cold.lanes;
        self.freed.extend(local_buffer);
        let Some(&hot) = self.slab.get(id) else { return };
        let asks = hot.is_kind(Kind::Native) && lanes != 0;
        let unheard = then.is_empty() || asks && !then.iter().any(|id| self.is_asked_for(*id));
        // The error of a flush goes to whoever waits for it, or to the operation that it is a part of, and not to later flushes too.
        let heard = hot.is_kind(Kind::Flush) && !(hot.is(DETACHED) && unheard);
        let told = match &error {
            Some(error) if tells && !heard && !hot.is(TOLD) => {
                self.tell_flushes(&hot, error, unheard)
            }
            _ => false,
        };
        let head = self.unlink(hot);
        self.open -= 1;
        if let Some(head) = head {
            self.at_head(head);
        }
        for waits in then {
            // What a lane says is told above where a fence asked.
            let error = error.clone().filter(|_| !(asks && self.is_fence(waits)));
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

    /// It was not posted after all: nothing of it is left, and nobody is told.
    pub(crate) fn withdraw(&mut self, id: Id) {
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
