//! Conversion of bytes and strings between the caller and the library.

use super::error::Fault;
use super::records::{Out, null, out};
use std::ffi::{CStr, c_char, c_void};
use tieline::Status;

/// Returns the caller's bytes, which are valid during the call.
#[inline]
pub(crate) fn bytes<'a>(start: *const c_void, len: usize) -> Result<&'a [u8], Fault> {
    if len == 0 {
        return Ok(&[]);
    }
    if start.is_null() || len > isize::MAX as usize {
        return Err(no_bytes(start, len));
    }
    // SAFETY: the caller guarantees that the bytes are readable, and that no thread changes them during the call.
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), len) })
}

/// Returns the caller's bytes as [`bytes`] does, for the fast path: `None` for a null address or an impossible length.
#[inline(always)]
pub(crate) fn some_bytes<'a>(start: *const c_void, len: usize) -> Option<&'a [u8]> {
    if start.is_null() || len > isize::MAX as usize {
        return None;
    }
    // SAFETY: the caller guarantees that the bytes are readable, and that no thread changes them during the call.
    Some(unsafe { std::slice::from_raw_parts(start.cast(), len) })
}

#[cold]
fn no_bytes(start: *const c_void, len: usize) -> Fault {
    if start.is_null() {
        return null("where the bytes are");
    }
    Fault::new(Status::Invalid, "too many bytes", format!("len is {len}"), "pass their number")
}

/// Returns the caller's string.
pub(crate) fn string<'a>(text: *const c_char, what: &str) -> Result<&'a str, Fault> {
    if text.is_null() {
        return Err(null(what));
    }
    // SAFETY: the caller guarantees that the string is readable and ends with a zero.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map_err(|_| Fault::new(Status::Invalid, what, "it is not UTF-8", "pass text in UTF-8"))
}

/// The caller's buffer, and the place for the actual length. The caller does not know the length in advance.
pub(crate) struct Room {
    to: *mut u8,
    room: usize,
    len: Out<usize>,
}

impl Room {
    /// Checks the caller's buffer. `len` holds the size of the buffer, and receives the actual length.
    pub(crate) fn new(to: *mut c_void, len: *mut usize) -> Result<Room, Fault> {
        if len.is_null() {
            return Err(null("where the number of bytes goes"));
        }
        // SAFETY: the caller guarantees that `len` is null or valid; the code has checked that it is not null.
        let given = unsafe { len.read() };
        let room = if to.is_null() { 0 } else { given };
        Ok(Room { to: to.cast(), room, len: out(len, 0)? })
    }

    /// Copies the bytes to the caller's buffer. If the buffer is too small, only the number of bytes is written.
    pub(crate) fn fill(&self, bytes: &[u8]) -> Result<(), Fault> {
        self.len.set(bytes.len());
        if bytes.len() > self.room {
            return Err(too_little(self.room, bytes.len()));
        }
        // SAFETY: the caller's buffer, which does not overlap this library's memory.
        unsafe { self.to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies a string and its terminating zero to the caller's buffer; the reported length does not count the zero.
    pub(crate) fn write(&self, text: &str) -> Result<(), Fault> {
        self.len.set(text.len());
        if text.len() >= self.room {
            return Err(too_little(self.room, text.len() + 1));
        }
        // SAFETY: the caller's buffer does not overlap this library's memory, and has room for the text and the zero.
        unsafe {
            self.to.copy_from_nonoverlapping(text.as_ptr(), text.len());
            self.to.add(text.len()).write(0);
        }
        Ok(())
    }
}

#[cold]
fn too_little(room: usize, needed: usize) -> Fault {
    Fault::new(
        Status::TooLarge,
        "there is no room for the result",
        format!("it needs {needed} bytes, and there is room for {room}"),
        "call again with a buffer of that size",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_large_output_reports_length_and_writes_nothing() {
        let (mut bytes, mut len) = ([7u8; 8], 3);
        let room = Room::new(bytes.as_mut_ptr().cast(), &raw mut len).ok().unwrap();
        assert_eq!(room.fill(b"four").err().unwrap().error.status(), Status::TooLarge);
        assert_eq!((len, bytes), (4, [7; 8]));
        assert!(room.fill(b"two").is_ok());
        assert_eq!((len, &bytes[..4]), (3, &b"two\x07"[..]));
        assert!(room.write("tex").is_err() && len == 3);
        assert!(room.write("te").is_ok());
        assert_eq!((len, &bytes[..3]), (2, &b"te\0"[..]));
    }

    #[test]
    fn null_address_is_allowed_only_for_zero_bytes() {
        assert!(bytes(std::ptr::null(), 0).is_ok());
        assert!(bytes(std::ptr::null(), 1).is_err());
        assert!(bytes(b"x".as_ptr().cast(), usize::MAX).is_err());
    }
}
