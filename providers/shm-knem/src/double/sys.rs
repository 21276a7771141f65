//! The memory copy of the driver double.
#![allow(unsafe_code)]

use crate::sys::Direction;

pub(super) fn copied(direction: Direction, local: *mut u8, remote: u64, len: usize) {
    let remote = core::ptr::with_exposed_provenance_mut::<u8>(remote as usize);
    // SAFETY: tests register memory of their own that outlives the region, and pass pieces that live; the double's lock
    // serialises the copies.
    unsafe {
        match direction {
            Direction::Put => core::ptr::copy(local, remote, len),
            Direction::Get => core::ptr::copy(remote, local, len),
        }
    }
}
