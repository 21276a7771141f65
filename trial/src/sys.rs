//! The child process of a trial, and the system calls of the other files.
//!
//! The trial forks instead of running a helper program, because a library cannot rely on an installed helper. Between fork and
//! `_exit` the child makes system calls and runs the attempt; nothing else. `_exit` runs no exit handlers of the application. The
//! attempt may load files and allocate: glibc makes its loader and its allocator usable in the child of a multi-threaded process. A
//! child that hangs nevertheless is killed at the time limit.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// The share of this process that the child keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// The child has no blocked signal, and gains no rights by `exec`. If the kernel has `close_range` (Linux 5.9), the child has
    /// no descriptor of this process.
    Nothing,
    /// The child keeps the descriptors of this process and its signal mask, because the attempt uses objects of this process.
    Descriptors,
}

/// The end of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The child exited with this status.
    Exited(i32),
    /// A signal ended the child.
    Killed(i32),
    /// The child did not end within the limit, and was killed.
    TimedOut,
    /// The child ended with an unknown status: another part of this process collected the status, or ignores SIGCHLD.
    Gone,
}

/// The result of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The bytes that the attempt has sent; of a long answer only the beginning.
    pub said: Vec<u8>,
    /// The end of the child.
    pub end: End,
}

/// The child's end of the pipe to its parent.
#[derive(Clone, Copy)]
pub struct Say(c_int);

impl Say {
    /// Sends bytes to the parent. A part that does not fit is lost.
    pub fn say(self, bytes: &[u8]) {
        // SAFETY: the call writes to the child's own descriptor.
        let _ = unsafe { libc::write(self.0, bytes.as_ptr().cast(), bytes.len()) };
    }

    /// Sends bytes to the parent, and ends the child.
    pub fn end(self, bytes: &[u8]) -> ! {
        self.say(bytes);
        // SAFETY: this process is the child, of which nothing else has to run.
        unsafe { libc::_exit(0) }
    }
}

/// The descriptor of the answer in a child that shares nothing.
const ANSWER: c_int = 3;
/// The length from which on further bytes of the answer are discarded.
const MOST_ANSWER: usize = 4096;
/// The first byte of the answer of a signal handler. The bytes of an attempt must not contain this byte.
const SIGNAL: u8 = 0;

/// Runs `attempt` in a forked child. The child has ended when the function returns. The kernel kills the child if the calling
/// thread ends. The child's core limit is zero, and its standard streams lead to `/dev/null`. The application's signal handlers are
/// reset in the child. Signals that the application ignores stay ignored, except those that report a crash. Before the call, the
/// caller prepares everything that needs a lock of the application or of this library.
///
/// # Errors
/// No child can be made, so nothing is known.
pub fn in_child(share: Share, limit: Duration, attempt: impl FnOnce(Say)) -> io::Result<Outcome> {
    run(share, limit, attempt, pidfd_open)
}

fn run(
    share: Share,
    limit: Duration,
    attempt: impl FnOnce(Say),
    open: fn(c_int) -> Option<OwnedFd>,
) -> io::Result<Outcome> {
    let mut ends = [0; 2];
    // SAFETY: the call writes two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptors are new and owned only here.
    let (reader, writer) =
        unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    let mut stack = vec![0u8; 64 * 1024];
    // SAFETY: the child makes only the calls that the module documentation lists.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: this is the child, whose code ends with it; the stack lives as long.
            let say = unsafe { prepare(share, writer.as_raw_fd(), &mut stack) };
            // The child never returns into this process's code, however the attempt ends.
            let ended = catch_unwind(AssertUnwindSafe(|| attempt(say)));
            // SAFETY: nothing runs after the call.
            unsafe { libc::_exit(if ended.is_ok() { 0 } else { 101 }) }
        }
        _ => {
            drop(writer);
            Ok(Child { pid, pidfd: open(pid) }.outcome(&reader, limit))
        }
    }
}

/// Prepares the state of the child. The child's output must not reach the application's output. A hanging child that shares nothing
/// must hold no descriptor of the application open.
///
/// # Safety
/// The caller is a forked child; `stack` lives as long as the child.
unsafe fn prepare(share: Share, answer: c_int, stack: &mut [u8]) -> Say {
    // SAFETY: the system calls concern the state of this process.
    unsafe {
        let _ = libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let _ = libc::setrlimit(libc::RLIMIT_CORE, &no_core);
        let mut say = Say(answer);
        if share == Share::Nothing {
            let _ = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            if answer != ANSWER && libc::dup2(answer, ANSWER) < 0 {
                libc::_exit(1);
            }
            say = Say(ANSWER);
        }
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for fd in 0..3 {
            let _ = libc::dup2(null, fd);
        }
        if share == Share::Nothing {
            let _ = libc::syscall(libc::SYS_close_range, (ANSWER + 1) as libc::c_uint, u32::MAX, 0);
        }
        signals(share, say, stack);
        say
    }
}

