//! Notifications with bytes: messages that follow other operations.
//!
//! A notification waits outside the endpoint's queue, so that it holds nothing back. When its gate (`order/src/table/follow.rs`) has
//! ended well, the message is sent ahead of the queue: a fence in the queue may wait for it. A notification that follows everything
//! has a flush of its own, which also flushes lanes with locally completed puts. One that follows single operations flushes these
//! lanes when the operations have ended.

use super::flush::run_due;
use super::queued::QueuedOp;
use super::{Endpoint, EndpointState, State, patiently};
use crate::request::{CompletionCounter, Outcome, Request};
use crate::{Error, PostError, Status};
use std::rc::Rc;
use tieline_order::{Followed, Id, Kind};

/// The maximum number of operations that a notification may follow.
const MOST_FOLLOWED: usize = 32_768;

/// The operations that a notification follows; see [`Endpoint::notify`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum After<'a> {
    /// Everything that was posted to the endpoint before the notification, except the receipt of rendezvous messages and
    /// acknowledgements of messages.
    ///
    /// The notification is not sent if an operation failed or was canceled that was posted to the endpoint since its last
    /// [`flush`](Endpoint::flush) or its last notification of this kind. This is true even if the operation's own result, the
    /// completion list or a counter has reported the failure.
    Everything,
    /// These operations of the endpoint's worker. An operation that is [`Outcome::Done`] has ended already.
    Operations(&'a [&'a Outcome]),
    /// The operations of the endpoint's worker with these numbers ([`Request::number`](crate::Request::number)). The number 0 stands for
    /// an operation that was done when its call returned.
    Numbers(&'a [u64]),
    /// The operations that this counter counts and that have not ended, on all endpoints. The notification is not sent if the counter
    /// has counted a failure since its last [mark](CompletionCounter::mark).
    Counted(&'a CompletionCounter),
}

/// A notification whose operations have not ended.
pub(crate) struct Notice {
    /// The endpoint, which is kept until the notification is sent.
    pub(crate) endpoint: Rc<EndpointState>,
    id: u16,
    header: u64,
    payload: Box<[u8]>,
    /// The operation that ends when the message has been sent.
    request: Id,
    /// Whether locally completed puts have been flushed.
    flushed: bool,
}

impl Endpoint {
    /// Sends a message when other operations are complete at the target; see [`After`]. If one of these operations fails or is
    /// canceled, the message is never sent, and the notification ends with that error.
    ///
    /// The peer's handler for `id` ([`Worker::on_message`](crate::Worker::on_message)) gets the message with `header` and `payload`.
    /// When the handler runs, all bytes of the puts are visible in the peer's memory, and all gets have read their bytes. The call
    /// returns immediately, and holds back no other operation: messages and operations that were posted later may pass the notification.
    /// A notification has no order with other notifications, unless it follows them as well. `payload` is copied.
    ///
    /// The operation ends when the transport has accepted the message. A `flush`, a [`Close::Flush`](crate::Close::Flush) and a
    /// [`Worker::close`](crate::Worker::close) wait for it. If the endpoint is dropped, the worker keeps it until the
    /// notification has been sent. A notification cannot be canceled, but an operation that it follows can.
    ///
    /// A put that has completed only [locally](crate::Completion::Local) is flushed first if it was posted on this endpoint.
    ///
    /// ```
    /// # fn main() -> Result<(), tieline::Error> {
    /// use tieline::After;
    /// # let context = tieline::Context::open()?;
    /// # let worker = context.worker()?;
    /// worker.on_message(7, |message| assert_eq!(message.payload(), b"layer 3 is there"))?;
    /// let (here, there) = (context.alloc(64)?, context.alloc(64)?);
    /// let me = worker.connect(&worker.address()?)?; // a worker may connect to itself
    /// let key = me.import_key(&there.remote_key()?)?;
    /// let (first, second) = (me.put(&here, 0..8, &key, 0)?, me.get(&here, 8..16, &key, 8)?);
    /// let told = me.notify(After::Operations(&[&first, &second]), 7, 0, b"layer 3 is there")?;
    /// worker.finish(told)?; // both operations have succeeded, and the message is on its way
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Endpoint::send`]. [`PostError::Correct`] also if the payload exceeds [`max_message`](Endpoint::max_message),
    /// and for an operation of another worker or one whose result was taken before. [`PostError::Retry`] also if more than 32,768
    /// operations are open that the notification would follow. In all these cases the notification was not posted.
    pub fn notify(
        &self,
        after: After<'_>,
        id: u16,
        header: u64,
        payload: &[u8],
    ) -> Result<Outcome, PostError> {
        self.inner.check_message(id, payload.len())?;
        let (waits, failed) = self.inner.followed(after)?;
        if waits.len() > MOST_FOLLOWED {
            return Err(self.inner.refused(Status::Again));
        }
        let everything = matches!(after, After::Everything);
        self.inner.post_notice((id, header, payload), everything, &waits, failed)
    }
}

impl EndpointState {
    /// Returns the open operations that a notification follows, and the first failure among those that have ended.
    fn followed(&self, after: After<'_>) -> Result<(Vec<Id>, Option<Error>), Error> {
        let (mut open, mut failed) = (Vec::new(), None);
        let ops = self.shared.ops.borrow();
        let mut follow = |id: Id| match ops.followed(id) {
            Followed::Open => {
                open.push(id);
                Ok(())
            }
            Followed::Done => Ok(()),
            Followed::Failed(error) => {
                let _ = failed.get_or_insert(error);
                Ok(())
            }
            Followed::Taken => Err(taken()),
        };
        match after {
            After::Everything => {}
            After::Operations(outcomes) => {
                for outcome in outcomes {
                    let Outcome::Pending(request) = outcome else { continue };
                    self.worker.check_owner(&request.shared)?;
                    follow(request.id)?;
                }
            }
            After::Numbers(numbers) => {
                numbers.iter().filter_map(|number| Id::from_raw(*number)).try_for_each(follow)?;
            }
            After::Counted(counter) => {
                self.worker.check_owner(&counter.shared)?;
                open = ops.counted_by(counter.id);
                failed = ops.first_failure(counter.id);
            }
        }
        Ok((open, failed))
    }

    fn post_notice(
        self: &Rc<Self>,
        (id, header, payload): (u16, u64, &[u8]),
        everything: bool,
        waits: &[Id],
        failed: Option<Error>,
    ) -> Result<Outcome, PostError> {
        let idle = match everything {
            true => {
                !self.has_under_way() && !self.shared.ops.borrow().has_failed_before(self.index)
            }
            false => waits.is_empty() && failed.is_none() && self.order.unflushed() == 0,
        };
        if idle && self.state.get() == State::Ready {
            match patiently(|| self.message_now(id, header, payload)) {
                Ok(()) => return Ok(Outcome::Done(0)),
                Err(Status::Again) => {}
                Err(status) => return Err(self.message_failed(status).into()),
            }
        }
        if !self.has_room(payload.len()) {
            return Err(self.refused(Status::Again));
        }
        let flush = match everything {
            true => Some(self.shared.ops.borrow_mut().open_late(self.index, Kind::Flush)?),
            false => None,
        };
        let opened = self.open_notice(waits.iter().chain(&flush));
        let (gate, request) = opened.inspect_err(|_| {
            self.shared.with_ops(|ops| flush.into_iter().for_each(|flush| ops.withdraw(flush)));
        })?;
        let (endpoint, payload) = (self.clone(), payload.into());
        let notice = Notice { endpoint, id, header, payload, request, flushed: everything };
        self.keep_notice(gate, notice);
        if let Some(flush) = flush {
            let before = self.shared.ops.borrow_mut().take_failed(self.index);
            self.begin_flush(flush, before);
            let _ = run_due(&self.shared, &self.worker);
        }
        self.shared.part(gate, failed.map_or(Ok(0), Err));
        self.release_if_ended(gate);
        if self.shared.ops.borrow().has_failed(request) {
            // The failure concerns an operation that was posted before; the notification's own result reports it.
            return Ok(Outcome::Pending(Request::new(self.shared.clone(), request)));
        }
        Ok(self.outcome(request)?)
    }

    /// Opens the two operations of a notification: its gate, which waits for these operations, and the one that the application holds.
    fn open_notice<'a>(&self, waits: impl Iterator<Item = &'a Id>) -> Result<(Id, Id), Status> {
        let mut ops = self.shared.ops.borrow_mut();
        let gate = ops.open_inner(self.index, Kind::Notice)?;
        let request = match ops.open_inner(self.index, Kind::Notice) {
            Ok(request) => request,
            Err(status) => {
                ops.withdraw(gate);
                return Err(status);
            }
        };
        ops.watch_transfer(gate);
        ops.then(gate, request);
        waits.for_each(|id| ops.then(*id, gate));
        Ok((gate, request))
    }

    fn keep_notice(&self, gate: Id, notice: Notice) {
        self.queue.count_ahead(notice.payload.len());
        self.worker.keep_notice(gate, notice);
    }

    /// Handles the end of a gate that may have ended within the call. Otherwise the worker's progress handles it.
    fn release_if_ended(&self, gate: Id) {
        let ended = self.shared.ops.borrow_mut().take_ended(gate);
        let Some(result) = ended else { return };
        if let Some(notice) = self.worker.take_notice(gate) {
            notice.release(result);
        }
    }
}

impl Notice {
    /// Sends the notification if its operations have succeeded; otherwise its operation ends with their error.
    pub(crate) fn release(self, result: Result<u64, Error>) {
        let endpoint = self.endpoint.clone();
        endpoint.queue.discount(self.payload.len());
        if result.is_err() {
            // The gate has passed the error on, so the operation ends with it.
            return endpoint.shared.part(self.request, Ok(0));
        }
        if !self.flushed && endpoint.order.unflushed() != 0 {
            return self.flush();
        }
        let Notice { id, header, payload, request, .. } = self;
        endpoint.post_first(QueuedOp::Message { id, header, payload, request: Some(request) });
    }

    /// Flushes the lanes with locally completed puts, behind a second gate.
    fn flush(self) {
        let (endpoint, request) = (self.endpoint.clone(), self.request);
        let gate = endpoint.shared.ops.borrow_mut().open_inner(endpoint.index, Kind::Notice);
        let gate = match gate {
            Ok(gate) => gate,
            Err(status) => return endpoint.shared.part(request, Err(status.into())),
        };
        {
            let mut ops = endpoint.shared.ops.borrow_mut();
            ops.watch_transfer(gate);
            ops.then(gate, request);
        }
        endpoint.keep_notice(gate, Notice { flushed: true, ..self });
        let mut lanes = endpoint.order.unflushed();
        match endpoint.flush_lanes(gate, &mut lanes) {
            true => endpoint.shared.part(gate, Ok(0)),
            // A lane does not accept the flush yet.
            false => endpoint.put_first(QueuedOp::FlushLanes { request: gate, lanes }),
        }
        endpoint.release_if_ended(gate);
    }

    /// Makes the notification fail when its operations have ended, because locally completed puts of its endpoint were lost.
    pub(crate) fn spoil(&self, gate: Id, error: &Error) {
        self.endpoint.shared.ops.borrow_mut().spoil(gate, error.clone());
    }
}

#[cold]
fn taken() -> Error {
    Error::new(
        Status::Invalid,
        "a notification behind an operation",
        "the result of that operation was taken before",
        "post the notification before the next call that makes progress or takes results",
    )
}
