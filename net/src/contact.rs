//! The contact of a listener: the addresses at which the listener can be reached, and the values that the handshake needs.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const FORMAT: u8 = 1;
const FIXED: usize = 1 + 16 + 8 + 16 + 16 + 1;
const LONGEST_ADDRESS: usize = 1 + 16 + 1 + 2 + 4;

/// One address and port at which the listener listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// The IP address.
    pub ip: IpAddr,
    /// The number of leading bits that form the subnet.
    pub prefix: u8,
    /// The TCP port.
    pub port: u16,
    /// The speed of the link in Mbit/s; 0 if unknown.
    pub speed_mbps: u32,
}

/// A listener and its addresses. [`Hub::contact`](crate::Hub::contact) lists the best first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact {
    /// The boot id of the listener's kernel. With [`Contact::net_namespace`] it determines which processes share loopback
    /// addresses.
    pub boot_id: [u8; 16],
    /// The network namespace of the listener.
    pub net_namespace: u64,
    /// The cookie of the listener: part of the key of every connection to it.
    pub cookie: [u8; 16],
    /// The addressed user of the listener.
    pub target: [u8; 16],
    /// The addresses of the listener. [`Contact::pack`] leaves out those beyond [`Contact::MAX_ADDRESSES`].
    pub addresses: Vec<ListenAddress>,
}

/// The reason why bytes are not a contact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The bytes are too few, or there are bytes after the end.
    Length,
    /// The bytes have a format that this side does not know.
    Format(u8),
    /// The number of addresses exceeds the limit, or is 0.
    Addresses(u8),
    /// An address is impossible: its family, IP address, prefix or port.
    Address,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Length => f.write_str("the address is cut off or has bytes too many"),
            Malformed::Format(format) => {
                write!(f, "the address has format {format}, this side knows format {FORMAT}")
            }
            Malformed::Addresses(count) => {
                write!(f, "the address lists {count} listening addresses")
            }
            Malformed::Address => f.write_str("the address has a listening address that cannot be"),
        }
    }
}

impl std::error::Error for Malformed {}

impl From<Malformed> for String {
    fn from(malformed: Malformed) -> String {
        malformed.to_string()
    }
}

impl Contact {
    /// The maximum number of addresses that a contact carries.
    pub const MAX_ADDRESSES: usize = 16;
    /// The longest packed contact, in bytes.
    pub const MAX_LEN: usize = FIXED + Contact::MAX_ADDRESSES * LONGEST_ADDRESS;

    /// Returns the packed bytes. Addresses beyond [`Contact::MAX_ADDRESSES`] are left out.
    #[must_use]
    pub fn pack(&self) -> Vec<u8> {
        let addresses = &self.addresses[..self.addresses.len().min(Contact::MAX_ADDRESSES)];
        let mut out = Vec::with_capacity(FIXED + addresses.len() * LONGEST_ADDRESS);
        out.push(FORMAT);
        out.extend_from_slice(&self.boot_id);
        out.extend_from_slice(&self.net_namespace.to_le_bytes());
        out.extend_from_slice(&self.cookie);
        out.extend_from_slice(&self.target);
        out.push(addresses.len() as u8); // at most MAX_ADDRESSES
        for address in addresses {
            match address.ip {
                IpAddr::V4(ip) => {
                    out.push(4);
                    out.extend_from_slice(&ip.octets());
                }
                IpAddr::V6(ip) => {
                    out.push(6);
                    out.extend_from_slice(&ip.octets());
                }
            }
            out.push(address.prefix);
            out.extend_from_slice(&address.port.to_le_bytes());
            out.extend_from_slice(&address.speed_mbps.to_le_bytes());
        }
        out
    }

    /// Parses the output of [`Contact::pack`]. Malformed bytes are an error, because they may come from a peer.
    ///
    /// # Errors
    /// The part of the bytes that is invalid.
    pub fn parse(bytes: &[u8]) -> Result<Contact, Malformed> {
        let (contact, rest) = Contact::parse_prefix(bytes)?;
        if rest.is_empty() { Ok(contact) } else { Err(Malformed::Length) }
    }

    /// Parses a contact from the beginning of `bytes` and returns the bytes after it.
    ///
    /// # Errors
    /// The part of the bytes that is invalid.
    pub fn parse_prefix(bytes: &[u8]) -> Result<(Contact, &[u8]), Malformed> {
        let mut reader = Reader { rest: bytes };
        let [format] = reader.take()?;
        if format != FORMAT {
            return Err(Malformed::Format(format));
        }
        let boot_id = reader.take()?;
        let net_namespace = u64::from_le_bytes(reader.take()?);
        let cookie = reader.take()?;
        let target = reader.take()?;
        let [count] = reader.take()?;
        if count == 0 || usize::from(count) > Contact::MAX_ADDRESSES {
            return Err(Malformed::Addresses(count));
        }
        let addresses = (0..count).map(|_| reader.address()).collect::<Result<_, _>>()?;
        Ok((Contact { boot_id, net_namespace, cookie, target, addresses }, reader.rest))
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(Malformed::Length)?;
        self.rest = rest;
        Ok(*head)
    }

