//! The kernel: memory files, mappings, sockets that carry descriptors, epoll, membarrier.
//!
//! Everything else in this crate (but the ring) is safe code over what is here. A [`Mapping`] hands out
//! nothing but atomics and checked copies, because its bytes belong to other processes as well.
#![allow(unsafe_code)] // this file is the crate's one door to libc

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tieline_plugin_api::{Failure, Status};

/// The size of the pages that this crate reserves memory in.
pub(crate) const PAGE: usize = 4096;
const F_SEAL_FUTURE_WRITE: i32 = 0x10;
const MADV_POPULATE_WRITE: i32 = 23;

/// What is asked of [`seal`].
pub(crate) const SEAL_SIZE: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
/// Only the mappings that exist already may write.
pub(crate) const SEAL_WRITERS: i32 = F_SEAL_FUTURE_WRITE;

fn last() -> io::Error {
    io::Error::last_os_error()
}

/// Makes an anonymous memory file of `len` bytes that can never change its size.
pub(crate) fn memory_file(name: &CStr, len: usize) -> Result<OwnedFd, Failure> {
    let failed =
        |what: &str| Failure::last_os_error(&format!("{what} a memory file of {len} bytes"));
    let size =
        i64::try_from(len).map_err(|_| Failure::new(Status::TooLarge, "length beyond 2^63"))?;
    // Beyond RLIMIT_FSIZE ftruncate would not only fail but also send a signal.
    // SAFETY: `limit` is a plain record that getrlimit fills.
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0
        && (size as u64) > limit.rlim_cur
    {
        return Err(Failure::new(
            Status::NoMemory,
            format!("a memory file of {len} bytes is beyond the limit on file sizes (ulimit -f)"),
        ));
    }
    // SAFETY: a zero-terminated name.
    let fd =
        unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(failed("creating"));
    }
    // SAFETY: a descriptor that nobody else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: an open descriptor.
    if unsafe { libc::ftruncate(fd.as_raw_fd(), size) } != 0 {
        return Err(failed("sizing"));
    }
    seal(&fd, SEAL_SIZE)?;
    Ok(fd)
}

/// Commits memory to a range of the file, so that touching it cannot fail later.
pub(crate) fn reserve(fd: &OwnedFd, offset: usize, len: usize) -> Result<(), Failure> {
    loop {
        // SAFETY: an open descriptor.
        if unsafe { libc::fallocate(fd.as_raw_fd(), 0, offset as i64, len as i64) } == 0 {
            return Ok(());
        }
        let error = last();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(Failure::from_io(
                &format!("reserving {len} bytes of shared memory"),
                &error,
            ));
        }
    }
}

/// Adds seals. A kernel that does not know one of them leaves the file as it is.
pub(crate) fn seal(fd: &OwnedFd, seals: i32) -> Result<(), Failure> {
    // SAFETY: an open descriptor.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } == 0 {
        return Ok(());
    }
    let error = last();
    if seals == SEAL_WRITERS && error.raw_os_error() == Some(libc::EINVAL) {
        return Ok(()); // before Linux 5.1
    }
    Err(Failure::from_io("sealing a memory file", &error))
}

/// Whether a file takes no new writable mappings.
pub(crate) fn is_write_sealed(fd: &OwnedFd) -> bool {
    // SAFETY: an open descriptor.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & SEAL_WRITERS != 0
}

/// The length of a memory file from a peer, if it is one that cannot change its size under us.
pub(crate) fn sealed_len(fd: &OwnedFd) -> Option<usize> {
    // SAFETY: an open descriptor; not a memory file: an error.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & SEAL_SIZE != SEAL_SIZE {
        return None;
    }
    // SAFETY: `stat` is a plain record that fstat fills.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    if unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) } != 0 {
        return None;
    }
    usize::try_from(stat.st_size).ok()
}

