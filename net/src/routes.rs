//! Routes from this process to a contact.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

use crate::contact::{Contact, ListenAddress};
use crate::filter::same_subnet;
use crate::interfaces::{LocalAddress, is_link_local};

/// The limit on routes that are tried for one contact.
const MAX_ROUTES: usize = 32;

/// One route to a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The local address; `None` for the kernel's choice.
    pub local: Option<LocalAddress>,
    /// The address to connect to.
    pub remote: SocketAddr,
    /// The reason to expect that the route works: `same subnet as eth0`.
    pub why: String,
}

/// Returns at most 32 routes to a contact, the best first: those within this host and network namespace, then by speed. Routes to
/// link-local addresses and from addresses of last resort ([`LocalAddress::last_resort`]) come last. The speed of a route is that
/// of the slower of its ends whose speed is known. Among equals, the same subnet comes before routes by the kernel's table, and
/// IPv4 before IPv6.
///
/// # Errors
/// The reason why there is no route, for each address.
pub fn routes(local: &[LocalAddress], contact: &Contact) -> Result<Vec<Route>, String> {
    let same_loopback = (contact.boot_id, contact.net_namespace) == here();
    find(local, contact, same_loopback, &ask_kernel)
}

/// Returns the boot id and the network namespace of the calling thread. Processes with the same values share loopback addresses.
#[must_use]
pub fn here() -> ([u8; 16], u64) {
    use std::os::unix::fs::MetadataExt;
    // The namespace is read each time, because a thread may move to another namespace.
    let namespace = std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |ns| ns.ino());
    (tieline_plugin_api::boot_id(), namespace)
}

/// Returns the address that the kernel would send from. Connecting a UDP socket sends nothing.
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

/// The distance of the other end. A lower class is better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Loopback,
    SameSubnet,
    Routed,
}

/// The assumed speed of a route in Mbit/s if neither end knows its speed.
const UNKNOWN_SPEED: u32 = 1000;

/// The criteria between two routes, the most important first. A lower rank is better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    last_resort: bool,
    beyond_this_host: bool,
    speed: std::cmp::Reverse<u32>,
    class: Class,
    v6: bool,
}

impl Rank {
    fn of(class: Class, from: &LocalAddress, address: &ListenAddress) -> Rank {
        // If the speed of one end is unknown or 0, the other end's link determines the speed of the route.
        let known = [from.speed_mbps.unwrap_or(0), address.speed_mbps];
        let speed = known.into_iter().filter(|speed| *speed > 0).min().unwrap_or(UNKNOWN_SPEED);
        Rank {
            last_resort: from.last_resort || is_link_local(address.ip),
            beyond_this_host: class != Class::Loopback,
            speed: std::cmp::Reverse(speed),
            class,
            v6: address.ip.is_ipv6(),
        }
    }
}

fn find(
    local: &[LocalAddress],
    contact: &Contact,
    same_loopback: bool,
    ask: &dyn Fn(SocketAddr) -> Result<IpAddr, String>,
) -> Result<Vec<Route>, String> {
    let mut found: Vec<(Rank, Route)> = Vec::new();
    let mut why_not = Vec::new();
    for address in &contact.addresses {
        match routes_to(address, local, same_loopback, ask) {
            Ok(routes) => found.extend(routes),
            Err(words) => why_not.push(format!("{}: {words}", address.ip)),
        }
    }
    if found.is_empty() {
        return Err(why_not.join("; "));
    }
    found.sort_by_key(|(rank, _)| *rank); // the sort is stable, so the peer's order decides among equals
    found.truncate(MAX_ROUTES);
    Ok(found.into_iter().map(|(_, route)| route).collect())
}

