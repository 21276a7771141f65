//! The buffer into which a provider lets the core pack a message. The type prevents writes beyond the buffer.

use super::span::Span;
use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tieline_plugin_api::Status;

/// A transport's buffer, filled from the front. Data that does not fit is refused with `TooLarge`, and none of it is written.
pub struct PackBuffer<'a> {
    room: &'a mut [u8],
    len: usize,
}

impl<'a> PackBuffer<'a> {
    /// Makes a buffer of that memory, with nothing written.
    #[inline]
    pub fn new(room: &'a mut [u8]) -> PackBuffer<'a> {
        PackBuffer { room, len: 0 }
    }

    /// Takes the next `len` bytes of the buffer, for the caller to fill.
    ///
    /// # Errors
    /// `TooLarge` if fewer bytes are left; none of them is taken.
    #[inline]
    pub fn take(&mut self, len: usize) -> Result<&mut [u8], Status> {
        let end = self.len.checked_add(len).filter(|&end| end <= self.room.len());
        let start = std::mem::replace(&mut self.len, end.ok_or(Status::TooLarge)?);
        Ok(&mut self.room[start..self.len])
    }

    /// Appends bytes.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), Status> {
        self.take(bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    /// Appends a range of registered memory.
    #[inline]
    pub fn put_span(&mut self, span: &Span, offset: usize, len: usize) -> Result<(), Status> {
        // The range is checked before anything is written, so an invalid range leaves the buffer unchanged.
        let _ = span.range(offset, len)?;
        span.read(offset, self.take(len)?)
    }

    /// Lets `write` fill up to `len` bytes of the buffer; `write` returns the number of bytes that it wrote. `Err(Invalid)` if that
    /// number exceeds `len`, `Err(TooLarge)` if fewer than `len` bytes are left.
    #[inline]
    pub fn put_with(
        &mut self,
        len: usize,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), Status> {
        let start = self.len;
        let written = write(self.take(len)?);
        if written > len {
            self.len = start;
            return Err(Status::Invalid);
        }
        self.len = start + written;
        Ok(())
    }

    /// Returns the number of bytes written.
    #[expect(clippy::len_without_is_empty, reason = "an empty message has no meaning of its own")]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// A function that packs a message into a transport's buffer.
pub type Pack<'a> = &'a mut dyn FnMut(&mut PackBuffer<'_>) -> Result<(), Status>;

/// The argument that carries a pack closure through a provider, and the panic that ended the closure, if there was one.
pub(crate) struct PackCall<'a> {
    pub(crate) pack: Pack<'a>,
    /// The requested maximum; the rest of the provider's buffer is not used.
    pub(crate) max: usize,
    pub(crate) panic: Option<Box<dyn Any + Send>>,
}

pub(crate) unsafe extern "C" fn pack_here(
    argument: *mut c_void,
    buffer: *mut u8,
    capacity: usize,
) -> i64 {
    // SAFETY: the argument is the `PackCall` of the `am_packed` call in progress on this thread.
    let call = unsafe { &mut *argument.cast::<PackCall<'_>>() };
    let capacity = capacity.min(call.max);
    let room: &mut [u8] = if buffer.is_null() || capacity == 0 {
        &mut []
    } else {
        // SAFETY: by the ABI, the buffer is initialised and exclusive to the callback, for `capacity` bytes during this call.
        unsafe { std::slice::from_raw_parts_mut(buffer, capacity) }
    };
    let mut buffer = PackBuffer::new(room);
    match catch_unwind(AssertUnwindSafe(|| (call.pack)(&mut buffer))) {
        Ok(Ok(())) => i64::try_from(buffer.len()).unwrap_or(Status::Invalid as i64),
        Ok(Err(status)) => status as i64,
        Err(panic) => {
            call.panic = Some(panic);
            Status::Canceled as i64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_beyond_the_room_that_a_packer_was_given() {
        let mut memory = *b"........!";
        let mut buffer = PackBuffer::new(&mut memory[..8]);
        assert_eq!(buffer.put(b"abc"), Ok(()));
        assert_eq!(buffer.put(b"123456"), Err(Status::TooLarge));
        assert_eq!(buffer.put_with(6, |_| 0), Err(Status::TooLarge));
        assert_eq!(buffer.put_with(5, |room| room.len() + 1), Err(Status::Invalid));
        assert_eq!(buffer.put_with(usize::MAX, |_| 0), Err(Status::TooLarge));
        let mut bytes = *b"0123456789";
        let span = Span::from_owned(&mut bytes);
        assert_eq!(buffer.put_span(&span, 9, 2), Err(Status::OutOfRange));
        assert_eq!(buffer.put_span(&span, 0, 6), Err(Status::TooLarge));
        assert_eq!(buffer.put_span(&span, 2, 3), Ok(()));
        assert_eq!(buffer.put_with(2, |room| room.len()), Ok(()));
        assert_eq!(buffer.len(), 8);
        assert_eq!(buffer.put(b"x"), Err(Status::TooLarge));
        assert_eq!(&memory[..6], b"abc234");
        assert_eq!(memory[8], b'!');
    }
}