/// A shared mapping of a memory file, not inherited over fork.
#[derive(Debug)]
pub(crate) struct Mapping {
    at: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: a mapping is an address range; all access to it is by atomics or raw copies of shared bytes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `fd`, whose size the caller has checked to be at least that.
    pub(crate) fn new(fd: BorrowedFd<'_>, len: usize, writable: bool) -> Result<Mapping, Failure> {
        let prot = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED {
            return Err(Failure::last_os_error(&format!("mapping {len} bytes of shared memory")));
        }
        // SAFETY: the range that was just mapped. A kernel that refuses only costs a forked child the range.
        let _ = unsafe { libc::madvise(at, len, libc::MADV_DONTFORK) };
        let at = NonNull::new(at.cast()).ok_or(Status::Io)?;
        Ok(Mapping { at, len, writable })
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether `len` bytes at `offset` lie inside.
    #[inline]
    pub(crate) fn holds(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len as u64)
    }

    /// The 64-bit word at `offset`; `None` when it lies outside or is misaligned.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> Option<&AtomicU64> {
        if offset % 8 != 0 || !self.holds(offset as u64, 8) {
            return None;
        }
        // SAFETY: inside the mapping, aligned, and shared bytes are only touched by atomics and raw copies.
        Some(unsafe { AtomicU64::from_ptr(self.at.as_ptr().add(offset).cast()) })
    }

    /// The 32-bit word at `offset`; `None` when it lies outside or is misaligned.
    #[inline]
    pub(crate) fn half_word(&self, offset: usize) -> Option<&AtomicU32> {
        if offset % 4 != 0 || !self.holds(offset as u64, 4) {
            return None;
        }
        // SAFETY: as in `word`.
        Some(unsafe { AtomicU32::from_ptr(self.at.as_ptr().add(offset).cast()) })
    }

    /// Copies `len` bytes from `from` to `offset`. `from` is readable by the ABI's contract (an iov piece,
    /// a payload). `false`: nothing was done, the range is outside or the mapping is read-only.
    #[inline]
    pub(crate) fn copy_in(&self, offset: u64, from: *const u8, len: usize) -> bool {
        if !self.writable || !self.holds(offset, len as u64) {
            return false;
        }
        // SAFETY: the range lies inside; the caller of the provider vouches for `from`. A peer that reads or
        // writes the same bytes meanwhile gets a mix of both, which is what remote memory access promises.
        unsafe {
            let to = self.at.as_ptr().add(offset as usize);
            if len == 8 {
                // One store: somebody who polls this word must not see half of it.
                to.cast::<u64>().write_unaligned(from.cast::<u64>().read_unaligned());
            } else {
                std::ptr::copy(from, to, len);
            }
        }
        true
    }

    /// Copies `len` bytes at `offset` to `to`, which is writable by the ABI's contract.
    #[inline]
    pub(crate) fn copy_out(&self, offset: u64, to: *mut u8, len: usize) -> bool {
        if !self.holds(offset, len as u64) {
            return false;
        }
        // SAFETY: as in `copy_in`.
        unsafe {
            let from = self.at.as_ptr().add(offset as usize);
            if len == 8 {
                to.cast::<u64>().write_unaligned(from.cast::<u64>().read_unaligned());
            } else {
                std::ptr::copy(from, to, len);
            }
        }
        true
    }

    /// Commits memory to a range, so that touching it cannot fail later. A kernel without this (before
    /// Linux 5.14) commits at the first touch.
    pub(crate) fn populate(&self, offset: usize, len: usize) -> Result<(), Failure> {
        if !self.holds(offset as u64, len as u64) {
            return Err(Status::Invalid.into());
        }
        // SAFETY: a range inside the mapping.
        let done =
            unsafe { libc::madvise(self.at.as_ptr().add(offset).cast(), len, MADV_POPULATE_WRITE) };
        let error = last();
        if done == 0 || error.raw_os_error() == Some(libc::EINVAL) {
            Ok(())
        } else {
            Err(Failure::from_io("reserving shared memory", &error))
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping; whoever holds pointers into it holds the `Mapping` too.
        let _ = unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// Copies an iov piece to `to`: both are good for `len` bytes by the ABI's contract.
#[inline]
pub(crate) fn copy(from: *const u8, to: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: the caller of the provider vouches for the piece, the pool for its chunk.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
    }
}

/// Random bytes from the kernel.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut out = [0u8; N];
    // SAFETY: writes at most N bytes.
    let got = unsafe { libc::getrandom(out.as_mut_ptr().cast(), N, 0) };
    if got == N as isize { Ok(out) } else { Err(Failure::last_os_error("getting random bytes")) }
}

