//! A receive buffer: bytes that a stream has brought and nobody has read yet.

use crate::frame::{HEAD, MAX_MESSAGE};

/// Length of a receive buffer: two of the longest messages.
pub(crate) const BUFFER: usize = 2 * (MAX_MESSAGE + HEAD);

/// Bytes that have arrived and are not read yet, or that events of this round point to.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// The poll in which events may point into it.
    round: u64,
}

impl Buffer {
    pub(crate) fn new() -> Buffer {
        Buffer { bytes: vec![0; BUFFER].into_boxed_slice(), start: 0, end: 0, round: 0 }
    }

    /// What is not read yet.
    #[inline]
    pub(crate) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    #[inline]
    pub(crate) fn consume(&mut self, len: usize) {
        self.start += len;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Makes room: the events of earlier polls do not count any more.
    #[inline]
    pub(crate) fn refresh(&mut self, round: u64) {
        if self.round == round {
            return;
        }
        self.round = round;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 && self.bytes.len() - self.end < BUFFER / 2 {
            // The beginning of a frame, at most once for every half of the buffer.
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    #[inline]
    pub(crate) fn room(&mut self) -> &mut [u8] {
        let end = self.end;
        &mut self.bytes[end..]
    }

    #[inline]
    pub(crate) fn received(&mut self, len: usize) {
        self.end += len;
    }

    /// Puts what another buffer held to the front of this empty one.
    pub(crate) fn refill(&mut self, unread: &[u8]) {
        self.bytes[..unread.len()].copy_from_slice(unread);
        self.end = unread.len();
    }

    /// A buffer that another stream may use.
    pub(crate) fn recycle(&mut self) {
        (self.start, self.end, self.round) = (0, 0, 0);
    }
}
