//! The kernel calls: memory files, mappings, locks that show which processes are alive, and another process's descriptors.
//!
//! A [`Mapping`] provides only atomics and checked copies, because other processes access its bytes, too.
#![allow(unsafe_code)] // the only file of the crate that calls libc

use std::ffi::CStr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use tieline_plugin_api::{Failure, Status};

mod process;
pub(crate) use process::AddressSpace;
pub use process::Process;

/// The size of the pages in which memory is reserved, in bytes.
pub const PAGE: usize = 4096;
const F_SEAL_FUTURE_WRITE: i32 = 0x10;
const MADV_POPULATE_READ: i32 = 22;
const MADV_POPULATE_WRITE: i32 = 23;

const SEAL_SIZE: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
/// The seal, for [`seal`], after which only the existing mappings may write.
pub const SEAL_WRITERS: i32 = F_SEAL_FUTURE_WRITE;

fn last() -> io::Error {
    io::Error::last_os_error()
}

/// Checks whether an error means that this process must not make the call at all: a seccomp filter, or an old kernel.
fn is_forbidden(error: &io::Error) -> bool {
    let codes = [libc::ENOSYS, libc::EPERM, libc::EACCES, libc::EOPNOTSUPP];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Creates an anonymous memory file of `len` bytes that can never change its size.
///
/// # Errors
/// [`Status::Unsupported`] if memory files are forbidden, [`Status::NoMemory`] beyond a limit, or another error of the kernel.
pub fn memory_file(name: &CStr, len: usize) -> Result<OwnedFd, Failure> {
    let size =
        i64::try_from(len).map_err(|_| Failure::new(Status::TooLarge, "length beyond 2^63"))?;
    // Beyond RLIMIT_FSIZE ftruncate would not only fail but also raise a signal. SAFETY: `limit` is a plain record that getrlimit
    // fills.
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: getrlimit fills the record, which lives through the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0
        && (size as u64) > limit.rlim_cur
    {
        return Err(Failure::new(
            Status::NoMemory,
            format!("a memory file of {len} bytes is beyond the limit on file sizes (ulimit -f)"),
        ));
    }
    // SAFETY: the name is zero-terminated.
    let fd =
        unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        let error = last();
        if is_forbidden(&error) {
            let text =
                format!("memfd_create is forbidden here, by a seccomp filter perhaps: {error}");
            return Err(Failure::new(Status::Unsupported, text));
        }
        return Err(Failure::from_io(&format!("creating a memory file of {len} bytes"), &error));
    }
    // SAFETY: nothing else owns the descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the descriptor is open.
    if unsafe { libc::ftruncate(fd.as_raw_fd(), size) } != 0 {
        return Err(Failure::last_os_error(&format!("sizing a memory file of {len} bytes")));
    }
    seal(&fd, SEAL_SIZE)?;
    Ok(fd)
}

/// Commits memory to a range of a new file, so that a later access cannot fail. The range must still hold zeros, and the file must
/// not be sealed against writing.
///
/// # Errors
/// There is not enough memory.
pub fn reserve(fd: &OwnedFd, offset: usize, len: usize) -> Result<(), Failure> {
    let failed =
        |error| Err(Failure::from_io(&format!("reserving {len} bytes of shared memory"), error));
    loop {
        // SAFETY: the descriptor is open.
        if unsafe { libc::fallocate(fd.as_raw_fd(), 0, offset as i64, len as i64) } == 0 {
            return Ok(());
        }
        match last() {
            error if error.kind() == io::ErrorKind::Interrupted => {}
            error if is_forbidden(&error) => break,
            error => return failed(&error),
        }
    }
    // A byte written to every page has the same effect, and fails with the same error.
    let mut at = offset;
    while at < offset + len {
        // SAFETY: the call writes one byte of a static to an open descriptor.
        let wrote = unsafe { libc::pwrite(fd.as_raw_fd(), [0u8].as_ptr().cast(), 1, at as i64) };
        if wrote == 1 {
            at = (at / PAGE + 1) * PAGE;
            continue;
        }
        let error = last();
        if error.kind() != io::ErrorKind::Interrupted {
            return failed(&error);
        }
    }
    Ok(())
}

