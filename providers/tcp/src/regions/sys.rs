//! The memory of a region, as far as it goes.

#![allow(unsafe_code)]

use super::Region;
use crate::sys::Piece;

impl Region {
    /// The bytes from `offset` on, as many as the region has of them. Whoever touches them pins the region.
    pub(crate) fn piece(&self, offset: u64, len: usize) -> Piece {
        let at = usize::try_from(offset).unwrap_or(usize::MAX).min(self.len);
        let base = std::ptr::with_exposed_provenance_mut(self.base + at);
        // SAFETY: inside the region, for which whoever registered it vouches until it is revoked and nobody pins it any more.
        unsafe { Piece::new(base, len.min(self.len - at)) }
    }
}
