//! The device and memory: each call behind a safe function.
//!
//! The kernel interface is that of xpmem 2.6 and 2.7: numbers without a size, `_IO('x', n)`; all identifiers are numbers.

#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io::Error;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

#[cfg(test)]
pub(crate) use tieline_memory_file::own_pid;
use tieline_memory_file::{Piece, apply32, apply64, copy};
use tieline_plugin_api::abi::Atomic;
pub(crate) use tieline_single_copy::{Direction, Errno};

/// The kernel's name for a range of one process's memory. The lower half is that process's number.
pub(crate) type Segment = i64;
/// The kernel's name for this process's right to attach parts of a segment.
pub(crate) type Permit = i64;

/// The error for a process that has inherited the descriptor and did not open the device itself. No libc defines it.
pub(crate) const NOT_OPENED: Errno = 2004;

const VERSION: libc::c_ulong = 0x7800;
const MAKE: libc::c_ulong = 0x7801;
const REMOVE: libc::c_ulong = 0x7802;
const GET: libc::c_ulong = 0x7803;
const RELEASE: libc::c_ulong = 0x7804;
const ATTACH: libc::c_ulong = 0x7805;
const DETACH: libc::c_ulong = 0x7806;

/// The mode that restricts permits to processes of the same user.
const MODE: u64 = 0o600;
/// The only kind of permission.
const BY_MODE: i32 = 1;
/// The flag of a permit to read and write. A read-only permit cannot be attached at all.
const READ_WRITE: i32 = 2;

#[repr(C)]
struct Make {
    start: u64,
    size: u64,
    kind: i32,
    pad: u32,
    mode: u64,
    segment: Segment,
}

#[repr(C)]
struct Get {
    segment: Segment,
    flags: i32,
    kind: i32,
    nothing: u64,
    permit: Permit,
}

#[repr(C)]
struct Attach {
    permit: Permit,
    offset: i64,
    size: u64,
    address: u64,
    fd: i32,
    flags: i32,
}

const _: () = {
    assert!(size_of::<Make>() == 40 && size_of::<Get>() == 32 && size_of::<Attach>() == 40);
    assert!(core::mem::offset_of!(Make, segment) == 32);
    assert!(core::mem::offset_of!(Get, permit) == 24);
    assert!(core::mem::offset_of!(Attach, address) == 24);
};

/// The kernel operations that the provider uses. Tests replace them with a double.
pub(crate) trait Kernel: Send + Sync {
    /// Makes a segment of whole pages of this process's memory. Start 0 with size `u64::MAX` covers all of it.
    fn make(&self, start: u64, size: u64) -> Result<Segment, Errno>;

    /// Ends a segment of this process: its memory becomes inaccessible to peers.
    fn remove(&self, segment: Segment) -> Result<(), Errno>;

    /// Gets a permit to attach parts of a segment.
    fn get(&self, segment: Segment) -> Result<Permit, Errno>;

    /// Releases a permit and its attachments.
    fn release(&self, permit: Permit) -> Result<(), Errno>;

    /// Maps whole pages of a segment and returns their address. Unmapped pages of the owner are holes in the mapping.
    fn attach(&self, permit: Permit, offset: u64, size: u64) -> Result<u64, Errno>;

    /// Ends an attachment. Only this call may end it: if a process unmaps an attachment itself, the kernel kills the process.
    fn detach(&self, address: u64) -> Result<(), Errno>;

    /// Lets the kernel copy between local pieces and the same number of bytes at `attached`, in order. Returns the number of bytes
    /// copied. The number is smaller if a later page is inaccessible; the error is `EFAULT` if the first page is. The pieces are
    /// those of an operation (or this provider's own).
    fn copy(
        &self,
        direction: Direction,
        pieces: &[Piece<'_>],
        attached: u64,
        len: usize,
    ) -> Result<usize, Errno>;

    /// Closes the descriptor, which ends everything that this process made. No operation may follow.
    fn close(&self) {}

    /// Returns the number of the device's descriptor.
    fn descriptor(&self) -> i32 {
        -1
    }

    /// Checks whether this process has the device open through another descriptor that is not in the list. Closing the own
    /// descriptor would then end everything made through the other one.
    fn is_open_elsewhere(&self, _but: &[i32]) -> bool {
        false
    }
}

/// The open device. A process has one descriptor: closing any other would end everything that the process has made.
pub(crate) struct Device {
    /// The descriptor; -1 if the device is closed.
    fd: AtomicI32,
    /// The device number of the device file.
    number: u64,
}

impl Device {
    /// Opens the device.
    pub(crate) fn open(path: &Path) -> Result<Device, Error> {
        let file =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(path)?;
        let number = file.metadata()?.rdev();
        Ok(Device { fd: AtomicI32::new(file.into_raw_fd()), number })
    }