/// Adds seals to a file. A kernel without one of the seals leaves the file unchanged; for [`SEAL_WRITERS`] that is no error.
///
/// # Errors
/// The error of the kernel.
pub fn seal(fd: &OwnedFd, seals: i32) -> Result<(), Failure> {
    // SAFETY: the descriptor is open.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } == 0 {
        return Ok(());
    }
    let error = last();
    if seals == SEAL_WRITERS && error.raw_os_error() == Some(libc::EINVAL) {
        return Ok(()); // Kernels before Linux 5.1 lack this seal
    }
    Err(Failure::from_io("sealing a memory file", &error))
}

/// Checks whether new writable mappings of a file are refused.
#[must_use]
pub fn is_write_sealed(fd: &OwnedFd) -> bool {
    // SAFETY: the descriptor is open.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & SEAL_WRITERS != 0
}

#[cfg(test)]
thread_local! {
    /// The number of queries of this thread to the file system behind a descriptor.
    static ASKED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Returns the length of a memory file from a peer and the number of its bytes that have memory. Returns `None` unless the file has
/// ordinary pages and cannot change its size. With huge pages an access could end the process: a freed page may have no
/// replacement.
fn examined(fd: &OwnedFd) -> Option<(usize, u64)> {
    // SAFETY: the descriptor is open; if it is no memory file, the call returns an error.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & SEAL_SIZE != SEAL_SIZE {
        // Nothing else may be queried: behind a FUSE descriptor, the peer's process answers at any time it likes.
        return None;
    }
    #[cfg(test)]
    ASKED.set(ASKED.get() + 1);
    // SAFETY: the plain record is filled by fstatfs.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the record lives through the call.
    if unsafe { libc::fstatfs(fd.as_raw_fd(), &mut system) } != 0
        || system.f_type as i64 != libc::TMPFS_MAGIC
    {
        return None;
    }
    // SAFETY: `stat` is a plain record that fstat fills.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the record lives through the call.
    if unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) } != 0 {
        return None;
    }
    Some((usize::try_from(stat.st_size).ok()?, (stat.st_blocks as u64).saturating_mul(512)))
}

/// Returns the length of a memory file from a peer, if the file has ordinary pages and cannot change its size.
#[must_use]
pub fn sealed_len(fd: &OwnedFd) -> Option<usize> {
    examined(fd).map(|(len, _)| len)
}

/// Returns the number of bytes of such a file that have memory.
#[must_use]
pub fn backed_len(fd: &OwnedFd) -> Option<usize> {
    examined(fd).map(|(len, committed)| len.min(usize::try_from(committed).unwrap_or(len)))
}

/// Maps a memory file from a peer: sealed, with at least `len` bytes and memory for all of them. So a peer can neither cause
/// accesses to missing pages nor map more than it has paid for.
#[must_use]
pub fn map_peer(fd: &OwnedFd, len: usize, writable: bool) -> Option<Mapping> {
    if len == 0 || backed_len(fd)? < len {
        return None;
    }
    Mapping::new(fd.as_fd(), len, writable).ok()
}

/// Maps a file like [`map_peer`] that grows by pages as it is used: only the first page has memory initially. Before an access to
/// another page, the caller [populates](Mapping::populate) it.
#[must_use]
pub fn map_peer_control(fd: &OwnedFd, len: usize, writable: bool) -> Option<Mapping> {
    if len == 0 || sealed_len(fd)? < len {
        return None;
    }
    let map = Mapping::new(fd.as_fd(), len, writable).ok()?;
    map.populate(0, PAGE.min(len)).ok()?;
    Some(map)
}

