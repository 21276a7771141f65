//! A connection: the state of an endpoint, which is connected to an endpoint of the peer. This file submits frames and posts
//! flushes; `send.rs` writes, `receive.rs` reads, `deliver.rs` delivers frames, `link.rs` dials, `life.rs` ends the connection.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use crate::sys::Piece;
use tieline_net::Contact;
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{Posting, Status};

use crate::frame::{HEAD, Head, KeyPart, Kind, LONG_HEAD};
use crate::link::{Early, Link};
use crate::ops::{BulkOp, MAX_FLUSHES, Ops, SMALL};
use crate::outbox::Outbox;
use crate::receive::Item;
use crate::shared::Shared;
use crate::sys;
use crate::window::Window;

/// The number of a connection's messages between two polls that are sent immediately, each with its own system call. Later
/// messages of up to `SHORT` bytes are gathered and sent by the next poll, or earlier if there are many. One system call for many
/// messages costs less, even if each of them is copied once more: the kernel handles a long write as few long packets.
const AT_ONCE: u32 = 4;
const SHORT: usize = 16 << 10;
const GATHERED: usize = 64 << 10;

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// `connect` has not been called yet.
    Waiting,
    /// No stream is connected yet.
    Linking,
    Open,
    /// The endpoint is closed; its data is still under way.
    Closing,
    Failed(Status),
}

/// The parts of the peer's endpoint address that are kept.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) contact: Contact,
    pub(crate) id: u64,
    pub(crate) domain: u64,
}

/// A connection, shared by its endpoint and its interface.
pub(crate) struct Conn {
    /// The number that identifies the connection at its interface.
    pub(crate) id: u64,
    pub(crate) index: u32,
    /// The state, borrowed by one call of the endpoint or the interface at a time. No borrow is held while the application packs a
    /// message, because the packer may make further calls.
    pub(crate) inner: RefCell<ConnectionState>,
}

pub(crate) struct ConnectionState {
    pub(crate) cookie: u64,
    pub(crate) id: u64,
    pub(crate) index: u32,
    pub(crate) shared: Rc<Shared>,
    pub(crate) phase: Phase,
    /// Whether the endpoint is closed: no events are reported any more.
    pub(crate) abandoned: bool,
    pub(crate) peer: Option<Box<Peer>>,
    pub(crate) links: Vec<Link>,
    pub(crate) early: Vec<Early>,
    pub(crate) outbox: Outbox,
    pub(crate) window: Window<Item>,
    pub(crate) held_bytes: usize,
    pub(crate) ops: Option<Box<Ops>>,
    /// The number of frames and of bytes that are not acknowledged, and the poll in which the last frame arrived.
    pub(crate) ack_owed: u32,
    pub(crate) ack_bytes: usize,
    pub(crate) ack_round: u64,
    /// The stream on which data last arrived.
    pub(crate) ack_stream: usize,
    /// The time at which data last arrived, on any stream.
    pub(crate) last_received_ms: u64,
    pub(crate) flagged: Cell<bool>,
    /// Whether the connection is queued to be read; `floor` is the number of slots to leave for events of other connections.
    pub(crate) queued: Cell<bool>,
    pub(crate) floor: usize,
    pub(crate) timed: Cell<bool>,
    /// Whether the connection is one of those whose send buffers have memory.
    pub(crate) is_filled: bool,
    /// Whether data was sent whose answer is not checked yet, and the time of sending.
    pub(crate) expects: Cell<bool>,
    pub(crate) expects_since: Cell<Instant>,
    /// The time at which the connection began to wait: for its first stream, for a stream to be formed again, or, if closed, for
    /// the peer.
    pub(crate) since: Instant,
    pub(crate) gone_since: Option<Instant>,
    pub(crate) last_words: String,
    /// Whether the last attempt to connect found no descriptor left in this process or this system.
    pub(crate) starved: bool,
    pub(crate) goodbye_sent: bool,
    unflushed: bool,
    /// The number of short messages since poll `burst_round`.
    burst: u32,
    burst_round: u64,
    /// The stream that writes next.
    pub(crate) turn: usize,
    pub(crate) turn_bytes: usize,
}

impl Conn {
    pub(crate) fn new(shared: &Rc<Shared>, cookie: u64, id: u64, index: u32) -> Conn {
        let inner = ConnectionState {
            cookie,
            id,
            index,
            shared: Rc::clone(shared),
            phase: Phase::Waiting,
            abandoned: false,
            peer: None,
            links: Vec::new(),
            early: Vec::new(),
            outbox: Outbox::new(shared.settings.send_buffer, false),
            window: Window::default(),
            held_bytes: 0,
            ops: None,
            ack_owed: 0,
            ack_bytes: 0,
            ack_round: 0,
            ack_stream: 0,
            last_received_ms: 0,
            flagged: Cell::new(false),
            queued: Cell::new(false),
            floor: 0,
            timed: Cell::new(false),
            is_filled: false,
            expects: Cell::new(false),
            expects_since: Cell::new(Instant::now()),
            since: Instant::now(),
            gone_since: None,
            last_words: String::new(),
            starved: false,
            goodbye_sent: false,
            unflushed: false,
            burst: 0,
            burst_round: 0,
            turn: 0,
            turn_bytes: 0,
        };
        Conn { id, index, inner: RefCell::new(inner) }
    }
}

