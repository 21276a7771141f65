//! The child process that tries a provider file, and other system calls.
//!
//! The trial forks instead of running a helper program, because a library cannot rely on an installed helper. Between fork and
//! `_exit` the child makes system calls and calls dlopen, dladdr, the file's entry function, the functions that open its domains,
//! and its finalizers; nothing else. The application's exit handlers do not run. dlopen takes the loader's lock and allocates;
//! glibc makes both usable in the child of a multi-threaded process. Everything else is prepared before the fork. No other thread
//! has used the host table that the entry function gets, so none of its locks is held. The constructors and the entry function of
//! the file may do anything, and the child process contains their effects.

#![allow(unsafe_code)]

use super::abi::trial;
use super::abi::watched::Broke;
use super::room::Room;
use std::ffi::{CStr, CString, c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};
use tieline_plugin_api::abi::{EntryFn, Host};

/// The attribute that holds an access control list (acl(5)).
const ACCESS_LIST: &CStr = c"system.posix_acl_access";

/// Checks whether an access control list grants rights to users other than a file's owner, its group and the others of its mode. If
/// that is unknown, the result is `true`.
pub(super) fn has_access_list(path: &Path) -> bool {
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
pub(super) fn give_access(path: &Path, user: u32) -> io::Result<()> {
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
pub(super) fn enter_user_namespace(user: u32) -> io::Result<()> {
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

/// The identity of a file in the mappings of a process. Its numbers may differ from those of stat (overlayfs, btrfs).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MappedFile(String);

impl std::fmt::Display for MappedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "device and inode {}", self.0)
    }
}

/// Returns the file that is mapped at an address; `None` without /proc, or if no file is mapped there.
pub(super) fn file_at(address: *const c_void) -> Option<MappedFile> {
    mapped_at(&std::fs::read("/proc/self/maps").ok()?, address as usize)
}

/// Searches mappings in the form `start-end rights offset device inode path`, one line each.
fn mapped_at(maps: &[u8], address: usize) -> Option<MappedFile> {
    maps.split(|&byte| byte == b'\n').find_map(|line| {
        let line = String::from_utf8_lossy(line);
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let inside = (number(start)?..number(end)?).contains(&address);
        let (device, inode) = (words.nth(2)?, words.next()?);
        (inside && inode != "0").then(|| MappedFile(format!("{device} {inode}")))
    })
}

/// Returns the identity that an open file has in the mappings.
pub(super) fn as_mapped(file: &File) -> Option<MappedFile> {
    const LEN: usize = 1;
    // SAFETY: a new mapping of one page, which nothing reads and which is unmapped before this returns.
    unsafe {
        let (none, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        let page = libc::mmap(none, LEN, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0);
        if page == libc::MAP_FAILED {
            return None;
        }
        let mapped = file_at(page);
        let _ = libc::munmap(page, LEN);
        mapped
    }
}

/// The step at which the child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// dlopen, and with it the file's constructors.
    Loading,
    /// The entry function.
    Starting,
    /// The listing, opening and closing of the file's domains.
    Opening,
    /// The finalizers of the file.
    Ending,
}

/// The result of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trial {
    /// The file loaded and has the symbol, and the entry function returned, with any status.
    Ran,
    /// The loader refused, with this text.
    Refused(String),
    /// The file loaded and lacks the symbol.
    NoSymbol,
    /// It loaded, and the symbol is that of another object.
    ForeignSymbol,
    /// A function of the file has changed what its caller keeps.
    Broke(Step, Broke),
    /// A signal ended the child.
    Killed(Step, i32),
    /// The child exited with this status before it answered.
    Exited(Step, i32),
    /// The child ended without an answer, and another part of the process collected its status.
    Vanished(Step),
    /// The child did not answer within the limit.
    TimedOut(Step),
    /// Another thread was loading a file at the fork, so the child did not use its loader.
    Disturbed,
}

/// The arguments of the entry function in the child.
pub(super) struct Call {
    pub(super) host: &'static Host,
    pub(super) room: Box<Room>,
}

/// The descriptor to which the child writes its answer.
const ANSWER: c_int = 3;