fn routes_to(
    address: &ListenAddress,
    local: &[LocalAddress],
    same_loopback: bool,
    ask: &dyn Fn(SocketAddr) -> Result<IpAddr, String>,
) -> Result<Vec<(Rank, Route)>, String> {
    let remote = SocketAddr::new(address.ip, address.port);
    let rank = |class, from: &LocalAddress| Rank::of(class, from, address);
    let own = local.iter().find(|from| from.ip == address.ip);
    if address.ip.is_loopback() {
        if !same_loopback {
            return Err("a loopback address of another host or network namespace".into());
        }
        let from = local
            .iter()
            .find(|from| from.loopback && from.ip.is_ipv4() == address.ip.is_ipv4())
            .ok_or("the loopback interface is not among the interfaces allowed here")?;
        let route = Route { local: None, remote, why: "loopback".into() };
        return Ok(vec![(rank(Class::Loopback, from), route)]);
    }
    if let Some(own) = own {
        // The same address on another host is a separate network, such as every host's docker0.
        if !same_loopback {
            return Err(format!("{} has that very address here", own.interface));
        }
        let why = format!("{} of this very host", own.interface);
        let remote = with_scope(remote, own.scope_id);
        return Ok(vec![(rank(Class::Loopback, own), Route { local: None, remote, why })]);
    }
    let near: Vec<(Rank, Route)> = local
        .iter()
        .filter(|from| !from.loopback && same_subnet(from.ip, address.ip, from.prefix))
        .map(|from| {
            let why = format!("same subnet as {}", from.interface);
            let remote = with_scope(remote, from.scope_id);
            (rank(Class::SameSubnet, from), Route { local: Some(from.clone()), remote, why })
        })
        .collect();
    if !near.is_empty() {
        return Ok(near);
    }
    if is_link_local(address.ip) {
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

/// Returns the address with its scope: a link-local address of IPv6 is only valid together with an interface.
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

    fn contact(addresses: &[(&str, u32)]) -> Contact {
        let addresses = addresses
            .iter()
            .map(|(ip, speed_mbps)| {
                let ip: IpAddr = ip.parse().expect("an address");
                ListenAddress { ip, prefix: 24, port: 4000, speed_mbps: *speed_mbps }
            })
            .collect();
        Contact { boot_id: [1; 16], net_namespace: 2, cookie: [3; 16], target: [4; 16], addresses }
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
    fn speed_comes_before_nearness_and_nearness_decides_among_equals() {
        // The simulated networks of this host: 10.0.N.0/24 is the same subnet as interface N, 10.1.N.0/24 is routed through it.
        type Routes = &'static [(&'static str, u32)];
        let cases: [(&str, &[u32], Routes, &[&str]); 11] = [
            (
                "a flat management network beside a routed fabric",
                &[1000, 100_000],
                &[("10.0.0.2", 1000), ("10.1.1.2", 100_000)],
                &["10.1.1.2", "10.0.0.2"],
            ),
            (
                "two rails",
                &[1000, 100_000],
                &[("10.0.0.2", 1000), ("10.0.1.2", 100_000)],
                &["10.0.1.2", "10.0.0.2"],
            ),
            (
                "equals: the same subnet first, whatever the order in the contact",
                &[10_000, 10_000],
                &[("10.1.0.2", 10_000), ("10.0.1.2", 10_000)],
                &["10.0.1.2", "10.1.0.2"],
            ),
            (
                "a way is as fast as the slower of its ends: here",
                &[1000, 10_000],
                &[("10.1.0.2", 100_000), ("10.1.1.2", 10_000)],
                &["10.1.1.2", "10.1.0.2"],
            ),
            (
                "a way is as fast as the slower of its ends: there",
                &[100_000, 10_000],
                &[("10.1.0.2", 1000), ("10.1.1.2", 10_000)],
                &["10.1.1.2", "10.1.0.2"],
            ),
            (
                "of an end that is not known the other one tells",
                &[100_000, 10_000],
                &[("10.0.1.2", 10_000), ("10.1.0.2", 0)],
                &["10.1.0.2", "10.0.1.2"],
            ),
            (
                "nothing known: nearness decides",
                &[0, 0],
                &[("10.1.0.2", 0), ("10.0.1.2", 0)],
                &["10.0.1.2", "10.1.0.2"],
            ),
            (
                "nothing known counts as a gigabit: behind what is known to be faster",
                &[0, 25_000],
                &[("10.0.0.2", 0), ("10.1.1.2", 25_000)],
                &["10.1.1.2", "10.0.0.2"],
            ),
            (
                "nothing known counts as a gigabit: before what is known to be slower",
                &[0, 100],
                &[("10.0.1.2", 100), ("10.1.0.2", 0)],
                &["10.1.0.2", "10.0.1.2"],
            ),
            (
                "a bridge is the last resort however fast it claims to be",
                &[1000, 1000],
                &[("172.17.0.2", 400_000), ("10.1.0.2", 100)],
                &["10.1.0.2", "172.17.0.2"],
            ),
            (
                "so is a link-local address",
                &[1000, 1000],
                &[("169.254.0.2", 400_000), ("10.1.0.2", 100)],
                &["10.1.0.2", "169.254.0.2"],
            ),
        ];
        for (name, speeds, there, expected) in cases {
            let mut here = vec![
                local("docker0", "172.17.0.1", 16, 400_000),
                local("eth9", "169.254.0.1", 16, 400_000),
            ];
            for (n, speed) in speeds.iter().enumerate() {
                let mut own = local(&format!("eth{n}"), &format!("10.0.{n}.1"), 24, *speed);
                own.speed_mbps = own.speed_mbps.filter(|speed| *speed > 0);
                here.push(own);
            }
            let routed = |remote: SocketAddr| match remote.ip() {
                IpAddr::V4(ip) if ip.octets()[1] == 1 => {
                    Ok(Ipv4Addr::new(10, 0, ip.octets()[2], 1).into())
                }
                _ => Err("Network is unreachable".into()),
            };
            let found = find(&here, &contact(there), false, &routed).expect(name);
            assert_eq!(remotes(&found), expected, "{name}");
        }
    }

    #[test]
    fn nothing_is_faster_than_staying_on_this_host() {
        let mut here = [local("eth0", "10.0.0.1", 24, 100_000), local("lo", "127.0.0.1", 8, 0)];
        here[1].speed_mbps = None;
        let there = contact(&[("10.0.0.2", 100_000), ("127.0.0.1", 0)]);
        let found = find(&here, &there, true, &no_route).expect("two ways");
        assert_eq!(remotes(&found), ["127.0.0.1", "10.0.0.2"]);
    }

    #[test]
    fn only_best_of_many_routes_are_tried() {
        let here: Vec<LocalAddress> = (0..40)
            .map(|n| local(&format!("eth{n}"), &format!("10.0.0.{}", n + 1), 24, n))
            .collect();
        let found = find(&here, &contact(&[("10.0.0.200", 100)]), false, &no_route).expect("ways");
        assert_eq!(found.len(), MAX_ROUTES);
        let first = found[0].local.as_ref().map(|local| local.interface.as_str());
        assert_eq!(first, Some("eth0"), "of unknown speed here, so as fast as the other end");
        let speeds: Vec<u32> =
            found[1..].iter().filter_map(|route| route.local.as_ref()?.speed_mbps).collect();
        assert!(speeds.iter().copied().eq((9..40).rev()), "{speeds:?}");
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
        // The result is valid with and without a route to the documentation network.
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
