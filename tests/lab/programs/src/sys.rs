//! The system calls of the lab's programs: access to memory by its address, which may be unmapped, and calls that return their
//! errno.
//!
//! Addresses are plain numbers here. The memory that a test accesses may be unmapped on purpose, or belong to another process. An
//! access that the kernel refuses ends a process of the test, and the test checks that end.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The size of a page in bytes.
pub const PAGE: usize = 4096;

/// The result of a call, or its errno.
pub type Answer<T = ()> = Result<T, i32>;

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn answer(returned: i64) -> Answer<i64> {
    if returned < 0 { Err(errno()) } else { Ok(returned) }
}

/// Calls ioctl.
pub fn ioctl<T>(fd: RawFd, number: u64, argument: &mut T) -> Answer<i64> {
    // SAFETY: each caller's argument has the layout of its command; the modules write only inside the argument.
    answer(i64::from(unsafe { libc::ioctl(fd, number, std::ptr::from_mut(argument)) }))
}

/// Calls open with `O_CLOEXEC`.
pub fn open(path: &str, flags: i32) -> Answer<RawFd> {
    let path = CString::new(path).unwrap_or_default();
    // SAFETY: the path ends with a zero.
    answer(i64::from(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) }))
        .map(|fd| fd as RawFd)
}

/// Calls close.
pub fn close(fd: RawFd) {
    // SAFETY: the call passes only a number.
    let _ = unsafe { libc::close(fd) };
}

/// Calls dup.
pub fn dup(fd: RawFd) -> Answer<RawFd> {
    // SAFETY: the call passes only a number.
    answer(i64::from(unsafe { libc::dup(fd) })).map(|fd| fd as RawFd)
}

fn mapped(address: *mut libc::c_void) -> Answer<usize> {
    if address == libc::MAP_FAILED { Err(errno()) } else { Ok(address as usize) }
}

/// Maps new private memory, which is zeroed.
pub fn map(len: usize) -> usize {
    map_at(0, len).unwrap_or_else(|e| panic!("mmap: errno {e}"))
}

/// Maps new private memory at an address (0: any address), replacing existing mappings.
pub fn map_at(address: usize, len: usize) -> Answer<usize> {
    let fixed = if address == 0 { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    // SAFETY: the replaced memory belongs to the test.
    mapped(unsafe {
        libc::mmap(address as *mut _, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    })
}

/// Maps new memory that children share.
pub fn map_shared(len: usize) -> usize {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: the call maps new memory.
    let address = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    mapped(address).unwrap_or_else(|e| panic!("mmap: errno {e}"))
}

/// Maps a descriptor for reading.
pub fn map_file(fd: RawFd, offset: i64, len: usize) -> Answer<usize> {
    // SAFETY: the call maps new memory.
    mapped(unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, fd, offset)
    })
}

/// Calls munmap.
pub fn unmap(address: usize, len: usize) {
    // SAFETY: the memory belongs to the test.
    let _ = unsafe { libc::munmap(address as *mut _, len) };
}

/// Moves a mapping to a new address with mremap.
pub fn remap(address: usize, len: usize) -> Answer<usize> {
    let to = map(len);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: both ranges belong to the test.
    mapped(unsafe { libc::mremap(address as *mut _, len, len, flags, to as *mut libc::c_void) })
}

/// Calls mprotect for reading only, or for reading and writing.
pub fn protect(address: usize, len: usize, writable: bool) -> Answer<i64> {
    let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
    // SAFETY: the memory belongs to the test.
    answer(i64::from(unsafe { libc::mprotect(address as *mut _, len, protection) }))
}

/// Discards pages with `MADV_DONTNEED`.
pub fn discard(address: usize, len: usize) {
    // SAFETY: the memory belongs to the test.
    let _ = unsafe { libc::madvise(address as *mut _, len, libc::MADV_DONTNEED) };
}

/// Stores a byte.
pub fn store(address: usize, byte: u8) {
    // SAFETY: see the top of this file. The store is atomic, since another process may access the byte at the same time.
    unsafe { AtomicU8::from_ptr(address as *mut u8) }.store(byte, Ordering::SeqCst);
}

/// Loads a byte.
pub fn load(address: usize) -> u8 {
    // SAFETY: see the top of this file. The load is atomic, since another process may access the byte at the same time.
    unsafe { AtomicU8::from_ptr(address as *mut u8) }.load(Ordering::SeqCst)
}

