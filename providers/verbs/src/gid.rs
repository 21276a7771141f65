//! Selection of a port's GID.

use tieline_plugin_api::{Failure, Status};

/// The protocol of a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum GidKind {
    RoceV2,
    IbOrRoceV1,
    Unknown,
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gid {
    pub(crate) index: u32,
    pub(crate) raw: [u8; 16],
    pub(crate) kind: GidKind,
    /// The network device of the GID, if the kernel lists one.
    pub(crate) netdev: String,
    /// Whether the network device of the GID is a VLAN, which the peer may not be in.
    pub(crate) vlan: bool,
}

const IPV4_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// Checks whether a GID is an IPv4-mapped address.
pub(crate) fn is_ipv4(raw: &[u8; 16]) -> bool {
    raw[..12] == IPV4_PREFIX
}

fn is_link_local(raw: &[u8; 16]) -> bool {
    raw[..2] == [0xfe, 0x80] || (is_ipv4(raw) && raw[12..14] == [169, 254])
}

/// Formats a GID as operators write it: IPv4 or IPv6 notation.
pub(crate) fn words(raw: &[u8; 16]) -> String {
    if is_ipv4(raw) {
        format!("{}.{}.{}.{}", raw[12], raw[13], raw[14], raw[15])
    } else {
        std::net::Ipv6Addr::from(*raw).to_string()
    }
}

/// Returns the sort key, lowest first: v2 before v1, then IPv4, then routable IPv6, then link-local, then without a VLAN, then the
/// lower index.
fn rank(gid: &Gid) -> (GidKind, bool, bool, bool, u32) {
    (gid.kind, is_link_local(&gid.raw), !is_ipv4(&gid.raw), gid.vlan, gid.index)
}

/// An address range: `10.1.0.0/16` or `fd00::/8`; on InfiniBand the prefix of a subnet, such as `fe80::/64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subnet {
    start: u128,
    bits: u32,
}

impl Subnet {
    pub(crate) fn parse(text: &str) -> Option<Subnet> {
        let (address, bits) = text.split_once('/')?;
        let bits: u32 = bits.trim().parse().ok()?;
        let (start, bits) = match address.trim().parse().ok()? {
            std::net::IpAddr::V4(v4) if bits <= 32 => (v4.to_ipv6_mapped(), bits + 96),
            std::net::IpAddr::V6(v6) if bits <= 128 => (v6, bits),
            _ => return None,
        };
        Some(Subnet { start: u128::from(start), bits })
    }

    fn holds(self, gid: &[u8; 16]) -> bool {
        let differs = self.start ^ u128::from_be_bytes(*gid);
        self.bits == 0 || differs >> (128 - self.bits) == 0
    }
}

