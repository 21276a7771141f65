//! Remote keys: the bytes of [`crate::Region::remote_key`].
//!
//! A key identifies the region by context, number and generation. The key holds the region's length and access rights, and one part
//! for every domain that has registered the memory and made its part. On the importing side the core or the module checks range and
//! rights. A target that executes an operation by message checks number, generation, rights and range again, so it refuses a forged
//! or outdated key. Modules protect direct access by their own parts of the key.

use super::access::Access;
use crate::wire::{Format, Reader, Writer, seal_from};
use crate::{Error, Status};
use tieline_order::admission::Grant;

pub(crate) const FORMAT: Format = Format { magic: *b"TLK", name: "remote key", major: 1, minor: 1 };
/// The minor version that added the kind of memory and the address.
const ADDRESSES: u8 = 1;
/// The length of an address in a key.
const ADDRESS: u8 = 8;
const MAX_PARTS: usize = 32;
/// The first byte of a key in an RTS, which no other key begins with. The fields of a key follow, without version and checksum.
const BARE: u8 = 0;
/// The first byte of a key in an RTS whose receiver has kept the fields. The number and the generation of the region follow.
const SHORT: u8 = 1;
/// The number and the generation of a region, as bytes of a key.
pub(crate) type RegionBytes = [u8; 16];

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
    /// The region's address in the owner's address space, if the owner has put it into the key.
    pub(crate) address: Option<u64>,
}

/// The name by which a peer returns a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum KeyName {
    /// The handle, which the owner's library has made.
    Handle(u64),
    /// The number, which the owner's application has chosen.
    Number(u64),
}

impl KeyRecord {
    /// Returns the rights and the range that the key grants.
    #[inline]
    pub(crate) fn grant(&self) -> Grant {
        Grant { rights: self.access.bits(), len: self.len }
    }

    #[cfg(test)]
    pub(crate) fn pack(&self) -> Result<Vec<u8>, Error> {
        let mut w = Writer::default();
        self.write(&mut w, Form::Sealed)?;
        Ok(w.bytes)
    }

    #[cfg(test)]
    fn write(&self, w: &mut Writer, form: Form) -> Result<(), Error> {
        let &KeyRecord { context, region, generation, len, access, .. } = self;
        let mut key = KeyWriter::begin(w, form, (&context, region, generation), len, access);
        for (at, (provider, domain, bytes)) in self.parts.iter().enumerate() {
            let is_home = self.device_atomics == Some(at);
            key.part((provider, domain), is_home, |out| {
                out.extend_from_slice(bytes);
                Ok(())
            })?;
        }
        // Tests also make keys that name a missing part.
        key.device_atomics = self.device_atomics.map_or(0, |part| part as u8 + 1);
        key.end(self.address);
        Ok(())
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

    /// Parses the key of an RTS from this context for a message of `len` bytes: a remote key, the fields of one alone, or a reference
    /// to a key that is not kept any more. With the last one, messages carry the bytes.
    pub(crate) fn parse_announced(
        bytes: &[u8],
        context: [u8; 16],
        len: u64,
    ) -> Result<KeyRecord, Error> {
        let (&form, fields) = match bytes.split_first() {
            Some(split @ (&(BARE | SHORT), _)) => split,
            _ => return KeyRecord::parse(bytes),
        };
        // Fields that a later version adds at the end are ignored.
        let mut r = Reader::new(fields);
        let parsed = match form {
            BARE => KeyRecord::parse_fields(&mut r, 0),
            _ => KeyRecord::parse_short(&mut r, context, len),
        };
        parsed.map_err(|_| {
            let why = "a field of the key in it is cut off or malformed";
            Error::new(Status::KeyRejected, "a rendezvous message cannot be received", why, "")
        })
    }

    fn parse_short(r: &mut Reader<'_>, context: [u8; 16], len: u64) -> Result<KeyRecord, Status> {
        let (region, generation) = (r.u64()?, r.u64()?);
        let (access, parts) = (Access::READ, Vec::new());
        Ok(KeyRecord {
            context,
            region,
            generation,
            len,
            access,
            parts,
            device_atomics: None,
            address: None,
        })
    }

    fn parse_fields(r: &mut Reader<'_>, minor: u8) -> Result<KeyRecord, Status> {
        let head = KeyHead::parse(r)?;
        let KeyHead { context, region, generation, len, access, count, device_atomics } = head;
        let mut parts = Vec::with_capacity(count);
        for _ in 0..count {
            parts.push((r.name()?.to_string(), r.name()?.to_string(), r.blob()?.to_vec()));
        }
        let address = parse_address(r, minor)?;
        Ok(KeyRecord { context, region, generation, len, access, parts, device_atomics, address })
    }
}

/// Parses the fields that follow the parts since version 1.1: the kind of the memory and its device, which have no meaning yet, and
/// the address. Fields of a later minor version that are malformed are ignored.
fn parse_address(r: &mut Reader<'_>, minor: u8) -> Result<Option<u64>, Status> {
    if minor < ADDRESSES {
        return Ok(None);
    }
    let mut fields = || {
        let _ = (r.u8()?, r.u32()?);
        match r.u8()? {
            0 => Ok(None),
            ADDRESS => r.u64().map(Some),
            _ => Err(Status::BadData),
        }
    };
    match fields() {
        Err(_) if minor > FORMAT.minor => Ok(None),
        address => address,
    }
}

/// The fields of a remote key that precede its parts.
struct KeyHead {
    context: [u8; 16],
    region: u64,
    generation: u64,
    len: u64,
    access: Access,
    count: usize,
    device_atomics: Option<usize>,
}

impl KeyHead {
    fn parse(r: &mut Reader<'_>) -> Result<KeyHead, Status> {
        let context = r.id()?;
        let (region, generation, len) = (r.u64()?, r.u64()?, r.u64()?);
        let access = Access::from_bits(u64::from(r.u8()?));
        let count = usize::from(r.u8()?);
        let device_atomics = usize::from(r.u8()?).checked_sub(1);
        if count > MAX_PARTS || device_atomics.is_some_and(|part| part >= count) {
            return Err(Status::BadData);
        }
        Ok(KeyHead { context, region, generation, len, access, count, device_atomics })
    }
}

/// A domain's part of a remote key, in the bytes of the key.
#[derive(Clone, Copy, Default)]
struct KeyPart<'a> {
    provider: &'a [u8],
    domain: &'a [u8],
    key: &'a [u8],
}

