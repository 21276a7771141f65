//! Pieces of regions that one operation takes as one range.

use crate::Status;
use crate::region::Region;
use crate::registry::abi::PackBuffer;
use std::ops::Range;

/// A piece of a region.
struct Piece {
    /// Kept while this is.
    region: Region,
    /// Where it begins in the region.
    at: usize,
    /// The bytes of the whole that it is; never none.
    bytes: Range<usize>,
}

/// Pieces of regions, one behind the other.
pub(crate) struct Pieces(Vec<Piece>);

impl Pieces {
    /// Of ranges that lie in their regions; those without bytes are left out.
    pub(crate) fn new<'a>(pieces: impl Iterator<Item = (&'a Region, Range<usize>)>) -> Pieces {
        let mut end = 0;
        let full = pieces.filter(|(_, range)| !range.is_empty());
        let all = full.map(|(region, range)| {
            let begin = end;
            end += range.len();
            Piece { region: region.hold(), at: range.start, bytes: begin..end }
        });
        Pieces(all.collect())
    }

    /// What the list takes, in bytes.
    pub(crate) fn size(&self) -> usize {
        size_of_val(&self.0[..])
    }

    /// What a range of the whole is, in order: regions, places in them, lengths.
    pub(crate) fn parts(
        &self,
        at: usize,
        len: usize,
    ) -> impl Iterator<Item = (&Region, usize, usize)> {
        let end = at.saturating_add(len);
        let first = self.0.partition_point(|piece| piece.bytes.end <= at);
        let of_it = self.0[first..].iter().take_while(move |piece| piece.bytes.start < end);
        of_it.map(move |piece| {
            let (from, until) = (piece.bytes.start.max(at), piece.bytes.end.min(end));
            (&piece.region, piece.at + (from - piece.bytes.start), until - from)
        })
    }

    /// Appends a range of the whole to a message.
    pub(crate) fn pack(
        &self,
        at: usize,
        len: usize,
        out: &mut PackBuffer<'_>,
    ) -> Result<(), Status> {
        let mut parts = self.parts(at, len);
        parts.try_for_each(|(region, at, len)| out.put_span(&region.inner.span, at, len))
    }

    /// How much of a range of the whole lies in its first `most` pieces.
    pub(crate) fn within(&self, at: usize, len: usize, most: usize) -> usize {
        self.parts(at, len).take(most.max(1)).map(|(_, _, len)| len).sum()
    }
}
