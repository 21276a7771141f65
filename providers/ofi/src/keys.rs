//! Remote keys.
//!
//! A packed key holds the range, the rights, a generation, the region's address modulo 8, and the library's key. The library's key
//! is one of:
//!
//! * a number,
//! * bytes that must first be mapped to a number (`FI_MR_RAW`),
//! * one number, or such bytes, for each interface, if registrations belong to interfaces.
//!
//! A packed key is sealed with a random number of the owner's domain, which peers receive with an interface's address. The
//! accessing side refuses these before it posts: malformed or altered bytes, a key of another domain, a range outside the region,
//! and a right that the region does not grant.

use crate::abi::FI_MR_RAW;
use core::ffi::c_int;
use tieline_plugin_api::Failure;
pub(crate) use tieline_registration::key::Seal;
use tieline_registration::key::{CHECK, Grant, rejected, seal, unseal};

/// The maximum number of interfaces in one key, if registrations belong to interfaces.
pub(crate) const MOST_INTERFACES: usize = 8;
const FIXED: usize = 48;
/// The maximum size in bytes of a library key that must be mapped (ucx: 64; read in ucx.h).
pub(crate) const MOST_RAW: usize = 256;
const NUMBERS: usize = 16;
/// The length of the fields in front of the bytes of a key that must be mapped: the numbers and the length.
const BEFORE_RAW: usize = NUMBERS + 2;
/// The length of the longest packed key: if the library's keys are numbers, and in general.
pub(crate) const MAX_KEY_LEN: usize = FIXED + NUMBERS * MOST_INTERFACES + CHECK;
pub(crate) const LONGEST: usize = FIXED + (BEFORE_RAW + MOST_RAW) * MOST_INTERFACES + CHECK;
const MAGIC: [u8; 4] = *b"ofk\x03";

/// Returns the length of the longest packed key of a domain with this mode (`FI_MR_...`) and this size of library keys.
pub(crate) fn longest(mode: c_int, size: usize) -> usize {
    match mode & FI_MR_RAW {
        0 => MAX_KEY_LEN,
        _ => FIXED + (BEFORE_RAW + size.clamp(8, MOST_RAW)) * MOST_INTERFACES + CHECK,
    }
}

/// A key of the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LibraryKey {
    /// The number of the owner's interface; 0 means all interfaces.
    pub(crate) interface: u64,
    /// The key; or, if the key must be mapped, the address for the mapping.
    pub(crate) number: u64,
    /// The bytes to map, if the key must be mapped.
    pub(crate) raw: Option<Vec<u8>>,
}

/// The contents of a packed key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PackedKey {
    /// The granted range, whose base is the region's address in the owner's memory, or 0.
    pub(crate) grant: Grant,
    pub(crate) generation: u64,
    /// The region's address modulo 8, independent of the grant's base.
    pub(crate) skew: u64,
    pub(crate) keys: Vec<LibraryKey>,
}

impl LibraryKey {
    /// Unpacks exactly `count` keys, at most eight, with nothing after them.
    fn unpack_all(bytes: &[u8], count: usize, are_raw: bool) -> Option<Vec<LibraryKey>> {
        let (mut keys, mut rest) = (Vec::new(), bytes);
        for _ in 0..count.min(MOST_INTERFACES) {
            let (interface, behind) = rest.split_first_chunk::<8>()?;
            let (number, behind) = behind.split_first_chunk::<8>()?;
            let mut raw = None;
            rest = behind;
            if are_raw {
                let (len, behind) = rest.split_first_chunk::<2>()?;
                let len = usize::from(u16::from_le_bytes(*len));
                let (bytes, behind) = behind.split_at_checked(len)?;
                raw = Some(bytes.to_vec()).filter(|_| (1..=MOST_RAW).contains(&len));
                let _ = raw.as_ref()?;
                rest = behind;
            }
            let (interface, number) = (u64::from_le_bytes(*interface), u64::from_le_bytes(*number));
            keys.push(LibraryKey { interface, number, raw });
        }
        (rest.is_empty() && count <= MOST_INTERFACES).then_some(keys)
    }
}

impl PackedKey {
    pub(crate) fn pack(&self, own: &Seal) -> Vec<u8> {
        let mut out = Vec::with_capacity(MAX_KEY_LEN);
        out.extend(MAGIC);
        let are_raw = self.keys.iter().any(|key| key.raw.is_some());
        out.extend((self.keys.len() as u16).to_le_bytes());
        out.extend(u16::from(are_raw).to_le_bytes());
        let Grant { base, len, access } = self.grant;
        for number in [base, len, access, self.generation, self.skew] {
            out.extend(number.to_le_bytes());
        }
        for key in &self.keys {
            out.extend(key.interface.to_le_bytes());
            out.extend(key.number.to_le_bytes());
            if are_raw {
                let raw = key.raw.as_deref().unwrap_or_default();
                out.extend((raw.len() as u16).to_le_bytes());
                out.extend(raw);
            }
        }
        let check = seal(&out, own);
        out.extend(check);
        out
    }

