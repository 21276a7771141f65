//! Remote keys: the bytes of [`crate::Region::remote_key`].
//!
//! A key identifies the region by context, number and generation. The key holds the region's length and access rights, and one part
//! for every domain that has registered the memory and made its part. On the importing side the core or the module checks range and
//! rights. A target that executes an operation by message checks number, generation, rights and range again, so it refuses a forged
//! or outdated key. Modules protect direct access by their own parts of the key.

use super::access::Access;
use crate::op::admission::Grant;
use crate::wire::{Format, Reader, seal};
use crate::{Error, Status};

pub(crate) const FORMAT: Format = Format { magic: *b"TLK", name: "remote key", major: 1, minor: 0 };
const MAX_PARTS: usize = 32;

/// A parsed remote key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRecord {
    pub(crate) context: [u8; 16],
    pub(crate) region: u64,
    pub(crate) generation: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
    /// The parts: provider, domain, and that domain's key.
    pub(crate) parts: Vec<(String, String, Vec<u8>)>,
    /// The index of the part whose domain's device executes all atomics on this region; `None`: processors do.
    pub(crate) device_atomics: Option<usize>,
}

impl KeyRecord {
    /// Returns the rights and the range that the key grants.
    #[inline]
    pub(crate) fn grant(&self) -> Grant {
        Grant { rights: self.access.bits(), len: self.len }
    }

    pub(crate) fn pack(&self) -> Result<Vec<u8>, Error> {
        let mut w = FORMAT.begin();
        let _ = w.raw(&self.context).u64(self.region).u64(self.generation);
        let _ = w.u64(self.len).u8(self.access.bits() as u8).u8(self.parts.len() as u8);
        let _ = w.u8(self.device_atomics.map_or(0, |part| part as u8 + 1));
        for (provider, domain, bytes) in &self.parts {
            let _ = w.name(provider).name(domain).blob(bytes)?;
        }
        Ok(seal(w))
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<KeyRecord, Error> {
        FORMAT.unseal(bytes, Self::parse_fields).map_err(|no| {
            let status = match no.status {
                Status::Unsupported => no.status,
                _ => Status::KeyRejected,
            };
            Error::new(
                status,
                "this is no remote key",
                format!("{} ({} bytes)", no.why, bytes.len()),
                "pass what the owner gave as the region's key, unchanged, between compatible versions of Tieline",
            )
        })
    }

    fn parse_fields(r: &mut Reader<'_>, _minor: u8) -> Result<KeyRecord, Status> {
        let context = r.id()?;
        let (region, generation, len) = (r.u64()?, r.u64()?, r.u64()?);
        let access = Access::from_bits(u64::from(r.u8()?));
        let count = usize::from(r.u8()?);
        let device_atomics = usize::from(r.u8()?).checked_sub(1);
        if count > MAX_PARTS || device_atomics.is_some_and(|part| part >= count) {
            return Err(Status::BadData);
        }
        let mut parts = Vec::with_capacity(count);
        for _ in 0..count {
            parts.push((r.name()?.to_string(), r.name()?.to_string(), r.blob()?.to_vec()));
        }
        Ok(KeyRecord { context, region, generation, len, access, parts, device_atomics })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> KeyRecord {
        KeyRecord {
            context: [7; 16],
            region: 3,
            generation: 9,
            len: 4096,
            access: Access::READ | Access::ATOMIC,
            parts: vec![("shm".into(), "shm".into(), vec![1, 2, 3])],
            device_atomics: Some(0),
        }
    }

    #[test]
    fn a_key_survives_its_bytes_and_no_damaged_one_does() {
        let bytes = example().pack().unwrap();
        assert_eq!(KeyRecord::parse(&bytes).unwrap(), example());
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(KeyRecord::parse(&damaged).is_err(), "byte {at}");
            assert!(KeyRecord::parse(&bytes[..at]).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_with_a_right_checksum_are_parsed_or_refused(
            body in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut w = FORMAT.begin();
            let _ = w.raw(&body);
            let _ = KeyRecord::parse(&seal(w));
        }
    }

    #[test]
    fn a_key_has_so_many_parts_and_names_one_of_them_or_none() {
        let of = |parts: usize, device_atomics: Option<usize>| {
            let part = example().parts.remove(0);
            let record = KeyRecord { parts: vec![part; parts], device_atomics, ..example() };
            let read = KeyRecord::parse(&record.pack().unwrap());
            read.map(|read| assert_eq!(read, record)).map_err(|error| error.status())
        };
        assert_eq!(
            [of(0, None), of(MAX_PARTS, None), of(MAX_PARTS, Some(MAX_PARTS - 1))],
            [Ok(()); 3]
        );
        let refused = Err(Status::KeyRejected);
        assert_eq!([of(MAX_PARTS + 1, None), of(1, Some(1)), of(0, Some(0))], [refused; 3]);
    }
}
