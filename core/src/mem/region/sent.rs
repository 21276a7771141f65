//! The parts of a region that are sent in rendezvous messages. A part stays registered after its message has ended, for the next
//! message with the same bytes to the same peer, so that such a message makes no registration and no allocation.
//!
//! A part waits only if all its registrations are with domains whose keys add no right (`MEMORY_CAP_KEYS_ADD_NO_RIGHT`). While it
//! waits, requests for it by message are refused. A part whose message was canceled, refused or lost does not wait: its receiver
//! may still hold the key, and would read the bytes of another message. The waiting parts of a region end when it is closed.
//!
//! A part of a transient registration waits at its endpoint ([`PartsOfTransient`]), because the registration ends with the message. Its
//! memory may be freed meanwhile: a key that adds no right gives no access to it that the system does not permit anyway. The next
//! message from the same address reads what lies there then.

use super::{Access, Backing, Region, RegionState, Registration};
use crate::Error;
use crate::mem::key::{Form, short_key};
use crate::mem::{DomainSlot, Memory};
use crate::wire::Writer;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use tieline_plugin_api::memory_caps;

/// The maximum number of parts of one region that wait.
const MOST: usize = 16;

/// The receiver of a part's messages: the sender's worker, the number of its endpoint, and the form of key that the peer reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recipient {
    pub(crate) worker: [u8; 16],
    pub(crate) endpoint: u64,
    pub(crate) form: Form,
}

/// The peer to whose messages a part belongs, and the part's key.
pub(super) struct SentTo {
    recipient: Recipient,
    key: Vec<u8>,
    /// The key for a receiver that has kept the other one; `None`: it reads only remote keys with version and checksum.
    short: Option<[u8; 17]>,
    /// Whether the receiver of the last message has kept the key.
    is_kept: bool,
    /// Whether the part was registered as memory that the application owns.
    is_borrowed: bool,
}

impl SentTo {
    fn new(recipient: Recipient, key: Vec<u8>, is_borrowed: bool) -> SentTo {
        SentTo { recipient, short: short_key(&key), key, is_kept: false, is_borrowed }
    }

    /// Returns the key for the next RTS.
    pub(super) fn key(&self) -> &[u8] {
        match &self.short {
            Some(short) if self.is_kept => short,
            _ => &self.key,
        }
    }
}

/// The parts of transient registrations that wait for their next message to the peer of one endpoint.
#[derive(Default)]
pub(crate) struct PartsOfTransient(RefCell<VecDeque<Region>>);

/// The maximum number of parts of transient registrations that wait at an endpoint.
const MOST_OF_TRANSIENT: usize = 8;

impl PartsOfTransient {
    fn take(&self, is_it: impl Fn(&Region) -> bool) -> Option<Region> {
        let mut parts = self.0.borrow_mut();
        let at = parts.iter().position(is_it)?;
        parts.remove(at)
    }

    /// Keeps a part for the next message from its memory.
    pub(crate) fn keep(&self, part: Region) {
        let mut parts = self.0.borrow_mut();
        let left = (parts.len() >= MOST_OF_TRANSIENT).then(|| parts.pop_front());
        parts.push_back(part);
        drop(parts);
        drop(left);
    }
}

/// The parts of a region that wait for their next message. Nothing else refers to them.
#[derive(Default)]
pub(super) struct Waiting(Mutex<Vec<Region>>);

impl Memory {
    /// Makes a region from a part of a region for a message to this peer. [`Region::message_received`] keeps it for the next
    /// message.
    pub(crate) fn part_to_send(
        self: &Arc<Self>,
        of: &Region,
        range: Range<usize>,
        to: &Recipient,
        of_transient: &PartsOfTransient,
    ) -> Result<Region, Error> {
        self.guard.check("a context")?;
        if let Some(part) = of.take_waiting(&range, to, of_transient) {
            return Ok(part);
        }
        // A peer of an earlier release does not know the keys of parts of allocated memory.
        let is_known = |slot: &DomainSlot| {
            to.form == Form::Bare || slot.attr.caps & memory_caps::REGISTER_PARTS == 0
        };
        let mut part = self.part_for_peers(of, range, Access::READ, is_known)?;
        if !part.has_keys_of_modules() {
            let mut key = Writer::default();
            part.append_key(&mut key, to.form)?;
            if let Some(state) = Arc::get_mut(&mut part.inner) {
                let is_borrowed = state.backing.is_borrowed();
                state.sent_to = Some(Box::new(SentTo::new(*to, key.bytes, is_borrowed)));
            }
        }
        Ok(part)
    }
}

