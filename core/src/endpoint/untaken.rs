//! Replacement of a lane that the peer refuses at first contact by the next lane. The peer received nothing, so the messages that
//! the lane had accepted return to the queue, in order, ahead of all messages queued since.

use super::queued::QueuedOp;
use super::{EndpointState, State};
use crate::interface::LaneLimits;
use crate::{Error, Status};

impl EndpointState {
    /// Takes back a message that was sent over this interface and that the peer has not received.
    pub(crate) fn came_back(&self, interface: usize, id: u16, header: u64, payload: &[u8]) {
        if self.is_alive() && self.goes_over(interface) {
            let message = QueuedOp::Returned { id, header, payload: payload.into() };
            self.returned.borrow_mut().push(message);
        }
    }

    fn goes_over(&self, interface: usize) -> bool {
        self.route.message().is_some_and(|pair| pair.interface == interface)
    }

    /// Handles a peer's refusal of the lane over this interface, over which the peer received nothing. `false`: no other lane can
    /// replace it, and the caller has to fail the endpoint.
    pub(crate) fn turned_away(&self, interface: usize, error: &Error) -> bool {
        let returned = std::mem::take(&mut *self.returned.borrow_mut());
        if !self.is_alive() || self.packs() {
            return false;
        }
        if !self.goes_over(interface) {
            self.leave_lane(interface, error);
            return true;
        }
        if !matches!(self.state.get(), State::Ready | State::Queueing) {
            return false;
        }
        let before = self.message_path();
        let longest = returned.iter().map(QueuedOp::copied).max().unwrap_or(0);
        if !self.next_lane_for(longest) {
            return false;
        }
        self.state.set(State::New);
        self.message.leave();
        self.leave_lane(interface, error);
        returned.into_iter().rev().for_each(|message| self.queue.push_front(message));
        self.refresh_keys();
        let now = self.message_path();
        *self.refused_before.borrow_mut() = Some(format!("before that, {before}: {}", error.why()));
        self.shared.core.note(format!("{before}: {error}; from now on: {now}"));
        self.worker.make_busy(self);
        true
    }

    /// Checks that the peer has not refused this lane. A refused lane is not opened again, because each key would cause another
    /// refusal.
    pub(super) fn check_not_refused(&self, interface: usize) -> Result<(), Error> {
        if !self.lanes.was_refused(interface) {
            return Ok(());
        }
        let path = &self.shared.interfaces[interface].path;
        Err(Error::new(
            Status::Unreachable,
            format!("{} through {path}", self.address.label()),
            "the peer refused this path at first contact",
            "",
        ))
    }

    /// Adds the reason why an earlier lane was refused to an error.
    pub(super) fn with_refusal_before(&self, error: Error) -> Error {
        match self.refused_before.take() {
            Some(before) => {
                let why = format!("{}; {before}", error.why());
                Error::new(error.status(), error.what(), why, error.fix())
            }
            None => error,
        }
    }

    /// Selects the next message lane that supports messages of this length.
    fn next_lane_for(&self, longest: usize) -> bool {
        let domain = |at: usize| &self.shared.interfaces[at].domain;
        while self.route.next_message(|a, b| domain(a) == domain(b)) {
            let carries = self.route.message().map(|pair| {
                let limits = LaneLimits::from_module(&self.shared.interfaces[pair.interface].attr);
                limits.max_packed.max(limits.max_short)
            });
            if carries.is_some_and(|most| most >= longest) {
                return true;
            }
        }
        false
    }

    /// Stops using this lane. The lane is closed with the endpoint, because queued operations may still refer to the lane.
    fn leave_lane(&self, interface: usize, error: &Error) {
        self.leave_interface(interface, error);
        self.lanes.refuse(interface);
    }
}
