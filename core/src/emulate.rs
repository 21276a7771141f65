//! Put, get and atomics over messages: the records on the wire, and what the target does with them.
//!
//! Where no module gives a pair native access to some memory, the core sends these messages on the
//! message lane (to the peer's service worker when its context has a progress thread). The target looks
//! the region up by number and generation, checks range and rights, and answers. Messages are delivered
//! once and in order, so an atomic is executed once.

use crate::endpoint::Inner as EndpointInner;
use crate::op::{Id, Kind, Memory};
use crate::region::Access;
use crate::registry::abi::PackBuffer;
use crate::sys::Span;
use crate::wire::{Reader, Writer};
use crate::worker::{Inner as WorkerInner, services, wiring};
use crate::{Error, Status};
use std::rc::Rc;
use std::sync::atomic::Ordering::SeqCst;
use tieline_plugin_api::atomic_op;

/// The ids of the core's own messages; applications have those below.
pub(crate) mod id {
    pub(crate) const FIRST: u16 = 0xf000;
    pub(crate) const PUT: u16 = 0xf000;
    pub(crate) const GET: u16 = 0xf001;
    pub(crate) const GET_DATA: u16 = 0xf002;
    pub(crate) const ATOMIC: u16 = 0xf003;
    pub(crate) const REPLY: u16 = 0xf004;
    pub(crate) const PING: u16 = 0xf005;
    pub(crate) const ASSIST: u16 = 0xf006;
    pub(crate) const WIREUP: u16 = 0xf007;
    pub(crate) const SERVICE: u16 = 0xf008;
}

/// A peer's range, as its key names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) region: u64,
    pub(crate) generation: u64,
    pub(crate) offset: u64,
}

pub(crate) const PUT_HEAD: usize = 24;
pub(crate) const GET_DATA_HEAD: usize = 16;
impl Target {
    pub(crate) fn write(&self, w: &mut Writer) {
        let _ = w.u64(self.region).u64(self.generation).u64(self.offset);
    }

    fn read(r: &mut Reader<'_>) -> Result<Target, Status> {
        Ok(Target { region: r.u64()?, generation: r.u64()?, offset: r.u64()? })
    }
}

/// One atomic, as it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtomicCall {
    pub(crate) op: u32,
    pub(crate) width: u32,
    pub(crate) operand: u64,
    pub(crate) compare: u64,
}

/// The bytes that ask a target for an atomic.
pub(crate) fn atomic_request(target: &Target, call: &AtomicCall) -> Vec<u8> {
    let mut w = Writer::default();
    target.write(&mut w);
    let _ = w.u64(call.operand).u64(call.compare).u8(call.op as u8).u8(call.width as u8);
    w.bytes
}

/// The bytes that ask a target for a range.
pub(crate) fn get_request(target: &Target, len: u64) -> Vec<u8> {
    let mut w = Writer::default();
    target.write(&mut w);
    let _ = w.u64(len);
    w.bytes
}

/// What is owed to a peer for its question.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// How it ended, and the value from before.
    Reply { token: u64, status: i32, value: u64 },
    /// The bytes that it asked for, of which so many have been sent.
    Data { token: u64, target: Target, len: u64, sent: u64 },
    /// What a service says.
    Service(Box<[u8]>),
}

fn reply(token: u64, result: Result<u64, Status>) -> Answer {
    let (status, value) = match result {
        Ok(value) => (0, value),
        Err(status) => (status as i32, 0),
    };
    Answer::Reply { token, status, value }
}

fn reply_bytes(status: i32, value: u64) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&status.to_le_bytes());
    bytes[4..].copy_from_slice(&value.to_le_bytes());
    bytes
}

/// Sends an answer, or as much of it as the transport takes now.
pub(crate) fn send_answer(endpoint: &EndpointInner, answer: &mut Answer) -> Result<(), Status> {
    match answer {
        Answer::Reply { token, status, value } => {
            endpoint.control_now(id::REPLY, *token, &reply_bytes(*status, *value))
        }
        Answer::Service(message) => endpoint.control_now(id::SERVICE, 0, message),
        Answer::Data { token, target, len, sent } => stream(endpoint, *token, target, *len, sent),
    }
}

/// Who sent one of the core's own messages, and over which line where it came over one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) peer: u32,
    pub(crate) line: Option<u64>,
}

