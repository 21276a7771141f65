//! The stack on which a trial calls a function.

/// The value of stack words that a function has not set: a plausible length, and an address where nothing is mapped.
pub(super) const UNSET: usize = 16;
/// The number of bytes of the function's stack that are filled with `UNSET`.
pub(super) const BELOW: usize = 4096;
/// The number of bytes of the caller's stack that are marked and compared.
pub(super) const MARKED: usize = 4096;

/// Maps a stack for the calls and returns the stack pointer at which they begin; `None` if that fails. The memory next to the
/// stack, on both sides, cannot be accessed. The mapping stays until the process ends.
pub(super) fn stack() -> Option<usize> {
    /// The length of the stack, of which only used pages take memory.
    const LEN: usize = 8 << 20;
    const BELOW: usize = 64 << 10;
    /// One wrong byte among the lower three of a displacement leads no further than this.
    const ABOVE: usize = 32 << 20;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    // SAFETY: a new mapping, of which a part inside is made writable.
    unsafe {
        let none = std::ptr::null_mut();
        let all = libc::mmap(none, BELOW + LEN + ABOVE, libc::PROT_NONE, flags, -1, 0);
        if all == libc::MAP_FAILED {
            return None;
        }
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let inner = all.cast::<u8>().add(BELOW);
        let made = libc::mprotect(inner.cast(), LEN, rights) == 0;
        made.then_some(inner as usize + LEN - MARKED)
    }
}
