//! The bytes of the messages of services.

use super::MAX_PRIVATE;
use crate::Status;
use tieline_wireup::cut;
use tieline_wireup::wire::{Reader, Writer};

const MAGIC: [u8; 2] = *b"TS";
pub(super) const VERSION: u8 = 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message<'a> {
    Ask {
        service: &'a str,
        private: &'a [u8],
    },
    Accepted {
        private: &'a [u8],
    },
    Rejected {
        private: &'a [u8],
    },
    Refused {
        text: &'a str,
    },
    /// The message by which a client stops waiting.
    Cancel,
}

pub(super) fn encode(token: u64, message: &Message<'_>) -> Vec<u8> {
    let mut out = Writer::default();
    let _ = out.raw(&MAGIC).u8(VERSION);
    // Private data has at most MAX_PRIVATE bytes, which fits its length field.
    let _ = match *message {
        Message::Ask { service, private } => {
            out.u8(1).u64(token).name(service).u16(private.len() as u16).raw(private)
        }
        Message::Accepted { private } => {
            out.u8(2).u64(token).u16(private.len() as u16).raw(private)
        }
        Message::Rejected { private } => {
            out.u8(3).u64(token).u16(private.len() as u16).raw(private)
        }
        Message::Refused { text } => out.u8(4).u64(token).name(cut(text, 255)),
        Message::Cancel => out.u8(5).u64(token),
    };
    out.bytes
}

/// Returns version, token and message; there is no message for an ASK in another version.
pub(super) fn parse(bytes: &[u8]) -> Result<(u8, u64, Option<Message<'_>>), Status> {
    let mut reader = Reader::new(bytes);
    if reader.bytes(2)? != MAGIC {
        return Err(Status::BadData);
    }
    let (version, kind, token) = (reader.u8()?, reader.u8()?, reader.u64()?);
    // An ASK and a refusal can be read in every version, so that workers of two versions do not answer each other endlessly.
    if version != VERSION && kind == 1 {
        return Ok((version, token, None));
    }
    if version != VERSION && kind != 4 {
        return Err(Status::BadData);
    }
    let message = match kind {
        1 => Message::Ask { service: reader.name()?, private: private(&mut reader)? },
        2 => Message::Accepted { private: private(&mut reader)? },
        3 => Message::Rejected { private: private(&mut reader)? },
        4 => Message::Refused { text: reader.name()? },
        5 => Message::Cancel,
        _ => return Err(Status::BadData),
    };
    if version == VERSION && !reader.rest().is_empty() {
        return Err(Status::BadData);
    }
    Ok((version, token, Some(message)))
}

fn private<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Status> {
    let bytes = reader.blob()?;
    if bytes.len() > MAX_PRIVATE {
        return Err(Status::BadData);
    }
    Ok(bytes)
}
