//! Puts and gets of blocks at equal distances: rows of a tile, columns of a matrix.
//!
//! If the blocks at the peer form one run, the transfer is one operation with pieces of local memory. Otherwise there is one
//! operation for each run that is contiguous in its block on both sides. A whole operation ends with the last of these and is
//! returned to the caller.

use super::{Endpoint, RemoteKey};
use crate::region::{Access, Region};
use crate::request::Outcome;
use crate::{Error, PostError, Status};
use std::ops::Range;

/// A number of blocks (`count`) of `block` bytes each. The first block begins at `offset`, each later one `stride` bytes after the
/// previous one.
///
/// ```
/// use tieline::Blocks;
/// // Columns 2 to 5 of the rows 10 to 99 of a matrix of 1000 columns of 8 bytes.
/// let tile = Blocks { offset: (10 * 1000 + 2) * 8, block: 4 * 8, stride: 1000 * 8, count: 90 };
/// assert_eq!(tile.len(), Some(90 * 32));
/// assert_eq!(Blocks::run(64, 100).len(), Some(100)); // 100 bytes in one run
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blocks {
    /// The offset of the first block in its region, in bytes.
    pub offset: u64,
    /// The length of each block, in bytes.
    pub block: usize,
    /// The distance from the beginning of one block to that of the next, in bytes. If the distance is less than `block`, the blocks
    /// overlap.
    pub stride: usize,
    /// The number of blocks.
    pub count: usize,
}

impl Blocks {
    /// Returns `len` bytes in one run.
    #[must_use]
    pub const fn run(offset: u64, len: usize) -> Blocks {
        Blocks { offset, block: len, stride: len, count: 1 }
    }

    /// Returns the total number of bytes; `None` if it overflows.
    #[must_use]
    pub fn len(&self) -> Option<usize> {
        self.block.checked_mul(self.count)
    }

    /// Checks whether the total number of bytes is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.block == 0 || self.count == 0
    }

    /// Returns the same bytes as one block if the blocks are adjacent or there is at most one; otherwise the same blocks.
    fn joined(self) -> Blocks {
        match self.len() {
            Some(len) if self.stride == self.block || self.count <= 1 => {
                Blocks::run(self.offset, len)
            }
            _ => self,
        }
    }

    /// Returns the end of the last block, as an offset in the region.
    fn end(&self) -> Option<u64> {
        if self.is_empty() {
            return Some(self.offset);
        }
        let to_last = (self.stride as u64).checked_mul(self.count as u64 - 1)?;
        self.offset.checked_add(to_last)?.checked_add(self.block as u64)
    }

    /// Returns the offset of the first block, and the number of bytes from there to the end of the last one.
    fn extent(&self) -> Option<(usize, usize)> {
        let extent = self.end()? - self.offset;
        Some((usize::try_from(self.offset).ok()?, usize::try_from(extent).ok()?))
    }

    /// Returns the ranges of the region for a range of the blocks' bytes, taken in sequence: for
    /// [`put_pieces`](Endpoint::put_pieces), [`send_regions`](Endpoint::send_regions) and similar calls. For a range outside the
    /// blocks, the iterator is empty.
    pub fn ranges(&self, bytes: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let blocks = *self;
        let is_in = blocks.end().is_some() && blocks.len().is_some_and(|len| bytes.end <= len);
        let end = if is_in { bytes.end } else { 0 };
        let mut at = bytes.start;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (number, into) = (at / blocks.block, at % blocks.block);
            let len = (blocks.block - into).min(end - at);
            at += len;
            let begin = usize::try_from(blocks.offset).ok()? + number * blocks.stride + into;
            Some(begin..begin + len)
        })
    }
}

/// The number of parts of one operation must be below this limit.
const MOST_RUNS: usize = u16::MAX as usize;
/// The maximum number of local blocks for one run at the peer. Each local block takes some 64 bytes until the operation has ended.
const MOST_PIECES: usize = 1 << 20;

