//! A connection attempt that does not wait.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::FromRawFd;

/// Begins to connect to an address. Until the connection is there, reads return `WouldBlock`.
pub(crate) fn connect(to: &SocketAddr) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the call involves no memory.
    let fd = unsafe { libc::socket(family, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the system has just made the descriptor, and nobody else has it.
    let stream = unsafe { TcpStream::from_raw_fd(fd) };
    let code = match to {
        SocketAddr::V4(to) => {
            let address = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: to.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(to.ip().octets()) },
                sin_zero: [0; 8],
            };
            let len = size_of_val(&address) as libc::socklen_t;
            // SAFETY: the address is valid for the call, and has this length.
            unsafe { libc::connect(fd, (&raw const address).cast(), len) }
        }
        SocketAddr::V6(to) => {
            let address = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: to.port().to_be(),
                sin6_flowinfo: to.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: to.ip().octets() },
                sin6_scope_id: to.scope_id(),
            };
            let len = size_of_val(&address) as libc::socklen_t;
            // SAFETY: as above.
            unsafe { libc::connect(fd, (&raw const address).cast(), len) }
        }
    };
    let error = io::Error::last_os_error();
    match code == 0 || error.raw_os_error() == Some(libc::EINPROGRESS) {
        true => Ok(stream),
        false => Err(error),
    }
}
