//! The region that a piece carries, and pages that have to be there.

#![allow(unsafe_code)]

use super::Region;
use tieline_plugin_api::abi::Iov;

/// The region that the core says a piece lies in.
#[inline]
pub(super) fn region(piece: &Iov) -> Option<&Region> {
    // SAFETY: null, or by the ABI the handle of a region of this domain, which `register` has made of a `Region` and which
    // stays until the operation has ended.
    unsafe { piece.region.cast::<Region>().as_ref() }
}

/// Asks the kernel for the pages of a range; an old kernel that cannot be asked says yes.
pub(super) fn populate(base: *mut u8, len: usize) -> bool {
    const MADV_POPULATE_READ: i32 = 22;
    let start = base.map_addr(|at| at & !4095);
    let len = (base.addr() + len).next_multiple_of(4096) - start.addr();
    // SAFETY: reading pages in changes none; a range that is not mapped is refused.
    let code = unsafe { libc::madvise(start.cast(), len, MADV_POPULATE_READ) };
    code == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
}

/// Copies the application's pieces one after the other to `to`, or back from there.
///
/// The pieces are memory of the caller of the data call: borrowed for the call, and when they are written until its
/// completion, or until its endpoint is closed (the ABI's promise).
#[inline]
pub(crate) fn copy(pieces: impl Iterator<Item = (*mut u8, usize)>, buffer: &mut [u8], back: bool) {
    let mut at = 0;
    for (base, len) in pieces {
        let here = &mut buffer[at..at + len];
        // SAFETY: the application's piece is valid for its length, as said above; `here` is as long and is ours alone.
        unsafe {
            match back {
                true => core::ptr::copy_nonoverlapping(here.as_ptr(), base, len),
                false => core::ptr::copy_nonoverlapping(base, here.as_mut_ptr(), len),
            }
        }
        at += len;
    }
}
