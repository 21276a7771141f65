//! How this process was started: with which rights, and whether by a dynamic loader.

#![allow(unsafe_code)]

use std::ffi::c_ulong;

const AT_SECURE: c_ulong = 23;
const AT_PHDR: c_ulong = 3;
const AT_PHENT: c_ulong = 4;
const AT_PHNUM: c_ulong = 5;
const AT_BASE: c_ulong = 7;
const PT_INTERP: u32 = 3;

unsafe extern "C" {
    /// glibc's and musl's, and it cannot fail: an unknown kind is 0.
    safe fn getauxval(kind: c_ulong) -> c_ulong;
}

/// Whether the kernel started this program with rights that its user has not (set-uid, set-gid, file capabilities), so that
/// nothing which the user wrote may choose what the program runs, reads or makes. The environment is such a thing: of it,
/// under raised rights, no variable is believed that names code, a file or a directory. The core keeps those among the
/// variables that begin with `TIELINE_` from providers; a provider that looks at others asks this first.
///
/// A program that was started without raised rights and took or dropped some since is none: its environment is that of
/// whoever may do so. From any thread.
#[must_use]
pub fn raised_rights() -> bool {
    getauxval(AT_SECURE) != 0
}

/// Whether this program was linked statically, so that it has no dynamic loader. A C library that is linked in loads a second one with
/// a shared object, and the process dies of that: such a program loads nothing. From any thread.
#[must_use]
pub fn is_static_program() -> bool {
    let (first, each, count) = (getauxval(AT_PHDR), getauxval(AT_PHENT), getauxval(AT_PHNUM));
    if getauxval(AT_BASE) != 0 || first == 0 || each < 4 {
        // The kernel has loaded an interpreter beside the program.
        return false;
    }
    // A loader that was started as a program puts the headers of the program that it runs here.
    let first = std::ptr::with_exposed_provenance::<u8>(first as usize);
    (0..count).all(|number| {
        // SAFETY: the program's own headers, which are mapped for the life of the process; a header begins with its kind.
        let kind = unsafe { first.add((number * each) as usize).cast::<u32>().read_unaligned() };
        kind != PT_INTERP
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_program_with_a_loader_is_not_static() {
        assert!(!super::is_static_program());
    }

    #[test]
    fn an_ordinary_process_has_no_raised_rights() {
        assert!(!super::raised_rights());
    }
}