impl Region {
    /// Returns the region for its message. A region that cannot wait for another message is dropped and held, so that it ends as
    /// other regions do that are dropped in use.
    pub(crate) fn into_sent(self) -> Region {
        if self.inner.sent_to.is_some() { self } else { self.hold() }
    }

    /// Checks whether a key of the region gives a right to access the memory that a peer has only while the region is registered.
    pub(crate) fn has_keys_of_modules(&self) -> bool {
        let domains = &self.inner.memory.domains;
        let adds_none = |one: &Registration| {
            domains[one.domain].attr.caps & memory_caps::KEYS_ADD_NO_RIGHT != 0
        };
        !self.inner.registrations.iter().all(adds_none)
    }

    /// Takes the waiting part with this range and recipient, and makes it reachable.
    fn take_waiting(
        &self,
        range: &Range<usize>,
        to: &Recipient,
        of_transient: &PartsOfTransient,
    ) -> Option<Region> {
        let inner = &self.inner;
        let (base, len) = (inner.span.range(range.start, range.len()).ok()?, range.len());
        let is_borrowed = inner.backing.is_borrowed();
        let is_it = |part: &Region| {
            let sent_to = part.inner.sent_to.as_ref();
            let span = &part.inner.span;
            (span.base(), span.len()) == (base, len)
                && sent_to.is_some_and(|sent_to| {
                    sent_to.recipient == *to && sent_to.is_borrowed == is_borrowed
                })
        };
        let mut part = match self.is_lent() {
            true => of_transient.take(is_it)?,
            false => {
                let mut waiting = inner.waiting.0.lock().unwrap_or_else(PoisonError::into_inner);
                let at = waiting.iter().position(is_it)?;
                waiting.swap_remove(at)
            }
        };
        let state = Arc::get_mut(&mut part.inner)?;
        state.backing = Backing::Part(self.hold());
        inner.memory.regions.pause(state.id, false);
        Some(part)
    }

    /// Handles the end of a message whose bytes were received: a part that may wait for the next message does, and any other region
    /// is dropped. `is_kept`: the receiver has kept the key. Returns a part of a transient registration, for the endpoint to keep.
    pub(crate) fn message_received(self, is_kept: bool) -> Option<Region> {
        let mut part = self;
        let state = Arc::get_mut(&mut part.inner);
        let state = state.filter(|state| state.memory.guard.same_process())?;
        let sent_to = state.sent_to.as_mut()?;
        sent_to.is_kept = is_kept;
        state.memory.regions.pause(state.id, true);
        let backing = std::mem::replace(&mut state.backing, Backing::Borrowed);
        let Backing::Part(source) = backing else {
            state.backing = backing;
            return None;
        };
        if source.is_lent() {
            return Some(part);
        }
        let left = {
            let waiting = &source.inner.waiting;
            let mut waiting = waiting.0.lock().unwrap_or_else(PoisonError::into_inner);
            if source.inner.revoked.load(Ordering::Acquire) {
                Some(part)
            } else {
                let left = (waiting.len() >= MOST).then(|| waiting.remove(0));
                waiting.push(part);
                left
            }
        };
        if let Some(part) = left {
            end_waiting(part, &source.inner);
        }
        None
    }
}

impl RegionState {
    /// Ends the parts that wait for their next message.
    pub(super) fn end_waiting(&self) {
        let waiting = {
            let mut waiting = self.waiting.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *waiting)
        };
        waiting.into_iter().for_each(|part| end_waiting(part, self));
    }
}

/// Ends a part of a region, which nothing else refers to.
fn end_waiting(part: Region, of: &RegionState) {
    let mut part = part;
    if let Some(state) = Arc::get_mut(&mut part.inner) {
        state.leave(Some(&of.parts));
    }
}