/// Handles one of the core's own messages. What a peer got wrong is answered where there is an answer,
/// and counted.
pub(crate) fn handle(
    worker: &Rc<WorkerInner>,
    message: u16,
    token: u64,
    from: Origin,
    data: &[u8],
) {
    let peer = from.peer;
    if matches!(message, id::PUT | id::GET | id::ATOMIC) {
        worker.bump(|c| c.emulated += 1);
    }
    let result = match message {
        id::REPLY => on_reply(worker, token, from, data),
        id::GET_DATA => on_get_data(worker, token, from, data),
        id::PUT => on_put(worker, token, from, data),
        id::GET => on_get(worker, token, from, data),
        id::ATOMIC => on_atomic(worker, token, from, data),
        id::PING => {
            answer(worker, from, reply(token, Ok(0)));
            Ok(())
        }
        id::ASSIST => crate::assist::on_request(worker, token, peer, data),
        id::SERVICE => services::received(worker, from, data),
        id::WIREUP => on_wireup(worker, peer, data),
        _ => Err(Status::BadData),
    };
    if let Err(status) = result {
        worker.count_bad(peer, status);
    }
}

/// A datagram that came as a message: whose connection that was is known.
fn on_wireup(worker: &Rc<WorkerInner>, peer: u32, data: &[u8]) -> Result<(), Status> {
    let address = worker.address_of_peer(peer).ok_or(Status::BadData)?;
    let sender = wiring::Sender::Worker(&address);
    // What is wrong with it is counted there.
    let _ = wiring::received(worker, data, sender);
    Ok(())
}

/// Answers who asked, or keeps the answer until that is possible.
fn answer(worker: &Rc<WorkerInner>, from: Origin, answer: Answer) {
    let endpoint = match worker.answer_endpoint(from) {
        Ok(endpoint) => endpoint,
        Err(error) => return worker.keep_answer(from, answer, error.status()),
    };
    if let Err((answer, status)) = endpoint.answer(answer, None) {
        worker.keep_answer(from, answer, status);
    }
}

fn on_put(worker: &Rc<WorkerInner>, token: u64, from: Origin, data: &[u8]) -> Result<(), Status> {
    let mut r = Reader::new(data);
    let target = Target::read(&mut r)?;
    let data = r.rest();
    let result = worker.core.memory.regions.reach(
        target.region,
        target.generation,
        (target.offset, data.len() as u64),
        Access::WRITE,
        |span, offset| span.write(offset, data),
    );
    // Only the last piece asks for an answer; an earlier failure shows there too, since a key that is
    // refused stays refused and the last piece reaches furthest.
    if token != 0 {
        answer(worker, from, reply(token, result.map(|()| 0)));
    }
    Ok(())
}

fn on_get(worker: &Rc<WorkerInner>, token: u64, from: Origin, data: &[u8]) -> Result<(), Status> {
    let mut r = Reader::new(data);
    let target = Target::read(&mut r)?;
    let len = r.u64()?;
    let check = worker.core.memory.regions.reach(
        target.region,
        target.generation,
        (target.offset, len),
        Access::READ,
        |_, _| Ok(()),
    );
    let owed = match check {
        Err(status) => reply(token, Err(status)),
        Ok(()) => Answer::Data { token, target, len, sent: 0 },
    };
    answer(worker, from, owed);
    Ok(())
}

fn on_atomic(
    worker: &Rc<WorkerInner>,
    token: u64,
    from: Origin,
    data: &[u8],
) -> Result<(), Status> {
    let mut r = Reader::new(data);
    let target = Target::read(&mut r)?;
    let (operand, compare) = (r.u64()?, r.u64()?);
    let call = AtomicCall { op: u32::from(r.u8()?), width: u32::from(r.u8()?), operand, compare };
    let result = worker.core.memory.regions.reach(
        target.region,
        target.generation,
        (target.offset, u64::from(call.width)),
        Access::ATOMIC,
        |span, offset| execute(span, offset, &call),
    );
    answer(worker, from, reply(token, result));
    Ok(())
}

/// The operation that an answer is for: one that asks, and asks this peer over this connection.
fn answered(worker: &Rc<WorkerInner>, token: u64, from: Origin) -> Result<(Id, Kind), Status> {
    let id = Id::from_raw(token).ok_or(Status::BadData)?;
    let (asked, kind) = worker.ops.borrow().asked(id).ok_or(Status::BadData)?;
    worker.check_answer(asked, from)?;
    Ok((id, kind))
}

fn on_reply(worker: &Rc<WorkerInner>, token: u64, from: Origin, data: &[u8]) -> Result<(), Status> {
    let mut r = Reader::new(data);
    let (status, value) = (r.i32()?, r.u64()?);
    let (id, kind) = answered(worker, token, from)?;
    let result = match (status, kind) {
        (0, Kind::Fetch) => Ok(value),
        // Only its data completes a get.
        (0, Kind::Get) => return Err(Status::BadData),
        (0, _) => Ok(0),
        (status, _) => Err(refused(Status::from_code(status))),
    };
    worker.part(id, result);
    Ok(())
}