/// The effective user of this process.
pub(crate) fn user() -> u32 {
    // SAFETY: has no preconditions.
    unsafe { libc::geteuid() }
}

/// Whether [`barrier`] orders the memory accesses of every process that has asked for it.
pub(crate) fn asymmetric() -> bool {
    const QUERY: i64 = 0;
    const GLOBAL_EXPEDITED: i64 = 1 << 1;
    const REGISTER_GLOBAL_EXPEDITED: i64 = 1 << 2;
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        // SAFETY: membarrier takes numbers only.
        unsafe {
            let commands = libc::syscall(libc::SYS_membarrier, QUERY, 0, 0);
            commands >= 0
                && commands & (GLOBAL_EXPEDITED | REGISTER_GLOBAL_EXPEDITED)
                    == GLOBAL_EXPEDITED | REGISTER_GLOBAL_EXPEDITED
                && libc::syscall(libc::SYS_membarrier, REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0
        }
    })
}

/// A full fence here and, where [`asymmetric`] says so, in every registered process.
pub(crate) fn barrier() {
    std::sync::atomic::fence(Ordering::SeqCst);
    if asymmetric() {
        // SAFETY: membarrier takes numbers only.
        let _ = unsafe { libc::syscall(libc::SYS_membarrier, 1i64 << 1, 0, 0) };
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

// ---- sockets ----

/// Where a listener is: bytes of `sun_path`, of which the first is zero for an abstract name.
fn socket_address(path: &[u8]) -> Result<(libc::sockaddr_un, libc::socklen_t), Failure> {
    // SAFETY: a plain record; all zero is a value of it.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    if path.is_empty() || path.len() >= address.sun_path.len() {
        return Err(Failure::new(
            Status::Invalid,
            format!("a socket name of {} bytes does not fit into 107", path.len()),
        ));
    }
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, &from) in address.sun_path.iter_mut().zip(path) {
        *to = from as libc::c_char;
    }
    let zero = usize::from(path[0] != 0);
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + path.len() + zero;
    Ok((address, len as libc::socklen_t))
}

fn socket() -> Result<OwnedFd, Failure> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if fd < 0 {
        return Err(Failure::last_os_error("creating a socket"));
    }
    // SAFETY: a descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Listens at `path` (see [`connect`]).
pub(crate) fn listen(path: &[u8]) -> Result<OwnedFd, Failure> {
    let (address, len) = socket_address(path)?;
    let fd = socket()?;
    // SAFETY: a filled address of that length.
    if unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) } != 0 {
        return Err(Failure::last_os_error(&format!("binding {}", String::from_utf8_lossy(path))));
    }
    // SAFETY: an open descriptor.
    if unsafe { libc::listen(fd.as_raw_fd(), 4096) } != 0 {
        return Err(Failure::last_os_error("listening"));
    }
    Ok(fd)
}

/// Connects without waiting; a leading zero byte makes the name abstract. [`Status::Again`]: the
/// listener's queue is full.
pub(crate) fn connect(path: &[u8]) -> Result<OwnedFd, Failure> {
    let (address, len) = socket_address(path)?;
    let fd = socket()?;
    // SAFETY: a filled address of that length.
    if unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), len) } != 0 {
        let error = last();
        return Err(Failure::from_io("connecting to the peer's socket", &error));
    }
    Ok(fd)
}

