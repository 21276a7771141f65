//! An endpoint's queue. The queue holds operations that could not be posted immediately, in order; its bound includes all other
//! pending operations. The endpoint also keeps answers to the peer's requests. Progress drains the queue and the answers.
//!
//! Answers are in a separate queue, which progress drains first. The peer waits for answers. They must therefore not wait for an
//! operation that waits for the peer, such as a fence or a request of this side.

use super::queued::{Failed, QueuedOp, Waiting};
use super::{EndpointState, State};
use crate::proto::emulate::Answer;
use crate::shared::OPERATION_BYTES;
use crate::{Error, Status};
use tieline_order::Id;

/// The maximum number of answers that an endpoint keeps. If its peer exceeds this number, the endpoint is failed. The number is 16
/// times the number of operations that an endpoint may have open by default (`queue_bytes / OPERATION_BYTES`).
const MOST_ANSWERS: usize = 65_536;

impl EndpointState {
    /// Posts the part of `op` that the transport accepts. `Ok(true)`: the operation is done; `Ok(false)`: call again after
    /// progress.
    pub(crate) fn attempt(&self, op: &mut QueuedOp) -> Result<bool, Failed> {
        let sent = match op {
            // The message was queued for a lane with a larger limit.
            QueuedOp::Message { payload, .. } | QueuedOp::Returned { payload, .. }
                if payload.len() > self.most() =>
            {
                Err(Status::TooLarge)
            }
            QueuedOp::Message { id, header, payload, .. }
            | QueuedOp::Returned { id, header, payload } => self.message_now(*id, *header, payload),
            QueuedOp::Gather(op) => return self.attempt_gather(op),
            QueuedOp::Notify { word, request, lanes } => {
                return self.attempt_notify(*word, *request, lanes);
            }
            QueuedOp::Barrier { request } => {
                return Ok(!self.shared.ops.borrow().is_open(*request));
            }
            QueuedOp::FlushLanes { request, lanes } => return Ok(self.flush_lanes(*request, lanes)),
            QueuedOp::Native(op) => match op.answer {
                Some(answer) => self.send_by_messages(op, answer),
                None => return self.attempt_native(op),
            },
            QueuedOp::Atomic(op) => return self.attempt_atomic(op),
        };
        match sent {
            Ok(()) => Ok(true),
            Err(Status::Again) => Ok(false),
            Err(status) => Err(self.by_message_lane(status)),
        }
    }

    fn end(&self, id: Option<Id>, result: Result<u64, Error>) {
        if let Some(id) = id {
            self.shared.part(id, result);
        }
    }

    /// Handles an operation whose sending may have ended it.
    pub(super) fn left(&self, op: &QueuedOp) {
        let Some(id) = op.ends_when_sent() else { return };
        let plain = self.shared.ops.borrow_mut().sent_plain(id);
        match plain {
            Some(false) => {}
            Some(true) => self.shared.with_ops(|_| ()),
            None => self.shared.part(id, Ok(0)),
        }
    }

    /// Posts an operation now if the queue is empty. Queues the operation if it cannot be posted, or not completely. A request of
    /// emulation waits in this queue only for a fence if the peer has a service worker.
    pub(crate) fn post(&self, op: QueuedOp) {
        let is_barrier = |op: &QueuedOp| matches!(op, QueuedOp::Barrier { .. });
        let held_back = op.is_emulated() && self.queue.entries().iter().any(is_barrier);
        let passed = if held_back { Some(op) } else { self.pass_on(op) };
        let Some(mut op) = passed else { return };
        let message = self.is_message(&op);
        if message {
            // The endpoint's state records a failure.
            let _ = self.message_lane_opened();
        }
        let first = !message && self.queue_len() == 0;
        match self.state.get() {
            State::Failed | State::Closed => return self.end_entry(&op, self.dead_error()),
            State::New if !first => {}
            State::Ready | State::New => match self.attempt(&mut op) {
                Ok(true) => return self.left(&op),
                Ok(false) => {}
                Err(failed) => return self.op_failed(&op, failed),
            },
            State::Queueing => {}
        }
        self.count(|counters| counters.queued += 1);
        self.queue.push_back(op);
        self.queue_has_work();
    }

    /// Checks whether an entry of this queue needs this endpoint's message lane.
    pub(super) fn is_message(&self, op: &QueuedOp) -> bool {
        op.is_message() && !(op.is_emulated() && self.has_service())
    }

