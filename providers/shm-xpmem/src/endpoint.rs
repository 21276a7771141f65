//! The endpoint: put and get, by the kernel, from and to what is attached.
//!
//! A load or a store to an attachment whose owner has unmapped the memory, or died, is a signal that ends this process. So
//! none is made here: the kernel copies, by `process_vm_readv` and `process_vm_writev` *of this process to itself*, whose local
//! side is the attachment, and says EFAULT instead. That is as true of a peer that is killed in the middle.
//!
//! A copy announces itself to the owner, asks the owner's table whether the key's registration lives, copies, and asks table and
//! process again: that no fault came is no proof that the owner was there, since pages that were brought in before may be kept.

use std::rc::Rc;
use std::sync::Arc;

use tieline_memory_file::{Cursor, Nonce, Piece};
use tieline_plugin_api::{Endpoint, Failure, Posted, Posting, RmaOp, Status, access};

use crate::attachments::Attachment;
use crate::device::Lease;
use crate::keys::RemoteKey;
use crate::probe::Peer;
use crate::sys::{self, Direction, Errno};

/// The kernel's `IOV_MAX`. Longer lists work, too; they take more calls, as these do.
pub(crate) const MAX_IOV: u32 = 1024;
/// Pieces of one call, put together on the stack.
const BATCH: usize = 64;

/// A peer process.
pub struct XpmemEndpoint {
    lease: Arc<Lease>,
    window: u64,
    peer: Peer,
    /// Its interface counts whom it leads to by this.
    _name: Rc<Nonce>,
}

impl XpmemEndpoint {
    pub(crate) fn new(
        lease: Arc<Lease>,
        window: u64,
        peer: Peer,
        name: Rc<Nonce>,
    ) -> XpmemEndpoint {
        lease.attachments.join(&peer.nonce);
        XpmemEndpoint { lease, window, peer, _name: name }
    }

    #[cfg(test)]
    pub(crate) fn accessor(&self) -> &tieline_memory_file::Accessor {
        &self.peer.accessor
    }

