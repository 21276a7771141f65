//! Put, get and atomics over messages: the records on the wire, and their execution at the target.
//!
//! The core sends these messages on the message lane if no module has native access to some memory of a peer. It also sends them
//! for small puts and gets if messages are faster. The peer's service worker receives them if the peer's context has a progress
//! thread and the service worker can be reached. Otherwise, and for such small puts and gets, the peer's own worker receives them.
//! The target looks up the region by number and generation, checks range and rights, and answers; for a put it answers only the
//! last piece. Messages are delivered once and in order, so an atomic is executed once. docs/wire.md has the rules for extensions
//! of the formats.

use super::Origin;
use super::torn::Torn;
use crate::mem::Memory;
use crate::region::{Access, Table};
use crate::sys::{Exposed, Refusal, Span};
use crate::wire::{Reader, Writer};
use crate::{Error, Status};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use tieline_net::touch::Touch;
use tieline_plugin_api::atomic_op;

/// A range at the peer, as its key identifies the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) region: u64,
    pub(crate) generation: u64,
    pub(crate) offset: u64,
}

/// The length of the encoded [`Target`] before the data of a put.
pub(crate) const PUT_HEAD: usize = 24;
/// The length of the header of a put that notifies the target: the [`Target`] and the word.
pub(crate) const PUT_NOTIFY_HEAD: usize = 32;
/// The length of [`data_head`] before the data of a get.
pub(crate) const GET_DATA_HEAD: usize = 16;

impl Target {
    pub(crate) fn write(&self, w: &mut Writer) {
        let _ = w.u64(self.region).u64(self.generation).u64(self.offset);
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Target, Status> {
        Ok(Target { region: r.u64()?, generation: r.u64()?, offset: r.u64()? })
    }

    /// Runs a function on these bytes of a local region, if the region exists and its access rights allow it.
    pub(crate) fn reach<T, E: From<Status>>(
        &self,
        regions: &Table,
        len: u64,
        needed: Access,
        with: impl FnOnce(&Exposed, usize) -> Result<T, E>,
    ) -> Result<T, E> {
        regions.reach(self.region, self.generation, (self.offset, len), needed, with)
    }
}

/// One requested atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtomicCall {
    pub(crate) op: u32,
    pub(crate) width: u32,
    pub(crate) operand: u64,
    pub(crate) compare: u64,
}

/// Encodes the request for an atomic.
pub(crate) fn atomic_request(target: &Target, call: &AtomicCall) -> Vec<u8> {
    let mut w = Writer::default();
    target.write(&mut w);
    let _ = w.u64(call.operand).u64(call.compare).u8(call.op as u8).u8(call.width as u8);
    w.bytes
}

/// Encodes the header of a piece of a put, or of the last piece of a put that notifies the target.
pub(crate) fn put_head(target: &Target, word: Option<u32>) -> Vec<u8> {
    let mut w = Writer::default();
    target.write(&mut w);
    if let Some(word) = word {
        let _ = w.u32(word).u32(0); // aligns the data at byte 32
    }
    w.bytes
}

/// Encodes the request for a range.
pub(crate) fn get_request(target: &Target, len: u64) -> Vec<u8> {
    let mut w = Writer::default();
    target.write(&mut w);
    let _ = w.u64(len);
    w.bytes
}

/// An answer to a peer. `token`: the number that the requester assigned to its operation, returned unchanged; 0 requests no answer.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// A status, and the previous value.
    Reply { token: u64, status: i32, value: u64 },
    /// The requested bytes; `sent` is the number of bytes sent so far.
    Data { token: u64, target: Target, len: u64, sent: u64 },
    /// The key for a handle (`proto/handles.rs`).
    Key { token: u64, key: Arc<[u8]> },
    /// The acknowledgements of messages (`proto/head.rs`).
    Delivered { status: i32, numbers: Box<[u8]> },
    /// A message of a service (`worker/services.rs`), ready to be sent.
    Service(Box<[u8]>),
}

impl Answer {
    /// Makes the answer to the request with this token.
    pub(crate) fn reply(token: u64, result: Result<u64, Status>) -> Answer {
        Answer::reply_to_access(token, result.map_err(Refusal::from))
    }

