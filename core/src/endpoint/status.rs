//! The published state of an endpoint.

use super::queued::QueuedOp;
use super::{EndpointState, Owner, State};
use tieline_explain::snapshot::{EndpointStatus, Waits, cut, short};
use tieline_order::{Id, Kind};

impl EndpointState {
    /// Returns the state, and the oldest operation, from which the waiting time is determined.
    pub(crate) fn status(&self) -> (EndpointStatus, Option<Id>) {
        let oldest = self.shared.ops.borrow().oldest_of(self.index);
        let path = |interface: usize| self.shared.interfaces.get(interface).map(|slot| &slot.path);
        let (address, here) = (&self.address, self.shared.core.location());
        let there = &address.location;
        // A value that could not be read is zero, so it is not compared.
        let same_host = there.boot_id != [0; 16]
            && (there.boot_id, there.pid_namespace) == (here.boot_id, here.pid_namespace);
        let for_what =
            self.is_alive().then(|| self.waits_for(oldest.map(|o| (o.kind, o.posted_to))));
        let mut status = EndpointStatus::default();
        status.peer = cut(&address.label());
        status.peer_pid = same_host.then_some(there.pid);
        status.peer_worker = short(&address.entry.worker);
        status.owner = match self.owner {
            Owner::Application => "application",
            Owner::Library => "library",
            Owner::Circuit => "answers",
        }
        .to_owned();
        status.user = self.word.get();
        status.state = match self.state.get() {
            State::Ready => "ready",
            State::New => "unconnected",
            State::Queueing => "queueing",
            State::Failed => "failed",
            State::Closed => "closed",
        }
        .to_owned();
        status.message = self.message_path();
        status.open = {
            let ops = self.shared.ops.borrow();
            ops.open_of(self.index) + ops.announced_of(self.index)
        };
        status.queued = self.waiting_len();
        status.queued_bytes = self.queue.bytes() + self.requests.bytes();
        status.answers = self.answers_len();
        status.counters = self.counters.get().named();
        status.lanes =
            self.lanes.all().iter().filter_map(|lane| path(lane.interface).cloned()).collect();
        let waits = for_what.flatten().map(|for_what| (for_what, oldest.map(|oldest| oldest.id)));
        let id = waits.as_ref().and_then(|(_, id)| *id);
        status.waits = waits.map(|(for_what, _)| {
            let mut waits = Waits::default();
            waits.for_what = for_what;
            waits
        });
        status.error = self.error.borrow().as_ref().map(|error| cut(&error.to_string()));
        (status, id)
    }

    /// Returns the reason why the endpoint's oldest operation or answer waits, as text; `None` if there is none.
    fn waits_for(&self, oldest: Option<(Kind, Option<usize>)>) -> Option<String> {
        let name = |interface: usize| match self.shared.interfaces.get(interface) {
            Some(slot) => slot.path.clone(),
            None => "an interface".to_owned(),
        };
        let queue = self.queue.entries();
        if queue.is_empty() && self.answers.borrow().is_empty() {
            if self.requests.len() > 0 {
                return self.open_service().map(|service| service.message_lane_waits_for());
            }
            let (kind, posted_to) = oldest?;
            return Some(match (kind, posted_to) {
                (_, Some(interface)) => {
                    format!(
                        "{} to complete it: the peer, or the way there, has not answered",
                        name(interface)
                    )
                }
                (Kind::Put | Kind::Get | Kind::Atomic | Kind::Fetch | Kind::Key, None) => {
                    "the peer's answer: its worker has to make progress".to_owned()
                }
                (Kind::Ping, None) => {
                    "the peer's confirmation that it has handled all messages".to_owned()
                }
                (Kind::Copy, None) => "the peer, which copies a part".to_owned(),
                (Kind::Announced, None) => {
                    "the peer to receive or refuse a rendezvous message".to_owned()
                }
                (Kind::Delivery, None) => {
                    "the peer to acknowledge a message: its handler has to return".to_owned()
                }
                (Kind::Notice, None) => "the operations that a notification follows".to_owned(),
                (Kind::Flush, None) => "operations in flight on its lanes".to_owned(),
                (Kind::Native, None) => "its turn".to_owned(),
                (Kind::Whole, None) => "its parts".to_owned(),
                (Kind::Send, None) => "a peer's answer to what was sent before".to_owned(),
            });
        }
        Some(match queue.front() {
            Some(op) if self.is_message(op) => self.message_lane_waits_for(),
            Some(QueuedOp::Native(op)) => match op.key.forming(op.declined) {
                Some(_) => "a connection to the peer's memory".to_owned(),
                None => "room for puts and gets".to_owned(),
            },
            Some(QueuedOp::Atomic(_)) => "room for an atomic".to_owned(),
            Some(QueuedOp::Barrier { .. }) => "everything before a fence".to_owned(),
            Some(QueuedOp::FlushLanes { .. }) => "operations in flight on its lanes".to_owned(),
            Some(_) => "its turn".to_owned(),
            None => self.message_lane_waits_for(), // only answers are pending
        })
    }

    fn message_lane_waits_for(&self) -> String {
        let path = self.message_path();
        match self.state.get() {
            State::New if self.message_lane_forms() => format!("its connection over {path}"),
            State::New => format!("{path} to open"),
            _ => format!(
                "room in {path}: the peer has not received earlier data, as when it makes no progress"
            ),
        }
    }
}
