//! The system calls of the tests, each inside a safe function.

#![allow(unsafe_code)]

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Lets the kernel kill a process when the thread that started it ends.
pub fn die_with_parent(command: &mut Command) {
    let ask = || {
        // SAFETY: the call passes only numbers.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
    let _ = unsafe { command.pre_exec(ask) };
}

/// Returns the time of a clock that all processes share, in nanoseconds.
#[must_use]
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the record is writable.
    let _ = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Waits until one of the descriptors is readable or closed; returns `false` after `milliseconds`.
#[must_use]
pub fn readable(descriptors: &[i32], milliseconds: Option<i32>) -> bool {
    let mut list: Vec<libc::pollfd> = descriptors
        .iter()
        .map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
        .collect();
    // SAFETY: the list is writable for the given length.
    let n = unsafe {
        libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, milliseconds.unwrap_or(-1))
    };
    n > 0
}

/// Reads the available bytes; returns 0 at the end.
#[must_use]
pub fn read(descriptor: i32, buffer: &mut [u8]) -> usize {
    // SAFETY: the buffer is writable for the given length.
    let n = unsafe { libc::read(descriptor, buffer.as_mut_ptr().cast(), buffer.len()) };
    usize::try_from(n).unwrap_or(0)
}

/// A resource limit of this process.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// The number of open descriptors.
    Descriptors,
    /// The size of the address space in bytes.
    AddressSpace,
    /// The size of a file in bytes.
    FileSize,
    /// The processor time in seconds.
    ProcessorTime,
}

impl Limit {
    fn number(self) -> libc::__rlimit_resource_t {
        match self {
            Limit::Descriptors => libc::RLIMIT_NOFILE,
            Limit::AddressSpace => libc::RLIMIT_AS,
            Limit::FileSize => libc::RLIMIT_FSIZE,
            Limit::ProcessorTime => libc::RLIMIT_CPU,
        }
    }
}

/// Sets a soft limit, and returns the previous one. The hard limit bounds the new value.
#[must_use]
pub fn limit(which: Limit, to: u64) -> u64 {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the record is writable.
    let _ = unsafe { libc::getrlimit(which.number(), &mut now) };
    let before = now.rlim_cur;
    now.rlim_cur = to.min(now.rlim_max);
    // SAFETY: the record is readable.
    let _ = unsafe { libc::setrlimit(which.number(), &now) };
    before
}

/// Checks whether this process has the rights of root.
#[must_use]
pub fn is_root() -> bool {
    // SAFETY: the call has no argument.
    unsafe { libc::geteuid() == 0 }
}

/// Returns the resident memory of a process, in pages.
#[must_use]
pub fn resident_pages(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0)
}

/// Sends a signal to a process that the test started.
pub fn signal(process: u32, signal: Signal) {
    let number = match signal {
        Signal::Stop => libc::SIGSTOP,
        Signal::Continue => libc::SIGCONT,
        Signal::Kill => libc::SIGKILL,
    };
    // SAFETY: the call passes only numbers.
    let _ = unsafe { libc::kill(process as i32, number) };
}

/// A signal for [`signal`].
#[derive(Clone, Copy, Debug)]
pub enum Signal {
    /// The process stops.
    Stop,
    /// The process continues.
    Continue,
    /// The process ends, without any cleanup.
    Kill,
}

/// Changes the process to another user, permanently.
#[must_use]
pub fn become_user(user: u32) -> bool {
    // SAFETY: the calls pass only numbers.
    unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setresgid(user, user, user) == 0
            && libc::setresuid(user, user, user) == 0
    }
}

/// Pins the process to one processor.
#[must_use]
pub fn pin(processor: usize) -> bool {
    // SAFETY: the set is a plain bit field, valid when zeroed, and the number is inside it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) == 0
    }
}

/// Returns the first processor that this process may use.
#[must_use]
pub fn first_processor() -> usize {
    // SAFETY: the set is a plain bit field, valid when zeroed.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let _ = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        (0..1024).find(|&n| libc::CPU_ISSET(n, &set)).unwrap_or(0)
    }
}

