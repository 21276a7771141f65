//! Waiting on several descriptors.

#![allow(unsafe_code)]

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// One descriptor to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interest {
    /// Which.
    pub(super) fd: RawFd,
    /// Whether room to write is waited for, too.
    pub(super) write: bool,
}

/// Waits until one of the descriptors can be read (or written, where that is asked for) or the time is over;
/// says which. `None` waits without end.
///
/// # Errors
/// What the system says.
pub(super) fn wait(interests: &[Interest], timeout: Option<Duration>) -> io::Result<Vec<bool>> {
    let mut polled: Vec<libc::pollfd> = interests
        .iter()
        .map(|i| {
            let events = libc::POLLIN | if i.write { libc::POLLOUT } else { 0 };
            libc::pollfd { fd: i.fd, events, revents: 0 }
        })
        .collect();
    let ms = match timeout {
        None => -1,
        // Rounded up, so that a short sleep is not a spin.
        Some(t) => i32::try_from(t.as_micros().div_ceil(1000)).unwrap_or(i32::MAX),
    };
    // SAFETY: the pointer and the count name the local vector.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, ms) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
        return Ok(vec![false; interests.len()]);
    }
    Ok(polled.iter().map(|p| p.revents != 0).collect())
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
