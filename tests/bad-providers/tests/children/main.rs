//! Tests of applications that handle child processes themselves. The tests are a separate program, because signal actions apply to
//! the whole process.

#[path = "../common/mod.rs"]
mod common;
mod sys;

use common::{assert_refused, is_found, open};
use tieline_bad_providers::Directory;

#[test]
fn crashes_and_hangs_are_distinguished_under_any_sigchld_handling() {
    let directory = Directory::new();
    let _ = directory.compile("segv", &["CONSTRUCTOR=raise(SIGSEGV)"]);
    let _ = directory.compile("hangs", &["CONSTRUCTOR=for (;;) pause()"]);
    let _ = directory.compile("good", &[]);
    for way in [sys::OnChild::Ignore, sys::OnChild::CollectAll] {
        sys::set(way);
        let context = open(&[&directory]);
        sys::set(sys::OnChild::Default);
        assert!(is_found(&context, "good"), "{way:?}");
        assert_refused(&context, "segv", "probe", "", "killed by SIGSEGV");
        assert_refused(&context, "hangs", "probe", "", "did not come back");
    }
    assert!(!sys::has_child(), "a child is left, if only a dead one");
}