    /// Returns the version of the module: `0x00027004` is 2.7.4.
    pub(crate) fn version(&self) -> Result<u32, Errno> {
        // SAFETY: the command takes no argument.
        let answered = unsafe { self.call(VERSION, core::ptr::null_mut()) }?;
        Ok(answered as u32)
    }

    /// # Safety
    /// `argument` is the record that the kernel reads and writes for `number`.
    unsafe fn call(&self, number: libc::c_ulong, argument: *mut u8) -> Result<i32, Errno> {
        let fd = self.fd.load(Ordering::Acquire);
        loop {
            // SAFETY: the descriptor belongs to this object, or is -1, which is none; the caller guarantees the argument.
            let answered = unsafe { libc::ioctl(fd, number as _, argument) };
            if answered >= 0 {
                return Ok(answered);
            }
            match Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                errno => return Err(errno.unwrap_or(libc::EIO)),
            }
        }
    }
}

impl Kernel for Device {
    fn make(&self, start: u64, size: u64) -> Result<Segment, Errno> {
        let mut make = Make { start, size, kind: BY_MODE, pad: 0, mode: MODE, segment: 0 };
        // SAFETY: the record has 40 bytes. The kernel only records the range.
        let _ = unsafe { self.call(MAKE, (&raw mut make).cast()) }?;
        Ok(make.segment)
    }

    fn remove(&self, mut segment: Segment) -> Result<(), Errno> {
        // SAFETY: the command reads 8 bytes.
        unsafe { self.call(REMOVE, (&raw mut segment).cast()) }.map(drop)
    }

    fn get(&self, segment: Segment) -> Result<Permit, Errno> {
        let mut get = Get { segment, flags: READ_WRITE, kind: BY_MODE, nothing: 0, permit: 0 };
        // SAFETY: the record has 32 bytes.
        let _ = unsafe { self.call(GET, (&raw mut get).cast()) }?;
        Ok(get.permit)
    }

    fn release(&self, mut permit: Permit) -> Result<(), Errno> {
        // SAFETY: the command reads 8 bytes; the holder of a permit has no attachment through it any more.
        unsafe { self.call(RELEASE, (&raw mut permit).cast()) }.map(drop)
    }

    fn attach(&self, permit: Permit, offset: u64, size: u64) -> Result<u64, Errno> {
        let offset = i64::try_from(offset).map_err(|_| libc::EINVAL)?;
        let mut attach = Attach { permit, offset, size, address: 0, fd: -1, flags: 0 };
        // SAFETY: the record has 40 bytes; the call makes a new mapping at an address of the kernel's choice.
        let _ = unsafe { self.call(ATTACH, (&raw mut attach).cast()) }?;
        Ok(attach.address)
    }

    fn detach(&self, mut address: u64) -> Result<(), Errno> {
        // SAFETY: the command reads 8 bytes. It ends a mapping that is an attachment, and only that attachment's `Attachment`
        // requests this.
        unsafe { self.call(DETACH, (&raw mut address).cast()) }.map(drop)
    }

