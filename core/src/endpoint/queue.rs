//! What an endpoint could not send at once: a queue in order, bounded by bytes, that progress drains.

use super::{Inner, State};
use crate::emulate::{self, PUT_HEAD, Target, id};
use crate::region::Region;
use crate::registry::abi::{PackBuffer, RawEndpoint};
use crate::wire::Writer;
use crate::{Error, Status};
use std::ops::Range;
use std::rc::Rc;

/// Where the bytes of an emulated put come from.
pub(crate) enum Source {
    Region(Region, usize),
    Bytes(Box<[u8]>),
}

impl Source {
    fn pack(&self, at: usize, len: usize, out: &mut PackBuffer<'_>) -> Result<(), Status> {
        match self {
            Source::Region(region, start) => out.put_span(&region.inner.span, start + at, len),
            Source::Bytes(bytes) => out.put(&bytes[at..at + len]),
        }
    }
}

/// One queued operation.
pub(crate) enum Task {
    /// A message whose payload was copied.
    Message { id: u16, header: u64, payload: Box<[u8]>, request: Option<u64> },
    /// A message gathered from regions.
    Gather { id: u16, header: u64, pieces: Vec<(Region, Range<usize>)>, len: usize, request: u64 },
    /// An emulated put. The target answers `answer`; when that is another one, `request` ends with the last piece sent.
    Put { source: Source, len: usize, sent: usize, target: Target, request: u64, answer: u64 },
    /// The answer to a peer's get.
    GetReply { token: u64, target: Target, len: u64, sent: u64 },
    /// Asks every lane, once everything before it has been posted, to say when it is complete at the target:
    /// those that are left of them, once it has begun.
    Flush { request: u64, left: Option<Vec<RawEndpoint>> },
    /// An operation of the endpoint to the peer's service worker that a barrier holds back here.
    Forward { to: Rc<Inner>, task: Option<Box<Task>> },
    /// Holds back what follows until `request` has ended.
    Barrier { request: u64 },
    /// A native put or get that the provider had no room for.
    Native(super::post::NativeOp),
    /// An atomic that the provider had no room for, or that takes several of its operations.
    Atomic(super::atomic::AtomicTask),
}

impl Task {
    /// One of the core's own messages; never held back by the bound, since peers bound how many there are.
    pub(crate) fn control(id: u16, token: u64, bytes: Vec<u8>) -> Task {
        Task::Message { id, header: token, payload: bytes.into(), request: None }
    }

    /// Whether it must not wait for a barrier: the peer's own barrier may wait for this answer.
    fn is_answer(&self) -> bool {
        match self {
            Task::Message { id, .. } => *id == id::REPLY,
            Task::GetReply { .. } => true,
            _ => false,
        }
    }

    /// Whether it goes over the message lane. What does not, waits for no connection to the peer's own worker,
    /// which may be forming for as long as a passive target computes.
    fn is_message(&self) -> bool {
        !matches!(
            self,
            Task::Native(_)
                | Task::Atomic(_)
                | Task::Flush { .. }
                | Task::Barrier { .. }
                | Task::Forward { .. }
        )
    }

    /// Bytes of copied payload that count against the bound.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Task::Message { payload, .. } => payload.len() + 64,
            Task::Put { source: Source::Bytes(bytes), .. } => bytes.len() + 64,
            Task::Native(op) => op.copied() + 64,
            _ => 64,
        }
    }

    /// The operation that fails with this task.
    pub(crate) fn request(&self) -> Option<u64> {
        match self {
            Task::Message { request, .. } => *request,
            Task::Gather { request, .. }
            | Task::Put { request, .. }
            | Task::Flush { request, .. } => Some(*request),
            Task::Native(op) => Some(op.request),
            Task::Atomic(op) => Some(op.request),
            // What is forwarded ends with the endpoint that it goes to.
            Task::GetReply { .. } | Task::Barrier { .. } | Task::Forward { .. } => None,
        }
    }
}

impl Inner {
    /// Does as much of `task` as the transport takes. `Ok(true)`: done; `Ok(false)`: try again after progress.
    pub(crate) fn attempt(&self, task: &mut Task) -> Result<bool, Status> {
        let sent = match task {
            Task::Message { id, header, payload, .. } => {
                if payload.len() <= self.max_short.get() {
                    self.short_now(*id, *header, payload)
                } else {
                    self.pack_now(*id, *header, payload.len(), |out| out.put(payload))
                }
            }
            Task::Gather { id, header, pieces, len, .. } => {
                self.pack_now(*id, *header, *len, |out| {
                    pieces.iter().try_for_each(|(region, range)| {
                        out.put_span(&region.inner.span, range.start, range.end - range.start)
                    })
                })
            }
            Task::Put { source, len, sent, target, answer, .. } => {
                self.send_put(source, *len, sent, target, *answer)
            }
            Task::GetReply { token, target, len, sent } => {
                emulate::stream(self, *token, target, *len, sent)
            }
            Task::Flush { request, left } => self.flush_lanes(*request, left),
            Task::Forward { to, task } => {
                if let Some(task) = task.take() {
                    to.enqueue(*task);
                }
                Ok(())
            }
            Task::Barrier { request } => {
                return Ok(self.worker.requests.borrow_mut().get(*request).is_none());
            }
            Task::Native(op) => return self.attempt_native(op),
            Task::Atomic(op) => return self.attempt_atomic(op),
        };
        match sent {
            Ok(()) => Ok(true),
            Err(Status::Again) => Ok(false),
            Err(status) => Err(status),
        }
    }

