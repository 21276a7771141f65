//! A port as its peers see it, and whether two ports reach each other.

use crate::abi::{
    IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, ibv_ah_attr, ibv_gid, ibv_global_route,
};
use crate::config::Settings;
use crate::gid;
use tieline_plugin_api::{Failure, Status};

/// Length of a port's part of an address.
pub(crate) const PORT_LEN: usize = 24;

/// What a peer must know of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) ethernet: bool,
    /// RoCE v2: packets are UDP, and routable.
    pub(crate) v2: bool,
    /// 1 (256 bytes) to 5 (4096 bytes).
    pub(crate) mtu: u8,
    pub(crate) lid: u16,
    pub(crate) partition: u16,
    pub(crate) gid: [u8; 16],
}

/// Bytes of an MTU code.
pub(crate) const fn mtu_bytes(code: u8) -> usize {
    match code {
        0 | 1 => 256,
        2..=4 => 128 << code,
        _ => 4096,
    }
}

impl Port {
    pub(crate) fn pack(&self) -> [u8; PORT_LEN] {
        let mut out = [0; PORT_LEN];
        let layer = if self.ethernet { IBV_LINK_LAYER_ETHERNET } else { IBV_LINK_LAYER_INFINIBAND };
        out[0] = layer as u8;
        out[1] = u8::from(self.v2);
        out[2] = self.mtu;
        out[4..6].copy_from_slice(&self.lid.to_le_bytes());
        out[6..8].copy_from_slice(&self.partition.to_le_bytes());
        out[8..].copy_from_slice(&self.gid);
        out
    }

    pub(crate) fn unpack(bytes: &[u8; PORT_LEN]) -> Result<Port, Failure> {
        let ethernet = match u32::from(bytes[0]) {
            IBV_LINK_LAYER_ETHERNET => true,
            IBV_LINK_LAYER_INFINIBAND => false,
            _ => return Err(bad("names no link layer")),
        };
        let v2 = match bytes[1] {
            0 => false,
            1 => true,
            _ => return Err(bad("names no version of RoCE")),
        };
        if !(1..=5).contains(&bytes[2]) || bytes[3] != 0 {
            return Err(bad("names no MTU"));
        }
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[8..]);
        if gid == [0; 16] {
            return Err(bad("has no GID"));
        }
        Ok(Port {
            ethernet,
            v2,
            mtu: bytes[2],
            lid: u16::from_le_bytes([bytes[4], bytes[5]]),
            partition: u16::from_le_bytes([bytes[6], bytes[7]]),
            gid,
        })
    }

    /// Whether packets from here can come to `peer`, as far as can be told without sending one.
    ///
    /// # Errors
    /// Why not, in words.
    pub(crate) fn reaches(&self, peer: &Port) -> Result<(), Failure> {
        let no = |text: String| Err(Failure::new(Status::Unreachable, text));
        let layer = |port: &Port| if port.ethernet { "Ethernet (RoCE)" } else { "InfiniBand" };
        if self.ethernet != peer.ethernet {
            return no(format!("this port is {}, the peer's is {}", layer(self), layer(peer)));
        }
        if self.ethernet && self.v2 != peer.v2 {
            let version = |port: &Port| if port.v2 { "v2" } else { "v1" };
            return no(format!(
                "this port uses RoCE {}, the peer's {}: set TIELINE_VERBS_GID_INDEX on one of the two",
                version(self),
                version(peer)
            ));
        }
        if self.ethernet && gid::is_ipv4(&self.gid) != gid::is_ipv4(&peer.gid) {
            return no(format!(
                "this port's address is {}, the peer's {}: one is IPv4 and the other is not",
                gid::words(&self.gid),
                gid::words(&peer.gid)
            ));
        }
        if !self.ethernet && self.gid[..8] != peer.gid[..8] {
            return no(format!(
                "the peer is in another InfiniBand subnet ({} and {})",
                prefix(&self.gid),
                prefix(&peer.gid)
            ));
        }
        if (self.partition ^ peer.partition) & 0x7fff != 0 {
            return no(format!(
                "this port is in partition {:#06x}, the peer's in {:#06x}",
                self.partition, peer.partition
            ));
        }
        if (self.partition | peer.partition) & 0x8000 == 0 {
            return no(format!(
                "both ports are limited members of partition {:#06x}",
                self.partition
            ));
        }
        Ok(())
    }

    /// How to address `self` from a port that sends with its GID `source`.
    pub(crate) fn route(&self, local: &Local, settings: &Settings) -> ibv_ah_attr {
        ibv_ah_attr {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: self.gid },
                flow_label: 0,
                sgid_index: local.gid_index,
                hop_limit: 64,
                traffic_class: settings.traffic_class,
            },
            dlid: self.lid,
            sl: settings.service_level,
            src_path_bits: 0,
            static_rate: 0,
            is_global: u8::from(self.ethernet || local.needs_grh),
            port_num: local.number,
        }
    }
}

