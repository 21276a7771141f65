//! The kernel calls: mappings, in huge pages if there are some; and the bytes of pieces.

#![allow(unsafe_code)]

use crate::arena::{HUGE, Piece};
use crate::{Device, PAGE};
use core::ffi::c_int;
use core::ptr::{self, NonNull};
use tieline_plugin_api::{Failure, Status};

/// Anonymous memory of this process, in whole pages.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the range of addresses is unmapped once; its bytes are accessed only through pieces.
unsafe impl Send for Mapping {}
// SAFETY: the range of addresses is unmapped once; its bytes are accessed only through pieces.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps zeroed memory. If `len` is a multiple of a huge page's size, the kernel is asked for huge pages.
    pub(crate) fn new(len: usize) -> Result<Mapping, Failure> {
        if len % HUGE != 0 {
            return Mapping::map(len, 0);
        }
        let larger = Mapping::map(len + HUGE, 0)?;
        let skip = larger.base.addr().get().next_multiple_of(HUGE) - larger.base.addr().get();
        let base = larger.at(skip, len);
        core::mem::forget(larger);
        // SAFETY: the parts before and after `base` belong to a mapping that only this function uses; advice changes no byte.
        // Unmapping an empty range fails without effect.
        unsafe {
            let _ = libc::munmap(base.as_ptr().sub(skip).cast(), skip);
            let _ = libc::munmap(base.as_ptr().add(len).cast(), HUGE - skip);
            let _ = libc::madvise(base.as_ptr().cast(), len, libc::MADV_HUGEPAGE);
        }
        Ok(Mapping { base, len })
    }

    /// Maps zeroed memory in reserved huge pages, if the memory fills them and there are enough.
    pub(crate) fn with_huge_pages(len: usize) -> Option<Mapping> {
        let flags = libc::MAP_HUGETLB | (21 << libc::MAP_HUGE_SHIFT);
        if len % HUGE == 0 { Mapping::map(len, flags).ok() } else { None }
    }

    fn map(len: usize, flags: c_int) -> Result<Mapping, Failure> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
        // SAFETY: the call makes a new private mapping and affects nothing else.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, rights, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(Failure::last_os_error(&format!("mapping {len} bytes of buffers")));
        }
        // SAFETY: the range was just mapped. A forked child has no use for the range. Pinned pages would be copied immediately at a
        // fork, and huge pages from the reserved ones. If the kernel refuses, that is the only cost.
        let _ = unsafe { libc::madvise(base, len, libc::MADV_DONTFORK) };
        NonNull::new(base.cast::<u8>())
            .map(|base| Mapping { base, len })
            .ok_or_else(|| Failure::new(Status::NoMemory, "the kernel mapped page zero"))
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of `len` bytes at an offset, which must be inside the mapping.
    pub(crate) fn at(&self, at: usize, len: usize) -> NonNull<u8> {
        assert!(at <= self.len && len <= self.len - at, "a piece inside its area");
        // SAFETY: the address is inside the mapping, as just checked.
        unsafe { self.base.add(at) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this object, and no piece of it exists any more.
        let _ = unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

// SAFETY: the bytes are exclusive (see `FreeList`); all other parts of a piece may move between threads.
unsafe impl<D: Device> Send for Piece<D> where D::Registration: Send + Sync {}
// SAFETY: without an exclusive borrow of the piece its bytes are only read; all other parts of a piece may be shared between
// threads.
unsafe impl<D: Device> Sync for Piece<D> where D::Registration: Send + Sync {}

impl<D: Device> Piece<D> {
    /// Returns the address of `len` bytes from `at` on, which must be inside the piece.
    #[inline]
    pub fn address(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.len && len <= self.len - at, "bytes inside their piece");
        // SAFETY: the address is inside the piece, as just checked.
        unsafe { self.base.as_ptr().add(at) }
    }

    /// Returns `len` bytes from `at` on. The device must have finished with them: the provider reads a buffer only while it is not
    /// posted.
    #[inline]
    pub fn bytes(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: the range is inside the piece, which belongs to this object. The bytes are initialised, because the kernel
        // supplies zeroed pages.
        unsafe { core::slice::from_raw_parts(self.address(at, len), len) }
    }

    /// Returns `len` bytes from `at` on, mutable.
    pub fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        // SAFETY: the range is inside the piece, which belongs to this object and is borrowed exclusively. The bytes are
        // initialised, because the kernel supplies zeroed pages.
        unsafe { core::slice::from_raw_parts_mut(self.address(at, len), len) }
    }
}

// The size of a huge page is a multiple of the size of an ordinary one.
const _: () = assert!(HUGE % PAGE as usize == 0 && HUGE == 1 << 21);