impl Endpoint {
    /// Writes blocks of a local region to blocks of the peer's region. The bytes of the local blocks, in sequence, become the bytes
    /// of the remote blocks. Local and remote blocks have the same total length; their block sizes may differ. The put is complete
    /// when all bytes are visible at the target.
    ///
    /// ```
    /// # fn main() -> Result<(), tieline::Error> {
    /// # let context = tieline::Context::open()?;
    /// # let worker = context.worker()?;
    /// # let (memory, there) = (context.alloc(4096)?, context.alloc(4096)?);
    /// # let me = worker.connect(&worker.address()?)?;
    /// # let key = me.import_key(&there.remote_key()?)?;
    /// use tieline::Blocks;
    /// // A column of a matrix of 16 x 16 words becomes the third row of one like it.
    /// let column = Blocks { offset: 5 * 8, block: 8, stride: 16 * 8, count: 16 };
    /// let put = me.put_strided(&memory, column, &key, Blocks::run(3 * 16 * 8, 16 * 8))?;
    /// let _ = worker.finish(put)?;
    /// # Ok(()) }
    /// ```
    ///
    /// If the peer's blocks form one run, this is a [`put_pieces`](Endpoint::put_pieces). Otherwise each run that is contiguous on
    /// both sides counts as one of the endpoint's pending operations. To transfer single scattered words, pack and send them
    /// instead. There is no order between the blocks. If blocks overlap at the peer, each shared byte has one of the values written
    /// to it.
    ///
    /// # Errors
    /// The errors of [`Endpoint::put_pieces`]. [`PostError::Correct`] also if the two lengths differ, and for too many runs: at
    /// least as many as the endpoint may have operations (`TIELINE_QUEUE_BYTES` / 64), or more than 65534. If the peer's blocks
    /// form one run, at most 1048576 local blocks are accepted. [`PostError::Retry`]: none or only a part of the blocks was posted,
    /// and the posted part continues. Post the whole put again, with the local bytes unchanged. After any other error, the posted
    /// part continues as well, and a flush reports its result.
    pub fn put_strided(
        &self,
        local: &Region,
        from: Blocks,
        key: &RemoteKey,
        to: Blocks,
    ) -> Result<Outcome, PostError> {
        self.post_strided(true, local, from, key, to)
    }

    /// Reads blocks of the peer's region into blocks of a local region; see [`Endpoint::put_strided`]. If local blocks overlap,
    /// each shared byte has one of the values written to it.
    ///
    /// # Errors
    /// The errors of [`Endpoint::put_strided`].
    pub fn get_strided(
        &self,
        local: &Region,
        to: Blocks,
        key: &RemoteKey,
        from: Blocks,
    ) -> Result<Outcome, PostError> {
        self.post_strided(false, local, to, key, from)
    }

    fn post_strided(
        &self,
        put: bool,
        local: &Region,
        here: Blocks,
        key: &RemoteKey,
        there: Blocks,
    ) -> Result<Outcome, PostError> {
        let ep = &self.inner;
        let (here, there) = (here.joined(), there.joined());
        let len = match (here.len(), there.len()) {
            (Some(here), Some(there)) if here == there => here,
            // No memory is that long.
            (None, None) => return Err(too_far(&here).into()),
            _ => return Err(unequal().into()),
        };
        ep.check_local(local)?;
        let (begin, extent) = here.extent().ok_or_else(|| too_far(&here))?;
        let inside = local.inner.span.range(begin, extent);
        let _ = inside.map_err(|status| local.outside(status, begin, extent))?;
        // All checks are made before the first post.
        let (_, extent) = there.extent().ok_or_else(|| too_far(&there))?;
        let needed = if put { Access::WRITE } else { Access::READ };
        ep.prepare(key, None, (needed, there.offset, extent))?;
        if len == 0 {
            return Ok(Outcome::Done(0));
        }
        if there.count == 1 {
            if here.count > MOST_PIECES {
                return Err(too_many_pieces(here.count).into());
            }
            // The lane's limit of pieces does not apply; the library splits the list.
            let pieces: Vec<_> = here.ranges(0..len).map(|range| (local, range)).collect();
            return match put {
                true => self.put_pieces(&pieces, key, there.offset),
                false => self.get_pieces(&pieces, key, there.offset),
            };
        }
        let count = runs(len, here.block, there.block);
        // An operation counts its parts and itself in 16 bits.
        if count >= ep.most_operations().min(MOST_RUNS) {
            return Err(too_many(count).into());
        }
        if !ep.has_room_for(count + 1) {
            return Err(ep.refused(Status::Again));
        }
        // The whole operation is opened after its parts: a fence that a part makes strong waits for every operation that is open.
        let (mut pending, mut posted) = (Vec::new(), Ok(()));
        for number in 0..there.count {
            let mut at = number * there.block;
            let mut offset = there.offset + number as u64 * there.stride as u64;
            for range in here.ranges(at..at + there.block) {
                let n = range.len();
                posted = posted.and_then(|()| {
                    let one = match put {
                        true => self.put(local, range, key, offset),
                        false => self.get(local, range, key, offset),
                    };
                    if let Outcome::Pending(request) = one? {
                        pending.push((request, None));
                    }
                    Ok(())
                });
                (at, offset) = (at + n, offset + n as u64);
            }
        }
        // After an error, the posted parts continue without their requests. A flush reports their results, including failures so far.
        posted.and_then(|()| ep.joined(pending, None))
    }
}

