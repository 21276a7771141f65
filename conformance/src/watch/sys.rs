//! Processes that end with whoever started them.

#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes the program that `command` will start end with this process, whatever that ends of.
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

/// Prints a line and ends the process, without what a provider has registered for its end.
pub(crate) fn end(line: &str) {
    let line = format!("{}\n", line.replace('\n', " "));
    // SAFETY: the bytes are borrowed for the call; nothing runs behind _exit.
    unsafe {
        let _ = libc::write(1, line.as_ptr().cast(), line.len());
        libc::_exit(0)
    }
}