impl<'a> KeyPart<'a> {
    /// Parses a part. The names stay bytes, because they are only compared.
    fn parse(r: &mut Reader<'a>) -> Result<KeyPart<'a>, Status> {
        Ok(KeyPart { provider: name_bytes(r)?, domain: name_bytes(r)?, key: r.blob()? })
    }
}

fn name_bytes<'a>(r: &mut Reader<'a>) -> Result<&'a [u8], Status> {
    let len = usize::from(r.u8()?);
    r.bytes(len)
}

/// Returns the number and the generation of the region in a key of an RTS; `None` for a remote key with version and checksum.
#[inline]
pub(crate) fn region_of_rts(bytes: &[u8]) -> Option<&RegionBytes> {
    match bytes {
        [BARE, ..] => bytes.get(17..33)?.try_into().ok(),
        [SHORT, region @ ..] => region.get(..16)?.try_into().ok(),
        _ => None,
    }
}

/// Checks whether a key of an RTS refers to a kept one.
#[inline]
pub(crate) fn is_short(bytes: &[u8]) -> bool {
    bytes.first() == Some(&SHORT)
}

/// Makes the key of an RTS that refers to a kept one; `None` for a remote key with version and checksum.
pub(crate) fn short_key(bytes: &[u8]) -> Option<[u8; 17]> {
    let mut region = region_of_rts(bytes)?.iter();
    Some(std::array::from_fn(|at| if at == 0 { SHORT } else { *region.next().unwrap_or(&0) }))
}

/// The maximum number of parts of a key that [`KeyView`] reads.
const FEW_PARTS: usize = 4;

/// A remote key with few parts that is used once, in its bytes.
pub(crate) struct KeyView<'a> {
    pub(crate) context: [u8; 16],
    grant: Grant,
    parts: [KeyPart<'a>; FEW_PARTS],
    count: usize,
}

impl<'a> KeyView<'a> {
    /// Parses a key; `None` if it is malformed or has many parts.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<KeyView<'a>> {
        let fields = |r: &mut Reader<'a>, minor| {
            let KeyHead { context, len, access, count, .. } = KeyHead::parse(r)?;
            let mut parts = [KeyPart::default(); FEW_PARTS];
            for part in parts.get_mut(..count).ok_or(Status::Unsupported)? {
                *part = KeyPart::parse(r)?;
            }
            let _ = parse_address(r, minor)?;
            let grant = Grant { rights: access.bits(), len };
            Ok(KeyView { context, grant, parts, count })
        };
        match bytes.split_first() {
            Some((&BARE, bare)) => fields(&mut Reader::new(bare), 0).ok(),
            _ => FORMAT.unseal(bytes, fields).ok(),
        }
    }

    /// Checks whether the key grants reading the region's first `len` bytes.
    pub(crate) fn is_readable(&self, len: usize) -> bool {
        self.grant.check(Access::READ.bits(), 0, len as u64).is_ok()
    }

    /// Returns the number of bytes from the start that the key grants to read; 0 if it grants none.
    pub(crate) fn readable_len(&self) -> usize {
        let readable = self.grant.rights & Access::READ.bits() != 0;
        if readable { usize::try_from(self.grant.len).unwrap_or(usize::MAX) } else { 0 }
    }

    /// Returns the key of this provider's domain.
    pub(crate) fn part(&self, provider: &str, domain: &str) -> Option<&'a [u8]> {
        let parts = self.parts.iter().take(self.count);
        let (provider, domain) = (provider.as_bytes(), domain.as_bytes());
        let mut of_it = parts.filter(|part| part.provider == provider && part.domain == domain);
        of_it.next().map(|part| part.key)
    }
}

