//! The child of a trial.
//!
//! Between fork and `_exit` it makes system calls, and calls dlopen, dlvsym and what it finds there. In the child of a
//! process with several threads that is more than POSIX promises, and what glibc keeps: its allocator and loader are usable
//! there. Where they are not, the child hangs, is killed, and costs a "no" that lasts a day and a line that says why.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// How a trial ended.
pub(super) enum Trial {
    /// The first question was answered, whatever the answer was.
    Answered,
    /// The loader refused the file, or it is another library.
    NotLoaded,
    /// The child died.
    Ended,
    TimedOut,
}

/// This process's effective user.
pub(super) fn user() -> u32 {
    // SAFETY: it only answers.
    unsafe { libc::geteuid() }
}

/// Loads the file in a child and asks for its providers; `None`: no child can be made.
pub(super) fn attempt(file: &CStr, limit: Duration) -> Option<Trial> {
    let mut ends = [0; 2];
    // SAFETY: writes two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
        return None;
    }
    // SAFETY: two new descriptors, owned here alone.
    let (reader, writer) =
        unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    // SAFETY: the child makes only the calls that the module's documentation names.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => None,
        // SAFETY: this is the child; nothing runs after it.
        0 => unsafe { child(file, writer.as_raw_fd()) },
        _ => {
            drop(writer);
            let trial = wait(reader, limit);
            // SAFETY: our own child, which nobody else ends: where it has ended by itself it is a zombie until the second
            // call, unless the application collects all children.
            unsafe {
                let mut status = 0;
                if libc::waitpid(pid, &raw mut status, libc::WNOHANG) == 0 {
                    let _ = libc::kill(pid, libc::SIGKILL);
                    let _ = libc::waitpid(pid, &raw mut status, 0);
                }
            }
            Some(trial)
        }
    }
}

fn wait(reader: OwnedFd, limit: Duration) -> Trial {
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut poll = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one record of a live descriptor.
        let ready = unsafe { libc::poll(&raw mut poll, 1, left.as_millis() as libc::c_int) };
        if ready > 0 {
            break;
        }
        if left.is_zero() {
            return Trial::TimedOut;
        }
    }
    let mut word = [0];
    match std::fs::File::from(reader).read(&mut word) {
        Ok(1) if word == *b"y" => Trial::Answered,
        Ok(1) => Trial::NotLoaded,
        _ => Trial::Ended,
    }
}

/// Tries, answers, ends.
///
/// # Safety
/// Called in a forked child.
unsafe fn child(file: &CStr, answer: i32) -> ! {
    const ANSWER: i32 = 3;
    // SAFETY: system calls on this process's own state, and the library's functions as the parent would call them:
    // whatever comes of that ends with this process.
    unsafe {
        let _ = libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let _ = libc::setrlimit(libc::RLIMIT_CORE, &raw const no_core);
        if answer != ANSWER && libc::dup2(answer, ANSWER) < 0 {
            libc::_exit(1);
        }
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for fd in 0..3 {
            let _ = libc::dup2(null, fd);
        }
        let _ = libc::syscall(libc::SYS_close_range, (ANSWER + 1) as libc::c_uint, u32::MAX, 0);
        for signal in 1..=64 {
            let _ = libc::signal(signal, libc::SIG_DFL);
        }
        let say = |word: &[u8; 1]| libc::write(ANSWER, word.as_ptr().cast(), 1);
        let handle = libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        let getinfo = match handle.is_null() {
            true => core::ptr::null_mut(),
            false => libc::dlvsym(handle, c"fi_getinfo".as_ptr(), c"FABRIC_1.3".as_ptr()),
        };
        if getinfo.is_null() {
            let _ = say(b"n");
            libc::_exit(0);
        }
        let getinfo: unsafe extern "C" fn(
            u32,
            *const libc::c_char,
            *const libc::c_char,
            u64,
            *const libc::c_void,
            *mut *mut libc::c_void,
        ) -> libc::c_int = core::mem::transmute(getinfo);
        let (none, mut infos) = (core::ptr::null(), core::ptr::null_mut());
        let _ = getinfo(crate::abi::API, none, none, 0, core::ptr::null(), &raw mut infos);
        let _ = say(b"y");
        libc::_exit(0)
    }
}
