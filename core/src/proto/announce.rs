//! Rendezvous messages (`Announce`): messages longer than one message of their lane.
//!
//! ```text
//! ANNOUNCE  header: the sender's number of it   2 id, 6 of zero, 8 header, 8 length, blob: key of the bytes
//! REPLY     header: that number                 as for every request (`emulate`): 0, or why it was not received
//! WITHDRAW  header: that number                 nothing: the sender cancels it, and REPLY says whether it did
//!                                               or a byte: the sender has ended, and waits for no answer
//! ```
//!
//! The receiver fetches the bytes that it wants by a get with the key in the RTS, over any lane that reaches the memory, or over
//! messages.

use crate::Status;
use crate::wire::{Reader, Writer};

/// The payload of a WITHDRAW that needs no answer.
pub(crate) const NO_ANSWER: [u8; 1] = [1];

/// The contents of an RTS (ANNOUNCE), except the sender's number of the message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Announce<'a> {
    pub(crate) id: u16,
    pub(crate) header: u64,
    pub(crate) len: u64,
    pub(crate) key: &'a [u8],
}

impl<'a> Announce<'a> {
    pub(crate) fn write(&self) -> Result<Vec<u8>, Status> {
        let mut w = Writer::default();
        let _ = w.u16(self.id).u16(0).u32(0).u64(self.header).u64(self.len).blob(self.key)?;
        Ok(w.bytes)
    }

    /// Parses an RTS, and ignores fields that a later minor version adds at the end.
    pub(crate) fn read(data: &'a [u8]) -> Result<Announce<'a>, Status> {
        let mut r = Reader::new(data);
        let (id, _, _) = (r.u16()?, r.u16()?, r.u32()?);
        Ok(Announce { id, header: r.u64()?, len: r.u64()?, key: r.blob()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::id;
    use proptest::prelude::*;

    #[test]
    fn announcements_are_written_as_1_2_wrote_them() {
        let announce = Announce { id: 0x0201, header: 3, len: 4, key: &[5, 6] };
        let bytes = announce.write().unwrap();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(format!("ANNOUNCE {hex}\n"), include_str!("../golden/messages-1.2.hex"));
        assert_eq!(Announce::read(&bytes).unwrap(), announce);
        let later = [&bytes[..], &[7; 9]].concat();
        assert_eq!(Announce::read(&later).unwrap(), announce);
        assert_eq!([id::ANNOUNCE, id::WITHDRAW], [0xf00b, 0xf00c]);
    }

    #[test]
    fn an_announcement_that_is_cut_off_anywhere_is_refused() {
        let bytes = Announce { id: 1, header: 2, len: 3, key: &[4; 40] }.write().unwrap();
        for end in 0..bytes.len() {
            assert_eq!(Announce::read(&bytes[..end]), Err(Status::BadData), "{end}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_rts_bytes_are_parsed_or_refused(data in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(announce) = Announce::read(&data) {
                prop_assert!(announce.key.len() <= data.len());
            }
        }
    }
}