/// Loads `path` in a child process and calls its entry function `symbol`. The child has ended when the function returns. No other
/// code uses `call.host`.
pub(super) fn try_file(
    path: &CStr,
    symbol: &CStr,
    call: &mut Call,
    limit: Duration,
) -> io::Result<Trial> {
    try_with(path, symbol, Some(call), limit, pidfd_open)
}

fn try_with(
    path: &CStr,
    symbol: &CStr,
    call: Option<&mut Call>,
    limit: Duration,
    open: fn(c_int) -> Option<OwnedFd>,
) -> io::Result<Trial> {
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
            // SAFETY: this is the child; nothing runs after it.
            unsafe { child(path, symbol, call, writer.as_raw_fd(), &mut stack) }
        }
        _ => {
            drop(writer);
            Ok(Child { pid, pidfd: open(pid) }.answer(&reader, limit))
        }
    }
}

/// Tries the file, answers and ends the process, in the forked child.
///
/// # Safety
/// The caller is a forked child.
unsafe fn child(
    path: &CStr,
    symbol: &CStr,
    call: Option<&mut Call>,
    answer: c_int,
    stack: &mut [u8],
) -> ! {
    // SAFETY: system calls on the state of this process, dlopen, and a call of the symbol as the parent would make it. Any damage
    // ends with this process.
    unsafe {
        let _ = libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let _ = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let _ = libc::setrlimit(libc::RLIMIT_CORE, &no_core);
        // The answer gets its own descriptor number. All other descriptors are closed or replaced: a hanging child must hold no
        // descriptor of the application open, and output of a constructor must not reach the application's output.
        if answer != ANSWER && libc::dup2(answer, ANSWER) < 0 {
            libc::_exit(1);
        }
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for fd in 0..3 {
            let _ = libc::dup2(null, fd);
        }
        let _ = libc::syscall(libc::SYS_close_range, (ANSWER + 1) as libc::c_uint, u32::MAX, 0);
        default_signals(stack);
        if super::load::in_progress() {
            say(b"W");
            libc::_exit(0)
        }
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if handle.is_null() {
            let text = libc::dlerror();
            say(b"E");
            if !text.is_null() {
                say(CStr::from_ptr(text).to_bytes());
            }
            libc::_exit(0)
        }
        let entry = libc::dlsym(handle, symbol.as_ptr());
        if entry.is_null() {
            say(b"M");
            libc::_exit(0)
        }
        // The parent looks the address up, too: the loader then reads the tables of the file's symbols.
        let is_whole = call.is_some();
        if !super::objects::defined_in(handle, entry) {
            say(b"F");
            libc::_exit(0)
        }
        say(b"L");
        if let Some(Call { host, room }) = call {
            let entry: EntryFn = std::mem::transmute(entry);
            let started = trial::start(entry, host, room);
            let started = started.unwrap_or_else(|broke| say_broke(broke));
            say(b"D");
            if started {
                trial::open_and_close(&room.ops).unwrap_or_else(|broke| say_broke(broke));
            }
        }
        say(b"Q");
        if is_whole {
            super::objects::run_finalizers(handle).unwrap_or_else(|broke| say_broke(broke));
        }
        say(b"R");
        libc::_exit(0)
    }
}

/// Answers that a function has changed what its caller keeps, and ends the child.
fn say_broke(broke: Broke) -> ! {
    // SAFETY: in the child, with its own descriptor.
    unsafe {
        say(&[b'B', broke.letter()]);
        libc::_exit(0)
    }
}

unsafe fn say(bytes: &[u8]) {
    // SAFETY: the call writes to the child's own descriptor; a part that does not fit is lost.
    let _ = unsafe { libc::write(ANSWER, bytes.as_ptr().cast(), bytes.len()) };
}

