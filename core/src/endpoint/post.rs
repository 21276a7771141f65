//! Posting puts and gets that did not take the fast path: natively, over several rails, or after queued operations.

use super::key::{ImportedKey, RemoteKey};
use super::plan::Protocol;
use super::queued::{Failed, NativeOp, QueuedOp};
use super::record::{Completion, rma_op};
use super::{EndpointState, State};
use crate::mem::local::{LocalBuffer, Memory};
use crate::mem::pieces::Pieces;
use crate::region::{Access, Region};
use crate::request::Outcome;
use crate::sys::Span;
use crate::{Error, PostError, Status};
use std::ops::Range;
use std::rc::Rc;
use tieline_order::{Id, Kind, way};
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
    /// Memory in no region, which the caller keeps until the operation has ended.
    Raw(Span),
}

impl Local<'_> {
    /// Returns the region, if the memory is in one.
    #[inline]
    pub(super) fn region(&self) -> Option<&Region> {
        match self {
            Local::Region(region) => Some(region),
            Local::Bytes(_) | Local::Pieces(_) | Local::Raw(_) => None,
        }
    }

    /// Returns the bytes of `queue_bytes` that the local memory takes while the operation waits.
    fn room(&self) -> usize {
        match self {
            Local::Region(_) | Local::Raw(_) => 0,
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
            Local::Bytes(bytes) => (self.at, Local::Bytes(&bytes[done..])),
            _ => (self.at + done, self.local),
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
        let local = (memory, self.at + part.start, part.len());
        let remote = (self.key.inner.clone(), self.offset + part.start as u64);
        let op = NativeOp::new(self.put, local, remote, request);
        NativeOp { completion: self.completion, rank, ..op }
    }
}

/// The lanes that a transfer has tried.
struct Tries {
    /// The lanes that have declined it, one bit each by rank.
    declined: u64,
    /// Whether some bytes may have been written or read although the transfer restarts from its beginning.
    begun: bool,
    /// The routes that were recorded before the transfer.
    ways: u64,
}

impl Tries {
    /// Leaves a lane that has ended or declined the transfer, for the next one. `false`: the status means something else.
    fn passes_by(&mut self, key: &RemoteKey, native: &ImportedKey, status: Status) -> bool {
        match status {
            Status::Unreachable => key.inner.downgrade(native, status),
            Status::Declined => self.declined |= native.mark(),
            _ => return false,
        }
        true
    }
}

/// The result of starting a transfer over one lane.
enum Step {
    /// The transfer has ended, or is pending.
    Ended(Outcome),
    /// The next lane carries the transfer.
    Next,
    /// The transfer waits its turn, after its first `done` bytes.
    Waits { done: usize },
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
        let is_idle = || self.queue.try_len() == Some(0);
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
            OK => match self.post_direct::<false>(transfer) {
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
            Local::Raw(span) => Ok(Memory::Raw(span)),
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

    /// Starts a transfer over the lanes to its memory, by the protocol that each lane's plan has for it. `None`: no lane is left, and
    /// nothing was transferred.
    fn try_native(
        self: &Rc<Self>,
        transfer: &Transfer<'_>,
        declined: u64,
    ) -> Result<Option<Outcome>, Error> {
        let &Transfer { put, len, key, .. } = transfer;
        let mut tries = Tries { declined, begun: false, ways: self.order.posted() };
        let assist_size = self.shared.core.assist_size;
        let waits = |done, tries: &Tries, rank| {
            self.post_in_turn(&transfer.rest(done), rank, tries).map(Some)
        };
        while let Some(native) = key.inner.next(tries.declined) {
            let protocol = native.protocol(put, len, assist_size);
            let step = match protocol {
                Protocol::AtOnce | Protocol::Together if self.goes_at_once() => {
                    self.start_at_once(transfer, &native, protocol, &mut tries)?
                }
                Protocol::Divided => {
                    return self.post_divided(transfer, &native, &tries).map(Some);
                }
                _ => Step::Waits { done: 0 },
            };
            match step {
                Step::Ended(outcome) => return Ok(Some(outcome)),
                Step::Next => {}
                Step::Waits { done } => return waits(done, &tries, native.rank),
            }
        }
        match key.inner.forming(tries.declined) {
            Some(rank) => waits(0, &tries, rank),
            // An operation that may have begun is queued as such, so that it cannot be canceled as one that has not begun.
            None if tries.begun => waits(0, &tries, 0),
            None => Ok(None),
        }
    }

    /// Checks whether a module that completes within the call may be called now.
    fn goes_at_once(&self) -> bool {
        self.may_post_memory() && self.may_go(way::AT_ONCE)
    }

    /// Carries out a transfer within the call, alone or with the peer's help.
    fn start_at_once(
        self: &Rc<Self>,
        transfer: &Transfer<'_>,
        native: &ImportedKey,
        protocol: Protocol,
        tries: &mut Tries,
    ) -> Result<Step, Error> {
        if protocol == Protocol::Together {
            let lent = self.lend_to_share(transfer.local);
            let local = transfer.local.region().or(lent.as_ref());
            let shared =
                local.and_then(|local| self.share_copy(transfer, local, native, tries.declined));
            match shared {
                None => {}
                Some(Ok(outcome)) => return Ok(Step::Ended(outcome)),
                Some(Err(error)) => {
                    // The failed attempt may have transferred some bytes.
                    tries.begun = true;
                    return match error.status() {
                        Status::Again => Ok(Step::Waits { done: 0 }),
                        status if tries.passes_by(transfer.key, native, status) => Ok(Step::Next),
                        _ => Err(error),
                    };
                }
            }
        }
        // The limit is checked first: otherwise the call would have to return `Again` after some bytes were written.
        let is_cut = transfer.len > native.most(transfer.put);
        let is_cut = is_cut || matches!(transfer.local, Local::Pieces(_));
        if is_cut && !self.has_room(transfer.local.room()) {
            return Err(Status::Again.into());
        }
        let mut done = 0;
        let posted = self.transfer_at_once(transfer, native, &mut done);
        tries.begun |= done > 0;
        match posted {
            Ok(()) => {
                // Preparing a shared copy may have called the application, which may have posted operations.
                if protocol == Protocol::AtOnce {
                    self.order.restore_posted(tries.ways);
                }
                Ok(Step::Ended(Outcome::Done(0)))
            }
            Err(Status::Again) => Ok(Step::Waits { done: 0 }),
            Err(status) if tries.passes_by(transfer.key, native, status) => {
                // The next lane carries the rest. The limit of the queue was checked above.
                let goes_on = status == Status::Declined && done > 0;
                Ok(if goes_on { Step::Waits { done } } else { Step::Next })
            }
            Err(status) => Err(self.memory_failure(native, transfer.key, status)),
        }
    }

    /// Posts a transfer after queued operations, and after the connection that it uses has formed; see
    /// [`EndpointState::attempt_native`].
    fn post_in_turn(
        self: &Rc<Self>,
        transfer: &Transfer<'_>,
        rank: usize,
        tries: &Tries,
    ) -> Result<Outcome, Error> {
        let &Tries { declined, begun, .. } = tries;
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
    fn post_divided(
        self: &Rc<Self>,
        transfer: &Transfer<'_>,
        native: &ImportedKey,
        tries: &Tries,
    ) -> Result<Outcome, Error> {
        let rails = transfer.key.inner.rails(native, transfer.offset, transfer.len);
        if let [_] = rails[..] {
            return self.post_in_turn(transfer, native.rank, tries);
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
                    self.post_native_op(NativeOp { declined: tries.declined, ..part });
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
            Local::Raw(span) => span.range(at, len)?,
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
