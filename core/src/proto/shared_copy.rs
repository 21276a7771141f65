//! A shared copy: both ends copy a large transfer between two processes of a host. The peer copies a part, if it makes progress
//! before the initiator has claimed all chunks.
//!
//! The initiator splits the transfer into chunks and takes them from the front. The initiator notifies the peer in one message. The
//! peer takes chunks from the back and copies with its own single-copy module in the other direction. Both sides claim chunks by
//! one word in memory that both map: a slot in a region of the initiator. The word's layout is `sequence | taken from the front |
//! taken from the back`, of 16, 24 and 24 bits. If the peer makes no progress, the cost is one message and smaller pieces. If the
//! peer reads the message late, it usually finds no chunk left, or another sequence, and does nothing.
//!
//! Only a sent message uses up a sequence number. A number recurs after 65 535 such messages of a worker to any peers. If a message
//! stayed unread until its number recurs, the peer claims chunks of another transfer. The peer then copies nothing, since the
//! message's key has ended, and reports this.
//!
//! The peer gets the key of the slots, and a key of this transfer's bytes, which ends with the transfer. A peer that may not copy
//! the initiator's memory gives up, and the initiator copies alone.
//!
//! This module holds the common part. The initiator is in `endpoint/shared_copy.rs`, the helper in `worker/help.rs`.

use super::emulate::Target;
use crate::mem::Memory;
use crate::region::{Access, Region};
use crate::wire::{Reader, Writer};
use crate::{Error, Status};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

const SLOTS: usize = 16;
pub(crate) const SLOT_BYTES: usize = 128;
const CHUNK: usize = 64 * 1024;
/// The offsets of a slot's words: claims, which both sides change; finished chunks, and a failure flag, which only the helper
/// increments. The initiator resets all three before it sends the request.
pub(crate) const CLAIMS: usize = 0;
pub(crate) const FINISHED: usize = 8;
pub(crate) const TROUBLE: usize = 16;
/// The maximum length of a piece in chunks: a side makes no progress while it copies a piece.
const MOST_AT_ONCE: u64 = 16;
const MOST_CHUNKS: u64 = (1 << 24) - 1;

/// The word by which both sides claim chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claims {
    pub(crate) sequence: u16,
    pub(crate) front: u64,
    pub(crate) back: u64,
}

impl Claims {
    pub(crate) fn unpack(word: u64) -> Claims {
        Claims {
            sequence: (word >> 48) as u16,
            front: word >> 24 & MOST_CHUNKS,
            back: word & MOST_CHUNKS,
        }
    }

    pub(crate) fn pack(self) -> u64 {
        u64::from(self.sequence) << 48 | self.front << 24 | self.back
    }

    /// Claims chunks from the front, if any of `chunks` is left. Returns the claimed chunks with the new word.
    fn take_front(self, chunks: u64) -> Option<(Run, Claims)> {
        let count = self.share(chunks)?;
        Some((Run { first: self.front, count }, Claims { front: self.front + count, ..self }))
    }

    /// Claims chunks from the front for the initiator, which has taken `front` chunks so far. Only the initiator claims from the
    /// front. If the word differs, no correct helper has written it, and the copy might never end.
    pub(crate) fn next_front(
        self,
        chunks: u64,
        sequence: u16,
        front: u64,
    ) -> Result<Option<(Run, Claims)>, Status> {
        if self.sequence != sequence || self.front != front {
            return Err(Status::BadData);
        }
        Ok(self.take_front(chunks))
    }

    /// Claims chunks from the back, if any of `chunks` is left.
    pub(crate) fn take_back(self, chunks: u64) -> Option<(Run, Claims)> {
        let count = self.share(chunks)?;
        let back = self.back + count;
        Some((Run { first: chunks - back, count }, Claims { back, ..self }))
    }

    /// Returns the number of chunks to claim. The number is large while many chunks remain, because every piece costs system calls.
    /// The number is small towards the end, so that neither side waits long for the other.
    fn share(self, chunks: u64) -> Option<u64> {
        let left = chunks.checked_sub(self.front + self.back).filter(|&left| left > 0)?;
        Some((left / 4).clamp(1, MOST_AT_ONCE))
    }
}

/// A run of neighbouring chunks that are copied as one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) count: u64,
}

