//! Memory that ends at an inaccessible page.

#![allow(unsafe_code)]

use core::ptr;

/// Memory that ends at a page without access rights: an access to the bytes directly after the stated size crashes.
pub(crate) struct Guarded {
    base: *mut u8,
    len: usize,
    /// The address of the guard.
    guard: usize,
    at: *mut u8,
}

/// Returns the size of the kernel's pages, of which the guard is one.
fn page_size() -> usize {
    // SAFETY: the call takes a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

impl Guarded {
    /// Makes a copy of the first `len` bytes of `record` that ends at the guard.
    pub(crate) fn new<T: Copy>(record: &T, len: usize) -> Guarded {
        assert!(len <= size_of::<T>() && len % 8 == 0);
        // SAFETY: the `len` bytes belong to the record, and are read as bytes for the length of this call.
        Guarded::bytes(unsafe { core::slice::from_raw_parts(ptr::from_ref(record).cast(), len) })
    }

    /// Returns a copy of these bytes that ends at the guard.
    pub(crate) fn bytes(bytes: &[u8]) -> Guarded {
        let len = bytes.len();
        let page = page_size();
        let pages = len.div_ceil(page) + 1;
        // SAFETY: this function makes the mapping, whose last page is made inaccessible. The copy ends where that page begins and
        // fits the readable part (`len <= (pages - 1) * page`).
        unsafe {
            let base = libc::mmap(
                ptr::null_mut(),
                pages * page,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(base, libc::MAP_FAILED, "no memory for a guarded record");
            let base = base.cast::<u8>();
            let end = base.add((pages - 1) * page);
            assert_eq!(libc::mprotect(end.cast(), page, libc::PROT_NONE), 0);
            let at = end.sub(len);
            ptr::copy_nonoverlapping(bytes.as_ptr(), at, len);
            Guarded { base, len: pages * page, guard: end.addr(), at }
        }
    }

    pub(crate) fn contents(&self) -> &[u8] {
        // SAFETY: the copy lies between `at` and the guard, and lives as long as the mapping.
        unsafe { core::slice::from_raw_parts(self.at, self.guard - self.at.addr()) }
    }

    pub(crate) fn as_ptr<T>(&self) -> *mut T {
        self.at.cast()
    }

    /// Leaves the memory mapped: a host table lives as long as the process.
    pub(crate) fn leak(self) {
        core::mem::forget(self);
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping.
        let _ = unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}
