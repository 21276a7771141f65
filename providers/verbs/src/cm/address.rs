//! The address of a connector: `"TLR" | version | contact`. The contact contains, among others, the IP addresses of the device's
//! network interfaces, the ports at which the connector listens, and random bytes. Only the recipients of the address know these
//! bytes.

use tieline_net::Contact;
use tieline_plugin_api::{Failure, Status};

const MAGIC: [u8; 4] = *b"TLR\x01";

/// The longest address, in bytes.
pub(super) const MAX_LEN: usize = MAGIC.len() + Contact::MAX_LEN;

pub(super) fn pack(contact: &Contact) -> Vec<u8> {
    [&MAGIC[..], &contact.pack()].concat()
}

/// Parses an address from [`pack`]. A peer sent the bytes, so they are validated.
///
/// # Errors
/// The bytes are not a valid address; the text has the reason.
pub(super) fn parse(bytes: &[u8]) -> Result<Contact, Failure> {
    let refuse = |why: String| Failure::new(Status::Invalid, why);
    let (magic, rest) = bytes
        .split_first_chunk::<4>()
        .ok_or_else(|| refuse("the address of a connector is cut off".into()))?;
    if magic[..3] != MAGIC[..3] {
        return Err(refuse("this is no address of rdmacm".into()));
    }
    if magic[3] != MAGIC[3] {
        let why = format!("an address of version {}, this side knows {}", magic[3], MAGIC[3]);
        return Err(refuse(why));
    }
    Contact::parse(rest).map_err(|why| refuse(why.to_string()))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;
    use tieline_net::ListenAddress;

    pub(crate) fn contact(n: u8) -> Contact {
        let address = |ip: &str| ListenAddress {
            ip: ip.parse().expect("an address"),
            prefix: 24,
            port: 7000 + u16::from(n),
            speed_mbps: 0,
        };
        Contact {
            boot_id: [n; 16],
            net_namespace: 7,
            cookie: [n.wrapping_mul(3); 16],
            target: [n; 16],
            addresses: vec![address("10.77.0.1"), address("fd00::1")],
        }
    }

    #[test]
    fn an_address_survives_packing_and_every_cut_of_it_is_refused() {
        let bytes = pack(&contact(1));
        assert_eq!(parse(&bytes), Ok(contact(1)));
        for len in 0..bytes.len() {
            assert!(parse(&bytes[..len]).is_err(), "{len} bytes");
        }
        assert!(parse(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn addresses_of_other_modules_and_versions_are_refused_in_words() {
        let words = |bytes: &[u8]| parse(bytes).expect_err("refused").text;
        assert!(words(&contact(1).pack()).contains("no address of rdmacm"));
        let mut later = pack(&contact(1));
        later[3] = 9;
        assert!(words(&later).contains("version 9"));
    }

    proptest! {
        #[test]
        fn no_bytes_harm(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            let _ = parse(&bytes);
            let _ = parse(&[&MAGIC[..], &bytes].concat());
        }
    }
}