/// The descriptor to which the signal handler writes; used in the child alone.
static CRASHED: AtomicI32 = AtomicI32::new(-1);

/// Resets the application's signal handlers, and installs a handler that reports a crash through the pipe. The application may
/// collect the child's status itself (or ignore SIGCHLD), and then waitpid returns no status.
///
/// # Safety
/// The caller is a forked child; `stack` lives as long as the child.
unsafe fn signals(share: Share, say: Say, stack: &mut [u8]) {
    CRASHED.store(say.0, Ordering::Relaxed);
    // SAFETY: the calls change only the signal state of this process.
    unsafe {
        for signal in 1..=64 {
            let mut action: libc::sigaction = std::mem::zeroed();
            let code = libc::sigaction(signal, std::ptr::null(), &mut action);
            // Ignored signals stay ignored: a write to a closed socket, for example, must end the child no more than this process.
            if code == 0 && action.sa_sigaction != libc::SIG_IGN {
                let _ = libc::signal(signal, libc::SIG_DFL);
            }
        }
        let alternate =
            libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
        let _ = libc::sigaltstack(&alternate, std::ptr::null_mut());
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = crashed as extern "C" fn(c_int) as usize;
        action.sa_flags = libc::SA_ONSTACK | libc::SA_RESETHAND;
        for signal in
            [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT, libc::SIGSYS]
        {
            let _ = libc::sigaction(signal, &action, std::ptr::null_mut());
        }
        if share == Share::Nothing {
            let mut none: libc::sigset_t = std::mem::zeroed();
            let _ = libc::sigemptyset(&mut none);
            let _ = libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        }
    }
}

extern "C" fn crashed(signal: c_int) {
    Say(CRASHED.load(Ordering::Relaxed)).say(&[SIGNAL, signal as u8]);
    // SAFETY: _exit is async-signal-safe.
    unsafe { libc::_exit(128 + signal) }
}

/// Opens a descriptor of the child. The descriptor reports the end of the child and cannot kill another process, even if the
/// child's status was collected elsewhere.
fn pidfd_open(pid: c_int) -> Option<OwnedFd> {
    // SAFETY: the call makes a descriptor (close-on-exec) of this process's own child.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // SAFETY: the descriptor is new and owned only here.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as c_int) })
}

struct Child {
    pid: c_int,
    pidfd: Option<OwnedFd>,
}

impl Child {
    /// Waits for the answer and the end of the child, and kills the child at the deadline.
    fn outcome(self, reader: &OwnedFd, limit: Duration) -> Outcome {
        let deadline = Instant::now() + limit;
        let mut answer = Vec::new();
        let mut status = None;
        let mut open = true;
        loop {
            if open {
                open = drain(reader, &mut answer);
            }
            let ended = match &self.pidfd {
                Some(pidfd) => readable(pidfd),
                None => {
                    status = Some(self.collect(libc::WNOHANG));
                    !matches!(status, Some(None))
                }
            };
            if ended {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.kill();
                let _ = self.collect(0);
                return Outcome { said: answer, end: End::TimedOut };
            }
            // Without a pidfd, the end of a child that has closed the pipe wakes nothing up, so the loop polls at short intervals.
            let step = if self.pidfd.is_some() { left } else { left.min(Duration::from_millis(5)) };
            let mut waits = Vec::with_capacity(2);
            if open {
                waits.push(libc::pollfd {
                    fd: reader.as_raw_fd(),
                    events: libc::POLLIN,
                    revents: 0,
                });
            }
            if let Some(pidfd) = &self.pidfd {
                waits.push(libc::pollfd {
                    fd: pidfd.as_raw_fd(),
                    events: libc::POLLIN,
                    revents: 0,
                });
            }
            let step = step.as_millis().clamp(1, 60_000) as c_int;
            // SAFETY: the arguments are the array and its length. A signal ends the wait early, and the loop continues.
            let _ = unsafe { libc::poll(waits.as_mut_ptr(), waits.len() as libc::nfds_t, step) };
        }
        let _ = drain(reader, &mut answer);
        let end = status.flatten().or_else(|| self.collect(0)).unwrap_or(End::Gone);
        outcome(answer, end)
    }

