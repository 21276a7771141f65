//! The buffer that a message is packed into.

#![allow(unsafe_code)]

use crate::Status;

/// The message that an `am_packed` call is about to write.
pub struct Packer<'a> {
    pack: &'a mut dyn FnMut(*mut u8, usize) -> Result<usize, Status>,
}

impl<'a> Packer<'a> {
    /// Wraps a callback. It writes at most the given number of bytes to the given address, which must be writable for as many.
    pub fn new(pack: &'a mut dyn FnMut(*mut u8, usize) -> Result<usize, Status>) -> Packer<'a> {
        Packer { pack }
    }

    /// Lets the application write into `buffer`; returns the number of bytes.
    ///
    /// # Errors
    /// The application's error, or [`Status::Invalid`] if it claims more bytes than there is room for.
    pub fn pack(self, buffer: &mut [u8]) -> Result<usize, Status> {
        // SAFETY: a slice, borrowed exclusively for the call.
        unsafe { self.pack_at(buffer.as_mut_ptr(), buffer.len()) }
    }

    /// Like [`Packer::pack`], for memory that is no Rust slice: writes at most `capacity` bytes to `at`.
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
