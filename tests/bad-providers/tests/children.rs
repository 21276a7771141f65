//! Applications that have their own idea of child processes. A program of its own: signal actions belong to
//! the whole process.
#![allow(unsafe_code)] // signal actions

mod common;

use common::{assert_refused, is_found, open};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use tieline_bad_providers::Directory;

static COLLECTED: AtomicU32 = AtomicU32::new(0);

/// Collects every child at once, as some applications do.
extern "C" fn collect_all(_: c_int) {
    // SAFETY: waitpid is async-signal-safe.
    while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {
        let _ = COLLECTED.fetch_add(1, Ordering::Relaxed);
    }
}

fn on_child(action: libc::sighandler_t) {
    // SAFETY: this program has one test; nothing else waits for children meanwhile.
    assert_ne!(unsafe { libc::signal(libc::SIGCHLD, action) }, libc::SIG_ERR);
}

#[test]
fn crashes_and_hangs_are_told_apart_whatever_the_application_does_with_its_children() {
    let directory = Directory::new();
    let _ = directory.compile("segv", &["CONSTRUCTOR=raise(SIGSEGV)"]);
    let _ = directory.compile("hangs", &["CONSTRUCTOR=for (;;) pause()"]);
    let _ = directory.compile("good", &[]);
    let handler = collect_all as extern "C" fn(c_int) as libc::sighandler_t;
    for action in [libc::SIG_IGN, handler] {
        on_child(action);
        let context = open(&[&directory]);
        on_child(libc::SIG_DFL);
        assert!(is_found(&context, "good"));
        assert_refused(&context, "segv", "probe", "", "killed by SIGSEGV");
        assert_refused(&context, "hangs", "probe", "", "did not come back");
    }
    // SAFETY: asks whether a child is left; there is none, not even a dead one.
    let left = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
    assert_eq!(left, -1, "a child is left");
}
