//! A test of a process that forks while another thread loads a provider file. The test is a separate program, because it counts on
//! the loads of its own threads alone.

mod common;

use common::{assert_refused, is_found, open_with};
use std::fs::File;
use std::process::Command;
use tieline_bad_providers::Directory;
use tieline_testing::holds_in_child;

/// The constructor of `slow` opens one pipe and then waits for the other end of a second pipe.
#[test]
fn child_forked_during_a_load_refuses_provider_files_and_uses_the_rest() {
    let directory = Directory::new();
    let [reached, proceed] = ["reached", "proceed"].map(|name| directory.path().join(name));
    for pipe in [&reached, &proceed] {
        let made = Command::new("mkfifo").arg(pipe).status().expect("mkfifo of coreutils");
        assert!(made.success());
    }
    let steps = format!(
        "CONSTRUCTOR=close(open(\"{}\", O_WRONLY)); close(open(\"{}\", O_RDONLY))",
        reached.display(),
        proceed.display()
    );
    let _ = directory.compile_with("slow", &[&steps], &["-include", "fcntl.h"]);
    let off = [("TIELINE_PROBE", "off")];
    std::thread::scope(|scope| {
        let loading = scope.spawn(|| is_found(&open_with(&[&directory], &off), "slow"));
        drop(File::open(&reached).expect("the constructor opens the other end"));
        assert!(holds_in_child(|| {
            let found = "a thread of the parent was loading a provider file at the fork";
            let context = open_with(&[&directory], &off);
            assert_refused(&context, "slow", "fork", "no file at the fork", found);
            true
        }));
        drop(File::options().write(true).open(&proceed).expect("the constructor waits for it"));
        assert!(loading.join().expect("the thread ends"));
    });
    // A later child is not affected.
    assert!(holds_in_child(|| is_found(&open_with(&[&directory], &off), "slow")));
}
