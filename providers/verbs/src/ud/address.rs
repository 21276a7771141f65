//! The address of a `ud` interface.

use crate::port::{PORT_LEN, Port};
use tieline_plugin_api::{Failure, Status};

/// The length of an address.
pub(crate) const ADDRESS_LEN: usize = 20 + PORT_LEN;
const MAGIC: [u8; 4] = *b"vud\x02";

/// The facts that a peer needs to send to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
    /// The random number that distinguishes this interface from an earlier one with the same queue pair number.
    pub(crate) cookie: u64,
}

/// An address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) target: Target,
    pub(crate) port: Port,
}

impl Address {
    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(ADDRESS_LEN);
        out.extend(MAGIC);
        out.extend(self.target.qpn.to_le_bytes());
        out.extend(self.target.qkey.to_le_bytes());
        out.extend(self.target.cookie.to_le_bytes());
        out.extend(self.port.pack());
        out
    }

    pub(crate) fn unpack(bytes: &[u8]) -> Result<Address, Failure> {
        let bad = |why: &str| Failure::new(Status::BadData, format!("a ud address that {why}"));
        let bytes: &[u8; ADDRESS_LEN] =
            bytes.try_into().map_err(|_| bad("has another length than this version's"))?;
        if bytes[..4] != MAGIC {
            return Err(bad("is none of this version"));
        }
        let number = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let mut port = [0; PORT_LEN];
        port.copy_from_slice(&bytes[20..]);
        let target = Target {
            qpn: number(4),
            qkey: number(8),
            cookie: u64::from(number(12)) | (u64::from(number(16)) << 32),
        };
        if target.qpn >> 24 != 0 || target.qkey >> 31 != 0 {
            return Err(bad("names an impossible queue pair"));
        }
        Ok(Address { target, port: Port::unpack(&port)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::tests::ethernet;

    #[test]
    fn an_address_survives_packing_and_noise_is_refused() {
        let target = Target { qpn: 17, qkey: 0x1234_5678, cookie: 0x1122_3344_5566_7788 };
        let address = Address { target, port: ethernet(1) };
        let bytes = address.pack();
        assert_eq!((bytes.len(), Address::unpack(&bytes)), (ADDRESS_LEN, Ok(address)));
        for len in 0..ADDRESS_LEN {
            assert!(Address::unpack(&bytes[..len]).is_err());
        }
        for at in [0, 3, 7, 11, 20, 22] {
            let mut noisy = bytes.clone();
            noisy[at] = 0xff;
            assert!(Address::unpack(&noisy).is_err(), "byte {at}");
        }
    }
}
