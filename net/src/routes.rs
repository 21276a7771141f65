//! Ways from this process to a contact.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::sync::OnceLock;

use crate::contact::{Contact, Place};
use crate::filter::same_subnet;
use crate::interfaces::{LocalAddress, is_link_local};

/// The most ways that are tried for one contact.
const MAX_ROUTES: usize = 32;

/// One way to a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The address to connect from; `None`: the kernel's choice.
    pub local: Option<LocalAddress>,
    /// Where to connect to.
    pub remote: SocketAddr,
    /// Why this is thought to lead there: `same subnet as eth0`.
    pub why: String,
}

/// Ways to a contact, the best first: loopback within one network namespace, the same subnet, what the kernel
/// routes, and link-local addresses and container bridges last; faster links and IPv4 first within each.
///
/// # Errors
/// Why there is none, place by place.
pub fn routes(local: &[LocalAddress], contact: &Contact) -> Result<Vec<Route>, String> {
    let same_loopback = (contact.boot_id, contact.net_namespace) == here();
    find(local, contact, same_loopback, &ask_kernel)
}

/// Boot id and network namespace of the calling thread: who has the same shares loopback addresses.
#[must_use]
pub fn here() -> ([u8; 16], u64) {
    use std::os::unix::fs::MetadataExt;
    static BOOT: OnceLock<[u8; 16]> = OnceLock::new();
    let boot_id = *BOOT.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: Vec<u8> =
            text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
        let mut id = [0; 16];
        for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        id
    });
    // Asked each time: a thread may move to another namespace.
    let namespace = std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |ns| ns.ino());
    (boot_id, namespace)
}

/// The address that the kernel would send from. Connecting a UDP socket sends nothing.
fn ask_kernel(remote: SocketAddr) -> Result<IpAddr, String> {
    let any: IpAddr = match remote {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let asked = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(remote)?;
        socket.local_addr()
    };
    asked().map(|local| local.ip()).map_err(|error| error.to_string())
}

/// Lower is better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Loopback,
    SameSubnet,
    Routed,
    LastResort,
}

type Rank = (Class, std::cmp::Reverse<u32>, bool);

fn find(
    local: &[LocalAddress],
    contact: &Contact,
    same_loopback: bool,
    ask: &dyn Fn(SocketAddr) -> Result<IpAddr, String>,
) -> Result<Vec<Route>, String> {
    let mut found: Vec<(Rank, Route)> = Vec::new();
    let mut why_not = Vec::new();
    for place in &contact.places {
        match ways_to(place, local, same_loopback, ask) {
            Ok(ways) => found.extend(ways),
            Err(words) => why_not.push(format!("{}: {words}", place.ip)),
        }
    }
    if found.is_empty() {
        return Err(why_not.join("; "));
    }
    found.sort_by_key(|(rank, _)| *rank); // stable: the peer's order decides among equals
    found.truncate(MAX_ROUTES);
    Ok(found.into_iter().map(|(_, route)| route).collect())
}

fn ways_to(
    place: &Place,
    local: &[LocalAddress],
    same_loopback: bool,
    ask: &dyn Fn(SocketAddr) -> Result<IpAddr, String>,
) -> Result<Vec<(Rank, Route)>, String> {
    let remote = SocketAddr::new(place.ip, place.port);
    let rank = |class, from: &LocalAddress| -> Rank {
        let speeds = [from.speed_mbps.unwrap_or(0), place.speed_mbps];
        let class =
            if from.last_resort || is_link_local(place.ip) { Class::LastResort } else { class };
        (class, std::cmp::Reverse(speeds[0].min(speeds[1])), place.ip.is_ipv6())
    };
    let own = local.iter().find(|from| from.ip == place.ip);
    if place.ip.is_loopback() {
        if !same_loopback {
            return Err("a loopback address of another host or network namespace".into());
        }
        let from = local
            .iter()
            .find(|from| from.loopback && from.ip.is_ipv4() == place.ip.is_ipv4())
            .ok_or("the loopback interface is not among the interfaces allowed here")?;
        let route = Route { local: None, remote, why: "loopback".into() };
        return Ok(vec![(rank(Class::Loopback, from), route)]);
    }
    if let Some(own) = own {
        // The same address on another host is a network of its own, such as every host's docker0.
        if !same_loopback {
            return Err(format!("{} has that very address here", own.interface));
        }
        let why = format!("{} of this very host", own.interface);
        let remote = with_scope(remote, own.scope_id);
        return Ok(vec![(rank(Class::Loopback, own), Route { local: None, remote, why })]);
    }
    let near: Vec<(Rank, Route)> = local
        .iter()
        .filter(|from| !from.loopback && same_subnet(from.ip, place.ip, from.prefix))
        .map(|from| {
            let why = format!("same subnet as {}", from.interface);
            let remote = with_scope(remote, from.scope_id);
            (rank(Class::SameSubnet, from), Route { local: Some(from.clone()), remote, why })
        })
        .collect();
    if !near.is_empty() {
        return Ok(near);
    }
    if is_link_local(place.ip) {
        return Err("no interface here has link-local addresses of that kind".into());
    }
    let from_ip = ask(remote)?;
    let from = local.iter().find(|from| from.ip == from_ip).ok_or_else(|| {
        format!(
            "the way there leaves from {from_ip}, which is not among the interfaces allowed here"
        )
    })?;
    if from.loopback {
        return Err(format!("the way there leads through {} and back", from.interface));
    }
    let why = format!("routed through {}", from.interface);
    Ok(vec![(rank(Class::Routed, from), Route { local: Some(from.clone()), remote, why })])
}

