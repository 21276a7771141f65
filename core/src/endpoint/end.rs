//! The end of an endpoint: its cause, its consequences, and its remaining objects.

use super::queued::{Failed, QueuedOp};
use super::{EndpointState, Owner, State};
use crate::error::Scope;
use crate::proto::emulate::{KEEP_MAPPED, refused};
use crate::sys::Refusal;
use crate::{Error, Status};
use std::collections::VecDeque;
use tieline_order::held::Through;

impl EndpointState {
    pub(crate) fn check_alive(&self) -> Result<(), Error> {
        self.shared.check_process("an endpoint")?;
        match self.state.get() {
            State::Failed | State::Closed => Err(self.dead_error()),
            _ => Ok(()),
        }
    }

    pub(crate) fn dead_error(&self) -> Error {
        self.error.borrow().clone().unwrap_or_else(|| Error::from_status(Status::Closed))
    }

    /// Makes the error for a status that a lane over this interface returned. An ended endpoint returns its own error instead.
    pub(crate) fn failure_over(&self, status: Status, interface: Option<usize>) -> Error {
        let path = || match interface {
            Some(interface) => self.shared.interfaces[interface].path.clone(),
            None => self.message_path(),
        };
        if let Some(error) = self.error.borrow().as_ref() {
            return error.clone();
        }
        match status {
            Status::Again => Error::from_status(status),
            Status::KeyRejected => {
                self.key_refused();
                refused(status)
            }
            Status::OutOfRange | Status::Misaligned => refused(status),
            Refusal::FAULT => self.fault_over(interface),
            _ => Error::new(
                status,
                format!("{} through {}", self.address.label(), path()),
                status.text(),
                "",
            ),
        }
    }

    /// Builds the error for missing memory on one of the two sides, with the module's text, if there is one.
    #[cold]
    fn fault_over(&self, interface: Option<usize>) -> Error {
        let said = interface.map(|index| self.shared.interfaces[index].provider.last_error());
        let why = said.filter(|words| !words.is_empty());
        Error::new(
            Refusal::FAULT,
            "the target refused the operation",
            why.unwrap_or_else(|| "its memory is missing or protected".into()),
            KEEP_MAPPED,
        )
    }

    /// Handles a failure on a lane, and returns its error. If the status means the end of the endpoint, the endpoint ends. A
    /// provider that broke its contract is taken out of use, for all lanes that it served.
    #[cold]
    pub(crate) fn failed(&self, failed: Failed) -> Error {
        let error = self.failure_over(failed.status, failed.interface);
        match failed.status {
            Status::PeerFailed | Status::Closed | Status::BadData | Status::Io => {
                self.fail(error);
                return self.dead_error();
            }
            Status::ProviderFailed => {
                if let Some(interface) = failed.interface {
                    self.worker.provider_failed(interface);
                }
            }
            _ => {}
        }
        error
    }

    /// Handles a lane's report that the peer's process is gone. If another lane carries messages, that lane reports the loss as
    /// well, after all messages that the peer had sent, including answers. Therefore, if rendezvous messages wait for an answer,
    /// only this posted operation fails. Otherwise the endpoint fails.
    #[cold]
    pub(super) fn peer_lost(&self, error: Error, interface: usize) -> Error {
        let messages = self.route.message().map(|pair| pair.interface);
        let reads_on = matches!(self.state.get(), State::Ready | State::Queueing)
            && messages != Some(interface)
            && self.shared.ops.borrow().announced_of(self.index) > 0;
        if reads_on {
            return error.of(Scope::Connection);
        }
        self.fail(error);
        self.dead_error()
    }

    /// Handles a failure on the message lane, and returns its error.
    pub(super) fn message_failed(&self, status: Status) -> Error {
        self.failed(self.by_message_lane(status))
    }

