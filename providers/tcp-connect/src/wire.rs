//! One connection to a peer: writes the bytes that the socket accepts, and reads frames.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};

use tieline_net::Interest;
use tieline_net::datagrams::Note;

use crate::frame::{Frame, Reader, put_datagram, put_note};

/// A connection.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    /// The remote address, read when the connection is made: a broken connection does not return the address any more.
    at: Option<SocketAddr>,
    /// Whether this side ends its direction once everything is written.
    pub(crate) finishing: bool,
    /// The events for which the connection is watched.
    pub(crate) watched: Option<Interest>,
    /// The reason why nothing can be written any more. Earlier data of the peer is still read.
    pub(crate) failed: Option<String>,
    reader: Reader,
    out: Vec<u8>,
    sent: usize,
}

/// The result of a read.
pub(crate) enum Arrival {
    /// The frames that a read completed, perhaps none; the socket may hold more bytes.
    Frames(Vec<Frame>),
    /// No data is available at present.
    Quiet,
    /// The peer has closed its sending direction.
    End,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Wire {
        Wire {
            at: stream.peer_addr().ok(),
            stream,
            finishing: false,
            watched: None,
            failed: None,
            reader: Reader::default(),
            out: Vec::new(),
            sent: 0,
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Returns the address of the other end, as text.
    pub(crate) fn at(&self) -> String {
        self.at.map_or_else(|| "an address that broke at once".into(), |at| at.to_string())
    }

    pub(crate) fn put(&mut self, datagram: &[u8]) {
        put_datagram(&mut self.out, datagram);
    }

    pub(crate) fn note(&mut self, note: Note) {
        put_note(&mut self.out, note);
    }

    /// Returns the bytes that the socket has not accepted yet.
    pub(crate) fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Writes until everything is sent, the socket is full, or a write fails.
    pub(crate) fn write(&mut self) {
        while self.unsent() > 0 {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    self.failed = Some(error.to_string());
                    break;
                }
            }
        }
        self.out = Vec::new(); // an idle connection holds no buffer
        self.sent = 0;
    }

    /// Ends the sending direction.
    pub(crate) fn end(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Reads once.
    pub(crate) fn read(&mut self, scratch: &mut [u8]) -> Result<Arrival, String> {
        let mut bytes = loop {
            match self.stream.read(scratch) {
                Ok(0) => return Ok(Arrival::End),
                Ok(count) => break &scratch[..count],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Arrival::Quiet);
                }
                Err(error) => return Err(error.to_string()),
            }
        };
        let mut frames = Vec::new();
        while let Some(frame) = self.reader.next(&mut bytes)? {
            frames.push(frame);
        }
        Ok(Arrival::Frames(frames))
    }

    /// Sends a goodbye if the socket accepts it. Up to 64 reads discard data from the peer: if that data stayed unread, the kernel
    /// would break the connection before the peer has read this side's data.
    pub(crate) fn leave(mut self, scratch: &mut [u8]) {
        self.note(Note::Gone);
        self.write();
        self.end();
        for _ in 0..64 {
            match self.stream.read(scratch) {
                Ok(count) if count > 0 => {}
                _ => return,
            }
        }
    }
}
