//! The endpoint: put and get.
//!
//! A put reads the target's key-table entry, then writes. Later puts with the same key only check that the target has revoked nothing
//! since then, and is still the same process (`Accessor::is_unchanged`), which takes half the time. A get of a few pieces does both in one system call, with the entry
//! *after* the data. The get succeeds only if that entry, read last, still matches the key. After a failed get the contents of the
//! local buffer are undefined.
//!
//! A list of either kind copies adjacent parts on one region by one system call (`list.rs`).
//!
//! Each operation announces itself before it reads the entry; the announcement lasts until its last byte is copied. If the region
//! is revoked in between, the region's owner waits for the operation.

mod list;

use crate::keys::{IMAGE_LEN, RemoteKey};
use crate::probe::{self, Miss};
use crate::sys::{self, Errno};
use tieline_memory_file::{Accessor, Cursor, HeldByEndpoint, Inside, Piece};
use tieline_plugin_api::{Endpoint, Failure, ListOp, Posted, Posting, RmaOp, Status};
use tieline_single_copy::{Address, BATCH, Direction, MAX_IOV, admit};

/// The maximum number of local pieces of a get that is verified and copied in one call.
const FEW: usize = 7;

/// The limits of one system call. Tests lower them.
#[derive(Clone, Copy, Debug)]
struct Limits {
    bytes: usize,
    pieces: usize,
}

/// The kernel's limits: `MAX_RW_COUNT` with pages of 64 KiB, the lowest one, and `UIO_MAXIOV`.
const KERNEL: Limits = Limits { bytes: 0x7fff_0000, pieces: MAX_IOV as usize };

/// An endpoint to a peer process.
pub struct CmaEndpoint {
    peer: Address<0>,
    /// This side's place among the peer's accessors.
    accessor: Accessor,
    limits: Limits,
    _held: HeldByEndpoint,
}

impl CmaEndpoint {
    pub(crate) fn new(peer: Address<0>, accessor: Accessor, held: HeldByEndpoint) -> CmaEndpoint {
        held.set(accessor.bytes());
        CmaEndpoint { peer, accessor, limits: KERNEL, _held: held }
    }

    /// Validates the operation locally, and returns the remote address.
    #[inline]
    fn target(direction: Direction, key: &RemoteKey, op: &RmaOp<'_>) -> Result<u64, Status> {
        admit(op, direction.right(), key.access, key.len)?;
        Ok(key.base + op.offset)
    }

    /// Checks the key before a put. The access must be announced.
    fn admit_put(&self, key: &RemoteKey, announced: &Inside<'_>) -> Result<(), Status> {
        if self.accessor.is_unchanged(key.matched.get(), announced) {
            #[cfg(feature = "test-hooks")]
            crate::hooks::found_valid();
            return Ok(());
        }
        let revocations = self.accessor.revocations(announced);
        self.verify(key, announced)?;
        key.matched.set(revocations);
        Ok(())
    }

    /// Compares the target's table entry with the key. The access must be announced.
    fn verify(&self, key: &RemoteKey, _announced: &Inside<'_>) -> Result<(), Status> {
        let mut image = [0; IMAGE_LEN];
        match sys::read(self.peer.facts.pid, key.entry, &mut image) {
            Ok(()) if image == key.image => {
                #[cfg(feature = "test-hooks")]
                crate::hooks::found_valid();
                Ok(())
            }
            Ok(()) | Err(libc::EFAULT) => Err(self.mismatch()),
            Err(errno) => Err(status(errno)),
        }
    }

    /// Returns the status for a missing entry: the key is invalid, or the process is no longer the peer.
    #[cold]
    fn mismatch(&self) -> Status {
        match probe::check(&self.peer) {
            Ok(()) => Status::KeyRejected,
            Err(Miss::Gone | Miss::Stranger) => Status::PeerFailed,
            Err(Miss::Refused | Miss::Missing) => Status::Unreachable,
            Err(Miss::Other(errno)) => status(errno),
        }
    }

    /// Copies all pieces of an operation, in the number of calls that the limits require.
    fn copy(
        &self,
        direction: Direction,
        key: &RemoteKey,
        op: &RmaOp<'_>,
        target: u64,
        announced: &Inside<'_>,
    ) -> Result<(), Status> {
        let mut cursor = Cursor::new(op.iov);
        let mut done = 0;
        while done < op.len {
            let mut room = [Piece::NONE; BATCH];
            let room = &mut room[..BATCH.min(self.limits.pieces)];
            let (pieces, bytes) = cursor.batch(room, self.limits.bytes);
            let remote = sys::remote(target + done as u64, bytes);
            match sys::copy(direction, self.peer.facts.pid, pieces, &[remote]) {
                // A success without bytes cannot happen; it must not cause an endless loop.
                Ok(0) => return Err(Status::Io),
                Ok(copied) => {
                    cursor.advance(copied);
                    done += copied;
                }
                Err(libc::EFAULT) => {
                    let at = op.offset + done as u64;
                    return Err(self.fault(direction, key, pieces, remote, at, announced));
                }
                Err(errno) => return Err(status(errno)),
            }
        }
        Ok(())
    }