    /// Makes the answer to a request that accesses memory, which may be missing.
    pub(crate) fn reply_to_access(token: u64, result: Result<u64, Refusal>) -> Answer {
        let (status, value) = match result {
            Ok(value) => (0, value),
            Err(refusal) => refusal_words(refusal),
        };
        Answer::Reply { token, status, value }
    }
}

/// Encodes a refusal: a status, and a number. For missing memory, the status is `Invalid` and the number is one more than the
/// offset of the first inaccessible byte in the region. Versions that do not know the number read only the status, which refuses
/// this operation alone.
pub(crate) fn refusal_words(refusal: Refusal) -> (i32, u64) {
    match refusal.fault {
        None => (refusal.status as i32, 0),
        Some(at) => (Status::Invalid as i32, at.saturating_add(1)),
    }
}

/// Decodes the values of [`refusal_words`]. Only a refusal for missing memory has a nonzero value.
pub(crate) fn read_refusal(status: i32, value: u64) -> Refusal {
    match (Status::from_code(status), value.checked_sub(1)) {
        (Status::Invalid, Some(at)) => Refusal::fault(at),
        (status, _) => status.into(),
    }
}

pub(crate) fn reply_bytes(status: i32, value: u64) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&status.to_le_bytes());
    bytes[4..].copy_from_slice(&value.to_le_bytes());
    bytes
}

/// Decodes a target's answer: a status, and the previous value.
pub(crate) fn read_reply(data: &[u8]) -> Result<(i32, u64), Status> {
    let mut r = Reader::new(data);
    Ok((r.i32()?, r.u64()?))
}

/// Encodes the header of a piece of a get's data: its position, and a status if the rest does not follow.
pub(crate) fn data_head(position: u64, status: i32) -> Vec<u8> {
    let mut w = Writer::default();
    let _ = w.u64(position).i32(status).u32(0); // aligns the data at byte 16
    w.bytes
}

/// Decodes a piece of a get's data: its position, a status, and the bytes.
pub(crate) fn read_data(data: &[u8]) -> Result<(u64, i32, &[u8]), Status> {
    let mut r = Reader::new(data);
    let (position, status, _) = (r.u64()?, r.i32()?, r.u32()?);
    Ok((position, status, r.rest()))
}

/// The target's state for executing peers' requests.
pub(crate) struct Here<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) touch: &'a Touch,
    /// The puts in several messages of which one piece hit missing memory.
    pub(crate) torn: &'a RefCell<Torn>,
    /// The sender of the request.
    pub(crate) from: Origin,
}

