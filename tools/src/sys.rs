//! The system calls that the standard library has no safe name for.
#![allow(unsafe_code)]

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;

/// Runs the calling thread on one processor only.
pub(crate) fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: all-zero is a valid cpu_set_t: it is an array of integers.
    let mut set: libc::cpu_set_t = unsafe { zeroed() };
    if cpu >= 8 * size_of::<libc::cpu_set_t>() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: `cpu` lies inside the set: checked above.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the pointer and the size name the local set; pid 0 is the calling thread.
    check(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) })
}

/// How often this process had to leave a processor although it could have gone on.
pub(crate) fn preemptions() -> u64 {
    // SAFETY: a record of integers, for which zeros are a value; the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = zeroed();
        let _ = libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    u64::try_from(usage.ru_nivcsw).unwrap_or(0)
}

/// How wide a text for people may be: the terminal's width, or what `COLUMNS` says where there is none, up to 100.
pub(crate) fn width() -> usize {
    // SAFETY: a record of integers, for which zeros are a value; the call fills it, or fails.
    let columns = unsafe {
        let mut size: libc::winsize = zeroed();
        let done = libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size);
        if done == 0 { usize::from(size.ws_col) } else { 0 }
    };
    let said = || std::env::var("COLUMNS").ok()?.parse().ok();
    Some(columns).filter(|columns| *columns > 0).or_else(said).unwrap_or(100).clamp(40, 100)
}

/// Ticks of the kernel's clock in a second, in which `/proc/stat` counts.
pub(crate) fn ticks_per_second() -> u64 {
    // SAFETY: no pointers.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100).max(1)
}

/// Makes the program that `command` will start end with this process, with no signal blocked and the limit of open
/// files that this process was given, and pins it if a processor is given.
pub(crate) fn tie(command: &mut Command, cpu: Option<usize>) {
    let parent = std::process::id();
    let files = GIVEN.get().copied();
    let before_exec = move || {
        // SAFETY: PR_SET_PDEATHSIG takes a signal number by value and touches no memory.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
        // SAFETY: getppid cannot fail and touches no memory.
        if unsafe { libc::getppid() } as u32 != parent {
            return Err(io::ErrorKind::BrokenPipe.into()); // the parent ended before the line above
        }
        // Signals that this process blocks for `Signals` would stay blocked in the program. SAFETY: all-zero is the empty set on
        // Linux, and the old mask is not asked for.
        let failed = unsafe {
            let none: libc::sigset_t = zeroed();
            libc::pthread_sigmask(libc::SIG_SETMASK, &none, std::ptr::null_mut())
        };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        if let Some(limit) = &files {
            // SAFETY: the pointer names a value that the closure owns.
            check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) })?;
        }
        cpu.map_or(Ok(()), pin)
    };
    // SAFETY: the closure runs between fork and exec: it makes five system calls and neither allocates nor
    // locks (the errors that it can return are made without allocation).
    let _ = unsafe { command.pre_exec(before_exec) };
}

/// The limit of open files that this process was given, once it has raised its own.
static GIVEN: OnceLock<libc::rlimit> = OnceLock::new();

/// Lets this process open as many files as it may: a launcher has some for each rank. Programs that it starts keep the earlier
/// limit.
pub(crate) fn raise_open_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer names a local.
    if check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }).is_ok() {
        let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
        // SAFETY: as above.
        if check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) }).is_ok() {
            let _ = GIVEN.set(limit);
        }
    }
}

/// Makes processes that lose their parent, anywhere below this one, children of this one.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    // SAFETY: the call takes numbers by value and touches no memory.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) })
}

/// The result of [`next_dead`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dead {
    /// This child has ended and waits to be collected.
    Pid(u32),
    /// None has.
    None,
    /// There is no child at all.
    NoChild,
}