    pub(crate) fn unpack(bytes: &[u8], seal: &Seal) -> Result<PackedKey, Failure> {
        if bytes.len() < FIXED + CHECK || bytes.len() > LONGEST || bytes[..4] != MAGIC {
            return Err(rejected("is not one of ofi"));
        }
        let body = unseal(bytes, seal)?;
        let number = |at: usize| {
            let mut raw = [0; 8];
            raw.copy_from_slice(&body[at..at + 8]);
            u64::from_le_bytes(raw)
        };
        let (count, are_raw) = ((number(0) >> 32) as usize & 0xffff, number(0) >> 48 != 0);
        let keys = LibraryKey::unpack_all(&body[FIXED..], count, are_raw);
        let keys = keys.ok_or_else(|| rejected("has another length than it says"))?;
        Ok(PackedKey {
            grant: Grant::new(number(8), number(16), number(24))?,
            generation: number(32),
            skew: number(40) % 8,
            keys,
        })
    }

    /// Returns the library's key for one interface of the owner.
    #[inline]
    pub(crate) fn of(&self, interface: u64) -> Option<&LibraryKey> {
        self.keys.iter().find(|key| [0, interface].contains(&key.interface))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_plugin_api::{Status, access};

    const SEAL: Seal = [7; 16];

    fn plain(interface: u64, number: u64) -> LibraryKey {
        LibraryKey { interface, number, raw: None }
    }

    fn key() -> PackedKey {
        let keys = vec![plain(3, 0xabcd), plain(4, u64::MAX)];
        let grant = Grant { base: 0x1000, len: 64, access: access::REMOTE_READ };
        PackedKey { grant, generation: 9, skew: 3, keys }
    }

    #[test]
    fn a_key_survives_packing_and_has_one_key_for_each_interface() {
        let unpacked = PackedKey::unpack(&key().pack(&SEAL), &SEAL).unwrap();
        assert_eq!(unpacked, key());
        let of = |key: &PackedKey, interface| key.of(interface).map(|key| key.number);
        let found = [3, 4, 5].map(|interface| of(&unpacked, interface));
        assert_eq!(found, [Some(0xabcd), Some(u64::MAX), None]);
        let all = PackedKey { keys: vec![plain(0, 1)], ..key() };
        assert_eq!(of(&all, 17), Some(1), "one for all");
    }

    #[test]
    fn a_key_has_eight_keys_of_the_librarys_at_most() {
        for (count, good) in [(0, true), (1, true), (MOST_INTERFACES, true), (9, false)] {
            let keys = (0..count as u64).map(|n| plain(n, 100 + n)).collect();
            let key = PackedKey { keys, ..key() };
            let bytes = key.pack(&SEAL);
            assert_eq!(PackedKey::unpack(&bytes, &SEAL).ok(), good.then_some(key), "{count}");
            assert_eq!(bytes.len() <= MAX_KEY_LEN, count <= MOST_INTERFACES);
        }
    }

    #[test]
    fn keys_that_have_to_be_mapped_have_some_bytes_each_and_not_too_many() {
        let of = |lens: &[usize]| {
            let raw = |(n, len): (usize, &usize)| LibraryKey {
                interface: n as u64,
                number: 0x7000,
                raw: Some((0..*len).map(|byte| byte as u8).collect()),
            };
            PackedKey { keys: lens.iter().enumerate().map(raw).collect(), ..key() }
        };
        for (lens, good) in [
            (&[1][..], true),
            (&[24], true),
            (&[64, 1, 256], true),
            (&[MOST_RAW; MOST_INTERFACES], true),
            (&[MOST_RAW + 1], false),
            (&[8, 0], false),
            (&[0], false),
            (&[8; 9], false),
        ] {
            let bytes = of(lens).pack(&SEAL);
            let unpacked = PackedKey::unpack(&bytes, &SEAL).ok();
            assert_eq!(unpacked, good.then(|| of(lens)), "{lens:?}");
            assert!(!good || bytes.len() <= LONGEST);
        }
        assert_eq!(of(&[MOST_RAW; MOST_INTERFACES]).pack(&SEAL).len(), LONGEST);
        // A body whose length field does not match its size.
        let sealed = |mut body: Vec<u8>| {
            let check = seal(&body, &SEAL);
            body.extend(check);
            PackedKey::unpack(&body, &SEAL)
        };
        let good = of(&[24]).pack(&SEAL);
        let body = &good[..good.len() - CHECK];
        assert!(sealed(body.to_vec()).is_ok());
        for (at, byte) in [(4, 2), (4, 0), (6, 0), (FIXED + 16, 23), (FIXED + 16, 25)] {
            let mut changed = body.to_vec();
            changed[at] = byte;
            let refused = sealed(changed).unwrap_err();
            assert!(refused.text.contains("another length"), "{at}: {refused}");
        }
        for len in FIXED..body.len() {
            assert!(sealed(body[..len].to_vec()).is_err(), "{len}");
        }
    }

    #[test]
    fn a_domain_says_how_long_its_keys_are() {
        for (mode, size, len) in [
            (0, 8, MAX_KEY_LEN),
            (0, 64, MAX_KEY_LEN),
            (FI_MR_RAW, 64, FIXED + (18 + 64) * 8 + CHECK),
            (FI_MR_RAW, 4, FIXED + (18 + 8) * 8 + CHECK),
            (FI_MR_RAW, MOST_RAW, LONGEST),
        ] {
            assert_eq!(longest(mode, size), len, "{mode:#x} {size}");
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
}
