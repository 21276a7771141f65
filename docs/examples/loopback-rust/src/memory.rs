//! The table of registered regions, and keys: a place in the table, and the generation of its registration.

use crate::next_number;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tieline_plugin_api::{Failure, Posted, Posting, RmaOp, Status};

pub(crate) const KEY_LEN: usize = 16;

/// The domain's entry for a region, which is also the content of its key.
pub(crate) struct Registered {
    slot: usize,
    generation: u64,
}

/// An imported key.
pub(crate) type Key = Registered;

impl Registered {
    pub(crate) fn pack(&self, out: &mut [u8]) -> Result<usize, Failure> {
        let out = out
            .get_mut(..KEY_LEN)
            .ok_or_else(|| Failure::new(Status::TooLarge, "a key takes 16 bytes"))?;
        out[..8].copy_from_slice(&(self.slot as u64).to_ne_bytes());
        out[8..].copy_from_slice(&self.generation.to_ne_bytes());
        Ok(KEY_LEN)
    }
}

struct Region {
    base: usize,
    len: usize,
    access: u64,
    generation: u64,
}

/// Any thread registers; endpoints look up regions.
#[derive(Default)]
pub(crate) struct Table(Mutex<Vec<Option<Region>>>);

impl Table {
    fn lock(&self) -> MutexGuard<'_, Vec<Option<Region>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn register(&self, base: *mut u8, len: usize, access: u64) -> Registered {
        let mut regions = self.lock();
        let generation = next_number();
        let region = Some(Region { base: base.expose_provenance(), len, access, generation });
        let slot = match regions.iter().position(Option::is_none) {
            Some(slot) => {
                regions[slot] = region;
                slot
            }
            None => {
                regions.push(region);
                regions.len() - 1
            }
        };
        Registered { slot, generation }
    }

    pub(crate) fn deregister(&self, region: Registered) {
        self.lock()[region.slot] = None;
    }

    pub(crate) fn import(&self, bytes: &[u8]) -> Result<Key, Failure> {
        let rejected = || Failure::new(Status::KeyRejected, "no region has this key");
        let bytes: &[u8; KEY_LEN] = bytes.try_into().map_err(|_| rejected())?;
        let number = |at: usize| u64::from_ne_bytes(core::array::from_fn(|n| bytes[at + n]));
        let key = Key {
            slot: usize::try_from(number(0)).map_err(|_| rejected())?,
            generation: number(8),
        };
        let _ = find(&self.lock(), &key).map_err(|_| rejected())?;
        Ok(key)
    }

    /// Checks the key, the right and the range, then copies the bytes. The lock makes deregister wait for the copy.
    pub(crate) fn with(
        &self,
        key: &Key,
        op: &RmaOp<'_>,
        right: u64,
        move_bytes: fn(&RmaOp<'_>, *mut u8),
    ) -> Posted {
        let regions = self.lock();
        let region = find(&regions, key)?;
        if region.access & right == 0 {
            return Err(Status::KeyRejected);
        }
        let offset = usize::try_from(op.offset).map_err(|_| Status::OutOfRange)?;
        if offset > region.len || op.len > region.len - offset {
            return Err(Status::OutOfRange);
        }
        if op.iov.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.len)) != Some(op.len) {
            return Err(Status::Invalid);
        }
        move_bytes(op, core::ptr::with_exposed_provenance_mut(region.base + offset));
        // Orders the copy ahead of what this thread loads and stores later.
        fence(Ordering::AcqRel);
        Ok(Posting::Done)
    }
}

fn find<'a>(regions: &'a [Option<Region>], key: &Key) -> Result<&'a Region, Status> {
    match regions.get(key.slot) {
        Some(Some(region)) if region.generation == key.generation => Ok(region),
        _ => Err(Status::KeyRejected),
    }
}
