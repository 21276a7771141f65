//! The identity of a process. A process that needs access to that process's memory compares the identity, and reports it if access
//! fails.

use std::fs;
use std::os::unix::fs::MetadataExt;

use tieline_plugin_api::{Failure, Status, boot_id, kernel_text};

use crate::sys;

/// The facts that a process knows about itself. Zero means unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The process number in the process's own PID namespace.
    pub pid: i32,
    /// The real user of the process.
    pub uid: u32,
    /// The PID namespace of the process.
    pub pid_namespace: u64,
    /// The user namespace of the process.
    pub user_namespace: u64,
    /// The start time of the process, in ticks since boot.
    pub start_time: u64,
    /// The boot id of the process's kernel.
    pub boot_id: [u8; 16],
}

impl Facts {
    /// The length of the encoded form, in bytes.
    pub const LEN: usize = 48;

    /// Returns the facts of this process.
    #[must_use]
    pub fn current_process() -> Facts {
        let inode = |path| fs::metadata(path).map_or(0, |m| m.ino());
        Facts {
            pid: sys::own_pid(),
            uid: sys::own_uid(),
            pid_namespace: inode("/proc/self/ns/pid"),
            user_namespace: inode("/proc/self/ns/user"),
            start_time: start_time("self").unwrap_or(0),
            boot_id: boot_id(),
        }
    }

    /// Returns the encoded form, which addresses carry.
    #[must_use]
    pub fn encode(&self) -> [u8; Facts::LEN] {
        let mut bytes = [0; Facts::LEN];
        bytes[..4].copy_from_slice(&self.pid.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.uid.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.pid_namespace.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.user_namespace.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.start_time.to_ne_bytes());
        bytes[32..].copy_from_slice(&self.boot_id);
        bytes
    }

    /// Decodes the form that [`Facts::encode`] returns.
    ///
    /// # Errors
    /// The bytes do not describe a process.
    pub fn decode(bytes: &[u8; Facts::LEN]) -> Result<Facts, Failure> {
        let word = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let half = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let mut facts = Facts {
            pid: word(0) as i32,
            uid: word(4),
            pid_namespace: half(8),
            user_namespace: half(16),
            start_time: half(24),
            boot_id: [0; 16],
        };
        facts.boot_id.copy_from_slice(&bytes[32..]);
        if facts.pid <= 0 {
            let text = format!("the address names process {}", facts.pid);
            return Err(Failure::new(Status::BadData, text));
        }
        Ok(facts)
    }

    /// Checks whether this process can refer to `peer` by a process number at all.
    ///
    /// # Errors
    /// The peer runs under another kernel, or has its number in another PID namespace.
    pub fn may_name(&self, peer: &Facts) -> Result<(), Failure> {
        let unreachable = |text: String| Err(Failure::new(Status::Unreachable, text));
        let known = self.boot_id != [0; 16] && peer.boot_id != [0; 16];
        if known && self.boot_id != peer.boot_id {
            return unreachable("the peer runs under another kernel: its boot id differs".into());
        }
        let (here, there) = (self.pid_namespace, peer.pid_namespace);
        if here != 0 && there != 0 && here != there {
            return unreachable(format!(
                "the peer is in another PID namespace ({there} there, {here} here), so its process number means \
                 nothing here; start both with the same one (`--pid=host`, `shareProcessNamespace: true`)"
            ));
        }
        Ok(())
    }

    /// Checks whether the process number belongs to another process since, according to the start time.
    #[must_use]
    pub fn was_reused(&self) -> bool {
        let now = start_time(&self.pid.to_string());
        now.is_some_and(|now| self.start_time != 0 && now != self.start_time)
    }
}

/// Returns the start time of a process, in ticks since boot: field 22 of its `stat`, counted after the command's name.
fn start_time(pid: &str) -> Option<u64> {
    let stat = kernel_text(format!("/proc/{pid}/stat"));
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_of_this_process_are_found_and_survive_the_journey() {
        let facts = Facts::current_process();
        assert_eq!(facts.pid as u32, std::process::id());
        assert_eq!(start_time("self"), start_time(&facts.pid.to_string()));
        assert!(![facts.start_time, facts.pid_namespace, facts.user_namespace].contains(&0));
        assert_ne!(facts.boot_id, [0; 16]);
        assert_eq!(Facts::decode(&facts.encode()).unwrap(), facts);
    }

    #[test]
    fn facts_without_process_are_refused() {
        for pid in [0, -1, i32::MIN] {
            let bytes = Facts { pid, ..Facts::current_process() }.encode();
            let failure = Facts::decode(&bytes).unwrap_err();
            assert_eq!(failure.status, Status::BadData);
            assert!(failure.text.contains(&pid.to_string()), "{failure}");
        }
    }

    #[test]
    fn other_kernel_or_namespace_is_refused_and_unknown_facts_are_ignored() {
        let me = Facts::current_process();
        assert!(me.may_name(&me).is_ok());
        let mut peer = me;
        peer.boot_id[0] ^= 1;
        assert!(me.may_name(&peer).unwrap_err().text.contains("boot id"));
        let peer = Facts { pid_namespace: me.pid_namespace + 1, ..me };
        assert!(me.may_name(&peer).unwrap_err().text.contains("PID namespace"));
        let unknown = Facts { pid_namespace: 0, boot_id: [0; 16], ..me };
        assert!(me.may_name(&unknown).is_ok() && unknown.may_name(&me).is_ok());
    }

    #[test]
    fn a_number_that_was_reused_is_told_by_its_start() {
        let me = Facts::current_process();
        assert!(!me.was_reused());
        assert!(Facts { start_time: me.start_time + 1, ..me }.was_reused());
        assert!(!Facts { start_time: 0, ..me }.was_reused(), "nothing is known");
    }
}