/// A shared mapping of a memory file, not inherited over fork if the kernel supports that.
#[derive(Debug)]
pub struct Mapping {
    at: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: a mapping is an address range; all access to it is by atomics or raw copies of shared bytes.
unsafe impl Send for Mapping {}
// SAFETY: a mapping is an address range; all access to it is by atomics or raw copies of shared bytes.
unsafe impl Sync for Mapping {}

/// Copies `len` bytes. Eight bytes take one load and one store, because a poller must not see half of an aligned word.
///
/// # Safety
/// `from` is readable and `to` is writable for `len` bytes.
#[inline]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller guarantees both.
    unsafe {
        if len == 8 {
            to.cast::<u64>().write_unaligned(from.cast::<u64>().read_unaligned());
        } else {
            std::ptr::copy(from, to, len);
        }
    }
}

impl Mapping {
    /// Maps the first `len` bytes of `fd`. The caller has checked that the file is at least `len` bytes long.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn new(fd: BorrowedFd<'_>, len: usize, writable: bool) -> Result<Mapping, Failure> {
        let prot = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: the call makes a new mapping at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED {
            return Err(Failure::last_os_error(&format!("mapping {len} bytes of shared memory")));
        }
        // SAFETY: the range was just mapped. If the kernel refuses, a forked child inherits the range, and that is the only cost.
        let _ = unsafe { libc::madvise(at, len, libc::MADV_DONTFORK) };
        let at = NonNull::new(at.cast()).ok_or(Status::Io)?;
        Ok(Mapping { at, len, writable })
    }

    /// Returns the address of the first byte. Other processes write to the memory.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// Returns the length in bytes.
    #[inline]
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // there is no empty mapping
    pub fn len(&self) -> usize {
        self.len
    }

    /// Checks whether this process may write to the mapping.
    #[inline]
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Checks whether `len` bytes at `offset` lie inside the mapping.
    #[inline]
    #[must_use]
    pub fn holds(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len as u64)
    }

    /// Returns the 64-bit word at `offset`; `None` if it lies outside or is misaligned. Words of a read-only mapping may only be
    /// loaded.
    #[inline]
    #[must_use]
    pub fn word(&self, offset: usize) -> Option<&AtomicU64> {
        if offset % 8 != 0 || !self.holds(offset as u64, 8) {
            return None;
        }
        // SAFETY: the word is inside the mapping and aligned; shared bytes are accessed only by atomics and raw copies.
        Some(unsafe { AtomicU64::from_ptr(self.at.as_ptr().add(offset).cast()) })
    }

    /// Returns the 32-bit word at `offset`; `None` if it lies outside or is misaligned.
    #[inline]
    #[must_use]
    pub fn half_word(&self, offset: usize) -> Option<&AtomicU32> {
        if offset % 4 != 0 || !self.holds(offset as u64, 4) {
            return None;
        }
        // SAFETY: the word is inside the mapping and aligned; shared bytes are accessed only by atomics and raw copies.
        Some(unsafe { AtomicU32::from_ptr(self.at.as_ptr().add(offset).cast()) })
    }

    /// Copies `len` bytes from `from` to `offset`. Returns `false`, without effect, if the range is outside or the mapping is
    /// read-only.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes.
    #[inline]
    pub unsafe fn copy_in(&self, offset: u64, from: *const u8, len: usize) -> bool {
        if !self.writable || !self.holds(offset, len as u64) {
            return false;
        }
        // SAFETY: the range lies inside the mapping; the caller guarantees `from`. A peer that accesses the same bytes meanwhile
        // gets a mix of old and new bytes, as remote memory access permits.
        unsafe { copy(from, self.at.as_ptr().add(offset as usize), len) };
        true
    }

    /// Copies `len` bytes at `offset` to `to`. The results are those of `copy_in`.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes.
    #[inline]
    pub unsafe fn copy_out(&self, offset: u64, to: *mut u8, len: usize) -> bool {
        if !self.holds(offset, len as u64) {
            return false;
        }
        // SAFETY: the range lies inside the mapping; the caller guarantees `to`. A peer that writes the same bytes meanwhile makes
        // the copy a mix of old and new bytes, as remote memory access permits.
        unsafe { copy(self.at.as_ptr().add(offset as usize), to, len) };
        true
    }

    /// Commits memory to a range of whole pages, so that an access cannot fail. Without kernel support (before Linux 5.14), or if a
    /// seccomp filter forbids the call, the first access commits the memory.
    ///
    /// # Errors
    /// There is not enough memory, or the range lies outside.
    pub fn populate(&self, offset: usize, len: usize) -> Result<(), Failure> {
        if !self.holds(offset as u64, len as u64) {
            return Err(Status::Invalid.into());
        }
        let advice = if self.writable { MADV_POPULATE_WRITE } else { MADV_POPULATE_READ };
        // An address that is not at the start of a page causes EINVAL, which is also the error of a kernel without the call.
        let pages = whole_pages(offset as u64, len as u64, page_size());
        let Range { start, end } = pages.ok_or(Status::Invalid)?;
        let (offset, len) = (start as usize, (end - start) as usize);
        // SAFETY: the pages lie in the mapping, if only partly: the mapping ends with a page of the kernel.
        let done = unsafe { libc::madvise(self.at.as_ptr().add(offset).cast(), len, advice) };
        let error = last();
        if done == 0 || error.raw_os_error() == Some(libc::EINVAL) || is_forbidden(&error) {
            Ok(())
        } else {
            Err(Failure::from_io("reserving shared memory", &error))
        }
    }
}

