//! The addresses of this host that connections may use, the best first.

use std::net::IpAddr;
use std::os::fd::AsFd;

use crate::filter::Filter;
use crate::sys;

/// One address of an interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The interface's name, such as `eth0`.
    pub interface: String,
    /// The IP address.
    pub ip: IpAddr,
    /// The number of leading bits that form the subnet.
    pub prefix: u8,
    /// The interface's index, which link-local addresses of IPv6 need; 0 for others.
    pub scope_id: u32,
    /// Whether the address is a loopback address.
    pub loopback: bool,
    /// Whether routes over the address are ranked last. This holds for interfaces without a carrier. Unless the filter selects
    /// them, it also holds for link-local addresses and the usual bridges of containers and virtual machines (`docker*`, `virbr*`
    /// and others).
    pub last_resort: bool,
    /// The maximum transmission unit in bytes; 0 if unknown.
    pub mtu: u32,
    /// The speed of the link in Mbit/s, if the driver reports it.
    pub speed_mbps: Option<u32>,
}

/// Returns the addresses that `filter` allows, the best first: ordinary ones by speed, loopback, those of last resort.
///
/// # Errors
/// The reason why there is no such address, with up to 16 of the existing addresses.
pub fn local_addresses(filter: &Filter) -> Result<Vec<LocalAddress>, String> {
    let mut probe =
        sys::datagram_socket(libc::AF_INET).or_else(|_| sys::datagram_socket(libc::AF_INET6)).ok();
    let all = sys::addresses(probe.as_ref().map(AsFd::as_fd)).or_else(|_| {
        // Where descriptors are short, the list matters more than the properties of the links.
        probe = None;
        sys::addresses(None)
    });
    let all = all.map_err(|error| format!("listing network interfaces: {error}"))?;
    // An interface usually has several addresses, and is queried once.
    let mut links: Vec<(&str, (u32, Option<u32>))> = Vec::new();
    let mut link = |name, loopback| {
        let known = links.iter().find(|known| known.0 == name).map(|known| known.1);
        known.unwrap_or_else(|| {
            let link = probe.as_ref();
            let link = link.map_or((0, None), |probe| sys::link(name, loopback, probe.as_fd()));
            links.push((name, link));
            link
        })
    };
    let mut kept: Vec<LocalAddress> = all
        .iter()
        .filter(|raw| raw.up && filter.allows(&raw.interface, raw.ip))
        .map(|raw| {
            let (mtu, speed_mbps) = link(&raw.interface, raw.loopback);
            LocalAddress {
                interface: raw.interface.clone(),
                ip: raw.ip,
                prefix: raw.prefix,
                scope_id: raw.scope_id,
                loopback: raw.loopback,
                last_resort: !raw.carrier
                    || is_last_resort(&raw.interface, raw.ip)
                        && !filter.asks_for(&raw.interface, raw.ip),
                mtu,
                speed_mbps,
            }
        })
        .collect();
    if kept.is_empty() {
        return Err(none_left(&all, filter));
    }
    kept.sort_by_key(|local| {
        let class = if local.last_resort { 2 } else { u8::from(local.loopback) };
        (class, std::cmp::Reverse(local.speed_mbps), local.ip.is_ipv6(), local.interface.clone())
    });
    Ok(kept)
}

/// Checks whether [`local_addresses`] would find an address, without the queries that rank the addresses.
///
/// # Errors
/// Those of [`local_addresses`].
pub fn check_addresses(filter: &Filter) -> Result<(), String> {
    // Without a filter, the address of the loopback interface suffices. It is IPv4 on any machine with IPv4.
    let of_loopback =
        || sys::datagram_socket(libc::AF_INET).is_ok_and(|it| sys::has_loopback(it.as_fd()));
    if filter.is_empty() && of_loopback() {
        return Ok(());
    }
    let all =
        sys::addresses(None).map_err(|error| format!("listing network interfaces: {error}"))?;
    let is_kept = |raw: &sys::RawAddress| raw.up && filter.allows(&raw.interface, raw.ip);
    if all.iter().any(is_kept) { Ok(()) } else { Err(none_left(&all, filter)) }
}