/// The next connection, if one waits.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the peer's address is not asked for.
    let fd = unsafe {
        libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags)
    };
    if fd < 0 {
        return Err(last());
    }
    // SAFETY: a descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The user on the other side of a socket.
pub(crate) fn peer_user(fd: &OwnedFd) -> Option<u32> {
    // SAFETY: a plain record; all zero is a value of it.
    let mut who: libc::ucred = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: writes at most `len` bytes to `who`.
    let done = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &mut len,
        )
    };
    (done == 0).then_some(who.uid)
}

/// The most descriptors in one record.
pub(crate) const MAX_FDS: usize = 2;
const CONTROL: usize = 64; // cmsghdr (16) and two descriptors (8), with room

/// Buffer of a control message, aligned as its header wants.
#[repr(C, align(8))]
struct ControlBuffer([u8; CONTROL]);

/// Sends one record, with descriptors, without waiting.
pub(crate) fn send(socket: &OwnedFd, record: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut piece =
        libc::iovec { iov_base: record.as_ptr().cast_mut().cast(), iov_len: record.len() };
    let mut control = ControlBuffer([0; CONTROL]);
    // SAFETY: a plain record; all zero is a value of it.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut piece;
    message.msg_iovlen = 1;
    let fds = &fds[..fds.len().min(MAX_FDS)];
    if !fds.is_empty() {
        let bytes = size_of_val(fds) as u32;
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: the macros compute within `control`, which has room for MAX_FDS descriptors.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(bytes) as usize;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as usize;
            for (i, fd) in fds.iter().enumerate() {
                libc::CMSG_DATA(header).cast::<RawFd>().add(i).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    // SAFETY: the message points to live buffers.
    let sent = unsafe {
        libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    if sent < 0 { Err(last()) } else { Ok(()) }
}

/// One record from a socket.
pub(crate) struct Received {
    /// Bytes written to the buffer; 0: the peer is gone.
    pub(crate) len: usize,
    /// Descriptors that came along.
    pub(crate) fds: Vec<OwnedFd>,
    /// The record or its descriptors did not fit (too long, or this process has no descriptor left).
    pub(crate) cut: bool,
}

/// Receives one record without waiting.
pub(crate) fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<Received> {
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = ControlBuffer([0; CONTROL]);
    // SAFETY: a plain record; all zero is a value of it.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL;
    // SAFETY: the message points to live buffers.
    let got = unsafe {
        libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC)
    };
    if got < 0 {
        return Err(last());
    }
    let mut fds = Vec::new();
    // SAFETY: the kernel wrote well-formed control messages of `msg_controllen` bytes; each descriptor in
    // them is new and ours alone.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len - libc::CMSG_LEN(0) as usize;
                for i in 0..bytes / size_of::<RawFd>() {
                    let fd = libc::CMSG_DATA(header).cast::<RawFd>().add(i).read_unaligned();
                    fds.push(OwnedFd::from_raw_fd(fd));
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    let cut = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
    Ok(Received { len: got as usize, fds, cut })
}

/// A descriptor that holds a place in the table, to be given up when it is full.
pub(crate) fn spare() -> Option<OwnedFd> {
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    // SAFETY: a descriptor that nobody else owns.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether an error says that this process or the system has no descriptor or memory left.
pub(crate) fn is_exhaustion(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS))
}

/// Whether an error of [`receive`] stands before what is still to be read: a peer that closed without
/// reading everything resets the connection, but what it said before comes after that, and then its end.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::ECONNRESET))
}

/// Whether an error of [`send`] passes by itself.
pub(crate) fn is_temporary(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM | libc::ETOOMANYREFS)
    )
}

// ---- epoll ----

