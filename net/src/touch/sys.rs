//! The system calls, and the descriptors that they use.

#![allow(unsafe_code)]

use super::{Fault, PAGE, SHORT};
use std::cell::{Cell, OnceCell};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The descriptors for copies. The object belongs to one thread at a time and to one process. Each descriptor is created on first
/// use.
#[derive(Debug)]
pub struct Touch {
    /// Whether the kernel lets this process copy from and to itself.
    whole: Cell<bool>,
    file: OnceCell<Option<File>>,
    counter: OnceCell<Option<OwnedFd>>,
    pipe: OnceCell<Option<(OwnedFd, OwnedFd)>>,
    pid: i32,
}

impl Default for Touch {
    fn default() -> Touch {
        Touch {
            whole: Cell::new(true),
            file: OnceCell::new(),
            counter: OnceCell::new(),
            pipe: OnceCell::new(),
            pid: own_pid(),
        }
    }
}

/// A memory file and its mapping. A forked child does not inherit the mapping.
#[derive(Debug)]
struct File {
    fd: OwnedFd,
    map: *mut u8,
    pid: i32,
}

// SAFETY: the mapping belongs to this record only, and is not bound to a thread.
unsafe impl Send for File {}

impl File {
    fn new() -> Option<File> {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the record is writable.
        let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0;
        // If a file grows beyond the limit, a signal ends this process.
        if !known || limit.rlim_cur < SHORT as libc::rlim_t {
            return None;
        }
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(c"tieline-touch".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return None;
        }
        // SAFETY: the descriptor was just created, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the call takes numbers only. The pages are allocated here, so a later store cannot fail.
        if unsafe { libc::fallocate(fd.as_raw_fd(), 0, 0, SHORT as libc::off_t) } != 0 {
            return None;
        }
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping does not affect existing memory.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SHORT,
                prot,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                fd.as_raw_fd(),
                0,
            )
        };
        if map == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the mapping belongs to this object. A child that inherited it would share these bytes with its parent.
        let _ = unsafe { libc::madvise(map, SHORT, libc::MADV_DONTFORK) };
        Some(File { fd, map: map.cast(), pid: own_pid() })
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // In a forked child another mapping may be at this address.
        if self.pid == own_pid() {
            // SAFETY: `new` made the mapping in this process, and it is unmapped once.
            let _ = unsafe { libc::munmap(self.map.cast(), SHORT) };
        }
    }
}

fn own_pid() -> i32 {
    // SAFETY: the call takes nothing.
    unsafe { libc::getpid() }
}

