//! Pointers into a mapping, with the mapping.
#![allow(unsafe_code)] // the pointers were checked when they were made

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tieline_plugin_api::abi::Iov;

use crate::sys::Mapping;

/// One word.
pub(crate) struct Word {
    at: NonNull<AtomicU64>,
    _map: Arc<Mapping>,
}

impl Word {
    /// The word at `offset`, if there is one.
    pub(crate) fn of(map: &Arc<Mapping>, offset: usize) -> Option<Word> {
        let at = NonNull::from(map.word(offset)?);
        Some(Word { at, _map: map.clone() })
    }

    /// The word. One of a read-only mapping is only for loads.
    #[inline(always)]
    pub(crate) fn get(&self) -> &AtomicU64 {
        // SAFETY: `of` had it from the mapping, which is there as long as `_map`, and at the same place.
        unsafe { self.at.as_ref() }
    }
}

/// The first bytes of a mapping, for pieces of eight bytes.
pub(crate) struct Words {
    at: NonNull<u8>,
    /// At offsets below this one, all of a word may be read or written. 0: at none.
    readable: u64,
    writable: u64,
    _map: Arc<Mapping>,
}

impl Words {
    /// Those of the first `len` bytes, to be read and written as told, and as the mapping can be; `None`: it has not as
    /// many.
    pub(crate) fn of(map: &Arc<Mapping>, len: u64, read: bool, write: bool) -> Option<Words> {
        if !map.holds(0, len) {
            return None;
        }
        let offsets = |granted: bool| if granted { len.saturating_sub(7) } else { 0 };
        Some(Words {
            at: NonNull::new(map.as_ptr())?,
            readable: offsets(read),
            writable: offsets(write && map.is_writable()),
            _map: map.clone(),
        })
    }

    /// Writes a piece of eight bytes at `offset`. `false`: nothing was done, it has another length or may not be written
    /// there.
    #[inline(always)]
    pub(crate) fn put(&self, offset: u64, piece: &Iov) -> bool {
        if piece.len != 8 || offset >= self.writable {
            return false;
        }
        // SAFETY: `offset + 8` is at most the length that `of` found inside the mapping, which can be written and is there
        // as long as `_map`. By the ABI the core vouches for the piece. One store: somebody who polls this word must not
        // see half of it.
        unsafe {
            let word = piece.base.cast::<u64>().read_unaligned();
            self.at.as_ptr().add(offset as usize).cast::<u64>().write_unaligned(word);
        }
        true
    }

    /// Reads one into a piece; as [`put`](Words::put).
    #[inline(always)]
    pub(crate) fn get(&self, offset: u64, piece: &Iov) -> bool {
        if piece.len != 8 || offset >= self.readable {
            return false;
        }
        // SAFETY: as in `put`; reading needs no more of the mapping.
        unsafe {
            let word = self.at.as_ptr().add(offset as usize).cast::<u64>().read_unaligned();
            piece.base.cast::<u64>().write_unaligned(word);
        }
        true
    }
}
