//! The attempts that the child of a trial makes.
//!
//! The child calls dlopen, dlvsym and the functions of the library, or moves data over a device (`selftest`).

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::time::Duration;
use tieline_trial::{End, Say, Share, in_child};

/// The result of a trial.
pub(super) enum Trial {
    /// The first query was answered, whatever the answer was, or a device was opened.
    Answered,
    /// Nothing was tried: the loader refused the file, it is another library, or the device cannot be opened.
    NothingDone,
    /// The child died, by a signal if that is known.
    Ended(Option<i32>),
    TimedOut,
}

/// Loads the file in a child and queries its providers. Returns `None` if no child can be made.
pub(super) fn attempt(file: &CStr, limit: Duration) -> Option<Trial> {
    // SAFETY: the function runs in a child, as required.
    tried(Share::Nothing, limit, |say| say.say(unsafe { query(file) }))
}

/// Runs `act` in a child and returns whether it succeeded; `None` if no child can be made. The child inherits this process's
/// descriptors, because the library may use them.
pub(super) fn attempt_here(act: impl FnOnce() -> bool, limit: Duration) -> Option<Trial> {
    tried(Share::Descriptors, limit, |say| say.say(if act() { DONE } else { NOTHING_DONE }))
}

const DONE: &[u8] = b"y";
const NOTHING_DONE: &[u8] = b"n";

fn tried(share: Share, limit: Duration, act: impl FnOnce(Say)) -> Option<Trial> {
    let outcome = in_child(share, limit, act).ok()?;
    Some(match (&*outcome.said, outcome.end) {
        // A child that has answered has survived, whatever its end was.
        (DONE, _) => Trial::Answered,
        (NOTHING_DONE, _) => Trial::NothingDone,
        (_, End::TimedOut) => Trial::TimedOut,
        (_, End::Killed(signal)) => Trial::Ended(Some(signal)),
        (_, End::Exited(_) | End::Gone) => Trial::Ended(None),
    })
}

/// Loads the library and queries its providers. Returns the answer of the child.
///
/// # Safety
/// The caller is a forked child.
unsafe fn query(file: &CStr) -> &'static [u8] {
    // SAFETY: the library's functions are called as the parent would call them. Any consequence ends with this process.
    unsafe {
        let handle = libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        let getinfo = match handle.is_null() {
            true => core::ptr::null_mut(),
            false => libc::dlvsym(handle, c"fi_getinfo".as_ptr(), c"FABRIC_1.3".as_ptr()),
        };
        if getinfo.is_null() {
            return NOTHING_DONE;
        }
        let getinfo: unsafe extern "C" fn(
            u32,
            *const libc::c_char,
            *const libc::c_char,
            u64,
            *const libc::c_void,
            *mut *mut libc::c_void,
        ) -> libc::c_int = core::mem::transmute(getinfo);
        let (none, mut infos) = (core::ptr::null(), core::ptr::null_mut());
        let _ = getinfo(crate::abi::API, none, none, 0, core::ptr::null(), &raw mut infos);
    }
    DONE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_ignores_what_this_process_ignores_and_has_no_handler_of_it() {
        // Rust programs ignore SIGPIPE, and have a handler for SIGSEGV.
        for (signal, ends) in [(libc::SIGPIPE, false), (libc::SIGSEGV, true)] {
            let raise = || {
                // SAFETY: the signal ends the child at most.
                unsafe { libc::raise(signal) == 0 }
            };
            let trial = attempt_here(raise, Duration::from_secs(20));
            let ended = matches!(trial, Some(Trial::Ended(by)) if by == Some(signal));
            assert_eq!((ended, matches!(trial, Some(Trial::Answered))), (ends, !ends), "{signal}");
        }
    }
}
