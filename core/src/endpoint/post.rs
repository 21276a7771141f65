//! Posting puts and gets that did not take the fast path: natively, over several rails, or after queued operations.

use super::key::{ImportedKey, RemoteKey};
use super::queued::{Failed, NativeOp, QueuedOp};
use super::record::{Completion, rma_op};
use super::{EndpointState, State};
use crate::mem::local::{LocalBuffer, Memory};
use crate::mem::pieces::Pieces;
use crate::op::{Id, Kind, way};
use crate::region::{Access, Region};
use crate::registry::abi::PackBuffer;
use crate::request::Outcome;
use crate::{Error, PostError, Status};
use std::ops::Range;
use std::rc::Rc;
use tieline_plugin_api::abi::Iov;
use tieline_plugin_api::{OK, PENDING};

/// The local memory of a put or get, borrowed from the caller.
#[derive(Clone, Copy)]
pub(super) enum Local<'a> {
    Region(&'a Region),
    /// The bytes of the caller, copied if the operation outlives the call.
    Bytes(&'a [u8]),
    /// Several pieces, in sequence.
    Pieces(&'a Rc<Pieces>),
}

impl Local<'_> {
    /// Appends a range to a message.
    pub(super) fn pack(
        &self,
        at: usize,
        len: usize,
        out: &mut PackBuffer<'_>,
    ) -> Result<(), Status> {
        match self {
            Local::Region(region) => out.put_span(&region.inner.span, at, len),
            Local::Bytes(bytes) => out.put(&bytes[at..at + len]),
            Local::Pieces(pieces) => pieces.pack(at, len, out),
        }
    }

    /// Returns the region, if the memory is in one.
    #[inline]
    pub(super) fn region(&self) -> Option<&Region> {
        match self {
            Local::Region(region) => Some(region),
            Local::Bytes(_) | Local::Pieces(_) => None,
        }
    }

    /// Returns the bytes of `queue_bytes` that the local memory takes while the operation waits.
    fn room(&self) -> usize {
        match self {
            Local::Region(_) => 0,
            Local::Bytes(bytes) => bytes.len(),
            Local::Pieces(pieces) => pieces.size(),
        }
    }
}

/// The arguments of a put or get.
pub(super) struct Transfer<'a> {
    pub(super) put: bool,
    pub(super) local: Local<'a>,
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) key: &'a RemoteKey,
    pub(super) offset: u64,
    pub(super) completion: Completion,
}

impl Transfer<'_> {
    /// Checks whether the transfer may be sent as a message although a lane reaches the memory. The length of an empty transfer
    /// wraps around, so it is never small.
    #[inline]
    pub(super) fn is_small(&self) -> bool {
        self.len.wrapping_sub(1) < self.key.inner.small.get()
    }

    /// Returns the right that the transfer needs.
    #[inline]
    pub(super) fn needed(&self) -> Access {
        if self.put { Access::WRITE } else { Access::READ }
    }

    /// Returns the rest of the transfer after the first `done` bytes.
    fn rest(&self, done: usize) -> Transfer<'_> {
        let (at, local) = match self.local {
            Local::Region(_) | Local::Pieces(_) => (self.at + done, self.local),
            Local::Bytes(bytes) => (self.at, Local::Bytes(&bytes[done..])),
        };
        let (len, offset) = (self.len - done, self.offset + done as u64);
        Transfer { at, local, len, offset, ..*self }
    }

    /// Returns the part of a transfer that is posted as the operation `request`, for the lane of this rank.
    pub(super) fn part(
        &self,
        memory: Memory,
        request: Id,
        rank: usize,
        part: Range<usize>,
    ) -> NativeOp {
        NativeOp {
            put: self.put,
            memory,
            at: self.at + part.start,
            len: part.len(),
            key: self.key.inner.clone(),
            offset: self.offset + part.start as u64,
            completion: self.completion,
            request,
            rank,
            fenced: 0,
            posted: 0,
            taken: 0,
            declined: 0,
            begun: false,
            notify: None,
        }
    }
}

/// The state of an operation after it was posted to a provider.
pub(crate) enum Posted {
    /// The operation is complete, with this value.
    Done(u64),
    Pending,
    NoRoom,
}

