//! Lists: adjacent parts on one region are copied by one system call, after or before one check of their key.

use super::{CmaEndpoint, IMAGE_LEN, RemoteKey, status};
use crate::sys;
use tieline_memory_file::Piece;
use tieline_plugin_api::{ListOp, ListPart, Posted, Posting, RmaOp, Status};
use tieline_single_copy::{Direction, MAX_IOV, is_inside};

type Part<'a> = ListPart<'a, RemoteKey>;

/// The number of ranges up to which a call is assembled in a small array.
const FEW: usize = 64;

impl CmaEndpoint {
    /// Copies parts in order, until one fails.
    pub(super) fn list(&self, list: &ListOp<'_, RemoteKey>, taken: &mut usize) -> Posted {
        while *taken < list.parts.len() {
            match self.run(list.put, &list.parts[*taken..]) {
                Ok(done) => *taken += done,
                Err(status) if *taken == 0 => return Err(status),
                // The call for the rest reports the failure.
                Err(_) => break,
            }
        }
        Ok(Posting::Done)
    }

    /// Copies parts that one system call can copy, the first one at least. Returns the number of complete parts. The error is that of
    /// the first part.
    fn run(&self, put: bool, parts: &[Part<'_>]) -> Result<usize, Status> {
        let few = parts.len() < FEW;
        let direction = if put { Direction::Put } else { Direction::Get };
        let copied = match few {
            true => self.batch::<FEW>(direction, parts),
            false => self.batch::<{ MAX_IOV as usize }>(direction, parts),
        };
        match copied? {
            0 => self.alone(put, &parts[0]).map(|_| 1),
            done => Ok(done),
        }
    }

    /// Copies one part as a put or get of its own, which determines the cause of a failure.
    fn alone(&self, put: bool, part: &Part<'_>) -> Posted {
        let (iov, len) = (std::slice::from_ref(&part.local), part.local.len);
        let op = RmaOp { iov, len, offset: part.offset, cookie: 0, flags: 0 };
        if put { self.put_one(part.key, &op) } else { self.get_one(part.key, &op) }
    }

    /// Copies the first parts that have one region and fit into one system call of `N` ranges. Returns the number of complete parts; 0:
    /// the first part has to be copied alone.
    fn batch<const N: usize>(
        &self,
        direction: Direction,
        parts: &[Part<'_>],
    ) -> Result<usize, Status> {
        let key = parts[0].key;
        if key.access & direction.right() == 0 {
            return Err(Status::KeyRejected);
        }
        let mut image = [0u8; IMAGE_LEN];
        let (mut local, mut remote) = ([Piece::NONE; N], [sys::remote(0, 0); N]);
        // A get has the key's entry as its last range.
        let most = N.min(self.limits.pieces).saturating_sub(1);
        let (mut count, mut bytes) = (0, 0usize);
        for (part, (here, there)) in parts.iter().zip(local.iter_mut().zip(&mut remote)).take(most)
        {
            let len = part.local.len;
            let same = std::ptr::eq(part.key, key)
                || (part.key.generation, part.key.entry) == (key.generation, key.entry)
                    && part.key.access & direction.right() != 0;
            if !same || len > self.limits.bytes - IMAGE_LEN - bytes {
                break;
            }
            if let Err(outside) = is_inside(part.offset, len, part.key.len) {
                if count == 0 {
                    return Err(outside);
                }
                break;
            }
            *here = (&part.local).into();
            *there = sys::remote(part.key.base + part.offset, len);
            (count, bytes) = (count + 1, bytes + len);
        }
        if count == 0 {
            return Ok(0);
        }
        let inside = self.accessor.enter(key.generation);
        let pid = self.peer.facts.pid;
        let copied = match direction {
            Direction::Put => {
                self.admit_put(key, &inside)?;
                sys::copy(direction, pid, &local[..count], &remote[..count])
            }
            Direction::Get => {
                local[count] = Piece::of(&mut image);
                remote[count] = sys::remote(key.entry, IMAGE_LEN);
                sys::copy(direction, pid, &local[..=count], &remote[..=count])
            }
        };
        let copied = match copied {
            Ok(copied) => copied,
            Err(libc::EFAULT) => 0,
            Err(errno) => return Err(status(errno)),
        };
        if direction == Direction::Get {
            if copied == bytes + IMAGE_LEN {
                return if image == key.image { Ok(count) } else { Err(self.mismatch()) };
            }
            // The entry was not read, so the complete parts are valid only if it still matches.
            self.verify(key, &inside)?;
        }
        Ok(complete(&parts[..count], copied))
    }
}

/// Returns the number of parts that the first `copied` bytes complete.
fn complete(parts: &[Part<'_>], copied: usize) -> usize {
    let mut left = copied;
    let is_complete = |part: &&Part<'_>| {
        let fits = part.local.len <= left;
        left = left.saturating_sub(part.local.len);
        fits
    };
    parts.iter().take_while(is_complete).count()
}
