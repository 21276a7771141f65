//! The child of a trial.
//!
//! Between fork and `_exit` the child makes system calls, and calls dlopen, dlvsym and the functions of the library, or moves data
//! over a device (`selftest`). In the child of a multi-threaded process, POSIX does not allow that, but glibc does: its allocator
//! and its loader are usable there. If they are not, the child hangs and is killed, and the trial's result is a "no" with a line
//! that explains it.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// The result of a trial.
pub(super) enum Trial {
    /// The first query was answered, whatever the answer was, or a device was opened.
    Answered,
    /// Nothing was tried: the loader refused the file, it is another library, or the device cannot be opened.
    NothingDone,
    /// The child died, by a signal if that is known.
    Ended(Option<i32>),
    TimedOut,
}

/// Returns this process's effective user.
pub(super) fn user() -> u32 {
    // SAFETY: the call only returns a number.
    unsafe { libc::geteuid() }
}

/// Loads the file in a child and queries its providers. Returns `None` if no child can be made.
pub(super) fn attempt(file: &CStr, limit: Duration) -> Option<Trial> {
    // SAFETY: the function runs in a child, as required.
    in_child(limit, |answer| unsafe { child(file, answer) })
}

/// Runs `act` in a child and returns whether it succeeded; `None` if no child can be made. The child inherits this process's
/// descriptors, because the library uses them.
pub(super) fn attempt_here(act: impl FnOnce() -> bool, limit: Duration) -> Option<Trial> {
    in_child(limit, |answer| {
        // SAFETY: the system calls concern the child's own state.
        unsafe {
            prepare();
            // The child never returns into this process's code, however `act` ends.
            if let Ok(done) = catch_unwind(AssertUnwindSafe(act)) {
                let word = if done { b"y" } else { b"n" };
                let _ = libc::write(answer, word.as_ptr().cast(), 1);
            }
            libc::_exit(0)
        }
    })
}

fn in_child(limit: Duration, act: impl FnOnce(i32)) -> Option<Trial> {
    let mut ends = [0; 2];
    // SAFETY: the call writes two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
        return None;
    }
    // SAFETY: the two descriptors are new and have no other owner.
    let (reader, writer) =
        unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    // SAFETY: the child makes only the calls that the module's documentation lists.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => None,
        0 => {
            act(writer.as_raw_fd());
            // SAFETY: this process is the child; nothing runs after the call.
            unsafe { libc::_exit(1) }
        }
        _ => {
            drop(writer);
            let trial = wait(reader, limit);
            let status = collect(pid, matches!(trial, Trial::Ended(_)));
            let signal = status.filter(|status| libc::WIFSIGNALED(*status));
            Some(match trial {
                Trial::Ended(_) => Trial::Ended(signal.map(|status| libc::WTERMSIG(status))),
                other => other,
            })
        }
    }
}

/// Kills a child and reaps it. Returns how the child ended, unless the application reaps all children. `ending` states whether the
/// child has closed its end of the pipe, which usually is the last action of an exiting process.
fn collect(pid: libc::pid_t, ending: bool) -> Option<i32> {
    let until = Instant::now() + if ending { Duration::from_secs(1) } else { Duration::ZERO };
    let mut status = 0;
    // SAFETY: the child belongs to this code, and no other code kills it. If it has exited, it is a zombie until it is reaped.
    unsafe {
        loop {
            match libc::waitpid(pid, &raw mut status, libc::WNOHANG) {
                0 if Instant::now() < until => {
                    let _ = libc::sched_yield();
                }
                0 => {
                    let _ = libc::kill(pid, libc::SIGKILL);
                    return (libc::waitpid(pid, &raw mut status, 0) == pid).then_some(status);
                }
                found => return (found == pid).then_some(status),
            }
        }
    }
}

fn wait(reader: OwnedFd, limit: Duration) -> Trial {
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut poll = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `poll` is one record of a live descriptor.
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
        Ok(1) => Trial::NothingDone,
        _ => Trial::Ended(None),
    }
}

/// Does the first steps of the child: it ends with its parent, dumps no core and prints nothing, and none of the application's
/// signal handlers run in it.
///
/// # Safety Called in a forked child.
unsafe fn prepare() {
    // SAFETY: the system calls concern this process's own state.
    unsafe {
        let _ = libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let _ = libc::setrlimit(libc::RLIMIT_CORE, &raw const no_core);
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for fd in 0..3 {
            let _ = libc::dup2(null, fd);
        }
        for signal in 1..=64 {
            let mut action: libc::sigaction = core::mem::zeroed();
            let code = libc::sigaction(signal, core::ptr::null(), &raw mut action);
            // Ignored signals stay ignored: an early close of a socket must end neither process.
            if code == 0 && action.sa_sigaction != libc::SIG_IGN {
                let _ = libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
}

/// Runs the trial, reports the result, and exits.
///
/// # Safety Called in a forked child.
unsafe fn child(file: &CStr, answer: i32) -> ! {
    const ANSWER: i32 = 3;
    // SAFETY: the system calls concern this process's own state, and the library's functions are called as the parent would call
    // them. Damage that a call does to memory ends with this child process.
    unsafe {
        if answer != ANSWER && libc::dup2(answer, ANSWER) < 0 {
            libc::_exit(1);
        }
        prepare();
        let _ = libc::syscall(libc::SYS_close_range, (ANSWER + 1) as libc::c_uint, u32::MAX, 0);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_ignores_what_this_process_ignores_and_has_no_handler_of_it() {
        // Rust programs ignore SIGPIPE, and have a handler for SIGSEGV.
        for (signal, ends) in [(libc::SIGPIPE, false), (libc::SIGSEGV, true)] {
            let raise = || {
                // SAFETY: the signal ends the child at most.
                unsafe { libc::raise(signal) == 0 }
            };
            let trial = attempt_here(raise, Duration::from_secs(20));
            let ended = matches!(trial, Some(Trial::Ended(by)) if by == Some(signal));
            assert_eq!((ended, matches!(trial, Some(Trial::Answered))), (ends, !ends), "{signal}");
        }
    }
}
