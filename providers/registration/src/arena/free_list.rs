//! The free parts of an area. This module is pure data.

use std::collections::BTreeMap;

/// The free parts by first byte, each with its end. No two of them are adjacent.
#[derive(Debug)]
pub(super) struct FreeList(BTreeMap<usize, usize>);

impl FreeList {
    /// Makes a list in which everything is free.
    pub(super) fn new(len: usize) -> FreeList {
        FreeList(BTreeMap::from([(0, len)]))
    }

    /// Takes the first free part of this length that begins at a multiple of `align`, and returns its first byte.
    pub(super) fn take(&mut self, len: usize, align: usize) -> Option<usize> {
        let (start, end, at) = self.0.iter().find_map(|(&start, &end)| {
            let at = start.next_multiple_of(align);
            (at + len <= end).then_some((start, end, at))
        })?;
        let _ = self.0.remove(&start);
        for (start, end) in [(start, at), (at + len, end)] {
            if start < end {
                let _ = self.0.insert(start, end);
            }
        }
        Some(at)
    }

    /// Takes back a part that was taken.
    pub(super) fn give(&mut self, at: usize, len: usize) {
        let (mut start, mut end) = (at, at + len);
        if let Some((&before, &until)) = self.0.range(..at).next_back() {
            debug_assert!(until <= at, "a part is given back once");
            if until == at {
                start = before;
            }
        }
        if let Some(until) = self.0.remove(&end) {
            end = until;
        }
        let _ = self.0.insert(start, end);
    }
}
