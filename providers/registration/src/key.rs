//! The common part of the remote keys of `verbs` and `ofi`: the range and the rights that a key grants, and the seal that protects
//! the key. The *seal* is a random number of the owner's domain, which peers receive with an address.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use tieline_plugin_api::{Failure, Status};

/// A domain's random number that seals its keys.
pub type Seal = [u8; 16];

/// The number of bytes that [`seal`] appends.
pub const CHECK: usize = 16;

fn digest(body: &[u8], seal: &Seal) -> Hmac<Sha256> {
    // HMAC accepts keys of every length, so the second key is never used.
    let mut mac =
        Hmac::<Sha256>::new_from_slice(seal).unwrap_or_else(|_| Hmac::new(&[0; 64].into()));
    mac.update(body);
    mac
}

/// Returns the bytes that follow the body of a packed key.
#[must_use]
pub fn seal(body: &[u8], seal: &Seal) -> [u8; CHECK] {
    let mut check = [0; CHECK];
    check.copy_from_slice(&digest(body, seal).finalize().into_bytes()[..CHECK]);
    check
}

/// Returns the body of a packed key that is unchanged and belongs to the domain with this seal.
///
/// # Errors
/// `KeyRejected` for any other bytes.
pub fn unseal<'a>(bytes: &'a [u8], seal: &Seal) -> Result<&'a [u8], Failure> {
    let split = bytes.len().checked_sub(CHECK).map(|len| bytes.split_at(len));
    let intact =
        split.filter(|(body, check)| digest(body, seal).verify_truncated_left(check).is_ok());
    intact.map(|(body, _)| body).ok_or_else(|| {
        rejected("was changed on its way, or belongs to another process or device than this endpoint's peer")
    })
}

/// Makes the failure for a packed key that is refused.
#[must_use]
pub fn rejected(why: &str) -> Failure {
    Failure::new(Status::KeyRejected, format!("the remote key {why}"))
}

/// The range and the rights that a key grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The address at which the remote addresses begin.
    pub base: u64,
    /// The number of bytes.
    pub len: u64,
    /// The rights (`access`).
    pub access: u64,
}

impl Grant {
    /// Makes the grant of an unpacked key, whose addresses must not overflow.
    ///
    /// # Errors
    /// `KeyRejected`.
    pub fn new(base: u64, len: u64, access: u64) -> Result<Grant, Failure> {
        let end = base.checked_add(len);
        end.map(|_| Grant { base, len, access }).ok_or_else(|| rejected("describes no region"))
    }

    /// Returns the remote address of `len` bytes at `offset`, if the key grants `right` and the region contains the whole range.
    ///
    /// # Errors
    /// `KeyRejected` without the right, `OutOfRange` for a range outside.
    #[inline]
    pub fn admit(&self, right: u64, offset: u64, len: usize) -> Result<u64, Status> {
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

    #[test]
    fn ranges_and_rights_are_checked_before_anything_is_posted() {
        let key = Grant::new(0x1000, 64, access::REMOTE_READ).unwrap();
        assert_eq!(key.admit(access::REMOTE_READ, 0, 64), Ok(0x1000));
        assert_eq!(key.admit(access::REMOTE_READ, 64, 0), Ok(0x1040));
        assert_eq!(key.admit(access::REMOTE_WRITE, 0, 1), Err(Status::KeyRejected));
        for (offset, len) in [(0, 65), (64, 1), (65, 0), (u64::MAX, 2), (1, usize::MAX)] {
            assert_eq!(key.admit(access::REMOTE_READ, offset, len), Err(Status::OutOfRange));
        }
        let overflowing = Grant::new(u64::MAX, 1, 0).unwrap_err();
        assert_eq!(overflowing.status, Status::KeyRejected);
    }

    #[test]
    fn only_unchanged_bytes_with_the_same_seal_are_accepted() {
        let (body, own) = ([3; 40], [7; 16]);
        let sealed = [&body[..], &seal(&body, &own)].concat();
        assert_eq!(unseal(&sealed, &own).unwrap(), body);
        for len in 0..sealed.len() {
            assert!(unseal(&sealed[..len], &own).is_err(), "{len}");
        }
        let mut changed = sealed.clone();
        changed[12] ^= 1;
        assert!(unseal(&changed, &own).is_err() && unseal(&sealed, &[8; 16]).is_err());
    }
}
