//! Which kernel and network namespace this process lives in, and whether a peer shares them.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tieline_plugin_api::{Failure, Status};

use crate::hello::{Address, Id};
use crate::listener;

/// Facts of this process.
#[derive(Clone, Debug)]
pub(crate) struct HostFacts {
    /// Differs between kernels, and between boots of one.
    pub(crate) boot: Id,
    /// The inode of the network namespace; 0: unknown.
    pub(crate) network: u64,
}

impl HostFacts {
    pub(crate) fn read() -> HostFacts {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: Vec<u8> =
            boot.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
        let mut id = Id::default();
        for (byte, pair) in id.iter_mut().zip(digits.chunks(2)) {
            *byte = pair.iter().fold(0, |byte, digit| byte << 4 | digit);
        }
        let network = std::fs::metadata("/proc/self/ns/net").map_or(0, |about| about.ino());
        HostFacts { boot: id, network }
    }

    /// Whether a peer can be reached from here.
    pub(crate) fn can_reach(&self, peer: &Address, own_dir: Option<&Path>) -> Result<(), Failure> {
        let no = |text: &str| Err(Failure::new(Status::Unreachable, text));
        if peer.boot != self.boot {
            return no("the peer runs under another kernel: shared memory reaches one host only");
        }
        if peer.socket[0] == 0 {
            let known = peer.network != 0 && self.network != 0;
            if known && peer.network != self.network {
                return no(
                    "the peer lives in another network namespace, where its abstract socket cannot be seen: \
                     set TIELINE_SHM_DIR to a directory that both sides share",
                );
            }
        } else if !listener::is_visible(&peer.socket, own_dir) {
            return no(
                "the peer's socket cannot be seen from here: set TIELINE_SHM_DIR on both sides to the same \
                 directory, or the peer has exited",
            );
        }
        Ok(())
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
            domain: [0; 16],
            socket: socket.to_vec(),
        }
    }

    #[test]
    fn a_peer_elsewhere_is_refused_with_the_reason() {
        let here = HostFacts { boot: [1; 16], network: 7 };
        assert!(here.can_reach(&address(7, b"\0x"), None).is_ok());
        assert!(here.can_reach(&address(0, b"\0x"), None).is_ok());
        let why = |facts: &HostFacts, peer: &Address| facts.can_reach(peer, None).unwrap_err().text;
        assert!(why(&here, &address(8, b"\0x")).contains("network namespace"));
        assert!(why(&here, &address(8, b"/nonexistent/x")).contains("TIELINE_SHM_DIR"));
        let elsewhere = HostFacts { boot: [2; 16], ..here };
        assert!(why(&elsewhere, &address(7, b"\0x")).contains("another kernel"));
    }

    #[test]
    fn the_facts_of_this_host_can_be_read() {
        let facts = HostFacts::read();
        assert_ne!(facts.boot, [0; 16]);
        assert_ne!(facts.network, 0);
    }
}
