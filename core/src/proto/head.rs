//! Messages of the application with header bytes or a request for an acknowledgement.
//!
//! ```text
//! HEADED     header: the application's word      2 id, 1 n, 5 of zero, n header bytes, payload
//! DELIVER    header: the sender's number of it   2 id, 1 n, 5 of zero, 8 word, n header bytes, payload
//! DELIVERED  header: 0, or why not               the numbers of the sender, 8 bytes each
//! ```
//!
//! DELIVERED answers the DELIVER messages of one peer that were delivered in one progress call. It needs no state at the receiver:
//! each number is the one that its message carried.

use super::id;
use crate::Status;
use crate::endpoint::MAX_MESSAGE_ID;
use crate::message::head::{HeaderBytes, MAX_HEADER_BYTES};
use crate::wire::Reader;

/// The length of the head of a HEADED message without header bytes.
const HEADED: usize = 8;
/// The length of the head of a DELIVER message without header bytes.
const DELIVER: usize = 16;
/// The maximum number of messages that one DELIVERED message acknowledges.
pub(crate) const MOST_DELIVERED: usize = 32;

/// The bytes before the payload, for the sender.
pub(crate) struct Head {
    bytes: [u8; DELIVER + MAX_HEADER_BYTES],
    len: usize,
}

impl Head {
    /// Encodes the head of a message. `word`: the application's word, for a message that requests an acknowledgement.
    pub(crate) fn new(id: u16, word: Option<u64>, header_bytes: &HeaderBytes) -> Head {
        let mut bytes = [0; DELIVER + MAX_HEADER_BYTES];
        bytes[..2].copy_from_slice(&id.to_le_bytes());
        bytes[2] = header_bytes.len() as u8;
        let mut len = HEADED;
        if let Some(word) = word {
            bytes[HEADED..DELIVER].copy_from_slice(&word.to_le_bytes());
            len = DELIVER;
        }
        let end = len + header_bytes.len();
        bytes[len..end].copy_from_slice(header_bytes);
        Head { bytes, len: end }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The head of a received message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) id: u16,
    /// The application's word.
    pub(crate) word: u64,
    /// The sender's number, if it requests an acknowledgement.
    pub(crate) number: Option<u64>,
    pub(crate) header_bytes: HeaderBytes,
    /// The length of the head, after which the payload follows.
    pub(crate) len: usize,
}

impl Received {
    /// Decodes a message with one of the two ids.
    pub(crate) fn read(message: u16, header: u64, data: &[u8]) -> Result<Received, Status> {
        let mut r = Reader::new(data);
        let (id, n, _, _) = (r.u16()?, usize::from(r.u8()?), r.u8()?, r.u32()?);
        let (word, number, head) = match message {
            id::DELIVER => (r.u64()?, Some(header), DELIVER),
            _ => (header, None, HEADED),
        };
        let header_bytes = r.rest().get(..n).ok_or(Status::BadData)?;
        let header_bytes = HeaderBytes::new(header_bytes).ok_or(Status::BadData)?;
        if id > MAX_MESSAGE_ID {
            return Err(Status::BadData);
        }
        Ok(Received { id, word, number, header_bytes, len: head + n })
    }
}

/// Encodes the numbers of a DELIVERED message.
pub(crate) fn delivered(numbers: &[u64]) -> Box<[u8]> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Decodes the numbers of a DELIVERED message.
pub(crate) fn read_delivered(data: &[u8]) -> Result<impl Iterator<Item = u64> + '_, Status> {
    if data.is_empty() || data.len() % 8 != 0 {
        return Err(Status::BadData);
    }
    Ok(data.chunks_exact(8).map(|number| u64::from_le_bytes(number.try_into().unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::key::KeyName;
    use crate::proto::handles::key_request;
    use proptest::prelude::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn heads_are_written_as_1_4_wrote_them() {
        let header_bytes = HeaderBytes::new(&[5, 6, 7]).unwrap();
        let headed = Head::new(0x0201, None, &header_bytes);
        let deliver = Head::new(0x0201, Some(9), &header_bytes);
        let (message, numbered) = key_request(KeyName::Number(0x0807_0605_0403_0201));
        let lines = [
            format!("HEADED {}", hex(headed.bytes())),
            format!("DELIVER {}", hex(deliver.bytes())),
            format!("DELIVERED {}", hex(&delivered(&[1, 2]))),
            format!("KEY_NUMBERED {}", hex(&numbered)),
        ];
        assert_eq!(lines.join("\n") + "\n", include_str!("../golden/messages-1.4.hex"));
        assert_eq!([message, id::KEY_NUMBERED], [0xf014; 2]);
        assert_eq!([id::HEADED, id::DELIVER], [0xf010, 0xf011]);
        assert_eq!([id::DELIVERED, id::ANNOUNCE_HEADED], [0xf012, 0xf013]);
    }

    #[test]
    fn a_head_is_read_as_it_was_written_and_one_that_is_cut_off_is_refused() {
        for len in 0..=MAX_HEADER_BYTES {
            let header_bytes = HeaderBytes::new(&vec![len as u8; len]).unwrap();
            for (message, word) in [(id::HEADED, None), (id::DELIVER, Some(7))] {
                let head = Head::new(3, word, &header_bytes);
                let whole = [head.bytes(), b"payload"].concat();
                let read = Received::read(message, 8, &whole).unwrap();
                assert_eq!((read.id, read.word), (3, word.unwrap_or(8)));
                assert_eq!(read.number, word.map(|_| 8));
                assert_eq!((read.header_bytes, read.len), (header_bytes, head.bytes().len()));
                for end in 0..head.bytes().len() {
                    let cut = Received::read(message, 8, &whole[..end]);
                    assert_eq!(cut, Err(Status::BadData), "{end}");
                }
            }
        }
        let mut long = vec![0; 100];
        long[2] = MAX_HEADER_BYTES as u8 + 1;
        assert_eq!(Received::read(id::HEADED, 0, &long), Err(Status::BadData));
        let own = Head::new(id::PING, None, &HeaderBytes::default());
        assert_eq!(Received::read(id::HEADED, 0, own.bytes()), Err(Status::BadData));
    }

    proptest! {
        #[test]
        fn arbitrary_heads_are_parsed_or_refused(
            data in proptest::collection::vec(any::<u8>(), 0..80),
            asks in any::<bool>(),
        ) {
            let message = if asks { id::DELIVER } else { id::HEADED };
            if let Ok(read) = Received::read(message, 1, &data) {
                prop_assert!(read.len <= data.len() && read.id <= MAX_MESSAGE_ID);
            }
            if let Ok(numbers) = read_delivered(&data) {
                prop_assert_eq!(numbers.count() * 8, data.len());
            }
        }
    }
}
