//! The address of an interface: the facts by which a peer reaches the interface, or explains why the interface is unreachable.

use crate::abi::{FI_SOCKADDR, FI_SOCKADDR_IB, FI_SOCKADDR_IN, FI_SOCKADDR_IN6};
use crate::keys::Seal;
use tieline_net::Contact;
use tieline_plugin_api::{Failure, Status};

/// The longest address.
pub(crate) const MAX_ADDRESS: usize = 400 + Contact::MAX_LEN;
const MAGIC: [u8; 4] = *b"ofi\x02";
const FIXED: usize = 65;
/// The longest name of an endpoint in the fabric.
pub(crate) const MAX_NAME: usize = 128;

/// The address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// The protocol, `FI_PROTO_...`, and its version. Interfaces whose protocols differ cannot communicate.
    pub(crate) protocol: u32,
    pub(crate) protocol_version: u32,
    pub(crate) format: u32,
    /// The registration mode, for the error text of a peer that is incompatible.
    pub(crate) mr_mode: u32,
    /// A random number that distinguishes this interface from an earlier one with the same name.
    pub(crate) epoch: u64,
    /// The identity of the kernel and network namespace: loopback addresses are valid only there.
    pub(crate) host: u64,
    /// The interface's number in its domain.
    pub(crate) number: u64,
    pub(crate) seal: Seal,
    pub(crate) provider: String,
    pub(crate) fabric: String,
    /// The interface's name in the fabric.
    pub(crate) name: Vec<u8>,
    /// The contact for watching the interface's process, if it is watched.
    pub(crate) watch: Option<Contact>,
}