/// The form in which a key is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// With version and checksum, for an application to carry.
    Sealed,
    /// Without either, for an RTS to a peer that speaks the same version of the library's messages.
    Bare,
}

/// A remote key that is appended to other bytes, part by part.
pub(crate) struct KeyWriter<'a> {
    w: &'a mut Writer,
    form: Form,
    from: usize,
    /// The place of the number of parts, which the index of the device's part follows.
    count_at: usize,
    parts: u8,
    device_atomics: u8,
}

impl<'a> KeyWriter<'a> {
    /// Begins the key of a region of `len` bytes. `whose`: its context, number and generation.
    pub(crate) fn begin(
        w: &'a mut Writer,
        form: Form,
        whose: (&[u8; 16], u64, u64),
        len: u64,
        access: Access,
    ) -> KeyWriter<'a> {
        let from = w.bytes.len();
        match form {
            Form::Sealed => FORMAT.begin_in(w),
            Form::Bare => _ = w.u8(BARE),
        }
        let (context, region, generation) = whose;
        let _ = w.raw(context).u64(region).u64(generation).u64(len).u8(access.bits() as u8);
        let count_at = w.bytes.len();
        let _ = w.u8(0).u8(0);
        KeyWriter { w, form, from, count_at, parts: 0, device_atomics: 0 }
    }

    /// Appends the part of a domain, of provider and domain name; `key` appends the domain's key. `is_home`: the domain's device
    /// executes all atomics. On an error of `key` there is no such part.
    pub(crate) fn part(
        &mut self,
        (provider, domain): (&str, &str),
        is_home: bool,
        key: impl FnOnce(&mut Vec<u8>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let before = self.w.bytes.len();
        let _ = self.w.name(provider).name(domain).u16(0);
        let at = self.w.bytes.len();
        let len = key(&mut self.w.bytes).and_then(|()| {
            let len = u16::try_from(self.w.bytes.len() - at);
            len.map_err(|_| Error::from_status(Status::TooLarge))
        });
        match len {
            Ok(len) => [self.w.bytes[at - 2], self.w.bytes[at - 1]] = len.to_le_bytes(),
            Err(error) => {
                self.w.bytes.truncate(before);
                return Err(error);
            }
        }
        self.parts += 1;
        if is_home {
            self.device_atomics = self.parts;
        }
        Ok(())
    }

    /// Completes the key. `address`: the region's address, for a key that reveals it. A key in an RTS ends with its parts.
    pub(crate) fn end(self, address: Option<u64>) {
        self.w.bytes[self.count_at] = self.parts;
        self.w.bytes[self.count_at + 1] = self.device_atomics;
        if self.form == Form::Sealed {
            // Memory of the host, of no device.
            let _ = self.w.u8(0).u32(0);
            match address {
                None => _ = self.w.u8(0),
                Some(address) => _ = self.w.u8(ADDRESS).u64(address),
            }
            seal_from(self.w, self.from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::seal;
    use proptest::prelude::*;

    /// The length of the fields behind the parts of a key without an address.
    const TAIL: usize = 6;

    fn example() -> KeyRecord {
        KeyRecord {
            context: [7; 16],
            region: 3,
            generation: 9,
            len: 4096,
            access: Access::READ | Access::ATOMIC,
            parts: vec![("shm".into(), "shm".into(), vec![1, 2, 3])],
            device_atomics: Some(0),
            address: None,
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

    fn announced(bytes: &[u8]) -> Result<KeyRecord, Error> {
        KeyRecord::parse_announced(bytes, [6; 16], 77)
    }

    #[test]
    fn a_reference_to_a_kept_key_has_its_region_and_grants_a_read_by_message() {
        let bare = bare_of(&example());
        let short = short_key(&bare).unwrap();
        assert_eq!(region_of_rts(&short), region_of_rts(&bare));
        assert_eq!([is_short(&short), is_short(&bare)], [true, false]);
        let read = announced(&short).unwrap();
        assert_eq!((read.region, read.generation, read.len), (3, 9, 77));
        assert_eq!((read.context, read.access), ([6; 16], Access::READ));
        assert!(read.parts.is_empty() && KeyView::parse(&short).is_none());
        assert!((0..17).all(|end| announced(&short[..end]).is_err()));
        let sealed = example().pack().unwrap();
        assert_eq!((region_of_rts(&sealed), short_key(&sealed)), (None, None));
        assert!(KeyRecord::parse(&short).is_err(), "only an RTS has it");
    }

    /// Returns the bytes of a key in an RTS.
    fn bare_of(record: &KeyRecord) -> Vec<u8> {
        let mut w = Writer::default();
        record.write(&mut w, Form::Bare).unwrap();
        w.bytes
    }

    #[test]
    fn a_key_that_is_used_once_is_read_as_one_that_is_kept() {
        let bytes = example().pack().unwrap();
        let view = KeyView::parse(&bytes).unwrap();
        assert_eq!((view.context, view.part("shm", "shm")), ([7; 16], Some(&[1, 2, 3][..])));
        assert_eq!([view.part("shm", "x"), view.part("x", "shm")], [None; 2]);
        assert_eq!([4096, 4097].map(|len| view.is_readable(len)), [true, false]);
        let writable = KeyRecord { access: Access::WRITE, ..example() }.pack().unwrap();
        assert!(!KeyView::parse(&writable).unwrap().is_readable(1));
        let of = |count| {
            let parts = vec![example().parts.remove(0); count];
            KeyRecord { parts, device_atomics: None, ..example() }.pack().unwrap()
        };
        let read = [0, FEW_PARTS, FEW_PARTS + 1].map(|count| KeyView::parse(&of(count)).is_some());
        assert_eq!(read, [true, true, false]);
        assert!((0..bytes.len()).all(|end| KeyView::parse(&bytes[..end]).is_none()));
        let bare = [&[BARE], &bytes[5..bytes.len() - 4 - TAIL]].concat();
        assert_eq!(announced(&bare).unwrap(), example());
        assert_eq!(announced(&bytes).unwrap(), example());
        assert!(KeyRecord::parse(&bare).is_err(), "only an RTS has it");
        assert_eq!(KeyView::parse(&bare).unwrap().part("shm", "shm"), Some(&[1, 2, 3][..]));
        assert_eq!(bare_of(&example()), bare);
        for end in 0..bare.len() {
            let read = announced(&bare[..end]);
            assert_eq!(read.unwrap_err().status(), Status::KeyRejected, "{end}");
            assert!(KeyView::parse(&bare[..end]).is_none());
        }
    }

    #[test]
    fn address_is_read_from_key_that_has_one() {
        for address in [Some(0), Some(u64::MAX), None] {
            let record = KeyRecord { address, ..example() };
            let bytes = record.pack().unwrap();
            assert_eq!(
                bytes.len() - example().pack().unwrap().len(),
                if address.is_some() { 8 } else { 0 }
            );
            assert_eq!(KeyRecord::parse(&bytes).unwrap(), record);
            assert_eq!(KeyView::parse(&bytes).unwrap().part("shm", "shm"), Some(&[1, 2, 3][..]));
            assert_eq!(announced(&bare_of(&record)).unwrap(), example());
        }
        // A key of version 1.0 ends with its parts.
        let first = [&b"TLK\x01\x00"[..], &example().pack().unwrap()[5..]].concat();
        let mut w = Writer::default();
        let _ = w.raw(&first[..first.len() - 4 - TAIL]);
        assert_eq!(KeyRecord::parse(&seal(w)).unwrap(), example());
        // The address of this version has 8 bytes.
        let mut w = FORMAT.begin();
        let _ = w.raw(&first[5..first.len() - 5]).u8(4).u32(7);
        assert_eq!(KeyRecord::parse(&seal(w)).unwrap_err().status(), Status::KeyRejected);
    }

    proptest! {
        #[test]
        fn any_bytes_with_a_right_checksum_are_parsed_or_refused(
            body in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut w = FORMAT.begin();
            let _ = w.raw(&body);
            let bytes = seal(w);
            let _ = KeyView::parse(&bytes);
            let bare = [&[BARE], &bytes[..]].concat();
            let (view, record) = (KeyView::parse(&bare), announced(&bare));
            prop_assert!(record.is_err() || view.is_some() || record.unwrap().parts.len() > FEW_PARTS);
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
