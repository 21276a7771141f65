//! Opening and writing of the report's file. The signals of a failed write do not reach the program. A pipe that is reported full
//! is not waited for. No other user but root can redirect the file.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Opens a file for appending; the mode of a new file permits access by its owner only. A pipe without a reader is refused; opening
/// does not wait for a reader.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let mut options = OpenOptions::new();
    let made = options.append(true).create_new(true).mode(0o600).custom_flags(flags).open(path);
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    // In a folder that other users may write, they could redirect the output by a symbolic link. In these folders only root and
    // this process can create links.
    let is_safe = ["/dev", "/dev/fd", "/proc/self/fd"].map(|folder| Some(Path::new(folder)));
    let follow = if is_safe.contains(&path.parent()) { 0 } else { libc::O_NOFOLLOW };
    let mut options = OpenOptions::new();
    let file =
        options.append(true).custom_flags(flags | follow).open(path).map_err(
            |error| match error.raw_os_error() {
                Some(libc::ELOOP) => {
                    io::Error::other("it is a symbolic link, which is not followed")
                }
                _ => error,
            },
        )?;
    match unfit(&file)? {
        None => Ok(file),
        Some(why) => Err(io::Error::other(why)),
    }
}

/// Returns the reason that an existing file must not be written to, if there is one.
fn unfit(file: &File) -> io::Result<Option<String>> {
    let about = file.metadata()?;
    let kind = about.file_type();
    if kind.is_char_device() {
        return Ok(None);
    }
    if !kind.is_file() && !kind.is_fifo() {
        return Ok(Some("it is no file, pipe or terminal".into()));
    }
    // SAFETY: the call takes no argument and changes nothing.
    let me = unsafe { libc::geteuid() };
    Ok(match about.uid() {
        uid if uid != me && uid != 0 => {
            Some(format!("it belongs to user {uid}, and this process is user {me}'s"))
        }
        // A second name may be in a folder that others can write.
        _ if kind.is_file() && about.nlink() > 1 => Some("it has another name as well".into()),
        _ => None,
    })
}

/// Writes once, if the descriptor is reported writable. The signals of a failed write are suppressed, because the program may not
/// know that the library writes. Such a write fails because the reader of a pipe is gone or the file may not grow. A pipe that is
/// reported writable takes a whole line. If another process fills the pipe in between, or a terminal takes less, a blocking
/// descriptor blocks.
pub(super) fn write(to: &impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    let fd = to.as_fd().as_raw_fd();
    if !has_room(fd) {
        return Err(io::Error::new(io::ErrorKind::WouldBlock, "its reader is not reading"));
    }
    without_signals(bytes.len(), || {
        loop {
            // SAFETY: reads the slice.
            let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
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

/// Checks whether a write would succeed or fail immediately.
fn has_room(fd: RawFd) -> bool {
    let mut ready = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    loop {
        // SAFETY: one record that lives during the call.
        match unsafe { libc::poll(&raw mut ready, 1, 0) } {
            0 => return false,
            // An interrupting signal does not indicate whether the pipe is writable. The write reports any other error as well.
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            _ => return true,
        }
    }
}

/// Runs `work`, which writes `len` bytes, with the two signals of a failed write blocked. Discards those that the write raised in
/// this thread; a signal that was pending before stays.
fn without_signals(len: usize, work: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
    let signals = [libc::SIGPIPE, libc::SIGXFSZ];
    let mut ours = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: each call fills the set passed to it, and each reading call gets a set that an earlier call has filled.
    let (blocked, were_pending) = unsafe {
        let _ = libc::sigemptyset(ours.as_mut_ptr());
        for signal in signals {
            let _ = libc::sigaddset(ours.as_mut_ptr(), signal);
        }
        let _ = libc::sigemptyset(pending.as_mut_ptr());
        let _ = libc::sigpending(pending.as_mut_ptr());
        let were_pending = signals.map(|signal| libc::sigismember(pending.as_ptr(), signal) == 1);
        let blocked =
            libc::pthread_sigmask(libc::SIG_BLOCK, ours.as_ptr(), before.as_mut_ptr()) == 0;
        (blocked, were_pending)
    };
    let result = work();
    // If the reader closes the pipe during a blocked write, the signal arrives with a short count instead of an error.
    let brings = match &result {
        Ok(written) => *written < len,
        Err(error) => matches!(error.raw_os_error(), Some(libc::EPIPE | libc::EFBIG)),
    };
    if blocked {
        let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: sets that were filled above; nothing is written except to the sets.
        unsafe {
            for (signal, was_pending) in signals.into_iter().zip(were_pending) {
                if brings && !was_pending {
                    let _ = libc::sigemptyset(ours.as_mut_ptr());
                    let _ = libc::sigaddset(ours.as_mut_ptr(), signal);
                    let _ =
                        libc::sigtimedwait(ours.as_ptr(), std::ptr::null_mut(), &raw const none);
                }
            }
            let _ = libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks whether SIGPIPE is pending for this thread, which has blocked it. A blocked signal becomes pending even if the
    /// process ignores it.
    fn is_pending() -> bool {
        let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the first call fills the set, the second reads it.
        unsafe {
            let _ = libc::sigpending(pending.as_mut_ptr());
            libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1
        }
    }

    fn block() {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: a set that is filled before it is read; the mask belongs to this thread only.
        unsafe {
            let _ = libc::sigemptyset(set.as_mut_ptr());
            let _ = libc::sigaddset(set.as_mut_ptr(), libc::SIGPIPE);
            let _ = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
        }
    }

    fn unread(reader: &impl AsFd) -> i32 {
        let mut bytes: libc::c_int = 0;
        // SAFETY: writes one number.
        let _ = unsafe { libc::ioctl(reader.as_fd().as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
        bytes
    }

    #[test]
    fn a_reader_that_goes_while_a_write_sleeps_leaves_no_signal() {
        block();
        let (reader, writer) = pipe();
        // SAFETY: the call takes no pointer.
        let room = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_GETPIPE_SZ) };
        let going = std::thread::spawn(move || {
            // The pipe is full, and the write sleeps until the reader takes bytes.
            while unread(&reader) < room {
                std::thread::yield_now();
            }
            drop(reader);
        });
        let len = usize::try_from(room).unwrap() + 4096;
        let written = write(&writer, &vec![b'x'; len]);
        going.join().unwrap();
        assert!(written.is_ok_and(|count| count < len), "it was cut");
        assert!(!is_pending());
        assert_eq!(write(&writer, b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert!(!is_pending());
    }

    #[test]
    fn a_pipe_that_waits_for_its_reader_is_not_waited_for() {
        let (_reader, writer) = pipe();
        // The writes are whole pages, so that the last one fills the pipe.
        let written = (0..1000).take_while(|_| write(&writer, &[b'x'; 4096]).is_ok()).count();
        assert!(written < 1000);
        let error = write(&writer, b"x").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
    }

    fn pipe() -> (std::os::fd::OwnedFd, std::os::fd::OwnedFd) {
        use std::os::fd::FromRawFd;
        let mut ends = [0; 2];
        // SAFETY: the call fills both numbers with descriptors that nothing else owns.
        unsafe {
            assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
            ends.map(|end| std::os::fd::OwnedFd::from_raw_fd(end)).into()
        }
    }
}
