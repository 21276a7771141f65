//! Waiting on several descriptors, and local sockets as the standard library does not make them.

#![allow(unsafe_code)]

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Connections that may wait to be accepted: every rank of a host at once. The system has a limit of its own.
const BACKLOG: i32 = 4096;

/// Waits until one of the descriptors can be read or the time is over. `None` waits without end.
///
/// # Errors
/// What the system says.
pub(super) fn wait_readable(fds: &[RawFd], timeout: Option<Duration>) -> io::Result<()> {
    let polled = |&fd: &RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut polled: Vec<libc::pollfd> = fds.iter().map(polled).collect();
    let ms = match timeout {
        None => -1,
        // Rounded up, so that a short sleep is not a spin.
        Some(t) => i32::try_from(t.as_micros().div_ceil(1000)).unwrap_or(i32::MAX),
    };
    // SAFETY: the pointer and the count name the local vector.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, ms) };
    match io::Error::last_os_error() {
        error if ready < 0 && error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

/// The user that this process acts for.
pub(super) fn user() -> u32 {
    // SAFETY: geteuid cannot fail and touches no memory.
    unsafe { libc::geteuid() }
}

/// The user on the other end of a Unix socket, as the kernel knows it.
pub(super) fn user_of(stream: &UnixStream) -> io::Result<u32> {
    // SAFETY: all-zero is a valid ucred: three integers.
    let mut peer: libc::ucred = unsafe { zeroed() };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers name locals, and `len` is the size of the first.
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

/// Bytes that came and were not read.
pub(super) fn unread(stream: &UnixStream) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the call writes one number, which lives as long.
    check(unsafe { libc::ioctl(stream.as_raw_fd(), libc::FIONREAD, &raw mut bytes) })?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// Lets more connections wait to be accepted than the standard library does.
pub(super) fn deepen(listener: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: no pointer is passed; on a socket that listens already only the number changes.
    check(unsafe { libc::listen(listener.as_raw_fd(), BACKLOG) })
}

/// Connects to a socket of an abstract name. Where its listener accepts nobody, it is an error after `timeout`.
pub(super) fn connect_local(name: &[u8], timeout: Duration) -> io::Result<UnixStream> {
    // SAFETY: no pointer is passed.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    check(fd)?;
    // SAFETY: the descriptor was just made and is owned by nobody else.
    let stream = UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    // It bounds the wait of connect, too.
    stream.set_write_timeout(Some(timeout.max(Duration::from_millis(1))))?;
    // SAFETY: all-zero is a valid sockaddr_un: integers and bytes.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // The first byte stays 0: that is what makes the name abstract.
    let room = address.sun_path.get_mut(1..=name.len()).ok_or(io::ErrorKind::InvalidInput)?;
    for (to, from) in room.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    // SAFETY: the pointer names a local, of which the first `len` bytes are the address: `name` fits, checked above.
    check(unsafe { libc::connect(fd, (&raw const address).cast(), len as libc::socklen_t) })?;
    Ok(stream)
}

fn check(outcome: i32) -> io::Result<()> {
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// As many descriptors as this process may ask for. It never lowers the limit.
#[cfg(test)]
pub(super) fn raise_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the record is writable, then read.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
}
