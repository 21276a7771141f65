//! The memory of a region, clipped to its length.

#![allow(unsafe_code)]

use super::Region;
use crate::sys::Piece;

impl Region {
    /// Returns the bytes from `offset` on, clipped to the region. The caller must pin the region while it accesses them.
    pub(crate) fn piece(&self, offset: u64, len: usize) -> Piece {
        let at = usize::try_from(offset).unwrap_or(usize::MAX).min(self.len);
        let base = std::ptr::with_exposed_provenance_mut(self.base + at);
        // SAFETY: the range is inside the region. The region's registrant guarantees the memory until the region is revoked and no
        // pin exists.
        unsafe { Piece::new(base, len.min(self.len - at)) }
    }
}
