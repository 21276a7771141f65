//! How this process was started: its rights, and whether it has a dynamic loader.

#![allow(unsafe_code)]

use std::ffi::c_ulong;

const AT_SECURE: c_ulong = 23;
const AT_PHDR: c_ulong = 3;
const AT_PHENT: c_ulong = 4;
const AT_PHNUM: c_ulong = 5;
const AT_BASE: c_ulong = 7;
const PT_INTERP: u32 = 3;

unsafe extern "C" {
    /// glibc and musl have this function, and it cannot fail: an unknown kind returns 0.
    safe fn getauxval(kind: c_ulong) -> c_ulong;
    /// This function cannot fail.
    safe fn geteuid() -> u32;
}

/// Checks whether the kernel started this program with rights that its user does not have (set-uid, set-gid, file capabilities).
/// The user's input must then not choose what the program runs, reads or creates. The environment is such input. Under raised
/// rights, the core ignores each `TIELINE_` variable of the environment that names code, a file or a directory. A provider that
/// reads such a variable with another name calls this function first.
///
/// The result does not change if the program gains or drops rights later. Any thread may call this function.
#[must_use]
pub fn raised_rights() -> bool {
    getauxval(AT_SECURE) != 0
}

/// Returns the effective user id, which normally owns the files that the process makes. Any thread may call this function.
#[must_use]
pub fn effective_uid() -> u32 {
    geteuid()
}

/// Checks whether this program was linked statically, so that it has no dynamic loader. In such a program, loading a shared object
/// would load a second C library, which may crash the process. Such a program therefore loads no provider files. Any thread may
/// call this function.
#[must_use]
pub fn is_static_program() -> bool {
    let (first, each, count) = (getauxval(AT_PHDR), getauxval(AT_PHENT), getauxval(AT_PHNUM));
    if getauxval(AT_BASE) != 0 || first == 0 || each < 4 {
        // The kernel has loaded an interpreter with the program, or has not stated where the program's headers are.
        return false;
    }
    // A loader that was started as a program writes the address of the loaded program's headers into these entries.
    let first = std::ptr::with_exposed_provenance::<u8>(first as usize);
    (0..count).all(|number| {
        // SAFETY: the headers belong to the program and are mapped for the life of the process; a header begins with its kind.
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
