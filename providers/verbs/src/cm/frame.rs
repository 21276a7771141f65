//! The frame format, one frame per send: `kind: u8 | credits: u8 | payload`. This module is pure.
//!
//! Datagrams longer than a buffer are split into parts; all parts but the last are [`Kind::Part`].

use super::{BUFFER, MAX_DATAGRAM};
use std::fmt;
use tieline_net::datagrams::Note;

/// The number of bytes before the payload.
pub(super) const HEAD: usize = 2;
/// The longest payload, in bytes.
pub(super) const MAX_PAYLOAD: usize = BUFFER - HEAD;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The handshake.
    Handshake,
    /// A part of a datagram, except the last.
    Part,
    /// A whole datagram, or the last part of one.
    Datagram,
    /// A frame with credits only.
    Credits,
    /// A note about the connection itself.
    Note(Note),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Note(note) => write!(f, "{note:?}"),
            kind => write!(f, "{kind:?}"),
        }
    }
}

const KINDS: [Kind; 7] = [
    Kind::Handshake,
    Kind::Part,
    Kind::Datagram,
    Kind::Credits,
    Kind::Note(Note::MayClose),
    Kind::Note(Note::Bye),
    Kind::Note(Note::Gone),
];

/// Writes a frame into a buffer and returns its length. The payload must not exceed [`MAX_PAYLOAD`].
pub(super) fn write(buffer: &mut [u8], kind: Kind, credits: u8, payload: &[u8]) -> usize {
    let code = KINDS.iter().position(|known| *known == kind).unwrap_or(KINDS.len());
    buffer[0] = code as u8;
    buffer[1] = credits;
    buffer[HEAD..HEAD + payload.len()].copy_from_slice(payload);
    HEAD + payload.len()
}

/// Parses a frame into its kind, its credits and its payload.
///
/// # Errors
/// The bytes are not a valid frame; the text has the reason.
pub(super) fn read(bytes: &[u8]) -> Result<(Kind, u8, &[u8]), String> {
    let (head, payload) = bytes
        .split_first_chunk::<HEAD>()
        .ok_or_else(|| format!("the peer sent {} bytes, which are no frame", bytes.len()))?;
    let kind = *KINDS
        .get(usize::from(head[0]))
        .ok_or_else(|| format!("the peer sent a frame of kind {}", head[0]))?;
    let carries = matches!(kind, Kind::Handshake | Kind::Part | Kind::Datagram);
    if !carries && !payload.is_empty() || kind == Kind::Part && payload.len() != MAX_PAYLOAD {
        return Err(format!("the peer sent {kind} with {} bytes", payload.len()));
    }
    Ok((kind, head[1], payload))
}

/// The state that reassembles datagrams. It holds memory only between the parts of a datagram.
#[derive(Debug, Default)]
pub(super) struct Reader {
    parts: Vec<u8>,
}

impl Reader {
    pub(super) fn part(&mut self, payload: &[u8]) -> Result<(), String> {
        self.take(payload)
    }

    pub(super) fn last(&mut self, payload: &[u8]) -> Result<Vec<u8>, String> {
        self.take(payload)?;
        Ok(std::mem::take(&mut self.parts))
    }

    fn take(&mut self, payload: &[u8]) -> Result<(), String> {
        if self.parts.len() + payload.len() > MAX_DATAGRAM {
            return Err(format!("the peer sent a datagram of more than {MAX_DATAGRAM} bytes"));
        }
        self.parts.extend_from_slice(payload);
        Ok(())
    }
}

