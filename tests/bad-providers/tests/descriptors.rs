//! Tests of a worker when the process runs out of descriptors. The tests are a separate program, because the limit applies to the
//! process.

mod common;

use common::open_with;
use tieline_bad_providers::Directory;

/// The provider `greedy` uses up the descriptors when it opens, and `late` finds none.
#[test]
fn a_worker_opens_with_what_can_be_opened_and_the_report_names_the_rest() {
    let directory = Directory::new();
    let headers = ["-include", "fcntl.h", "-include", "sys/resource.h"];
    let all = "OPENING=struct rlimit few = { 64, 64 }; setrlimit(RLIMIT_NOFILE, &few); \
               while (open(\"/dev/null\", O_RDONLY) >= 0) {}";
    let _ = directory.compile_with("greedy", &[all], &headers);
    let one = "OPENING=if (open(\"/dev/null\", O_RDONLY) < 0) return TIELINE_NO_MEMORY";
    let _ = directory.compile_with("late", &[one], &headers);
    let context = open_with(&[&directory], &[("TIELINE_PROVIDERS", "greedy,late")]);
    let worker = context.worker().expect("a worker with what could be opened");
    drop(worker);
    let warnings = context.report().warnings;
    let named = warnings.iter().any(|text| text.contains("late/loop is not used"));
    assert!(named, "{warnings:?}");
    assert!(!warnings.iter().any(|text| text.contains("greedy/loop is not used")), "{warnings:?}");
}
