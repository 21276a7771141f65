//! The system calls, each behind a safe function.

#![allow(unsafe_code)]

use std::io::Error;
use tieline_memory_file::Piece;
pub(crate) use tieline_memory_file::{own_pid, random};
use tieline_single_copy::Direction;
pub(crate) use tieline_single_copy::Errno;

/// A piece of the peer's memory. Only the kernel interprets the numbers.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Remote {
    address: usize,
    len: usize,
}

const _: () = assert!(
    size_of::<Remote>() == size_of::<libc::iovec>()
        && core::mem::offset_of!(Remote, address) == core::mem::offset_of!(libc::iovec, iov_base)
        && core::mem::offset_of!(Remote, len) == core::mem::offset_of!(libc::iovec, iov_len)
);

/// Copies between local pieces and pieces of process `pid`, in order, up to the shorter total length. Returns the number of bytes
/// copied, which is smaller if a later page is inaccessible.
///
/// The local pieces are those of an operation (or this module's own buffers).
pub(crate) fn copy(
    direction: Direction,
    pid: i32,
    local: &[Piece<'_>],
    remote: &[Remote],
) -> Result<usize, Errno> {
    let call = match direction {
        Direction::Put => libc::process_vm_writev,
        Direction::Get => libc::process_vm_readv,
    };
    // SAFETY: both arrays have the layout of `iovec` (asserted above and with `Piece`) and live through the call. The kernel checks
    // every address. The poster promises that its local pieces may be read by a put and written by a get until the operation has
    // completed (`RmaOp`). The operation completes after this call.
    let copied = unsafe {
        call(
            pid,
            local.as_ptr().cast(),
            local.len() as libc::c_ulong,
            remote.as_ptr().cast(),
            remote.len() as libc::c_ulong,
            0,
        )
    };
    usize::try_from(copied).map_err(|_| Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

impl Remote {
    pub(crate) fn address(self) -> u64 {
        self.address as u64
    }
}

/// Returns a piece of the peer's memory.
pub(crate) fn remote(address: u64, len: usize) -> Remote {
    Remote { address: address as usize, len }
}

/// Reads exactly `out.len()` bytes of process `pid`.
pub(crate) fn read(pid: i32, address: u64, out: &mut [u8]) -> Result<(), Errno> {
    let len = out.len();
    match copy(Direction::Get, pid, &[Piece::of(out)], &[remote(address, len)])? {
        copied if copied == len => Ok(()),
        _ => Err(libc::EFAULT),
    }
}

/// Allows every process of the same user to attach to this process. The call has no effect without Yama.
pub(crate) fn let_anyone_attach() {
    // SAFETY: the option takes one number; a kernel without Yama returns EINVAL and changes nothing.
    let _ = unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}

/// Stops this process until another process continues it.
#[cfg(feature = "test-hooks")]
pub(crate) fn stop_self() {
    // SAFETY: the call takes numbers only.
    let _ = unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
}
