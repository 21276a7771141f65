//! Tests of the kinds of memory over the single-copy providers: see `tieline_processes::matrix`.

use crate::kills::settings;
use crate::provider::{DIRECT, KNEM, SingleCopy, VERBS, XPMEM, launch, open};
use tieline_processes::mapped::Kind;
use tieline_processes::matrix::{Over, every_kind_is_right};
use tieline_processes::{Node, Test, Verdict, named};

pub(crate) const TESTS: &[Test] = named![
    memory_of_every_kind_is_right_over_knem,
    memory_that_nothing_holds_is_right_until_a_fork_over_knem,
    a_process_without_io_uring_does_without_knem_and_says_why,
    memory_of_every_kind_is_right_over_xpmem,
    memory_of_every_kind_is_right_over_direct_access,
    memory_of_every_kind_is_right_over_verbs,
];

fn memory_of_every_kind_is_right_over_knem() -> Verdict {
    // Some kernels cannot pin private mappings of files. Such mappings fall back to messages.
    is_right(&KNEM, &[Kind::File])
}

/// Without io_uring, the owner has its own copy of the pages when the key is made. A fork removes this property, and the matrix
/// would detect the error.
fn memory_that_nothing_holds_is_right_until_a_fork_over_knem() -> Verdict {
    if let Some(why) = KNEM.is_missing() {
        return Verdict::Skipped(why);
    }
    let settings = format!("{} TIELINE_SHM_KNEM_FORK=never", settings(&KNEM));
    let start = |name: &str| open(launch(name), &settings);
    let (mut owner, mut peer) = (start("owner"), start("peer"));
    let _ = peer.must("register here 9001");
    peer.connect(&mut owner);
    for kind in ["private", "file"] {
        let _ = owner.must(&format!("map memory 9001 {kind} both fresh"));
        assert_eq!(peer.import(&mut owner, "memory"), KNEM.path);
        let mut gets = |owner: &mut Node, filled: usize, seed: usize| {
            let _ = owner.must(&format!("fill memory {filled}"));
            let _ = peer.must("get owner.memory here 0 9001 0");
            assert_eq!(peer.must(&format!("check here 0 9001 {seed} 0")), "same", "{kind}");
        };
        gets(&mut owner, 1, 1);
        let _ = owner.must("start spawn");
        gets(&mut owner, 2, 2);
        let _ = owner.must("start-ended");
        let _ = owner.must("fork-aside-same memory");
        gets(&mut owner, 3, 2);
        let _ = (owner.must("fork-joined"), peer.must("forget-key owner.memory"));
        let _ = owner.must("close memory");
    }
    for mut node in [owner, peer] {
        node.nothing_was_wrong();
        node.end();
    }
    Verdict::Passed
}

fn a_process_without_io_uring_does_without_knem_and_says_why() -> Verdict {
    if let Some(why) = KNEM.is_missing() {
        return Verdict::Skipped(why);
    }
    let settings = settings(&KNEM);
    let mut owner = Node::bare(launch("owner"));
    if owner.must("forbid io_uring_setup") != "true" {
        return Verdict::Skipped("this kernel has no seccomp filters".into());
    }
    let mut peer = open(launch("peer"), &settings);
    let _ = owner.must(&format!("open {}", settings.trim_end()));
    let report = owner.must("context-report");
    assert!(report.contains("does not allow io_uring"), "{report}");
    peer.connect(&mut owner);
    let _ = owner.must("register memory 4096");
    assert_eq!(peer.import(&mut owner, "memory"), "emulated over shm/ring");
    let _ = (peer.must("forget-key owner.memory"), peer.must("disconnect owner"));
    let _ =
        (owner.must("close"), owner.must(&format!("open {settings}TIELINE_SHM_KNEM_FORK=never")));
    peer.connect(&mut owner);
    let _ = owner.must("register memory 4096");
    assert_eq!(peer.import(&mut owner, "memory"), KNEM.path);
    for mut node in [owner, peer] {
        node.nothing_was_wrong();
        node.end();
    }
    Verdict::Passed
}

fn memory_of_every_kind_is_right_over_xpmem() -> Verdict {
    is_right(&XPMEM, &[])
}

fn memory_of_every_kind_is_right_over_direct_access() -> Verdict {
    is_right(&DIRECT, &[])
}

fn memory_of_every_kind_is_right_over_verbs() -> Verdict {
    let mut devices = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten();
    match devices.next() {
        Some(_) => is_right(&VERBS, &[]),
        None => Verdict::Skipped("there is no RDMA device: the lab has one".into()),
    }
}

fn is_right(over: &SingleCopy, or_messages: &[Kind]) -> Verdict {
    if let Some(why) = over.is_missing() {
        return Verdict::Skipped(why);
    }
    let before = over.held();
    let settings = settings(over);
    let settings: Vec<&str> = settings.split_whitespace().collect();
    every_kind_is_right(&Over {
        launch: &launch,
        settings: &settings,
        path: over.path,
        or_messages,
        dies_with_owner: over.settings == DIRECT.settings,
    });
    over.holds_again(before, "at the end");
    Verdict::Passed
}