impl Here<'_> {
    /// Executes the last piece of a put that notifies the target. Returns the answer, and the word if the whole put succeeded.
    pub(crate) fn put_notify(
        &self,
        token: u64,
        data: &[u8],
    ) -> Result<(Option<Answer>, Option<u32>), Status> {
        let mut r = Reader::new(data);
        let target = Target::read(&mut r)?;
        let (word, _) = (r.u32()?, r.u32()?);
        let put = self.write(&target, r.rest(), true);
        let told = put.is_ok().then_some(word);
        Ok(((token != 0).then(|| Answer::reply_to_access(token, put)), told))
    }

    /// Executes a piece of a put. Only the last piece requests an answer, which also covers failures of earlier pieces. The last
    /// answer is sufficient because a refused key stays refused, the last piece has the greatest offset, and missing memory is
    /// recorded.
    pub(crate) fn put(&self, token: u64, data: &[u8]) -> Result<Option<Answer>, Status> {
        let mut r = Reader::new(data);
        let target = Target::read(&mut r)?;
        let result = self.write(&target, r.rest(), token != 0);
        Ok((token != 0).then(|| Answer::reply_to_access(token, result)))
    }

    fn write(&self, target: &Target, data: &[u8], last: bool) -> Result<u64, Refusal> {
        let len = data.len() as u64;
        if let Some(refusal) = self.torn.borrow_mut().goes_on(self.from, target, len, last) {
            return Err(refusal);
        }
        let write = |bytes: &Exposed, offset| bytes.write(self.touch, offset, data);
        let written = target.reach(&self.memory.regions, len, Access::WRITE, write).map(|()| 0);
        let written = self.noting(target, written);
        if let (Err(refusal @ Refusal { fault: Some(_), .. }), false) = (written, last) {
            self.torn.borrow_mut().begin(self.from, target, len, refusal);
        }
        written
    }

    /// Checks a get; every piece is checked again when it is sent (`endpoint/answer.rs`).
    pub(crate) fn get(&self, token: u64, data: &[u8]) -> Result<Answer, Status> {
        let mut r = Reader::new(data);
        let target = Target::read(&mut r)?;
        let len = r.u64()?;
        Ok(match target.reach(&self.memory.regions, len, Access::READ, |_, _| Ok(())) {
            Err(status) => Answer::reply(token, Err(status)),
            Ok(()) => Answer::Data { token, target, len, sent: 0 },
        })
    }

    /// Executes an atomic.
    pub(crate) fn atomic(&self, token: u64, data: &[u8]) -> Result<Answer, Status> {
        let mut r = Reader::new(data);
        let target = Target::read(&mut r)?;
        let (operand, compare) = (r.u64()?, r.u64()?);
        let call =
            AtomicCall { op: u32::from(r.u8()?), width: u32::from(r.u8()?), operand, compare };
        let width = u64::from(call.width);
        let done = target.reach(&self.memory.regions, width, Access::ATOMIC, |bytes, offset| {
            bytes.check_word(offset, call.width as usize)?;
            Ok(execute(bytes.span(), offset, &call)?)
        });
        Ok(Answer::reply_to_access(token, self.noting(&target, done)))
    }

    fn noting<T>(&self, target: &Target, result: Result<T, Refusal>) -> Result<T, Refusal> {
        if let Err(Refusal { fault: Some(at), .. }) = result {
            self.memory.note_fault((target.region, target.generation), at);
        }
        result
    }
}

/// The remedy for registered memory that is missing.
pub(crate) const KEEP_MAPPED: &str = "let the target keep what it registers mapped, with these rights, until it has closed the region";

/// Makes the error of an operation that the target refused.
pub(crate) fn refused(refusal: impl Into<Refusal>) -> Error {
    let Refusal { status, fault } = refusal.into();
    if let Some(at) = fault {
        return Error::new(
            status,
            "the target refused the operation",
            format!("its memory is missing or protected at offset {at} of the region"),
            KEEP_MAPPED,
        );
    }
    let (why, fix) = match status {
        Status::KeyRejected => (
            "the region was deregistered, the key is not one of the peer's, or it lacks that right",
            "ask the peer for a current key",
        ),
        Status::OutOfRange => ("the range ends outside the region", "check offset and length"),
        Status::Misaligned => (
            "the word does not lie at a multiple of its width in the target's memory",
            "use an offset that is a multiple of it, in a region whose memory begins at one",
        ),
        _ => ("the peer could not execute it", ""),
    };
    Error::new(status, "the target refused the operation", why, fix)
}

/// Makes the error of an atomic whose offset is no multiple of its width.
pub(crate) fn misaligned(offset: u64, width: u32) -> Error {
    Error::new(
        Status::Misaligned,
        format!("an atomic of {width} bytes at offset {offset} of a remote region"),
        "the offset is not a multiple of the width",
        "use one that is",
    )
}

