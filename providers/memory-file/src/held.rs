//! The memory of peers' files that an interface holds, for its report.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tieline_plugin_api::MemoryReport;

/// The number of an interface's endpoints, and the sum of the memory that they hold.
#[derive(Clone, Debug, Default)]
pub struct Held {
    sum: Arc<Sum>,
}

#[derive(Debug, Default)]
struct Sum {
    peers: AtomicU64,
    bytes: AtomicU64,
}

impl Held {
    /// Returns the part of one more endpoint, initially nothing.
    #[must_use]
    pub fn by_endpoint(&self) -> HeldByEndpoint {
        let _ = self.sum.peers.fetch_add(1, Ordering::Relaxed);
        HeldByEndpoint { sum: self.sum.clone(), bytes: AtomicU64::new(0) }
    }

    /// Returns the memory report of an interface that itself holds `base_bytes` bytes.
    #[must_use]
    pub fn report(&self, base_bytes: usize) -> MemoryReport {
        MemoryReport {
            base_bytes: base_bytes as u64,
            peers: self.sum.peers.load(Ordering::Relaxed),
            peer_bytes: self.sum.bytes.load(Ordering::Relaxed),
            ..MemoryReport::default()
        }
    }
}

/// The memory that one endpoint holds, which is subtracted on drop.
#[derive(Debug)]
pub struct HeldByEndpoint {
    sum: Arc<Sum>,
    bytes: AtomicU64,
}

impl HeldByEndpoint {
    /// Sets the number of bytes that the endpoint holds.
    pub fn set(&self, bytes: usize) {
        let before = self.bytes.swap(bytes as u64, Ordering::Relaxed);
        // The addition wraps around zero when the endpoint's memory shrinks.
        let more = (bytes as u64).wrapping_sub(before);
        let _ = self.sum.bytes.fetch_add(more, Ordering::Relaxed);
    }
}

impl Drop for HeldByEndpoint {
    fn drop(&mut self) {
        self.set(0);
        let _ = self.sum.peers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_the_sum_of_what_the_endpoints_hold_now() {
        let held = Held::default();
        let (one, other) = (held.by_endpoint(), held.by_endpoint());
        one.set(5000);
        other.set(300);
        one.set(4000);
        let report = held.report(70);
        assert_eq!((report.base_bytes, report.peers, report.peer_bytes), (70, 2, 4300));
        drop(one);
        let report = held.report(70);
        assert_eq!((report.peers, report.peer_bytes), (1, 300));
    }
}
