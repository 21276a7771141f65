//! The endpoint: put and get from and to what is attached.
//!
//! A load or a store to an attachment whose owner has unmapped the memory, or died, is a signal that ends this process. So
//! none is made here, unless the operator has asked for it: the kernel copies, by `process_vm_readv` and `process_vm_writev` *of
//! this process to itself*, whose local side is the attachment, and says EFAULT instead. That is as true of a peer that is killed in
//! the middle. Such a copy asks table and process again when it is through: that no fault came is no proof that the owner was
//! there, since pages that were brought in before may be kept.
//!
//! With `TIELINE_SHM_XPMEM_ACCESS=direct` it loads and stores, and does atomics, without a call. What is cold is declined for as long
//! as warming it does not pay (`model.rs`), where the kernel copies between the two processes.
//!
//! What is attached was the owner's when it was attached (`card.rs`). If the owner calls exec after that, its pages are nobody's: a
//! copy of the kernel's finds that out where the kernel has taken them away, and loads and stores, which cannot ask without a call, are
//! SIGBUS there; neither reaches memory of the program that came after it.
//!
//! Either way an access announces itself to the owner and then asks the owner's table whether the key's registration lives: the
//! owner frees no memory while somebody is inside.

use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use tieline_memory_file::{Cursor, Inside, Nonce, Piece};
use tieline_plugin_api::abi::Atomic;
use tieline_plugin_api::{Endpoint, Failure, Posted, Posting, RmaOp, Status, access, atomic_op};

use crate::attachments::{Attachment, is_want_of_memory};
use crate::device::Lease;
use crate::keys::RemoteKey;
use crate::model::Costs;
use crate::probe::Peer;
use crate::settings::{Reach, Settings};
use crate::sys::{self, Direction, Errno};

/// The kernel's `IOV_MAX`. Longer lists work, too; they take more calls, as these do.
pub(crate) const MAX_IOV: u32 = 1024;
/// Pieces of one call, put together on the stack.
const BATCH: usize = 64;

/// A peer process.
pub struct XpmemEndpoint {
    lease: Arc<Lease>,
    reach: Reach,
    page: u64,
    window: u64,
    /// What things cost, where cold memory is left to the lane behind.
    costs: Option<Costs>,
    peer: Peer,
    /// Its interface counts whom it leads to by this.
    _name: Rc<Nonce>,
}

impl XpmemEndpoint {
    pub(crate) fn new(
        lease: Arc<Lease>,
        settings: &Settings,
        costs: Option<Costs>,
        peer: Peer,
        name: Rc<Nonce>,
    ) -> XpmemEndpoint {
        lease.attachments.join(&peer.nonce);
        let Settings { reach, page, window, .. } = *settings;
        XpmemEndpoint { lease, reach, page, window, costs, peer, _name: name }
    }