    fn copy(
        &self,
        direction: Direction,
        pieces: &[Piece<'_>],
        attached: u64,
        len: usize,
    ) -> Result<usize, Errno> {
        // In a copy between "processes" the kernel looks up the pages of the remote side, which it cannot do for attached pages.
        // The kernel accesses the local side with loads and stores, like any system call: a missing page causes EFAULT and no
        // signal.
        let call = match direction {
            Direction::Put => libc::process_vm_readv,
            Direction::Get => libc::process_vm_writev,
        };
        let local = iovec(core::ptr::with_exposed_provenance_mut(attached as usize), len);
        // SAFETY: the list has the layout of `iovec` (as `Piece` has) and lives through the call. The attached memory is kept by
        // its `Attachment`. The poster promises that its pieces may be read by a put and written by a get until the operation has
        // completed (`RmaOp`). The operation completes after this call.
        unsafe { copy_here(call, local, pieces.as_ptr().cast(), pieces.len()) }
    }

    fn is_open_elsewhere(&self, but: &[i32]) -> bool {
        let own = [but, &[self.descriptor()]].concat();
        is_open(self.number, &own)
    }

    fn descriptor(&self) -> i32 {
        self.fd.load(Ordering::Acquire)
    }

    fn close(&self) {
        let fd = self.fd.swap(-1, Ordering::AcqRel);
        if fd >= 0 {
            // SAFETY: the descriptor belongs to this object, and only this call takes it out of the field.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
}

/// Returns a memory range in the kernel's format.
fn iovec(base: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: base.cast(), iov_len: len }
}

/// The type of a call that copies between two processes.
type Call = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

/// Copies between one piece and a list of pieces, both of this process, up to the shorter length. The kernel checks all addresses.
/// The process is identified by the calling thread: if its first thread has ended, the process's own number identifies no memory.
///
/// # Safety
/// The list has `count` entries, and the destination may be written.
unsafe fn copy_here(
    call: Call,
    local: libc::iovec,
    remote: *const libc::iovec,
    count: usize,
) -> Result<usize, Errno> {
    // SAFETY: the call takes no pointer and cannot fail.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as libc::pid_t;
    // SAFETY: both lists live through the call; the caller guarantees the rest.
    let copied = unsafe { call(thread, &raw const local, 1, remote, count as libc::c_ulong, 0) };
    usize::try_from(copied).map_err(|_| Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// Checks whether the kernel can read, and for a get also write, the first byte of each piece of an operation.
pub(crate) fn can_be_copied(direction: Direction, pieces: &[Piece<'_>]) -> bool {
    let mut byte = 0u8;
    let byte = &raw mut byte;
    pieces.iter().filter(|piece| !piece.is_empty()).all(|piece| {
        let (local, remote) = (iovec(byte, 1), iovec(piece.base(), 1));
        // SAFETY: each list has one piece, and the call writes one byte to `byte`.
        let read = unsafe { copy_here(libc::process_vm_readv, local, &raw const remote, 1) };
        // SAFETY: each list has one piece. The byte is overwritten with its own value: the operation may write it, and nothing else
        // does until the operation has ended.
        let same = || unsafe { copy_here(libc::process_vm_writev, local, &raw const remote, 1) };
        read == Ok(1) && (direction == Direction::Put || same() == Ok(1))
    })
}

/// Checks whether the kernel can copy the first and the last of `len` bytes. The kernel can copy neither device memory nor
/// attachments of another process's memory, which the module cannot fault in for a peer. If the kernel forbids the test, the result
/// is `true`.
pub(crate) fn may_be_attached(base: u64, len: u64) -> bool {
    let mut bytes = [0u8; 2];
    let at = |address: u64| iovec(core::ptr::with_exposed_provenance_mut(address as usize), 1);
    let ends = [at(base), at(base.saturating_add(len).saturating_sub(1))];
    let local = iovec(bytes.as_mut_ptr(), bytes.len());
    // SAFETY: the list has two pieces, and the call writes two bytes to `bytes`.
    match unsafe { copy_here(libc::process_vm_readv, local, ends.as_ptr(), ends.len()) } {
        Ok(copied) => copied == ends.len(),
        Err(errno) => errno != libc::EFAULT,
    }
}

/// Checks whether the first thread of this process has ended while others continue. The process's number then identifies no memory
/// for the kernel.
pub(crate) fn first_thread_has_ended() -> bool {
    let (mut byte, there) = (0u8, 0u8);
    let local = iovec(&raw mut byte, 1);
    let remote = iovec((&raw const there).cast_mut(), 1);
    // SAFETY: the call copies one byte of the stack to another.
    let copied = unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    copied < 0 && Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// Returns the number of the character device behind a descriptor. The query does not involve a file system, which might not
/// respond.
pub(crate) fn device_behind(fd: i32) -> Option<u64> {
    // SAFETY: the kernel fills the plain record.
    let mut found: libc::statx = unsafe { core::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the name is NUL-terminated, and the record has the kernel's layout.
    let asked = unsafe {
        libc::syscall(libc::SYS_statx, fd, c"".as_ptr(), flags, libc::STATX_TYPE, &raw mut found)
    };
    let kind = u32::from(found.stx_mode) & libc::S_IFMT;
    (asked == 0 && kind == libc::S_IFCHR)
        .then(|| libc::makedev(found.stx_rdev_major, found.stx_rdev_minor))
}

/// Checks whether this process has a character device open through a descriptor not in the list. Returns `false` if the descriptors
/// cannot be listed.
pub(crate) fn is_open(device: u64, but: &[i32]) -> bool {
    let Ok(listed) = std::fs::read_dir("/proc/self/fd") else { return false };
    listed
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .any(|fd| !but.contains(&fd) && device_behind(fd) == Some(device))
}

/// Copies between local memory and the attached memory at `attached`, by loads and stores. The caller keeps the attachment. If
/// the owner has removed the memory, SIGBUS kills the process.
#[inline]
pub(crate) fn carry(direction: Direction, piece: Piece<'_>, attached: u64) {
    let remote = core::ptr::with_exposed_provenance_mut::<u8>(attached as usize);
    let (from, to) = match direction {
        Direction::Put => (piece.base().cast_const(), remote),
        Direction::Get => (remote.cast_const(), piece.base()),
    };
    // SAFETY: the poster promises that its pieces may be read by a put and written by a get until the operation has completed
    // (`RmaOp`). The caller keeps the same number of bytes attached. A concurrent access by the peer to the same bytes gets a mix
    // of both, as specified for remote memory access.
    unsafe { copy(from, to, piece.len()) };
}

/// Executes an atomic on the naturally aligned word at `attached`, and returns its previous value. The caller keeps the
/// attachment, and has checked operation and width.
pub(crate) fn atomic(attached: u64, op: &Atomic) -> u64 {
    let at = core::ptr::with_exposed_provenance_mut::<u8>(attached as usize);
    // SAFETY: the word is aligned and attached, as the caller guarantees; shared bytes are accessed only by atomics and raw copies.
    unsafe {
        if op.width == 8 {
            apply64(AtomicU64::from_ptr(at.cast()), op)
        } else {
            u64::from(apply32(AtomicU32::from_ptr(at.cast()), op))
        }
    }
}

/// Checks whether the kernel can copy between this process and process `pid`, like shm-cma does. Normally nothing is mapped at
/// address 0, so such a copy returns EFAULT, or the error of a refusal.
pub(crate) fn kernel_copies_from(pid: i32) -> bool {
    let mut byte = 0u8;
    let local = iovec(&raw mut byte, 1);
    let remote = iovec(core::ptr::null_mut(), 1);
    // SAFETY: the call writes at most one byte to `byte`; the kernel checks the other address.
    let copied =
        unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    copied >= 0 || Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}

/// Two pages of this process, of which the second is unmapped: a model of a peer's hole.
pub(crate) struct Torn {
    at: *mut libc::c_void,
    page: usize,
}

impl Torn {
    /// Maps both pages and unmaps the second.
    pub(crate) fn new(page: usize) -> Result<Torn, Error> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the call makes a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), 2 * page, protection, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        // SAFETY: the second of the two pages was just mapped, and no reference to it exists.
        let _ = unsafe { libc::munmap(at.wrapping_byte_add(page), page) };
        Ok(Torn { at, page })
    }

    /// Returns the address of the first page.
    pub(crate) fn start(&self) -> u64 {
        self.at.expose_provenance() as u64
    }
}

impl Drop for Torn {
    fn drop(&mut self) {
        // SAFETY: the first page belongs to this object.
        let _ = unsafe { libc::munmap(self.at, self.page) };
    }
}

#[cfg(test)]
mod tests;
