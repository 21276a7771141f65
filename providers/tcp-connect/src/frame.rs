//! Frames in a stream: `length: u32 | kind: u8 | payload`, little-endian. A frame is a datagram or a note. This module does no I/O.

use tieline_net::datagrams::Note;

/// The longest datagram, in bytes.
pub(crate) const MAX_DATAGRAM: usize = 64 << 10;
const HEAD: usize = 5;

/// A frame of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Datagram(Vec<u8>),
    Note(Note),
}

const DATAGRAM: u8 = 0;

const NOTES: [(u8, Note); 3] = [(1, Note::MayClose), (2, Note::Bye), (3, Note::Gone)];

/// Appends a datagram of at most [`MAX_DATAGRAM`] bytes.
pub(crate) fn put_datagram(out: &mut Vec<u8>, datagram: &[u8]) {
    debug_assert!(datagram.len() <= MAX_DATAGRAM);
    out.extend_from_slice(&(datagram.len() as u32).to_le_bytes());
    out.push(DATAGRAM);
    out.extend_from_slice(datagram);
}

/// Appends a note.
pub(crate) fn put_note(out: &mut Vec<u8>, note: Note) {
    out.extend_from_slice(&0u32.to_le_bytes());
    out.extend(NOTES.iter().filter(|(_, known)| *known == note).map(|(code, _)| code));
}

/// The state that assembles frames from received bytes. It holds a buffer only while a datagram is incomplete, and allocates only
/// for bytes that have arrived.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    head: [u8; HEAD],
    have: usize,
    payload: Vec<u8>,
}

impl Reader {
    /// Consumes bytes from the front of `bytes`. Returns the next complete frame, or `None` if all bytes were consumed.
    ///
    /// # Errors
    /// The bytes are not a frame; the text has the reason. The stream is unusable afterwards.
    pub(crate) fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<Frame>, String> {
        while self.have < HEAD {
            let Some((first, rest)) = bytes.split_first() else { return Ok(None) };
            self.head[self.have] = *first;
            self.have += 1;
            *bytes = rest;
        }
        let [a, b, c, d, kind] = self.head;
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        if kind != DATAGRAM {
            let note = NOTES.iter().find(|(code, _)| *code == kind);
            let (Some((_, note)), 0) = (note, len) else {
                return Err(format!("the peer sent a frame of kind {kind} with {len} bytes"));
            };
            self.have = 0;
            return Ok(Some(Frame::Note(*note)));
        }
        if len > MAX_DATAGRAM {
            return Err(format!("the peer sent a datagram of {len} bytes, at most {MAX_DATAGRAM}"));
        }
        let (taken, rest) = bytes.split_at((len - self.payload.len()).min(bytes.len()));
        self.payload.extend_from_slice(taken);
        *bytes = rest;
        if self.payload.len() < len {
            return Ok(None);
        }
        self.have = 0;
        Ok(Some(Frame::Datagram(std::mem::take(&mut self.payload))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(reader: &mut Reader, mut bytes: &[u8], found: &mut Vec<Frame>) -> Result<(), String> {
        while let Some(frame) = reader.next(&mut bytes)? {
            found.push(frame);
        }
        assert!(bytes.is_empty());
        Ok(())
    }

    fn a_frame() -> impl Strategy<Value = Frame> {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..300).prop_map(Frame::Datagram),
            (0usize..3).prop_map(|n| Frame::Note(NOTES[n].1)),
        ]
    }

    #[test]
    fn the_longest_datagram_passes_and_one_byte_more_does_not() {
        let mut bytes = Vec::new();
        put_datagram(&mut bytes, &vec![7; MAX_DATAGRAM]);
        let mut found = Vec::new();
        read(&mut Reader::default(), &bytes, &mut found).expect("within the limit");
        assert_eq!(found, [Frame::Datagram(vec![7; MAX_DATAGRAM])]);
        bytes[..4].copy_from_slice(&(MAX_DATAGRAM as u32 + 1).to_le_bytes());
        let words = read(&mut Reader::default(), &bytes, &mut found).expect_err("beyond it");
        assert!(words.contains("65537"), "{words}");
    }

    proptest! {
        #[test]
        fn frames_arrive_whole_whatever_the_pieces(frames in prop::collection::vec(a_frame(), 0..20),
                                                   piece in 1usize..64) {
            let mut bytes = Vec::new();
            for frame in &frames {
                match frame {
                    Frame::Datagram(datagram) => put_datagram(&mut bytes, datagram),
                    Frame::Note(note) => put_note(&mut bytes, *note),
                }
            }
            let (mut reader, mut found) = (Reader::default(), Vec::new());
            for piece in bytes.chunks(piece) {
                read(&mut reader, piece, &mut found).expect("well-formed");
            }
            prop_assert_eq!(found, frames);
        }

        #[test]
        fn no_bytes_harm(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let mut reader = Reader::default();
            let _ = read(&mut reader, &bytes, &mut Vec::new());
            prop_assert!(reader.payload.len() <= bytes.len());
        }
    }
}
