//! Queued native puts and gets: posted on the lane that accepts them, whole or piece by piece.

use super::EndpointState;
use super::key::ImportedKey;
use super::post::{Posted, Transfer};
use super::queued::{Failed, NativeOp, QueuedOp};
use super::record::{Completion, RmaRecord, rma_list_op, rma_op};
use crate::Status;
use crate::mem::local::Memory;
use crate::mem::pieces::Pieces;
use crate::region::Region;
use std::ffi::c_void;
use tieline_order::{Id, Kind, way};
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{OK, caps, op_flags};

/// The maximum number of pieces of one transfer that a provider has at a time.
const PIECES_AT_ONCE: u16 = 64;

/// Checks whether this status means that the lane has ended, rather than that the operation is wrong.
fn is_over(status: Status) -> bool {
    use Status::*;
    matches!(status, PeerFailed | TimedOut | Unreachable | NoDevice | Io | Closed | ProviderFailed)
}

/// Checks whether only the lane's connection has ended, rather than the whole provider or this operation alone.
fn ends_alone(status: Status) -> bool {
    is_over(status) && status != Status::ProviderFailed
}

impl EndpointState {
    /// Checks whether the end of a lane leaves the message lane usable: messages use another interface, and the lane does not
    /// complete within the call. An error of a lane that completes within the call would mean that the peer is gone.
    fn is_beside_messages(&self, native: &ImportedKey) -> bool {
        let message = self.route.message();
        !native.synchronous && message.is_some_and(|pair| pair.interface != native.interface)
    }

    /// Posts a queued native operation. If a lane has ended and refuses the first part that it gets, the next lane to that memory
    /// is used. Without another lane, the operation is emulated if only that connection has ended. If the lane refuses a later
    /// part, the operation fails: the earlier parts are not repeated, because the device or the network may still execute them. A
    /// lane that declines is also skipped, for the rest of this operation only. A provider that broke its contract may have
    /// notified the target, so no other lane notifies it again.
    pub(crate) fn attempt_native(&self, op: &mut NativeOp) -> Result<bool, Failed> {
        loop {
            let Some(native) = op.key.lane_now(op.rank, op.declined) else {
                return if op.key.forming(op.declined).is_some() {
                    Ok(false)
                } else if op.notify.is_some() {
                    self.notify_behind_put(op).map_err(Failed::by_nobody)
                } else {
                    self.emulate_instead(op).map(|()| false).map_err(Failed::by_nobody)
                };
            };
            if op.notify.is_some_and(|word| !self.tells(&native, op, word)) {
                return self.notify_behind_put(op).map_err(Failed::by_nobody);
            }
            let ways = self.order.posted();
            if !self.may_leave(op.request, op.fenced, native.bit()) {
                return Ok(false);
            }
            let begun = op.posted;
            match self.post_native(op, &native) {
                Err(Failed { status: Status::Declined, .. }) => {
                    op.declined |= native.mark();
                    op.taken = op.posted;
                    if op.posted == begun {
                        self.order.restore_posted(ways);
                    }
                    if self.asks_before_leaving(op).map_err(Failed::by_nobody)? {
                        return Ok(true);
                    }
                }
                Err(failed)
                    if is_over(failed.status)
                        && begun == op.taken
                        && op.key.has_another(&native)
                        && !(op.notify.is_some() && failed.status == Status::ProviderFailed) =>
                {
                    if failed.status == Status::ProviderFailed {
                        self.worker.provider_failed(native.interface);
                    }
                    // If the endpoint's messages used this lane, the endpoint has ended with all its operations.
                    if !self.is_alive() {
                        return Err(failed);
                    }
                    op.key.downgrade(&native, failed.status);
                }
                // Only operations on that connection end; messages continue.
                Err(failed) if ends_alone(failed.status) && self.is_beside_messages(&native) => {
                    op.key.downgrade(&native, failed.status);
                    if op.posted > op.taken {
                        let error = self.failure_over(failed.status, failed.interface);
                        self.shared.part(op.request, Err(error));
                        return Ok(true);
                    }
                }
                result => return result,
            }
        }
    }

    /// Handles an operation that is about to leave the lane on which an earlier fence relies, if the table lacks locally completed
    /// operations on that lane. The operation then waits for a flush of that lane, a new flush or one in progress. `false`: there
    /// are no such operations.
    fn asks_before_leaving(&self, op: &NativeOp) -> Result<bool, Status> {
        if op.fenced == 0 {
            return Ok(false);
        }
        let lanes = op.fenced & self.order.unflushed();
        let asked = self.shared.ops.borrow().open_asks(self.index, op.fenced);
        if lanes == 0 && asked.is_empty() {
            return Ok(false);
        }
        let request = self.shared.ops.borrow_mut().open_late(self.index, Kind::Flush)?;
        asked.into_iter().for_each(|ask| self.shared.ops.borrow_mut().then(ask, request));
        self.put_first(QueuedOp::Native(op.again()));
        self.put_first(QueuedOp::Barrier { request });
        self.put_first(QueuedOp::FlushLanes { request, lanes });
        Ok(true)
    }

