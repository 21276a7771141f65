//! A shared copy: a large transfer between two processes of a host that is copied from both ends. While one process is in its
//! put or get, the other, if it is making progress, copies too.
//!
//! The initiator splits the transfer into chunks and takes them from the front. It tells the peer in one
//! message, and the peer takes chunks from the back, copying with its own single-copy module in the other
//! direction. Who takes what is settled by one word in memory that both map (a slot in a region of the
//! initiator): `sequence | taken from the front | taken from the back`, of 16, 24 and 24 bits. A peer that does not look costs
//! one message; one that looks late finds nothing left, or another sequence, and does nothing. A sequence is used up only by
//! a message that was sent, and comes round again after 65 535 of a worker's, whoever they went to: one that lies unread so long
//! claims chunks of another transfer, copies nothing, since its key has ended, and says so.
//!
//! Whoever is asked gets the key of the slots, and one of the bytes of this transfer, which ends with it. It is a process that
//! copies from and to this one's memory anyway: only such a pair shares a copy.
//!
//! Here is what both sides agree on. The initiator is in `endpoint/shared_copy.rs`, the helper in `worker/help.rs`.

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
/// Where the words of a slot lie: claims, which both sides change; chunks that the helper has finished, and whether it failed,
/// which only the helper counts up. The initiator clears all three before it asks.
pub(crate) const CLAIMS: usize = 0;
pub(crate) const FINISHED: usize = 8;
pub(crate) const TROUBLE: usize = 16;
/// The longest piece, in chunks: who copies one makes no progress meanwhile.
const MOST_AT_ONCE: u64 = 16;
const MOST_CHUNKS: u64 = (1 << 24) - 1;

/// The word that both sides take chunks with.
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

    /// Some more from the front, if any of `chunks` is left, and the new word.
    fn take_front(self, chunks: u64) -> Option<(Run, Claims)> {
        let count = self.share(chunks)?;
        Some((Run { first: self.front, count }, Claims { front: self.front + count, ..self }))
    }

    /// The same for who has taken `front` so far. Nobody else takes there, so that a word that says otherwise is not the
    /// helper's work: what the peer writes there might go on without end.
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

    /// Some more from the back.
    pub(crate) fn take_back(self, chunks: u64) -> Option<(Run, Claims)> {
        let count = self.share(chunks)?;
        let back = self.back + count;
        Some((Run { first: chunks - back, count }, Claims { back, ..self }))
    }

    /// How much to take at once: much while much is left, since every piece costs system calls, and little
    /// in the end, so that neither side waits long for the other.
    fn share(self, chunks: u64) -> Option<u64> {
        let left = chunks.checked_sub(self.front + self.back).filter(|&left| left > 0)?;
        Some((left / 4).clamp(1, MOST_AT_ONCE))
    }
}

/// Neighbouring chunks that are copied as one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) count: u64,
}

/// A transfer as both sides see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) put: bool,
    pub(crate) sequence: u16,
    pub(crate) slot: u16,
    pub(crate) len: u64,
    /// Where in the initiator's region.
    pub(crate) at: u64,
    pub(crate) target: Target,
}

impl Plan {
    /// Whether a transfer is short enough to be shared.
    pub(crate) fn fits(len: usize) -> bool {
        len.div_ceil(CHUNK) as u64 <= MOST_CHUNKS
    }

    pub(crate) fn chunks(&self) -> u64 {
        self.len.div_ceil(CHUNK as u64)
    }

    /// Offset and length of a run.
    pub(crate) fn piece(&self, run: Run) -> (u64, u64) {
        let from = run.first * CHUNK as u64;
        (from, (run.count * CHUNK as u64).min(self.len - from))
    }
}

/// The bytes that ask a peer for help: the plan, and the keys of the slots and of the memory.
pub(crate) fn request_bytes(plan: &Plan, control: &[u8], memory: &[u8]) -> Result<Vec<u8>, Status> {
    let mut w = Writer::default();
    let _ = w.u8(u8::from(plan.put)).u16(plan.sequence).u16(plan.slot).u64(plan.len).u64(plan.at);
    plan.target.write(&mut w);
    let _ = w.blob(control)?.blob(memory)?;
    Ok(w.bytes)
}

/// A peer's request for help.
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

/// The slots of a worker's own transfers. Providers register their region while it is borrowed, and call nobody.
#[derive(Default)]
pub(crate) struct Slots {
    region: RefCell<Option<Region>>,
    unavailable: Cell<bool>,
    sequence: Cell<u16>,
    taken: Cell<u32>,
}

impl Slots {
    /// The region that they lie in, allocated on first use.
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

    /// The region, if there is one.
    pub(crate) fn open_region(&self) -> Option<Region> {
        self.region.borrow().clone()
    }

    /// Whether [`Slots::take`] has one.
    pub(crate) fn has_free(&self) -> bool {
        self.taken.get().trailing_ones() < SLOTS as u32
    }

    /// A free slot.
    pub(crate) fn take(&self) -> Option<u16> {
        let free = (!self.taken.get()).trailing_zeros() as usize;
        if free >= SLOTS {
            return None;
        }
        self.taken.set(self.taken.get() | 1 << free);
        Some(free as u16)
    }

    /// Nobody writes to this slot any more: the helper is through, or gone.
    pub(crate) fn give_back(&self, slot: u16) {
        self.taken.set(self.taken.get() & !(1 << slot));
    }

    /// The number of the next transfer; never 0, so that a slot of zeros fits none.
    pub(crate) fn next_sequence(&self) -> u16 {
        self.sequence.get().wrapping_add(1).max(1)
    }

    /// A peer was asked with this number: the next transfer has another one.
    pub(crate) fn used(&self, sequence: u16) {
        self.sequence.set(sequence);
    }

    pub(crate) fn close(&self) {
        let _region = self.region.borrow_mut().take();
    }
}

/// A word of a slot.
pub(crate) fn word(region: &Region, slot: u16, at: usize) -> Result<&AtomicU64, Error> {
    region.atomic_u64(usize::from(slot) * SLOT_BYTES + at)
}

#[cfg(test)]
mod tests;