/// A set of descriptors to wait for; itself a descriptor.
pub(crate) struct Epoll {
    fd: OwnedFd,
}

impl Epoll {
    pub(crate) fn new() -> Result<Epoll, Failure> {
        // SAFETY: takes numbers only.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(Failure::last_os_error("creating an epoll descriptor"));
        }
        // SAFETY: a descriptor that nobody else owns.
        Ok(Epoll { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn add(&self, fd: &OwnedFd, token: u64) -> Result<(), Failure> {
        let mut event =
            libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLRDHUP) as u32, u64: token };
        // SAFETY: an initialised record.
        let done =
            unsafe { libc::epoll_ctl(self.raw(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &mut event) };
        if done == 0 {
            Ok(())
        } else {
            Err(Failure::last_os_error("adding to an epoll descriptor"))
        }
    }

    /// Takes a descriptor out. Closing alone does not while a forked child holds a copy.
    pub(crate) fn remove(&self, fd: &OwnedFd) {
        // SAFETY: takes numbers, and no record for this command.
        let _ = unsafe {
            libc::epoll_ctl(self.raw(), libc::EPOLL_CTL_DEL, fd.as_raw_fd(), std::ptr::null_mut())
        };
    }

    /// The tokens of descriptors that are ready now.
    pub(crate) fn ready(&self, tokens: &mut [u64; 64]) -> usize {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: writes at most 64 records.
        let n = unsafe { libc::epoll_wait(self.raw(), events.as_mut_ptr(), 64, 0) };
        let n = usize::try_from(n).unwrap_or(0).min(64);
        for (token, event) in tokens.iter_mut().zip(&events[..n]) {
            *token = event.u64;
        }
        n
    }
}

/// A descriptor that becomes readable every millisecond while it is on.
pub(crate) struct Ticker {
    fd: OwnedFd,
}

impl Ticker {
    pub(crate) fn new() -> Result<Ticker, Failure> {
        // SAFETY: takes numbers only.
        let fd = unsafe {
            libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(Failure::last_os_error("creating a timer"));
        }
        // SAFETY: a descriptor that nobody else owns.
        Ok(Ticker { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Turns it on (1 ms from now, and again every ms) or off; either empties it.
    pub(crate) fn set(&self, on: bool) {
        let period = libc::timespec { tv_sec: 0, tv_nsec: if on { 1_000_000 } else { 0 } };
        let spec = libc::itimerspec { it_interval: period, it_value: period };
        // SAFETY: an initialised record; the old setting is not asked for.
        let _ =
            unsafe { libc::timerfd_settime(self.fd.as_raw_fd(), 0, &spec, std::ptr::null_mut()) };
    }
}

/// Opens a memory file from a peer: sealed, of at least `len` bytes.
pub(crate) fn map_peer(fd: &OwnedFd, len: usize, writable: bool) -> Option<Mapping> {
    if len == 0 || sealed_len(fd)? < len {
        return None;
    }
    Mapping::new(fd.as_fd(), len, writable).ok()
}

/// Ends this process as abruptly as the kernel can.
#[cfg(feature = "test-hooks")]
pub(crate) fn kill_self() {
    // SAFETY: takes numbers only.
    let _ = unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

/// The events of one poll.
#[cfg(test)]
pub(crate) fn polled<I: tieline_plugin_api::Interface>(
    interface: &I,
) -> Vec<tieline_plugin_api::abi::Event> {
    use std::mem::MaybeUninit;
    use tieline_plugin_api::abi::Event;
    let mut slots = [const { MaybeUninit::new(Event::empty()) }; 16];
    let mut events = tieline_plugin_api::Events::new(&mut slots);
    let polled = interface.poll(&mut events);
    let n = events.len();
    assert!(polled.is_ok());
    // SAFETY: every slot was initialised above.
    slots[..n].iter().map(|slot| unsafe { slot.assume_init() }).collect()
}