impl ConnectionState {
    // ---- calls of the endpoint ----

    /// Checks whether an operation can be posted; the error is the reason why not.
    #[inline]
    pub(crate) fn ready(&mut self) -> Result<(), Status> {
        match self.phase {
            Phase::Open if self.ops.is_none() => Ok(()),
            Phase::Open => self.past_fence(),
            Phase::Waiting | Phase::Linking => Err(Status::Again),
            Phase::Closing => Err(Status::Closed),
            Phase::Failed(status) => Err(status),
        }
    }

    /// Checks whether the connection is usable, regardless of fences: for operations that began before the fence.
    pub(crate) fn is_open(&self) -> Result<(), Status> {
        match self.phase {
            Phase::Open => Ok(()),
            Phase::Failed(status) => Err(status),
            _ => Err(Status::Closed),
        }
    }

    fn past_fence(&mut self) -> Result<(), Status> {
        let in_order = !self.outbox.retains();
        let barred = self.ops.as_mut().is_some_and(|ops| ops.is_barred(in_order));
        if barred { Err(Status::Again) } else { Ok(()) }
    }

    /// Sends a frame, straight to the kernel or as a copy in the outbox.
    #[inline]
    pub(crate) fn submit(
        &mut self,
        head: Head,
        key: Option<&KeyPart>,
        payload: &[u8],
    ) -> Result<(), Status> {
        self.unflushed = true;
        let gathers = self.gathers(&head, payload);
        if !gathers && self.is_quick() {
            self.send_now(head, key, payload);
            return Ok(());
        }
        self.submit_later(head, key, payload, gathers)
    }

    /// Submits the frame of a put or get. If another operation follows immediately, the frame is gathered until that operation, or the
    /// next poll, writes both.
    pub(crate) fn submit_before(
        &mut self,
        is_followed: bool,
        head: Head,
        key: Option<&KeyPart>,
        payload: &[u8],
    ) -> Result<(), Status> {
        match is_followed && self.outbox.waiting() < GATHERED {
            true => self.submit_later(head, key, payload, true),
            false => self.submit(head, key, payload),
        }
    }

    /// Writes frames to the streams. If another operation follows immediately, a few frames wait for it or for the next poll.
    pub(crate) fn flush_unless(&mut self, is_followed: bool) {
        match is_followed && self.outbox.waiting() < GATHERED {
            true => self.call_attention(),
            false => self.flush(),
        }
    }

    /// Checks whether a message is one of many, for which separate system calls are too expensive.
    #[inline]
    fn gathers(&mut self, head: &Head, payload: &[u8]) -> bool {
        if head.kind != Kind::Message || payload.len() > SHORT {
            return false;
        }
        let round = self.shared.round.get();
        if self.burst_round != round {
            (self.burst_round, self.burst) = (round, 0);
        }
        self.burst += 1;
        self.burst > AT_ONCE && self.outbox.waiting() < GATHERED
    }

    /// Checks whether frames can go straight to the kernel: one stream, and nothing is kept, queued or reserved.
    #[inline]
    fn is_quick(&self) -> bool {
        !self.outbox.retains()
            && self.outbox.is_empty()
            && !self.outbox.is_reserved()
            && matches!(
                &self.links[..],
                [Link { stream: Some(stream), .. }] if !stream.blocked && stream.track.is_idle()
            )
    }

    #[inline]
    fn send_now(&mut self, mut head: Head, key: Option<&KeyPart>, payload: &[u8]) {
        const STACK: usize = 512;
        head.seq = self.outbox.take_seq();
        head.len = payload.len() as u32;
        let mut bytes = [0u8; STACK];
        let head_len = match key {
            None => {
                bytes[..HEAD].copy_from_slice(&head.pack());
                HEAD
            }
            Some(key) => {
                bytes[..LONG_HEAD].copy_from_slice(&head.pack_with(key));
                LONG_HEAD
            }
        };
        self.expect_answer();
        let Some(stream) = self.links.first_mut().and_then(|link| link.stream.as_mut()) else {
            return;
        };
        let total = head_len + payload.len();
        let sent = if total <= STACK {
            bytes[head_len..total].copy_from_slice(payload);
            sys::send(stream.sender(), &bytes[..total])
        } else {
            stream.write(&[sys::piece(&bytes[..head_len]), sys::piece(payload)])
        };
        if matches!(sent, Ok(n) if n == total) {
            return;
        }
        let sent = match sent {
            Ok(n) => n,
            Err(error) if sys::is_passing(&error) => 0,
            Err(error) => {
                stream.error = Some(error);
                return self.call_attention();
            }
        };
        let in_head = sent.min(head_len);
        if in_head < head_len {
            self.outbox
                .push_rest(&mut stream.track, &[&bytes[in_head..head_len], payload].concat());
        } else {
            self.outbox.push_rest(&mut stream.track, &payload[sent - head_len..]);
        }
        self.block(0);
    }