/// Resets the application's signal handlers, and reports the signal that ends the child through the pipe. The application may
/// collect the child's status itself (or ignore SIGCHLD), and then waitpid returns no status.
///
/// # Safety
/// The caller is a forked child; `stack` lives as long as the child.
unsafe fn default_signals(stack: &mut [u8]) {
    // SAFETY: the calls change only the signal state of this process.
    unsafe {
        for signal in 1..=64 {
            let _ = libc::signal(signal, libc::SIG_DFL);
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
        let mut none: libc::sigset_t = std::mem::zeroed();
        let _ = libc::sigemptyset(&mut none);
        let _ = libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
}

extern "C" fn crashed(signal: c_int) {
    // SAFETY: write and _exit are async-signal-safe.
    unsafe {
        say(&[b'S', signal as u8]);
        libc::_exit(128 + signal)
    }
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
    fn answer(self, reader: &OwnedFd, limit: Duration) -> Trial {
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
                    !matches!(status, Some(Collected::Running))
                }
            };
            if ended {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.kill();
                let _ = self.collect(0);
                return Trial::TimedOut(step_of(&answer).0);
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
        let status = match status {
            Some(known) => known,
            None => self.collect(0),
        };
        verdict(&answer, &status)
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

    /// Collects the child's status; the application may have done so before.
    fn collect(&self, flags: c_int) -> Collected {
        loop {
            let mut status = 0;
            // SAFETY: the call waits only for this process's own child and writes one int.
            let got = unsafe { libc::waitpid(self.pid, &mut status, flags) };
            if got == self.pid {
                return if libc::WIFSIGNALED(status) {
                    Collected::Killed(libc::WTERMSIG(status))
                } else {
                    Collected::Exited(libc::WEXITSTATUS(status))
                };
            }
            if got == 0 {
                return Collected::Running;
            }
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return Collected::Gone;
            }
        }
    }
}

enum Collected {
    Running,
    Exited(i32),
    Killed(i32),
    Gone,
}

/// Returns the step that the child had begun when it wrote this answer, and the rest of the answer.
fn step_of(answer: &[u8]) -> (Step, &[u8]) {
    match answer {
        [b'L', b'D', b'Q', rest @ ..] | [b'L', b'Q', rest @ ..] => (Step::Ending, rest),
        [b'L', b'D', rest @ ..] => (Step::Opening, rest),
        [b'L', rest @ ..] => (Step::Starting, rest),
        _ => (Step::Loading, answer),
    }
}

fn verdict(answer: &[u8], status: &Collected) -> Trial {
    let (step, said) = step_of(answer);
    if let Some(broke) = said.strip_prefix(b"B").and_then(Broke::from_answer) {
        return Trial::Broke(step, broke);
    }
    match (said, status) {
        ([b'S', signal], _) => Trial::Killed(step, i32::from(*signal)),
        ([b'R'], Collected::Exited(0) | Collected::Gone) if step == Step::Ending => Trial::Ran,
        ([b'W'], Collected::Exited(0) | Collected::Gone) => Trial::Disturbed,
        ([b'M'], Collected::Exited(0) | Collected::Gone) => Trial::NoSymbol,
        ([b'F'], Collected::Exited(0) | Collected::Gone) => Trial::ForeignSymbol,
        ([b'E', text @ ..], _) => Trial::Refused(String::from_utf8_lossy(text).into_owned()),
        (_, Collected::Killed(signal)) => Trial::Killed(step, *signal),
        (_, Collected::Exited(status)) => Trial::Exited(step, *status),
        _ => Trial::Vanished(step),
    }
}

fn readable(fd: &OwnedFd) -> bool {
    let mut wait = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the argument is one record.
    unsafe { libc::poll(&mut wait, 1, 0) == 1 }
}

/// Reads the available bytes; `false` at end of file.
fn drain(reader: &OwnedFd, answer: &mut Vec<u8>) -> bool {
    let mut buffer = [0u8; 1024];
    loop {
        // SAFETY: the call reads into the buffer.
        let got =
            unsafe { libc::read(reader.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
        match usize::try_from(got) {
            Ok(0) => return false,
            Ok(got) if answer.len() < 4096 => answer.extend_from_slice(&buffer[..got]),
            Ok(_) => {}
            Err(_) => match io::Error::last_os_error().kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => return true,
                _ => return false,
            },
        }
    }
}

#[cfg(test)]
mod tests;
