//! Records that can grow at their end, and other values that are read from and written to the caller.

use super::error::Fault;
use std::ptr::null_mut;
use tieline::Status;

/// The largest plausible size of a record. A larger value means that its first word is not a size.
const LONGEST: usize = 4096;

/// A parameter record. The record begins with a `usize` that holds its size. A field that is zero selects the default.
///
/// # Safety
/// The type consists of numbers and addresses only, so every bit pattern is valid.
pub(crate) unsafe trait Params: Copy {}

#[cold]
fn no_size(size: usize) -> Fault {
    Fault::new(
        Status::Invalid,
        "a record without its size",
        format!("its first word says {size}"),
        "set the record's first field before the call: record.size = sizeof record",
    )
}

fn size_of_given(given: *const usize) -> Result<usize, Fault> {
    // SAFETY: the caller's record, which begins with its size.
    let size = unsafe { given.read() };
    if (size_of::<usize>()..=LONGEST).contains(&size) { Ok(size) } else { Err(no_size(size)) }
}

/// Reads a parameter record. Null means all zeros, a short record is padded with zeros, and fields that this library does not know
/// must be zero.
pub(crate) fn read<T: Params>(given: *const T) -> Result<T, Fault> {
    // SAFETY: all zeros are a valid value: see `Params`.
    let mut params: T = unsafe { std::mem::zeroed() };
    if given.is_null() {
        return Ok(params);
    }
    let size = size_of_given(given.cast())?;
    let known = size_of::<T>();
    let bytes = given.cast::<u8>();
    // SAFETY: the caller's record has `size` bytes, ours has `known`, and they do not overlap.
    unsafe { bytes.copy_to_nonoverlapping((&raw mut params).cast(), size.min(known)) };
    // SAFETY: the caller's record has `size` bytes, and `at` is below `size`.
    let is_zero = |at: usize| unsafe { bytes.add(at).read() } == 0;
    match (known..size).find(|at| !is_zero(*at)) {
        None => Ok(params),
        Some(at) => Err(Fault::new(
            Status::UnsupportedParam,
            "a parameter of a later version",
            format!("byte {at} of the record is not zero, and this library knows {known} bytes"),
            "leave it zero, or install a later libtieline",
        )),
    }
}

/// Writes a record: the fields that the library and the caller know, then zeros up to the size that the caller has set.
///
/// # Safety
/// `out` is the caller's record, or null. `T` satisfies the contract of [`Params`].
pub(crate) unsafe fn write<T: Copy>(out: *mut T, value: &T) -> Result<(), Fault> {
    if out.is_null() {
        return Err(null("the record to be written"));
    }
    let size = size_of_given(out.cast())?;
    let known = size_of::<T>().min(size);
    let head = size_of::<usize>();
    let (to, from) = (out.cast::<u8>(), std::ptr::from_ref(value).cast::<u8>());
    // SAFETY: the caller's record has `size` bytes, and the library's record has at least `known` bytes.
    unsafe {
        from.add(head).copy_to_nonoverlapping(to.add(head), known - head);
        to.add(known).write_bytes(0, size - known);
    }
    Ok(())
}

/// Checks a place for one word of output, and sets the word to zero, so that a failed call leaves zero.
#[inline]
pub(crate) fn out<T>(place: *mut T, zero: T) -> Result<Out<T>, Fault> {
    if place.is_null() {
        return Err(null("where the result goes"));
    }
    // SAFETY: the caller guarantees that the place is writable.
    unsafe { place.write(zero) };
    Ok(Out(place))
}

/// A checked place of the caller for output.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    #[inline]
    pub(crate) fn set(&self, value: T) {
        // SAFETY: the caller guarantees that the place is writable, and [`out`] has checked that it is not null.
        unsafe { self.0.write(value) };
    }
}

/// Checks a place for a handle, and sets the handle to null.
pub(crate) fn out_handle<C>(place: *mut *mut C) -> Result<Out<*mut C>, Fault> {
    out(place, null_mut())
}

#[cold]
pub(crate) fn null(what: &str) -> Fault {
    Fault::new(Status::Invalid, "a null argument", format!("{what} is null"), "pass an address")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Two {
        size: usize,
        first: u64,
        second: u64,
    }
    // SAFETY: `Two` consists of three numbers.
    unsafe impl Params for Two {}

    fn read_words(words: &[u64]) -> Result<Two, Fault> {
        read(words.as_ptr().cast::<Two>())
    }

    #[test]
    fn short_record_is_zero_padded_and_null_is_all_zeros() {
        let two = read_words(&[16, 5]).ok().unwrap();
        assert_eq!((two.first, two.second), (5, 0));
        let none = read::<Two>(std::ptr::null()).ok().unwrap();
        assert_eq!((none.first, none.second), (0, 0));
    }

    #[test]
    fn an_unknown_tail_is_taken_while_it_is_zero() {
        assert!(read_words(&[32, 5, 6, 0]).is_ok());
        let fault = read_words(&[32, 5, 6, 1 << 56]).err().unwrap();
        assert_eq!(fault.error.status(), Status::UnsupportedParam);
        assert!(fault.error.why().contains("byte 31"), "{}", fault.error.why());
    }

    #[test]
    fn a_record_without_a_size_is_refused() {
        for size in [0, 7, 4097, u64::MAX] {
            let fault = read_words(&[size, 5, 6]).err().unwrap();
            assert_eq!(fault.error.status(), Status::Invalid);
        }
    }

    #[test]
    fn written_record_is_cut_or_zero_padded_to_callers_size() {
        let value = Two { size: 0, first: 8, second: 9 };
        let written = |size: u64| {
            let mut words = [size, 1, 1, 1, 1];
            // SAFETY: `words` contains the number of bytes that `size` states.
            unsafe { write(words.as_mut_ptr().cast::<Two>(), &value) }.ok().unwrap();
            words
        };
        assert_eq!(written(16), [16, 8, 1, 1, 1]);
        assert_eq!(written(24), [24, 8, 9, 1, 1]);
        assert_eq!(written(32), [32, 8, 9, 0, 1]);
    }
}
