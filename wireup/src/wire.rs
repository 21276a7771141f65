//! Reading and writing of the bytes exchanged between processes: little-endian, with every length checked.

use tieline_plugin_api::Status;

/// A reader that takes fields from the front of a byte string. A field that is longer than the rest is `BadData`.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Makes a reader at the first of these bytes.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// Reads the next `len` bytes.
    #[inline]
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Status> {
        if len > self.rest.len() {
            return Err(Status::BadData);
        }
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Status> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    /// Reads one byte.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, Status> {
        Ok(self.array::<1>()?[0])
    }

    /// Reads a number of two bytes, little-endian.
    #[inline]
    pub fn u16(&mut self) -> Result<u16, Status> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Reads a number of four bytes, little-endian.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, Status> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Reads a number of eight bytes, little-endian.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, Status> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a signed number of four bytes, little-endian, in two's complement.
    #[inline]
    pub fn i32(&mut self) -> Result<i32, Status> {
        Ok(i32::from_le_bytes(self.array()?))
    }

    /// Reads an id of 16 bytes, for example the id of a worker.
    #[inline]
    pub fn id(&mut self) -> Result<[u8; 16], Status> {
        self.array()
    }

    /// Reads text with a one-byte length.
    #[inline]
    pub fn name(&mut self) -> Result<&'a str, Status> {
        let len = usize::from(self.u8()?);
        std::str::from_utf8(self.bytes(len)?).map_err(|_| Status::BadData)
    }

    /// Reads bytes with a two-byte length.
    #[inline]
    pub fn blob(&mut self) -> Result<&'a [u8], Status> {
        let len = usize::from(self.u16()?);
        self.bytes(len)
    }

    /// Returns all bytes that no field has taken.
    #[inline]
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }
}

/// A writer that appends fields to a byte string; a [`Reader`] takes them in the same order.
#[derive(Default)]
pub struct Writer {
    /// The bytes of the fields so far.
    pub bytes: Vec<u8>,
}

impl Writer {
    /// Appends bytes without a length: the reader must know their number.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Writer {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Appends one byte.
    #[inline]
    pub fn u8(&mut self, value: u8) -> &mut Writer {
        self.raw(&[value])
    }

    /// Appends a number of two bytes, little-endian.
    #[inline]
    pub fn u16(&mut self, value: u16) -> &mut Writer {
        self.raw(&value.to_le_bytes())
    }

    /// Appends a number of four bytes, little-endian.
    #[inline]
    pub fn u32(&mut self, value: u32) -> &mut Writer {
        self.raw(&value.to_le_bytes())
    }

    /// Appends a number of eight bytes, little-endian.
    #[inline]
    pub fn u64(&mut self, value: u64) -> &mut Writer {
        self.raw(&value.to_le_bytes())
    }

    /// Appends a signed number of four bytes, little-endian, in two's complement.
    #[inline]
    pub fn i32(&mut self, value: i32) -> &mut Writer {
        self.raw(&value.to_le_bytes())
    }

    /// Appends text with a one-byte length; longer text is truncated to the whole characters of its first 255 bytes.
    #[inline]
    pub fn name(&mut self, text: &str) -> &mut Writer {
        let mut len = text.len().min(255);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        self.u8(len as u8).raw(&text.as_bytes()[..len])
    }

    /// Appends bytes with a two-byte length; 64 KiB or more are `TooLarge`.
    #[inline]
    pub fn blob(&mut self, bytes: &[u8]) -> Result<&mut Writer, Status> {
        let len = u16::try_from(bytes.len()).map_err(|_| Status::TooLarge)?;
        Ok(self.u16(len).raw(bytes))
    }
}

/// A kind of record that outlives its writer, and the version in which this library writes it. `docs/wire.md` has the
/// rule of versions.
pub struct Format {
    /// The first three bytes of every record of this kind, in every version.
    pub magic: [u8; 3],
    /// The kind as text, for example `worker address`, which error messages contain.
    pub name: &'static str,
    /// The major version; a reader refuses a record of another one.
    pub major: u8,
    /// The minor version; a later one has more fields at the end. A reader of this version ignores those fields.
    pub minor: u8,
}

/// The reason why bytes are not a record of a [`Format`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoRecord {
    /// The status: `Unsupported` for another version, otherwise `BadData`.
    pub status: Status,
    /// The reason as text, without the name of the record: a clause such as `its checksum is wrong`.
    pub why: String,
}

impl Format {
    /// Starts a record with the magic bytes and the version. The caller appends fields, and then calls [`seal`].
    pub fn begin(&self) -> Writer {
        let mut w = Writer::default();
        self.begin_in(&mut w);
        w
    }

    /// Starts a record after the fields of another one. The caller appends fields, and then calls [`seal_from`].
    #[inline]
    pub fn begin_in(&self, w: &mut Writer) {
        let _ = w.raw(&self.magic).u8(self.major).u8(self.minor);
    }

