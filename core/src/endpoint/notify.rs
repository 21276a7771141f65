//! Puts that notify the target's worker when their bytes have arrived.
//!
//! The provider keeps the order on its own lane. A lane with notifications of its own is therefore used if it can carry the word
//! and the whole put. In addition, every put that may not have arrived must have used the same lane. A put over messages carries
//! its word, if every earlier put that may not have arrived was sent over the same messages. Otherwise a separate message carries
//! the word, when this put and all earlier ones are complete at the target. Operations posted while that message waits are queued
//! after it.

use super::key::ImportedKey;
use super::post::{Local, Transfer};
use super::queued::{Failed, NativeOp, QueuedOp};
use super::rails::SHARED_FROM;
use super::record::{Completion, rma_op};
use super::{Endpoint, EndpointState, RemoteKey, State};
use crate::address::NOTIFICATIONS;
use crate::proto::id;
use crate::region::{Access, Region};
use crate::request::Outcome;
use crate::{Error, PostError, Status};
use std::ops::Range;
use std::rc::Rc;
use tieline_order::{Id, Kind, way};
use tieline_plugin_api::OK;
use tieline_plugin_api::abi::Iov;

impl Endpoint {
    /// Puts like [`Endpoint::put`], and then notifies the peer. The peer's handler for notifications
    /// ([`Worker::on_notification`](crate::Worker::on_notification)) runs once with `word`. When the handler runs, all bytes of
    /// this put are in the peer's memory. So are the bytes of every earlier put on this endpoint that has not failed. If the range
    /// is empty, the call only notifies, and the target need not check the key.
    ///
    /// The operation is complete when the bytes are visible at the target and the notification has been sent. Unless the connection
    /// fails, the notification then reaches a peer that makes progress, even if this endpoint is dropped or its worker closed.
    /// Completion does not mean that the handler has run.
    ///
    /// If the put fails, the peer is not notified. If an earlier put fails while this operation waits for it, this operation may
    /// fail as well. If the connection is lost meanwhile, the application cannot determine whether the peer was notified.
    ///
    /// There is no order between notifications, nor between notifications and messages. Each notification only states that its own
    /// put and the puts before it have arrived.
    ///
    /// ```
    /// # fn main() -> Result<(), tieline::Error> {
    /// # let context = tieline::Context::open()?;
    /// let worker = context.worker()?;
    /// worker.on_notification(|peer, word| println!("{peer} has put what {word} stands for"))?;
    /// let (here, there) = (context.alloc(8)?, context.alloc(8)?);
    /// let me = worker.connect(&worker.address()?)?; // a worker may connect to itself
    /// let key = me.import_key(&there.remote_key()?)?;
    /// let put = me.put_notify(&here, 0..8, &key, 0, 7)?;
    /// worker.finish(put)?;
    /// worker.wait(None)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Endpoint::put`]. [`PostError::Correct`] also if the peer's version does not support notifications.
    #[inline]
    pub fn put_notify(
        &self,
        local: &Region,
        range: Range<usize>,
        key: &RemoteKey,
        offset: u64,
        word: u32,
    ) -> Result<Outcome, PostError> {
        self.put_notify_with(local, range, key, offset, word, Completion::Remote)
    }

    /// Does the same as [`Endpoint::put_notify`], with a choice of the completion.
    ///
    /// # Errors
    /// The errors of [`Endpoint::put_notify`].
    #[inline]
    pub fn put_notify_with(
        &self,
        local: &Region,
        range: Range<usize>,
        key: &RemoteKey,
        offset: u64,
        word: u32,
        completion: Completion,
    ) -> Result<Outcome, PostError> {
        // For a range that ends before it begins, the length is larger than any region.
        let len = range.end.wrapping_sub(range.start);
        let from = local.inner.span.range(range.start, len);
        let from = from.map_err(|status| local.outside(status, range.start, len))?;
        let code = self.put_notify_now(from, len, key, offset, word);
        if code == OK {
            return Ok(Outcome::Done(0));
        }
        let (at, local) = (range.start, Local::Region(local));
        let transfer = Transfer { put: true, local, at, len, key, offset, completion };
        self.inner.post_notify(&transfer, word, code)
    }

