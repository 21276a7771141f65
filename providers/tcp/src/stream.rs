//! One TCP connection of an endpoint: its socket, the frame in progress, and its receive buffer.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::sys::Piece;
use tieline_plugin_api::{NO_GOODBYE, Status};

use crate::buffer::{BUFFER, Buffer};
use crate::frame::{Head, Refused};
use crate::outbox::Track;
use crate::pool::Pool;
use crate::probe::Probe;
use crate::regions::Region;
use crate::silence::Silence;
use crate::sys;

/// The destination of the payload of a put or of get data.
#[derive(Debug)]
pub(crate) enum Destination {
    Region(Arc<Region>, u64),
    /// The local pieces of a get that this side has posted.
    Get,
    /// No destination: the payload is discarded, for example because it was refused or has already arrived.
    Nowhere,
}

/// A payload that is arriving.
#[derive(Debug)]
pub(crate) struct Landing {
    pub(crate) head: Head,
    pub(crate) at: usize,
    pub(crate) destination: Destination,
    pub(crate) result: Result<(), Refused>,
}

impl Landing {
    pub(crate) fn left(&self) -> usize {
        self.head.len as usize - self.at
    }
}

/// A connection in use.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) socket: OwnedFd,
    /// The other end of the private stream, if the endpoint is connected to itself.
    pub(crate) other_end: Option<OwnedFd>,
    peer: Option<SocketAddr>,
    pub(crate) track: Track,
    /// Whether the kernel takes no more until the descriptor is writable.
    pub(crate) blocked: bool,
    /// Whether the stream may have data to read: epoll has reported it, or the last read stopped at its limit.
    pub(crate) behind: bool,
    pub(crate) hot: bool,
    pub(crate) buffer: Option<Buffer>,
    /// The beginning of a frame, kept without a buffer until the rest arrives.
    pub(crate) rest: Box<[u8]>,
    pub(crate) landing: Option<Box<Landing>>,
    /// Whether the last frame had a long payload for memory of the application. The next frame probably has one, too.
    pub(crate) is_bulk: bool,
    /// The error of a failed send. Data that arrived before the error still has to be read.
    pub(crate) error: Option<io::Error>,
    /// The time at which data last arrived, in ms of the interface's clock.
    pub(crate) last_received_ms: u64,
    pub(crate) silence: Silence,
    /// The probe of the peer's host while the peer is silent.
    pub(crate) probe: Option<Probe>,
    /// Whether the stream is stuck: nothing can be read from it, although it does not break. For tests.
    #[cfg(test)]
    pub(crate) frozen: bool,
}

impl Stream {
    pub(crate) fn new(number: u8, socket: OwnedFd, peer: Option<SocketAddr>) -> Stream {
        Stream {
            socket,
            other_end: None,
            peer,
            track: Track::new(number),
            blocked: false,
            behind: false,
            hot: false,
            buffer: None,
            rest: Box::default(),
            landing: None,
            is_bulk: false,
            error: None,
            last_received_ms: 0,
            silence: Silence::default(),
            probe: None,
            #[cfg(test)]
            frozen: false,
        }
    }

    /// Returns a stream that is connected to itself.
    pub(crate) fn to_itself() -> io::Result<Stream> {
        let (socket, other) = sys::pair()?;
        let mut stream = Stream::new(0, socket, None);
        stream.other_end = Some(other);
        Ok(stream)
    }

    /// Returns the descriptor for writing.
    #[inline]
    pub(crate) fn sender(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Returns the descriptor for reading.
    #[inline]
    pub(crate) fn receiver(&self) -> RawFd {
        self.other_end.as_ref().unwrap_or(&self.socket).as_raw_fd()
    }

    pub(crate) fn leads_to_itself(&self) -> bool {
        self.other_end.is_some()
    }

    /// Returns the peer's address, for texts.
    pub(crate) fn peer(&self) -> String {
        match self.peer {
            Some(peer) => peer.to_string(),
            None if self.other_end.is_some() => "itself".to_string(),
            None => "an unknown address".to_string(),
        }
    }

    /// Returns the addresses of this end and of the other one.
    pub(crate) fn addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        let socket = socket2::SockRef::from(&self.socket);
        let address = |a: io::Result<socket2::SockAddr>| a.ok().and_then(|a| a.as_socket());
        (address(socket.local_addr()), address(socket.peer_addr()))
    }

    /// Writes pieces.
    pub(crate) fn write(&self, pieces: &[Piece]) -> io::Result<usize> {
        sys::send_pieces(self.sender(), pieces)
    }

    /// Returns the receive buffer; takes one from the pool if there is none.
    #[inline]
    pub(crate) fn buffer(&mut self, pool: &RefCell<Pool>) -> &mut Buffer {
        let rest = &mut self.rest;
        self.buffer.get_or_insert_with(|| {
            let mut buffer = pool.borrow_mut().take();
            buffer.refill(&std::mem::take(rest));
            buffer
        })
    }

    /// Returns the buffer to the pool, unless the stream is recently active or has more to read.
    pub(crate) fn put_away(&mut self, pool: &RefCell<Pool>) {
        if self.behind || self.hot {
            return;
        }
        if let Some(buffer) = self.buffer.take() {
            self.rest = buffer.unread().into();
            pool.borrow_mut().give(buffer);
        }
    }

    /// Returns the size of the memory for received data.
    pub(crate) fn committed(&self) -> usize {
        self.rest.len() + self.buffer.as_ref().map_or(0, |_| BUFFER)
    }

    /// Discards up to 4 MiB of data that has arrived, so that closing does not send a reset after the sent data.
    pub(crate) fn discard(&mut self) {
        let mut scratch = [0u8; 4096];
        for _ in 0..1024 {
            if !matches!(sys::receive(self.receiver(), &mut scratch), Ok(n) if n > 0) {
                return;
            }
        }
    }
}

/// The break of a connection, as a status and in words.
#[derive(Debug)]
pub(crate) struct Broke {
    pub(crate) status: Status,
    pub(crate) text: String,
}

impl Broke {
    pub(crate) fn malformed(peer: &str, why: &str) -> Broke {
        Broke {
            status: Status::BadData,
            text: format!("{peer} sent {why}: the connection is closed"),
        }
    }

    pub(crate) fn ended(peer: &str) -> Broke {
        Broke { status: Status::PeerFailed, text: format!("{peer}: {NO_GOODBYE}") }
    }

    pub(crate) fn error(peer: &str, error: &io::Error) -> Broke {
        use io::ErrorKind as Kind;
        let (status, what) = match error.kind() {
            Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe => {
                (Status::PeerFailed, NO_GOODBYE)
            }
            Kind::TimedOut => (
                Status::TimedOut,
                "nothing came from there for TIELINE_FAILURE_TIMEOUT: the host or the link is down",
            ),
            _ => match error.raw_os_error() {
                Some(libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ENETDOWN) => {
                    (Status::Unreachable, "there is no route to it any more")
                }
                _ => (Status::Io, "the connection is unusable"),
            },
        };
        Broke { status, text: format!("the connection to {peer} broke: {error}; {what}") }
    }
}
