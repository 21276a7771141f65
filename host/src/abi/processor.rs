//! What this crate knows about processors: copies of memory that others access meanwhile, and calls that compare registers and stack
//! afterwards. The numbers of processors in ELF files are in `elf.rs`.
//!
//! A processor without a file of its own copies by atomic loads and stores, and calls without a comparison.

#[cfg_attr(all(target_arch = "x86_64", not(miri)), path = "processor/x86_64.rs")]
#[cfg_attr(all(target_arch = "aarch64", not(miri)), path = "processor/aarch64.rs")]
#[cfg_attr(
    any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))),
    path = "processor/other.rs"
)]
mod this;

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod stack;

use std::ffi::c_void;

/// Copies memory that threads of this process, other processes, or devices may read or write meanwhile. The result may mix old and
/// new bytes. The copy uses processor instructions, or atomic loads and stores, so the compiler assumes nothing about the memory.
/// Each byte is loaded and stored once, in the order of the addresses, so the areas may overlap if `to` is the lower one.
///
/// # Safety
/// `from` is readable and `to` is writable for `len` bytes.
#[inline]
pub(super) unsafe fn copy_shared(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { this::copy_shared(from, to, len) }
}

/// Calls a function. Returns the result, a number that is not 0 if registers changed that belong to the caller, and one that is
/// not 0 if the caller's stack changed.
///
/// # Safety
/// As [`watched`](super::watched::watched).
pub(super) unsafe fn call(function: *const c_void, arguments: [usize; 4]) -> (usize, u64, u64) {
    // SAFETY: the caller's promise.
    unsafe { this::call(function, arguments) }
}

/// Calls the function and compares nothing.
///
/// # Safety
/// As [`call`].
unsafe fn call_as_it_is(function: *const c_void, [a, b, c, d]: [usize; 4]) -> (usize, u64, u64) {
    type Any = unsafe extern "C" fn(usize, usize, usize, usize) -> usize;
    // SAFETY: the caller's promise. In the conventions of Linux a function ignores arguments beyond those that it takes.
    let function: Any = unsafe { std::mem::transmute(function) };
    // SAFETY: as above.
    (unsafe { function(a, b, c, d) }, 0, 0)
}
