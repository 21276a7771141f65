//! Whether a host answers at all.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// A connection to where the stream leads, begun to see whether anybody answers: an acceptance or a refusal is small. Nothing is
/// sent over it.
#[derive(Debug)]
pub(crate) struct Probe(OwnedFd);

impl Probe {
    /// Begins one, which costs three packets, and where nobody answers two.
    pub(crate) fn begin(local: Option<SocketAddr>, peer: SocketAddr) -> Option<Probe> {
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(peer), kind, Some(Protocol::TCP)).ok()?;
        if let Some(local) = local {
            // The same way as the stream's.
            let _ = socket.bind(&SocketAddr::new(local.ip(), 0).into());
        }
        match socket.connect(&peer.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => None,
            _ => Some(Probe(socket.into())),
        }
    }

    pub(crate) fn was_answered(&self) -> bool {
        let socket = SockRef::from(&self.0);
        match socket.take_error() {
            Ok(Some(error)) => error.kind() == io::ErrorKind::ConnectionRefused,
            Ok(None) => socket.peer_addr().is_ok(),
            Err(_) => false,
        }
    }
}