    fn send_put(
        &self,
        source: &Source,
        len: usize,
        sent: &mut usize,
        target: &Target,
        token: u64,
    ) -> Result<(), Status> {
        let piece = self.most_behind(PUT_HEAD)?;
        loop {
            let n = piece.min(len - *sent);
            let last = *sent + n == len;
            let pack = |out: &mut PackBuffer<'_>| {
                let mut w = Writer::default();
                Target { offset: target.offset + *sent as u64, ..*target }.write(&mut w);
                out.put(&w.bytes)?;
                source.pack(*sent, n, out)
            };
            self.pack_now(id::PUT, if last { token } else { 0 }, PUT_HEAD + n, pack)?;
            *sent += n;
            if last {
                return Ok(());
            }
        }
    }

    /// Whether a task that has been sent has thereby ended its operation.
    fn ends_when_sent(task: &Task) -> bool {
        match task {
            Task::Put { request, answer, .. } => request != answer,
            Task::Message { .. } | Task::Gather { .. } | Task::Flush { .. } => true,
            _ => false,
        }
    }

    pub(super) fn settle(&self, task: &Task, result: Result<u64, Error>) {
        if let Some(request) = task.request() {
            let _ = self.worker.requests.borrow_mut().part(request, result);
        }
    }

    /// Sends a task now if nothing is queued before it, otherwise queues it.
    pub(crate) fn enqueue(&self, task: Task) {
        let passes = task.is_answer();
        self.enqueue_at(task, passes);
    }

    /// The same for what no barrier may hold back, when it `passes` them.
    pub(super) fn enqueue_at(&self, mut task: Task, passes: bool) {
        if self.state.get() == State::New && task.is_message() {
            if let Err(error) = self.open_message_lane() {
                if error.status() != Status::Again {
                    self.fail(error);
                }
            }
        }
        let first = !task.is_message() && self.queue_len() == 0;
        match self.state.get() {
            State::Failed | State::Closed => {
                let error = self.dead_error();
                return self.settle(&task, Err(error));
            }
            State::New if !first => {}
            State::Ready | State::New => match self.attempt(&mut task) {
                Ok(true) => {
                    if Self::ends_when_sent(&task) {
                        self.settle(&task, Ok(0));
                    }
                    return;
                }
                Ok(false) => {}
                Err(status) => return self.task_failed(&task, status),
            },
            State::Queueing => {}
        }
        self.queued_bytes.set(self.queued_bytes.get() + task.bytes());
        {
            let mut queue = self.queue.borrow_mut();
            let barrier = |task: &Task| matches!(task, Task::Barrier { .. });
            let first = if passes { queue.iter().position(barrier) } else { None };
            let at = first.unwrap_or(queue.len());
            queue.insert(at, task);
        }
        if self.state.get() == State::Ready {
            self.state.set(State::Queueing);
        }
        self.worker.make_busy(self);
    }

    fn task_failed(&self, task: &Task, status: Status) {
        let error = self.failure(status);
        self.settle(task, Err(error.clone()));
        self.endpoint_status(status, error);
    }

    /// Hands an emulated operation to the endpoint that it goes through, behind what a fence holds back here.
    pub(super) fn emulate(&self, control: &Rc<Inner>, task: Task) {
        let held_back = |task: &Task| matches!(task, Task::Barrier { .. });
        if !std::ptr::eq(self, Rc::as_ptr(control)) && self.queue.borrow().iter().any(held_back) {
            return self.enqueue(Task::Forward { to: control.clone(), task: Some(Box::new(task)) });
        }
        control.enqueue(task);
    }

    /// Whether another payload of this length may be queued.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        let bytes = self.queued_bytes.get();
        bytes == 0 || bytes + len + 64 <= self.worker.core.queue_bytes
    }

    /// Whether nothing here can move until a connection has formed, or has failed to.
    pub(crate) fn waits_for_line(&self) -> bool {
        match self.queue.borrow().front() {
            Some(Task::Native(op)) => op.key.forming().is_some(),
            Some(task) if task.is_message() && self.state.get() == State::New => {
                self.route.message().is_some_and(|way| self.worker.line_forms(self, way.interface))
            }
            _ => false,
        }
    }

    pub(crate) fn queue_len(&self) -> usize {
        self.queue.borrow().len()
    }

    /// Drains up to `budget` tasks; returns how many were done and whether some are left.
    pub(crate) fn run_queue(&self, budget: usize) -> (usize, bool) {
        let mut done = 0;
        while done < budget {
            let message = self.queue.borrow().front().is_some_and(Task::is_message);
            if message && self.state.get() == State::New {
                match self.open_message_lane() {
                    Ok(()) => self.state.set(State::Queueing),
                    Err(error) if error.status() == Status::Again => return (done, true),
                    Err(error) => {
                        self.fail(error);
                        return (done + 1, false);
                    }
                }
            }
            // Taken out while it runs: what it triggers may queue more.
            let Some(mut task) = self.queue.borrow_mut().pop_front() else { break };
            match self.attempt(&mut task) {
                Ok(true) => {
                    self.queued_bytes.set(self.queued_bytes.get().saturating_sub(task.bytes()));
                    done += 1;
                    if Self::ends_when_sent(&task) {
                        self.settle(&task, Ok(0));
                    }
                }
                Ok(false) => {
                    self.queue.borrow_mut().push_front(task);
                    return (done, true);
                }
                Err(status) => {
                    self.queued_bytes.set(self.queued_bytes.get().saturating_sub(task.bytes()));
                    self.task_failed(&task, status);
                    done += 1;
                }
            }
        }
        let left = !self.queue.borrow().is_empty();
        if !left && self.state.get() == State::Queueing {
            self.state.set(State::Ready);
        }
        (done, left)
    }
}
