//! The peers that connect, leave or fail: events of interfaces, and the reports to the application.

use super::WorkerState;
use crate::address::WorkerAddress;
use crate::endpoint::{Endpoint, EndpointState, Owner};
use crate::interface::{InterfaceSlot, PeerId};
use crate::{Error, Status};
use std::rc::Rc;
use tieline_host::abi::events::{Polled, payload};
use tieline_order::Id;
use tieline_plugin_api::caps;

/// The status of a connection that was closed in good order.
const CLOSED: i32 = Status::Closed as i32;

/// A peer event that is not reported to the application yet.
pub(super) enum PeerEvent {
    /// A peer has failed.
    Gone(PeerId, Error),
    /// A peer has left in good order.
    Left(PeerId),
    /// An endpoint of the application has failed.
    Failed(Id, Error),
}

/// An endpoint whose connection the peer has closed in good order, while other connections of the peer were still connected. A peer
/// that leaves closes these as well. If it has not done so in time, the failure of the endpoint is reported.
pub(super) struct Doubt {
    /// The time of the report, in ns of the wiring's clock.
    pub(super) until: u64,
    peer: u32,
    endpoint: Id,
    error: Error,
}

/// The time in ns for which the report of such a failure is postponed, so that a peer that leaves can close its other connections.
const LEAVING: u64 = 1_000_000_000;

/// Checks whether this status of an ended connection concerns the peer itself. Other statuses concern only the connection.
pub(super) fn speaks_of_peer(status: Status) -> bool {
    matches!(status, Status::PeerFailed | Status::TimedOut | Status::Unreachable)
}

/// Returns the remedy for a connection that ended with this status; empty if none is known.
pub(super) fn remedy_for_status(status: Status) -> &'static str {
    match status {
        Status::PeerFailed => "start the peer again, and connect to its new address",
        Status::TimedOut => {
            "connect again when the peer answers; TIELINE_FAILURE_TIMEOUT is how long silence is allowed"
        }
        Status::Unreachable => "remove what the reason names, and connect again",
        _ => "",
    }
}

impl WorkerState {
    pub(super) fn peer_arrived(&self, slot: &InterfaceSlot, event: &Polled) {
        let address = WorkerAddress::parse(payload(event)).ok();
        if address.is_none() {
            self.bump(|c| c.malformed += 1);
        }
        let index = match &address {
            Some(address) => self.peer_number(address),
            None => self.nobodys_number(),
        };
        self.note_peer(slot, event.peer, index);
        self.peers.borrow_mut().stands(index);
        self.tell_name_to(index);
    }

    pub(super) fn peer_left(&self, slot: &InterfaceSlot, event: &Polled) {
        if matches!(event.status, 0 | CLOSED) {
            return self.closed_in_good_order(slot, event.peer);
        }
        let peer = slot.peer(event.peer);
        let _ = self.forget_number(slot, event.peer);
        self.connection_lost(slot, peer, event);
    }

    /// Handles the failure of a peer's connection to an interface. If the interface observes the peer's process, its report is
    /// reliable. If the interface only stopped receiving from the peer, the connection itself may be at fault.
    fn connection_lost(&self, slot: &InterfaceSlot, peer: PeerId, event: &Polled) {
        let status = Status::from_code(event.status);
        let address = match self.peers.borrow().get(peer.0) {
            Some(entry) => entry.address.clone(),
            None => return,
        };
        let label = address.as_ref().map_or_else(|| peer.to_string(), WorkerAddress::label);
        let words = String::from_utf8_lossy(payload(event)).into_owned();
        let why = if words.is_empty() { status.text().to_string() } else { words };
        let error = Error::new(status, format!("{label} is gone"), why, remedy_for_status(status));
        let Some(worker) = address.map(|address| address.entry.worker) else {
            return self.tell_of_failure(peer, &error);
        };
        let lives = match slot.attr.caps & caps::LOCAL_ONLY {
            0 => self.stands_elsewhere(worker, slot, status),
            // If the peer has failed, each of its connections reports that.
            _ => !slot.numbers_of(peer.0).is_empty(),
        };
        if !lives {
            self.peer_lost(peer, &error);
        }
    }

