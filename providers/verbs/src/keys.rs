//! Remote keys.
//!
//! A packed key holds the device's key, the range, the rights and a generation. The packed key is authenticated with a random
//! number of the owner's domain (the *seal*), which peers receive with an endpoint's address. The requester therefore rejects the
//! following before it posts anything: malformed or modified keys, keys of another domain, ranges outside the region, and missing
//! rights. A *revoked* key passes this check. The target's device rejects a revoked key, and that error breaks the connection (see
//! `docs/rdma.md`).

use hmac::{Hmac, Mac};
use sha2::Sha256;
use tieline_plugin_api::{Failure, Status};

/// A domain's random number, known to the peers of its endpoints.
pub(crate) type Seal = [u8; 16];

/// The length of a packed key.
pub(crate) const KEY_LEN: usize = 56;
const CHECK: usize = 16;
const MAGIC: [u8; 4] = *b"vrk\x01";

/// The contents of a packed key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedKey {
    pub(crate) rkey: u32,
    pub(crate) base: u64,
    pub(crate) len: u64,
    pub(crate) access: u64,
    pub(crate) generation: u64,
}

fn digest(body: &[u8], seal: &Seal) -> Hmac<Sha256> {
    // HMAC accepts keys of every length. If HMAC failed nevertheless, the resulting key would match at no peer.
    let mut mac =
        Hmac::<Sha256>::new_from_slice(seal).unwrap_or_else(|_| Hmac::new(&[0; 64].into()));
    mac.update(body);
    mac
}

impl PackedKey {
    pub(crate) fn pack(&self, seal: &Seal) -> [u8; KEY_LEN] {
        let mut out = [0; KEY_LEN];
        out[..4].copy_from_slice(&MAGIC);
        out[4..8].copy_from_slice(&self.rkey.to_le_bytes());
        out[8..16].copy_from_slice(&self.base.to_le_bytes());
        out[16..24].copy_from_slice(&self.len.to_le_bytes());
        out[24..32].copy_from_slice(&self.access.to_le_bytes());
        out[32..40].copy_from_slice(&self.generation.to_le_bytes());
        let check = digest(&out[..KEY_LEN - CHECK], seal).finalize().into_bytes();
        out[KEY_LEN - CHECK..].copy_from_slice(&check[..CHECK]);
        out
    }

    pub(crate) fn unpack(bytes: &[u8], seal: &Seal) -> Result<PackedKey, Failure> {
        let rejected =
            |why: String| Failure::new(Status::KeyRejected, format!("the remote key {why}"));
        let bytes: &[u8; KEY_LEN] = bytes.try_into().map_err(|_| {
            rejected(format!("is {} bytes long; a verbs key has {KEY_LEN}", bytes.len()))
        })?;
        if bytes[..4] != MAGIC {
            return Err(rejected("is not one of verbs".to_string()));
        }
        let (body, check) = bytes.split_at(KEY_LEN - CHECK);
        if digest(body, seal).verify_truncated_left(check).is_err() {
            let why = "was changed on its way, or belongs to another process or device than this endpoint's peer";
            return Err(rejected(why.to_string()));
        }
        let number = |at: usize| {
            let mut raw = [0; 8];
            raw.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(raw)
        };
        let key = PackedKey {
            rkey: (number(0) >> 32) as u32,
            base: number(8),
            len: number(16),
            access: number(24),
            generation: number(32),
        };
        if key.base.checked_add(key.len).is_none() {
            return Err(rejected("describes no region".to_string()));
        }
        Ok(key)
    }

    /// Returns the remote address of `len` bytes at `offset`, if the key grants `right` and the region contains the whole range.
    pub(crate) fn admit(&self, right: u64, offset: u64, len: usize) -> Result<u64, Status> {
        if self.access & right != right {
            return Err(Status::KeyRejected);
        }
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len => Ok(self.base + offset),
            _ => Err(Status::OutOfRange),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_plugin_api::access;

    const SEAL: Seal = [7; 16];
    const KEY: PackedKey = PackedKey {
        rkey: 0xabcd_1234,
        base: 0x1000,
        len: 64,
        access: access::REMOTE_READ,
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

    #[test]
    fn ranges_and_rights_are_checked_before_anything_is_posted() {
        assert_eq!(KEY.admit(access::REMOTE_READ, 0, 64), Ok(0x1000));
        assert_eq!(KEY.admit(access::REMOTE_READ, 64, 0), Ok(0x1040));
        assert_eq!(KEY.admit(access::REMOTE_WRITE, 0, 1), Err(Status::KeyRejected));
        for (offset, len) in [(0, 65), (64, 1), (65, 0), (u64::MAX, 2), (1, usize::MAX)] {
            assert_eq!(KEY.admit(access::REMOTE_READ, offset, len), Err(Status::OutOfRange));
        }
    }
}