/// Splits a datagram into frames.
pub(super) fn cut(datagram: &[u8]) -> impl Iterator<Item = (Kind, &[u8])> {
    let count = datagram.len().div_ceil(MAX_PAYLOAD).max(1);
    (0..count).map(move |n| {
        let kind = if n + 1 == count { Kind::Datagram } else { Kind::Part };
        let from = n * MAX_PAYLOAD;
        (kind, &datagram[from..datagram.len().min(from + MAX_PAYLOAD)])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn datagrams_arrive_whole_whatever_their_length(len in 0usize..=MAX_DATAGRAM, seed: u8) {
            let datagram: Vec<u8> = (0..len).map(|n| (n as u8).wrapping_mul(seed)).collect();
            let (mut reader, mut found, mut buffer) = (Reader::default(), None, vec![0; BUFFER]);
            for (kind, payload) in cut(&datagram) {
                prop_assert!(found.is_none());
                let len = write(&mut buffer, kind, 3, payload);
                let (read_kind, credits, bytes) = read(&buffer[..len]).expect("our own");
                prop_assert_eq!((read_kind, credits), (kind, 3));
                match kind {
                    Kind::Part => reader.part(bytes).expect("short enough"),
                    _ => found = Some(reader.last(bytes).expect("short enough")),
                }
            }
            prop_assert_eq!(found, Some(datagram));
            prop_assert!(reader.parts.is_empty());
        }

        #[test]
        fn no_bytes_harm(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..50)) {
            let mut reader = Reader::default();
            for frame in frames {
                if let Ok((Kind::Part, _, payload)) = read(&frame) {
                    let _ = reader.part(payload);
                }
                prop_assert!(reader.parts.len() <= MAX_DATAGRAM);
            }
        }
    }

    #[test]
    fn oversized_datagram_is_refused_before_it_is_stored() {
        let mut reader = Reader::default();
        let part = vec![7; MAX_PAYLOAD];
        let kept = (0..100).take_while(|_| reader.part(&part).is_ok()).count();
        assert_eq!(kept, MAX_DATAGRAM / MAX_PAYLOAD);
        assert!(reader.last(&part).is_err());
    }

    #[test]
    fn notes_with_a_payload_and_short_parts_are_refused() {
        for kind in [
            Kind::Credits,
            Kind::Note(Note::MayClose),
            Kind::Note(Note::Bye),
            Kind::Note(Note::Gone),
            Kind::Part,
        ] {
            let mut buffer = [0; 16];
            let len = write(&mut buffer, kind, 0, b"x");
            assert!(read(&buffer[..len]).is_err(), "{kind:?}");
        }
        assert!(read(&[]).is_err() && read(&[0]).is_err() && read(&[7, 0]).is_err());
    }

    #[test]
    fn longest_datagram_arrives_and_invalid_frames_are_refused() {
        let longest = vec![7; MAX_DATAGRAM];
        let mut reader = Reader::default();
        let cuts: Vec<(Kind, &[u8])> = cut(&longest).collect();
        let (last, parts) = cuts.split_last().unwrap();
        assert!(parts.iter().all(|(kind, part)| *kind == Kind::Part && part.len() == MAX_PAYLOAD));
        for (_, part) in parts {
            assert_eq!(reader.part(part), Ok(()));
        }
        assert_eq!((last.0, reader.last(last.1)), (Kind::Datagram, Ok(longest.clone())));
        for (_, part) in parts {
            assert_eq!(reader.part(part), Ok(()));
        }
        let words = format!("the peer sent a datagram of more than {MAX_DATAGRAM} bytes");
        assert_eq!(reader.last(&[last.1, &[7]].concat()), Err(words));
        let exact = vec![7; MAX_PAYLOAD];
        assert_eq!(cut(&exact).collect::<Vec<_>>(), [(Kind::Datagram, &exact[..])]);
        for (bytes, words) in [
            (&[5, 0, 9][..], "the peer sent Bye with 1 bytes"),
            (&[1, 0, 9, 9], "the peer sent Part with 2 bytes"),
            (&[7, 0], "the peer sent a frame of kind 7"),
            (&[0], "the peer sent 1 bytes, which are no frame"),
        ] {
            assert_eq!(read(bytes), Err(words.to_string()));
        }
    }
}
