//! A connection of the exchange server, and its pending output.

use super::handshake::Handshake;
use super::stream::Stream;
use super::wire::{Decoder, Frame, HELLO_LIMIT};
use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::sync::Arc;
use std::time::Instant;
use tieline_net::Interest;
use tieline_net::admission::Source;

/// The number of pending answer bytes above which the server reads no requests of a connection.
const BACKLOG: usize = 1 << 20;

pub(super) struct Connection {
    pub(super) stream: Stream,
    pub(super) source: Source,
    /// The handshake in progress; `None` once it is complete, and for local sockets, where the kernel reports the peer's user.
    pub(super) handshake: Option<Handshake>,
    pub(super) decoder: Decoder,
    pub(super) out: Outbox,
    pub(super) rank: Option<usize>,
    pub(super) since: Instant,
    /// Whether received frames remain unprocessed, because the answers would exceed the limit or other connections had their turn.
    pub(super) paused: bool,
    /// The events that the poller watches.
    pub(super) watched: Option<Interest>,
    /// Whether the connection closes once `out` is written.
    pub(super) closing: bool,
    pub(super) open: bool,
}

/// Encodes a frame. Several connections can share the result.
pub(super) fn encoded(frame: &Frame) -> Arc<[u8]> {
    frame.encode().into()
}

/// The pending output of one connection. A frame for many connections is stored once.
#[derive(Default)]
pub(super) struct Outbox {
    parts: VecDeque<Part>,
    /// The number of bytes of the first part that were sent.
    sent: usize,
    /// The number of pending bytes in answers to requests.
    asked: usize,
    /// The number of pending answers to exchanges.
    rounds: usize,
}

struct Part {
    bytes: Arc<[u8]>,
    what: What,
}

/// The kind of a pending part.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// An answer to a request. The requester determines the size of the answer.
    Asked,
    /// The answer to an exchange. The rank receives it before it sends the next contribution.
    Round,
    /// A final frame, or a frame of a handshake.
    Word,
}

impl Outbox {
    pub(super) fn push(&mut self, bytes: &Arc<[u8]>, what: What) {
        if !bytes.is_empty() {
            self.count(bytes.len(), what, usize::wrapping_add);
            self.parts.push_back(Part { bytes: bytes.clone(), what });
        }
    }

    fn count(&mut self, len: usize, what: What, change: fn(usize, usize) -> usize) {
        match what {
            What::Asked => self.asked = change(self.asked, len),
            What::Round => self.rounds = change(self.rounds, 1),
            What::Word => {}
        }
    }

    /// Checks whether an answer to an exchange is not completely sent.
    pub(super) fn has_round(&self) -> bool {
        self.rounds > 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.asked
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Writes pending output until the system accepts no more.
    fn write(&mut self, mut to: impl Write) {
        while let Some(part) = self.parts.front() {
            match to.write(&part.bytes[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                // A read will detect the end of the connection; the pending output is discarded.
                Err(_) => {
                    *self = Outbox::default();
                    return;
                }
            }
            if self.sent >= part.bytes.len() {
                let (len, what) = (part.bytes.len(), part.what);
                self.sent = 0;
                self.count(len, what, usize::wrapping_sub);
                drop(self.parts.pop_front());
            }
        }
    }
}

impl Connection {
    pub(super) fn new(stream: Stream, source: Source, handshake: Option<Handshake>) -> Connection {
        Connection {
            stream,
            source,
            handshake,
            decoder: Decoder::new(HELLO_LIMIT),
            out: Outbox::default(),
            rank: None,
            since: Instant::now(),
            paused: false,
            watched: None,
            closing: false,
            open: true,
        }
    }

    /// Checks whether the server processes input of this connection. While the connection only waits until a final frame is sent,
    /// its input stays unread.
    pub(super) fn is_heard(&self) -> bool {
        self.open && !self.closing && self.out.asked < BACKLOG
    }

    /// Returns the events that the poller should watch.
    pub(super) fn wants(&self) -> Interest {
        Interest { readable: self.is_heard(), writable: !self.out.is_empty() || self.paused }
    }

    /// Moves the output of the handshake to the pending output.
    pub(super) fn answer(&mut self) {
        if let Some(handshake) = &mut self.handshake {
            self.out.push(&handshake.take_output().into(), What::Word);
        }
    }

    pub(super) fn say(&mut self, bytes: &Arc<[u8]>, what: What) {
        self.out.push(bytes, what);
        self.write();
    }

    pub(super) fn write(&mut self) {
        self.out.write(&self.stream);
        if self.closing && self.out.is_empty() {
            self.open = false;
        }
    }
}
