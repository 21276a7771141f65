//! Keys by their handles or numbers: the request for a key, and the answer.
//!
//! ```text
//! KEY           header: the requester's number   8 handle
//! KEY_NUMBERED  header: the requester's number   8 number
//! KEY_IS        header: that number              the bytes of the remote key
//! REPLY         header: that number              as for every request (`emulate`): why there is no key
//! ```

use super::emulate::Answer;
use super::id;
use crate::mem::key::KeyName;
use crate::region::Table;
use crate::wire::Reader;
use crate::{Error, Status};

/// Encodes the request for a key: the id of the message, and its bytes.
pub(crate) fn key_request(name: KeyName) -> (u16, Vec<u8>) {
    match name {
        KeyName::Handle(handle) => (id::KEY, handle.to_le_bytes().into()),
        KeyName::Number(number) => (id::KEY_NUMBERED, number.to_le_bytes().into()),
    }
}

/// Answers a request at the owner. Ignores fields that a later minor version adds at the end.
pub(crate) fn on_key(
    message: u16,
    regions: &Table,
    token: u64,
    data: &[u8],
) -> Result<Answer, Status> {
    let word = Reader::new(data).u64()?;
    let key = match message {
        id::KEY => regions.key_of(word),
        _ => regions.key_of_number(word),
    };
    Ok(match key {
        Some(key) => Answer::Key { token, key },
        None => Answer::reply(token, Err(Status::KeyRejected)),
    })
}

/// Makes the error of a request that the owner refused.
pub(crate) fn no_key(status: Status, name: Option<KeyName>) -> Error {
    if let (Status::KeyRejected, Some(KeyName::Number(number))) = (status, name) {
        let why =
            "no region of its context is published under it, or the context publishes no keys";
        let fix = "publish a region under the number before the request arrives";
        return Error::new(
            status,
            format!("the peer gave no key for the number {number}"),
            why,
            fix,
        );
    }
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
    #[test]
    fn questions_for_keys_are_written_as_1_3_wrote_them() {
        let (message, bytes) = key_request(KeyName::Handle(0x0807_0605_0403_0201));
        assert_eq!(message, id::KEY);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(format!("KEY {hex}\n"), include_str!("../golden/messages-1.3.hex"));
        assert_eq!([id::KEY, id::KEY_IS], [0xf00d, 0xf00e]);
    }

    #[test]
    fn truncated_key_request_is_refused_and_extra_bytes_are_ignored() {
        let (regions, question) = (Table::default(), [7; 12]);
        for end in 0..8 {
            for message in [id::KEY, id::KEY_NUMBERED] {
                assert!(on_key(message, &regions, 1, &question[..end]).is_err(), "{end}");
            }
        }
        for (end, message) in (8..12).zip([id::KEY, id::KEY_NUMBERED].into_iter().cycle()) {
            let answer = on_key(message, &regions, 1, &question[..end]).unwrap();
            let refused = Status::KeyRejected as i32;
            assert!(matches!(answer, Answer::Reply { token: 1, status, .. } if status == refused));
        }
    }
}
