//! The region that a piece names, and page population.

#![allow(unsafe_code)]

use super::Region;
use tieline_plugin_api::abi::Iov;

/// Returns the region that the core names for a piece.
#[inline]
pub(super) fn region(piece: &Iov) -> Option<&Region> {
    // SAFETY: the handle is null, or by the ABI that of a region of this domain. `register` has made the handle of a `Region`,
    // which stays until the operation has completed.
    unsafe { piece.region.cast::<Region>().as_ref() }
}

/// Populates the pages of a range. Returns whether that succeeded; `true` also if the kernel is too old to do so.
pub(super) fn populate(base: *mut u8, len: usize) -> bool {
    const MADV_POPULATE_READ: i32 = 22;
    let (start, len) = whole_pages(base, len, kernel_page());
    // SAFETY: populating pages for reading changes none of them, and the kernel refuses an unmapped range.
    let code = unsafe { libc::madvise(start.cast(), len, MADV_POPULATE_READ) };
    code == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
}

/// Returns the pages of this size that contain a range.
fn whole_pages(base: *mut u8, len: usize, page: usize) -> (*mut u8, usize) {
    let start = base.map_addr(|at| at & !(page - 1));
    (start, (base.addr() + len).next_multiple_of(page) - start.addr())
}

/// Returns the size of the kernel's pages. The kernel refuses advice for an address inside a page, with the error of a kernel without
/// that advice.
fn kernel_page() -> usize {
    // SAFETY: the call takes a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
}

/// Copies the application's pieces one after the other to `buffer`, or back from it.
///
/// The pieces are memory of the caller of the data call, borrowed for the call. Pieces that the library writes are borrowed until
/// the completion or until the endpoint is closed (a guarantee of the ABI).
#[inline(always)]
pub(crate) fn copy(pieces: impl Iterator<Item = (*mut u8, usize)>, buffer: &mut [u8], back: bool) {
    let mut at = 0;
    for (base, len) in pieces {
        let here = &mut buffer[at..at + len];
        // SAFETY: the application's piece is valid for its length, as documented above. `here` has the same length, and nothing
        // else refers to it.
        unsafe {
            match back {
                true => core::ptr::copy_nonoverlapping(here.as_ptr(), base, len),
                false => core::ptr::copy_nonoverlapping(base, here.as_mut_ptr(), len),
            }
        }
        at += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_is_populated_in_whole_pages_of_the_kernel() {
        let at = |address| core::ptr::without_provenance_mut::<u8>(address);
        assert_eq!(whole_pages(at(0x2_1fff), 2, 0x1000), (at(0x2_1000), 0x2000));
        assert_eq!(whole_pages(at(0x2_1fff), 2, 0x1_0000), (at(0x2_0000), 0x1_0000));
        assert_eq!(whole_pages(at(0x2_0000), 0x1_0001, 0x1_0000), (at(0x2_0000), 0x2_0000));
        let mut memory = vec![1u8; 100_000];
        assert!(populate(memory.as_mut_ptr().wrapping_add(7), 90_000));
    }
}