/// Stores a word that is aligned.
pub fn store_word(address: usize, word: u64) {
    // SAFETY: see the top of this file. The store is atomic, since another process may access the word at the same time.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }.store(word, Ordering::SeqCst);
}

/// Loads a word that is aligned.
pub fn load_word(address: usize) -> u64 {
    // SAFETY: see the top of this file. The load is atomic, since another process may access the word at the same time.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }.load(Ordering::SeqCst)
}

/// Adds one to a word that is aligned.
pub fn count_word(address: usize) {
    // SAFETY: see the top of this file. The addition is atomic, since another process may access the word at the same time.
    let _ = unsafe { AtomicU64::from_ptr(address as *mut u64) }.fetch_add(1, Ordering::SeqCst);
}

/// Makes a pipe, and returns its end for reading and its end for writing.
pub fn pipe() -> (RawFd, RawFd) {
    let mut ends = [0; 2];
    // SAFETY: the array is writable.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    assert_eq!(made, 0, "pipe: errno {}", errno());
    (ends[0], ends[1])
}

/// Calls write for any address.
pub fn write_from(fd: RawFd, address: usize, len: usize) -> Answer<i64> {
    // SAFETY: the kernel checks whether the memory is mapped.
    answer(unsafe { libc::write(fd, address as *const _, len) } as i64)
}

/// Calls read for any address.
pub fn read_to(fd: RawFd, address: usize, len: usize) -> Answer<i64> {
    // SAFETY: the kernel checks whether the memory is mapped.
    answer(unsafe { libc::read(fd, address as *mut _, len) } as i64)
}

/// Sends memory at any address over a new pair of sockets; returns the received bytes.
pub fn send_from(address: usize, len: usize) -> Answer<Vec<u8>> {
    let mut ends = [0; 2];
    let mut bytes = vec![0u8; len];
    // SAFETY: the array is writable, the buffer has the stated length, and the kernel checks whether the memory is mapped.
    let sent = unsafe {
        assert_eq!(libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()), 0);
        let sent = answer(libc::send(ends[0], address as *const _, len, 0) as i64);
        if sent.is_ok() {
            let _ = libc::recv(ends[1], bytes.as_mut_ptr().cast(), len, 0);
        }
        sent
    };
    ends.into_iter().for_each(close);
    sent.map(|_| bytes)
}

/// A private pipe, through which the kernel copies: the copy returns EFAULT in cases in which an access would cause a signal.
pub struct Pipe(RawFd, RawFd);

impl Default for Pipe {
    fn default() -> Pipe {
        let (from, to) = pipe();
        Pipe(from, to)
    }
}

impl Pipe {
    /// Copies a word by the kernel.
    pub fn word(&self, address: usize) -> Answer<u64> {
        let mut word = 0u64;
        let _ = write_from(self.1, address, 8)?;
        let _ = read_to(self.0, std::ptr::from_mut(&mut word) as usize, 8)?;
        Ok(word)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        close(self.0);
        close(self.1);
    }
}

/// Returns the byte at an address, copied by the kernel.
pub fn probe(address: usize) -> Answer<u8> {
    let pipe = Pipe::default();
    let mut byte = 0u8;
    let _ = write_from(pipe.1, address, 1)?;
    let _ = read_to(pipe.0, std::ptr::from_mut(&mut byte) as usize, 1)?;
    Ok(byte)
}

/// Calls `process_vm_readv` for `len` bytes.
pub fn read_process(pid: i32, remote: usize, local: usize, len: usize) -> Answer<i64> {
    let here = libc::iovec { iov_base: local as *mut _, iov_len: len };
    let there = libc::iovec { iov_base: remote as *mut _, iov_len: len };
    // SAFETY: each list has one piece, and the kernel checks whether the memory is mapped.
    answer(unsafe { libc::process_vm_readv(pid, &raw const here, 1, &raw const there, 1, 0) } as i64)
}

/// Calls `process_vm_writev` for `len` bytes.
pub fn write_process(pid: i32, local: usize, remote: usize, len: usize) -> Answer<i64> {
    let here = libc::iovec { iov_base: local as *mut _, iov_len: len };
    let there = libc::iovec { iov_base: remote as *mut _, iov_len: len };
    // SAFETY: each list has one piece, the kernel checks whether the memory is mapped, and the program does not rely on the bytes
    // at the destination.
    answer(
        unsafe { libc::process_vm_writev(pid, &raw const here, 1, &raw const there, 1, 0) } as i64
    )
}