    /// Parses a sealed record: checks the magic bytes, the major version and the checksum. `parse` gets a reader of the bytes after
    /// the version, and the minor version, and reads all fields that it knows.
    pub fn unseal<'a, T>(
        &self,
        bytes: &'a [u8],
        parse: impl FnOnce(&mut Reader<'a>, u8) -> Result<T, Status>,
    ) -> Result<T, NoRecord> {
        let no = |why: String| NoRecord { status: Status::BadData, why };
        let (body, sum) =
            bytes.split_last_chunk::<4>().ok_or_else(|| no("it is too short".into()))?;
        let Some((&[major, minor], fields)) =
            body.strip_prefix(&self.magic).and_then(|rest| rest.split_first_chunk::<2>())
        else {
            let magic = String::from_utf8_lossy(&self.magic);
            return Err(no(format!("it does not begin with {magic} and a version")));
        };
        if major != self.major {
            let (name, ours) = (self.name, self.major);
            let why = format!(
                "it is a {name} of version {major}.{minor}, and this library reads {ours}.x"
            );
            return Err(NoRecord { status: Status::Unsupported, why });
        }
        if *sum != checksum(body).to_le_bytes() {
            return Err(no("its checksum is wrong".into()));
        }
        let mut r = Reader::new(fields);
        let value =
            parse(&mut r, minor).map_err(|_| no("a field is cut off or malformed".into()))?;
        // Fields that a later minor version has added are ignored.
        if r.rest().is_empty() || minor > self.minor {
            Ok(value)
        } else {
            Err(no("there are bytes after its end".into()))
        }
    }
}

/// Completes a record of [`Format::begin`]: appends a checksum of four bytes to its fields.
pub fn seal(w: Writer) -> Vec<u8> {
    let mut w = w;
    seal_from(&mut w, 0);
    w.bytes
}

/// Completes the record that begins at the byte `from`, like [`seal`].
pub fn seal_from(w: &mut Writer, from: usize) {
    let sum = checksum(w.bytes.get(from..).unwrap_or_default());
    let _ = w.u32(sum);
}

/// Returns the FNV-1a hash, which detects damage. The hash does not protect against forgery.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &b| (hash ^ u32::from(b)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: Format = Format { magic: *b"TLX", name: "example", major: 1, minor: 2 };

    /// Reads one number of a record of this version, with `rest` bytes after it.
    fn read(major: u8, minor: u8, rest: usize) -> Result<(u8, u8), NoRecord> {
        let mut w = Format { major, minor, ..FORMAT }.begin();
        let _ = w.u8(7).raw(&vec![9; rest]);
        FORMAT.unseal(&seal(w), |r, minor| Ok((r.u8()?, minor)))
    }

    #[test]
    fn a_record_of_a_later_minor_may_have_more_and_no_other() {
        assert_eq!([read(1, 2, 0), read(1, 0, 0)], [Ok((7, 2)), Ok((7, 0))]);
        assert_eq!([read(1, 3, 0), read(1, 3, 5)], [Ok((7, 3)), Ok((7, 3))]);
        let no = |status, why: &str| Err(NoRecord { status, why: why.into() });
        let more = no(Status::BadData, "there are bytes after its end");
        assert_eq!([read(1, 2, 1), read(1, 1, 1)], [more.clone(), more]);
        let other = "it is a example of version 2.0, and this library reads 1.x";
        assert_eq!(read(2, 0, 0), no(Status::Unsupported, other));
        let unsealed = |bytes: &[u8]| FORMAT.unseal(bytes, |r, _| r.u8());
        let bad = |why: &str| Err(NoRecord { status: Status::BadData, why: why.into() });
        assert_eq!(unsealed(b"TLX"), bad("it is too short"));
        assert_eq!(unsealed(b"TLY\x01\x02....."), bad("it does not begin with TLX and a version"));
        assert_eq!(unsealed(b"TLX\x01\x02....."), bad("its checksum is wrong"));
        assert_eq!(unsealed(&seal(FORMAT.begin())), bad("a field is cut off or malformed"));
    }

    #[test]
    fn written_fields_are_read_back_and_end_is_checked() {
        let mut w = Writer::default();
        let _ = w.u8(1).u16(2).u32(3).u64(4).i32(-5).name("six").raw(&[7; 16]);
        let _ = w.blob(&[8; 300]).unwrap();
        assert_eq!(Writer::default().blob(&[0; 1 << 16]).map(|_| ()), Err(Status::TooLarge));
        let mut r = Reader::new(&w.bytes);
        assert_eq!(
            (r.u8(), r.u16(), r.u32(), r.u64(), r.i32()),
            (Ok(1), Ok(2), Ok(3), Ok(4), Ok(-5))
        );
        assert_eq!((r.name(), r.id(), r.blob()), (Ok("six"), Ok([7; 16]), Ok(&[8; 300][..])));
        assert_eq!(r.bytes(0), Ok(&[][..]));
        assert_eq!((r.bytes(1), r.u8()), (Err(Status::BadData), Err(Status::BadData)));
        let mut second = Writer::default();
        let _ = second.u8(9);
        FORMAT.begin_in(&mut second);
        let _ = second.u8(7);
        seal_from(&mut second, 1);
        let mut alone = FORMAT.begin();
        let _ = alone.u8(7);
        assert_eq!(second.bytes, [&[9], &seal(alone)[..]].concat());
        let mut long = Writer::default();
        let _ = long.name(&"x".repeat(300));
        assert_eq!(Reader::new(&long.bytes).name(), Ok(&"x".repeat(255)[..]));
        let mut wide = Writer::default();
        let _ = wide.name(&"\u{fc}".repeat(200));
        assert_eq!(Reader::new(&wide.bytes).name(), Ok(&"\u{fc}".repeat(127)[..]));
    }
}
