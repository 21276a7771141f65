//! The pieces of an outbox that one system call writes.

use crate::sys::Piece;

use crate::regions::Pin;
use crate::sys;

/// The numbers of pieces and of bytes from which on no further frame is gathered.
const MOST_PIECES: usize = 64;
const MOST_BYTES: usize = 512 << 10;

/// The pieces for one system call.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) len: usize,
    pub(crate) pins: Vec<Pin>,
}

impl Gathered {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.add_piece(sys::piece(bytes));
    }

    pub(crate) fn add_piece(&mut self, piece: Piece) {
        if piece.len() > 0 {
            self.pieces.push(piece);
            self.len += piece.len();
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.pieces.len() >= MOST_PIECES || self.len >= MOST_BYTES
    }

    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.pins.clear();
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_takes_so_many_pieces_or_bytes_and_empty_ones_are_none() {
        let bytes = vec![0; MOST_BYTES];
        let mut gathered = Gathered::default();
        for count in 0..MOST_PIECES {
            assert_eq!((gathered.is_full(), gathered.len), (false, count));
            gathered.add(&bytes[..1]);
            gathered.add(&[]);
        }
        assert!(gathered.is_full());
        assert_eq!((gathered.pieces.len(), gathered.len), (MOST_PIECES, MOST_PIECES));
        gathered.clear();
        assert_eq!((gathered.pieces.len(), gathered.len, gathered.is_full()), (0, 0, false));
        gathered.add(&bytes[1..]);
        assert!(!gathered.is_full());
        gathered.add(&bytes[..1]);
        assert!(gathered.is_full());
        assert_eq!((gathered.pieces.len(), gathered.len), (2, MOST_BYTES));
    }
}