    #[cfg(test)]
    pub(crate) fn set_costs(&mut self, costs: Costs) {
        self.costs = Some(costs);
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

    /// All of a put or get.
    fn access(&self, direction: Direction, key: &RemoteKey, op: &RmaOp<'_>) -> Posted {
        let mut address = Self::admit(direction, key, op)?;
        let inside = self.peer.accessor.enter(key.place.generation);
        self.is_valid(key, &inside)?;
        if let Some(costs) = self.costs {
            if !self.is_worth_it(&costs, key, address, op.len as u64) {
                return Err(Status::Declined);
            }
        }
        let mut cursor = Cursor::new(op.iov);
        let mut left = op.len;
        while left != 0 {
            let attached = self.attached(key, address, left < op.len)?;
            let (at, room) = attached.of(address).ok_or(Status::Io)?;
            let part = usize::try_from(room).unwrap_or(usize::MAX).min(left);
            self.move_part(direction, key, &mut cursor, at, part).map_err(|(status, moved)| {
                missing(status, op.offset + (op.len - left + moved) as u64)
            })?;
            address += part as u64;
            left -= part;
        }
        match self.reach {
            // A get is of the region only if that was registered after the last byte, and neither is through if the process has
            // ended.
            Reach::Copy => self.still_theirs(key)?,
            Reach::Direct => self.is_valid(key, &inside)?,
        }
        Ok(Posting::Done)
    }

    /// Whether the key's registration lives, for an access that was announced before: no call.
    #[inline]
    fn is_valid(&self, key: &RemoteKey, _announced: &Inside<'_>) -> Result<(), Status> {
        if key.is_live() {
            return Ok(());
        }
        key.forget();
        Err(Status::KeyRejected)
    }

    /// Whether loads and stores are the best way there: the memory is warm, or pays for being warmed.
    fn is_worth_it(&self, costs: &Costs, key: &RemoteKey, address: u64, len: u64) -> bool {
        if costs.leaves(len) {
            return false;
        }
        let last = key.last.borrow().upgrade();
        let whole = |one: &Arc<Attachment>| one.of(address).is_some_and(|(_, room)| room >= len);
        if last.is_some_and(|last| whole(&last)) {
            return true;
        }
        let cold = self.lease.attachments.cold(key.memory, address, len);
        cold.is_empty() || key.accounts.borrow_mut().pays(costs, &cold)
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

    /// Copies what lies in one attachment. The error says behind how many bytes.
    fn move_part(
        &self,
        direction: Direction,
        key: &RemoteKey,
        cursor: &mut Cursor<'_>,
        at: u64,
        len: usize,
    ) -> Result<(), (Status, usize)> {
        let mut done = 0;
        while done < len {
            let mut room = [Piece::NONE; BATCH];
            let (pieces, bytes) = cursor.batch(&mut room, len - done);
            let at = at + done as u64;
            let moved = match self.reach {
                Reach::Copy => self.lease.kernel.copy(direction, pieces, at, bytes),
                Reach::Direct => {
                    carry_all(direction, pieces, at);
                    Ok(bytes)
                }
            };
            match moved {
                // Nothing copied and no error cannot happen; it must not become an endless loop.
                Ok(0) => return Err((Status::Io, done)),
                Ok(moved) => {
                    cursor.advance(moved);
                    done += moved;
                }
                Err(errno) => return Err((self.not_copied(key, errno, direction, pieces), done)),
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
            errno if is_want_of_memory(errno) && !begun => Status::Declined,
            errno if is_want_of_memory(errno) => Status::NoMemory,
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
    fn not_copied(
        &self,
        key: &RemoteKey,
        errno: Errno,
        direction: Direction,
        pieces: &[Piece<'_>],
    ) -> Status {
        if let Err(status) = self.still_theirs(key) {
            return status;
        }
        match errno {
            // A page could not be reached: whose?
            libc::EFAULT if !sys::can_be_copied(direction, pieces) => Status::Invalid,
            libc::EFAULT => {
                key.forget();
                match self.lease.attachments.ask(key.memory) {
                    // A hole: the owner has unmapped what it had registered.
                    Ok(()) => Status::Permission,
                    Err(errno) => self.not_attached(key, errno, true),
                }
            }
            libc::EPERM | libc::EACCES | libc::ENOSYS => Status::Unreachable,
            libc::ENOMEM => Status::NoMemory,
            _ => Status::Io,
        }
    }
}

/// Says where in the region memory is missing, if that is what the status says.
#[cold]
fn missing(status: Status, at: u64) -> Status {
    if status == Status::Permission {
        tieline_plugin_api::explain(&format!("its memory is missing at offset {at} of the region"));
    }
    status
}

/// Copies between these pieces and what is attached there, one behind the other.
fn carry_all(direction: Direction, pieces: &[Piece<'_>], mut at: u64) {
    for piece in pieces {
        sys::carry(direction, *piece, at);
        at += piece.len() as u64;
    }
}

impl Endpoint for XpmemEndpoint {
    type Key = RemoteKey;

    fn put(&self, key: &RemoteKey, op: &RmaOp<'_>) -> Posted {
        self.access(Direction::Put, key, op)
    }

    fn get(&self, key: &RemoteKey, op: &RmaOp<'_>) -> Posted {
        self.access(Direction::Get, key, op)
    }

    fn atomic(&self, key: &RemoteKey, op: &Atomic, result: &mut u64) -> Posted {
        if self.reach == Reach::Copy || op.width != 4 && op.width != 8 || op.op > atomic_op::MAX {
            return Err(Status::Unsupported);
        }
        if key.access & access::REMOTE_ATOMIC == 0 {
            return Err(Status::KeyRejected);
        }
        let address = key.address(op.offset, op.width as usize)?;
        if address & u64::from(op.width - 1) != 0 {
            return Err(Status::Misaligned);
        }
        let inside = self.peer.accessor.enter(key.place.generation);
        self.is_valid(key, &inside)?;
        let attached = self.attached(key, address, true)?;
        let (at, _) = attached.of(address).ok_or(Status::Io)?;
        *result = sys::atomic(at, op);
        Ok(Posting::Done)
    }

    fn key_pointer(&self, key: &RemoteKey, offset: u64, len: u64) -> Result<*mut u8, Failure> {
        if self.reach == Reach::Copy {
            return Err(Status::Unsupported.into());
        }
        let both = access::REMOTE_READ | access::REMOTE_WRITE;
        if key.access & both != both {
            let text = "a pointer needs a key that grants reading and writing";
            return Err(Failure::new(Status::KeyRejected, text));
        }
        let address = key.address(offset, usize::try_from(len).map_err(|_| Status::OutOfRange)?)?;
        let inside = self.peer.accessor.enter(key.place.generation);
        self.is_valid(key, &inside)?;
        if key.memory.len == 0 {
            return Ok(NonNull::dangling().as_ptr());
        }
        if !key.memory.is_all_of_its_segment(self.page) {
            let text = "the owner has more registrations than segments of their own (TIELINE_SHM_XPMEM_SEGMENTS there): a pointer \
                        would go on to lead to its memory when this region has ended";
            return Err(Failure::new(Status::Unsupported, text));
        }
        let at = key.pointer(address)?;
        Ok(core::ptr::with_exposed_provenance_mut(at as usize))
    }

    fn import_key(&self, bytes: &[u8]) -> Result<RemoteKey, Failure> {
        let owner = (&self.peer.nonce, self.peer.card, self.window);
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

#[cfg(test)]
mod tests;
