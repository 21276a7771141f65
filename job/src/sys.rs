//! Waiting on several descriptors, and local sockets beyond the standard library.

#![allow(unsafe_code)]

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The length of the queue of connections to accept: all ranks of a host may connect at the same time. The system has its own
/// limit.
const BACKLOG: i32 = 4096;

/// Waits until one of the descriptors is readable or the timeout has passed. `None` means no timeout.
///
/// # Errors
/// Returns the system's error.
pub(super) fn wait_readable(fds: &[RawFd], timeout: Option<Duration>) -> io::Result<()> {
    let polled = |&fd: &RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut polled: Vec<libc::pollfd> = fds.iter().map(polled).collect();
    let ms = match timeout {
        None => -1,
        // The time is rounded up, so that a short sleep does not become a busy loop.
        Some(t) => i32::try_from(t.as_micros().div_ceil(1000)).unwrap_or(i32::MAX),
    };
    // SAFETY: the pointer and the count are those of the local vector.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, ms) };
    match io::Error::last_os_error() {
        error if ready < 0 && error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

/// Returns the effective user of this process.
pub(super) fn user() -> u32 {
    // SAFETY: geteuid cannot fail and touches no memory.
    unsafe { libc::geteuid() }
}

/// Returns the user at the other end of a Unix socket, as the kernel reports it.
pub(super) fn user_of(stream: &UnixStream) -> io::Result<u32> {
    // SAFETY: all-zero is a valid ucred: three integers.
    let mut peer: libc::ucred = unsafe { zeroed() };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers are those of local variables, and `len` is the size of the first.
    let outcome = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &mut len,
        )
    };
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(peer.uid) }
}

/// Returns the number of received bytes that were not read.
pub(super) fn unread(stream: &UnixStream) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the call writes one number, to a local variable.
    check(unsafe { libc::ioctl(stream.as_raw_fd(), libc::FIONREAD, &raw mut bytes) })?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// Sets an accept queue that is longer than the standard library's.
pub(super) fn deepen(listener: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: no pointer is passed; on a listening socket, the call changes only the length of the queue.
    check(unsafe { libc::listen(listener.as_raw_fd(), BACKLOG) })
}

/// Connects to a socket with an abstract name. If its listener does not accept, the call fails after `timeout`.
pub(super) fn connect_local(name: &[u8], timeout: Duration) -> io::Result<UnixStream> {
    // SAFETY: no pointer is passed.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    check(fd)?;
    // SAFETY: the descriptor was made above and has no other owner.
    let stream = UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    // The write timeout also limits the wait of connect.
    stream.set_write_timeout(Some(timeout.max(Duration::from_millis(1))))?;
    // SAFETY: all-zero is a valid sockaddr_un: integers and bytes.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // The first byte stays 0, which makes the name abstract.
    let room = address.sun_path.get_mut(1..=name.len()).ok_or(io::ErrorKind::InvalidInput)?;
    for (to, from) in room.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    // SAFETY: the pointer is that of a local variable whose first `len` bytes are the address; the code above has checked that
    // `name` fits.
    check(unsafe { libc::connect(fd, (&raw const address).cast(), len as libc::socklen_t) })?;
    Ok(stream)
}

fn check(outcome: i32) -> io::Result<()> {
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
