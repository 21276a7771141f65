//! Memory of an interface's own: slots for packets that leave, and buffers that the library fills with those that come.

use crate::memory::{LocalMemory, desc};
use crate::sys::Local;
use std::sync::Arc;
use tieline_plugin_api::{Failure, Status};
use tieline_registration::{Arena, Piece};

const SLOTS_PER_CHUNK: usize = 16;
/// Buffers that are posted: while one is handed out, others are filled.
pub(super) const BUFFERS: usize = 4;

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

/// A buffer that the library fills from its beginning, one packet behind the other.
pub(super) struct Buffer {
    piece: Piece<LocalMemory>,
    len: usize,
    /// The library has it. It gives it back with the last packet that fits, or with an error.
    pub(super) posted: bool,
    /// Packets in it that have not been handed out, or may still be looked at.
    pub(super) held: usize,
}

impl Buffer {
    pub(super) fn all(arena: &Arc<Arena<LocalMemory>>, len: usize) -> Result<Vec<Buffer>, Failure> {
        let one = |_| Ok(Buffer { piece: arena.take(len, 64)?, len, posted: false, held: 0 });
        (0..BUFFERS).map(one).collect()
    }

    pub(super) fn local(&self) -> Local {
        let base = self.piece.address(0, self.len);
        Local { base, len: self.len, desc: desc(self.piece.registration()) }
    }

    /// The bytes of a packet, if they lie in this buffer.
    #[inline]
    pub(super) fn packet(&self, at: *const u8, len: usize) -> Option<&[u8]> {
        let start = at.addr().checked_sub(self.piece.address(0, self.len).addr())?;
        (start <= self.len && len <= self.len - start).then(|| self.piece.bytes(start, len))
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}