    /// Handles the failure of an endpoint of this worker to a peer's interface.
    pub(super) fn endpoint_lost(
        &self,
        slot: &InterfaceSlot,
        endpoint: &EndpointState,
        error: &Error,
    ) {
        let worker = endpoint.address.entry.worker;
        if endpoint.owner == Owner::Application {
            let peer = PeerId(self.peer_number(&endpoint.address));
            if error.status() == Status::Closed {
                self.peers.borrow_mut().leaves(peer.0);
                if !self.is_here(peer) {
                    self.tell_of_leaving(peer);
                }
                return self.tell_of_loss(&worker);
            }
            let hearsay = slot.attr.caps & caps::LOCAL_ONLY == 0;
            let lives = match speaks_of_peer(error.status()) {
                true => hearsay && self.stands_elsewhere(worker, slot, error.status()),
                false => self.is_here(peer),
            };
            if !lives {
                return self.peer_lost(peer, error);
            }
        }
        self.tell_of_loss(&worker);
    }

    /// Handles the failure of a peer, which a third party may only claim. If endpoints of this worker observe the peer's process
    /// themselves, the application is notified after they have failed.
    pub(super) fn peer_lost(&self, peer: PeerId, error: &Error) {
        let address = self.peers.borrow().get(peer.0).and_then(|peer| peer.address.clone());
        let Some(address) = address else { return self.tell_of_failure(peer, error) };
        let worker = address.entry.worker;
        let error = self.with_exit(&worker, error.clone());
        let _ = self.peers.borrow_mut().lose(peer.0, &error);
        self.tell_of_loss(&worker);
    }

    /// Reports the failure of a peer, unless an endpoint of this worker still observes the peer's process.
    pub(super) fn tell_of_loss(&self, worker: &[u8; 16]) {
        let lost = self.peers.borrow().lost(worker);
        let Some((peer, error)) = lost else { return };
        if !self.sees_process(worker) {
            self.tell_of_failure(PeerId(peer), &error);
        }
    }

    /// Checks whether a usable endpoint of this worker observes the peer's process.
    fn sees_process(&self, worker: &[u8; 16]) -> bool {
        const SEES: u64 = caps::LOCAL_ONLY | caps::PEER_FAILURE;
        let slots = self.shared.interfaces.iter().enumerate();
        let seeing: Vec<usize> = slots
            .filter(|(_, slot)| slot.attr.caps & SEES == SEES)
            .map(|(index, _)| index)
            .collect();
        self.all_endpoints().iter().any(|endpoint| {
            let leads_there = endpoint.address.entry.worker == *worker && endpoint.is_alive();
            leads_there && seeing.iter().any(|index| endpoint.has_lane(*index))
        })
    }

    /// Reports the failure of a peer to the application, once until the peer reconnects. Failures of service workers are not
    /// reported.
    pub(super) fn tell_of_failure(&self, peer: PeerId, error: &Error) {
        if self.peers.borrow_mut().tell(peer.0, error) {
            if let Some(journal) = self.shared.core.journal() {
                journal.tell_of_failure(None, &error.to_string());
            }
            if !self.peers.borrow().is_service(peer.0) {
                self.tell(PeerEvent::Gone(peer, error.clone()));
            }
            self.announcements.left_behind(peer.0);
        }
    }

    /// Queues a peer event. Any call may detect a peer event, also inside a handler; only calls that make progress run handlers,
    /// one at a time.
    pub(super) fn tell(&self, news: PeerEvent) {
        self.news.borrow_mut().push_back(news);
        self.shared.note_work();
    }

    /// Reports the queued peer events. The caller ensures that no handler is running.
    #[inline]
    pub(super) fn notify_of_peer_events(&self) -> usize {
        if self.news.borrow().is_empty() { 0 } else { self.notify_of_news() }
    }

    #[cold]
    fn notify_of_news(&self) -> usize {
        let mut told = 0;
        // Events caused by these handlers wait for the next call: otherwise a handler that always fails to reconnect would run in
        // an endless loop.
        let waiting = self.news.borrow().len();
        for _ in 0..waiting {
            let next = self.news.borrow_mut().pop_front();
            let Some(news) = next else { break };
            // The cell is not borrowed while a handler runs, because the handler may register another one.
            match news {
                PeerEvent::Gone(peer, error) => {
                    let handler = self.on_failure.borrow().clone();
                    handler.into_iter().for_each(|handler| handler(peer, &error));
                }
                PeerEvent::Left(peer) => {
                    let handler = self.on_left.borrow().clone();
                    handler.into_iter().for_each(|handler| handler(peer));
                }
                PeerEvent::Failed(endpoint, error) => self.report_failed(endpoint, error),
            }
            told += 1;
        }
        told
    }

