//! The pieces of an outbox that one system call writes.

use crate::sys::Piece;

use crate::regions::Pin;
use crate::sys;

/// Pieces and bytes that are handed to the kernel at once.
const MOST_PIECES: usize = 64;
const MOST_BYTES: usize = 512 << 10;

/// Pieces for one system call.
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