    /// Queues an operation at the front, because queued operations may depend on it.
    pub(super) fn put_first(&self, op: QueuedOp) {
        self.queue.push_front(op);
        self.queue_has_work();
    }

    /// Posts a message ahead of the queue, whose entries may wait for it.
    pub(super) fn post_first(&self, mut op: QueuedOp) {
        // The endpoint's state records a failure.
        let opened = self.message_lane_opened().unwrap_or(false);
        match self.state.get() {
            State::Failed | State::Closed => return self.end_entry(&op, self.dead_error()),
            State::Ready | State::Queueing if opened => match self.attempt(&mut op) {
                Ok(true) => return self.left(&op),
                Ok(false) => {}
                Err(failed) => return self.op_failed(&op, failed),
            },
            _ => {}
        }
        self.count(|counters| counters.queued += 1);
        self.put_first(op);
    }

    fn queue_has_work(&self) {
        if self.state.get() == State::Ready {
            self.state.set(State::Queueing);
        }
        self.worker.make_busy(self);
    }

    fn op_failed(&self, op: &QueuedOp, failed: Failed) {
        let error = self.failed(failed);
        if let QueuedOp::Returned { .. } = op {
            // No operation would report the loss of the message, so the endpoint ends.
            self.fail(error.clone());
        }
        self.end_entry(op, error);
    }

    /// Ends the operation of an entry that is not carried out.
    pub(super) fn end_entry(&self, op: &QueuedOp, error: Error) {
        if let Some(unsaid) = op.unsaid() {
            self.shared.with_ops(|ops| ops.withdraw(unsaid));
        }
        self.end(op.request(), Err(error));
    }