    /// Ends the endpoint: its pending operations complete with `error`. So do those of other endpoints that it carries.
    pub(crate) fn fail(&self, error: Error) {
        if !self.is_alive() {
            return;
        }
        let is_new = self.state.get() == State::New;
        let error = if is_new { self.with_refusal_before(error) } else { error };
        let error = self.worker.with_exit(&self.address.entry.worker, error.of(Scope::Connection));
        self.state.set(State::Failed);
        self.message.leave();
        *self.error.borrow_mut() = Some(error.clone());
        self.worker.endpoint_failed(self, &error);
        self.tell_of_failure(&error);
        let queued = self.take_queues();
        let unfinished = self.shared.with_ops(|ops| ops.fail_owner(self.index, &error));
        self.drop_entries(queued);
        self.fail_users(is_new, &error);
        self.forget_keys();
        self.hold(unfinished);
        if error.status() != Status::PeerFailed {
            for waiting in self.take_answers() {
                self.worker.answer_lost(self, waiting, error.status());
            }
        }
        self.worker.clone().end_circuits(self, &error);
        if self.owner != Owner::Circuit {
            self.worker.service_peer_lost(self.address.entry.worker, &error);
        }
        self.worker.answer_another_way(self);
    }

    /// Takes the queued operations of an ended endpoint.
    pub(super) fn take_queues(&self) -> VecDeque<QueuedOp> {
        let mut queued = self.queue.take();
        queued.append(&mut self.requests.take());
        queued
    }

    /// Drops the queued operations of an ended endpoint. They hold buffers and keys, whose drops may access the endpoint again.
    pub(super) fn drop_entries(&self, queued: VecDeque<QueuedOp>) {
        for inner in queued.iter().filter_map(QueuedOp::inner_request) {
            self.shared.ops.borrow_mut().forget(inner);
        }
    }

    /// Handles a provider that broke its contract: no function of this interface is called again, even if this endpoint failed
    /// before.
    pub(crate) fn cut_off(&self, interface: usize, error: &Error) {
        self.lanes.cut_off(interface);
        let message = self.route.message().is_some_and(|pair| pair.interface == interface);
        if message && self.is_alive() && self.state.get() != State::New {
            self.message.cut_off();
        }
        self.retire_keys(interface, true);
        let unfinished = self.shared.with_ops(|ops| ops.fail_posted(self.index, interface, error));
        unfinished.into_iter().for_each(|op| self.shared.hold(op, vec![Through::Interface]));
    }

    /// Handles an interface that is out of use: operations in flight on it end.
    pub(crate) fn leave_interface(&self, interface: usize, error: &Error) {
        if !self.is_alive() {
            return;
        }
        let unfinished = self.shared.with_ops(|ops| ops.fail_posted(self.index, interface, error));
        self.hold(unfinished);
        self.retire_keys(interface, false);
    }

    /// Ends the endpoint if its messages use this interface. An endpoint without an open message lane tries the next lane instead.
    pub(crate) fn lose_interface(&self, interface: usize, error: &Error) {
        let message = self.route.message().is_some_and(|pair| pair.interface == interface);
        if !message || !self.is_alive() {
            return;
        }
        match self.state.get() {
            // Nothing was sent yet, so queued operations may use the next lane.
            State::New if !self.has_lane(interface) => self.worker.make_busy(self),
            _ => self.fail(error.clone()),
        }
    }

    fn retire_keys(&self, interface: usize, broken: bool) {
        self.live_keys().iter().for_each(|key| key.retire(interface, broken));
    }
}

impl Drop for EndpointState {
    fn drop(&mut self) {
        self.withdraw_all();
        self.state.set(State::Closed);
        self.shared.orphan(self.index, |interface| self.through(interface));
        let error = Error::from_status(Status::Canceled);
        let unfinished = self.shared.with_ops(|ops| ops.cancel_owner(self.index, &error));
        self.hold(unfinished);
        self.drop_kept_keys();
        if self.shared.same_process() {
            self.unasked_circuits().into_iter().for_each(|at| self.worker.leave_unasked(at, self));
            self.lanes.close();
            self.worker.release_circuits(self);
            self.shared.provider_closed(Through::Endpoint(self.id));
        }
        self.worker.remove_endpoint(self);
    }
}
