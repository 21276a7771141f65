//! Pieces of regions that one operation treats as one range.

use super::region::Region;
use crate::Status;
use std::ops::Range;
use tieline_host::abi::PackBuffer;

/// A piece of a region.
struct Piece {
    /// The region, kept alive as long as the piece.
    region: Region,
    /// The offset of the piece in the region.
    at: usize,
    /// The part of the whole range that this piece covers; never empty.
    bytes: Range<usize>,
}

/// A list of pieces of regions, treated as one range in sequence.
pub(crate) struct Pieces(Vec<Piece>);

impl Pieces {
    /// Collects ranges that lie within their regions; empty ranges are left out.
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

    /// Returns the size of the list in bytes.
    pub(crate) fn size(&self) -> usize {
        size_of_val(&self.0[..])
    }

    /// Returns the parts of a range of the whole, in order: region, offset in the region, length.
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

    /// Returns the number of bytes of a range of the whole that lie in its first `most` pieces.
    pub(crate) fn within(&self, at: usize, len: usize, most: usize) -> usize {
        self.parts(at, len).take(most.max(1)).map(|(_, _, len)| len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::local::{LocalBuffer, Memory};

    fn region() -> Region {
        let context = crate::Context::builder().set("TIELINE_PROVIDERS", "shm").open().unwrap();
        context.alloc(256).unwrap()
    }

    #[test]
    fn a_range_of_the_whole_is_the_parts_of_pieces_that_have_it() {
        let region = region();
        let all = [10..20, 50..50, 100..105, 7..8].map(|range| (&region, range));
        let pieces = Pieces::new(all.into_iter());
        let parts =
            |at, len| pieces.parts(at, len).map(|(_, at, len)| (at, len)).collect::<Vec<_>>();
        assert_eq!(parts(0, 16), [(10, 10), (100, 5), (7, 1)]);
        assert_eq!(parts(9, 2), [(19, 1), (100, 1)]);
        assert_eq!(parts(10, 5), [(100, 5)]);
        assert_eq!(parts(0, 10), [(10, 10)]);
        assert_eq!(parts(3, 4), [(13, 4)]);
        assert_eq!(parts(14, 2), [(104, 1), (7, 1)]);
        assert!(parts(16, 1).is_empty());
        assert_eq!([0, 1, 2, 3].map(|most| pieces.within(0, 16, most)), [10, 10, 15, 16]);
        assert_eq!(pieces.within(9, 7, 2), 6);
        assert_eq!(pieces.size(), 3 * size_of::<Piece>(), "one without bytes takes nothing");
    }

    #[test]
    fn received_data_must_be_in_order_and_within_missing_bytes() {
        let region = region();
        let mut buffer =
            LocalBuffer { memory: Memory::Region(region.hold()), offset: 10, len: 8, missing: 8 };
        assert_eq!(buffer.take(1, b"x"), Err(Status::BadData), "there is one before it");
        assert_eq!(buffer.take(0, b"123456789"), Err(Status::BadData));
        assert_eq!(buffer.take(0, b"abc"), Ok(false));
        assert_eq!(buffer.take(0, b"abc"), Err(Status::BadData), "it came");
        assert_eq!(buffer.take(3, b"defghi"), Err(Status::BadData));
        assert_eq!(buffer.take(u64::MAX, b"d"), Err(Status::BadData));
        assert_eq!(buffer.take(3, b"defgh"), Ok(true));
        let mut seen = [0; 10];
        region.inner.span.read(9, &mut seen).unwrap();
        assert_eq!(&seen, b"\0abcdefgh\0");
    }

    #[test]
    fn received_data_is_scattered_to_pieces() {
        let region = region();
        let pieces = Pieces::new([(&region, 10..13), (&region, 20..22)].into_iter());
        let memory = Memory::Pieces(pieces.into());
        let mut buffer = LocalBuffer { memory, offset: 0, len: 5, missing: 5 };
        assert_eq!(buffer.take(0, b"ab"), Ok(false));
        assert_eq!(buffer.take(2, b"cde"), Ok(true));
        let mut seen = [0; 14];
        region.inner.span.read(9, &mut seen).unwrap();
        assert_eq!(&seen, b"\0abc\0\0\0\0\0\0\0de\0");
    }
}
