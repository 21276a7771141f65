//! Pages that the device reads and writes, and the copies in and out of them.

#![allow(unsafe_code)]

use crate::abi::{IBV_ACCESS_LOCAL_WRITE, ibv_sge};
use crate::sys::{Mr, Pd};
use core::ptr::{self, NonNull};
use std::sync::Arc;
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{Failure, Status};

/// Anonymous memory that is registered for this process's own use: no peer has a key to it.
pub(crate) struct Pages {
    // Dropped before the memory is unmapped: see `Drop` of `Mapping`, the last field.
    mr: Mr,
    mapping: Mapping,
}

struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn new(len: usize) -> Result<Mapping, Failure> {
        // SAFETY: a new private mapping; nothing else is touched.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Failure::last_os_error(&format!("mapping {len} bytes of buffers")));
        }
        NonNull::new(base.cast::<u8>())
            .map(|base| Mapping { base, len })
            .ok_or_else(|| Failure::new(Status::NoMemory, "the kernel mapped page zero"))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's own, and nobody borrows from it any more.
        let _ = unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl Pages {
    pub(crate) fn new(pd: &Arc<Pd>, len: usize) -> Result<Pages, Failure> {
        let mapping = Mapping::new(len)?;
        let mr = pd
            .register(mapping.base.as_ptr(), len, IBV_ACCESS_LOCAL_WRITE)
            .map_err(|errno| crate::memory::refusal(len, errno))?;
        Ok(Pages { mr, mapping })
    }

    /// Where `at` lies; `len` bytes from there must be inside.
    fn place(&self, at: usize, len: usize) -> *mut u8 {
        assert!(
            at <= self.mapping.len && len <= self.mapping.len - at,
            "a buffer inside its pages"
        );
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.mapping.base.as_ptr().add(at) }
    }

    pub(crate) fn sge(&self, at: usize, len: usize) -> ibv_sge {
        let addr = self.place(at, len).expose_provenance() as u64;
        ibv_sge { addr, length: len as u32, lkey: self.mr.lkey() }
    }

    /// Bytes that the device has finished with. They are read before the buffer is posted again.
    pub(crate) fn bytes(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: inside the mapping; the pools hand a buffer either to the device or to us.
        unsafe { core::slice::from_raw_parts(self.place(at, len), len) }
    }

    /// Bytes of a buffer that is not posted.
    pub(crate) fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `self` is borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.place(at, len), len) }
    }

    pub(crate) fn word(&self, at: usize) -> u64 {
        let place = self.place(at, 8).cast::<u64>();
        // SAFETY: inside the mapping; the device has finished writing it.
        unsafe { place.read_unaligned() }
    }
}

/// Copies the application's pieces one after the other to `to`.
///
/// The pieces are memory of the caller of the data call, borrowed for the call (the ABI's promise).
pub(crate) fn gather(iov: &[Iov], mut to: &mut [u8]) {
    for piece in iov.iter().filter(|piece| piece.len > 0) {
        let (here, rest) = to.split_at_mut(piece.len.min(to.len()));
        // SAFETY: the application's piece is readable for its length; `here` is no longer and is ours alone.
        unsafe { ptr::copy_nonoverlapping(piece.base, here.as_mut_ptr(), here.len()) };
        to = rest;
    }
}