    /// Does the same as [`Endpoint::put_notify`], for bytes from any memory. The caller may reuse the bytes when the call returns.
    ///
    /// # Errors
    /// The errors of [`Endpoint::put_notify`]. [`PostError::Retry`] also if the bytes would have to be queued and the queue is
    /// full.
    #[inline]
    pub fn put_bytes_notify(
        &self,
        data: &[u8],
        key: &RemoteKey,
        offset: u64,
        word: u32,
    ) -> Result<Outcome, PostError> {
        let len = data.len();
        let code = self.put_notify_now(data.as_ptr().cast_mut(), len, key, offset, word);
        if code == OK {
            return Ok(Outcome::Done(0));
        }
        let (local, completion) = (Local::Bytes(data), Completion::Remote);
        let transfer = Transfer { put: true, local, at: 0, len, key, offset, completion };
        self.inner.post_notify(&transfer, word, code)
    }

    /// Tries the fast path: a module that completes within the call, on an endpoint without operations in flight. A result other
    /// than `OK` and `ProviderFailed` means that nothing was done.
    #[inline]
    pub(super) fn put_notify_now(
        &self,
        from: *mut u8,
        len: usize,
        key: &RemoteKey,
        offset: u64,
        word: u32,
    ) -> i32 {
        let fast = &key.inner.fast;
        if len < fast.put_below.get()
            && u64::from(word) < fast.words.get()
            && self.may_take_fast_path(key)
            && !self.inner.has_under_way()
        {
            let iov = Iov::new(from, len);
            let op = rma_op(&iov, fast.key.get(), offset, 0, Completion::Remote);
            return fast.put_notify(&op, word);
        }
        Status::Again as i32
    }
}

impl EndpointState {
    /// Checks whether an operation of this endpoint may not have arrived yet.
    #[inline]
    pub(super) fn has_under_way(&self) -> bool {
        self.order.unflushed() != 0 || self.has_pending()
    }

    /// Posts a put with a notification that did not take the fast path, or failed there with `code`.
    #[cold]
    #[inline(never)]
    pub(super) fn post_notify(
        self: &Rc<Self>,
        transfer: &Transfer<'_>,
        word: u32,
        code: i32,
    ) -> Result<Outcome, PostError> {
        let &Transfer { key, offset, len, .. } = transfer;
        self.check_fast_path(key, code)?;
        self.prepare(key, transfer.local.region(), (Access::WRITE, offset, len))?;
        if let Some(native) = self.telling_lane(transfer, word) {
            let refused = |status| self.refused::<Status>(status);
            let memory = self.hold_memory(transfer).map_err(refused)?;
            let _ = self.may_go(native.bit());
            let opened = self.open_native(None, memory.clone(), transfer.at, len);
            let request = opened.map_err(refused)?;
            let part = transfer.part(memory, request, native.rank, 0..len);
            self.post_native_op(NativeOp { notify: Some(word), ..part });
            return Ok(self.outcome(request)?);
        }
        self.check_notifications()?;
        if transfer.is_small() && self.goes_alone(way::EMULATED) {
            if let Some(outcome) = self.post_small(transfer, Some(word))? {
                return Ok(outcome);
            }
        }
        let by_messages = key.inner.best.get().is_none() && key.inner.forming(0).is_none();
        if by_messages && self.goes_alone(way::EMULATED) {
            self.emulating()?;
            if !self.has_service() {
                let emulated = self.post_emulated(transfer, Some(word));
                return emulated.map_err(|error| self.refused(error));
            }
        }
        self.put_and_notify(transfer, word)
    }

    /// Returns the lane that both executes the put and notifies the target, if there is one.
    fn telling_lane(&self, transfer: &Transfer<'_>, word: u32) -> Option<ImportedKey> {
        let &Transfer { key, offset, len, .. } = transfer;
        let native = key.inner.best.get().filter(|native| native.tells(word, len))?;
        let one_call = match transfer.local {
            Local::Pieces(pieces) => pieces.within(transfer.at, len, native.max_iov) == len,
            Local::Region(_) | Local::Bytes(_) | Local::Raw(_) => true,
        };
        let one_rail = || native.synchronous || key.inner.rails(&native, offset, len).len() == 1;
        (one_call && (len < SHARED_FROM || one_rail())).then_some(native)
    }

    /// Checks whether all puts of this endpoint that may not have arrived used this route.
    fn goes_alone(&self, way: u64) -> bool {
        if !self.has_under_way() {
            // All earlier operations have arrived, so their routes are not needed any more.
            self.order.clear();
            return true;
        }
        self.order.is_only(way)
    }

