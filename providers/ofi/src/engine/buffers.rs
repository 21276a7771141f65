//! An interface's own memory: slots for outgoing packets, and buffers that the library fills with incoming ones.

use crate::memory::{LocalMemory, desc};
use crate::sys::Local;
use std::sync::Arc;
use tieline_plugin_api::{Failure, Status};
use tieline_registration::{Arena, Piece};

const SLOTS_PER_CHUNK: usize = 16;
/// The number of buffers for many packets, unless the library accepts fewer. While the application uses one buffer, the library
/// fills others.
const BUFFERS: usize = 4;
/// The number of buffers that the library may keep for ever, each replaced by a new one. Beyond this number, the interface fails.
const LOST: usize = 64;
/// The number of consecutive failed receives before the interface fails.
const FAILURES: usize = 4096;

/// Slots of one size. A slot is identified by its number.
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

    /// Takes a free slot; adds more slots if none is free.
    #[inline]
    pub(super) fn take(&mut self) -> Result<u32, Status> {
        match self.free.pop() {
            Some(slot) => Ok(slot),
            None => self.grow(),
        }
    }

    #[cold]
    fn grow(&mut self) -> Result<u32, Status> {
        let piece = self.arena.take(self.size * SLOTS_PER_CHUNK, 64);
        self.chunks.push(piece.map_err(|failure| failure.status)?);
        let first = ((self.chunks.len() - 1) * SLOTS_PER_CHUNK) as u32;
        self.free.extend((first..first + SLOTS_PER_CHUNK as u32).rev());
        self.free.pop().ok_or(Status::Again)
    }

    #[inline]
    pub(super) fn give(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Keeps the memory of the slots for ever, because the library may still write to it.
    pub(super) fn leak(&mut self) {
        core::mem::forget(core::mem::take(&mut self.chunks));
    }

    pub(super) fn committed(&self) -> usize {
        self.chunks.len() * SLOTS_PER_CHUNK * self.size
    }

    #[inline]
    fn place(&self, slot: u32) -> (usize, usize) {
        let slot = slot as usize;
        (slot / SLOTS_PER_CHUNK, slot % SLOTS_PER_CHUNK * self.size)
    }

    pub(super) fn bytes_mut(&mut self, slot: u32, len: usize) -> &mut [u8] {
        let (chunk, at) = self.place(slot);
        self.chunks[chunk].bytes_mut(at, len.min(self.size))
    }

    /// Returns the slot's memory, for the library or for the packer.
    #[inline]
    pub(super) fn local(&self, slot: u32, len: usize) -> Local {
        let (chunk, at) = self.place(slot);
        let piece = &self.chunks[chunk];
        let len = len.min(self.size);
        Local { base: piece.address(at, len), len, desc: desc(piece.registration()) }
    }

    /// Returns the slot's memory, to fill it, and the same for the library.
    #[inline(always)]
    pub(super) fn room(&mut self, slot: u32, len: usize) -> (&mut [u8], Local) {
        let (chunk, at) = self.place(slot);
        let piece = &mut self.chunks[chunk];
        let desc = desc(piece.registration());
        let bytes = piece.bytes_mut(at, len.min(self.size));
        let local = Local { base: bytes.as_mut_ptr(), len: bytes.len(), desc };
        (bytes, local)
    }
}

/// A buffer that the library fills with one packet, or with several packets one after another.
struct Buffer {
    piece: Piece<LocalMemory>,
    /// Whether the library owns the buffer.
    posted: bool,
    /// The number of the buffer's packets that are not delivered yet or may still be read by the application.
    held: usize,
}

/// All buffers of an interface.
pub(super) struct Buffers {
    arena: Arc<Arena<LocalMemory>>,
    all: Vec<Buffer>,
    /// The length of each buffer.
    len: usize,
    /// Whether each buffer takes many packets, and the library reports with which packet it releases the buffer. Not every provider
    /// reports that correctly. `ofi_rxm`, and `tcp` before 1.20, report it with the packet for which the last room was *reserved*,
    /// while earlier packets are still being written (libfabric 6e4d0a69f). `sockets` keeps a buffer whose sender has died. With
    /// `ofi_rxm`, and with all providers over IP addresses, each packet has its own buffer.
    pub(super) many: bool,
    /// The indices of the buffers that can be posted.
    free: Vec<usize>,
    lost: usize,
    failures: usize,
}

/// The consequence of a failed receive.
pub(super) enum Mishap {
    Nothing,
    /// The library keeps too many buffers, too many receives in a row have failed, or there is no memory, so the interface fails.
    Broken,
}

impl Buffers {
    /// Makes the buffers. `most` is the number of receives that the library accepts; 0 if unknown.
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
        // A buffer that the library never accepts would be offered at every poll and keep a sleeper awake.
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

    /// Returns the next buffer that can be posted.
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

    /// Returns the bytes of a packet, if they are inside this buffer.
    #[inline]
    pub(super) fn packet(&self, buffer: usize, at: *const u8, len: usize) -> Option<&[u8]> {
        let piece = &self.all[buffer].piece;
        let base = piece.address(0, self.len).addr();
        // Providers need not report the position of a packet that has its own buffer.
        let start = if self.many { at.addr().checked_sub(base)? } else { 0 };
        (start <= self.len && len <= self.len - start).then(|| piece.bytes(start, len))
    }

    /// Records that one packet of the buffer waits to be delivered.
    #[inline]
    pub(super) fn hold(&mut self, at: usize) {
        self.all[at].held += 1;
    }

    /// Records that one packet of the buffer is not in use any more.
    #[inline]
    pub(super) fn release(&mut self, at: usize) {
        self.all[at].held -= 1;
        self.reuse(at);
    }

    /// Records that the library has released the buffer, or has not accepted it.
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

    /// Handles a failed receive. `ended` states whether the library has released the buffer.
    pub(super) fn failed(&mut self, at: usize, ended: bool) -> Mishap {
        self.failures += 1;
        let failures = self.failures;
        if ended {
            self.given_back(at);
            self.failures = failures;
        } else {
            // The library may still write to this buffer, so another buffer replaces it.
            self.lost += 1;
            if self.add().is_err() {
                return Mishap::Broken;
            }
        }
        if self.lost > LOST || failures > FAILURES { Mishap::Broken } else { Mishap::Nothing }
    }

    /// Keeps the memory of the buffers for ever, because the library may still write to it.
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
    /// Checks that exactly these slots are taken, each once.
    pub(super) fn check(&self, mut taken: Vec<u32>) {
        taken.extend(&self.free);
        taken.sort_unstable();
        let all: Vec<u32> = (0..(self.chunks.len() * SLOTS_PER_CHUNK) as u32).collect();
        assert_eq!(taken, all, "each slot is taken once, or free once");
    }
}

#[cfg(test)]
impl Buffers {
    /// Checks which buffers the library owns, and which are held; `held` names a buffer once for each packet.
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