    fn report_failed(&self, endpoint: Id, error: Error) {
        let handler = self.on_endpoint_failure.borrow().clone();
        // An endpoint that was dropped meanwhile is not reported.
        let inner = self.endpoint(endpoint.raw()).filter(|inner| inner.is_named());
        // If the peer has left, that is reported instead.
        let inner = inner.filter(|inner| !self.has_left(inner, &error));
        if let (Some(handler), Some(inner)) = (handler, inner) {
            handler(&Endpoint::new(inner), &error.into());
        }
    }

    /// Postpones the reports of these endpoints' failures, because the peer has closed one of several connections in good order.
    #[cold]
    pub(super) fn doubt(&self, endpoints: &[Rc<EndpointState>], peer: PeerId) {
        let until = self.wiring.now().saturating_add(LEAVING);
        let news = self.news.take();
        for news in news {
            match news {
                PeerEvent::Failed(endpoint, error)
                    if error.status() == Status::Closed
                        && endpoints.iter().any(|failed| failed.id == endpoint) =>
                {
                    let doubt = Doubt { until, peer: peer.0, endpoint, error };
                    self.doubted.borrow_mut().push(doubt);
                }
                other => self.news.borrow_mut().push_back(other),
            }
        }
        self.set_wiring_timer();
    }

    /// Reports the failures whose peer has not left in time.
    pub(super) fn end_doubts(&self) {
        let now = self.wiring.now();
        let doubted = self.doubted.take();
        let (ended, open) = doubted.into_iter().partition::<Vec<_>, _>(|doubt| doubt.until <= now);
        let _ = self.doubted.replace(open);
        for doubt in ended {
            self.tell(PeerEvent::Failed(doubt.endpoint, doubt.error));
        }
    }

    /// Handles the release of a connection. If the peer has closed another one in good order, and none is left whose end could be
    /// observed, the peer has left.
    pub(super) fn may_have_left(&self, peer: PeerId) {
        let doubted = self.doubted.borrow().iter().any(|doubt| doubt.peer == peer.0);
        if doubted && self.peers.borrow().ways(peer.0) == 0 {
            self.tell_of_leaving(peer);
        }
    }

    /// Checks whether an endpoint ended because its peer has left or is leaving in good order.
    fn has_left(&self, endpoint: &EndpointState, error: &Error) -> bool {
        let worker = &endpoint.address.entry.worker;
        error.status() == Status::Closed && self.peers.borrow().tells_of_leaving(worker)
    }

    /// Returns the worker's number of a peer; assigns one to a new peer.
    pub(super) fn peer_number(&self, address: &WorkerAddress) -> u32 {
        let (number, forgotten) = self.peers.borrow_mut().number(address);
        drop(forgotten);
        number
    }

    /// Assigns a number to a peer with a malformed address.
    fn nobodys_number(&self) -> u32 {
        let (number, forgotten) = self.peers.borrow_mut().add(None);
        drop(forgotten);
        number
    }

    /// Maps an interface's number to that peer from this call on.
    pub(super) fn note_peer(&self, slot: &InterfaceSlot, number: u64, peer: u32) {
        let before = slot.note_number(number, peer);
        let forgotten = {
            let mut peers = self.peers.borrow_mut();
            peers.arrived(peer);
            peers.left(before)
        };
        drop(forgotten);
    }

    /// Removes an interface's number of a peer, and returns that peer.
    pub(super) fn forget_number(&self, slot: &InterfaceSlot, number: u64) -> PeerId {
        let before = slot.forget_number(number);
        let forgotten = self.peers.borrow_mut().left(before);
        drop(forgotten);
        PeerId(before)
    }

    /// Checks whether a connection from a peer, or a circuit with it, is connected.
    pub(super) fn is_here(&self, peer: PeerId) -> bool {
        let ways = self.peers.borrow().ways(peer.0);
        ways > 0 && ways > self.ways_that_stand_not(peer)
    }

    /// Handles a connection that a peer has closed in good order. If it was the peer's last one, the peer has left.
    #[cold]
    fn closed_in_good_order(&self, slot: &InterfaceSlot, number: u64) {
        let peer = self.forget_number(slot, number);
        if !self.is_here(peer) {
            self.tell_of_leaving(peer);
        }
    }

    /// Reports to the application that a peer has left in good order, once until the peer reconnects. Service workers are not
    /// reported.
    #[cold]
    pub(super) fn tell_of_leaving(&self, peer: PeerId) {
        if self.peers.borrow_mut().part(peer.0) && !self.peers.borrow().is_service(peer.0) {
            self.doubted.borrow_mut().retain(|doubt| doubt.peer != peer.0);
            self.tell(PeerEvent::Left(peer));
            self.announcements.left_behind(peer.0);
        }
    }
}
