//! The place that a message is packed into.

#![allow(unsafe_code)]

use crate::Status;

/// The message that an `am_packed` call is about to write.
pub struct Packer<'a> {
    pack: &'a mut dyn FnMut(*mut u8, usize) -> Result<usize, Status>,
}

impl<'a> Packer<'a> {
    /// Wraps a callback that writes at most the given number of bytes to the given place, which is good for as many.
    pub fn new(pack: &'a mut dyn FnMut(*mut u8, usize) -> Result<usize, Status>) -> Packer<'a> {
        Packer { pack }
    }

    /// Lets the application write into `buffer`; returns how much it wrote.
    ///
    /// # Errors
    /// What the application said, or [`Status::Invalid`] when it claims more than there is room for.
    pub fn pack(self, buffer: &mut [u8]) -> Result<usize, Status> {
        // SAFETY: a slice, borrowed exclusively for the call.
        unsafe { self.pack_at(buffer.as_mut_ptr(), buffer.len()) }
    }

    /// The same for memory that is no Rust slice: writes at most `capacity` bytes to `at`.
    ///
    /// # Errors
    /// As [`Packer::pack`].
    ///
    /// # Safety
    /// `at` may be written for `capacity` bytes while this runs, and nobody refers to them.
    pub unsafe fn pack_at(self, at: *mut u8, capacity: usize) -> Result<usize, Status> {
        let written = (self.pack)(at, capacity)?;
        if written > capacity { Err(Status::Invalid) } else { Ok(written) }
    }
}