fn on_get_data(
    worker: &Rc<WorkerInner>,
    token: u64,
    from: Origin,
    data: &[u8],
) -> Result<(), Status> {
    let mut r = Reader::new(data);
    let (position, status, _) = (r.u64()?, r.i32()?, r.u32()?);
    let data = r.rest();
    let (id, kind) = answered(worker, token, from)?;
    if kind != Kind::Get {
        return Err(Status::BadData);
    }
    if status != 0 {
        worker.part(id, Err(refused(Status::from_code(status))));
        return Ok(());
    }
    let whole = {
        let mut ops = worker.ops.borrow_mut();
        let landing = ops.landing_of_get(id).ok_or(Status::BadData)?;
        let position = usize::try_from(position).map_err(|_| Status::BadData)?;
        let end = position.checked_add(data.len()).ok_or(Status::BadData)?;
        // Pieces come in order, so that no two of them count for the same bytes.
        if position != landing.len - landing.missing || end > landing.len {
            return Err(Status::BadData);
        }
        let Memory::Region(region) = &landing.memory else { return Err(Status::BadData) };
        region.inner.span.write(landing.offset + position, data)?;
        landing.missing -= data.len();
        landing.missing == 0
    };
    if whole {
        worker.part(id, Ok(0));
    }
    Ok(())
}

/// The error of an operation that the target refused.
pub(crate) fn refused(status: Status) -> Error {
    let (why, fix) = match status {
        Status::KeyRejected => (
            "the region was deregistered, the key is not one of the peer's, or it lacks that right",
            "ask the peer for a current key",
        ),
        Status::OutOfRange => ("the range ends outside the region", "check offset and length"),
        Status::Misaligned => ("atomics need an offset that is a multiple of their width", ""),
        _ => ("the peer could not execute it", ""),
    };
    Error::new(status, "the target refused the operation", why, fix)
}

/// Executes an atomic on local memory, coherent with every other CPU atomic on it.
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

/// Sends as much of a get's answer as the transport takes now.
fn stream(
    endpoint: &EndpointInner,
    token: u64,
    target: &Target,
    len: u64,
    sent: &mut u64,
) -> Result<(), Status> {
    let piece = endpoint.most_behind(GET_DATA_HEAD)? as u64;
    let regions = &endpoint.worker.core.memory.regions;
    loop {
        let n = piece.min(len - *sent);
        let at = target.offset + *sent;
        let pack = |out: &mut PackBuffer<'_>| {
            let mut w = Writer::default();
            let _ = w.u64(*sent).i32(0).u32(0);
            out.put(&w.bytes)?;
            regions.reach(
                target.region,
                target.generation,
                (at, n),
                Access::READ,
                |span, offset| out.put_span(span, offset, n as usize),
            )
        };
        match endpoint.pack_now(id::GET_DATA, token, GET_DATA_HEAD + n as usize, pack) {
            Ok(()) => *sent += n,
            // Deregistered while its answer was under way: the rest is an error.
            Err(status @ (Status::KeyRejected | Status::OutOfRange)) => {
                let mut w = Writer::default();
                let _ = w.u64(*sent).i32(status as i32).u32(0);
                return endpoint.control_now(id::GET_DATA, token, &w.bytes);
            }
            Err(status) => return Err(status),
        }
        if *sent >= len {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a worker of the same major reads: docs/wire.md. A change here is a new version in `address::MESSAGES`.
    #[test]
    fn messages_are_written_as_they_always_were() {
        let target = Target { region: 1, generation: 2, offset: 3 };
        let call = AtomicCall { op: atomic_op::ADD, width: 8, operand: 5, compare: 6 };
        let mut put = Writer::default();
        target.write(&mut put);
        assert_eq!(put.bytes.len(), PUT_HEAD);
        let Answer::Reply { token: 7, status, value } = reply(7, Ok(9)) else {
            panic!("a reply bears the token of what was asked");
        };
        let written = [
            ("PUT", put.bytes),
            ("GET", get_request(&target, 4)),
            ("ATOMIC", atomic_request(&target, &call)),
            ("REPLY", reply_bytes(status, value).to_vec()),
        ];
        let line = |(name, bytes): &(&str, Vec<u8>)| {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{name} {hex}\n")
        };
        let written: String = written.iter().map(line).collect();
        assert_eq!(written, include_str!("wire/golden/messages-1.0.hex"));
        assert_eq!(
            [id::PUT, id::GET, id::GET_DATA, id::ATOMIC, id::REPLY, id::PING, id::ASSIST],
            [0xf000, 0xf001, 0xf002, 0xf003, 0xf004, 0xf005, 0xf006]
        );
    }

    #[test]
    fn atomics_return_the_value_from_before_and_wrap() {
        let mut memory = [0u64; 2];
        let span = crate::sys::Span::of_words(&mut memory);
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
        assert_eq!(execute(&span, 16, &off), Err(Status::OutOfRange));
    }
}