/// Returns the size of the kernel's pages in bytes: 4096, on 64-bit Arm also 16384 or 65536.
#[must_use]
pub fn page_size() -> u64 {
    // SAFETY: the call takes a number and cannot fail for this one.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(PAGE as u64)
}

/// Returns the whole pages of this size that contain a range; `None` if they reach beyond the address space.
#[must_use]
pub fn whole_pages(start: u64, len: u64, page: u64) -> Option<Range<u64>> {
    let end = start.checked_add(len)?.checked_next_multiple_of(page)?;
    Some(start / page * page..end)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this object; every user of pointers into it also holds the `Mapping`.
        let _ = unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

// ---- liveness ----

/// The owner of a lock on a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The open file description: the kernel releases the lock when the description has no descriptor left.
    Description,
    /// The process: the kernel releases the lock when the process has ended, and when it closes *any* descriptor of the file.
    Process,
}

/// Returns the record for a lock on one byte of a file.
fn one_byte(at: usize, kind: libc::c_int) -> libc::flock {
    // SAFETY: zeros are a valid value for this plain record, and the kernel requires zero as the process number.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = at as libc::off_t;
    lock.l_len = 1;
    lock
}

fn set_lock(fd: &OwnedFd, holder: Holder, at: usize, kind: libc::c_int) -> bool {
    let command = match holder {
        Holder::Description => libc::F_OFD_SETLK,
        Holder::Process => libc::F_SETLK,
    };
    // SAFETY: the record is initialised.
    unsafe { libc::fcntl(fd.as_raw_fd(), command, &one_byte(at, kind)) == 0 }
}

/// Locks a byte. Returns `false` while another owner has it locked.
pub(crate) fn lock(fd: &OwnedFd, holder: Holder, at: usize) -> bool {
    set_lock(fd, holder, at, libc::F_WRLCK)
}

/// Releases a lock that [`lock`] took.
pub(crate) fn unlock(fd: &OwnedFd, holder: Holder, at: usize) {
    let _ = set_lock(fd, holder, at, libc::F_UNLCK);
}

