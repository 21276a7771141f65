//! The five messages and their encoding. `docs/wireup.md` shows the messages byte by byte.

use super::{ReasonKind, WorkerId};
use crate::wire::{Reader, Writer};
use std::fmt;
use tieline_plugin_api::Status;

/// The version of the protocol in this code.
pub(super) const VERSION: u8 = 1;
/// The maximum length in bytes of an identity, a worker's description of itself for its peers.
pub const MAX_IDENTITY: usize = 8 * 1024;
/// The maximum length in bytes of an endpoint address.
pub(super) const MAX_ADDRESS: usize = 4 * 1024;
const MAGIC: [u8; 2] = *b"TW";

const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const READY: u8 = 3;
const REJECT: u8 = 4;
const DUPLICATE: u8 = 5;

/// The beginning of every message, in every version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header<'a> {
    pub(crate) from: WorkerId,
    pub(crate) to: WorkerId,
    /// The sender's epoch; 0 only in a rejection by another worker at its address.
    pub(crate) from_epoch: u64,
    /// The receiver's epoch as known to the sender; 0 in a request, or its withdrawal, before the first message of the receiver.
    pub(crate) to_epoch: u64,
    pub(crate) module: &'a str,
    pub(crate) n: u32,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body<'a> {
    /// A request. The sender's endpoint has the address `address`; the receiver answers with its own.
    Request { identity: &'a [u8], address: &'a [u8] },
    /// A reply. The sender's endpoint at `address` is connected to the receiver's endpoint with the hash `bound_to`, and the sender
    /// waits for the reverse.
    Reply { identity: &'a [u8], address: &'a [u8], bound_to: u64 },
    /// The confirmation that both endpoints are connected: the sender's with the hash `mine`, the receiver's with the hash `yours`.
    Ready { mine: u64, yours: u64 },
    /// A rejection. `next` is the lowest number that would be new at the sender of the rejection.
    Reject { kind: ReasonKind, next: u32, text: &'a str },
    /// The answer to a duplicate of a request; the connection is `ready` or still in progress.
    Duplicate { ready: bool },
}

/// The result of parsing a byte string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Parsed<'a> {
    Message(Header<'a>, Body<'a>),
    /// A request in another version.
    OtherRequest {
        version: u8,
        header: Header<'a>,
        identity: &'a [u8],
    },
    /// A rejection in another version.
    OtherReject {
        version: u8,
        header: Header<'a>,
        text: &'a str,
    },
    /// Any other message in another version.
    Other {
        version: u8,
        header: Header<'a>,
    },
}

/// The sender that a message names, in every version of the protocol. The sender is a claim until the transport confirms it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spoken<'a> {
    /// The worker in whose name the message was sent.
    pub from: WorkerId,
    /// The identity bytes of that worker; `None` in messages that carry none.
    pub identity: Option<&'a [u8]>,
    /// Whether another worker, which has replaced worker `from` at its address, sent the message.
    pub is_of_successor: bool,
}

/// Reads the sender that a message names, without any effect on a machine.
pub fn spoken(bytes: &[u8]) -> Result<Spoken<'_>, Malformed> {
    let (from, identity, is_of_successor) = match parse(bytes)? {
        Parsed::Message(header, body) => match body {
            Body::Request { identity, .. } | Body::Reply { identity, .. } => {
                (header.from, Some(identity), false)
            }
            Body::Reject { kind, .. } => (header.from, None, kind == ReasonKind::NoSuchWorker),
            Body::Ready { .. } | Body::Duplicate { .. } => (header.from, None, false),
        },
        Parsed::OtherRequest { header, identity, .. } => (header.from, Some(identity), false),
        Parsed::OtherReject { header, .. } | Parsed::Other { header, .. } => {
            (header.from, None, false)
        }
    };
    Ok(Spoken { from, identity, is_of_successor })
}

/// The error for bytes that are no message; it displays the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub(super) &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "these bytes are no wire-up message: {}", self.0)
    }
}

impl From<Status> for Malformed {
    fn from(_: Status) -> Malformed {
        Malformed("they end too early, or a text in them is no UTF-8")
    }
}

/// Encodes a message in the version of this code.
pub(crate) fn encode(header: &Header<'_>, body: &Body<'_>) -> Vec<u8> {
    encode_version(VERSION, header, body)
}

pub(super) fn encode_version(version: u8, header: &Header<'_>, body: &Body<'_>) -> Vec<u8> {
    let mut out = Writer::default();
    let kind = match body {
        Body::Request { .. } => REQUEST,
        Body::Reply { .. } => REPLY,
        Body::Ready { .. } => READY,
        Body::Reject { .. } => REJECT,
        Body::Duplicate { .. } => DUPLICATE,
    };
    let _ = out.raw(&MAGIC).u8(version).u8(kind).raw(&header.from).raw(&header.to);
    let _ = out.u64(header.from_epoch).u64(header.to_epoch).name(header.module).u32(header.n);
    match *body {
        Body::Request { identity, address } => {
            blob(&mut out, identity);
            blob(&mut out, address);
        }
        Body::Reply { identity, address, bound_to } => {
            blob(&mut out, identity);
            blob(&mut out, address);
            let _ = out.u64(bound_to);
        }
        Body::Ready { mine, yours } => {
            let _ = out.u64(mine).u64(yours);
        }
        Body::Reject { kind, next, text } => {
            let _ = out.u8(reject_code(kind)).u32(next).name(cut(text, 255));
        }
        Body::Duplicate { ready } => {
            let _ = out.u8(u8::from(ready));
        }
    }
    out.bytes
}