fn is_last_resort(interface: &str, ip: IpAddr) -> bool {
    const BRIDGES: [&str; 5] = ["docker", "virbr", "lxcbr", "lxdbr", "podman"];
    BRIDGES.iter().any(|bridge| interface.starts_with(bridge)) || is_link_local(ip)
}

/// Checks whether an address is in 169.254.0.0/16 or fe80::/10.
pub(crate) fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn none_left(all: &[sys::RawAddress], filter: &Filter) -> String {
    if all.is_empty() {
        return "no network interface has an address: not even lo is up".into();
    }
    let mut there: Vec<String> = all
        .iter()
        .map(|raw| format!("{} {}{}", raw.interface, raw.ip, if raw.up { "" } else { " (down)" }))
        .collect();
    there.truncate(16);
    let there = there.join(", ");
    if filter.is_empty() {
        format!("no network interface is up: there are {there}")
    } else {
        format!("no interface that is up matches `{}`: there are {there}", filter.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_there_and_says_so() {
        let all = local_addresses(&Filter::default()).expect("at least lo is up");
        let lo = all.iter().find(|local| local.ip.is_loopback()).expect("127.0.0.1 or ::1");
        assert!(lo.loopback && !lo.last_resort);
        assert!(lo.mtu >= 1280, "{lo:?}");
        assert_eq!(lo.prefix, if lo.ip.is_ipv4() { 8 } else { 128 });
    }

    #[test]
    fn a_filter_that_leaves_nothing_says_what_there_is() {
        let filter = Filter::parse("nosuch7").expect("a filter");
        let words = local_addresses(&filter).expect_err("there is no such interface");
        assert!(words.contains("`nosuch7`") && words.contains("lo 127.0.0.1"), "{words}");
        assert_eq!(check_addresses(&filter), Err(words));
        assert_eq!(check_addresses(&Filter::default()), Ok(()));
        let socket = sys::datagram_socket(libc::AF_INET).expect("a socket");
        let all = sys::addresses(None).expect("a list");
        let lo = all.iter().find(|raw| raw.interface == "lo" && raw.ip.is_ipv4());
        assert_eq!(sys::has_loopback(socket.as_fd()), lo.is_some_and(|lo| lo.up && lo.loopback));
    }

    #[test]
    fn bridges_and_link_local_addresses_are_the_last_resort() {
        let ordinary = "10.0.0.1".parse().expect("an address");
        assert!(is_last_resort("docker0", ordinary));
        assert!(is_last_resort("virbr0", ordinary));
        assert!(is_last_resort("eth0", "fe80::1".parse().expect("an address")));
        assert!(is_last_resort("eth0", "169.254.1.1".parse().expect("an address")));
        assert!(!is_last_resort("eth0", ordinary));
    }

    #[test]
    fn link_local_addresses_are_those_of_their_subnets() {
        for (ip, is) in [
            ("169.254.0.0", true),
            ("169.253.255.255", false),
            ("169.255.0.0", false),
            ("fe80::", true),
            ("febf:ffff::1", true),
            ("fec0::", false),
            ("fe7f::1", false),
            ("fd00::1", false),
        ] {
            assert_eq!(is_link_local(ip.parse().expect("an address")), is, "{ip}");
        }
    }

    #[test]
    fn other_interfaces_are_listed_including_those_down() {
        let raw = |interface: &str, ip: &str, up| sys::RawAddress {
            interface: interface.into(),
            ip: ip.parse().expect("an address"),
            prefix: 8,
            scope_id: 0,
            up,
            carrier: true,
            loopback: false,
        };
        let all = [raw("lo", "127.0.0.1", true), raw("eth0", "10.0.0.1", false)];
        let said = |all: &[sys::RawAddress], filter: &str| {
            none_left(all, &Filter::parse(filter).expect("a filter"))
        };
        let there = "there are lo 127.0.0.1, eth0 10.0.0.1 (down)";
        assert_eq!(said(&all, ""), format!("no network interface is up: {there}"));
        let matches = format!("no interface that is up matches `ib*`: {there}");
        assert_eq!(said(&all, "ib*"), matches);
        let none = "no network interface has an address: not even lo is up";
        assert_eq!(said(&[], "ib*"), none);
    }
}
