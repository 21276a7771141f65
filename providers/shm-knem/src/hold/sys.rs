//! The calls that give this process pages of its own, and hold them.
//!
//! io_uring is used only for its table of buffers. Numbers and records are those of the kernel's header.

#![allow(unsafe_code)]

use std::io::Error;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use tieline_memory_file::{page_size, whole_pages};

/// A system error number.
pub(super) type Errno = i32;

/// The advice with the effect of a store to each page, without storing anything.
const POPULATE_WRITE: libc::c_int = 23;
const REGISTER_BUFFERS: libc::c_uint = 0;
const REGISTER_BUFFERS_UPDATE: libc::c_uint = 16;

/// The parameters of a new ring: 120 bytes. All zeros select the defaults.
#[repr(C, align(8))]
struct Params([u8; 120]);

/// The record of new buffers for some slots.
#[repr(C)]
struct Update {
    offset: u32,
    reserved: u32,
    buffers: u64,
    tags: u64,
    count: u32,
    reserved_too: u32,
}

const _: () = assert!(size_of::<Params>() == 120 && size_of::<Update>() == 32);

/// A ring, used only for its table of buffers.
pub(super) struct Ring {
    fd: OwnedFd,
}

impl Ring {
    /// Opens a ring with this number of empty slots. The ring is closed on exec.
    pub(super) fn open(slots: u32) -> Result<Ring, Errno> {
        let mut params = Params([0; 120]);
        // SAFETY: the record has the size that the kernel reads and writes.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, &raw mut params) };
        let fd = i32::try_from(answer(fd)?).map_err(|_| libc::EBADF)?;
        // SAFETY: the descriptor was just made, and nothing else owns it.
        let ring = Ring { fd: unsafe { OwnedFd::from_raw_fd(fd) } };
        let none = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
        let empty = vec![none; slots as usize];
        // SAFETY: the kernel reads `slots` records, which is the length of the list.
        let _ = unsafe { ring.register(REGISTER_BUFFERS, empty.as_ptr().cast(), slots) }?;
        // A kernel that cannot update slots fails at this call.
        ring.set(0, 0, 0)?;
        Ok(ring)
    }

    /// Puts a range into a slot, replacing its previous range. An empty range empties the slot.
    pub(super) fn set(&self, slot: u32, base: u64, len: u64) -> Result<(), Errno> {
        let base = core::ptr::with_exposed_provenance_mut(base as usize);
        let buffer = [libc::iovec { iov_base: base, iov_len: len as usize }];
        let update = Update {
            offset: slot,
            reserved: 0,
            buffers: buffer.as_ptr().expose_provenance() as u64,
            tags: 0,
            count: 1,
            reserved_too: 0,
        };
        let size = size_of::<Update>() as u32;
        // SAFETY: the record has the stated size, and its one buffer lives through the call. The kernel checks that the range is
        // mapped. It writes nothing into the range, because no operation ever names the buffer.
        let set =
            unsafe { self.register(REGISTER_BUFFERS_UPDATE, (&raw const update).cast(), size) };
        // The kernel returns the number of slots that it changed.
        set.and_then(|changed| if changed == 1 { Ok(()) } else { Err(libc::EIO) })
    }

    /// # Safety
    /// The kernel reads from `argument` as the operation and the number require.
    unsafe fn register(
        &self,
        operation: libc::c_uint,
        argument: *const u8,
        number: u32,
    ) -> Result<libc::c_long, Errno> {
        loop {
            let fd = self.fd.as_raw_fd();
            // SAFETY: the descriptor is open; the caller guarantees the argument.
            let done = answer(unsafe {
                libc::syscall(libc::SYS_io_uring_register, fd, operation, argument, number)
            });
            if done != Err(libc::EINTR) {
                return done;
            }
        }
    }
}

fn answer(returned: libc::c_long) -> Result<libc::c_long, Errno> {
    if returned >= 0 {
        return Ok(returned);
    }
    Err(Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// Gives this process pages of its own in the range, as a store to each page would.
pub(super) fn populate(base: u64, len: u64) -> Result<(), Errno> {
    let Range { start, end } = whole_pages(base, len, page_size()).ok_or(libc::EINVAL)?;
    let at = core::ptr::with_exposed_provenance_mut(start as usize);
    loop {
        // SAFETY: the pages keep their contents; unmapped or unwritable pages are refused.
        let done = unsafe { libc::madvise(at, (end - start) as usize, POPULATE_WRITE) };
        match answer(done.into()) {
            Ok(_) => return Ok(()),
            Err(libc::EINTR | libc::EAGAIN) => {}
            Err(errno) => return Err(errno),
        }
    }
}
