//! A connection to the one who serves, and what is still to be written to it.

use super::handshake::Handshake;
use super::stream::Stream;
use super::wire::{Decoder, Frame, HELLO_LIMIT};
use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::sync::Arc;
use std::time::Instant;
use tieline_net::Interest;
use tieline_net::admission::Source;

/// While so much that it asked for is still to be written to one, it is not listened to.
const BACKLOG: usize = 1 << 20;

pub(super) struct Connection {
    pub(super) stream: Stream,
    pub(super) source: Source,
    /// Still to be passed; none for sockets whose other end the kernel vouches for.
    pub(super) handshake: Option<Handshake>,
    pub(super) decoder: Decoder,
    pub(super) out: Outbox,
    pub(super) rank: Option<usize>,
    pub(super) since: Instant,
    /// Not all that came has been heard: there was no room for the answers, or others have their turn.
    pub(super) paused: bool,
    /// What the poller has been told to look for.
    pub(super) watched: Option<Interest>,
    /// Closed once `out` is written.
    pub(super) closing: bool,
    pub(super) open: bool,
}

/// What a frame is on the wire, for as many readers as there are.
pub(super) fn encoded(frame: &Frame) -> Arc<[u8]> {
    frame.encode().into()
}

/// What is still to be written to one connection. What many are told is kept once.
#[derive(Default)]
pub(super) struct Outbox {
    parts: VecDeque<Part>,
    /// Of the first one.
    sent: usize,
    /// Of those that were asked for.
    asked: usize,
    /// Answers to exchanges.
    rounds: usize,
}

struct Part {
    bytes: Arc<[u8]>,
    what: What,
}

/// Why something is said.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// It was asked for: as much as whoever asks likes.
    Asked,
    /// The answer to an exchange: the next contribution comes behind it.
    Round,
    /// A last word, or one of a handshake.
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

    /// Whether the answer to an exchange has not all been taken.
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

    /// Writes what the system takes.
    fn write(&mut self, mut to: impl Write) {
        while let Some(part) = self.parts.front() {
            match to.write(&part.bytes[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                // Its end is read as one; what was to be said has no reader any more.
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

    /// Whether what it says is heard now. What comes from who only has to hear a last word is not kept.
    pub(super) fn is_heard(&self) -> bool {
        self.open && !self.closing && self.out.asked < BACKLOG
    }

    /// What the poller is to look for.
    pub(super) fn wants(&self) -> Interest {
        Interest { readable: self.is_heard(), writable: !self.out.is_empty() || self.paused }
    }

    /// What the handshake has to say.
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