    fn address(&mut self) -> Result<ListenAddress, Malformed> {
        let [family] = self.take()?;
        let (ip, longest) = match family {
            4 => (IpAddr::V4(Ipv4Addr::from(self.take::<4>()?)), 32),
            6 => (IpAddr::V6(Ipv6Addr::from(self.take::<16>()?)), 128),
            _ => return Err(Malformed::Address),
        };
        let [prefix] = self.take()?;
        let port = u16::from_le_bytes(self.take()?);
        let speed_mbps = u32::from_le_bytes(self.take()?);
        if prefix > longest || port == 0 || ip.is_unspecified() || ip.is_multicast() {
            return Err(Malformed::Address);
        }
        Ok(ListenAddress { ip, prefix, port, speed_mbps })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn an_address() -> impl Strategy<Value = ListenAddress> {
        let v4 = (any::<u32>(), 0u8..=32).prop_map(|(ip, prefix)| (IpAddr::V4(ip.into()), prefix));
        let v6 = (any::<u128>(), 0u8..=128).prop_map(|(ip, p)| (IpAddr::V6(ip.into()), p));
        (prop_oneof![v4, v6], 1u16.., any::<u32>())
            .prop_map(|((ip, prefix), port, speed_mbps)| ListenAddress {
                ip,
                prefix,
                port,
                speed_mbps,
            })
            .prop_filter("an address of one host", |address| {
                !address.ip.is_unspecified() && !address.ip.is_multicast()
            })
    }

    pub(crate) fn a_contact() -> impl Strategy<Value = Contact> {
        (
            any::<[u8; 16]>(),
            any::<u64>(),
            any::<[u8; 16]>(),
            any::<[u8; 16]>(),
            prop::collection::vec(an_address(), 1..=Contact::MAX_ADDRESSES),
        )
            .prop_map(|(boot_id, net_namespace, cookie, target, addresses)| Contact {
                boot_id,
                net_namespace,
                cookie,
                target,
                addresses,
            })
    }

    proptest! {
        #[test]
        fn packed_contact_can_be_parsed(contact in a_contact()) {
            let bytes = contact.pack();
            prop_assert!(bytes.len() <= Contact::MAX_LEN);
            prop_assert_eq!(Contact::parse(&bytes), Ok(contact));
        }

        #[test]
        fn every_cut_and_every_tail_is_refused(contact in a_contact(), tail in 1usize..20) {
            let bytes = contact.pack();
            for cut in 0..bytes.len() {
                prop_assert!(Contact::parse(&bytes[..cut]).is_err());
            }
            let mut long = bytes.clone();
            long.resize(bytes.len() + tail, 0);
            prop_assert_eq!(Contact::parse(&long), Err(Malformed::Length));
            let (read, rest) = Contact::parse_prefix(&long).expect("the beginning is a contact");
            prop_assert_eq!((read, rest.len()), (contact, tail));
        }

        #[test]
        fn no_bytes_harm(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            if let Ok(contact) = Contact::parse(&bytes) {
                prop_assert_eq!(contact.pack(), bytes);
            }
        }

        #[test]
        fn no_change_of_a_byte_harms(contact in a_contact(), at: prop::sample::Index, to: u8) {
            let mut bytes = contact.pack();
            let at = at.index(bytes.len());
            bytes[at] = to;
            if let Ok(read) = Contact::parse(&bytes) {
                prop_assert_eq!(read.pack(), bytes);
            }
        }
    }

    /// Returns the error for a contact with this one address.
    fn wrong(ip: &str, prefix: u8, port: u16) -> Option<Malformed> {
        let ip = ip.parse().expect("an address");
        let address = ListenAddress { ip, prefix, port, speed_mbps: 0 };
        let contact = Contact {
            boot_id: [1; 16],
            net_namespace: 2,
            cookie: [3; 16],
            target: [4; 16],
            addresses: vec![address],
        };
        Contact::parse(&contact.pack()).err()
    }

    #[test]
    fn an_address_that_nobody_listens_at_is_refused() {
        assert_eq!((wrong("10.0.0.1", 32, 1), wrong("fd00::1", 128, 1)), (None, None));
        for (ip, prefix, port) in [
            ("10.0.0.1", 33, 1),
            ("fd00::1", 129, 1),
            ("10.0.0.1", 8, 0),
            ("0.0.0.0", 8, 1),
            ("::", 8, 1),
            ("224.0.0.1", 8, 1),
            ("ff02::1", 8, 1),
        ] {
            assert_eq!(wrong(ip, prefix, port), Some(Malformed::Address), "{ip}/{prefix} {port}");
        }
    }

    #[test]
    fn so_many_addresses_are_carried_and_no_more() {
        let address = |n: u8| ListenAddress {
            ip: IpAddr::from([10, 0, 0, n]),
            prefix: 8,
            port: 1,
            speed_mbps: 0,
        };
        let mut contact = Contact {
            boot_id: [1; 16],
            net_namespace: 2,
            cookie: [3; 16],
            target: [4; 16],
            addresses: (1..=17).map(address).collect(),
        };
        let bytes = contact.pack();
        contact.addresses.truncate(16);
        assert_eq!(Contact::parse(&bytes).as_ref(), Ok(&contact));
        let with = |at: usize, value: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            Contact::parse(&bytes).expect_err("refused").to_string()
        };
        assert_eq!(with(FIXED - 1, 0), "the address lists 0 listening addresses");
        assert_eq!(with(FIXED - 1, 17), "the address lists 17 listening addresses");
        assert_eq!(with(0, 9), "the address has format 9, this side knows format 1");
        assert_eq!(with(FIXED, 5), "the address has a listening address that cannot be");
        assert_eq!(with(FIXED - 1, 15), "the address is cut off or has bytes too many");
    }
}