    /// Sends a copied put and its notification, both or none.
    pub(crate) fn submit_both(
        &mut self,
        mut put: Head,
        key: &KeyPart,
        payload: &[u8],
        mut notified: Head,
    ) -> Result<(), Status> {
        if !self.outbox.has_room(2 * LONG_HEAD + payload.len()) {
            return Err(Status::Again);
        }
        self.unflushed = true;
        put.ack = self.acknowledge();
        notified.ack = put.ack;
        self.outbox.push(put, Some(key), payload);
        self.outbox.push(notified, None, &[]);
        Ok(())
    }

    fn submit_later(
        &mut self,
        mut head: Head,
        key: Option<&KeyPart>,
        payload: &[u8],
        gathers: bool,
    ) -> Result<(), Status> {
        self.unflushed = true;
        if !self.outbox.has_room(LONG_HEAD + payload.len()) {
            return Err(Status::Again);
        }
        head.ack = self.acknowledge();
        self.outbox.push(head, key, payload);
        if gathers {
            self.call_attention();
        } else {
            self.flush();
        }
        Ok(())
    }

    /// Sends a message whose payload is in pieces.
    pub(crate) fn submit_pieces(
        &mut self,
        id: u32,
        header: u64,
        iov: &[Iov],
    ) -> Result<(), Status> {
        let len: usize = iov.iter().map(|piece| piece.len).sum();
        let mut head = Head::bare(Kind::Message, id, header);
        if let [piece] = iov {
            if self.is_quick() && len > SMALL {
                return self.send_piece_now(head, (*piece).into());
            }
        }
        if !self.is_quick() && !self.outbox.has_room(LONG_HEAD + len) {
            return Err(Status::Again);
        }
        head.len = len as u32;
        let mut scratch = self.shared.scratch.take();
        scratch.resize(crate::frame::MAX_MESSAGE, 0);
        let mut at = 0;
        for &piece in iov {
            sys::read_piece(piece.into(), &mut scratch[at..]);
            at += piece.len;
        }
        let result = self.submit(head, None, &scratch[..len]);
        let _ = self.shared.scratch.replace(scratch);
        result
    }

    /// Sends one piece in place. The rest that the kernel does not take is copied.
    fn send_piece_now(&mut self, mut head: Head, piece: Piece) -> Result<(), Status> {
        self.unflushed = true;
        self.expect_answer();
        let Some(stream) = self.links.first_mut().and_then(|link| link.stream.as_mut()) else {
            return Err(Status::Again);
        };
        head.seq = self.outbox.take_seq();
        head.len = piece.len() as u32;
        let bytes = head.pack();
        let sent = match stream.write(&[sys::piece(&bytes), piece]) {
            Ok(n) if n == HEAD + piece.len() => return Ok(()),
            Ok(n) => n,
            Err(error) if sys::is_passing(&error) => 0,
            Err(error) => {
                stream.error = Some(error);
                self.call_attention();
                return Ok(());
            }
        };
        let mut rest = bytes[sent.min(HEAD)..].to_vec();
        let begin = rest.len();
        let tail = sys::tail(piece, sent.saturating_sub(HEAD));
        rest.resize(begin + tail.len(), 0);
        sys::read_piece(tail, &mut rest[begin..]);
        self.outbox.push_rest(&mut stream.track, &rest);
        self.block(0);
        Ok(())
    }

    pub(crate) fn ops(&mut self) -> &mut Ops {
        self.ops.get_or_insert_default()
    }

    /// Posts a flush.
    pub(crate) fn post_flush(&mut self, cookie: u64) -> Result<Posting, Status> {
        match self.phase {
            Phase::Open => {}
            Phase::Waiting | Phase::Linking => return Ok(Posting::Done),
            Phase::Closing => return Err(Status::Closed),
            Phase::Failed(status) => return Err(status),
        }
        if !self.unflushed && self.ops.as_ref().is_none_or(|ops| ops.is_idle()) {
            return Ok(Posting::Done);
        }
        if self.ops().flushes.len() >= MAX_FLUSHES {
            return Err(Status::Again);
        }
        let number = self.ops().last_flush.wrapping_add(1);
        if self.ops().bulk.is_empty() {
            self.submit(Head::bare(Kind::Flush, number, 0), None, &[])?;
        } else {
            self.ops().bulk.push_back(BulkOp::Flush { number });
        }
        self.unflushed = false;
        let ops = self.ops();
        ops.last_flush = number;
        ops.flushes.push_back(crate::ops::FlushOp {
            number,
            cookie,
            last_get: ops.last_get,
            last_put: ops.last_put,
            answered: false,
            result: ops.late.take().map_or(Ok(()), Err),
        });
        Ok(Posting::Pending)
    }
}