impl EndpointState {
    /// Checks whether memory operations may be posted now rather than queued: the endpoint is ready, or it is not connected for
    /// messages yet and nothing is queued.
    #[inline(always)]
    pub(super) fn may_post_memory(&self) -> bool {
        let is_idle = || self.queue.try_borrow().is_ok_and(|queue| queue.is_empty());
        let state = self.state.get();
        state == State::Ready || (state == State::New && is_idle())
    }

    /// Checks [`Self::may_post_memory`], and that the calling process made the endpoint.
    #[inline(always)]
    pub(super) fn may_try_memory(&self) -> bool {
        self.may_post_memory() && self.shared.same_process()
    }

    /// Posts a put or get that did not take the fast path, or failed there with `code`.
    #[inline(never)]
    pub(super) fn post_transfer(
        self: &Rc<Self>,
        transfer: &Transfer<'_>,
        code: i32,
    ) -> Result<Outcome, PostError> {
        let code = match code {
            OK => match self.post_direct(transfer) {
                Ok(outcome) => return Ok(outcome),
                Err(code) => code,
            },
            code => code,
        };
        self.check_fast_path(transfer.key, code)?;
        let best = transfer.key.inner.best.get();
        let declined = match best.filter(|_| code == Status::Declined as i32) {
            Some(native) => native.mark(),
            None => 0,
        };
        let access = (transfer.needed(), transfer.offset, transfer.len);
        self.prepare(transfer.key, transfer.local.region(), access)?;
        if transfer.is_small() {
            if let Some(outcome) = self.post_small(transfer, None)? {
                return Ok(outcome);
            }
        }
        let refused = |error| self.refused::<Error>(error);
        if let Some(outcome) = self.try_native(transfer, declined).map_err(refused)? {
            return Ok(outcome);
        }
        self.emulate_transfer(transfer).map_err(refused)
    }

    /// Posts a put of bytes in any memory that did not take the fast path, or failed there with `code`. The transfer is built in
    /// this function, so that it costs the fast path nothing.
    #[cold]
    #[inline(never)]
    pub(super) fn post_bytes(
        self: &Rc<Self>,
        data: &[u8],
        key: &RemoteKey,
        offset: u64,
        code: i32,
    ) -> Result<Outcome, PostError> {
        let (local, len, completion) = (Local::Bytes(data), data.len(), Completion::Remote);
        self.post_transfer(
            &Transfer { put: true, local, at: 0, len, key, offset, completion },
            code,
        )
    }

    /// Holds the memory of a transfer that outlives the call. `Again`: the bytes would have to be copied, or the list of pieces
    /// kept, and the endpoint's limit is reached.
    pub(super) fn hold_memory(&self, transfer: &Transfer<'_>) -> Result<Memory, Status> {
        match transfer.local {
            Local::Region(region) => Ok(Memory::Region(region.hold())),
            Local::Bytes(bytes) if self.has_room(bytes.len()) => Ok(Memory::Bytes(bytes.into())),
            Local::Pieces(pieces) if self.has_room(pieces.size()) => {
                Ok(Memory::Pieces(pieces.clone()))
            }
            Local::Bytes(_) | Local::Pieces(_) => Err(Status::Again),
        }
    }

    /// Opens a native operation, or a part of another one. The operation holds its memory.
    #[inline]
    pub(super) fn open_native(
        &self,
        of: Option<Id>,
        memory: Memory,
        at: usize,
        len: usize,
    ) -> Result<Id, Status> {
        let mut ops = self.shared.ops.borrow_mut();
        let id = match of {
            Some(of) => ops.open_part(of, self.index, Kind::Native)?,
            None => ops.open(self.index, Kind::Native)?,
        };
        ops.set_local_buffer(id, LocalBuffer::held(memory, at, len));
        Ok(id)
    }

    /// Returns the state of the operation `id` after its provider's answer.
    #[inline]
    pub(crate) fn posted(
        &self,
        id: Id,
        interface: usize,
        code: i32,
        value: u64,
    ) -> Result<Posted, Failed> {
        match code {
            OK => Ok(Posted::Done(value)),
            PENDING => {
                self.shared.ops.borrow_mut().posted(id, interface);
                Ok(Posted::Pending)
            }
            code => match Status::from_code(code) {
                Status::Again => Ok(Posted::NoRoom),
                status => Err(Failed::by(interface, status)),
            },
        }
    }

