//! Interface addresses.

use tieline_memory_file::{Facts, Nonce};
use tieline_plugin_api::{Failure, Status};

use crate::keys::number;

/// The address of an interface. `FILES` is the number of the owner's descriptors in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address<const FILES: usize> {
    /// The owner's identity, for error texts.
    pub facts: Facts,
    /// The random number that identifies the domain.
    pub nonce: Nonce,
    /// The mechanism's name for the memory that contains the nonce.
    pub card: u64,
    /// The owner's descriptors of files that peers open.
    pub files: [i32; FILES],
}

impl<const FILES: usize> Address<FILES> {
    /// The length of the encoded form, in bytes.
    pub const LEN: usize = 76 + 4 * FILES;

    /// Returns the encoded form. `magic` is the mechanism's mark, of which the last byte is the version.
    #[must_use]
    pub fn encode(&self, magic: [u8; 4]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::LEN);
        bytes.extend(magic);
        bytes.extend(self.facts.encode());
        bytes.extend(self.nonce);
        bytes.extend(self.card.to_ne_bytes());
        bytes.extend(self.files.iter().flat_map(|file| file.to_ne_bytes()));
        bytes
    }

    /// Decodes the form that [`Address::encode`] returns, for the provider of this name.
    ///
    /// # Errors
    /// The bytes are no address of this mechanism.
    pub fn decode(provider: &str, magic: [u8; 4], bytes: &[u8]) -> Result<Address<FILES>, Failure> {
        let malformed =
            |why: String| Failure::new(Status::BadData, format!("{provider} address {why}"));
        if bytes.len() != Self::LEN {
            return Err(malformed(format!("has {} bytes, expected {}", bytes.len(), Self::LEN)));
        }
        if bytes[..4] != magic {
            return Err(malformed("is of another kind or version".to_string()));
        }
        let mut facts = [0; Facts::LEN];
        facts.copy_from_slice(&bytes[4..52]);
        let mut nonce = [0; 16];
        nonce.copy_from_slice(&bytes[52..68]);
        let mut files = [0; FILES];
        for (file, four) in files.iter_mut().zip(bytes[76..].chunks_exact(4)) {
            *file = i32::from_ne_bytes([four[0], four[1], four[2], four[3]]);
        }
        Ok(Address { facts: Facts::decode(&facts)?, nonce, card: number(bytes, 68), files })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: [u8; 4] = *b"abc\x01";

    fn decoded(bytes: &[u8]) -> Result<Address<2>, Failure> {
        Address::decode("shm-x", MAGIC, bytes)
    }

    #[test]
    fn address_survives_packing_and_other_bytes_are_refused() {
        let facts = Facts::current_process();
        let address =
            Address { facts, nonce: [9; 16], card: 0x1234, files: [0x0102_0304, 0x0506_0708] };
        let bytes = address.encode(MAGIC);
        assert_eq!((bytes.len(), Address::<0>::LEN), (84, 76));
        assert_eq!(decoded(&bytes), Ok(address));
        for cut in 0..bytes.len() {
            assert_eq!(decoded(&bytes[..cut]).unwrap_err().status, Status::BadData);
        }
        let mut other = bytes.clone();
        other[3] ^= 1;
        let refused = decoded(&other).unwrap_err();
        assert_eq!(refused.text, "shm-x address is of another kind or version");
        let mut negative = bytes;
        negative[4..8].copy_from_slice(&(-1i32).to_ne_bytes());
        assert!(decoded(&negative).unwrap_err().text.contains("-1"));
    }
}