    /// Checks what can be checked here, and returns the owner's address.
    fn admit(direction: Direction, key: &RemoteKey, op: &RmaOp<'_>) -> Result<u64, Status> {
        let right = match direction {
            Direction::Put => access::REMOTE_WRITE,
            Direction::Get => access::REMOTE_READ,
        };
        let sum = op.iov.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.len));
        if sum != Some(op.len) {
            return Err(Status::Invalid);
        }
        if key.access & right == 0 {
            return Err(Status::KeyRejected);
        }
        key.address(op.offset, op.len)
    }

    fn copy(&self, direction: Direction, key: &RemoteKey, op: &RmaOp<'_>) -> Posted {
        let mut address = Self::admit(direction, key, op)?;
        let _inside = self.peer.accessor.enter(key.place.generation);
        if !key.is_live() {
            key.forget();
            return Err(Status::KeyRejected);
        }
        let mut cursor = Cursor::new(op.iov);
        let mut left = op.len;
        while left > 0 {
            let attached = self.attached(key, address, left < op.len)?;
            let (at, room) = attached.of(address).ok_or(Status::Io)?;
            let part = usize::try_from(room).unwrap_or(usize::MAX).min(left);
            self.copy_part(direction, key, &mut cursor, at, part)?;
            address += part as u64;
            left -= part;
        }
        // A get is of the region only if that was registered after the last byte, and neither is through if the process has ended.
        self.still_theirs(key)?;
        Ok(Posting::Done)
    }

    /// What is attached of the key's memory around `address`. `begun`: something of the operation is done.
    fn attached(
        &self,
        key: &RemoteKey,
        address: u64,
        begun: bool,
    ) -> Result<Arc<Attachment>, Status> {
        let attachments = &self.lease.attachments;
        let mut last = key.last.borrow_mut();
        if let Some(last) = last.upgrade().filter(|last| last.of(address).is_some()) {
            attachments.touch(&last);
            return Ok(last);
        }
        match attachments.attach(key.memory, address) {
            Ok(attached) => {
                *last = Arc::downgrade(&attached);
                Ok(attached)
            }
            Err(errno) => Err(self.not_attached(key, errno, begun)),
        }
    }

    /// Copies what lies in one attachment.
    fn copy_part(
        &self,
        direction: Direction,
        key: &RemoteKey,
        cursor: &mut Cursor<'_>,
        at: u64,
        len: usize,
    ) -> Result<(), Status> {
        let mut done = 0;
        while done < len {
            let mut room = [Piece::NONE; BATCH];
            let (pieces, bytes) = cursor.batch(&mut room, len - done);
            match self.lease.kernel.copy(direction, pieces, at + done as u64, bytes) {
                // Nothing copied and no error cannot happen; it must not become an endless loop.
                Ok(0) => return Err(Status::Io),
                Ok(copied) => {
                    cursor.advance(copied);
                    done += copied;
                }
                Err(errno) => return Err(self.not_copied(key, errno, pieces)),
            }
        }
        Ok(())
    }

    /// Whether the key's registration lives, and its process.
    fn still_theirs(&self, key: &RemoteKey) -> Result<(), Status> {
        if !self.peer.process.is_alive() {
            key.forget();
            return Err(Status::PeerFailed);
        }
        if !key.is_live() {
            key.forget();
            return Err(Status::KeyRejected);
        }
        Ok(())
    }

    #[cold]
    fn not_attached(&self, key: &RemoteKey, errno: Errno, begun: bool) -> Status {
        if let Err(status) = self.still_theirs(key) {
            return status;
        }
        match errno {
            // No more mappings or memory here: other ways need none. What has begun cannot be declined.
            libc::ENOMEM if !begun => Status::Declined,
            libc::ENOMEM => Status::NoMemory,
            // ENOENT: the module knows no such segment, though the table does: the owner has closed a descriptor of the
            // device, or called exec. 2004: this process has. The other ways need no device.
            libc::ENOENT | libc::EACCES | libc::EPERM | libc::EBUSY | sys::NOT_OPENED => {
                Status::Unreachable
            }
            // The segment is not as long as the table says.
            libc::EINVAL => Status::KeyRejected,
            _ => Status::Io,
        }
    }

    #[cold]
    fn not_copied(&self, key: &RemoteKey, errno: Errno, pieces: &[Piece]) -> Status {
        if let Err(status) = self.still_theirs(key) {
            return status;
        }
        match errno {
            // A page could not be reached: whose?
            libc::EFAULT if !sys::are_readable(pieces) => Status::Invalid,
            libc::EFAULT => {
                key.forget();
                match self.lease.kernel.get(key.memory.segment) {
                    // A hole: the owner has unmapped what it had registered.
                    Ok(permit) => {
                        let _ = self.lease.kernel.release(permit);
                        Status::OutOfRange
                    }
                    Err(errno) => self.not_attached(key, errno, true),
                }
            }
            libc::EPERM | libc::EACCES | libc::ENOSYS => Status::Unreachable,
            libc::ENOMEM => Status::NoMemory,
            _ => Status::Io,
        }
    }
}

impl Endpoint for XpmemEndpoint {
    type Key = RemoteKey;

    fn put(&self, key: &RemoteKey, op: &RmaOp<'_>) -> Posted {
        self.copy(Direction::Put, key, op)
    }

    fn get(&self, key: &RemoteKey, op: &RmaOp<'_>) -> Posted {
        self.copy(Direction::Get, key, op)
    }

    fn import_key(&self, bytes: &[u8]) -> Result<RemoteKey, Failure> {
        let owner = (&self.peer.nonce, self.peer.number, self.window);
        RemoteKey::unpack(bytes, owner, &self.peer.table, &self.lease)
    }
}

impl Drop for XpmemEndpoint {
    fn drop(&mut self) {
        if self.lease.is_own() {
            self.lease.attachments.leave(&self.peer.nonce);
        }
    }
}