    fn kill(&self) {
        // SAFETY: the signal is sent to this process's own child: by its pidfd, or by its number while its status is not collected
        // (`collect` has just reported that it runs).
        let _ = unsafe {
            match &self.pidfd {
                Some(pidfd) => libc::syscall(
                    libc::SYS_pidfd_send_signal,
                    pidfd.as_raw_fd(),
                    libc::SIGKILL,
                    std::ptr::null::<c_void>(),
                    0,
                ),
                None => i64::from(libc::kill(self.pid, libc::SIGKILL)),
            }
        };
    }

    /// Collects the child's status; the application may have done so before. `None`: the child runs.
    fn collect(&self, flags: c_int) -> Option<End> {
        loop {
            let mut status = 0;
            // SAFETY: the call waits only for this process's own child and writes one int.
            let got = unsafe { libc::waitpid(self.pid, &mut status, flags) };
            if got == self.pid {
                return Some(if libc::WIFSIGNALED(status) {
                    End::Killed(libc::WTERMSIG(status))
                } else {
                    End::Exited(libc::WEXITSTATUS(status))
                });
            }
            if got == 0 {
                return None;
            }
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return Some(End::Gone);
            }
        }
    }
}

/// Takes the answer of the signal handler out of what the child has said.
fn outcome(mut said: Vec<u8>, mut end: End) -> Outcome {
    if let [.., SIGNAL, signal] = said[..] {
        end = End::Killed(signal.into());
        said.truncate(said.len() - 2);
    }
    Outcome { said, end }
}

fn readable(fd: &OwnedFd) -> bool {
    let mut wait = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the argument is one record.
    unsafe { libc::poll(&mut wait, 1, 0) == 1 }
}

/// Reads the available bytes; `false` at end of file or after an error.
fn drain(reader: &OwnedFd, answer: &mut Vec<u8>) -> bool {
    let mut buffer = [0u8; 1024];
    loop {
        // SAFETY: the call reads into the buffer.
        let got =
            unsafe { libc::read(reader.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
        match usize::try_from(got) {
            Ok(0) => return false,
            Ok(got) if answer.len() < MOST_ANSWER => answer.extend_from_slice(&buffer[..got]),
            Ok(_) => {}
            Err(_) => match io::Error::last_os_error().kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => return true,
                _ => return false,
            },
        }
    }
}

/// The attribute that holds an access control list (acl(5)).
const ACCESS_LIST: &CStr = c"system.posix_acl_access";

/// Checks whether a file or directory has an access control list with more entries than its mode. If that is unknown, the result is
/// `true`.
pub(crate) fn has_access_list(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return true };
    // SAFETY: two strings that end with zero; nothing is written, since the buffer size is zero.
    let len =
        unsafe { libc::lgetxattr(path.as_ptr(), ACCESS_LIST.as_ptr(), std::ptr::null_mut(), 0) };
    let none = [libc::ENODATA, libc::EOPNOTSUPP, libc::ENOSYS];
    len >= 0
        || !io::Error::last_os_error().raw_os_error().is_some_and(|error| none.contains(&error))
}

/// Grants another user write access to a directory by an access control list.
#[cfg(test)]
pub(crate) fn give_access(path: &Path, user: u32) -> io::Result<()> {
    const NOBODY_SPECIAL: u32 = u32::MAX;
    // The columns are tag, rights and number; the rows are owner, this user, group, mask and others (linux/posix_acl_xattr.h).
    let entries = [
        (0x01_u16, 7_u16, NOBODY_SPECIAL),
        (0x02, 7, user),
        (0x04, 5, NOBODY_SPECIAL),
        (0x10, 7, NOBODY_SPECIAL),
        (0x20, 5, NOBODY_SPECIAL),
    ];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, number) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(number.to_le_bytes());
    }
    let path = CString::new(path.as_os_str().as_bytes())?;
    let (name, value) = (ACCESS_LIST.as_ptr(), list.as_ptr().cast());
    // SAFETY: two strings that end with zero, and a value of that length.
    let set = unsafe { libc::setxattr(path.as_ptr(), name, value, list.len(), 0) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Continues the process as this user in a user namespace without other users. The caller is a forked child, which has one thread.
#[cfg(test)]
pub(crate) fn enter_user_namespace(user: u32) -> io::Result<()> {
    let done = |code: c_int| if code < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    // SAFETY: these calls take only numbers. After the change of the user, PR_SET_DUMPABLE makes the files in /proc/self writable
    // again.
    unsafe {
        done(libc::setresuid(user, user, user))?;
        done(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0))?;
        done(libc::unshare(libc::CLONE_NEWUSER))?;
    }
    std::fs::write("/proc/self/uid_map", format!("{user} {user} 1\n"))
}

#[cfg(test)]
mod tests;
