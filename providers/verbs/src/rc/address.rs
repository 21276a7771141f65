//! The addresses of `rc`: of an interface, and of an endpoint.

use crate::keys::Seal;
use crate::port::{PORT_LEN, Port};
use tieline_plugin_api::{Failure, Status};

/// The length of a packed interface address.
pub(crate) const INTERFACE_ADDRESS_LEN: usize = 8 + PORT_LEN;
/// The length of a packed endpoint address.
pub(crate) const ENDPOINT_ADDRESS_LEN: usize = 40 + PORT_LEN;

const INTERFACE: [u8; 4] = *b"vrc\x02";
const ENDPOINT: [u8; 4] = *b"vre\x02";

/// The address that lets a peer judge whether it can reach this interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InterfaceAddress {
    pub(crate) port: Port,
    /// The longest message that this interface accepts.
    pub(crate) segment: u32,
}

/// The facts that a peer's queue pair needs to connect to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndpointAddress {
    pub(crate) port: Port,
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    /// The immediate value of messages to this endpoint.
    pub(crate) slot: u32,
    pub(crate) window: u16,
    /// The number of reads and atomics that may be outstanding towards this side.
    pub(crate) reads: u8,
    pub(crate) segment: u32,
    pub(crate) seal: Seal,
}

fn bad(why: &str) -> Failure {
    Failure::new(Status::BadData, format!("an rc address that {why}"))
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Parses the port in the last bytes of an address.
fn port(bytes: &[u8]) -> Result<Port, Failure> {
    let tail = bytes.len().saturating_sub(PORT_LEN);
    let tail: &[u8; PORT_LEN] =
        bytes[tail..].try_into().map_err(|_| bad("is too short to hold a port"))?;
    Port::unpack(tail)
}

fn segment(bytes: &[u8], at: usize) -> Result<u32, Failure> {
    match number(bytes, at) {
        segment @ 1024..=0x10_0000 => Ok(segment),
        _ => Err(bad("names an impossible segment size")),
    }
}

impl InterfaceAddress {
    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(INTERFACE_ADDRESS_LEN);
        out.extend(INTERFACE);
        out.extend(self.segment.to_le_bytes());
        out.extend(self.port.pack());
        out
    }

    pub(crate) fn unpack(bytes: &[u8]) -> Result<InterfaceAddress, Failure> {
        if bytes.len() != INTERFACE_ADDRESS_LEN || bytes[..4] != INTERFACE {
            return Err(bad("is none of this version"));
        }
        Ok(InterfaceAddress { port: port(bytes)?, segment: segment(bytes, 4)? })
    }
}