    /// Checks whether another operation may become pending for which `len` bytes are copied.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        let open = self.shared.ops.borrow().open_of(self.index);
        let bytes = self.queue.bytes() + self.requests.bytes() + open * OPERATION_BYTES;
        // An endpoint without other operations accepts an operation of any size; otherwise it could never be sent.
        bytes == 0 || bytes + len + OPERATION_BYTES <= self.shared.core.queue_bytes
    }

    /// Checks whether `count` more operations without copies may become pending.
    pub(super) fn has_room_for(&self, count: usize) -> bool {
        self.has_room(count.saturating_sub(1).saturating_mul(OPERATION_BYTES))
    }

    /// Returns the maximum number of pending operations.
    pub(super) fn most_operations(&self) -> usize {
        self.shared.core.queue_bytes / OPERATION_BYTES
    }

    /// Checks whether the queue can only advance after an event: a connection has formed or failed, or operations before a fence
    /// have ended.
    pub(crate) fn waits_for_event(&self) -> bool {
        let (queue, answers) = (self.queue.entries(), !self.answers.borrow().is_empty());
        let requests = self.requests.len() > 0;
        let service_forms =
            || self.open_service().is_some_and(|service| service.message_lane_forms());
        match queue.front() {
            _ if requests && !service_forms() => false,
            _ if answers && !self.message_lane_forms() => false,
            Some(QueuedOp::Native(op)) if op.answer.is_none() => {
                op.key.forming(op.declined).is_some()
            }
            Some(QueuedOp::Barrier { request }) => self.shared.ops.borrow().is_open(*request),
            Some(QueuedOp::Notify { request, .. }) if !self.is_next(*request) => true,
            Some(op) => self.is_message(op) && self.message_lane_forms(),
            None => answers || requests,
        }
    }

    /// Checks whether the message lane waits for its connection.
    pub(super) fn message_lane_forms(&self) -> bool {
        let pair = self.route.message().filter(|_| self.state.get() == State::New);
        pair.is_some_and(|pair| self.worker.circuit_forms(self, pair.interface))
    }

    pub(crate) fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// Returns the number of queued operations, including requests for the peer's service worker.
    pub(crate) fn waiting_len(&self) -> usize {
        self.queue.len() + self.requests.len()
    }

    /// Sends an answer, or keeps it until the lane accepts it. The error is the reason if neither is possible, and the peer then
    /// has to be notified over another route. `owed_since`: the time (ns) at which an earlier connection failed to carry the
    /// answer; `None`: this is the first attempt.
    pub(crate) fn answer(
        &self,
        mut answer: Answer,
        owed_since: Option<u64>,
    ) -> Result<(), (Answer, Status)> {
        if !self.is_alive() {
            return Err((answer, self.dead_error().status()));
        }
        if self.answers.borrow().is_empty() {
            match self.try_answer(&mut answer) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(status) => {
                    let _ = self.message_failed(status);
                    return Err((answer, status));
                }
            }
        }
        if self.answers.borrow().len() >= MOST_ANSWERS {
            let error = Error::new(
                Status::BadData,
                format!("{} sends requests faster than it receives answers", self.address.label()),
                format!("{MOST_ANSWERS} answers wait for it"),
                "",
            );
            self.fail(error);
            return Err((answer, Status::BadData));
        }
        self.answers.borrow_mut().push_back(Waiting { answer, owed_since });
        self.worker.make_busy(self);
        Ok(())
    }

    fn try_answer(&self, answer: &mut Answer) -> Result<bool, Status> {
        if !self.message_lane_opened().map_err(|error| error.status())? {
            return Ok(false);
        }
        match self.send_answer(answer) {
            Ok(()) => Ok(true),
            Err(Status::Again) => Ok(false),
            Err(status) => Err(status),
        }
    }

    /// Removes the answers that cannot be sent over this endpoint any more.
    pub(crate) fn take_answers(&self) -> Vec<Waiting> {
        std::mem::take(&mut *self.answers.borrow_mut()).into()
    }

    /// Returns the number of queued operations and kept answers; `None` while either is borrowed for a change.
    pub(crate) fn try_waiting_len(&self) -> Option<usize> {
        let queued = self.queue.try_len()? + self.requests.try_len()?;
        Some(queued + self.answers.try_borrow().ok()?.len())
    }

    pub(crate) fn answers_len(&self) -> usize {
        self.answers.borrow().len()
    }

    fn run_answers(&self, budget: usize) -> usize {
        let mut done = 0;
        while done < budget {
            let Some(mut waiting) = self.answers.borrow_mut().pop_front() else { break };
            match self.try_answer(&mut waiting.answer) {
                Ok(true) => done += 1,
                Ok(false) => {
                    self.answers.borrow_mut().push_front(waiting);
                    break;
                }
                Err(status) => {
                    if self.is_alive() {
                        let _ = self.message_failed(status);
                    }
                    self.worker.answer_lost(self, waiting, status);
                    return done + 1;
                }
            }
        }
        done
    }

    /// Drains up to `budget` answers and up to `budget` operations; returns the number done and whether some remain.
    pub(crate) fn run_queue(&self, budget: usize) -> (usize, bool) {
        let answered = self.run_answers(budget);
        let (requested, _) = self.run_requests(budget);
        let mut done = answered + requested;
        let most = done + budget;
        while done < most {
            let emulated = self.queue.entries().front().is_some_and(QueuedOp::is_emulated);
            if emulated && self.has_service() {
                let Some(op) = self.queue.pop_front() else { break };
                match self.pass_on(op) {
                    Some(op) => self.put_first(op),
                    None => done += 1,
                }
                continue;
            }
            let message = self.queue.entries().front().is_some_and(QueuedOp::is_message);
            if message && self.state.get() == State::New {
                match self.message_lane_opened() {
                    Ok(true) => self.state.set(State::Queueing),
                    Ok(false) => return (done, true),
                    Err(_) => return (done + 1, false),
                }
            }
            // The operation is removed while it is attempted, because the attempt may queue more operations.
            let Some(mut op) = self.queue.pop_front() else { break };
            match self.attempt(&mut op) {
                Ok(true) => self.left(&op),
                Ok(false) if self.is_alive() => {
                    let turned = op.is_message() && !message;
                    self.queue.push_front(op);
                    if turned {
                        continue; // messages carry the rest of a put or get
                    }
                    return (done, true);
                }
                // The operation ended with its endpoint.
                Ok(false) => return (done + 1, false),
                Err(failed) => self.op_failed(&op, failed),
            }
            done += 1;
        }
        let left = self.queue.len() > 0;
        // A watched endpoint shows by this state that it has sent an operation.
        let sent = done > answered || !self.watched.get();
        if !left && sent && self.state.get() == State::Queueing {
            self.state.set(self.ready());
        }
        let more = self.requests.len() > 0 || !self.answers.borrow().is_empty();
        (done, left || more)
    }
}
