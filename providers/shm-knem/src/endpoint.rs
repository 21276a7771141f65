//! The endpoint: put and get, with one driver call per batch of pieces.
//!
//! A copy first announces itself to the owner. It then checks the key's registration in the owner's table and the owner's process
//! in the kernel, and copies. The driver alone would copy from and to its pinned pages as long as the region exists. Only the table
//! and the process show that the region still is the *registered* one.
//!
//! If either side ends early, the driver ends the copy early and reports success. The provider therefore checks both lengths
//! before, and passes the limit to the driver, too.

use std::sync::Arc;

use tieline_memory_file::{Cursor, HeldByEndpoint, Inside, Piece};
use tieline_plugin_api::{Endpoint, Failure, Posted, Posting, RmaOp, Status};
use tieline_single_copy::{BATCH, Direction, TablePeer, admit};

use crate::keys::RemoteKey;
use crate::sys::{Kernel, Miss};

/// An endpoint to a peer process.
pub struct KnemEndpoint {
    kernel: Arc<dyn Kernel>,
    peer: TablePeer<3>,
    held: HeldByEndpoint,
}

impl KnemEndpoint {
    pub(crate) fn new(
        kernel: Arc<dyn Kernel>,
        peer: TablePeer<3>,
        held: HeldByEndpoint,
    ) -> KnemEndpoint {
        let endpoint = KnemEndpoint { kernel, peer, held };
        endpoint.tell();
        endpoint
    }

    /// Reports the size of the peer's current mappings.
    fn tell(&self) {
        self.held.set(self.peer.table.bytes() + self.peer.accessor.bytes());
    }

    #[cfg(test)]
    pub(crate) fn accessor(&self) -> &tieline_memory_file::Accessor {
        &self.peer.accessor
    }

    fn copy(&self, direction: Direction, key: &RemoteKey, op: &RmaOp<'_>) -> Posted {
        admit(op, direction.right(), key.access, key.len)?;
        let inside = self.peer.accessor.enter(key.place.generation);
        self.still_theirs(key, &inside)?;
        let mut cursor = Cursor::new(op.iov);
        let mut done = 0;
        while done < op.len {
            let mut room = [Piece::NONE; BATCH];
            let (pieces, bytes) = cursor.batch(&mut room, usize::MAX);
            let (offset, len) = (op.offset + done as u64, bytes as u64);
            self.kernel
                .copy(direction, pieces, key.cookie, offset, len)
                .map_err(|miss| self.why(key, miss, &inside))?;
            cursor.advance(bytes);
            done += bytes;
        }
        // A get is valid only if the region was registered after the last byte. Put and get both fail if the process has ended.
        self.still_theirs(key, &inside)?;
        Ok(Posting::Done)
    }

    /// Checks whether the key's registration and the owner's process are alive. The access must be announced.
    fn still_theirs(&self, key: &RemoteKey, _announced: &Inside<'_>) -> Result<(), Status> {
        if !self.peer.process.is_alive() {
            return Err(Status::PeerFailed);
        }
        if !self.peer.table.is_live(key.place) {
            return Err(Status::KeyRejected);
        }
        Ok(())
    }

    #[cold]
    fn why(&self, key: &RemoteKey, miss: Miss, announced: &Inside<'_>) -> Status {
        if let Err(status) = self.still_theirs(key, announced) {
            return status;
        }
        match miss {
            // The driver has no such region although the table has it: the owner's descriptor is closed, for example by exec.
            Miss::Call(libc::EINVAL) => Status::PeerFailed,
            Miss::Call(libc::EPERM | libc::EACCES | libc::ENOSYS | libc::ENODEV) => {
                Status::Unreachable
            }
            Miss::Call(libc::ENOMEM) => Status::NoMemory,
            // The target's pages are pinned, so the missing page is local.
            Miss::Call(libc::EFAULT) | Miss::Copy => Status::Invalid,
            Miss::Call(_) | Miss::Status(_) => Status::Io,
        }
    }
}

impl Endpoint for KnemEndpoint {
    type Key = RemoteKey;

    fn put(&self, key: &RemoteKey, op: &RmaOp<'_>) -> Posted {
        self.copy(Direction::Put, key, op)
    }

    fn get(&self, key: &RemoteKey, op: &RmaOp<'_>) -> Posted {
        self.copy(Direction::Get, key, op)
    }

    fn import_key(&self, bytes: &[u8]) -> Result<RemoteKey, Failure> {
        let key = RemoteKey::unpack(bytes, &self.peer.nonce, &self.peer.table);
        self.tell();
        key
    }
}