impl EndpointAddress {
    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(ENDPOINT_ADDRESS_LEN);
        out.extend(ENDPOINT);
        out.extend(self.qpn.to_le_bytes());
        out.extend(self.psn.to_le_bytes());
        out.extend(self.slot.to_le_bytes());
        out.extend(self.window.to_le_bytes());
        out.extend([self.reads, 0]);
        out.extend(self.segment.to_le_bytes());
        out.extend(self.seal);
        out.extend(self.port.pack());
        out
    }

    pub(crate) fn unpack(bytes: &[u8]) -> Result<EndpointAddress, Failure> {
        if bytes.len() != ENDPOINT_ADDRESS_LEN || bytes[..4] != ENDPOINT {
            return Err(bad("is none of this version"));
        }
        let (qpn, psn) = (number(bytes, 4), number(bytes, 8));
        let window = u16::from_le_bytes([bytes[16], bytes[17]]);
        if qpn >> 24 != 0 || psn >> 24 != 0 || bytes[19] != 0 {
            return Err(bad("names an impossible queue pair"));
        }
        if !(2..=1024).contains(&window) {
            return Err(bad("names an impossible window"));
        }
        let mut seal = Seal::default();
        seal.copy_from_slice(&bytes[24..40]);
        Ok(EndpointAddress {
            port: port(bytes)?,
            qpn,
            psn,
            slot: number(bytes, 12),
            window,
            reads: bytes[18],
            segment: segment(bytes, 20)?,
            seal,
        })
    }

    /// Checks whether this end retransmits the hello until the peer acknowledges it. Exactly one end of a connection does so, and
    /// both ends compute the same choice. For an endpoint connected to itself the result is `true`.
    pub(crate) fn repeats_hello(&self, peer: &EndpointAddress) -> bool {
        let rank = |a: &EndpointAddress| (a.port.gid, a.port.lid, a.qpn, a.psn, a.slot);
        rank(self) >= rank(peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::tests::ethernet;
    use proptest::prelude::*;

    fn end(last: u8) -> EndpointAddress {
        EndpointAddress {
            port: ethernet(last),
            qpn: 17,
            psn: 0xab_cdef,
            slot: 3,
            window: 32,
            reads: 16,
            segment: 8192,
            seal: [9; 16],
        }
    }

    #[test]
    fn addresses_survive_packing() {
        let interface = InterfaceAddress { port: ethernet(1), segment: 8192 };
        assert_eq!(interface.pack().len(), INTERFACE_ADDRESS_LEN);
        assert_eq!(InterfaceAddress::unpack(&interface.pack()), Ok(interface));
        assert_eq!(end(1).pack().len(), ENDPOINT_ADDRESS_LEN);
        assert_eq!(EndpointAddress::unpack(&end(1).pack()), Ok(end(1)));
    }

    #[test]
    fn exactly_one_end_retransmits_its_hello() {
        assert_ne!(end(1).repeats_hello(&end(2)), end(2).repeats_hello(&end(1)));
        assert!(end(1).repeats_hello(&end(1)), "an end that is connected to itself");
    }

    proptest! {
        #[test]
        fn bytes_that_are_no_address_are_refused_or_read_back_the_same(
            bytes in proptest::collection::vec(any::<u8>(), 0..80),
            at in 0usize..ENDPOINT_ADDRESS_LEN,
            value in any::<u8>(),
        ) {
            let _ = InterfaceAddress::unpack(&bytes);
            let _ = EndpointAddress::unpack(&bytes);
            let mut changed = end(1).pack();
            changed[at] = value;
            if let Ok(read) = EndpointAddress::unpack(&changed) {
                prop_assert_eq!(read.pack(), changed);
            }
        }
    }

    #[test]
    fn impossible_numbers_are_refused_with_the_reason() {
        let said = |address: EndpointAddress| {
            EndpointAddress::unpack(&address.pack()).map_err(|failure| failure.text)
        };
        let largest = 0xff_ffff;
        for window in [2, 1024] {
            for segment in [1024, 1 << 20] {
                let edge =
                    EndpointAddress { qpn: largest, psn: largest, window, segment, ..end(1) };
                assert_eq!(said(edge), Ok(edge));
            }
        }
        for (wrong, what) in [
            (EndpointAddress { qpn: largest + 1, ..end(1) }, "queue pair"),
            (EndpointAddress { psn: largest + 1, ..end(1) }, "queue pair"),
            (EndpointAddress { window: 1, ..end(1) }, "window"),
            (EndpointAddress { window: 1025, ..end(1) }, "window"),
            (EndpointAddress { segment: 1023, ..end(1) }, "segment size"),
            (EndpointAddress { segment: (1 << 20) + 1, ..end(1) }, "segment size"),
        ] {
            assert_eq!(said(wrong), Err(format!("an rc address that names an impossible {what}")));
        }
        let mut reserved = end(1).pack();
        reserved[19] = 1;
        assert!(EndpointAddress::unpack(&reserved).is_err());
        let interface = InterfaceAddress { port: ethernet(1), segment: 1024 }.pack();
        let none = "an rc address that is none of this version";
        for at in 0..4 {
            let (mut interface, mut endpoint) = (interface.clone(), end(1).pack());
            (interface[at], endpoint[at]) = (0, 0);
            assert_eq!(InterfaceAddress::unpack(&interface).unwrap_err().text, none);
            assert_eq!(EndpointAddress::unpack(&endpoint).unwrap_err().text, none);
        }
        for bytes in [&interface[..31], &[&interface[..], &[0]].concat()] {
            assert_eq!(InterfaceAddress::unpack(bytes).unwrap_err().text, none);
        }
    }
}
