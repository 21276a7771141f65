//! Child processes that end with their parent or are stopped, and the signal of a broken pipe.

#![allow(unsafe_code)]

use core::mem::zeroed;
use core::ptr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// Makes the program of `command` end when the thread that starts it ends, or its process.
pub(crate) fn dies_with_us(command: &mut Command) -> &mut Command {
    let parent = std::process::id();
    let before_exec = move || {
        // SAFETY: PR_SET_PDEATHSIG takes a signal number by value and touches no memory.
        if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: getppid cannot fail and touches no memory.
        match unsafe { libc::getppid() } as u32 == parent {
            true => Ok(()),
            false => Err(io::ErrorKind::BrokenPipe.into()), // the parent ended before the line above
        }
    };
    // SAFETY: the closure runs between fork and exec: it makes two system calls and neither allocates nor locks.
    unsafe { command.pre_exec(before_exec) }
}

/// Prints a line and ends the process, without the exit handlers of a provider.
pub(crate) fn end(line: &str) {
    let line = format!("{}\n", line.replace('\n', " "));
    // SAFETY: the bytes are borrowed for the call; nothing runs after _exit.
    unsafe {
        let _ = libc::write(1, line.as_ptr().cast(), line.len());
        libc::_exit(0)
    }
}

pub(crate) fn stop(child: &Child) {
    // SAFETY: the child was not waited for, so the number still belongs to it.
    let _ = unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGSTOP) };
}

/// A watch for writes of this thread to a closed peer, which a C program would notice by a signal.
pub(crate) struct Broken(());

impl Broken {
    pub(crate) fn watched() -> Broken {
        // SAFETY: the default action is no function of this program; the signal is blocked before it could arrive.
        unsafe {
            let _ = libc::pthread_sigmask(libc::SIG_BLOCK, &sigpipe(), ptr::null_mut());
            let _ = libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        }
        Broken(())
    }

    pub(crate) fn raised(&self) -> bool {
        // SAFETY: the call fills in the set; all-zero is the empty set.
        unsafe {
            let mut set: libc::sigset_t = zeroed();
            libc::sigpending(&mut set) == 0 && libc::sigismember(&set, libc::SIGPIPE) == 1
        }
    }
}

fn sigpipe() -> libc::sigset_t {
    // SAFETY: all-zero is the empty set on Linux, and the signal exists.
    unsafe {
        let mut set: libc::sigset_t = zeroed();
        let _ = libc::sigaddset(&mut set, libc::SIGPIPE);
        set
    }
}
