//! Tests of the state of processes according to `/proc`, and of the error for a process that may not be inspected.

use super::process::{Process, stuck};
use super::thread_id;
use crate::Status as Code;
use std::io::{Error as IoError, ErrorKind};

/// The kernel reports the state in two files; a folder of the test has the same files.
#[test]
fn uninterruptible_thread_is_shown_with_its_kernel_function() {
    let task = std::env::temp_dir().join(format!("tieline-stuck-{}", std::process::id()));
    std::fs::create_dir(&task).unwrap();
    let told = |status: &str, place: &str| {
        std::fs::write(task.join("status"), status).unwrap();
        std::fs::write(task.join("wchan"), place).unwrap();
        stuck(&task)
    };
    let disk = "Name:\thalo\nState:\tD (disk sleep)\nTgid:\t9\n";
    let seen = [
        told(disk, "nfs_wait"),
        told(disk, "nfs\u{1b}[2Jwait"),
        // If the reader lacks the right to see the kernel function, the kernel reports 0.
        told(disk, "0"),
        told(disk, ""),
        told("Name:\tD\nState:\tS (sleeping)\n", "nfs_wait"),
        told("", "nfs_wait"),
    ];
    std::fs::remove_dir_all(&task).unwrap();
    let state = "D (disk sleep)";
    let seen = seen.each_ref().map(Option::as_deref);
    assert_eq!(seen[0], Some("D (disk sleep) in nfs_wait"));
    assert!(seen[1].is_some_and(|words| !words.contains('\u{1b}')), "{seen:?}");
    assert_eq!(seen[2..], [Some(state), Some(state), None, None]);
    // This thread runs, so it is not stuck.
    let ours = Process::of(std::process::id()).unwrap().task(thread_id());
    assert!(ours.join("status").exists() && stuck(&ours).is_none(), "{}", ours.display());
}

#[test]
fn a_process_that_has_ended_is_dead_and_then_gone() {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = child.id();
    assert!(!Process::is_gone(pid));
    // The child's pipe is closed when it ends; then the child is a zombie.
    let dead = || Process::of(pid).unwrap().is_dead();
    while !dead() {
        std::thread::yield_now();
    }
    let process = Process::of(pid).unwrap();
    let refused = |kind| process.may_not(&IoError::from(kind));
    assert!(refused(ErrorKind::PermissionDenied).to_string().contains("has ended"));
    let _ = child.wait().unwrap();
    assert!(Process::is_gone(pid));
    assert!(Process::of(pid).is_err());
    let gone = refused(ErrorKind::PermissionDenied);
    assert_eq!(gone.status(), Code::Invalid, "{gone}");
    assert!(!Process::of(std::process::id()).unwrap().is_dead());
}

#[test]
fn permission_error_says_whether_process_belongs_to_another_user() {
    let own = Process::of(std::process::id()).unwrap();
    let why = own.may_not(&IoError::from(ErrorKind::PermissionDenied));
    assert_eq!(why.status(), Code::Permission, "{why}");
    assert!(why.to_string().contains("PR_SET_DUMPABLE"), "{why}");
    let broken = own.may_not(&IoError::from(ErrorKind::OutOfMemory));
    assert!(broken.to_string().contains("looking at process"), "{broken}");
    let mut other = own;
    other.user += 1;
    let why = other.may_not(&IoError::from(ErrorKind::PermissionDenied));
    assert!(why.to_string().contains("it is another user's"), "{why}");
}
