//! The barrier that the kernel executes on all processors. The orderings of accesses are in `order.rs`.
#![allow(unsafe_code)] // membarrier is a system call

use std::sync::OnceLock;
use std::sync::atomic::fence;

use tieline_plugin_api::process::PerProcess;

use crate::order;

/// Registers this process, or a forked child, and checks whether [`membarrier`] orders the accesses of every registered process.
pub(crate) fn asymmetric() -> bool {
    const QUERY: i64 = 0;
    const GLOBAL_EXPEDITED: i64 = 1 << 1;
    const REGISTER_GLOBAL_EXPEDITED: i64 = 1 << 2;
    static KNOWN: PerProcess<OnceLock<bool>> = PerProcess::new();
    *KNOWN.get_or_init(|| {
        // SAFETY: membarrier takes numbers only.
        unsafe {
            let commands = libc::syscall(libc::SYS_membarrier, QUERY, 0, 0);
            commands >= 0
                && commands & (GLOBAL_EXPEDITED | REGISTER_GLOBAL_EXPEDITED)
                    == GLOBAL_EXPEDITED | REGISTER_GLOBAL_EXPEDITED
                && libc::syscall(libc::SYS_membarrier, REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0
        }
    })
}

#[cfg(test)]
thread_local! {
    /// The number of calls of [`membarrier`] by this thread.
    pub(crate) static BARRIERS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Executes a full fence in every registered process, if [`asymmetric`] returns true.
pub(crate) fn membarrier() {
    #[cfg(test)]
    BARRIERS.set(BARRIERS.get() + 1);
    if asymmetric() {
        // SAFETY: membarrier takes numbers only.
        let _ = unsafe { libc::syscall(libc::SYS_membarrier, 1i64 << 1, 0, 0) };
        fence(order::SLEEPER);
    }
}