    /// Handles the result of an operation that was opened to be posted immediately: unless it is pending, it is removed.
    #[inline]
    pub(crate) fn or_withdrawn(
        &self,
        id: Id,
        posted: Result<Posted, Failed>,
    ) -> Result<Posted, Failed> {
        if !matches!(posted, Ok(Posted::Pending)) {
            self.shared.with_ops(|ops| ops.withdraw(id));
        }
        posted
    }

    /// Posts natively, splits the transfer, shares the work with the peer, or queues the transfer. `None`: no lane to the memory is
    /// left, and nothing was transferred.
    fn try_native(
        self: &Rc<Self>,
        transfer: &Transfer<'_>,
        mut declined: u64,
    ) -> Result<Option<Outcome>, Error> {
        let &Transfer { put, len, key, .. } = transfer;
        // Whether bytes of the transfer may have been written or read although it restarts from its beginning.
        let mut begun = false;
        let ways = self.order.posted();
        while let Some(native) = key.inner.next(declined) {
            if native.synchronous && self.may_post_memory() && self.may_go(way::AT_ONCE) {
                if let Local::Region(local) = transfer.local {
                    match self.share_copy(transfer, local, &native, declined) {
                        Some(Err(error)) if error.status() == Status::Unreachable => {
                            begun = true;
                            key.inner.downgrade(&native, Status::Unreachable);
                            continue;
                        }
                        Some(Err(error)) if error.status() == Status::Declined => {
                            begun = true;
                            declined |= native.mark();
                            continue;
                        }
                        // The failed attempt may have written some bytes.
                        Some(Err(error)) if error.status() == Status::Again => {
                            return self
                                .post_in_turn(transfer, native.rank, declined, true)
                                .map(Some);
                        }
                        Some(outcome) => return outcome.map(Some),
                        None => {}
                    }
                }
                // The limit is checked first: otherwise the call would have to return `Again` after some bytes were written.
                let cut = len > native.most(put) || matches!(transfer.local, Local::Pieces(_));
                if cut && !self.has_room(transfer.local.room()) {
                    return Err(Status::Again.into());
                }
                let mut done = 0;
                let posted = self.transfer_at_once(transfer, &native, &mut done);
                begun |= done > 0;
                match posted {
                    Ok(()) => {
                        // The transfer is complete. Preparing a shared copy may have called the application, which may have posted
                        // operations.
                        if len < self.shared.core.assist_size {
                            self.order.restore_posted(ways);
                        }
                        return Ok(Some(Outcome::Done(0)));
                    }
                    Err(Status::Unreachable) => {
                        key.inner.downgrade(&native, Status::Unreachable);
                        continue;
                    }
                    Err(Status::Declined) => {
                        declined |= native.mark();
                        if done == 0 {
                            continue;
                        }
                        // The limit of the queue was checked above.
                        return self
                            .post_in_turn(&transfer.rest(done), native.rank, declined, true)
                            .map(Some);
                    }
                    Err(Status::Again) => {}
                    Err(status) => return Err(self.memory_failure(&native, key, status)),
                }
            }
            if native.synchronous || len < super::rails::SHARED_FROM {
                return self.post_in_turn(transfer, native.rank, declined, begun).map(Some);
            }
            return self.post_shared(transfer, &native, declined).map(Some);
        }
        match key.inner.forming(declined) {
            Some(rank) => self.post_in_turn(transfer, rank, declined, begun).map(Some),
            // An operation that may have begun is queued as such, so that it cannot be canceled as one that has not begun.
            None if begun => self.post_in_turn(transfer, 0, declined, true).map(Some),
            None => Ok(None),
        }
    }

    /// Posts a transfer after queued operations, and after the connection that it uses has formed; see
    /// [`EndpointState::attempt_native`].
    fn post_in_turn(
        self: &Rc<Self>,
        transfer: &Transfer<'_>,
        rank: usize,
        declined: u64,
        begun: bool,
    ) -> Result<Outcome, Error> {
        let memory = self.hold_memory(transfer)?;
        let _ = self.may_go(way::lane(rank));
        let request = self.open_native(None, memory.clone(), transfer.at, transfer.len)?;
        let whole = transfer.part(memory, request, rank, 0..transfer.len);
        self.post_native_op(NativeOp { declined, begun, ..whole });
        self.outcome(request)
    }

