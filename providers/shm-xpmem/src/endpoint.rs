//! The endpoint: put and get between local and attached memory.
//!
//! If an owner has unmapped the memory or died, a load or store to its attachment may raise a signal that kills this process. By
//! default the provider therefore uses none: the kernel copies, by `process_vm_readv` and `process_vm_writev` *from this process to
//! itself*, with the attachment as the local side. The kernel then returns EFAULT, even if the peer is killed in the middle.
//! Afterwards such a copy checks table and process again. Without a fault the owner may still have ended, because pages that were
//! faulted in before may be kept.
//!
//! With `TIELINE_SHM_XPMEM_ACCESS=direct` the provider uses loads, stores and atomics without a system call. If the kernel can copy
//! between the two processes, and unless `TIELINE_SHM_XPMEM_COLD=serve` is set, cold memory is declined until warming it pays off
//! (`model.rs`).
//!
//! An attachment belonged to the owner when it was made (`card.rs`). If the owner calls exec afterwards, the pages belong to no
//! process. A kernel copy detects this if the kernel has removed the pages. Loads and stores cannot check without a call, and raise
//! SIGBUS on removed pages. Neither reaches memory of the new program.
//!
//! In both modes a put, get or atomic announces itself to the owner and then checks the key's registration in the owner's table.
//! Loads and stores by a pointer from `key_pointer` do not. The owner frees no memory while an announced access is in progress.

use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use tieline_memory_file::{Cursor, Inside, Nonce, Piece};
use tieline_plugin_api::abi::Atomic;
use tieline_plugin_api::{Endpoint, Failure, Posted, Posting, RmaOp, Status, access, atomic_op};
use tieline_single_copy::{BATCH, Direction, Errno, admit};

use crate::attachments::{Attachment, is_want_of_memory};
use crate::device::Lease;
use crate::keys::RemoteKey;
use crate::model::Costs;
use crate::probe::Peer;
use crate::settings::{Reach, Settings};
use crate::sys;

/// An endpoint to a peer process.
pub struct XpmemEndpoint {
    lease: Arc<Lease>,
    reach: Reach,
    page: u64,
    window: u64,
    /// The measured costs, if cold memory is declined.
    costs: Option<Costs>,
    peer: Peer,
    /// The owner's name. Through this reference the interface counts the owners that its endpoints reach.
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
        lease.attachments.join(&peer.theirs.nonce);
        let Settings { reach, page, window, .. } = *settings;
        XpmemEndpoint { lease, reach, page, window, costs, peer, _name: name }
    }

    #[cfg(test)]
    pub(crate) fn set_costs(&mut self, costs: Costs) {
        self.costs = Some(costs);
    }

    #[cfg(test)]
    pub(crate) fn accessor(&self) -> &tieline_memory_file::Accessor {
        &self.peer.theirs.accessor
    }

    /// Validates the operation locally, and returns the owner's address.
    fn admit(direction: Direction, key: &RemoteKey, op: &RmaOp<'_>) -> Result<u64, Status> {
        admit(op, direction.right(), key.access, key.memory.len)?;
        Ok(key.memory.base + op.offset)
    }

    /// Executes a put or get.
    fn access(&self, direction: Direction, key: &RemoteKey, op: &RmaOp<'_>) -> Posted {
        let mut address = Self::admit(direction, key, op)?;
        let inside = self.peer.theirs.accessor.enter(key.place.generation);
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
            // A get is valid only if the region was registered after the last byte. Put and get both fail if the process has
            // ended.
            Reach::Copy => self.still_theirs(key)?,
            Reach::Direct => self.is_valid(key, &inside)?,
        }
        Ok(Posting::Done)
    }

    /// Checks whether the key's registration is live, without a system call. The access must be announced.
    #[inline]
    fn is_valid(&self, key: &RemoteKey, _announced: &Inside<'_>) -> Result<(), Status> {
        if key.is_live() {
            return Ok(());
        }
        key.forget();
        Err(Status::KeyRejected)
    }

    /// Checks whether loads and stores are the best route: the memory is warm, or warming it pays off.
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

    /// Returns the attachment of the key's memory around `address`. `begun` states whether a part of the operation is done.
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

    /// Copies the part of an operation in one attachment. The error contains the number of bytes copied before.
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
                // A success without bytes cannot happen; it must not cause an endless loop.
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

    /// Checks whether the key's registration and the owner's process are alive.
    fn still_theirs(&self, key: &RemoteKey) -> Result<(), Status> {
        if !self.peer.theirs.process.is_alive() {
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
            // This process has no mappings or memory left; other lanes need none. An operation that has begun cannot be declined.
            errno if is_want_of_memory(errno) && !begun => Status::Declined,
            errno if is_want_of_memory(errno) => Status::NoMemory,
            // ENOENT: the module has no such segment although the table has it. The owner has closed a descriptor of the device
            // or called exec. 2004: this process has done so. Other lanes need no device.
            libc::ENOENT | libc::EACCES | libc::EPERM | libc::EBUSY | sys::NOT_OPENED => {
                Status::Unreachable
            }
            // The segment is shorter than the table says.
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
            // A page is inaccessible: the check finds out whether it is local or remote.
            libc::EFAULT if !sys::can_be_copied(direction, pieces) => Status::Invalid,
            libc::EFAULT => {
                key.forget();
                match self.lease.attachments.ask(key.memory) {
                    // The attachment has a hole: the owner has unmapped registered memory.
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

/// Reports the offset in the region if the status means missing memory, and returns the status.
#[cold]
fn missing(status: Status, at: u64) -> Status {
    if status == Status::Permission {
        tieline_plugin_api::explain(&format!("its memory is missing at offset {at} of the region"));
    }
    status
}

/// Copies between these pieces and contiguous attached memory.
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
        let inside = self.peer.theirs.accessor.enter(key.place.generation);
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
        let inside = self.peer.theirs.accessor.enter(key.place.generation);
        self.is_valid(key, &inside)?;
        if key.memory.len == 0 {
            return Ok(NonNull::dangling().as_ptr());
        }
        if !key.memory.is_all_of_its_segment(self.page) {
            let text = "the owner has more registrations than segments of their own (TIELINE_SHM_XPMEM_SEGMENTS there): a pointer \
                        would still lead to its memory after this region has ended";
            return Err(Failure::new(Status::Unsupported, text));
        }
        let at = key.pointer(address)?;
        Ok(core::ptr::with_exposed_provenance_mut(at as usize))
    }

    fn import_key(&self, bytes: &[u8]) -> Result<RemoteKey, Failure> {
        let owner = (&self.peer.theirs.nonce, self.peer.card, self.window);
        RemoteKey::unpack(bytes, owner, &self.peer.theirs.table, &self.lease)
    }
}

impl Drop for XpmemEndpoint {
    fn drop(&mut self) {
        if self.lease.is_own() {
            self.lease.attachments.leave(&self.peer.theirs.nonce);
        }
    }
}

#[cfg(test)]
mod tests;