/// Returns the number of parts into which blocks of two lengths divide the same bytes. Both lengths divide the total.
fn runs(len: usize, here: usize, there: usize) -> usize {
    let (mut a, mut b) = (here, there);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    let both = (here / a).checked_mul(there).map_or(0, |both| len / both);
    // If blocks overlap, the number of parts may reach the number of bytes on both sides.
    (len / here - both).saturating_add(len / there)
}

#[cold]
fn unequal() -> Error {
    Error::new(
        Status::Invalid,
        "a put or get of blocks",
        "the local and the remote blocks differ in total length",
        "give both the same length",
    )
}

#[cold]
fn too_far(blocks: &Blocks) -> Error {
    let Blocks { offset, block, stride, count } = blocks;
    Error::new(
        Status::OutOfRange,
        format!("{count} blocks of {block} bytes from offset {offset} on, {stride} bytes apart"),
        "no region is that long",
        "use a range inside the region; a negative distance is not possible",
    )
}

#[cold]
fn too_many(count: usize) -> Error {
    Error::new(
        Status::TooLarge,
        format!("a put or get of {count} blocks at the peer"),
        "an endpoint has fewer operations at a time",
        "post it in parts, or raise TIELINE_QUEUE_BYTES (65534 blocks are the most)",
    )
}

#[cold]
fn too_many_pieces(count: usize) -> Error {
    Error::new(
        Status::TooLarge,
        format!("a put or get of {count} local blocks"),
        format!("one has {MOST_PIECES} at most, each of which takes memory until it has ended"),
        "post it in parts",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(block: usize, stride: usize, count: usize) -> Blocks {
        Blocks { offset: 100, block, stride, count }
    }

    #[test]
    fn blocks_that_touch_are_one_run() {
        assert_eq!(blocks(8, 8, 4).joined(), Blocks::run(100, 32));
        assert_eq!(blocks(8, 99, 1).joined(), Blocks::run(100, 8));
        assert_eq!(blocks(8, 99, 0).joined(), Blocks::run(100, 0));
        for apart in [blocks(8, 9, 2), blocks(8, 7, 2), blocks(usize::MAX, usize::MAX, 2)] {
            assert_eq!(apart.joined(), apart);
        }
    }

    #[test]
    fn the_last_block_ends_where_its_bytes_do() {
        assert_eq!(blocks(8, 10, 3).end(), Some(128));
        assert_eq!(blocks(8, 10, 1).end(), Some(108));
        assert_eq!((blocks(8, 10, 0).end(), blocks(0, 10, 3).end()), (Some(100), Some(100)));
        assert_eq!(blocks(1, usize::MAX, 3).end(), None);
        assert_eq!(Blocks { offset: u64::MAX, ..blocks(8, 8, 1) }.end(), None);
    }

    #[test]
    fn a_range_of_the_bytes_is_the_parts_of_blocks_that_have_them() {
        let of = |bytes: Range<usize>| blocks(4, 10, 3).ranges(bytes).collect::<Vec<_>>();
        assert_eq!(of(0..12), [100..104, 110..114, 120..124]);
        assert_eq!(of(3..9), [103..104, 110..114, 120..121]);
        assert_eq!(of(4..9), [110..114, 120..121]);
        assert_eq!(of(7..12), [113..114, 120..124]);
        assert!(of(5..5).is_empty() && of(12..12).is_empty());
        assert!(of(0..13).is_empty(), "it has no such byte");
        assert!(blocks(0, 10, 3).ranges(0..0).next().is_none());
        assert_eq!(blocks(4, 2, 2).ranges(0..8).collect::<Vec<_>>(), [100..104, 102..106]);
    }

    #[test]
    fn two_lengths_cut_the_same_bytes_in_so_many_parts() {
        assert_eq!(runs(24, 8, 8), 3);
        assert_eq!(runs(24, 12, 8), 4);
        assert_eq!(runs(24, 8, 12), 4);
        assert_eq!(runs(24, 24, 4), 6);
        assert_eq!(runs(6, 3, 2), 4);
    }
}
