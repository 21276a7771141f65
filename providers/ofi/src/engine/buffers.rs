//! Memory of an interface's own: slots for packets that leave, and buffers that the library fills with those that come.

use crate::memory::{LocalMemory, desc};
use crate::sys::Local;
use std::sync::Arc;
use tieline_plugin_api::{Failure, Status};
use tieline_registration::{Arena, Piece};

const SLOTS_PER_CHUNK: usize = 16;
/// Buffers for many packets that are posted: while one is handed out, others are filled.
const BUFFERS: usize = 4;
/// Buffers that the library may have kept for good, each replaced by another one, before nobody believes in it any more.
const LOST: usize = 64;
/// Receives that fail one behind the other.
const FAILURES: usize = 4096;

/// Slots of one size. A slot is a number; whoever took it either has it posted or holds it.
pub(super) struct Slots {
    arena: Arc<Arena<LocalMemory>>,
    chunks: Vec<Piece<LocalMemory>>,
    free: Vec<u32>,
    size: usize,
}

impl Slots {
    pub(super) fn new(arena: &Arc<Arena<LocalMemory>>, size: usize) -> Slots {
        let size = size.next_multiple_of(64);
        Slots { arena: arena.clone(), chunks: Vec::new(), free: Vec::new(), size }
    }

    /// A slot; there are more of them when none is free.
    pub(super) fn take(&mut self) -> Result<u32, Status> {
        if self.free.is_empty() {
            let piece = self.arena.take(self.size * SLOTS_PER_CHUNK, 64);
            self.chunks.push(piece.map_err(|failure| failure.status)?);
            let first = ((self.chunks.len() - 1) * SLOTS_PER_CHUNK) as u32;
            self.free.extend((first..first + SLOTS_PER_CHUNK as u32).rev());
        }
        self.free.pop().ok_or(Status::Again)
    }

    pub(super) fn give(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// The library may write there for ever.
    pub(super) fn leak(&mut self) {
        core::mem::forget(core::mem::take(&mut self.chunks));
    }

    pub(super) fn committed(&self) -> usize {
        self.chunks.len() * SLOTS_PER_CHUNK * self.size
    }

    fn place(&self, slot: u32) -> (usize, usize) {
        let slot = slot as usize;
        (slot / SLOTS_PER_CHUNK, slot % SLOTS_PER_CHUNK * self.size)
    }

    pub(super) fn bytes_mut(&mut self, slot: u32, len: usize) -> &mut [u8] {
        let (chunk, at) = self.place(slot);
        self.chunks[chunk].bytes_mut(at, len.min(self.size))
    }

    /// Where the slot lies, for the library, or for who packs into it.
    pub(super) fn local(&self, slot: u32, len: usize) -> Local {
        let (chunk, at) = self.place(slot);
        let piece = &self.chunks[chunk];
        let len = len.min(self.size);
        Local { base: piece.address(at, len), len, desc: desc(piece.registration()) }
    }
}

/// A buffer that the library fills: with one packet, or from its beginning with one behind the other.
struct Buffer {
    piece: Piece<LocalMemory>,
    /// The library has it.
    posted: bool,
    /// Packets in it that have not been handed out, or may still be looked at.
    held: usize,
}

/// All buffers of an interface.
pub(super) struct Buffers {
    arena: Arc<Arena<LocalMemory>>,
    all: Vec<Buffer>,
    /// Of each.
    len: usize,
    /// Each takes many packets, and the library says with which one it is through with a buffer. Not every provider knows: `ofi_rxm`,
    /// and `tcp` before 1.20, say so with the packet for which the last room was *taken*, while earlier ones are still being
    /// written (libfabric 6e4d0a69f), and `sockets` keeps a buffer whose sender has died. There each packet has its own.
    pub(super) many: bool,
    /// Those that can be posted.
    free: Vec<usize>,
    lost: usize,
    failures: usize,
}

/// What an error of a receive means.
pub(super) enum Mishap {
    Nothing,
    /// The library keeps what it was given, or fails whatever it is given.
    Broken,
}

impl Buffers {
    /// `most`: so many receives the library has at once, 0: nobody knows.
    pub(super) fn new(
        arena: &Arc<Arena<LocalMemory>>,
        many: bool,
        packet: usize,
        bytes: usize,
        most: usize,
    ) -> Result<Buffers, Failure> {
        let (len, count) = match many {
            true => ((bytes / BUFFERS).max(4 * packet), BUFFERS),
            false => (packet.next_multiple_of(64), (bytes / packet).clamp(16, 4096)),
        };
        // What the library takes no receive for would be offered to it at every poll, and keep a sleeper awake.
        let count = if most == 0 { count } else { count.min(most) };
        let all = Vec::with_capacity(count);
        let (arena, free) = (arena.clone(), Vec::new());
        let mut buffers = Buffers { arena, all, len, many, free, lost: 0, failures: 0 };
        (0..count).try_for_each(|_| buffers.add())?;
        Ok(buffers)
    }