    /// Checks whether a queued put may notify the target over the lane that it is about to use. A later fence may have cleared the
    /// routes of earlier operations, so the operation table is searched for them.
    pub(super) fn tells(&self, native: &ImportedKey, op: &NativeOp, word: u32) -> bool {
        let there = (!native.synchronous).then_some(native.interface);
        native.tells(word, op.len)
            && op.memory.within(op.at, op.len, native.max_iov) == op.len
            && self.order.unflushed() & !native.bit() == 0
            // Lanes to the peer's service worker have the same bits as this endpoint's own lanes.
            && !self.reaches_memory.get()
            && (there.is_some() && self.queue_len() == 0 && self.goes_alone(native.bit())
                || !self.shared.ops.borrow().other_puts_before(op.request, there))
    }

    /// Posts the put over any route, and then a message.
    fn put_and_notify(
        self: &Rc<Self>,
        transfer: &Transfer<'_>,
        word: u32,
    ) -> Result<Outcome, PostError> {
        if !self.has_room(0) {
            return Err(self.refused(Status::Again));
        }
        let put = match transfer.len {
            0 => Outcome::Done(0),
            _ => {
                let completion = Completion::Remote;
                self.post_transfer(&Transfer { completion, ..*transfer }, OK)?
            }
        };
        if put.is_done() && self.tells_now(word) {
            return Ok(put);
        }
        // The operation is opened after the put: a fence that the put makes strong waits for all open operations.
        let request = self.shared.ops.borrow_mut().open_inner(self.index, Kind::Send)?;
        if let Outcome::Pending(put) = put {
            // The operation that waits for the put reports the put's result.
            self.shared.ops.borrow_mut().then(put.id, request);
        }
        self.post(QueuedOp::Notify { word, request, lanes: None });
        Ok(self.outcome(request)?)
    }

    /// Notifies the peer's worker immediately, if all operations that may not have arrived are earlier messages of this endpoint,
    /// which the peer handles before this message. `false`: the peer was not notified yet.
    fn tells_now(&self, word: u32) -> bool {
        self.state.get() == State::Ready
            && (self.address.service.is_none() || !self.has_under_way())
            && self.goes_alone(way::EMULATED)
            && self.message_now(id::NOTIFY, u64::from(word), &[]).is_ok()
    }

    /// Posts a queued put without its notification; a message at the head of the queue delivers the notification.
    pub(super) fn notify_behind_put(&self, op: &NativeOp) -> Result<bool, Status> {
        let Some(word) = op.notify else { return Ok(false) };
        self.check_notifications().map_err(|error| error.status())?;
        let part = self.open_native(Some(op.request), op.memory.clone(), op.at, op.len)?;
        self.put_first(QueuedOp::Notify { word, request: op.request, lanes: None });
        self.put_first(QueuedOp::Native(NativeOp {
            completion: Completion::Remote,
            request: part,
            notify: None,
            ..op.again()
        }));
        Ok(true)
    }

    /// Checks whether a notification has no earlier operation for which it must wait.
    pub(super) fn is_next(&self, request: Id) -> bool {
        let ops = self.shared.ops.borrow();
        ops.parts(request) <= 1 && !ops.other_puts_before(request, None)
    }

    /// Notifies the peer's worker when every earlier put has arrived, unless one has failed. `Ok(false)`: a put has not arrived
    /// yet, or a lane does not accept the flush or the message at present.
    pub(super) fn attempt_notify(
        &self,
        word: u32,
        request: Id,
        lanes: &mut Option<u64>,
    ) -> Result<bool, Failed> {
        if !self.is_next(request) {
            return Ok(false);
        }
        let lanes = lanes.get_or_insert_with(|| self.order.unflushed());
        if !self.flush_lanes(request, lanes) || !self.is_next(request) {
            return Ok(false);
        }
        let trouble = self.shared.ops.borrow_mut().trouble(request);
        if trouble.is_some() {
            // The operation ends with the error that it has recorded.
            return Ok(true);
        }
        match self.message_now(id::NOTIFY, u64::from(word), &[]) {
            Ok(()) => Ok(true),
            Err(Status::Again) => Ok(false),
            Err(status) => Err(self.by_message_lane(status)),
        }
    }

    fn check_notifications(&self) -> Result<(), Error> {
        let what = |peer: &str| format!("a notification to {peer}");
        let fix = "send it a message after the put";
        self.check_speaks(NOTIFICATIONS, what, "notifications", fix)
    }
}

impl ImportedKey {
    /// Checks whether this lane executes a put of this length in one operation and can deliver this word.
    fn tells(&self, word: u32, len: usize) -> bool {
        u64::from(word) < self.words && len <= self.most(true)
    }
}
