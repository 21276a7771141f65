//! Opening and writing, so that neither a signal nor a reader that does not read can hold up or end the program.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A file that appends; a pipe without a reader is refused instead of waited for.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    OpenOptions::new().append(true).create(true).custom_flags(flags).open(path)
}

/// One write. Signals that a failed one would bring (the reader of a pipe is gone, the file may not grow) are kept from the program,
/// which may not know that it writes at all.
pub(super) fn write(to: &impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    without_signals(|| {
        loop {
            // SAFETY: reads the slice.
            let written =
                unsafe { libc::write(to.as_fd().as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
            match usize::try_from(written) {
                Ok(written) => return Ok(written),
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
    })
}

/// Runs `work` with the two signals of a failed write blocked, and takes those that it has brought to this thread.
fn without_signals(work: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
    let mut ours = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: each call fills the set that it is given, and the ones that read get a set that one has filled.
    let (blocked, were_pending) = unsafe {
        let _ = libc::sigemptyset(ours.as_mut_ptr());
        let _ = libc::sigaddset(ours.as_mut_ptr(), libc::SIGPIPE);
        let _ = libc::sigaddset(ours.as_mut_ptr(), libc::SIGXFSZ);
        let _ = libc::sigemptyset(pending.as_mut_ptr());
        let _ = libc::sigpending(pending.as_mut_ptr());
        let were_pending = [libc::SIGPIPE, libc::SIGXFSZ]
            .map(|signal| libc::sigismember(pending.as_ptr(), signal) == 1);
        let blocked =
            libc::pthread_sigmask(libc::SIG_BLOCK, ours.as_ptr(), before.as_mut_ptr()) == 0;
        (blocked, were_pending)
    };
    let result = work();
    let signal = match result.as_ref().err().and_then(io::Error::raw_os_error) {
        Some(libc::EPIPE) if !were_pending[0] => Some(libc::SIGPIPE),
        Some(libc::EFBIG) if !were_pending[1] => Some(libc::SIGXFSZ),
        _ => None,
    };
    if blocked {
        let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: sets that were filled above; nothing is written but to the sets.
        unsafe {
            if let Some(signal) = signal {
                let _ = libc::sigemptyset(ours.as_mut_ptr());
                let _ = libc::sigaddset(ours.as_mut_ptr(), signal);
                let _ = libc::sigtimedwait(ours.as_ptr(), std::ptr::null_mut(), &raw const none);
            }
            let _ = libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        }
    }
    result
}
