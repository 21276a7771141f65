//! One TCP connection of an endpoint: its socket, what it is in the middle of, and the buffer it receives into.

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

/// Where the payload of a put or of get data goes.
#[derive(Debug)]
pub(crate) enum Destination {
    Region(Arc<Region>, u64),
    /// The local pieces of a get of ours.
    Get,
    /// Nowhere: it was refused, or has been here before.
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
    /// The other end of an endpoint that is connected to itself.
    pub(crate) other_end: Option<OwnedFd>,
    peer: Option<SocketAddr>,
    pub(crate) track: Track,
    /// The kernel takes no more until the descriptor is writable.
    pub(crate) blocked: bool,
    /// There may be something to read: the kernel says so, or it was another one's turn.
    pub(crate) behind: bool,
    pub(crate) hot: bool,
    pub(crate) buffer: Option<Buffer>,
    /// The beginning of a frame whose end is awaited without a buffer.
    pub(crate) rest: Box<[u8]>,
    pub(crate) landing: Option<Box<Landing>>,
    /// Why sending failed: what had arrived before is still to be read.
    pub(crate) error: Option<io::Error>,
    /// When something came last, in ms of the interface's clock.
    pub(crate) last_received_ms: u64,
    pub(crate) silence: Silence,
    /// While nothing is answered: whether the host there answers at all.
    pub(crate) probe: Option<Probe>,
    /// Tests: nothing comes out of it, though it does not break.
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
            error: None,
            last_received_ms: 0,
            silence: Silence::default(),
            probe: None,
            #[cfg(test)]
            frozen: false,
        }
    }

    /// A stream that leads back to where it begins.
    pub(crate) fn to_itself() -> io::Result<Stream> {
        let (socket, other) = sys::pair()?;
        let mut stream = Stream::new(0, socket, None);
        stream.other_end = Some(other);
        Ok(stream)
    }

    /// Where bytes are written to.
    #[inline]
    pub(crate) fn sender(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Where bytes are read from.
    #[inline]
    pub(crate) fn receiver(&self) -> RawFd {
        self.other_end.as_ref().unwrap_or(&self.socket).as_raw_fd()
    }

    pub(crate) fn leads_to_itself(&self) -> bool {
        self.other_end.is_some()
    }

    /// Who is at the other end, for words.
    pub(crate) fn peer(&self) -> String {
        match self.peer {
            Some(peer) => peer.to_string(),
            None if self.other_end.is_some() => "itself".to_string(),
            None => "an unknown address".to_string(),
        }
    }

    /// The addresses of this end and of the other.
    pub(crate) fn addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        let socket = socket2::SockRef::from(&self.socket);
        let address = |a: io::Result<socket2::SockAddr>| a.ok().and_then(|a| a.as_socket());
        (address(socket.local_addr()), address(socket.peer_addr()))
    }

    /// Writes pieces.
    pub(crate) fn write(&self, pieces: &[Piece]) -> io::Result<usize> {
        sys::send_pieces(self.sender(), pieces)
    }

    /// The buffer to read into.
    #[inline]
    pub(crate) fn buffer(&mut self, pool: &RefCell<Pool>) -> &mut Buffer {
        let rest = &mut self.rest;
        self.buffer.get_or_insert_with(|| {
            let mut buffer = pool.borrow_mut().take();
            buffer.refill(&std::mem::take(rest));
            buffer
        })
    }

    /// Gives the buffer back unless whole frames are in it.
    pub(crate) fn put_away(&mut self, pool: &RefCell<Pool>) {
        if self.behind || self.hot {
            return;
        }
        if let Some(buffer) = self.buffer.take() {
            self.rest = buffer.unread().into();
            pool.borrow_mut().give(buffer);
        }
    }

    /// Bytes of memory that what was received takes.
    pub(crate) fn committed(&self) -> usize {
        self.rest.len() + self.buffer.as_ref().map_or(0, |_| BUFFER)
    }

    /// Throws away what has arrived, so that closing sends no reset after what was sent.
    pub(crate) fn discard(&mut self) {
        let mut scratch = [0u8; 4096];
        for _ in 0..1024 {
            if !matches!(sys::receive(self.receiver(), &mut scratch), Ok(n) if n > 0) {
                return;
            }
        }
    }
}

/// How a connection broke, in a status and in words.
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
                    (Status::Unreachable, "no way leads there any more")
                }
                _ => (Status::Io, "the connection is of no use any more"),
            },
        };
        Broke { status, text: format!("the connection to {peer} broke: {error}; {what}") }
    }
}
