//! A receive buffer: bytes that a stream has received and that are not parsed yet.

use crate::frame::{HEAD, MAX_MESSAGE};

/// The length of a receive buffer: two of the longest messages.
pub(crate) const BUFFER: usize = 2 * (MAX_MESSAGE + HEAD);

/// Bytes that have arrived and are unread, or that events of the current poll point to.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// The number of the poll in which events may point into the buffer.
    round: u64,
}

impl Buffer {
    pub(crate) fn new() -> Buffer {
        Buffer { bytes: vec![0; BUFFER].into_boxed_slice(), start: 0, end: 0, round: 0 }
    }

    /// Returns the unread bytes.
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

    /// Makes room in the buffer: events of earlier polls do not refer to the buffer any more.
    #[inline]
    pub(crate) fn refresh(&mut self, round: u64) {
        if self.round == round {
            return;
        }
        self.round = round;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 && self.bytes.len() - self.end < BUFFER / 2 {
            // The beginning of a frame is moved at most once for every half of the buffer.
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

    /// Copies the unread bytes of another buffer to the front of this empty buffer.
    pub(crate) fn refill(&mut self, unread: &[u8]) {
        self.bytes[..unread.len()].copy_from_slice(unread);
        self.end = unread.len();
    }

    /// Prepares the buffer for another stream.
    pub(crate) fn recycle(&mut self) {
        (self.start, self.end, self.round) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives `len` bytes, each of which encodes its position.
    fn receive(buffer: &mut Buffer, len: usize) {
        let begin = buffer.unread().len();
        let bytes = (begin..begin + len).map(|n| n as u8);
        buffer.room().iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
        buffer.received(len);
    }

    #[test]
    fn event_payloads_stay_in_place_until_the_next_poll() {
        let mut buffer = Buffer::new();
        buffer.refresh(1);
        receive(&mut buffer, BUFFER - 10);
        let told = buffer.unread().as_ptr();
        buffer.consume(BUFFER - 10);
        buffer.refresh(1);
        assert!(buffer.is_empty() && buffer.room().len() == 10, "there is no room before the next");
        receive(&mut buffer, 10);
        assert_eq!(buffer.unread().as_ptr(), told.wrapping_add(BUFFER - 10));
        buffer.consume(10);
        buffer.refresh(2);
        assert_eq!(buffer.room().len(), BUFFER);
    }

    #[test]
    fn partial_frame_moves_to_front_when_less_than_half_is_free() {
        let mut buffer = Buffer::new();
        buffer.refresh(1);
        receive(&mut buffer, BUFFER / 2);
        buffer.consume(BUFFER / 2 - 7);
        let begun = buffer.unread().to_vec();
        buffer.refresh(2);
        assert_eq!(buffer.unread(), &begun[..]);
        assert_eq!(buffer.room().len(), BUFFER / 2);
        receive(&mut buffer, 1);
        let begun = buffer.unread().to_vec();
        assert_eq!(begun.len(), 8);
        buffer.refresh(3);
        assert_eq!(buffer.unread(), &begun[..]);
        assert_eq!(buffer.room().len(), BUFFER - 8);
        // A frame that fills the buffer begins at the front of the buffer.
        receive(&mut buffer, BUFFER - 8);
        let all = buffer.unread().to_vec();
        buffer.refresh(4);
        assert_eq!(buffer.unread(), &all[..]);
        assert_eq!(buffer.room().len(), 0);
    }

    #[test]
    fn a_buffer_goes_from_one_stream_to_the_next_without_what_it_held() {
        let mut buffer = Buffer::new();
        buffer.refresh(3);
        receive(&mut buffer, 100);
        buffer.consume(40);
        buffer.recycle();
        assert!(buffer.is_empty() && buffer.unread().is_empty());
        buffer.refill(b"the rest of another");
        assert_eq!(buffer.unread(), b"the rest of another");
        assert_eq!(buffer.room().len(), BUFFER - b"the rest of another".len());
    }
}
