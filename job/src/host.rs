//! Finds the processes of a job that share a host, by facts that each process contributes to the first exchange.
//!
//! Two processes share a host if they have the same boot of a kernel and the same network and PID namespaces. Two containers with
//! namespaces of their own therefore count as two hosts.

use super::wire::Hello;
use std::os::unix::fs::MetadataExt;
use tieline_plugin_api::kernel_text;

/// Returns the facts about this process's host, as bytes to compare.
pub(super) fn facts() -> Vec<u8> {
    let boot = kernel_text("/proc/sys/kernel/random/boot_id");
    let namespace = |which: &str| {
        std::fs::metadata(format!("/proc/self/ns/{which}")).map(|m| m.ino()).unwrap_or_default()
    };
    // Without a boot id the host's name is used.
    let boot = if boot.is_empty() { name() } else { boot };
    format!("{boot} {} {}", namespace("net"), namespace("pid")).into_bytes()
}

/// Returns the number of this process among the processes of its host, and the number of those processes.
pub(super) fn local_place(facts: &[Vec<u8>], rank: usize) -> (usize, usize) {
    let here = facts.iter().enumerate().filter(|(_, other)| Some(*other) == facts.get(rank));
    let ranks: Vec<usize> = here.map(|(rank, _)| rank).collect();
    (ranks.iter().position(|r| *r == rank).unwrap_or(0), ranks.len())
}

/// Returns the host's name.
pub(super) fn name() -> String {
    kernel_text("/proc/sys/kernel/hostname").chars().take(64).collect()
}

/// Makes the hello frame of this process.
pub(super) fn hello(rank: usize, size: usize, job: &str) -> Hello {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Hello {
        rank: number(rank),
        size: number(size),
        pid: std::process::id(),
        host: name(),
        job: job.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_host_are_numbered_in_the_order_of_the_job() {
        let facts = [b"a", b"b", b"a", b"a"].map(|f| f.to_vec());
        let places: Vec<_> = (0..4).map(|rank| local_place(&facts, rank)).collect();
        assert_eq!(places, [(0, 3), (0, 1), (1, 3), (2, 3)]);
    }

    #[test]
    fn two_processes_of_one_host_tell_the_same_facts() {
        assert_eq!(facts(), facts());
        assert!(!name().is_empty());
    }
}
