//! The description of a port that its peers receive, and the test whether two ports reach each other.

use crate::abi::{
    IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, ibv_ah_attr, ibv_gid, ibv_global_route,
};
use crate::config::Settings;
use crate::gid;
use tieline_plugin_api::{Failure, Status};

/// The length of a port's part of an address.
pub(crate) const PORT_LEN: usize = 24;

/// The description of a port for its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) ethernet: bool,
    /// Whether the port uses RoCE v2: packets are UDP and routable.
    pub(crate) v2: bool,
    /// MTU code: 1 (256 bytes) to 5 (4096 bytes).
    pub(crate) mtu: u8,
    pub(crate) lid: u16,
    pub(crate) partition: u16,
    pub(crate) gid: [u8; 16],
}

/// Converts an MTU code to bytes.
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

    /// Checks whether packets from this port can reach `peer`, as far as this can be determined without sending a packet.
    ///
    /// # Errors
    /// `peer` cannot be reached; the text has the reason.
    pub(crate) fn reaches(&self, peer: &Port, router: Router) -> Result<(), Failure> {
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
        if self.is_beyond_router(peer) {
            let why = match router {
                Router::At(_) => None,
                Router::None => Some("TIELINE_VERBS_ROUTER names no router"),
                // The return path needs a routed LID, too.
                Router::ByPrefix => [peer, self]
                    .iter()
                    .any(|port| routed_lid(&port.gid).is_none())
                    .then_some("TIELINE_VERBS_ROUTER=flid wants prefixes fec0:0:LID:..."),
            };
            if let Some(why) = why {
                let (ours, theirs) = (prefix(&self.gid), prefix(&peer.gid));
                return no(format!(
                    "the peer is in another InfiniBand subnet ({ours} and {theirs}), and {why}"
                ));
            }
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

    /// Checks whether packets to the peer's InfiniBand port leave the subnet.
    fn is_beyond_router(&self, peer: &Port) -> bool {
        !self.ethernet && !peer.ethernet && self.gid[..8] != peer.gid[..8]
    }

    /// Returns the address vector for a peer's port.
    pub(crate) fn route(&self, peer: &Port, local: &Local, settings: &Settings) -> ibv_ah_attr {
        let beyond = self.is_beyond_router(peer);
        let dlid = match settings.router {
            Router::At(lid) if beyond => lid,
            Router::ByPrefix if beyond => routed_lid(&peer.gid).unwrap_or(peer.lid),
            _ => peer.lid,
        };
        ibv_ah_attr {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: peer.gid },
                flow_label: 0,
                sgid_index: local.gid_index,
                hop_limit: 64,
                traffic_class: settings.traffic_class,
            },
            dlid,
            sl: settings.service_level,
            src_path_bits: 0,
            static_rate: 0,
            is_global: u8::from(self.ethernet || local.needs_grh || beyond),
            port_num: local.number,
        }
    }
}

/// Facts about the own port that peers do not need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local {
    pub(crate) number: u8,
    pub(crate) gid_index: u8,
    pub(crate) partition_index: u16,
    /// Whether every packet needs a global routing header.
    pub(crate) needs_grh: bool,
}

/// The route to other InfiniBand subnets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Router {
    /// No route to other subnets.
    None,
    /// The router port with this LID in the local subnet.
    At(u16),
    /// The LID in the peer's subnet prefix.
    ByPrefix,
}

/// Returns the LID that leads to a subnet from all other subnets, taken from a site-local prefix: fec0:0:LID:subnet. UCX reads this
/// LID in the same way (src/uct/ib/base/ib_iface.c, uct_ib_iface_gid_extract_flid).
fn routed_lid(gid: &[u8; 16]) -> Option<u16> {
    let lid = u16::from_be_bytes([gid[4], gid[5]]);
    (gid[..4] == [0xfe, 0xc0, 0, 0] && lid != 0).then_some(lid)
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
        assert_eq!(ethernet(1).reaches(&ethernet(2), Router::None), Ok(()));
        assert_eq!(ethernet(1).reaches(&ethernet(1), Router::None), Ok(()));
        assert_eq!(infiniband(1).reaches(&infiniband(1), Router::None), Ok(()));
    }

    #[test]
    fn unreachable_ports_report_the_reason() {
        let words = |a: Port, b: Port| a.reaches(&b, Router::None).unwrap_err().text;
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
    fn router_is_addressed_by_its_lid_or_by_the_prefix_lid() {
        let site = |lid: u16, subnet: u8| {
            let mut port = infiniband(subnet);
            port.gid[..8].copy_from_slice(&[0xfe, 0xc0, 0, 0, 0, 0, 0, subnet]);
            port.gid[4..6].copy_from_slice(&lid.to_be_bytes());
            port
        };
        let local = Local { number: 1, gid_index: 0, partition_index: 0, needs_grh: false };
        let settings = |router| Settings { router, ..Settings::defaults() };
        let way = |a: Port, b: Port, router| {
            a.reaches(&b, router)?;
            let way = a.route(&b, &local, &settings(router));
            assert_eq!((way.grh.dgid.raw, way.grh.hop_limit), (b.gid, 64));
            Ok::<_, Failure>((way.is_global, way.dlid))
        };
        let (here, near, far) = (site(0x4001, 1), site(0x4001, 1), site(0x4002, 2));
        for router in [Router::None, Router::At(9), Router::ByPrefix] {
            assert_eq!(way(here, near, router), Ok((0, 7)), "within a subnet nobody is asked");
            assert_eq!(way(ethernet(1), ethernet(2), router), Ok((1, 0)));
        }
        assert_eq!(way(here, far, Router::At(9)), Ok((1, 9)));
        assert_eq!(way(here, far, Router::ByPrefix), Ok((1, 0x4002)));
        assert_eq!(way(infiniband(1), infiniband(2), Router::At(9)), Ok((1, 9)));
        let text = way(here, far, Router::None).unwrap_err().text;
        assert!(text.ends_with("and TIELINE_VERBS_ROUTER names no router"), "{text}");
        // Both directions need a route.
        for (a, b) in [(here, site(0, 2)), (site(0, 2), here), (here, infiniband(2))] {
            let text = way(a, b, Router::ByPrefix).unwrap_err().text;
            assert!(text.ends_with("wants prefixes fec0:0:LID:..."), "{text}");
        }
    }

    #[test]
    fn mtu_codes_are_bytes() {
        assert_eq!((1..=5).map(mtu_bytes).collect::<Vec<_>>(), [256, 512, 1024, 2048, 4096]);
    }

    #[test]
    fn a_limited_member_of_a_partition_reaches_a_full_one_and_is_reached() {
        let (full, limited) = (infiniband(1), Port { partition: 1, ..infiniband(1) });
        assert_eq!(full.reaches(&limited, Router::None), Ok(()));
        assert_eq!(limited.reaches(&full, Router::None), Ok(()));
    }

    #[test]
    fn only_a_port_of_another_infiniband_subnet_is_behind_a_router() {
        assert!(infiniband(1).is_beyond_router(&infiniband(2)));
        for (a, b) in [
            (infiniband(1), infiniband(1)),
            (infiniband(1), ethernet(1)),
            (ethernet(1), infiniband(1)),
            (ethernet(1), ethernet(2)),
        ] {
            assert!(!a.is_beyond_router(&b), "{a:?} {b:?}");
        }
    }
}