/// Selects an entry of the GID table: the requested entry, or else the best entry within `subnets` for which `works` returns true.
/// An empty `subnets` allows all. On InfiniBand the lowest index is the best, and `works` is not called. If `works` rejects every
/// entry, returns the best one; a later attempt to reach a peer then reports the error.
///
/// # Errors
/// The GID table is empty, does not have the requested entry, or has no entry within `subnets`.
pub(crate) fn choose<'a>(
    gids: &'a [Gid],
    ethernet: bool,
    wanted: Option<u32>,
    subnets: &[Subnet],
    works: impl Fn(&Gid) -> bool,
    port: &str,
) -> Result<&'a Gid, Failure> {
    let none = |text: String| Failure::new(Status::NoDevice, text);
    match wanted {
        Some(index) => gids.iter().find(|gid| gid.index == index).ok_or_else(|| {
            let have: Vec<String> =
                gids.iter().map(|gid| format!("{} ({})", gid.index, words(&gid.raw))).collect();
            none(format!(
                "{port} has no GID with index {index} (TIELINE_VERBS_GID_INDEX); it has {}",
                have.join(", ")
            ))
        }),
        None => {
            let inside =
                |gid: &&Gid| subnets.is_empty() || subnets.iter().any(|s| s.holds(&gid.raw));
            let mut order: Vec<&Gid> = gids.iter().filter(inside).collect();
            match ethernet {
                true => order.sort_by_key(|gid| rank(gid)),
                false => order.sort_by_key(|gid| gid.index),
            }
            let best = order.first().copied();
            let first = order.into_iter().find(|gid| !ethernet || works(gid)).or(best);
            first.ok_or_else(|| {
                let have: Vec<String> = gids.iter().map(|gid| words(&gid.raw)).collect();
                none(match (gids.is_empty(), ethernet) {
                    (false, _) => format!(
                        "{port} has no GID in a subnet of TIELINE_VERBS_SUBNET; it has {}",
                        have.join(", ")
                    ),
                    (_, true) => {
                        format!(
                            "{port} has no GID: its network device has no address, or is not up"
                        )
                    }
                    (_, false) => {
                        format!("{port} has no GID: no subnet manager has set the port up")
                    }
                })
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use GidKind::{IbOrRoceV1, RoceV2};

    fn gid(index: u32, address: &str, kind: GidKind) -> Gid {
        let raw = match address.parse().unwrap() {
            std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            std::net::IpAddr::V6(v6) => v6.octets(),
        };
        Gid { index, raw, kind, netdev: "eth0".to_string(), vlan: false }
    }

    #[test]
    fn gid_without_vlan_is_preferred() {
        let mut gids = vec![gid(0, "10.0.0.1", RoceV2), gid(1, "10.0.1.1", RoceV2)];
        gids[0].vlan = true;
        assert_eq!(choose(&gids, true, None, &[], |_| true, "p").unwrap().index, 1);
        let within = [Subnet::parse("10.0.0.0/24").unwrap()];
        assert_eq!(choose(&gids, true, None, &within, |_| true, "p").unwrap().index, 0);
    }

    #[test]
    fn on_ethernet_v2_with_an_ipv4_address_comes_first() {
        let mut gids = vec![
            gid(0, "fe80::1", IbOrRoceV1),
            gid(1, "fe80::1", RoceV2),
            gid(2, "10.0.0.1", IbOrRoceV1),
            gid(3, "fd00::1", RoceV2),
            gid(4, "10.0.0.1", RoceV2),
            gid(5, "10.0.0.2", RoceV2),
        ];
        let mut order = Vec::new();
        while let Ok(best) = choose(&gids, true, None, &[], |_| true, "rxe0 port 1") {
            let index = best.index;
            order.push(index);
            gids.retain(|gid| gid.index != index);
        }
        assert_eq!(order, [4, 5, 3, 1, 2, 0]);
    }

    #[test]
    fn routable_ipv6_gid_is_preferred_over_link_local_ipv4() {
        let gids = [gid(1, "169.254.1.1", RoceV2), gid(2, "fd00::1", RoceV2)];
        assert_eq!(choose(&gids, true, None, &[], |_| true, "p").unwrap().index, 2);
    }

    #[test]
    fn on_infiniband_the_first_entry_is_used() {
        let gids = [gid(0, "fe80::1", IbOrRoceV1), gid(1, "fec0::1", IbOrRoceV1)];
        assert_eq!(choose(&gids, false, None, &[], |_| true, "p").unwrap().index, 0);
    }

    #[test]
    fn requested_gid_index_is_used_or_refused_with_the_available_ones() {
        let gids = [gid(0, "fe80::1", IbOrRoceV1), gid(3, "10.0.0.1", RoceV2)];
        assert_eq!(choose(&gids, true, Some(0), &[], |_| true, "p").unwrap().index, 0);
        let failure = choose(&gids, true, Some(1), &[], |_| true, "rxe0 port 1").unwrap_err();
        assert!(failure.text.contains("3 (10.0.0.1)"), "{}", failure.text);
        assert!(choose(&[], true, None, &[], |_| true, "p").is_err());
    }

    #[test]
    fn a_subnet_holds_the_addresses_from_its_first_to_its_last_and_no_others() {
        for (subnet, inside, outside) in [
            ("10.1.0.0/16", &["10.1.0.0", "10.1.255.255"][..], &["10.0.255.255", "10.2.0.0"][..]),
            ("10.1.2.3/32", &["10.1.2.3"], &["10.1.2.2", "10.1.2.4"]),
            ("0.0.0.0/0", &["0.0.0.1", "255.0.0.1"], &["fd00::1"]),
            ("::/0", &["10.1.2.3", "fd00::1"], &[]),
            ("fd00::/8", &["fd00::1", "fdff::1"], &["fe00::1", "fc00::1"]),
            ("fd00::1/128", &["fd00::1"], &["fd00::2"]),
        ] {
            let range = Subnet::parse(subnet).unwrap();
            let holds = |address: &&str| range.holds(&gid(0, address, RoceV2).raw);
            assert!(inside.iter().all(&holds), "{subnet}");
            assert!(!outside.iter().any(holds), "{subnet}");
        }
        for wrong in ["10.1.0.0/33", "fd00::/129", "10.1.0.0", "10.1/16", "10.1.0.0/-1", "/16"] {
            assert_eq!(Subnet::parse(wrong), None, "{wrong}");
        }
        for (address, local) in [
            ("fe80::1", true),
            ("fd00::a9fe:1", false),
            ("169.254.0.1", true),
            ("169.253.255.255", false),
        ] {
            assert_eq!(is_link_local(&gid(0, address, RoceV2).raw), local, "{address}");
        }
    }

    #[test]
    fn unusable_gid_is_skipped_on_ethernet_unless_all_are_unusable() {
        let gids = [gid(0, "10.0.0.1", RoceV2), gid(1, "10.0.0.2", RoceV2)];
        let chosen = |ethernet: bool, works: u32| {
            choose(&gids, ethernet, None, &[], |gid| gid.index == works, "p").map(|gid| gid.index)
        };
        assert_eq!((chosen(true, 1), chosen(true, 9), chosen(false, 1)), (Ok(1), Ok(0), Ok(0)));
        let none = |ethernet| choose(&[], ethernet, None, &[], |_| true, "p").unwrap_err().text;
        assert_eq!(none(true), "p has no GID: its network device has no address, or is not up");
        assert_eq!(none(false), "p has no GID: no subnet manager has set the port up");
        let within = [Subnet::parse("10.1.0.0/16").unwrap()];
        let outside = choose(&gids, true, None, &within, |_| true, "p").unwrap_err().text;
        assert_eq!(
            outside,
            "p has no GID in a subnet of TIELINE_VERBS_SUBNET; it has 10.0.0.1, 10.0.0.2"
        );
        assert_eq!(
            choose(&gids, true, Some(7), &[], |_| true, "p").unwrap_err().text,
            "p has no GID with index 7 (TIELINE_VERBS_GID_INDEX); it has 0 (10.0.0.1), 1 (10.0.0.2)"
        );
    }
}
