//! The place where tests kill a process: between writing a slot and publishing it.
//!
//! With `TIELINE_SHM_TEST_DIE_AT=100` the process kills itself in the middle of its hundredth slot. This needs the feature
//! `test-hooks`, which only the project's tests enable.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) fn between_write_and_publish() {
    static AT: OnceLock<Option<u64>> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let at = AT.get_or_init(|| std::env::var("TIELINE_SHM_TEST_DIE_AT").ok()?.parse().ok());
    if let Some(at) = at {
        if COUNT.fetch_add(1, Ordering::Relaxed) + 1 == *at {
            crate::sys::kill_self();
        }
    }
}