impl Address {
    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        for number in [self.protocol, self.protocol_version, self.format, self.mr_mode] {
            out.extend(number.to_le_bytes());
        }
        for number in [self.epoch, self.host, self.number] {
            out.extend(number.to_le_bytes());
        }
        out.extend(self.seal);
        let parts = [self.provider.as_bytes(), self.fabric.as_bytes(), &self.name];
        out.extend(parts.map(|part| part.len() as u8));
        let watch = self.watch.as_ref().map(Contact::pack).unwrap_or_default();
        out.extend((watch.len() as u16).to_le_bytes());
        parts.iter().for_each(|part| out.extend(*part));
        out.extend(watch);
        out
    }

    pub(crate) fn unpack(bytes: &[u8]) -> Result<Address, Failure> {
        let bad =
            |why: &str| Failure::new(Status::BadData, format!("an address of ofi that {why}"));
        let Some((fixed, rest)) = bytes.split_first_chunk::<FIXED>() else {
            return Err(bad("is too short"));
        };
        if fixed[..4] != MAGIC {
            return Err(bad("is none of this version"));
        }
        let short = |at: usize| {
            u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]])
        };
        let long = |at: usize| u64::from(short(at)) | u64::from(short(at + 4)) << 32;
        let mut seal = [0; 16];
        seal.copy_from_slice(&fixed[44..60]);
        let lens = [60, 61, 62].map(|at| usize::from(fixed[at]));
        let watch = usize::from(u16::from_le_bytes([fixed[63], fixed[64]]));
        if rest.len() != lens.iter().sum::<usize>() + watch || bytes.len() > MAX_ADDRESS {
            return Err(bad("has another length than it says"));
        }
        let (provider, rest) = rest.split_at(lens[0]);
        let (fabric, rest) = rest.split_at(lens[1]);
        let (name, watch) = rest.split_at(lens[2]);
        let contact = match watch {
            [] => None,
            bytes => Some(Contact::parse(bytes).map_err(|why| bad(&format!("says: {why}")))?),
        };
        let words = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| bad("is no text"));
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(bad("names no place"));
        }
        let address = Address {
            protocol: short(4),
            protocol_version: short(8),
            format: short(12),
            mr_mode: short(16),
            epoch: long(20),
            host: long(28),
            number: long(36),
            seal,
            provider: words(provider)?,
            fabric: words(fabric)?,
            name: name.to_vec(),
            watch: contact,
        };
        let whole = match address.format {
            FI_SOCKADDR_IN => name.len() == 16 && name[..2] == (libc::AF_INET as u16).to_ne_bytes(),
            FI_SOCKADDR_IN6 => {
                name.len() == 28 && name[..2] == (libc::AF_INET6 as u16).to_ne_bytes()
            }
            _ => true,
        };
        if whole { Ok(address) } else { Err(bad("is no socket address")) }
    }

    fn is_ip(&self) -> bool {
        [FI_SOCKADDR_IN, FI_SOCKADDR_IN6].contains(&self.format)
    }

    /// Checks whether `name` is a socket address of the same family as this address. The family determines how many bytes the
    /// library reads.
    pub(crate) fn has_family_of(&self, name: &[u8]) -> bool {
        let are_sockets =
            [FI_SOCKADDR, FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_SOCKADDR_IB].contains(&self.format);
        !are_sockets || name.get(..2) == self.name.get(..2)
    }

    fn is_loopback(&self) -> bool {
        let last_is_one = self
            .name
            .get(8..24)
            .is_some_and(|address| address[..15].iter().all(|byte| *byte == 0) && address[15] == 1);
        match self.format {
            FI_SOCKADDR_IN => self.name.get(4) == Some(&127),
            FI_SOCKADDR_IN6 => last_is_one,
            _ => false,
        }
    }

    /// Checks whether the addresses allow this interface to reach that peer.
    pub(crate) fn reaches(&self, peer: &Address) -> Result<(), Failure> {
        let differs = |what: &str, here: &str, there: &str| {
            let text = format!("{what} is {here} here and {there} there: both sides need the same");
            Err(Failure::new(Status::Unreachable, text))
        };
        if self.provider != peer.provider {
            return differs("the provider of libfabric", &self.provider, &peer.provider);
        }
        let protocol = |of: &Address| {
            format!(
                "{} version {}, registration {:#x}",
                of.protocol, of.protocol_version, of.mr_mode
            )
        };
        if (self.protocol, self.protocol_version) != (peer.protocol, peer.protocol_version) {
            return differs("the protocol", &protocol(self), &protocol(peer));
        }
        if self.format != peer.format {
            let format = |of: &Address| of.format.to_string();
            return differs("the format of addresses", &format(self), &format(peer));
        }
        if self.watch.is_some() != peer.watch.is_some() {
            let on = |of: &Address| if of.watch.is_some() { "on" } else { "off" };
            return differs("TIELINE_OFI_WATCH", on(self), on(peer));
        }
        if self.name.len() != peer.name.len() {
            let bytes = |of: &Address| format!("{} bytes", of.name.len());
            return differs("the length of addresses", &bytes(self), &bytes(peer));
        }
        if !self.has_family_of(&peer.name) {
            let family = |of: &Address| format!("{:?}", of.name.get(..2).unwrap_or_default());
            return differs("the family of addresses", &family(self), &family(peer));
        }
        // On a routed network the fabric's name is a subnet, which does not limit the reachable peers.
        if !self.is_ip() && self.fabric != peer.fabric {
            return differs("the fabric", &self.fabric, &peer.fabric);
        }
        if (self.is_loopback() || peer.is_loopback()) && self.host != peer.host {
            let text = "a loopback address leads to no other host: see TIELINE_OFI_INTERFACES";
            return Err(Failure::new(Status::Unreachable, text));
        }
        Ok(())
    }
}