    /// Posts the bytes of an operation that the provider accepts: in one provider operation, or piece by piece if the operation is
    /// too long or has too many pieces.
    fn post_native(&self, op: &mut NativeOp, native: &ImportedKey) -> Result<bool, Failed> {
        let most = native.most(op.put);
        let next = |op: &NativeOp| {
            let len = most.min(op.len - op.posted);
            op.memory.within(op.at + op.posted, len, native.max_iov)
        };
        if op.posted == 0 && next(op) == op.len {
            return match self.post_piece(op, native, op.request, op.len, false)? {
                Posted::Done(_) => {
                    self.shared.part(op.request, Ok(0));
                    Ok(true)
                }
                Posted::Pending => Ok(true),
                Posted::NoRoom => Ok(false),
            };
        }
        while op.posted < op.len {
            let parts = self.shared.ops.borrow().parts(op.request);
            if parts > PIECES_AT_ONCE {
                return Ok(false);
            }
            let len = next(op);
            // No further piece follows when the provider has the maximum number of pieces.
            let more = op.posted + len < op.len && parts < PIECES_AT_ONCE;
            let memory = op.memory.clone();
            let piece = self.open_native(Some(op.request), memory, op.at + op.posted, len);
            let piece = piece.map_err(Failed::by_nobody)?;
            let posted = self.post_piece(op, native, piece, len, more);
            match self.or_withdrawn(piece, posted)? {
                Posted::Done(_) | Posted::Pending => op.posted += len,
                Posted::NoRoom => return Ok(false),
            }
        }
        self.shared.part(op.request, Ok(0));
        Ok(true)
    }

    /// Posts the next `len` bytes as the operation `id`; `more`: further pieces follow immediately.
    fn post_piece(
        &self,
        op: &NativeOp,
        native: &ImportedKey,
        id: Id,
        len: usize,
        more: bool,
    ) -> Result<Posted, Failed> {
        let (at, offset) = (op.at + op.posted, op.offset + op.posted as u64);
        if let Memory::Pieces(pieces) = &op.memory {
            let mut iov = self.shared.iov.take();
            let takes = (native.caps, native.interface);
            let listed = self.list(takes, pieces, at, len, &mut iov);
            let record = rma_list_op(&iov, len, native.key, offset, id.raw(), op.completion);
            let record = record.followed(more);
            let posted = listed
                .map_err(Failed::by_nobody)
                .and_then(|()| self.post_record(native, id, &record, native.post_op(op, &record)));
            self.shared.iov.set(iov);
            return posted;
        }
        let iov = self.piece(native, &op.memory, at, len);
        let iov = iov.map_err(Failed::by_nobody)?;
        let record = rma_op(&iov, native.key, offset, id.raw(), op.completion);
        let record = record.followed(more);
        self.post_record(native, id, &record, native.post_op(op, &record))
    }

    /// Returns a range of local memory for a provider, with its registration if the provider needs that.
    #[inline]
    pub(super) fn piece(
        &self,
        native: &ImportedKey,
        memory: &Memory,
        at: usize,
        len: usize,
    ) -> Result<Iov, Status> {
        let mut piece = Iov::new(memory.at(at, len)?, len);
        if let Memory::Region(region) = memory {
            piece.region = self.registration(native.caps, native.interface, region);
        }
        Ok(piece)
    }

    /// Returns the registration of a region if the provider needs it, or null.
    #[inline]
    pub(super) fn registration(&self, caps: u64, interface: usize, region: &Region) -> *mut c_void {
        if caps & (caps::TAKES_REGIONS | caps::SYNCHRONOUS) != caps::TAKES_REGIONS {
            return std::ptr::null_mut();
        }
        let interface = &self.shared.interfaces[interface].interface;
        let mut known = region.inner.registrations.iter();
        let known = known.find_map(|registration| interface.region(&registration.memory));
        known.unwrap_or(std::ptr::null_mut())
    }

    /// Fills the list of pieces of a range for a provider, with their registrations if the provider needs these.
    pub(super) fn list(
        &self,
        (caps, interface): (u64, usize),
        pieces: &Pieces,
        at: usize,
        len: usize,
        iov: &mut Vec<Iov>,
    ) -> Result<(), Status> {
        iov.clear();
        pieces.parts(at, len).try_for_each(|(region, at, len)| {
            let mut piece = Iov::new(region.inner.span.range(at, len)?, len);
            piece.region = self.registration(caps, interface, region);
            iov.push(piece);
            Ok(())
        })
    }

    /// Posts pieces to a synchronous module, in calls of at most the number of pieces that it accepts; see
    /// [`EndpointState::post_at_once`].
    pub(super) fn list_at_once(
        &self,
        transfer: &Transfer<'_>,
        pieces: &Pieces,
        native: &ImportedKey,
        done: &mut usize,
    ) -> Result<(), Status> {
        let &Transfer { put, at, len, offset, .. } = transfer;
        while *done < len {
            let at = at + *done;
            let n = pieces.within(at, native.most(put).min(len - *done), native.max_iov);
            let mut iov = self.shared.iov.take();
            let takes = (native.caps, native.interface);
            let listed = self.list(takes, pieces, at, n, &mut iov);
            let (offset, remote) = (offset + *done as u64, Completion::Remote);
            let op = rma_list_op(&iov, n, native.key, offset, 0, remote);
            let code = listed.map(|()| native.post(put, &op));
            self.shared.iov.set(iov);
            match code? {
                OK => *done += n,
                code => return Err(Status::from_code(code)),
            }
        }
        Ok(())
    }

    /// Returns the state of a put or get after its provider's answer.
    #[inline]
    pub(super) fn post_record(
        &self,
        native: &ImportedKey,
        id: Id,
        record: &RmaRecord<'_>,
        code: i32,
    ) -> Result<Posted, Failed> {
        let posted = self.posted(id, native.interface, code, 0)?;
        // The put was posted on this lane, which may differ from the lane for which it was queued.
        if !matches!(posted, Posted::NoRoom) && record.flags & op_flags::REMOTE_COMPLETION == 0 {
            self.order.note_local(way::lane(native.rank));
        }
        Ok(posted)
    }
}

impl ImportedKey {
    /// Posts a part of an operation, with its notification.
    fn post_op(&self, op: &NativeOp, record: &RmaRecord<'_>) -> i32 {
        match op.notify {
            None => self.post(op.put, record),
            Some(word) => self.post_notify(record, word),
        }
    }
}