/// Returns the number of bytes that a system call copied.
fn count(result: isize) -> Result<usize, i32> {
    usize::try_from(result)
        .map_err(|_| io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

fn flow(make: impl FnOnce(&mut [i32; 2]) -> i32) -> Option<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    if make(&mut fds) != 0 {
        return None;
    }
    // SAFETY: the descriptors were just created, and nothing else owns them.
    Some(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

impl Touch {
    /// Copies bytes to the application's memory.
    ///
    /// # Errors
    /// The offset of the first byte that is missing or not writable, or that could not be copied because a pipe could not be made.
    ///
    /// # Safety
    /// The application has provided these bytes for writing, for as long as they are mapped, and nothing else in this process uses
    /// them.
    pub unsafe fn write(&self, to: *mut u8, data: &[u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < data.len() {
            let (to, rest) = (to.wrapping_add(done), &data[done..]);
            // A pipe loses the bytes that it copied before a fault.
            let first = PAGE - to.addr() % PAGE;
            // SAFETY: the caller's promise, for the rest.
            let copied = unsafe { self.write_some(to, rest) }.filter(|copied| *copied > 0);
            let again = || match rest.get(..first) {
                // SAFETY: the caller's promise covers the first page of the rest.
                Some(rest) => unsafe { self.write_some(to, rest) },
                None => None,
            };
            match copied.or_else(again) {
                Some(0) | None => return Err(Fault(done)),
                Some(copied) => done += copied,
            }
        }
        Ok(())
    }

    /// Copies bytes out of the application's memory.
    ///
    /// # Errors
    /// The offset of the first byte that is missing or not readable, or that could not be copied because a pipe could not be made.
    ///
    /// # Safety
    /// The bytes were provided for reading; otherwise the contract is that of [`Touch::write`].
    pub unsafe fn read(&self, from: *const u8, out: &mut [u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < out.len() {
            let (from, rest) = (from.wrapping_add(done), &mut out[done..]);
            let first = PAGE - from.addr() % PAGE;
            // SAFETY: the caller's promise, for the rest.
            let copied = unsafe { self.read_some(from, rest) }.filter(|copied| *copied > 0);
            let again = || match rest.get_mut(..first) {
                // SAFETY: the caller's promise covers the first page of the rest.
                Some(rest) => unsafe { self.read_some(from, rest) },
                None => None,
            };
            match copied.or_else(again) {
                Some(0) | None => return Err(Fault(done)),
                Some(copied) => done += copied,
            }
        }
        Ok(())
    }

    /// # Safety
    /// `to` and `data` satisfy the contract of [`Touch::write`].
    unsafe fn write_some(&self, to: *mut u8, data: &[u8]) -> Option<usize> {
        let by_kernel = || {
            let call = libc::process_vm_readv;
            // SAFETY: the kernel reads `data`, and writes to bytes that the caller may write.
            unsafe { self.copy_whole(call, to, data.as_ptr(), data.len()) }
        };
        if data.len() > SHORT {
            if let Some(copied) = by_kernel() {
                return copied;
            }
        }
        let Some(file) = self.file.get_or_init(File::new) else {
            if let Some(copied) = by_kernel() {
                return copied;
            }
            // SAFETY: the caller's promise.
            return unsafe { self.write_through_pipe(to, data) };
        };
        let len = data.len().min(SHORT);
        // SAFETY: the mapping is long enough and belongs to this object only.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), file.map, len) };
        // SAFETY: the kernel checks the address; the caller may write these bytes.
        count(unsafe { libc::pread(file.fd.as_raw_fd(), to.cast(), len, 0) }).ok()
    }

    /// # Safety
    /// `from` and `out` satisfy the contract of [`Touch::read`].
    unsafe fn read_some(&self, from: *const u8, out: &mut [u8]) -> Option<usize> {
        if out.len() <= 8 && from.addr() % 8 + out.len() <= 8 {
            if let Some(counter) = self.counter.get_or_init(new_counter) {
                return read_word(counter, from, out);
            }
        }
        if out.len() > PAGE {
            let (call, at, len) = (libc::process_vm_writev, out.as_mut_ptr(), out.len());
            // SAFETY: the kernel reads bytes that the caller may read, and writes to `out`.
            if let Some(copied) = unsafe { self.copy_whole(call, from.cast_mut(), at, len) } {
                return copied;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.read_through_pipe(from, out) }
    }

    /// Makes one copy between the application's memory, which the kernel accesses in this process, and the library's. Returns
    /// `None` if the system forbids the copy, or lacks memory for it.
    ///
    /// # Safety
    /// The call may access both sides in its direction, the first side as long as it is mapped.
    unsafe fn copy_whole(
        &self,
        call: unsafe extern "C" fn(
            libc::pid_t,
            *const libc::iovec,
            libc::c_ulong,
            *const libc::iovec,
            libc::c_ulong,
            libc::c_ulong,
        ) -> isize,
        theirs: *mut u8,
        ours: *const u8,
        len: usize,
    ) -> Option<Option<usize>> {
        if !self.whole.get() {
            return None;
        }
        let local = libc::iovec { iov_base: theirs.cast(), iov_len: len };
        let remote = libc::iovec { iov_base: ours.cast_mut().cast(), iov_len: len };
        // SAFETY: both records live through the call; the caller is responsible for the memory that they describe.
        match count(unsafe { call(self.pid, &local, 1, &remote, 1, 0) }) {
            Err(libc::EPERM | libc::ENOSYS | libc::EACCES | libc::ESRCH) => {
                self.whole.set(false);
                None
            }
            Err(libc::ENOMEM | libc::EAGAIN) => None,
            copied => Some(copied.ok()),
        }
    }

    fn pipe(&self) -> Option<&(OwnedFd, OwnedFd)> {
        let new = |fds: &mut [i32; 2]| {
            // SAFETY: the array has room for two descriptors.
            unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) }
        };
        self.pipe.get_or_init(|| flow(new)).as_ref()
    }

    /// # Safety
    /// `to` and `data` satisfy the contract of [`Touch::write`].
    unsafe fn write_through_pipe(&self, to: *mut u8, data: &[u8]) -> Option<usize> {
        let (reader, writer) = self.pipe()?;
        let len = data.len().min(PAGE);
        // SAFETY: the call reads the slice.
        let sent =
            count(unsafe { libc::write(writer.as_raw_fd(), data.as_ptr().cast(), len) }).ok()?;
        // SAFETY: the kernel checks the address; the caller may write these bytes.
        let came = count(unsafe { libc::read(reader.as_raw_fd(), to.cast(), sent) });
        if came == Ok(sent) {
            return Some(sent);
        }
        let mut rest = [0; PAGE];
        // SAFETY: the buffer has room for all bytes in the pipe.
        let _ = unsafe { libc::read(reader.as_raw_fd(), rest.as_mut_ptr().cast(), PAGE) };
        came.ok()
    }

    /// # Safety
    /// `from` and `out` satisfy the contract of [`Touch::read`].
    unsafe fn read_through_pipe(&self, from: *const u8, out: &mut [u8]) -> Option<usize> {
        let (reader, writer) = self.pipe()?;
        let len = out.len().min(PAGE);
        // SAFETY: the kernel checks the address; the caller may read these bytes.
        let sent = count(unsafe { libc::write(writer.as_raw_fd(), from.cast(), len) }).ok()?;
        // SAFETY: the call writes to the slice, which has this length.
        count(unsafe { libc::read(reader.as_raw_fd(), out.as_mut_ptr().cast(), sent) }).ok()
    }
}

fn new_counter() -> Option<OwnedFd> {
    // SAFETY: the call takes no pointer.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    // SAFETY: the descriptor was just created, and nothing else owns it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Reads bytes of one aligned word. The kernel reads the whole word, adds it to the counter, which is zero, and returns it.
fn read_word(counter: &OwnedFd, from: *const u8, out: &mut [u8]) -> Option<usize> {
    let skip = from.addr() % 8;
    // SAFETY: the kernel checks the address. The word lies in one page, so it exists if its bytes do.
    let put = count(unsafe { libc::write(counter.as_raw_fd(), from.wrapping_sub(skip).cast(), 8) });
    let mut word = [0u8; 8];
    match put {
        Ok(_) => {
            // SAFETY: eight bytes are writable. A counter of zero returns nothing, and the word stays zero.
            let _ = unsafe { libc::read(counter.as_raw_fd(), word.as_mut_ptr().cast(), 8) };
        }
        // This is the only value that a counter refuses, and only after the word was read.
        Err(libc::EINVAL) => word = [0xff; 8],
        Err(_) => return None,
    }
    out.copy_from_slice(&word[skip..skip + out.len()]);
    Some(out.len())
}

/// Checks whether the aligned 32-bit word at an address is writable: the kernel adds 0 to it in one atomic operation. The page may
/// disappear immediately afterwards.
#[must_use]
pub fn is_writable(at: usize) -> bool {
    /// The operation that adds 0 and then compares with a value (-2048) that few words hold. A sleeper on such a word checks the
    /// word once more.
    const ADD_NOTHING: u32 = 1 << 28 | 0x800;
    let own = 0u32;
    // SAFETY: the first word belongs to this call, and no thread waits on it. The kernel checks the address of the second word,
    // which keeps its value.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            &raw const own,
            libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG,
            0,
            0usize,
            at,
            ADD_NOTHING,
        )
    };
    result >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