/// Runs `child` in a forked child of this single-threaded process and returns its exit code; `None` if a signal ended it.
///
/// # Panics
/// Panics if the fork fails.
#[must_use]
pub fn in_forked_child(child: impl FnOnce() -> u8) -> Option<u8> {
    // SAFETY: the callers are processes with one thread, so the child is a whole process.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", io::Error::last_os_error());
    if pid == 0 {
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(99);
        // SAFETY: the call ends the child immediately, without the exit handlers that the parent registered.
        unsafe { libc::_exit(i32::from(code)) };
    }
    let mut status = 0;
    // SAFETY: the status is writable, and the child belongs to this process.
    let _ = unsafe { libc::waitpid(pid, &mut status, 0) };
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status) as u8)
}

/// An epoll descriptor that becomes readable when `watched` does, as in a usual event loop.
pub struct Epoll(i32);

impl Epoll {
    /// Makes an epoll descriptor that watches one descriptor.
    ///
    /// # Panics
    /// Panics if the system refuses.
    #[must_use]
    pub fn over(watched: i32) -> Epoll {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 1 };
        // SAFETY: the record outlives the calls.
        unsafe {
            let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            assert!(
                epoll >= 0 && libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, watched, &mut event) == 0
            );
            Epoll(epoll)
        }
    }

    /// Sleeps until the watched descriptor is readable.
    pub fn wait(&self) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: the buffer has space for the one event that the call may write.
        let _ = unsafe { libc::epoll_wait(self.0, &mut event, 1, -1) };
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        // SAFETY: `over` has made the descriptor, which is closed once.
        let _ = unsafe { libc::close(self.0) };
    }
}

// ---- For the hostile peer of shm ----

fn done(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(result: i32) -> io::Result<OwnedFd> {
    // SAFETY: the caller has just made the descriptor, which has no other owner.
    done(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Connects to a Unix socket of records; a leading zero byte makes the name abstract.
///
/// # Errors
/// Returns the system's error; [`io::ErrorKind::InvalidInput`] if the name is too long.
pub fn connect_unix(name: &[u8]) -> io::Result<OwnedFd> {
    let (socket, to, len) = unix_socket(name)?;
    // SAFETY: the pointer is that of a filled address of this length.
    let _ = done(unsafe { libc::connect(socket.as_raw_fd(), (&raw const to).cast(), len) })?;
    Ok(socket)
}

/// Makes a non-blocking socket of records that listens under that name.
///
/// # Errors
/// Returns the system's error.
pub fn listen_unix(name: &[u8]) -> io::Result<UnixListener> {
    let (socket, to, len) = unix_socket(name)?;
    // SAFETY: the pointer is that of a filled address of this length, and the descriptor is open.
    let _ = done(unsafe { libc::bind(socket.as_raw_fd(), (&raw const to).cast(), len) })?;
    // SAFETY: the call passes only numbers.
    let _ = done(unsafe { libc::listen(socket.as_raw_fd(), 16) })?;
    let listener = UnixListener::from(socket);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn unix_socket(name: &[u8]) -> io::Result<(OwnedFd, libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: the record contains only numbers, and may be all zeros.
    let mut to: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= to.sun_path.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    to.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (place, &byte) in to.sun_path.iter_mut().zip(name) {
        *place = byte as libc::c_char;
    }
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + name.len();
    let len = len + usize::from(name[0] != 0);
    // SAFETY: the call passes only numbers.
    let socket = owned(unsafe {
        libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0)
    })?;
    Ok((socket, to, len as libc::socklen_t))
}

/// Sends a record with descriptors, without waiting.
///
/// # Errors
/// Returns the system's error.
pub fn send_record(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut piece =
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = [0u64; 256];
    // SAFETY: the record contains only numbers and addresses, and may be all zeros.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut piece;
    message.msg_iovlen = 1;
    assert!(fds.len() <= 253, "more than the system takes");
    if !fds.is_empty() {
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: the macros compute within `control`, which has space for 253 descriptors.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(size_of_val(fds) as u32) as usize;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of_val(fds) as u32) as usize;
            for (i, fd) in fds.iter().enumerate() {
                libc::CMSG_DATA(header).cast::<i32>().add(i).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the message points to live buffers.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &message, flags) };
    done(sent as i32).map(|_| ())
}

/// Checks whether the other side has not closed a socket. Pending records are dropped.
#[must_use]
pub fn is_open(socket: &OwnedFd) -> bool {
    let mut byte = 0u8;
    loop {
        // SAFETY: the call writes at most one byte.
        let got = unsafe {
            libc::recv(socket.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT)
        };
        if got <= 0 {
            return got < 0 && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock;
        }
    }
}

/// Makes a TCP socket with unread data, and its other end. The close of the socket's last copy blocks for `seconds` seconds.
///
/// # Errors
/// Returns the system's error.
pub fn lingering(seconds: i32) -> io::Result<(OwnedFd, TcpListener)> {
    let unread = TcpListener::bind("127.0.0.1:0")?;
    let mut stream = TcpStream::connect(unread.local_addr()?)?;
    stream.set_nonblocking(true)?;
    while stream.write(&[0; 65536]).is_ok() {}
    let linger = libc::linger { l_onoff: 1, l_linger: seconds };
    // SAFETY: the descriptor is open, and the record is readable for this length.
    let _ = done(unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as u32,
        )
    })?;
    Ok((stream.into(), unread))
}

