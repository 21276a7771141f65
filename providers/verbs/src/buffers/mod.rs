//! Pools of registered buffers of one size. A pool starts empty and grows by chunks on demand, until it has reached its bound.

pub(crate) mod sys;

use crate::abi::ibv_sge;
use crate::memory::LocalMemory;
use crate::sys::Mr;
use std::sync::Arc;
use tieline_plugin_api::{Failure, Status};

/// The memory of all pools of a domain. No peer has a key to that memory.
pub(crate) type Arena = tieline_registration::Arena<LocalMemory>;
/// The bound of an arena, in bytes: more than the pools of several interfaces need with the largest settings.
pub(crate) const MOST: usize = 1 << 38;

/// Contiguous buffers with one local key.
struct Chunk {
    piece: tieline_registration::Piece<LocalMemory>,
    lkey: u32,
}

/// Buffers of one size. A buffer is identified by its number; its taker either has it posted or holds it.
pub(crate) struct Pool {
    arena: Arc<Arena>,
    chunks: Vec<Chunk>,
    free: Vec<u32>,
    size: usize,
    /// Log2 of the number of buffers in a chunk.
    shift: u32,
    most: usize,
}

impl Pool {
    /// Makes a pool of buffers of `size` bytes. It grows by `per_chunk` buffers (a power of two), up to about `most` buffers.
    pub(crate) fn new(arena: &Arc<Arena>, size: usize, per_chunk: usize, most: usize) -> Pool {
        let size = size.next_multiple_of(64);
        let shift = per_chunk.next_power_of_two().trailing_zeros();
        Pool { arena: arena.clone(), chunks: Vec::new(), free: Vec::new(), size, shift, most }
    }

    /// Removes the bound.
    pub(crate) fn unbounded(&mut self) {
        self.most = usize::MAX;
    }

    /// Allocates one more chunk, unless the bound is reached.
    ///
    /// # Errors
    /// [`Status::Again`]: the bound is reached. Others: the memory cannot be allocated.
    pub(crate) fn grow(&mut self) -> Result<(), Failure> {
        let have = self.total();
        if have >= self.most {
            return Err(Status::Again.into());
        }
        let piece = self.arena.take(self.size << self.shift, 64)?;
        let lkey = Mr::lkey(piece.registration());
        self.chunks.push(Chunk { piece, lkey });
        self.free.extend((have as u32..(have + (1 << self.shift)) as u32).rev());
        Ok(())
    }

    /// Takes a free buffer. If none is free, the pool grows within its bound.
    ///
    /// # Errors
    /// [`Status::Again`]: all buffers are in use. Others: the first buffers cannot be allocated.
    pub(crate) fn take(&mut self) -> Result<u32, Status> {
        if self.free.is_empty() {
            // Without memory for more buffers, the caller retries when buffers in flight are returned.
            let some = self.total() > 0;
            self.grow().map_err(|failure| match failure.status {
                Status::NoMemory if some => Status::Again,
                status => status,
            })?;
        }
        self.free.pop().ok_or(Status::Again)
    }

    /// Takes a free buffer without growing the pool.
    pub(crate) fn take_made(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub(crate) fn give(&mut self, buffer: u32) {
        debug_assert!(!self.free.contains(&buffer), "a buffer is given back once");
        self.free.push(buffer);
    }

    /// Returns the number of buffers, free or in use.
    pub(crate) fn total(&self) -> usize {
        self.chunks.len() << self.shift
    }

    /// Returns the total bytes of all buffers.
    pub(crate) fn committed(&self) -> usize {
        self.total() * self.size
    }

    #[inline(always)]
    fn locate(&self, buffer: u32) -> (usize, usize) {
        let slot = buffer as usize & ((1 << self.shift) - 1);
        (buffer as usize >> self.shift, slot * self.size)
    }

    /// Returns the first `len` bytes as a scatter/gather entry.
    pub(crate) fn sge(&self, buffer: u32, len: usize) -> ibv_sge {
        let ((chunk, at), len) = (self.locate(buffer), len.min(self.size));
        let Chunk { piece, lkey } = &self.chunks[chunk];
        let addr = piece.address(at, len).expose_provenance() as u64;
        ibv_sge { addr, length: len as u32, lkey: *lkey }
    }

    /// Returns the whole buffer as a scatter/gather entry.
    pub(crate) fn whole(&self, buffer: u32) -> ibv_sge {
        self.sge(buffer, self.size)
    }

    /// Returns the first `len` bytes.
    #[inline(always)]
    pub(crate) fn bytes(&self, buffer: u32, len: usize) -> &[u8] {
        let (chunk, at) = self.locate(buffer);
        self.chunks[chunk].piece.bytes(at, len.min(self.size))
    }

    /// Returns the whole buffer, writable.
    pub(crate) fn bytes_mut(&mut self, buffer: u32) -> &mut [u8] {
        let ((chunk, at), size) = (self.locate(buffer), self.size);
        self.chunks[chunk].piece.bytes_mut(at, size)
    }

    /// Returns the first eight bytes as a native-endian number.
    pub(crate) fn word(&self, buffer: u32) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(self.bytes(buffer, 8));
        u64::from_ne_bytes(word)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // If a queue pair could not be destroyed, its device may still write to these buffers. Their memory is then never
        // reused.
        let still_used = |chunk: &Chunk| Mr::keeps_buffers(chunk.piece.registration());
        if self.chunks.first().is_some_and(still_used) {
            self.chunks.drain(..).for_each(core::mem::forget);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Pool;
    use crate::double::domain;
    use crate::double::world::{fault, locked, registrations};
    use crate::{RC, UD};
    use tieline_plugin_api::{Domain, Status};

    #[test]
    fn buffers_of_many_interfaces_share_few_registrations_and_leave_none() {
        let (before, domain) = (registrations(), domain(&[]).unwrap());
        let open = |module| domain.open_interface(module, [0; 16]).unwrap();
        let interfaces: Vec<_> = (0..16).flat_map(|_| [open(RC), open(UD)]).collect();
        let made = registrations() - before;
        assert!((1..=16).contains(&made), "{made} for {} interfaces", interfaces.len());
        drop(interfaces);
        assert_eq!(registrations(), before);
    }

    #[test]
    fn pool_reports_committed_bytes_of_free_and_used_buffers() {
        let domain = domain(&[]).unwrap();
        let mut pool = Pool::new(&domain.state.buffers, 100, 4, 8);
        assert_eq!(pool.committed(), 0, "nothing before it is needed");
        let all: Vec<u32> = core::iter::from_fn(|| pool.take().ok()).collect();
        assert_eq!((all.len(), pool.committed()), (8, 8 * 128));
        all.into_iter().for_each(|buffer| pool.give(buffer));
        assert_eq!(pool.committed(), 8 * 128);
    }

    #[test]
    fn take_without_memory_returns_again_or_fails_if_pool_is_empty() {
        let domain = domain(&[]).unwrap();
        let pool = || Pool::new(&domain.state.buffers, 4096, 4, 64);
        let (mut some, mut none) = (pool(), pool());
        let first = some.take().unwrap();
        let held = locked();
        fault(|faults| faults.locked = Some(held));
        let rest = core::iter::from_fn(|| some.take_made()).count();
        assert_eq!((rest, some.total()), (3, 4));
        assert_eq!((some.take(), none.take()), (Err(Status::Again), Err(Status::NoMemory)));
        some.give(first);
        assert_eq!(some.take(), Ok(first));
        fault(|faults| faults.locked = None);
        assert!(some.take().is_ok() && none.take().is_ok());
    }
}
