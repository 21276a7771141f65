//! Processes that fork: each child opens a context of its own, and all of the family talk to each other.

use tieline_processes::{Launch, Test, Verdict, named, plugins};

pub(crate) const TESTS: &[Test] = named![
    a_family_of_nine_talks_over_shm,
    a_family_of_nine_talks_over_shm_cma,
    a_family_of_nine_talks_over_tcp,
];

/// When the parent forks.
const WAYS: [&str; 4] = ["before", "after", "thread", "posting"];

fn talks(path: &str, settings: &str) -> Verdict {
    for way in WAYS {
        let mut parent = Launch::new(way, "family").start();
        parent.tell(&format!("{way} {path} {settings}"));
        assert_eq!(parent.hear(), "well", "forked {way}");
        parent.end();
    }
    Verdict::Passed
}

fn a_family_of_nine_talks_over_shm() -> Verdict {
    talks("emulated_over_shm/ring", "TIELINE_PROVIDERS=shm")
}

fn a_family_of_nine_talks_over_shm_cma() -> Verdict {
    talks("shm-cma/copy", "TIELINE_PROVIDERS=shm,shm-cma")
}

fn a_family_of_nine_talks_over_tcp() -> Verdict {
    let folder = match plugins::folder() {
        Ok(folder) => folder.display(),
        Err(why) => return Verdict::Skipped(why),
    };
    let settings = format!("TIELINE_PROVIDERS=tcp,tcp-connect TIELINE_PROVIDER_PATH={folder}");
    talks("tcp/stream", &settings)
}
