//! The end of an endpoint: its cause, its consequences, and its remaining objects.

use super::flush::ends_service;
use super::queued::{Failed, QueuedOp};
use super::{EndpointState, Owner, State};
use crate::error::Scope;
use crate::op::held::Through;
use crate::proto::emulate::{KEEP_MAPPED, refused};
use crate::registry::abi::RawEndpoint;
use crate::sys::Refusal;
use crate::{Error, Status};
use std::rc::{Rc, Weak};

impl EndpointState {
    pub(crate) fn check_alive(&self) -> Result<(), Error> {
        self.shared.core.check_process("an endpoint")?;
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

    /// Ends the endpoint: its pending operations complete with `error`, unless another endpoint takes them over.
    pub(crate) fn fail(&self, error: Error) {
        if matches!(self.state.get(), State::Failed | State::Closed) {
            // A lane of this endpoint may still be in use by its user.
            return self.lost_for_its_user(None, &error);
        }
        let is_new = self.state.get() == State::New;
        let error = if is_new { self.with_refusal_before(error) } else { error };
        let error = self.worker.with_exit(&self.address.entry.worker, error.of(Scope::Connection));
        if is_new && ends_service(&error) {
            self.hand_over();
        }
        self.state.set(State::Failed);
        self.message.set(RawEndpoint::nowhere());
        *self.error.borrow_mut() = Some(error.clone());
        self.worker.endpoint_failed(self, &error);
        self.tell_of_failure(&error);
        // Queued operations hold buffers and keys, whose drops may access the endpoint again.
        let queued = std::mem::take(&mut *self.queue.borrow_mut());
        self.queued_bytes.set(0);
        let unfinished = self.shared.with_ops(|ops| ops.fail_owner(self.index, &error));
        for inner in queued.iter().filter_map(QueuedOp::inner_request) {
            self.shared.ops.borrow_mut().forget(inner);
        }
        drop(queued);
        self.forget_keys();
        self.hold(unfinished);
        if error.status() != Status::PeerFailed {
            for waiting in self.take_answers() {
                self.worker.answer_lost(self, waiting, error.status());
            }
        }
        self.worker.clone().end_circuits(self, &error);
        self.lost_for_its_user(None, &error);
        if self.owner != Owner::Circuit {
            self.worker.service_peer_lost(self.address.entry.worker, &error);
        }
        if let Some(control) = self.open_control() {
            control.fail(error);
        }
        self.worker.answer_another_way(self);
    }

    /// Notifies the user of this endpoint to a peer's service worker that the endpoint has failed, or that it has lost its lanes
    /// over one interface.
    pub(super) fn lost_for_its_user(&self, interface: Option<usize>, error: &Error) {
        let user = if self.reaches_memory.get() { self.user() } else { None };
        if let Some(user) = user {
            user.control_failed(self, interface, error);
        }
    }

    /// Returns the endpoint that uses this endpoint to a peer's service worker.
    pub(crate) fn user(&self) -> Option<Rc<EndpointState>> {
        // The endpoint may be one that another has replaced: keys imported before still use its lanes.
        let is_this = |control: &Rc<EndpointState>| std::ptr::eq(&**control, self);
        let serves = |of: &Rc<EndpointState>| {
            of.open_control().is_some_and(|control| is_this(&control))
                || of.past_controls.borrow().iter().any(is_this)
        };
        // If the user does not exist any more, its index may belong to another endpoint.
        let user = self.worker.endpoint_at(self.user.get()?);
        user.filter(|user| serves(user) && user.is_alive())
    }

    /// Hands the queued operations of an endpoint whose service worker is gone, and to which nothing was sent, to the endpoint to
    /// the peer's own worker. These operations are queued ahead of that endpoint's own, which may wait for them.
    fn hand_over(&self) {
        let waits = self.shared.ops.borrow().open_of(self.index) > 0;
        let Some(user) = waits.then(|| self.user()).flatten() else { return };
        self.handed_over.set(true);
        self.shared.with_ops(|ops| ops.hand_over(self.index, user.index));
        let queued = std::mem::take(&mut *self.queue.borrow_mut());
        queued.into_iter().rev().for_each(|op| user.put_first(op));
    }

    /// Handles a provider that broke its contract: no function of this interface is called again, even if this endpoint failed
    /// before.
    pub(crate) fn cut_off(&self, interface: usize, error: &Error) {
        for lanes in [&self.lanes, &self.past_lanes] {
            let mut lanes = lanes.borrow_mut();
            lanes.iter_mut().filter(|l| l.interface == interface).for_each(|l| l.raw.fail());
        }
        let message = self.route.message().is_some_and(|pair| pair.interface == interface);
        if message && self.is_alive() && self.state.get() != State::New {
            let mut raw = self.message.get();
            raw.fail();
            self.message.set(raw);
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
        let keys: Vec<_> = self.keys.borrow().iter().filter_map(Weak::upgrade).collect();
        for key in keys {
            key.retire(interface, broken);
        }
    }
}

impl Drop for EndpointState {
    fn drop(&mut self) {
        self.withdraw_all();
        self.state.set(State::Closed);
        if !self.all_circuits().is_empty() {
            self.shared.orphan(self.index, |interface| self.through(interface));
        }
        let error = Error::from_status(Status::Canceled);
        let unfinished = self.shared.with_ops(|ops| ops.cancel_owner(self.index, &error));
        self.hold(unfinished);
        if self.shared.same_process() {
            self.unasked_circuits().into_iter().for_each(|at| self.worker.leave_unasked(at));
            for lanes in [&self.lanes, &self.past_lanes] {
                lanes
                    .borrow_mut()
                    .drain(..)
                    .filter(|lane| lane.owned)
                    .for_each(|lane| lane.close());
            }
            self.worker.release_circuits(self);
            self.shared.provider_closed(Through::Endpoint(self.id));
        }
        self.worker.remove_endpoint(self);
    }
}