/// Checks whether the byte is locked, also by this process, except for locks of this very description. If the query fails, the byte
/// counts as locked. Returns `None` if the kernel of a sandbox cannot report this process's own locks (Linux itself can since
/// 3.15).
pub(crate) fn is_locked(fd: &OwnedFd, at: usize) -> Option<bool> {
    let mut byte = one_byte(at, libc::F_WRLCK);
    // SAFETY: `byte` is a record that the kernel changes.
    let asked = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &mut byte) };
    if asked != 0 && last().raw_os_error() == Some(libc::EINVAL) {
        return None;
    }
    Some(asked != 0 || i32::from(byte.l_type) != libc::F_UNLCK)
}

/// Checks whether another process has the byte locked, for a kernel that cannot report more.
pub(crate) fn is_locked_by_another_process(fd: &OwnedFd, at: usize) -> bool {
    let mut byte = one_byte(at, libc::F_WRLCK);
    // SAFETY: `byte` is a record that the kernel changes.
    let asked = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETLK, &mut byte) };
    asked != 0 || i32::from(byte.l_type) != libc::F_UNLCK
}

/// Returns the same memory file through a new description; `None` if that is impossible.
pub(crate) fn reopened(fd: &OwnedFd) -> Option<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let again = std::fs::OpenOptions::new().read(true).write(true).open(path).ok()?;
    let which = |fd: RawFd| {
        // SAFETY: `stat` is a plain record that fstat fills.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: fstat fills the record, which lives through the call.
        (unsafe { libc::fstat(fd, &mut stat) } == 0).then_some((stat.st_dev, stat.st_ino))
    };
    let same = which(again.as_raw_fd()).is_some_and(|own| Some(own) == which(fd.as_raw_fd()));
    same.then(|| again.into())
}

/// Checks whether there is no process with that number in this process's PID namespace.
pub(crate) fn is_no_process(number: u64) -> bool {
    let Some(pid) = i32::try_from(number).ok().filter(|pid| *pid > 0) else { return false };
    // SAFETY: signal 0 is not delivered.
    unsafe { libc::kill(pid, 0) != 0 && last().raw_os_error() == Some(libc::ESRCH) }
}

/// Returns the number of this process in its own PID namespace.
#[must_use]
pub fn own_pid() -> i32 {
    // SAFETY: the call has no preconditions.
    unsafe { libc::getpid() }
}

/// Returns unpredictable bytes.
///
/// # Errors
/// The kernel supplies no random bytes.
pub fn random<const N: usize>() -> Result<[u8; N], Failure> {
    const { assert!(N <= 256, "so many come at once, and no signal cuts them short") };
    let mut out = [0; N];
    // SAFETY: the call writes at most N bytes.
    let got = unsafe { libc::getrandom(out.as_mut_ptr().cast(), N, 0) };
    if got == N as isize { Ok(out) } else { Err(Failure::last_os_error("getting random bytes")) }
}

/// Returns this process's real user, which the kernel compares.
pub(crate) fn own_uid() -> u32 {
    // SAFETY: the call has no preconditions.
    unsafe { libc::getuid() }
}

/// Returns a new descriptor for the file that process `pid` has open as `number`. `pidfd_getfd` requires the same right as reading
/// that process's memory.
pub(crate) fn descriptor_of(pid: i32, number: i32) -> io::Result<OwnedFd> {
    let owned = |fd: RawFd| {
        // SAFETY: the descriptor is new, and nothing else owns it.
        unsafe { OwnedFd::from_raw_fd(fd) }
    };
    // SAFETY: the call takes numbers only.
    let process = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let mut error = last();
    if process >= 0 {
        let process = owned(process as RawFd);
        // SAFETY: the call takes numbers only.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
        if fd >= 0 {
            return Ok(owned(fd as RawFd));
        }
        error = last();
    }
    // The calls fail as forbidden before Linux 5.6, or if a filter forbids them.
    if !is_forbidden(&error) {
        return Err(error);
    }
    let path = format!("/proc/{pid}/fd/{number}");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path);
    file.map(OwnedFd::from).map_err(|_| error)
}

#[cfg(test)]
mod tests;
