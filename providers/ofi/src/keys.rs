//! Remote keys.
//!
//! A packed key holds the library's key, or one for each interface where registrations belong to interfaces, the range, the
//! rights and a generation, sealed with a number that the owner's domain chose at random and that peers get with an
//! interface's address. The accessing side so refuses, before anything is posted: bytes that are no key or were
//! changed, a key of another domain, a range outside the region, a right that the region does not give.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use tieline_plugin_api::{Failure, Status};

/// A domain's random number.
pub(crate) type Seal = [u8; 16];

/// Interfaces of a domain that a key has room for, where registrations belong to interfaces.
pub(crate) const MOST_INTERFACES: usize = 8;
const FIXED: usize = 48;
const CHECK: usize = 16;
/// Length of the longest packed key.
pub(crate) const MAX_KEY_LEN: usize = FIXED + 16 * MOST_INTERFACES + CHECK;
const MAGIC: [u8; 4] = *b"ofk\x02";

/// What a packed key says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PackedKey {
    /// What a transfer's address begins at: the region's in the owner's memory, or 0.
    pub(crate) base: u64,
    pub(crate) len: u64,
    pub(crate) access: u64,
    pub(crate) generation: u64,
    /// By how much the region's address misses a multiple of 8, whatever a transfer's begins at.
    pub(crate) skew: u64,
    /// The library's key by the number of the owner's interface; number 0 stands for all of them.
    pub(crate) keys: Vec<(u64, u64)>,
}

fn digest(body: &[u8], seal: &Seal) -> Hmac<Sha256> {
    // HMAC takes keys of every length; an impossible failure would only make a key that nobody accepts.
    let mut mac =
        Hmac::<Sha256>::new_from_slice(seal).unwrap_or_else(|_| Hmac::new(&[0; 64].into()));
    mac.update(body);
    mac
}

impl PackedKey {
    pub(crate) fn pack(&self, seal: &Seal) -> Vec<u8> {
        let mut out = Vec::with_capacity(MAX_KEY_LEN);
        out.extend(MAGIC);
        out.extend((self.keys.len() as u32).to_le_bytes());
        for number in [self.base, self.len, self.access, self.generation, self.skew] {
            out.extend(number.to_le_bytes());
        }
        for (interface, key) in &self.keys {
            out.extend(interface.to_le_bytes());
            out.extend(key.to_le_bytes());
        }
        let check = digest(&out, seal).finalize().into_bytes();
        out.extend(&check[..CHECK]);
        out
    }

    pub(crate) fn unpack(bytes: &[u8], seal: &Seal) -> Result<PackedKey, Failure> {
        let rejected =
            |why: &str| Failure::new(Status::KeyRejected, format!("the remote key {why}"));
        if bytes.len() < FIXED + 16 + CHECK || bytes.len() > MAX_KEY_LEN || bytes[..4] != MAGIC {
            return Err(rejected("is not one of ofi"));
        }
        let (body, check) = bytes.split_at(bytes.len() - CHECK);
        if digest(body, seal).verify_truncated_left(check).is_err() {
            return Err(rejected(
                "was changed on its way, or belongs to another process or device than this endpoint's peer",
            ));
        }
        let number = |at: usize| {
            let mut raw = [0; 8];
            raw.copy_from_slice(&body[at..at + 8]);
            u64::from_le_bytes(raw)
        };
        let count = (number(0) >> 32) as usize;
        if body.len() != FIXED + 16 * count {
            return Err(rejected("has another length than it says"));
        }
        let keys = (0..count).map(|n| (number(FIXED + 16 * n), number(FIXED + 16 * n + 8)));
        let key = PackedKey {
            base: number(8),
            len: number(16),
            access: number(24),
            generation: number(32),
            skew: number(40) % 8,
            keys: keys.collect(),
        };
        if key.base.checked_add(key.len).is_none() {
            return Err(rejected("describes no region"));
        }
        Ok(key)
    }

    /// The library's key for an interface of the owner's.
    pub(crate) fn of(&self, interface: u64) -> Option<u64> {
        self.keys.iter().find(|(number, _)| [0, interface].contains(number)).map(|(_, key)| *key)
    }

    /// The remote address of `len` bytes at `offset`, if the key gives `right` and the region holds them all.
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

    fn key() -> PackedKey {
        let keys = vec![(3, 0xabcd), (4, u64::MAX)];
        let access = access::REMOTE_READ;
        PackedKey { base: 0x1000, len: 64, access, generation: 9, skew: 3, keys }
    }

    #[test]
    fn a_key_survives_packing_and_has_one_key_for_each_interface() {
        let unpacked = PackedKey::unpack(&key().pack(&SEAL), &SEAL).unwrap();
        assert_eq!(unpacked, key());
        assert_eq!([3, 4, 5].map(|n| unpacked.of(n)), [Some(0xabcd), Some(u64::MAX), None]);
        assert_eq!(PackedKey { keys: vec![(0, 1)], ..key() }.of(17), Some(1), "one for all");
    }

    #[test]
    fn a_key_has_one_to_eight_keys_of_the_librarys() {
        for (count, good) in [(0, false), (1, true), (MOST_INTERFACES, true), (9, false)] {
            let keys = (0..count as u64).map(|n| (n, 100 + n)).collect();
            let key = PackedKey { keys, ..key() };
            let bytes = key.pack(&SEAL);
            assert_eq!(PackedKey::unpack(&bytes, &SEAL).ok(), good.then_some(key), "{count}");
            assert_eq!(bytes.len() <= MAX_KEY_LEN, count <= MOST_INTERFACES);
        }
    }

    #[test]
    fn a_changed_short_or_foreign_key_is_refused() {
        let good = key().pack(&SEAL);
        for at in 0..good.len() {
            for flip in [1, 0x80, 0xff] {
                let mut forged = good.clone();
                forged[at] ^= flip;
                let refused = PackedKey::unpack(&forged, &SEAL).unwrap_err();
                assert_eq!(refused.status, Status::KeyRejected, "byte {at}");
            }
        }
        for len in 0..good.len() {
            assert!(PackedKey::unpack(&good[..len], &SEAL).is_err());
        }
        assert!(PackedKey::unpack(&good, &[8; 16]).is_err(), "a key of another domain");
    }

    #[test]
    fn ranges_and_rights_are_checked_before_anything_is_posted() {
        let key = key();
        assert_eq!(key.admit(access::REMOTE_READ, 0, 64), Ok(0x1000));
        assert_eq!(key.admit(access::REMOTE_WRITE, 0, 1), Err(Status::KeyRejected));
        for (offset, len) in [(0, 65), (64, 1), (u64::MAX, 2), (1, usize::MAX)] {
            assert_eq!(key.admit(access::REMOTE_READ, offset, len), Err(Status::OutOfRange));
        }
    }
}
