//! Memory that the caller of the provider guarantees.

use core::marker::PhantomData;
use tieline_plugin_api::abi::Iov;

/// A piece of this process's memory in the kernel's layout (`struct iovec`), which may be read and written.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    base: *mut u8,
    len: usize,
    _of: PhantomData<&'a mut [u8]>,
}

const _: () = assert!(
    size_of::<Piece<'_>>() == size_of::<libc::iovec>()
        && core::mem::offset_of!(Piece<'_>, base) == core::mem::offset_of!(libc::iovec, iov_base)
        && core::mem::offset_of!(Piece<'_>, len) == core::mem::offset_of!(libc::iovec, iov_len)
);

impl<'a> Piece<'a> {
    /// A piece without memory.
    pub const NONE: Piece<'a> = Piece { base: core::ptr::null_mut(), len: 0, _of: PhantomData };

    /// Returns a slice as a piece.
    #[inline]
    #[must_use]
    pub fn of(bytes: &'a mut [u8]) -> Piece<'a> {
        Piece { base: bytes.as_mut_ptr(), len: bytes.len(), _of: PhantomData }
    }

    /// Returns the part of at most `len` bytes after the first `skip` bytes.
    #[inline]
    #[must_use]
    pub fn part(self, skip: usize, len: usize) -> Piece<'a> {
        let skip = skip.min(self.len);
        Piece {
            base: self.base.wrapping_add(skip),
            len: len.min(self.len - skip),
            _of: PhantomData,
        }
    }

    /// Returns the address of the first byte.
    #[inline]
    #[must_use]
    pub fn base(self) -> *mut u8 {
        self.base
    }

    /// Returns the length in bytes.
    #[inline]
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// Checks whether the piece has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

impl<'a> From<&'a Iov> for Piece<'a> {
    /// Converts a piece of an operation. The operation's poster guarantees the piece until the operation has ended.
    #[inline]
    fn from(iov: &'a Iov) -> Piece<'a> {
        Piece { base: iov.base, len: iov.len, _of: PhantomData }
    }
}
