//! Which GID of a port to use.

use tieline_plugin_api::{Failure, Status};

/// What a GID is for.
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
    /// The network device that it belongs to, where the kernel says so.
    pub(crate) netdev: String,
}

const IPV4_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// Whether a GID is an IPv4 address.
pub(crate) fn is_ipv4(raw: &[u8; 16]) -> bool {
    raw[..12] == IPV4_PREFIX
}

fn is_link_local(raw: &[u8; 16]) -> bool {
    raw[..2] == [0xfe, 0x80] || (is_ipv4(raw) && raw[12..14] == [169, 254])
}

/// A GID as an operator writes it.
pub(crate) fn words(raw: &[u8; 16]) -> String {
    if is_ipv4(raw) {
        format!("{}.{}.{}.{}", raw[12], raw[13], raw[14], raw[15])
    } else {
        std::net::Ipv6Addr::from(*raw).to_string()
    }
}

/// Smaller is better: v2 before v1, then IPv4, then a routable IPv6, then link-local; the lower index decides.
fn rank(gid: &Gid) -> (GidKind, bool, bool, u32) {
    (gid.kind, is_link_local(&gid.raw), !is_ipv4(&gid.raw), gid.index)
}

/// The entry to use.
///
/// # Errors
/// The table is empty, or has no entry of the wanted index.
pub(crate) fn choose<'a>(
    gids: &'a [Gid],
    ethernet: bool,
    wanted: Option<u32>,
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
        None if ethernet => gids.iter().min_by_key(|gid| rank(gid)).ok_or_else(|| {
            none(format!("{port} has no GID: its network device has no address, or is not up"))
        }),
        None => gids.iter().min_by_key(|gid| gid.index).ok_or_else(|| {
            none(format!("{port} has no GID: no subnet manager has set the port up"))
        }),
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
        Gid { index, raw, kind, netdev: "eth0".to_string() }
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
        while let Ok(best) = choose(&gids, true, None, "rxe0 port 1") {
            let index = best.index;
            order.push(index);
            gids.retain(|gid| gid.index != index);
        }
        assert_eq!(order, [4, 5, 3, 1, 2, 0]);
    }

    #[test]
    fn an_ipv4_link_local_address_is_no_better_than_an_ipv6_one_that_routes() {
        let gids = [gid(1, "169.254.1.1", RoceV2), gid(2, "fd00::1", RoceV2)];
        assert_eq!(choose(&gids, true, None, "p").unwrap().index, 2);
    }

    #[test]
    fn on_infiniband_the_first_entry_is_used() {
        let gids = [gid(0, "fe80::1", IbOrRoceV1), gid(1, "fec0::1", IbOrRoceV1)];
        assert_eq!(choose(&gids, false, None, "p").unwrap().index, 0);
    }

    #[test]
    fn a_wanted_index_is_used_or_refused_with_what_there_is() {
        let gids = [gid(0, "fe80::1", IbOrRoceV1), gid(3, "10.0.0.1", RoceV2)];
        assert_eq!(choose(&gids, true, Some(0), "p").unwrap().index, 0);
        let failure = choose(&gids, true, Some(1), "rxe0 port 1").unwrap_err();
        assert!(failure.text.contains("3 (10.0.0.1)"), "{}", failure.text);
        assert!(choose(&[], true, None, "p").is_err());
    }
}