/// Executes an atomic on local memory, atomic with respect to all other atomics of processors on it.
pub(crate) fn execute(span: &Span, offset: usize, call: &AtomicCall) -> Result<u64, Status> {
    macro_rules! run {
        ($word:expr, $type:ty) => {{
            let (word, n) = ($word, call.operand as $type);
            Ok(u64::from(match call.op {
                atomic_op::ADD => word.fetch_add(n, SeqCst),
                atomic_op::AND => word.fetch_and(n, SeqCst),
                atomic_op::OR => word.fetch_or(n, SeqCst),
                atomic_op::XOR => word.fetch_xor(n, SeqCst),
                atomic_op::SWAP => word.swap(n, SeqCst),
                atomic_op::COMPARE_SWAP => {
                    match word.compare_exchange(call.compare as $type, n, SeqCst, SeqCst) {
                        Ok(before) | Err(before) => before,
                    }
                }
                atomic_op::MIN => word.fetch_min(n, SeqCst),
                atomic_op::MAX => word.fetch_max(n, SeqCst),
                _ => return Err(Status::Unsupported),
            }))
        }};
    }
    match call.width {
        4 => run!(span.word32(offset)?, u32),
        8 => run!(span.word64(offset)?, u64),
        _ => Err(Status::Invalid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::id;

    /// Workers of the same major version read these messages: docs/wire.md. A change of a message requires a new version in
    /// `address::MESSAGES`.
    #[test]
    fn messages_are_written_as_they_always_were() {
        let target = Target { region: 1, generation: 2, offset: 3 };
        let call = AtomicCall { op: atomic_op::ADD, width: 8, operand: 5, compare: 6 };
        let put = put_head(&target, None);
        assert_eq!(put.len(), PUT_HEAD);
        let put_notify = put_head(&target, Some(0x0403_0201));
        assert_eq!(put_notify.len(), PUT_NOTIFY_HEAD);
        let Answer::Reply { token: 7, status, value } = Answer::reply(7, Ok(9)) else {
            panic!("a reply bears the token of what was asked");
        };
        let written = [
            ("PUT", put),
            ("GET", get_request(&target, 4)),
            ("ATOMIC", atomic_request(&target, &call)),
            ("REPLY", reply_bytes(status, value).to_vec()),
        ];
        let line = |(name, bytes): &(&str, Vec<u8>)| {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{name} {hex}\n")
        };
        let written: String = written.iter().map(line).collect();
        assert_eq!(written, include_str!("../golden/messages-1.0.hex"));
        // Messages added by version 1.1. NOTIFY has no payload: its header is the word.
        let added = [("PUT_NOTIFY", put_notify)];
        let added: String = added.iter().map(line).collect();
        assert_eq!(added, include_str!("../golden/messages-1.1.hex"));
        assert_eq!([id::NOTIFY, id::PUT_NOTIFY], [0xf009, 0xf00a]);
        assert_eq!(
            [id::PUT, id::GET, id::GET_DATA, id::ATOMIC, id::REPLY, id::PING, id::ASSIST],
            [0xf000, 0xf001, 0xf002, 0xf003, 0xf004, 0xf005, 0xf006]
        );
    }

    #[test]
    fn atomics_return_the_value_from_before_and_wrap() {
        let mut memory = [0u64; 2];
        let span = crate::sys::Span::from_words(&mut memory);
        let run = |op, width, operand, compare| {
            execute(&span, 0, &AtomicCall { op, width, operand, compare })
        };
        assert_eq!(run(atomic_op::ADD, 8, u64::MAX, 0), Ok(0));
        assert_eq!(run(atomic_op::ADD, 8, 2, 0), Ok(u64::MAX));
        assert_eq!(run(atomic_op::SWAP, 8, 6, 0), Ok(1));
        assert_eq!(run(atomic_op::AND, 8, 3, 0), Ok(6));
        assert_eq!(run(atomic_op::OR, 8, 8, 0), Ok(2));
        assert_eq!(run(atomic_op::XOR, 8, 1, 0), Ok(10));
        assert_eq!(run(atomic_op::COMPARE_SWAP, 8, 99, 10), Ok(11));
        assert_eq!(run(atomic_op::COMPARE_SWAP, 8, 99, 11), Ok(11));
        assert_eq!(run(atomic_op::MIN, 8, 5, 0), Ok(99));
        assert_eq!(run(atomic_op::MAX, 8, 7, 0), Ok(5));
        assert_eq!(run(atomic_op::ADD, 4, 1, 0), Ok(7));
        assert_eq!(run(42, 8, 1, 0), Err(Status::Unsupported));
        assert_eq!(run(atomic_op::ADD, 3, 1, 0), Err(Status::Invalid));
        let off = AtomicCall { op: atomic_op::ADD, width: 8, operand: 1, compare: 0 };
        assert_eq!(execute(&span, 4, &off), Err(Status::Misaligned));
        // The initiator has checked the offset, so the region itself begins at such an address.
        let said = refused(Status::Misaligned).to_string();
        assert!(said.contains("region whose memory begins at one"), "{said}");
        assert_eq!(execute(&span, 16, &off), Err(Status::OutOfRange));
    }
}