/// The number of kinds of [`odd_descriptors`].
pub const ODD_KINDS: usize = 8;

/// Makes descriptors that a receiver does not expect.
///
/// # Errors
/// Returns the system's error.
pub fn odd_descriptors(kind: usize) -> io::Result<Vec<OwnedFd>> {
    let open = |path: &str| std::fs::File::open(path).map(OwnedFd::from);
    Ok(match kind {
        0 => vec![open("/dev/zero")?],
        1 => vec![open("/")?],
        2 => vec![open("/proc/self/maps")?],
        // SAFETY: the call passes only numbers.
        3 => vec![owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?],
        4 => (0..253).map(|_| open("/dev/null")).collect::<io::Result<_>>()?,
        // Kind 5 is a socket with a socket in its queue.
        5 => {
            let (one, two) = std::os::unix::net::UnixDatagram::pair()?;
            let (one, two) = (OwnedFd::from(one), OwnedFd::from(two));
            send_record(&one, b"x", &[two.as_fd(), one.as_fd()])?;
            vec![two, one]
        }
        // Kind 6 is a full pipe that nobody reads.
        6 => {
            let mut ends = [0; 2];
            // SAFETY: the call writes two numbers.
            let _ = done(unsafe {
                libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK)
            })?;
            let (read, write) = (owned(ends[0])?, owned(ends[1])?);
            let mut full = std::fs::File::from(write.try_clone()?);
            while full.write(&[0; 4096]).is_ok() {}
            vec![write, read]
        }
        // The other kinds are memory that can be truncated. SAFETY: the name ends with a zero.
        _ => vec![owned(unsafe { libc::memfd_create(c"odd".as_ptr(), libc::MFD_CLOEXEC) })?],
    })
}

/// Memory that is shared with every process that receives its file.
pub struct Memory {
    file: OwnedFd,
    base: *mut u8,
    len: usize,
}

