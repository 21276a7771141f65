//! Identifies the kernel and the namespaces of this process, and checks whether a peer shares them.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tieline_plugin_api::{Failure, Status, boot_id};

use crate::hello::{Address, Id};
use crate::listener;

/// The identity of this process's host.
#[derive(Clone, Debug)]
pub(crate) struct HostFacts {
    /// The identity of the kernel's boot, which differs between kernels and between boots of one kernel; all zero if unknown.
    pub(crate) boot: Id,
    /// The inode of the network namespace; 0 if unknown.
    pub(crate) network: u64,
    /// The inode of the mount namespace; 0 if unknown.
    pub(crate) mount: u32,
}

impl HostFacts {
    pub(crate) fn read() -> HostFacts {
        let inode = |of: &str| {
            std::fs::metadata(format!("/proc/self/ns/{of}")).map_or(0, |about| about.ino())
        };
        HostFacts { boot: boot_id(), network: inode("net"), mount: inode("mnt") as u32 }
    }

    /// Checks whether this process can reach a peer. Unknown values (without /proc) exclude no peer: its socket is found or not,
    /// and has at least 64 random bits in its name.
    pub(crate) fn can_reach(&self, peer: &Address, own_dir: Option<&Path>) -> Result<(), Failure> {
        let no = |text: &str| Err(Failure::new(Status::Unreachable, text));
        let known = peer.boot != Id::default() && self.boot != Id::default();
        if known && peer.boot != self.boot {
            return no("the peer runs under another kernel: shared memory reaches one host only");
        }
        if peer.socket[0] == 0 {
            let known = peer.network != 0 && self.network != 0;
            if known && peer.network != self.network {
                return no(
                    "the peer lives in another network namespace, where its abstract socket cannot be seen: \
                     set TIELINE_SHM_DIR on both sides to a directory that they share",
                );
            }
            return Ok(());
        }
        let name = String::from_utf8_lossy(&peer.socket);
        match listener::find(peer, own_dir) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(Failure::new(
                Status::Permission,
                format!(
                    "the peer's socket {name} cannot be entered: the peer belongs to another user"
                ),
            )),
            Err(_) if self.mount != 0 && self.mount == peer.mount => Err(Failure::new(
                Status::PeerFailed,
                format!("the peer's socket {name} is gone: the peer has exited"),
            )),
            Err(_) => no(&format!(
                "the peer's socket {name} cannot be seen from here: the peer has exited, or it lives in another \
                 mount namespace: then set TIELINE_SHM_DIR on both sides to a directory that they share"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(network: u64, socket: &[u8]) -> Address {
        Address {
            cookie: [0; 16],
            boot: [1; 16],
            network,
            mount: 9,
            process: 0,
            domain: [0; 16],
            socket: socket.to_vec(),
        }
    }

    #[test]
    fn a_peer_elsewhere_is_refused_with_the_reason() {
        let here = HostFacts { boot: [1; 16], network: 7, mount: 8 };
        assert!(here.can_reach(&address(7, b"\0x"), None).is_ok());
        assert!(here.can_reach(&address(0, b"\0x"), None).is_ok());
        let why = |facts: &HostFacts, peer: &Address| facts.can_reach(peer, None).unwrap_err().text;
        assert!(why(&here, &address(8, b"\0x")).contains("network namespace"));
        assert!(why(&here, &address(8, b"/nonexistent/x")).contains("TIELINE_SHM_DIR"));
        let same = Address { mount: 8, ..address(8, b"/nonexistent/x") };
        assert_eq!(here.can_reach(&same, None).unwrap_err().status, Status::PeerFailed);
        let elsewhere = HostFacts { boot: [2; 16], ..here };
        assert!(why(&elsewhere, &address(7, b"\0x")).contains("another kernel"));
    }

    #[test]
    fn a_kernel_that_either_side_does_not_know_is_not_another_one() {
        let here = HostFacts { boot: [1; 16], network: 7, mount: 8 };
        let unknown = HostFacts { boot: [0; 16], network: 0, mount: 0 };
        let theirs = Address { boot: [0; 16], ..address(0, b"\0x") };
        assert!(unknown.can_reach(&address(7, b"\0x"), None).is_ok());
        assert!(here.can_reach(&theirs, None).is_ok());
        assert!(unknown.can_reach(&theirs, None).is_ok());
        // A missing socket is not reachable.
        let gone = Address { socket: b"/nonexistent/x".to_vec(), ..theirs };
        assert!(unknown.can_reach(&gone, None).is_err());
    }

    #[test]
    fn the_facts_of_this_host_can_be_read() {
        let facts = HostFacts::read();
        assert_ne!(facts.boot, [0; 16]);
        assert_ne!(facts.network, 0);
    }
}
