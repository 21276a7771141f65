//! Records that grow at their ends, and what else is read from the caller and written to it.

use super::error::Fault;
use std::ptr::null_mut;
use tieline::Status;

/// A record of the caller's that is longer than any will ever be has no size in its first word.
const LONGEST: usize = 4096;

/// A parameter record: begins with a `usize` that is its size, and zeros mean what is usual.
///
/// # Safety
/// It is made of numbers and addresses alone: every pattern of bits is one.
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

/// Reads a parameter record: none is all zeros, a short one has zeros behind it, and what this library does not know must be zero.
pub(crate) fn read<T: Params>(given: *const T) -> Result<T, Fault> {
    // SAFETY: all zeros are one: see `Params`.
    let mut params: T = unsafe { std::mem::zeroed() };
    if given.is_null() {
        return Ok(params);
    }
    let size = size_of_given(given.cast())?;
    let known = size_of::<T>();
    let bytes = given.cast::<u8>();
    // SAFETY: the caller's record has `size` bytes, ours `known`, and they are two.
    unsafe { bytes.copy_to_nonoverlapping((&raw mut params).cast(), size.min(known)) };
    // SAFETY: as above, of those behind.
    let is_zero = |at: usize| unsafe { bytes.add(at).read() } == 0;
    match (known..size).find(|at| !is_zero(*at)) {
        None => Ok(params),
        Some(at) => Err(Fault::new(
            Status::UnsupportedParam,
            "a parameter of a later version",
            format!("byte {at} of the record is not zero, and {known} are known here"),
            "leave it zero, or install a later libtieline",
        )),
    }
}

/// Writes a record: no more than both sides know, zeros behind it, its size as the caller has set it.
///
/// # Safety
/// The caller's record, or null. `T` is as [`Params`] has it.
pub(crate) unsafe fn write<T: Copy>(out: *mut T, value: &T) -> Result<(), Fault> {
    if out.is_null() {
        return Err(null("the record to be written"));
    }
    let size = size_of_given(out.cast())?;
    let known = size_of::<T>().min(size);
    let head = size_of::<usize>();
    let (to, from) = (out.cast::<u8>(), std::ptr::from_ref(value).cast::<u8>());
    // SAFETY: the caller's record has `size` bytes, ours no fewer than `known`.
    unsafe {
        from.add(head).copy_to_nonoverlapping(to.add(head), known - head);
        to.add(known).write_bytes(0, size - known);
    }
    Ok(())
}

/// Where one word of output goes: zero first, whatever becomes of the call.
#[inline]
pub(crate) fn out<T>(place: *mut T, zero: T) -> Result<Out<T>, Fault> {
    if place.is_null() {
        return Err(null("where the result goes"));
    }
    // SAFETY: the caller's place.
    unsafe { place.write(zero) };
    Ok(Out(place))
}

/// A place of the caller's, which is there.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    #[inline]
    pub(crate) fn set(&self, value: T) {
        // SAFETY: the caller's place, which [`out`] has looked at.
        unsafe { self.0.write(value) };
    }
}

/// Where a handle goes: null first.
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
    // SAFETY: three numbers.
    unsafe impl Params for Two {}

    fn read_words(words: &[u64]) -> Result<Two, Fault> {
        read(words.as_ptr().cast::<Two>())
    }

    #[test]
    fn a_short_record_has_zeros_and_none_is_all_zeros() {
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
    fn what_is_written_ends_where_the_callers_record_does_and_zeros_fill_a_longer_one() {
        let value = Two { size: 0, first: 8, second: 9 };
        let written = |size: u64| {
            let mut words = [size, 1, 1, 1, 1];
            // SAFETY: there are as many bytes as `size` says.
            unsafe { write(words.as_mut_ptr().cast::<Two>(), &value) }.ok().unwrap();
            words
        };
        assert_eq!(written(16), [16, 8, 1, 1, 1]);
        assert_eq!(written(24), [24, 8, 9, 1, 1]);
        assert_eq!(written(32), [32, 8, 9, 0, 1]);
    }
}
