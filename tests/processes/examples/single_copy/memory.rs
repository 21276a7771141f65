//! Memory of every kind over the providers for single copy: see `tieline_processes::matrix`.

use crate::kills::settings;
use crate::provider::{DIRECT, KNEM, SingleCopy, VERBS, XPMEM, launch};
use tieline_processes::mapped::Kind;
use tieline_processes::matrix::{Over, every_kind_is_right};
use tieline_processes::{Test, Verdict, named};

pub(crate) const TESTS: &[Test] = named![
    memory_of_every_kind_is_right_over_knem,
    memory_of_every_kind_is_right_over_xpmem,
    memory_of_every_kind_is_right_over_direct_access,
    memory_of_every_kind_is_right_over_verbs,
];

fn memory_of_every_kind_is_right_over_knem() -> Verdict {
    // Some kernels hold no private mappings of files. These go by messages then.
    is_right(&KNEM, &[Kind::File])
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
