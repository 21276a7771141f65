//! The IP addresses of a port, and the listeners at them.

use super::sys::{Channel, Id, device_name};
use crate::devices::{self, PortName};
use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use tieline_net::{Contact, Filter, ListenAddress, LocalAddress};
use tieline_plugin_api::{Failure, Status};

/// The maximum number of pending requests per listener.
const BACKLOG: i32 = 1024;
/// The hardware type of IP over InfiniBand.
const INFINIBAND: &str = "32";

/// Returns the addresses of the port's network interfaces, without IPv6 link-local addresses, because a peer cannot find out on
/// which of its links such an address is.
///
/// # Errors
/// The port has no address; the text says what to do.
pub(super) fn local_addresses(port: &PortName) -> Result<Vec<LocalAddress>, Failure> {
    let class = Path::new(devices::CLASS);
    let interfaces = interfaces(class, port);
    let none = |why: String| Failure::new(Status::NoDevice, why);
    let mut local = tieline_net::local_addresses(&Filter::default()).map_err(none)?;
    local.retain(|address| interfaces.contains(&address.interface) && !is_of_one_link(address.ip));
    if local.is_empty() {
        let names: Vec<String> = interfaces.into_iter().collect();
        let text = format!(
            "{} has no IP address: give one to {}",
            port.words(),
            if names.is_empty() { "its network interface".into() } else { names.join(" or ") }
        );
        return Err(none(text));
    }
    Ok(local)
}

fn is_of_one_link(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfe80)
}

/// Returns the network interfaces of a port: those of its GIDs (Ethernet), and those of IP over InfiniBand.
fn interfaces(class: &Path, port: &PortName) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = devices::gids(class, port)
        .into_iter()
        .map(|gid| gid.netdev)
        .filter(|name| !name.is_empty())
        .collect();
    let folder = class.join(&port.device).join("device/net");
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let read = |what: &str| fs::read_to_string(entry.path().join(what)).unwrap_or_default();
        let number = read("dev_port").trim().parse::<u32>().unwrap_or(0) + 1;
        if read("type").trim() == INFINIBAND && number == u32::from(port.port) {
            names.extend(entry.file_name().into_string());
        }
    }
    names
}

/// Listens at each address, up to the number that a contact holds. An address at which listening fails is skipped.
///
/// # Errors
/// Listening fails at every address.
pub(super) fn listen(
    channel: &Rc<Channel>,
    port: &PortName,
    local: &[LocalAddress],
) -> Result<(Vec<Id>, Vec<ListenAddress>), Failure> {
    let (mut listeners, mut addresses, mut why) = (Vec::new(), Vec::new(), None);
    for address in local.iter().take(Contact::MAX_ADDRESSES) {
        match listen_at(channel, port, address.ip) {
            Ok((listener, at)) => {
                listeners.push(listener);
                addresses.push(ListenAddress {
                    ip: address.ip,
                    prefix: address.prefix,
                    port: at,
                    speed_mbps: address.speed_mbps.unwrap_or(0),
                });
            }
            Err(failure) => why = Some(failure),
        }
    }
    match why {
        Some(failure) if listeners.is_empty() => Err(failure),
        _ => Ok((listeners, addresses)),
    }
}

fn listen_at(channel: &Rc<Channel>, port: &PortName, ip: IpAddr) -> Result<(Id, u16), Failure> {
    let id = Id::new(channel)?;
    id.bind(SocketAddr::new(ip, 0))?;
    let device = id.device(device_name);
    if device.as_ref().is_none_or(|at| *at != (port.device.clone(), port.port)) {
        let text = format!("{ip} leads to {device:?}, not to {}", port.words());
        return Err(Failure::new(Status::NoDevice, text));
    }
    id.listen(BACKLOG)?;
    let at = id.local().map(|local| local.port()).filter(|at| *at != 0);
    let text = || Failure::new(Status::Io, format!("the kernel gave no port at {ip}"));
    Ok((id, at.ok_or_else(text)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::tests::FakeClass;

    #[test]
    fn the_interfaces_of_a_port_are_those_of_its_gids_and_ip_over_infiniband() {
        let class = FakeClass::new("interfaces");
        class.gid("mlx5_0/ports/1", 0, "fe80:0000:0000:0000:0202:03ff:fe04:0506", "RoCE v2");
        class.file("mlx5_0/device/net/ib0/type", "32\n");
        class.file("mlx5_0/device/net/ib0/dev_port", "0\n");
        class.file("mlx5_0/device/net/ib1/type", "32\n");
        class.file("mlx5_0/device/net/ib1/dev_port", "1\n");
        class.file("mlx5_0/device/net/eth7/type", "1\n");
        let of = |port| {
            let port = PortName { device: "mlx5_0".into(), port };
            interfaces(&class.0, &port).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(of(1), ["eth0", "ib0"]);
        assert_eq!(of(2), ["ib1"]);
    }

    #[test]
    fn link_local_addresses_are_omitted() {
        assert!(is_of_one_link("fe80::1".parse().expect("an address")));
        assert!(!is_of_one_link("fd00::1".parse().expect("an address")));
        assert!(!is_of_one_link("169.254.1.1".parse().expect("an address")));
    }
}