/// A child that has ended, without collecting it.
pub(crate) fn next_dead() -> Dead {
    // SAFETY: all-zero is a valid siginfo_t.
    let mut info: libc::siginfo_t = unsafe { zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the pointer names a local.
    match check(unsafe { libc::waitid(libc::P_ALL, 0, &mut info, options) }) {
        Err(e) if e.raw_os_error() == Some(libc::ECHILD) => Dead::NoChild,
        Err(_) => Dead::None,
        // SAFETY: waitid fills this member in, and leaves it 0 where nothing has ended.
        Ok(()) => match unsafe { info.si_pid() } {
            0 => Dead::None,
            pid => Dead::Pid(pid as u32),
        },
    }
}

/// Collects a child that has ended.
pub(crate) fn collect(pid: u32) {
    // SAFETY: no status is asked for; the pid is that of one child.
    let _ = unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), libc::WNOHANG) };
}

/// Makes writes to this pipe return instead of waiting.
pub(crate) fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: no pointer is passed.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    check(flags)?;
    // SAFETY: as above.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) })
}

/// Sends a signal to one process.
pub(crate) fn kill(pid: u32, signal: i32) -> io::Result<()> {
    let pid = i32::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: kill touches no memory of ours; `pid` is positive and so names one process.
    check(unsafe { libc::kill(pid, signal) })
}

/// A signal that a [`Signals`] handed over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signal {
    pub(crate) number: i32,
    /// The terminal sent it: every process of the foreground group has it already.
    pub(crate) from_terminal: bool,
}

/// Signals as a descriptor: blocked for this thread and those it starts, and read when it suits.
pub(crate) struct Signals(OwnedFd);

impl Signals {
    /// Takes these signals over, and SIGCHLD. To be called before any thread is started. One that the parent had this
    /// process ignore stays ignored (`nohup`, a shell's background job); but the ends of children are needed.
    pub(crate) fn take(numbers: &[i32]) -> io::Result<Signals> {
        // SAFETY: all-zero is a valid sigaction: no handler (SIG_DFL), no flags, the empty set.
        let usual: libc::sigaction = unsafe { zeroed() };
        // SAFETY: the pointer names a local, and the old action is not asked for.
        check(unsafe { libc::sigaction(libc::SIGCHLD, &usual, std::ptr::null_mut()) })?;
        let numbers = numbers.iter().filter(|number| !is_ignored(**number)).chain(&[libc::SIGCHLD]);

        // SAFETY: all-zero is a valid sigset_t, and sigemptyset initialises it as the empty set.
        let mut set: libc::sigset_t = unsafe { zeroed() };
        // SAFETY: `set` is a local, valid set.
        let _ = unsafe { libc::sigemptyset(&mut set) };
        for &number in numbers {
            // SAFETY: `set` is valid; a number that is no signal is refused by the call.
            check(unsafe { libc::sigaddset(&mut set, number) })?;
        }
        // SAFETY: `set` is a local, valid set, and the old mask is not asked for.
        let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        // SAFETY: -1 asks for a new descriptor; `set` is valid.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        check(fd)?;
        // SAFETY: `fd` is new, and it has no other owner.
        Ok(Signals(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The next signal that has arrived, if any.
    pub(crate) fn next(&self) -> Option<Signal> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the kernel writes at most `size` bytes, into a local of that size.
        let read = unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if read != size as isize {
            return None;
        }
        // SAFETY: all of it was written, as the length says.
        let info = unsafe { info.assume_init() };
        // SI_KERNEL: no process sent it, so the terminal did.
        Some(Signal { number: info.ssi_signo as i32, from_terminal: info.ssi_code == 0x80 })
    }

    pub(crate) fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: all-zero is a valid sigaction.
    let mut now: libc::sigaction = unsafe { zeroed() };
    // SAFETY: nothing is changed, and the pointer names a local.
    let asked = check(unsafe { libc::sigaction(signal, std::ptr::null(), &mut now) });
    asked.is_ok() && now.sa_sigaction == libc::SIG_IGN
}

/// Waits until one of the descriptors can be read or the time is over; says which can.
pub(crate) fn wait_readable(fds: &[RawFd], timeout_ms: i32) -> io::Result<Vec<bool>> {
    let mut polled: Vec<libc::pollfd> =
        fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: the pointer and the count name the local vector.
    let ready =
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout_ms) };
    match check(ready) {
        Err(e) if e.kind() != io::ErrorKind::Interrupted => Err(e),
        _ => Ok(polled.iter().map(|p| p.revents != 0).collect()),
    }
}

fn check(outcome: i32) -> io::Result<()> {
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
