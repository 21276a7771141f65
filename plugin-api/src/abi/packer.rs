//! The callback that packs a message, as a provider in Rust calls it.

#![allow(unsafe_code)]

use crate::Status;

/// The callback that writes the message of an `am_packed` call.
pub struct Packer<'a> {
    pack: &'a mut dyn FnMut(*mut u8, usize) -> Result<usize, Status>,
}

impl<'a> Packer<'a> {
    /// Wraps a callback. The callback writes at most the given number of bytes to the given address, which must be writable for
    /// that number of bytes.
    pub fn new(pack: &'a mut dyn FnMut(*mut u8, usize) -> Result<usize, Status>) -> Packer<'a> {
        Packer { pack }
    }

    /// Lets the callback write into `buffer`. Returns the number of bytes written.
    ///
    /// # Errors
    /// The callback's error, or [`Status::Invalid`] if the callback claims more bytes than fit.
    pub fn pack(self, buffer: &mut [u8]) -> Result<usize, Status> {
        // SAFETY: the slice is borrowed exclusively for the call.
        unsafe { self.pack_at(buffer.as_mut_ptr(), buffer.len()) }
    }

    /// Packs like [`Packer::pack`], into memory that is no Rust slice: writes at most `capacity` bytes to `at`.
    ///
    /// # Errors
    /// As [`Packer::pack`].
    ///
    /// # Safety
    /// `at` is writable for `capacity` bytes while this runs, and no reference to them exists.
    pub unsafe fn pack_at(self, at: *mut u8, capacity: usize) -> Result<usize, Status> {
        let written = (self.pack)(at, capacity)?;
        if written > capacity { Err(Status::Invalid) } else { Ok(written) }
    }
}