/// Returns a number for this kernel and network namespace.
pub(crate) fn host() -> u64 {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    tieline_plugin_api::address_hash(&[&boot, namespace.as_os_str().as_encoded_bytes()].concat())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn address() -> Address {
        let mut name = vec![0; 16];
        (name[0], name[4]) = (libc::AF_INET as u8, 10);
        Address {
            protocol: 12,
            protocol_version: 1,
            format: FI_SOCKADDR_IN,
            mr_mode: 0x30,
            epoch: 5,
            host: 6,
            number: 7,
            seal: [8; 16],
            provider: "tcp;ofi_rxm".into(),
            fabric: "10.0.0.0/24".into(),
            name,
            watch: None,
        }
    }

    #[test]
    fn an_address_survives_packing_and_a_cut_one_is_refused() {
        let bytes = address().pack();
        assert!(bytes.len() <= MAX_ADDRESS);
        assert_eq!(Address::unpack(&bytes), Ok(address()));
        for len in 0..bytes.len() {
            assert!(Address::unpack(&bytes[..len]).is_err(), "{len}");
        }
        assert!(Address::unpack(&[bytes.as_slice(), &[0]].concat()).is_err());
    }

    #[test]
    fn two_sides_that_do_not_fit_are_told_both_values() {
        let here = address();
        let refused = |there: Address| here.reaches(&there).unwrap_err().text;
        let words = refused(Address { provider: "tcp".into(), ..address() });
        assert!(words.contains("tcp;ofi_rxm here and tcp there"), "{words}");
        let words = refused(Address { protocol_version: 2, ..address() });
        assert!(words.contains("12 version 1") && words.contains("12 version 2"), "{words}");
        let routed = Address { fabric: "10.0.1.0/24".into(), ..address() };
        assert_eq!(here.reaches(&routed), Ok(()), "another subnet may be routed to");
    }

    #[test]
    fn watch_contact_round_trips_and_unwatched_peer_is_unreachable() {
        let ip = std::net::Ipv4Addr::new(10, 0, 0, 1).into();
        let at = tieline_net::ListenAddress { ip, prefix: 24, port: 4000, speed_mbps: 0 };
        let contact = Contact {
            boot_id: [1; 16],
            net_namespace: 2,
            cookie: [3; 16],
            target: [4; 16],
            addresses: vec![at; Contact::MAX_ADDRESSES],
        };
        let watched = Address { watch: Some(contact), ..address() };
        let bytes = watched.pack();
        assert!(bytes.len() <= MAX_ADDRESS);
        assert_eq!(Address::unpack(&bytes).as_ref(), Ok(&watched));
        for len in 0..bytes.len() {
            assert!(Address::unpack(&bytes[..len]).is_err(), "{len}");
        }
        let words = watched.reaches(&address()).unwrap_err().text;
        assert!(words.contains("TIELINE_OFI_WATCH is on here and off there"), "{words}");
    }

    #[test]
    fn name_length_must_match_the_socket_address_family() {
        let of = |format, name: Vec<u8>| {
            let bytes = Address { format, name, ..address() }.pack();
            Address::unpack(&bytes).map_err(|failure| failure.text)
        };
        for (len, good) in [(0, false), (1, true), (MAX_NAME, true), (MAX_NAME + 1, false)] {
            let found = of(9, vec![7; len]);
            assert_eq!(found.is_ok(), good, "{len}: {found:?}");
            assert!(good || found.unwrap_err().contains("names no place"));
        }
        for (format, family, len) in
            [(FI_SOCKADDR_IN, libc::AF_INET, 16), (FI_SOCKADDR_IN6, libc::AF_INET6, 28)]
        {
            let name = |family: i32, len: usize| {
                let mut name = vec![0; len];
                name[..2].copy_from_slice(&(family as u16).to_ne_bytes());
                name
            };
            assert!(of(format, name(family, len)).is_ok(), "{format}");
            for wrong in [name(family, len - 1), name(family, len + 1), name(libc::AF_UNIX, len)] {
                let words = of(format, wrong).unwrap_err();
                assert!(words.contains("no socket address"), "{words}");
            }
        }
    }

    #[test]
    fn unrouted_network_requires_equal_fabrics_and_name_lengths() {
        let here = Address { format: 9, name: vec![1; 8], fabric: "one".into(), ..address() };
        assert_eq!(here.reaches(&here.clone()), Ok(()));
        let refused = |there: Address| here.reaches(&there).unwrap_err().text;
        let words = refused(Address { fabric: "other".into(), ..here.clone() });
        assert!(words.contains("the fabric is one here and other there"), "{words}");
        let words = refused(Address { name: vec![1; 9], ..here.clone() });
        assert!(words.contains("8 bytes here and 9 bytes there"), "{words}");
        let words = refused(Address { format: 8, ..here.clone() });
        assert!(words.contains("the format of addresses is 9 here and 8 there"), "{words}");
        let elsewhere = Address { host: 99, ..here.clone() };
        assert_eq!(here.reaches(&elsewhere), Ok(()), "what is no loopback leads to other hosts");
    }

    #[test]
    fn a_host_is_known_by_its_kernel_and_its_network() {
        assert_eq!(host(), host());
        assert!(host() > 1);
    }

    #[test]
    fn loopback_leads_to_no_other_host_of_either_kind() {
        let mut name = vec![0; 28];
        (name[0], name[23]) = (libc::AF_INET6 as u8, 1);
        let here = Address { format: FI_SOCKADDR_IN6, name, ..address() };
        let elsewhere = |of: &Address| Address { host: 99, ..of.clone() };
        assert!(here.reaches(&elsewhere(&here)).unwrap_err().text.contains("loopback"));
        for (at, byte) in [(8, 0xfd), (22, 1), (23, 2)] {
            let mut routed = here.clone();
            routed.name[at] = byte;
            assert_eq!(routed.reaches(&elsewhere(&routed)), Ok(()), "{at}");
        }
        let mut routed = address();
        assert_eq!(routed.reaches(&elsewhere(&routed)), Ok(()));
        routed.name[4] = 126;
        assert_eq!(routed.reaches(&elsewhere(&routed)), Ok(()));
    }

    #[test]
    fn loopback_leads_to_no_other_host() {
        let mut here = address();
        here.name[4] = 127;
        assert_eq!(here.reaches(&here.clone()), Ok(()));
        let there = Address { host: 99, ..here.clone() };
        assert!(here.reaches(&there).unwrap_err().text.contains("loopback"));
    }

    #[test]
    fn incompatible_peers_get_the_same_error_text_on_both_sides() {
        let (mut near, mut odd) = (address(), address());
        near.name[4] = 127;
        odd.name[0] = 77;
        let there = Address { host: 99, ..address() };
        let other = Address { protocol: 13, mr_mode: 0x34, ..address() };
        let need = "both sides need the same";
        let (ours, theirs) = ("12 version 1, registration 0x30", "13 version 1, registration 0x34");
        let loops = "a loopback address leads to no other host: see TIELINE_OFI_INTERFACES";
        for (here, there, words) in [
            (&near, &there, loops.to_owned()),
            (&there, &near, loops.to_owned()),
            (&there, &other, format!("the protocol is {ours} here and {theirs} there: {need}")),
            (&other, &there, format!("the protocol is {theirs} here and {ours} there: {need}")),
            (
                &near,
                &odd,
                format!("the family of addresses is [2, 0] here and [77, 0] there: {need}"),
            ),
        ] {
            assert_eq!(here.reaches(there), Err(Failure::new(Status::Unreachable, words)));
        }
        for (format, sockets) in
            [FI_SOCKADDR, FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_SOCKADDR_IB, 9].map(|f| (f, f != 9))
        {
            let of = Address { format, ..address() };
            assert!(of.has_family_of(&address().name), "{format}");
            assert_eq!(of.has_family_of(&odd.name), !sockets, "{format}");
            assert_eq!(of.has_family_of(&[2]), !sockets, "{format}");
        }
    }

    #[test]
    fn the_longest_address_is_taken_and_a_longer_one_is_not() {
        let ip = "fd00::1".parse().unwrap();
        let at = tieline_net::ListenAddress { ip, prefix: 24, port: 4000, speed_mbps: 0 };
        let watch = Some(Contact {
            boot_id: [1; 16],
            net_namespace: 2,
            cookie: [3; 16],
            target: [4; 16],
            addresses: vec![at; Contact::MAX_ADDRESSES],
        });
        let whole = |more: usize| {
            let full = Address { watch: watch.clone(), fabric: String::new(), ..address() };
            let rest = MAX_ADDRESS - full.pack().len() + more;
            let (fabric, provider) = ("f".repeat(255), "p".repeat(rest + 11 - 255));
            Address { fabric, provider, ..full }
        };
        assert_eq!(Address::unpack(&whole(0).pack()), Ok(whole(0)));
        let words = "an address of ofi that has another length than it says";
        let refused = Err(Failure::new(Status::BadData, words));
        assert_eq!(Address::unpack(&whole(1).pack()), refused);
    }
}
