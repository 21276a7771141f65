//! Keys by their handles: the request for a key, and the answer.
//!
//! ```text
//! KEY     header: the requester's number   8 handle
//! KEY_IS  header: that number              the bytes of the remote key
//! REPLY   header: that number              as for every request (`emulate`): why there is no key
//! ```

use super::emulate::Answer;
use crate::region::Table;
use crate::wire::Reader;
use crate::{Error, Status};

/// Encodes the request for a key.
pub(crate) fn key_request(handle: u64) -> Vec<u8> {
    handle.to_le_bytes().into()
}

/// Answers a request at the owner. Ignores fields that a later minor version adds at the end.
pub(crate) fn on_key(regions: &Table, token: u64, data: &[u8]) -> Result<Answer, Status> {
    let handle = Reader::new(data).u64()?;
    Ok(match regions.key_of(handle) {
        Some(key) => Answer::Key { token, key },
        None => Answer::reply(token, Err(Status::KeyRejected)),
    })
}

/// Makes the error of a request that the owner refused.
pub(crate) fn no_key(status: Status) -> Error {
    let (why, fix) = match status {
        Status::KeyRejected => (
            "its region was closed or dropped, or the handle is none of this peer's",
            "ask the peer for a current handle",
        ),
        Status::TooLarge => (
            "the key is longer than a message of the lane",
            "carry the region's remote key, and import it on the endpoint",
        ),
        status => (status.text(), ""),
    };
    Error::new(status, "the owner of a handle gave no key", why, fix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::id;

    #[test]
    fn questions_for_keys_are_written_as_1_3_wrote_them() {
        let hex: String =
            key_request(0x0807_0605_0403_0201).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(format!("KEY {hex}\n"), include_str!("../golden/messages-1.3.hex"));
        assert_eq!([id::KEY, id::KEY_IS], [0xf00d, 0xf00e]);
    }

    #[test]
    fn truncated_key_request_is_refused_and_extra_bytes_are_ignored() {
        let (regions, question) = (Table::default(), [7; 12]);
        for end in 0..8 {
            assert!(on_key(&regions, 1, &question[..end]).is_err(), "{end}");
        }
        for end in 8..12 {
            let answer = on_key(&regions, 1, &question[..end]).unwrap();
            let refused = Status::KeyRejected as i32;
            assert!(matches!(answer, Answer::Reply { token: 1, status, .. } if status == refused));
        }
    }
}
