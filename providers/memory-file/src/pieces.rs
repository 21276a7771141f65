//! Lists of pieces of memory, cut to the limits of one system call.

use crate::piece::Piece;
use tieline_plugin_api::abi::Iov;

/// A position in a list of pieces.
#[derive(Clone, Copy)]
pub struct Cursor<'a> {
    iov: &'a [Iov],
    /// The number of bytes of the first piece that are finished.
    inside: usize,
}

impl<'a> Cursor<'a> {
    /// Makes a cursor at the first byte. Empty pieces are skipped, since a call with only empty pieces would copy nothing.
    #[must_use]
    pub fn new(iov: &'a [Iov]) -> Cursor<'a> {
        let mut cursor = Cursor { iov, inside: 0 };
        cursor.advance(0);
        cursor
    }

    /// Returns the pieces of the next call, limited by the length of `room` and by `most` bytes, and their total length.
    pub fn batch<'b>(&self, room: &'b mut [Piece<'a>], most: usize) -> (&'b [Piece<'a>], usize) {
        let (mut count, mut bytes, mut skip) = (0, 0, self.inside);
        for (place, piece) in room.iter_mut().zip(self.iov) {
            let len = (piece.len - skip).min(most - bytes);
            *place = Piece::from(piece).part(skip, len);
            (count, bytes, skip) = (count + 1, bytes + len, 0);
            if bytes == most {
                break;
            }
        }
        (&room[..count], bytes)
    }

    /// Advances by `bytes` bytes, and past empty pieces.
    pub fn advance(&mut self, mut bytes: usize) {
        while let Some((first, rest)) = self.iov.split_first() {
            let left = first.len - self.inside;
            if bytes < left {
                self.inside += bytes;
                return;
            }
            bytes -= left;
            self.iov = rest;
            self.inside = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iov(memory: &mut [u8], lens: &[usize]) -> Vec<Iov> {
        let mut at = 0;
        let piece = |len: &usize| {
            at += len;
            Iov::new(memory[at - len..].as_mut_ptr(), *len)
        };
        lens.iter().map(piece).collect()
    }

    #[test]
    fn every_byte_comes_once_and_in_order_however_small_a_call_is() {
        let mut memory = [0u8; 40];
        let start = memory.as_ptr().addr();
        let list = iov(&mut memory, &[0, 7, 0, 0, 1, 12, 20, 0]);
        for (pieces, most) in [(1, 1), (1, 5), (2, 7), (3, 100), (8, 9), (64, 64)] {
            let mut cursor = Cursor::new(&list);
            let mut seen = Vec::new();
            while seen.len() < 40 {
                let mut room = vec![Piece::NONE; pieces];
                let (batch, bytes) = cursor.batch(&mut room, most);
                assert!(bytes > 0 && bytes <= most && batch.len() <= pieces);
                assert_eq!(bytes, batch.iter().map(|piece| piece.len()).sum::<usize>());
                let places = |piece: &Piece<'_>| {
                    let at = piece.base().addr() - start;
                    at..at + piece.len()
                };
                seen.extend(batch.iter().flat_map(places));
                cursor.advance(bytes);
            }
            assert!(seen.iter().copied().eq(0..40), "{pieces} pieces, {most} bytes: {seen:?}");
        }
    }
}