impl Memory {
    /// Maps a memory file whose size is sealed.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn sealed(len: usize) -> io::Result<Memory> {
        Memory::sealed_of(0, len)
    }

    /// Maps a memory file of two megabytes in one huge page, if the system has a huge page available.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn with_huge_pages() -> io::Result<Memory> {
        Memory::sealed_of(libc::MFD_HUGETLB, 2 << 20)
    }

    /// Removes all pages from the memory file.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn punch_hole(&self) -> io::Result<()> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: the descriptor is open, and the other arguments are numbers.
        done(unsafe { libc::fallocate(self.file.as_raw_fd(), mode, 0, self.len as i64) })
            .map(|_| ())
    }

    fn sealed_of(kind: libc::c_uint, len: usize) -> io::Result<Memory> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | kind;
        // SAFETY: the name ends with a zero, and the flags are a number.
        let file = owned(unsafe { libc::memfd_create(c"hostile".as_ptr(), flags) })?;
        // SAFETY: the descriptor is open, and the other arguments are numbers.
        unsafe {
            let _ = done(libc::ftruncate(file.as_raw_fd(), len as i64))?;
            let _ = done(libc::fallocate(file.as_raw_fd(), 0, 0, len as i64))?;
            let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
            let _ = done(libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals))?;
        }
        Memory::over(file, len)
    }

    /// Maps `len` bytes of a file that has at least this length.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn over(file: OwnedFd, len: usize) -> io::Result<Memory> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let fd = file.as_raw_fd();
        // SAFETY: the call makes a new mapping at an address of the system's choice.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Memory { file, base: base.cast(), len })
    }

    /// Returns the length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the file.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn word(&self, at: usize) -> &std::sync::atomic::AtomicU64 {
        assert!(at % 8 == 0 && at + 8 <= self.len, "outside");
        // SAFETY: the word is inside the mapping and aligned, and both sides access it by atomics.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(self.base.add(at).cast()) }
    }

    /// Loads the word at an offset.
    ///
    /// # Panics
    /// Panics if the word is outside of the memory.
    #[must_use]
    pub fn load(&self, at: usize) -> u64 {
        self.word(at).load(std::sync::atomic::Ordering::Acquire)
    }

    /// Stores the word at an offset.
    ///
    /// # Panics
    /// Panics if the word is outside of the memory.
    pub fn store(&self, at: usize, value: u64) {
        self.word(at).store(value, std::sync::atomic::Ordering::Release);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this object, and no reference to it exists.
        let _ = unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// Pages of this process that serve as the application's memory, and are unmapped on request.
#[derive(Debug)]
pub struct Pages {
    base: usize,
    len: usize,
}

impl Pages {
    /// Maps pages.
    ///
    /// # Panics
    /// Panics if the mapping fails.
    #[must_use]
    pub fn map(len: usize) -> Pages {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping changes no existing one.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, -1, 0) };
        assert!(base != libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
        Pages { base: base as usize, len }
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn base(&self) -> usize {
        self.base
    }

    /// Returns the length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.len
    }

    /// Registers the pages.
    ///
    /// # Errors
    /// Returns the library's error.
    pub fn register(
        &self,
        context: &tieline::Context,
    ) -> Result<tieline::Region, tieline::OpenError> {
        // SAFETY: the pages stay mapped until the test unmaps them, after the region was closed.
        unsafe { context.register_raw(self.base as *mut u8, self.len, tieline::Access::ALL) }
    }

    /// Unmaps the pages: the kernel ends any process that accesses the pages afterwards.
    pub fn unmap(self) {
        // SAFETY: `map` has mapped the pages, which are not used afterwards.
        let _ = unsafe { libc::munmap(self.base as *mut libc::c_void, self.len) };
    }
}

/// Makes a system call fail with EPERM in this process, as a seccomp filter of a container does. Returns `false` if such filters
/// are not available on this machine.
#[must_use]
pub fn forbid(call: &str) -> bool {
    let number = match call {
        "memfd_create" => libc::SYS_memfd_create,
        "fallocate" => libc::SYS_fallocate,
        "membarrier" => libc::SYS_membarrier,
        "io_uring_setup" => libc::SYS_io_uring_setup,
        _ => panic!("`{call}` is no call that this knows"),
    };
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let mut program = [
        statement(load, 0), // the number of the call
        libc::sock_filter { jf: 1, ..statement(equal, number as u32) },
        statement(answer, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(answer, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the filter and its program outlive the call.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    }
}
