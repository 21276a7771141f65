//! Pointers into a mapping, together with the mapping.
#![allow(unsafe_code)] // the pointers were checked when they were made

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tieline_plugin_api::abi::Iov;

use crate::sys::Mapping;

/// A word in a mapping.
pub(crate) struct Word {
    at: NonNull<AtomicU64>,
    _map: Arc<Mapping>,
}

impl Word {
    /// Returns the word at `offset`, if the mapping contains it.
    pub(crate) fn of(map: &Arc<Mapping>, offset: usize) -> Option<Word> {
        let at = NonNull::from(map.word(offset)?);
        Some(Word { at, _map: map.clone() })
    }

    /// Returns the word. If the mapping is read-only, only loads are allowed.
    #[inline(always)]
    pub(crate) fn get(&self) -> &AtomicU64 {
        // SAFETY: `of` took the pointer from the mapping, which `_map` keeps alive at the same address.
        unsafe { self.at.as_ref() }
    }
}

/// Bytes of a mapping, for pieces of eight bytes.
pub(crate) struct Words {
    at: NonNull<u8>,
    /// The offset below which a word may be read; 0 if none may.
    readable: u64,
    /// The offset below which a word may be written; 0 if none may.
    writable: u64,
    _map: Arc<Mapping>,
}

impl Words {
    /// Returns the `len` bytes at `start`, for the given access, as far as the mapping permits the access. Returns `None` if the
    /// mapping is shorter.
    pub(crate) fn of(
        map: &Arc<Mapping>,
        start: u64,
        len: u64,
        read: bool,
        write: bool,
    ) -> Option<Words> {
        if !map.holds(start, len) {
            return None;
        }
        let offsets = |granted: bool| if granted { len.saturating_sub(7) } else { 0 };
        Some(Words {
            at: NonNull::new(map.as_ptr().wrapping_add(start as usize))?,
            readable: offsets(read),
            writable: offsets(write && map.is_writable()),
            _map: map.clone(),
        })
    }

    /// Writes a piece of eight bytes at `offset`. Returns `false`, without effect, if the piece has another length or must not be
    /// written there.
    #[inline(always)]
    pub(crate) fn put(&self, offset: u64, piece: &Iov) -> bool {
        if piece.len != 8 || offset >= self.writable {
            return false;
        }
        // SAFETY: `offset + 8` is at most the length that `of` checked against the mapping, which is writable and which `_map`
        // keeps alive. By the ABI the core guarantees the piece. The word is written with one store, so that a process that polls
        // an aligned word never sees half of it.
        unsafe {
            let word = piece.base.cast::<u64>().read_unaligned();
            self.at.as_ptr().add(offset as usize).cast::<u64>().write_unaligned(word);
        }
        true
    }

    /// Reads a word into a piece; otherwise like [`put`](Words::put).
    #[inline(always)]
    pub(crate) fn get(&self, offset: u64, piece: &Iov) -> bool {
        if piece.len != 8 || offset >= self.readable {
            return false;
        }
        // SAFETY: `offset + 8` is at most the length of the mapping, which `_map` keeps alive. By the ABI the core guarantees the
        // piece. One load reads the word, so that an aligned word is never a mix of two values.
        unsafe {
            let word = self.at.as_ptr().add(offset as usize).cast::<u64>().read_unaligned();
            piece.base.cast::<u64>().write_unaligned(word);
        }
        true
    }
}

/// Compares watch words as the core does. `false`: a word has changed, or the list is empty.
#[cfg(test)]
pub(crate) fn unchanged(watch: &tieline_plugin_api::abi::Watch) -> bool {
    use std::sync::atomic::Ordering;
    let words = watch.words();
    let same = |(at, seen): &(*const u64, u64)| {
        // SAFETY: a listed word is aligned and mapped. The caller is the interface's thread, and no call on the interface is in
        // progress.
        let word = unsafe { &*at.cast::<AtomicU64>() };
        word.load(Ordering::Relaxed) == *seen
    };
    !words.is_empty() && words.iter().all(same)
}