/// What only this side must know of its own port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local {
    pub(crate) number: u8,
    pub(crate) gid_index: u8,
    pub(crate) partition_index: u16,
    /// Every packet needs a global header.
    pub(crate) needs_grh: bool,
}

fn prefix(gid: &[u8; 16]) -> String {
    gid[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bad(why: &str) -> Failure {
    Failure::new(Status::BadData, format!("a verbs address that {why}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn ethernet(last: u8) -> Port {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, last]);
        Port { ethernet: true, v2: true, mtu: 3, lid: 0, partition: 0xffff, gid }
    }

    fn infiniband(subnet: u8) -> Port {
        let mut gid = [0xfe; 16];
        gid[7] = subnet;
        Port { ethernet: false, v2: false, mtu: 5, lid: 7, partition: 0x8001, gid }
    }

    #[test]
    fn a_port_survives_packing_and_noise_is_refused() {
        for port in [ethernet(1), infiniband(2)] {
            assert_eq!(Port::unpack(&port.pack()), Ok(port));
        }
        assert!(Port::unpack(&[0; PORT_LEN]).is_err());
        for (at, value) in [(0, 9), (1, 2), (2, 0), (2, 6), (3, 1)] {
            let mut bytes = ethernet(1).pack();
            bytes[at] = value;
            assert!(Port::unpack(&bytes).is_err(), "byte {at}");
        }
    }

    #[test]
    fn ports_of_one_fabric_reach_each_other() {
        assert_eq!(ethernet(1).reaches(&ethernet(2)), Ok(()));
        assert_eq!(ethernet(1).reaches(&ethernet(1)), Ok(()));
        assert_eq!(infiniband(1).reaches(&infiniband(1)), Ok(()));
    }

    #[test]
    fn what_separates_two_ports_is_said_in_words() {
        let words = |a: Port, b: Port| a.reaches(&b).unwrap_err().text;
        assert!(words(ethernet(1), infiniband(1)).contains("the peer's is InfiniBand"));
        let subnets = words(infiniband(1), infiniband(2));
        assert!(subnets.contains("another InfiniBand subnet"), "{subnets}");
        for port in [infiniband(1), infiniband(2)] {
            let subnet: String = port.gid[..8].iter().map(|byte| format!("{byte:02x}")).collect();
            assert!(subnets.contains(&subnet), "{subnet}: {subnets}");
        }
        let v1 = Port { v2: false, ..ethernet(2) };
        assert!(words(ethernet(1), v1).contains("RoCE v2, the peer's v1"));
        let mut six = ethernet(2);
        six.gid[0] = 0xfd;
        assert!(words(ethernet(1), six).contains("one is IPv4"));
        let other = Port { partition: 0x8002, ..infiniband(1) };
        assert!(words(infiniband(1), other).contains("partition 0x8001"));
        let limited = Port { partition: 1, ..infiniband(1) };
        assert!(words(limited, limited).contains("limited members"));
    }

    #[test]
    fn mtu_codes_are_bytes() {
        assert_eq!((1..=5).map(mtu_bytes).collect::<Vec<_>>(), [256, 512, 1024, 2048, 4096]);
    }
}
