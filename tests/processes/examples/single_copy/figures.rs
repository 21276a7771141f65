//! The latency of gets over each single-copy provider. `cargo xtask bench --lab` compares these figures with loops over the same
//! interfaces without Tieline (`bare_copies` of `tests/lab/programs`, which has the same names). Each output line contains
//! `figure`, the size, nanoseconds, and the name.

use crate::provider::{CMA, DIRECT, KNEM, SingleCopy, XPMEM, launch, open};
use std::process::ExitCode;

/// The number of bytes in a get, and the number of timed gets.
const SIZES: [(usize, usize); 6] =
    [(8, 100), (512, 100), (4096, 50), (64 << 10, 50), (1 << 20, 20), (16 << 20, 5)];
/// The maximum number of bytes that are attached at a time.
const WINDOW: usize = 2 << 20;
/// A setting that keeps one attachment, so that each access to another window finds the window cold.
const NOTHING_KEPT: &str = "TIELINE_SHM_XPMEM_ATTACHMENTS=1";

pub(crate) fn print() -> ExitCode {
    gets("xpmem direct, warm", &DIRECT, "");
    gets("xpmem direct, cold", &DIRECT, NOTHING_KEPT);
    gets("xpmem copy, warm", &XPMEM, "");
    gets("xpmem copy, cold", &XPMEM, NOTHING_KEPT);
    gets("cma", &CMA, "");
    gets("knem", &KNEM, "");
    ExitCode::SUCCESS
}

fn gets(name: &str, over: &SingleCopy, more: &str) {
    if let Some(why) = over.is_missing() {
        println!("skipped: {name}: {why}");
        return;
    }
    // The peer's help is disabled, because the peer would copy a part of large gets.
    let settings = format!(
        "TIELINE_PROVIDERS=shm,{} {} TIELINE_ASSIST_SIZE=1g {more}",
        over.name, over.settings
    );
    let start = |name: &str| open(launch(name), &settings);
    let (mut accessor, mut owner) = (start("accessor"), start("owner"));
    accessor.connect(&mut owner);
    let most = SIZES[SIZES.len() - 1].0;
    let _ = owner.must(&format!("register memory {}", most + WINDOW));
    let _ = owner.must("fill memory 1");
    let _ = accessor.must(&format!("register here {most}"));
    assert_eq!(accessor.import(&mut owner, "memory"), over.path);
    let stride = if more.is_empty() { 0 } else { WINDOW };
    for (len, count) in SIZES {
        // The first run brings in the pages and keys that remain for the timed run.
        for count in [1, count] {
            let time =
                accessor.must(&format!("time-gets owner.memory here {len} {count} {stride}"));
            if count > 1 {
                println!("figure {len} {time} {name}");
            }
        }
    }
    accessor.end();
    owner.end();
}
