//! Rendezvous messages (`Announce`): messages longer than one message of their lane.
//!
//! ```text
//! ANNOUNCE  header: the sender's number of it   2 id, 6 of zero, 8 header, 8 length, blob: key of the bytes
//! ANNOUNCE_HEADED   the same                    as ANNOUNCE, then 1 n and n header bytes
//! REPLY     header: that number                 as for every request (`emulate`): 0, or why it was not received;
//!                                               with 0, the value 1 if the receiver has kept the key
//! WITHDRAW  header: that number                 nothing: the sender cancels it, and REPLY says whether it did
//!                                               or a byte: the sender has ended, and waits for no answer
//! ```
//!
//! The receiver fetches the bytes that it wants by a get with the key in the RTS, over any lane that reaches the memory, or over
//! messages.

use super::id;
use crate::Status;
use crate::message::head::HeaderBytes;
use crate::wire::{Reader, Writer};

/// The value of a REPLY whose sender has kept the key of the RTS. The next RTS of the same bytes may refer to the key.
pub(crate) const KEPT: u64 = 1;
/// The payload of a WITHDRAW that needs no answer.
pub(crate) const NO_ANSWER: [u8; 1] = [1];

/// The contents of an RTS (ANNOUNCE), except the sender's number of the message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Announce<'a> {
    pub(crate) id: u16,
    pub(crate) header: u64,
    pub(crate) len: u64,
    pub(crate) key: &'a [u8],
    pub(crate) header_bytes: HeaderBytes,
}

impl<'a> Announce<'a> {
    /// Returns the payload.
    #[cfg(test)]
    pub(crate) fn write(&self) -> Result<Vec<u8>, Status> {
        let mut w = Writer::default();
        write(&mut w, (self.id, self.header, self.len), &self.header_bytes, |w| {
            let _ = w.raw(self.key);
            Ok::<_, Status>(())
        })?;
        Ok(w.bytes)
    }

    /// Parses an RTS with this id, and ignores fields that a later minor version adds at the end.
    pub(crate) fn read(message: u16, data: &'a [u8]) -> Result<Announce<'a>, Status> {
        let mut r = Reader::new(data);
        let (id, _, _) = (r.u16()?, r.u16()?, r.u32()?);
        let (header, len, key) = (r.u64()?, r.u64()?, r.blob()?);
        let mut header_bytes = HeaderBytes::default();
        if message == id::ANNOUNCE_HEADED {
            let n = usize::from(r.u8()?);
            let bytes = r.rest().get(..n).ok_or(Status::BadData)?;
            header_bytes = HeaderBytes::new(bytes).ok_or(Status::BadData)?;
        }
        Ok(Announce { id, header, len, key, header_bytes })
    }
}

/// Returns the id of an RTS with these header bytes.
pub(crate) fn message_id(header_bytes: &[u8]) -> u16 {
    if header_bytes.is_empty() { id::ANNOUNCE } else { id::ANNOUNCE_HEADED }
}

/// Appends the payload of an RTS for a message of this id, header and length; `key` appends the key of its bytes.
pub(crate) fn write<E: From<Status>>(
    w: &mut Writer,
    (id, header, len): (u16, u64, u64),
    header_bytes: &[u8],
    key: impl FnOnce(&mut Writer) -> Result<(), E>,
) -> Result<(), E> {
    let mut head = [0; 26];
    head[..2].copy_from_slice(&id.to_le_bytes());
    head[8..16].copy_from_slice(&header.to_le_bytes());
    head[16..24].copy_from_slice(&len.to_le_bytes());
    let _ = w.raw(&head);
    let at = w.bytes.len();
    key(w)?;
    let len = u16::try_from(w.bytes.len() - at).map_err(|_| Status::TooLarge)?;
    w.bytes[at - 2..at].copy_from_slice(&len.to_le_bytes());
    if !header_bytes.is_empty() {
        let _ = w.u8(header_bytes.len() as u8).raw(header_bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn announcements_are_written_as_1_2_wrote_them() {
        let header_bytes = HeaderBytes::default();
        let announce = Announce { id: 0x0201, header: 3, len: 4, key: &[5, 6], header_bytes };
        let bytes = announce.write().unwrap();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(format!("ANNOUNCE {hex}\n"), include_str!("../golden/messages-1.2.hex"));
        assert_eq!(Announce::read(id::ANNOUNCE, &bytes).unwrap(), announce);
        let later = [&bytes[..], &[7; 9]].concat();
        assert_eq!(Announce::read(id::ANNOUNCE, &later).unwrap(), announce);
        let headed = Announce { header_bytes: HeaderBytes::new(&[8, 9]).unwrap(), ..announce };
        assert_eq!(message_id(&headed.header_bytes), id::ANNOUNCE_HEADED);
        let headed_bytes = headed.write().unwrap();
        assert_eq!(headed_bytes, [&bytes[..], &[2, 8, 9]].concat());
        let later = [&headed_bytes[..], &[7; 9]].concat();
        assert_eq!(Announce::read(id::ANNOUNCE_HEADED, &later).unwrap(), headed);
        assert_eq!([id::ANNOUNCE, id::WITHDRAW], [0xf00b, 0xf00c]);
    }

    #[test]
    fn an_announcement_that_is_cut_off_anywhere_is_refused() {
        for header_bytes in [&[][..], &[5; 32]].map(|bytes| HeaderBytes::new(bytes).unwrap()) {
            let announce = Announce { id: 1, header: 2, len: 3, key: &[4; 40], header_bytes };
            let bytes = announce.write().unwrap();
            for end in 0..bytes.len() {
                let read = Announce::read(message_id(&announce.header_bytes), &bytes[..end]);
                assert_eq!(read, Err(Status::BadData), "{end}");
            }
        }
    }

    proptest! {
        #[test]
        fn arbitrary_rts_bytes_are_parsed_or_refused(data in proptest::collection::vec(any::<u8>(), 0..80)) {
            for message in [id::ANNOUNCE, id::ANNOUNCE_HEADED] {
                if let Ok(announce) = Announce::read(message, &data) {
                    prop_assert!(announce.key.len() <= data.len());
                }
            }
        }
    }
}