    fn add(&mut self) -> Result<(), Failure> {
        let piece = self.arena.take(self.len, 64)?;
        self.free.push(self.all.len());
        self.all.push(Buffer { piece, posted: false, held: 0 });
        Ok(())
    }

    /// The next one that can be posted.
    pub(super) fn next(&mut self) -> Option<usize> {
        let at = self.free.pop()?;
        self.all[at].posted = true;
        Some(at)
    }

    pub(super) fn is_any_free(&self) -> bool {
        !self.free.is_empty()
    }

    pub(super) fn local(&self, at: usize) -> Local {
        let piece = &self.all[at].piece;
        Local { base: piece.address(0, self.len), len: self.len, desc: desc(piece.registration()) }
    }

    /// The bytes of a packet, if they lie in this buffer.
    #[inline]
    pub(super) fn packet(&self, buffer: usize, at: *const u8, len: usize) -> Option<&[u8]> {
        let piece = &self.all[buffer].piece;
        let base = piece.address(0, self.len).addr();
        // Where a packet lies in a buffer of its own, providers need not say.
        let start = if self.many { at.addr().checked_sub(base)? } else { 0 };
        (start <= self.len && len <= self.len - start).then(|| piece.bytes(start, len))
    }

    /// A packet of it waits to be handed out.
    #[inline]
    pub(super) fn hold(&mut self, at: usize) {
        self.all[at].held += 1;
    }

    /// Nobody looks at a packet of it any more.
    #[inline]
    pub(super) fn release(&mut self, at: usize) {
        self.all[at].held -= 1;
        self.reuse(at);
    }

    /// The library is through with it, or has not taken it.
    #[inline]
    pub(super) fn given_back(&mut self, at: usize) {
        self.failures = 0;
        self.all[at].posted = false;
        self.reuse(at);
    }

    #[inline]
    fn reuse(&mut self, at: usize) {
        if !self.all[at].posted && self.all[at].held == 0 {
            self.free.push(at);
        }
    }

    /// A receive has failed, and the library has said whether it is through with the buffer. `ended` says that it is.
    pub(super) fn failed(&mut self, at: usize, ended: bool) -> Mishap {
        self.failures += 1;
        let failures = self.failures;
        if ended {
            self.given_back(at);
            self.failures = failures;
        } else {
            // It may write there still, or never: another one takes its place.
            self.lost += 1;
            if self.add().is_err() {
                return Mishap::Broken;
            }
        }
        if self.lost > LOST || failures > FAILURES { Mishap::Broken } else { Mishap::Nothing }
    }

    /// The library may write there for ever.
    pub(super) fn leak(&mut self) {
        core::mem::forget(core::mem::take(&mut self.all));
        self.free.clear();
    }

    pub(super) fn committed(&self) -> usize {
        self.all.len() * self.len
    }
}

#[cfg(test)]
impl Slots {
    /// These are taken, each once, and no others.
    pub(super) fn check(&self, mut taken: Vec<u32>) {
        taken.extend(&self.free);
        taken.sort_unstable();
        let all: Vec<u32> = (0..(self.chunks.len() * SLOTS_PER_CHUNK) as u32).collect();
        assert_eq!(taken, all, "each slot is taken once, or free once");
    }
}

#[cfg(test)]
impl Buffers {
    /// The library has these, and these are held, once for each packet.
    pub(super) fn check(&self, posted: &std::collections::BTreeSet<usize>, held: &[usize]) {
        for (at, buffer) in self.all.iter().enumerate() {
            let packets = held.iter().filter(|other| **other == at).count();
            let free = self.free.iter().filter(|other| **other == at).count();
            assert_eq!(
                (buffer.posted, buffer.held),
                (posted.contains(&at), packets),
                "buffer {at}"
            );
            assert_eq!(free, usize::from(!buffer.posted && packets == 0), "buffer {at}");
        }
    }
}