    /// Returns the status for an inaccessible page, local or remote. Reading the first page of the source decides; `at` is the
    /// offset in the region.
    #[cold]
    fn fault(
        &self,
        direction: Direction,
        key: &RemoteKey,
        local: &[Piece<'_>],
        remote: sys::Remote,
        at: u64,
        announced: &Inside<'_>,
    ) -> Status {
        if let Err(status) = self.verify(key, announced) {
            return status;
        }
        let first = local.iter().find(|piece| !piece.is_empty());
        let (pid, address) = match (direction, first) {
            (Direction::Put, Some(piece)) => (sys::own_pid(), piece.base().addr() as u64),
            _ => (self.peer.facts.pid, remote.address()),
        };
        let is_there = sys::read(pid, address, &mut [0]) != Err(libc::EFAULT);
        let local_is_missing = is_there != (direction == Direction::Put);
        if local_is_missing {
            return Status::Invalid;
        }
        tieline_plugin_api::explain(&format!(
            "its memory is missing or protected at offset {at} of the region"
        ));
        Status::Permission
    }
}

impl CmaEndpoint {
    fn put_one(&self, key: &RemoteKey, op: &RmaOp<'_>) -> Posted {
        let target = Self::target(Direction::Put, key, op)?;
        let inside = self.accessor.enter(key.generation);
        self.admit_put(key, &inside)?;
        self.copy(Direction::Put, key, op, target, &inside)?;
        Ok(Posting::Done)
    }

    fn get_one(&self, key: &RemoteKey, op: &RmaOp<'_>) -> Posted {
        let target = Self::target(Direction::Get, key, op)?;
        let inside = self.accessor.enter(key.generation);
        if op.iov.len() <= FEW && op.len <= self.limits.bytes - IMAGE_LEN {
            let mut image = [0u8; IMAGE_LEN];
            let mut local = [Piece::NONE; FEW + 1];
            for (to, piece) in local.iter_mut().zip(op.iov) {
                *to = piece.into();
            }
            local[op.iov.len()] = Piece::of(&mut image);
            let local = &local[..=op.iov.len()];
            let remote = [sys::remote(target, op.len), sys::remote(key.entry, IMAGE_LEN)];
            match sys::copy(Direction::Get, self.peer.facts.pid, local, &remote) {
                Ok(copied) if copied == op.len + IMAGE_LEN => {
                    return if image == key.image {
                        Ok(Posting::Done)
                    } else {
                        Err(self.mismatch())
                    };
                }
                // A short copy is also possible; the steps below determine its cause.
                Ok(_) | Err(libc::EFAULT) => {}
                Err(errno) => return Err(status(errno)),
            }
        }
        self.verify(key, &inside)?;
        self.copy(Direction::Get, key, op, target, &inside)?;
        // The data belongs to the region only if the region was still registered after the last byte.
        self.verify(key, &inside)?;
        Ok(Posting::Done)
    }
}

impl Endpoint for CmaEndpoint {
    type Key = RemoteKey;

    fn put(&self, key: &RemoteKey, op: &RmaOp<'_>) -> Posted {
        self.put_one(key, op)
    }

    fn get(&self, key: &RemoteKey, op: &RmaOp<'_>) -> Posted {
        self.get_one(key, op)
    }

    fn rma_list(&self, list: &ListOp<'_, RemoteKey>, taken: &mut usize) -> Posted {
        self.list(list, taken)
    }

    fn import_key(&self, bytes: &[u8]) -> Result<RemoteKey, Failure> {
        RemoteKey::unpack(bytes, &self.peer.nonce)
    }
}

/// Returns the operation's status for a system error.
fn status(errno: Errno) -> Status {
    match errno {
        libc::ESRCH => Status::PeerFailed,
        libc::EPERM | libc::EACCES | libc::ENOSYS => Status::Unreachable,
        libc::ENOMEM => Status::NoMemory,
        _ => Status::Io,
    }
}

#[cfg(test)]
mod list_tests;
#[cfg(test)]
mod tests;