/// Link-local addresses of IPv6 are addresses only together with an interface.
fn with_scope(remote: SocketAddr, scope_id: u32) -> SocketAddr {
    match remote {
        SocketAddr::V6(v6) if is_link_local(remote.ip()) => {
            SocketAddrV6::new(*v6.ip(), v6.port(), 0, scope_id).into()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contact::tests::a_contact;
    use proptest::prelude::*;

    fn local(interface: &str, ip: &str, prefix: u8, speed: u32) -> LocalAddress {
        let ip: IpAddr = ip.parse().expect("an address");
        LocalAddress {
            interface: interface.into(),
            ip,
            prefix,
            scope_id: if is_link_local(ip) { 7 } else { 0 },
            loopback: ip.is_loopback(),
            last_resort: is_link_local(ip) || interface.starts_with("docker"),
            mtu: 1500,
            speed_mbps: Some(speed),
        }
    }

    fn contact(places: &[(&str, u32)]) -> Contact {
        let places = places
            .iter()
            .map(|(ip, speed_mbps)| {
                let ip: IpAddr = ip.parse().expect("an address");
                Place { ip, prefix: 24, port: 4000, speed_mbps: *speed_mbps }
            })
            .collect();
        Contact { boot_id: [1; 16], net_namespace: 2, cookie: [3; 16], target: [4; 16], places }
    }

    fn no_route(_: SocketAddr) -> Result<IpAddr, String> {
        Err("Network is unreachable".into())
    }

    fn remotes(found: &[Route]) -> Vec<String> {
        found.iter().map(|route| route.remote.ip().to_string()).collect()
    }

    #[test]
    fn the_same_subnet_comes_before_what_is_routed_and_bridges_come_last() {
        let here = [
            local("eth0", "10.0.0.1", 24, 1000),
            local("docker0", "172.17.0.1", 16, 0),
            local("lo", "127.0.0.1", 8, 0),
        ];
        let there =
            contact(&[("172.17.0.5", 0), ("192.168.1.1", 0), ("10.0.0.2", 1000), ("127.0.0.1", 0)]);
        let via_eth0 = |_| Ok("10.0.0.1".parse().expect("an address"));
        let found = find(&here, &there, false, &via_eth0).expect("three ways");
        assert_eq!(remotes(&found), ["10.0.0.2", "192.168.1.1", "172.17.0.5"]);
        assert_eq!(found[0].why, "same subnet as eth0");
        assert_eq!(found[1].why, "routed through eth0");
    }

    #[test]
    fn the_faster_of_two_rails_comes_first() {
        let here = [local("eth0", "10.0.0.1", 24, 1000), local("ib0", "10.0.1.1", 24, 100_000)];
        let there = contact(&[("10.0.0.2", 1000), ("10.0.1.2", 100_000)]);
        let found = find(&here, &there, false, &no_route).expect("two ways");
        assert_eq!(remotes(&found), ["10.0.1.2", "10.0.0.2"]);
    }

    #[test]
    fn loopback_is_first_within_one_namespace_and_no_way_outside() {
        let here = [local("eth0", "10.0.0.1", 24, 0), local("lo", "127.0.0.1", 8, 0)];
        let there = contact(&[("10.0.0.1", 0), ("127.0.0.1", 0)]);
        let found = find(&here, &there, true, &no_route).expect("two ways");
        assert_eq!(remotes(&found), ["10.0.0.1", "127.0.0.1"]);
        let words = find(&here, &there, false, &no_route).expect_err("both are other hosts'");
        assert!(words.contains("127.0.0.1: a loopback address of another host"), "{words}");
        assert!(words.contains("10.0.0.1: eth0 has that very address here"), "{words}");
    }

    #[test]
    fn a_link_local_address_gets_the_scope_of_the_interface_that_shares_it() {
        let here = [local("eth0", "fe80::1", 64, 0)];
        let found = find(&here, &contact(&[("fe80::2", 0)]), false, &no_route).expect("one way");
        assert_eq!(found[0].remote, "[fe80::2%7]:4000".parse().expect("an address"));
    }

    #[test]
    fn an_excluded_interface_is_named() {
        let here = [local("eth0", "10.0.0.1", 24, 0)];
        let via_other = |_| Ok("192.168.0.1".parse().expect("an address"));
        let words = find(&here, &contact(&[("8.8.8.8", 0)]), false, &via_other)
            .expect_err("eth1 is not allowed");
        assert!(words.contains("8.8.8.8: the way there leaves from 192.168.0.1"), "{words}");
    }

    #[test]
    fn the_kernel_is_asked_about_addresses_that_are_not_near() {
        let words = ask_kernel("[2001:db8::1]:9".parse().expect("an address"));
        let loopback = ask_kernel("127.0.0.1:9".parse().expect("an address"));
        assert_eq!(loopback, Ok("127.0.0.1".parse().expect("an address")));
        // With or without a way to the documentation network there is an answer.
        assert!(words.is_ok() || words.is_err_and(|words| !words.is_empty()));
    }

    proptest! {
        #[test]
        fn no_contact_harms(contact in a_contact(), same: bool) {
            let here = [local("eth0", "10.0.0.1", 24, 0), local("eth1", "fe80::1", 64, 0)];
            match find(&here, &contact, same, &no_route) {
                Ok(found) => prop_assert!(!found.is_empty() && found.len() <= MAX_ROUTES),
                Err(words) => prop_assert!(!words.is_empty()),
            }
        }
    }
}