/// The parameters of a transfer that both sides have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) put: bool,
    pub(crate) sequence: u16,
    pub(crate) slot: u16,
    pub(crate) len: u64,
    /// The offset in the initiator's region.
    pub(crate) at: u64,
    pub(crate) target: Target,
}

impl Plan {
    /// Checks whether a transfer is short enough for the chunk counters.
    pub(crate) fn fits(len: usize) -> bool {
        len.div_ceil(CHUNK) as u64 <= MOST_CHUNKS
    }

    pub(crate) fn chunks(&self) -> u64 {
        self.len.div_ceil(CHUNK as u64)
    }

    /// Returns the offset and the length of a run.
    pub(crate) fn piece(&self, run: Run) -> (u64, u64) {
        let from = run.first * CHUNK as u64;
        (from, (run.count * CHUNK as u64).min(self.len - from))
    }
}

/// Encodes the request to a peer: the plan, and the keys of the slots and of the memory.
pub(crate) fn request_bytes(plan: &Plan, control: &[u8], memory: &[u8]) -> Result<Vec<u8>, Status> {
    let mut w = Writer::default();
    let _ = w.u8(u8::from(plan.put)).u16(plan.sequence).u16(plan.slot).u64(plan.len).u64(plan.at);
    plan.target.write(&mut w);
    let _ = w.blob(control)?.blob(memory)?;
    Ok(w.bytes)
}

/// Parses a peer's request for help.
pub(crate) fn parse_request(data: &[u8]) -> Result<(Plan, &[u8], &[u8]), Status> {
    let mut r = Reader::new(data);
    let plan = Plan {
        put: r.u8()? != 0,
        sequence: r.u16()?,
        slot: r.u16()?,
        len: r.u64()?,
        at: r.u64()?,
        target: Target::read(&mut r)?,
    };
    if usize::from(plan.slot) >= SLOTS || plan.chunks() > MOST_CHUNKS {
        return Err(Status::BadData);
    }
    Ok((plan, r.blob()?, r.blob()?))
}

/// The slots for a worker's own transfers. Providers allocate and register the slots' region while its cell is borrowed, and call
/// no function of the core then.
#[derive(Default)]
pub(crate) struct Slots {
    region: RefCell<Option<Region>>,
    unavailable: Cell<bool>,
    sequence: Cell<u16>,
    taken: Cell<u32>,
}

impl Slots {
    /// Returns the region of the slots, allocated on first use; `None` if no memory is available that peers map.
    pub(crate) fn region(&self, memory: &Arc<Memory>) -> Option<Region> {
        if self.unavailable.get() {
            return None;
        }
        let mut region = self.region.borrow_mut();
        if region.is_none() {
            *region = memory.alloc(SLOTS * SLOT_BYTES, Access::ALL).ok().filter(Region::is_shared);
            self.unavailable.set(region.is_none());
        }
        region.clone()
    }

    /// Returns the region if it was allocated and the slots are not closed.
    pub(crate) fn open_region(&self) -> Option<Region> {
        self.region.borrow().clone()
    }

    /// Checks whether a slot is free.
    pub(crate) fn has_free(&self) -> bool {
        self.taken.get().trailing_ones() < SLOTS as u32
    }

    /// Takes a free slot.
    pub(crate) fn take(&self) -> Option<u16> {
        let free = (!self.taken.get()).trailing_zeros() as usize;
        if free >= SLOTS {
            return None;
        }
        self.taken.set(self.taken.get() | 1 << free);
        Some(free as u16)
    }

    /// Returns a slot whose helper has finished or is gone, so that nothing writes to the slot any more.
    pub(crate) fn give_back(&self, slot: u16) {
        self.taken.set(self.taken.get() & !(1 << slot));
    }

    /// Returns the sequence number of the next transfer. The number is never 0, so a slot of zeros matches no transfer.
    pub(crate) fn next_sequence(&self) -> u16 {
        self.sequence.get().wrapping_add(1).max(1)
    }

    /// Records that a request with this number was sent, so that the next transfer gets another one.
    pub(crate) fn used(&self, sequence: u16) {
        self.sequence.set(sequence);
    }

    pub(crate) fn close(&self) {
        let _region = self.region.borrow_mut().take();
    }
}

/// Returns a word of a slot.
pub(crate) fn word(region: &Region, slot: u16, at: usize) -> Result<&AtomicU64, Error> {
    region.atomic_u64(usize::from(slot) * SLOT_BYTES + at)
}

#[cfg(test)]
mod tests;
