//! Native puts and gets in their turn: over the lane that takes them, whole or piece by piece.

use super::Inner;
use super::key::ImportedKey;
use super::post::Posted;
use super::queued::{Failed, NativeOp};
use super::record::{RmaRecord, rma_op};
use crate::Status;
use crate::op::{Id, Memory};
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{caps, op_flags};

/// Pieces of one transfer that a provider has at once.
const PIECES_AT_ONCE: u16 = 64;

/// Whether a lane says by this status that it is finished, rather than what is wrong with the operation.
fn is_over(status: Status) -> bool {
    use Status::*;
    matches!(status, PeerFailed | TimedOut | Unreachable | NoDevice | Io | Closed | ProviderFailed)
}

impl Inner {
    /// Posts a queued native operation with its request. A lane that refuses it because it is finished gives way to
    /// the next one to that memory: nothing was posted. What had been posted on it has failed and is not done again
    /// here: its device, or the network, may still carry it out. A lane that declines gives way too, for what is not
    /// posted of this operation, and serves the next one again.
    pub(crate) fn attempt_native(&self, op: &mut NativeOp) -> Result<bool, Failed> {
        loop {
            let Some(native) = op.key.lane_now(op.rank, op.declined) else {
                return if op.key.forming(op.declined).is_some() {
                    Ok(false)
                } else {
                    self.emulate_instead(op).map_err(Failed::by_nobody)
                };
            };
            let ways = self.ways_posted();
            if !self.may_leave(op.request, op.fenced, native.bit()) {
                return Ok(false);
            }
            let begun = op.posted;
            match self.post_native(op, &native) {
                Err(Failed { status: Status::Declined, .. }) => {
                    op.declined |= native.mark();
                    if op.posted == begun {
                        self.went_nowhere(ways);
                    }
                }
                Err(failed)
                    if is_over(failed.status) && begun == 0 && op.key.has_another(&native) =>
                {
                    if failed.status == Status::ProviderFailed {
                        self.worker.provider_failed(native.interface);
                    }
                    // Where the messages went through it the endpoint has ended, and everything with it.
                    if !self.is_alive() {
                        return Err(failed);
                    }
                    op.key.downgrade(&native, failed.status);
                }
                result => return result,
            }
        }
    }

    /// Posts as much of it as the provider takes: all at once, or piece by piece where it takes no more.
    fn post_native(&self, op: &mut NativeOp, native: &ImportedKey) -> Result<bool, Failed> {
        let most = native.most(op.put);
        if op.posted == 0 && op.len <= most {
            return match self.post_piece(op, native, op.request, op.len)? {
                Posted::Done(_) => {
                    self.shared.part(op.request, Ok(0));
                    Ok(true)
                }
                Posted::Pending => Ok(true),
                Posted::NoRoom => Ok(false),
            };
        }
        while op.posted < op.len {
            if self.shared.ops.borrow().parts(op.request) > PIECES_AT_ONCE {
                return Ok(false);
            }
            let len = most.min(op.len - op.posted);
            let memory = op.memory.clone();
            let piece = self.open_native(Some(op.request), memory, op.at + op.posted, len);
            let piece = piece.map_err(Failed::by_nobody)?;
            let posted = self.post_piece(op, native, piece, len);
            match self.or_withdrawn(piece, posted)? {
                Posted::Done(_) | Posted::Pending => op.posted += len,
                Posted::NoRoom => return Ok(false),
            }
        }
        self.shared.part(op.request, Ok(0));
        Ok(true)
    }

    /// Posts the next `len` bytes as the operation `id`.
    fn post_piece(
        &self,
        op: &NativeOp,
        native: &ImportedKey,
        id: Id,
        len: usize,
    ) -> Result<Posted, Failed> {
        let iov = self.piece(native, &op.memory, op.at + op.posted, len);
        let iov = iov.map_err(Failed::by_nobody)?;
        let offset = op.offset + op.posted as u64;
        let record = rma_op(&iov, native.key, offset, id.raw(), op.completion);
        self.post_record(native, op.put, id, &record)
    }

    /// A range of local memory for a provider, with the registration that it lies in where the provider wants to know that.
    #[inline]
    pub(super) fn piece(
        &self,
        native: &ImportedKey,
        memory: &Memory,
        at: usize,
        len: usize,
    ) -> Result<Iov, Status> {
        let mut piece = Iov::new(memory.at(at, len)?, len);
        if native.caps & caps::TAKES_REGIONS != 0 && !native.synchronous {
            let interface = &self.shared.interfaces[native.interface].interface;
            if let Memory::Region(region) = memory {
                let mut known = region.inner.registrations.iter();
                let known = known.find_map(|registration| interface.region(&registration.memory));
                piece.region = known.unwrap_or(std::ptr::null_mut());
            }
        }
        Ok(piece)
    }

    #[inline]
    pub(super) fn post_record(
        &self,
        native: &ImportedKey,
        put: bool,
        id: Id,
        record: &RmaRecord<'_>,
    ) -> Result<Posted, Failed> {
        let posted = self.posted(id, native.interface, native.post(put, record), 0)?;
        // The lane that it is posted to, which need not be the one that it was queued for.
        if !matches!(posted, Posted::NoRoom) && record.flags & op_flags::REMOTE_COMPLETION == 0 {
            self.note_local(native.rank);
        }
        Ok(posted)
    }
}