    /// Posts a native operation after queued ones; see [`EndpointState::may_go`].
    pub(super) fn post_native_op(&self, op: NativeOp) {
        self.post(QueuedOp::Native(NativeOp { fenced: self.order.fenced(), ..op }));
    }

    /// Posts a transfer over its rails (see [`KeyInner::rails`](super::key::KeyInner::rails)), or over one lane if there is a
    /// single rail.
    fn post_shared(
        self: &Rc<Self>,
        transfer: &Transfer<'_>,
        native: &ImportedKey,
        declined: u64,
    ) -> Result<Outcome, Error> {
        let rails = transfer.key.inner.rails(native, transfer.offset, transfer.len);
        if let [_] = rails[..] {
            return self.post_in_turn(transfer, native.rank, declined, false);
        }
        let memory = self.hold_memory(transfer)?;
        let _ = self.may_go(rails.iter().fold(0, |ways, (rank, _)| ways | way::lane(*rank)));
        let whole = self.open(Kind::Whole)?;
        let mut from = 0;
        for (rank, len) in rails {
            match self.open_native(Some(whole), memory.clone(), transfer.at + from, len) {
                Ok(share) => {
                    let part = from..from + len;
                    let part = transfer.part(memory.clone(), share, rank, part);
                    self.post_native_op(NativeOp { declined, ..part });
                }
                Err(status) => {
                    self.shared.ops.borrow_mut().spoil(whole, status.into());
                }
            }
            from += len;
        }
        self.shared.part(whole, Ok(0));
        self.outcome(whole)
    }

    /// Posts one transfer to a synchronous module; see [`EndpointState::post_at_once`].
    fn transfer_at_once(
        &self,
        transfer: &Transfer<'_>,
        native: &ImportedKey,
        done: &mut usize,
    ) -> Result<(), Status> {
        let &Transfer { put, local, at, len, offset, .. } = transfer;
        let base = match local {
            Local::Region(region) => region.inner.span.range(at, len)?,
            // Only puts have bytes of their own, and puts only read them.
            Local::Bytes(bytes) => bytes.as_ptr().cast_mut(),
            Local::Pieces(pieces) => return self.list_at_once(transfer, pieces, native, done),
        };
        self.post_at_once(put, base, len, native, offset, done)
    }

    /// Posts one transfer to a synchronous module, in pieces that it accepts. After an error, `done` bytes have been transferred,
    /// and the next piece possibly in part.
    pub(super) fn post_at_once(
        &self,
        put: bool,
        base: *mut u8,
        len: usize,
        native: &ImportedKey,
        offset: u64,
        done: &mut usize,
    ) -> Result<(), Status> {
        let max = native.most(put);
        loop {
            let n = max.min(len - *done);
            let iov = Iov::new(base.wrapping_add(*done), n);
            let op = rma_op(&iov, native.key, offset + *done as u64, 0, Completion::Remote);
            let code = native.post(put, &op);
            if code != OK {
                return Err(Status::from_code(code));
            }
            *done += n;
            if *done >= len {
                return Ok(());
            }
        }
    }

    /// Handles the status of the fast path, before the slow path calls the provider. Nothing was done, unless the provider broke
    /// its contract. A provider that broke its contract may have executed the operation. The fast path only returns the status: a
    /// check there would cost every operation a dozen instructions.
    pub(super) fn check_fast_path(&self, key: &RemoteKey, code: i32) -> Result<(), Error> {
        if code != Status::ProviderFailed as i32 {
            return Ok(());
        }
        Err(match key.inner.best.get() {
            Some(native) => self.memory_failure(&native, key, Status::ProviderFailed),
            None => Error::from_status(Status::ProviderFailed),
        })
    }

    /// Handles the failure of a native operation, and returns its error. For a peer that is gone see [`EndpointState::peer_lost`].
    /// A provider that broke its contract is taken out of use.
    pub(crate) fn memory_failure(
        &self,
        native: &ImportedKey,
        key: &RemoteKey,
        status: Status,
    ) -> Error {
        let error = self.failure_over(status, Some(native.interface));
        match status {
            Status::PeerFailed => return self.peer_lost(error, native.interface),
            Status::ProviderFailed => {
                self.worker.provider_failed(native.interface);
                key.inner.downgrade(native, status);
            }
            _ => {}
        }
        error
    }
}