/// Copies `len` bytes by loads and stores.
pub fn copy(from: usize, to: usize, len: usize) {
    // SAFETY: both ranges have this length and belong to the program or are attached to it. The ranges do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len) }
}

/// Forks, and returns 0 in the child. Only a process with one thread calls this function.
pub fn fork() -> i32 {
    // SAFETY: these programs have one thread.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: errno {}", errno());
    pid
}

/// Runs `body` in a child that shares this process's memory, and waits until it has ended.
pub fn in_other_process_of_same_memory(body: fn(usize), argument: usize) {
    extern "C" fn run(given: *mut libc::c_void) -> i32 {
        // SAFETY: `given` points to the argument of the call below, which waits until the child has ended.
        let (body, argument) = unsafe { *given.cast::<(fn(usize), usize)>() };
        body(argument);
        0
    }
    let mut given = (body, argument);
    let stack = map(1 << 18);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: only the child uses the stack, and this process waits until the child has ended.
    let pid = unsafe {
        libc::clone(
            run,
            (stack + (1 << 18)) as *mut _,
            flags,
            std::ptr::from_mut(&mut given).cast(),
        )
    };
    assert!(pid > 0, "clone: errno {}", errno());
    let _ = wait(pid);
    unmap(stack, 1 << 18);
}

/// The way in which a process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The process has exited with this status.
    Status(i32),
    /// This signal has ended the process.
    Signal(i32),
}

/// Waits for a child's end, and returns it.
pub fn wait(pid: i32) -> End {
    let mut status = 0;
    // SAFETY: the status is writable.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0 {}
    end(status)
}

/// Returns the end of a child that has ended, and reaps the child.
pub fn has_ended(pid: i32) -> Option<End> {
    let mut status = 0;
    // SAFETY: the status is writable.
    let found = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
    (found == pid).then(|| end(status))
}

fn end(status: i32) -> End {
    if libc::WIFSIGNALED(status) {
        End::Signal(libc::WTERMSIG(status))
    } else {
        End::Status(libc::WEXITSTATUS(status))
    }
}

/// Ends this process immediately, as a child that must not run its parent's exit handlers.
pub fn exit(status: i32) -> ! {
    // SAFETY: the call ends the process.
    unsafe { libc::_exit(status) }
}

/// Sends SIGKILL.
pub fn kill(pid: i32) {
    // SAFETY: the call passes only numbers.
    let _ = unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// Executes `sleep` in place of this process.
pub fn exec_sleep() {
    // SAFETY: every string ends with a zero, and the list ends with a null.
    let _ = unsafe {
        libc::execlp(
            c"sleep".as_ptr(),
            c"sleep".as_ptr(),
            c"60".as_ptr(),
            std::ptr::null::<libc::c_char>(),
        )
    };
}

/// Changes the process to this user, with this group only.
pub fn become_user(uid: u32, gid: u32) {
    // SAFETY: the calls pass only numbers.
    unsafe {
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0, "setgroups: errno {}", errno());
        assert_eq!(libc::setgid(gid), 0, "setgid: errno {}", errno());
        assert_eq!(libc::setuid(uid), 0, "setuid: errno {}", errno());
    }
}

/// Forbids other processes to access this process, by ptrace's checks.
pub fn not_dumpable() {
    // SAFETY: the call passes only numbers.
    let _ = unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
}

/// Prevents core files of children that crash on purpose.
pub fn no_core() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the record is readable.
    let _ = unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
}

/// Makes the kernel end this process when its parent ends.
pub fn end_with_parent() {
    // SAFETY: the call passes only numbers.
    let _ = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Returns this process's number in the initial namespace, from a /proc that is mounted for that namespace.
pub fn kernel_pid() -> i64 {
    // SAFETY: the calls affect only a separate mount namespace, in a process that ends soon.
    unsafe {
        assert_eq!(libc::unshare(libc::CLONE_NEWNS), 0, "unshare: errno {}", errno());
        let _ = libc::mount(
            std::ptr::null(),
            c"/".as_ptr(),
            std::ptr::null(),
            libc::MS_REC | libc::MS_PRIVATE,
            std::ptr::null(),
        );
        let _ = libc::umount2(c"/proc".as_ptr(), libc::MNT_DETACH);
    }
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("NStgid:")).unwrap_or("");
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(-1)
}
