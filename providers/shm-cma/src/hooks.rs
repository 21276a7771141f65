//! A test hook that stops a process right after it has found a key valid, before it does anything else.
//!
//! With `TIELINE_SHM_CMA_TEST_STOP_AT=3` the process stops itself (SIGSTOP) when it finds a key valid for the third time. Only the
//! feature `test-hooks` enables this hook, and only the project's tests use it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) fn found_valid() {
    static AT: OnceLock<Option<u64>> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let at = AT.get_or_init(|| std::env::var("TIELINE_SHM_CMA_TEST_STOP_AT").ok()?.parse().ok());
    if let Some(at) = at {
        if COUNT.fetch_add(1, Ordering::Relaxed) + 1 == *at {
            crate::sys::stop_self();
        }
    }
}
