//! Packed keys, and the admission of an operation by a key.

use tieline_memory_file::{Nonce, PeerRegistrations, Place};
use tieline_plugin_api::{Failure, RmaOp, Status};

/// The form of a mechanism's packed keys. A key begins with the mark and the owner's nonce.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// The name of the provider, for errors.
    pub provider: &'static str,
    /// The first bytes, of which the last one is the version.
    pub magic: [u8; 8],
    /// The length of a key, in bytes.
    pub len: usize,
}

impl Keys {
    /// The length of a key that consists of mark, nonce and a place in the owner's table.
    pub const PLACE_LEN: usize = 40;

    /// Returns the buffer of a key.
    ///
    /// # Errors
    /// The buffer is too short.
    pub fn room<'a>(&self, out: &'a mut [u8]) -> Result<&'a mut [u8], Failure> {
        let (provider, len) = (self.provider, self.len);
        out.get_mut(..len).ok_or_else(|| {
            let text = format!("a {provider} key takes {len} bytes and the buffer is shorter");
            Failure::new(Status::TooLarge, text)
        })
    }

    /// Writes the key of a place in the owner's table.
    pub fn write(&self, nonce: &Nonce, place: Place, out: &mut [u8]) {
        out[..8].copy_from_slice(&self.magic);
        out[8..24].copy_from_slice(nonce);
        out[24..32].copy_from_slice(&place.generation.to_ne_bytes());
        out[32..].copy_from_slice(&u64::from(place.entry).to_ne_bytes());
    }

    /// Checks length, mark and nonce of a packed key.
    ///
    /// # Errors
    /// The bytes are no key of this mechanism and owner.
    pub fn check(&self, bytes: &[u8], nonce: &Nonce) -> Result<(), Failure> {
        let Keys { provider, magic, len } = *self;
        if bytes.len() != len {
            let why = format!("is {} bytes long; a {provider} key has {len}", bytes.len());
            return Err(rejected(&why));
        }
        if bytes[..8] != magic {
            return Err(rejected(&format!("is not one of {provider}")));
        }
        if bytes[8..24] != nonce[..] {
            return Err(rejected(
                "belongs to another process or context than this endpoint's peer",
            ));
        }
        Ok(())
    }

    /// Parses a key of a place, and reads the place's entry in the owner's table.
    ///
    /// # Errors
    /// The bytes are no key of this mechanism and owner, or the registration is not live.
    pub fn read<const W: usize>(
        &self,
        bytes: &[u8],
        nonce: &Nonce,
        table: &PeerRegistrations<W>,
    ) -> Result<(Place, [u64; W]), Failure> {
        self.check(bytes, nonce)?;
        let gone = || rejected("names no region that is registered now");
        let entry = u32::try_from(number(bytes, 32)).map_err(|_| gone())?;
        let place = Place { entry, generation: number(bytes, 24) };
        Ok((place, table.read(place).ok_or_else(gone)?))
    }
}

/// Returns the error for an invalid key.
#[must_use]
pub fn rejected(why: &str) -> Failure {
    Failure::new(Status::KeyRejected, format!("the remote key {why}"))
}

/// Returns the eight bytes at `at` as a number.
#[must_use]
pub fn number(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(number)
}

/// Validates an operation on a region of `region` bytes, whose key grants the rights `granted`.
///
/// # Errors
/// The pieces do not add up, the key lacks `right`, or the region does not contain the whole range.
#[inline]
pub fn admit(op: &RmaOp<'_>, right: u64, granted: u64, region: u64) -> Result<(), Status> {
    let sum = op.iov.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.len));
    if sum != Some(op.len) {
        return Err(Status::Invalid);
    }
    if granted & right == 0 {
        return Err(Status::KeyRejected);
    }
    is_inside(op.offset, op.len, region)
}

/// Checks whether a region of `region` bytes contains `len` bytes at `offset`.
///
/// # Errors
/// The region ends before.
#[inline]
pub fn is_inside(offset: u64, len: usize, region: u64) -> Result<(), Status> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= region => Ok(()),
        _ => Err(Status::OutOfRange),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_overflows_is_out_of_range() {
        for (offset, len) in [(0, 64), (64, 0), (1, 63)] {
            assert_eq!(is_inside(offset, len, 64), Ok(()));
        }
        for (offset, len) in [(0, 65), (64, 1), (65, 0), (u64::MAX, 2), (1, usize::MAX)] {
            assert_eq!(is_inside(offset, len, 64), Err(Status::OutOfRange));
        }
    }

    #[test]
    fn foreign_keys_are_rejected_by_length_mark_and_owner() {
        let keys = Keys { provider: "shm-x", magic: *b"tl-x\0\0\0\x01", len: Keys::PLACE_LEN };
        let mut key = [0; Keys::PLACE_LEN];
        keys.write(&[7; 16], Place { entry: 3, generation: 5 }, &mut key);
        assert_eq!(keys.check(&key, &[7; 16]), Ok(()));
        let why = |bytes: &[u8], nonce| keys.check(bytes, &nonce).unwrap_err().text;
        assert!(why(&key[..39], [7; 16]).ends_with("is 39 bytes long; a shm-x key has 40"));
        assert!(why(&key, [8; 16]).contains("belongs to another process or context"));
        key[7] = 2;
        assert!(why(&key, [7; 16]).ends_with("is not one of shm-x"));
        assert_eq!(keys.room(&mut [0; 39]).unwrap_err().status, Status::TooLarge);
    }
}