/// Appends bytes with their length. The machine accepts nothing longer than [`MAX_IDENTITY`], so the length always fits its field.
fn blob(out: &mut Writer, bytes: &[u8]) {
    let _ = out.u16(bytes.len() as u16).raw(bytes);
}

/// Returns the longest prefix of `text` that has at most `len` bytes and ends with a whole character.
pub fn cut(text: &str, len: usize) -> &str {
    let mut end = text.len().min(len);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Reads a message. Every length is checked, and any byte after the message is an error.
pub(super) fn parse(bytes: &[u8]) -> Result<Parsed<'_>, Malformed> {
    let mut reader = Reader::new(bytes);
    if reader.bytes(2)? != MAGIC {
        return Err(Malformed("they do not begin with `TW`"));
    }
    let version = reader.u8()?;
    let kind = reader.u8()?;
    let header = Header {
        from: reader.id()?,
        to: reader.id()?,
        from_epoch: reader.u64()?,
        to_epoch: reader.u64()?,
        module: reader.name()?,
        n: reader.u32()?,
    };
    if header.module.is_empty() || header.n == 0 {
        return Err(Malformed("the module has no name, or the connection no number"));
    }
    if version != VERSION {
        return other(version, kind, header, reader);
    }
    let body = match kind {
        REQUEST => {
            Body::Request { identity: identity(&mut reader)?, address: address(&mut reader)? }
        }
        REPLY => Body::Reply {
            identity: identity(&mut reader)?,
            address: address(&mut reader)?,
            bound_to: reader.u64()?,
        },
        READY => Body::Ready { mine: reader.u64()?, yours: reader.u64()? },
        REJECT => Body::Reject {
            kind: reject_kind(reader.u8()?)?,
            next: reader.u32()?,
            text: reader.name()?,
        },
        DUPLICATE => Body::Duplicate {
            ready: match reader.u8()? {
                0 => false,
                1 => true,
                _ => return Err(Malformed("a duplicate is ready (1) or not (0)")),
            },
        },
        _ => return Err(Malformed("there is no message of this kind")),
    };
    if !reader.rest().is_empty() {
        return Err(Malformed("something follows the message"));
    }
    let in_place_of_another = matches!(body, Body::Reject { kind: ReasonKind::NoSuchWorker, .. });
    if header.from_epoch == 0 && !in_place_of_another {
        return Err(Malformed("the sender does not state its life"));
    }
    if header.to_epoch == 0 && kind != REQUEST && kind != REJECT {
        return Err(Malformed("an answer that does not state the life that it answers"));
    }
    Ok(Parsed::Message(header, body))
}

/// Parses a message of another version: in every version a request continues with the identity, and a rejection with a code, a
/// number and a text.
fn other<'a>(
    version: u8,
    kind: u8,
    header: Header<'a>,
    mut reader: Reader<'a>,
) -> Result<Parsed<'a>, Malformed> {
    match kind {
        REQUEST => Ok(Parsed::OtherRequest { version, header, identity: identity(&mut reader)? }),
        REJECT => {
            let _ = (reader.u8()?, reader.u32()?);
            Ok(Parsed::OtherReject { version, header, text: reader.name()? })
        }
        _ => Ok(Parsed::Other { version, header }),
    }
}

fn identity<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
    let bytes = reader.blob()?;
    if bytes.len() > MAX_IDENTITY {
        return Err(Malformed("the identity is longer than 8 KiB"));
    }
    Ok(bytes)
}

fn address<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
    let bytes = reader.blob()?;
    if bytes.len() > MAX_ADDRESS {
        return Err(Malformed("the endpoint address is longer than 4 KiB"));
    }
    Ok(bytes)
}

/// The kinds of rejections that can be sent to a peer; the other kinds are only local.
const REJECTS: [(u8, ReasonKind); 6] = [
    (1, ReasonKind::Busy),
    (2, ReasonKind::Closed),
    (3, ReasonKind::Rejected),
    (4, ReasonKind::NoSuchWorker),
    (5, ReasonKind::Version),
    (6, ReasonKind::Outlived),
];

fn reject_code(kind: ReasonKind) -> u8 {
    REJECTS.iter().find(|(_, k)| *k == kind).map_or(3, |(code, _)| *code)
}

fn reject_kind(code: u8) -> Result<ReasonKind, Malformed> {
    let found = REJECTS.iter().find(|(c, _)| *c == code);
    found.map(|(_, kind)| *kind).ok_or(Malformed("a rejection for an unknown reason"))
}
