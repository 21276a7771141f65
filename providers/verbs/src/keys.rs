//! Remote keys.
//!
//! A packed key holds the device's key, the range, the rights and a generation. The packed key is authenticated with a random
//! number of the owner's domain (the *seal*), which peers receive with an endpoint's address. The requester therefore rejects the
//! following before it posts anything: malformed or modified keys, keys of another domain, ranges outside the region, and missing
//! rights. A *revoked* key passes this check. The target's device rejects a revoked key, and that error breaks the connection (see
//! `docs/rdma.md`).

use tieline_plugin_api::Failure;
pub(crate) use tieline_registration::key::Seal;
use tieline_registration::key::{CHECK, Grant, rejected, seal, unseal};

/// The length of a packed key.
pub(crate) const KEY_LEN: usize = 56;
const MAGIC: [u8; 4] = *b"vrk\x01";

/// The contents of a packed key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedKey {
    pub(crate) rkey: u32,
    pub(crate) grant: Grant,
    pub(crate) generation: u64,
}

impl PackedKey {
    pub(crate) fn pack(&self, own: &Seal) -> [u8; KEY_LEN] {
        let mut out = [0; KEY_LEN];
        out[..4].copy_from_slice(&MAGIC);
        out[4..8].copy_from_slice(&self.rkey.to_le_bytes());
        out[8..16].copy_from_slice(&self.grant.base.to_le_bytes());
        out[16..24].copy_from_slice(&self.grant.len.to_le_bytes());
        out[24..32].copy_from_slice(&self.grant.access.to_le_bytes());
        out[32..40].copy_from_slice(&self.generation.to_le_bytes());
        let check = seal(&out[..KEY_LEN - CHECK], own);
        out[KEY_LEN - CHECK..].copy_from_slice(&check);
        out
    }

    pub(crate) fn unpack(bytes: &[u8], seal: &Seal) -> Result<PackedKey, Failure> {
        let bytes: &[u8; KEY_LEN] = bytes.try_into().map_err(|_| {
            rejected(&format!("is {} bytes long; a verbs key has {KEY_LEN}", bytes.len()))
        })?;
        if bytes[..4] != MAGIC {
            return Err(rejected("is not one of verbs"));
        }
        let _ = unseal(bytes, seal)?;
        let number = |at: usize| {
            let mut raw = [0; 8];
            raw.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(raw)
        };
        Ok(PackedKey {
            rkey: (number(0) >> 32) as u32,
            grant: Grant::new(number(8), number(16), number(24))?,
            generation: number(32),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_plugin_api::{Status, access};

    const SEAL: Seal = [7; 16];
    const KEY: PackedKey = PackedKey {
        rkey: 0xabcd_1234,
        grant: Grant { base: 0x1000, len: 64, access: access::REMOTE_READ },
        generation: 9,
    };

    #[test]
    fn a_key_survives_packing() {
        assert_eq!(PackedKey::unpack(&KEY.pack(&SEAL), &SEAL), Ok(KEY));
    }

    #[test]
    fn a_changed_short_or_foreign_key_is_refused() {
        let good = KEY.pack(&SEAL);
        for at in 0..KEY_LEN {
            for flip in [1, 0x80, 0xff] {
                let mut forged = good;
                forged[at] ^= flip;
                let refused = PackedKey::unpack(&forged, &SEAL).unwrap_err();
                assert_eq!(refused.status, Status::KeyRejected, "byte {at}");
            }
        }
        for len in 0..KEY_LEN {
            assert!(PackedKey::unpack(&good[..len], &SEAL).is_err());
        }
        assert!(PackedKey::unpack(&[good.as_slice(), &[0]].concat(), &SEAL).is_err());
        assert!(PackedKey::unpack(&good, &[8; 16]).is_err(), "a key of another domain");
    }
}
