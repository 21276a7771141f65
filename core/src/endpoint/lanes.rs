//! The lanes of an endpoint: opened on first use, and replaced or released when they fail. The endpoint's own lanes are closed when
//! it is dropped (`end.rs`).

use super::{EndpointState, Lane, ModulePair, State};
use crate::interface::LaneLimits;
use crate::mem::local::LocalBuffer;
use crate::proto::emulate::PUT_NOTIFY_HEAD;
use crate::{Error, Status};
use tieline_order::held::{Through, Unfinished};
use tieline_plugin_api::caps;

impl EndpointState {
    /// Opens the message lane. `Again`: the lane is being formed, or the provider requires progress first.
    pub(crate) fn open_message_lane(&self) -> Result<(), Error> {
        let lane = loop {
            let pair = self
                .route
                .message()
                .ok_or_else(|| self.route.unreachable(&self.shared.core, &self.address))?;
            match self.lane(pair) {
                Ok(lane) => break lane,
                Err(error) if error.status() == Status::Again => return Err(error),
                Err(error) => {
                    // Nothing was sent yet, so queued messages may use the next lane.
                    let path = self.message_path();
                    // If the peer did not answer over the carrier of a device's addresses, it does not receive that device's
                    // messages either.
                    if matches!(error.status(), Status::TimedOut | Status::PeerFailed) {
                        self.route.is_silent();
                    }
                    let domain = |at: usize| &self.shared.interfaces[at].domain;
                    if !self.route.next_message(|a, b| domain(a) == domain(b)) {
                        return Err(error);
                    }
                    self.refresh_keys();
                    let now = self.message_path();
                    self.shared.core.note(format!("{path}: {error}; from now on: {now}"));
                }
            }
        };
        self.take_message_lane(lane)
    }

    /// Checks whether a small operation may be sent as a message now: the message lane is open, and the queue is empty. An endpoint
    /// that has not opened the lane opens it if nothing is queued; no operation waits for the lane. A failure to open the lane is
    /// reported once, and does not change the choice of the message lane.
    pub(super) fn opened_for_small(&self) -> bool {
        match self.state.get() {
            State::Ready => return true,
            State::New if self.queue_len() == 0 => {}
            _ => return false,
        }
        let Some(pair) = self.route.message() else { return false };
        match self.lane(pair).and_then(|lane| self.take_message_lane(lane)) {
            Ok(()) => self.state.get() == State::Ready,
            Err(error) => {
                if error.status() != Status::Again && self.is_alive() {
                    self.route.set_small(false);
                    self.refresh_keys();
                    let path = self.message_path();
                    let note = format!("{path}: {error}; small puts and gets do not use messages");
                    self.shared.core.note(note);
                }
                false
            }
        }
    }

    /// Uses this lane for messages from this call on.
    fn take_message_lane(&self, lane: Lane) -> Result<(), Error> {
        if self.state.get() != State::New {
            // A carrier of datagrams may have made progress meanwhile.
            return self.check_alive();
        }
        let has = self.shared.interfaces[lane.interface].attr.caps;
        self.message.open(lane, has & caps::SLOW_POLL != 0);
        // Messages queued while the lane could not be opened are sent first.
        let waiting = self.queue_len() > 0;
        self.state.set(if waiting { State::Queueing } else { self.ready() });
        self.route.set_small(true);
        self.refresh_keys();
        Ok(())
    }

    /// Determines which operations use the message lane instead of a lane to memory, after the message lane has changed or its
    /// limits are known more precisely.
    pub(super) fn refresh_keys(&self) {
        if !self.route.has_small() {
            return;
        }
        self.live_keys().iter().for_each(|key| key.update_fast_path());
    }

    /// Returns the length of the longest put or get that is sent as a message although this interface reaches the memory; 0: none.
    pub(super) fn small(&self, interface: usize) -> usize {
        self.route.small(interface).min(self.message.max_packed().saturating_sub(PUT_NOTIFY_HEAD))
    }

    /// Opens the message lane if it is not open. `false`: the lane is being formed, or its provider requires progress first. A
    /// failure to open it ends the endpoint.
    pub(super) fn message_lane_opened(&self) -> Result<bool, Error> {
        if self.state.get() != State::New {
            return Ok(true);
        }
        match self.open_message_lane() {
            Ok(()) => Ok(true),
            Err(error) if error.status() == Status::Again => Ok(false),
            Err(error) => {
                self.fail(error);
                Err(self.dead_error())
            }
        }
    }

    /// Returns the lane over an interface, opened on first use.
    pub(crate) fn lane(&self, pair: ModulePair) -> Result<Lane, Error> {
        if let Some(lane) = self.lanes.over(pair.interface) {
            return Ok(lane);
        }
        self.check_alive()?;
        self.check_not_refused(pair.interface)?;
        let slot = &self.shared.interfaces[pair.interface];
        if let Some(error) = &*slot.out_of_use.borrow() {
            return Err(error.clone());
        }
        if slot.to_endpoint {
            let (raw, limits) = self.worker.clone().wire(self, pair)?;
            let lane = Lane { interface: pair.interface, raw, limits, owned: false };
            self.take_lane(lane);
            return Ok(lane);
        }
        let address = &self.address.entry.candidates[pair.candidate].address;
        let identity = self.worker.identity()?;
        let handle = slot.interface.connect(address, &identity, self.id.raw())?;
        // The endpoint closes this handle with its lanes.
        let raw = slot.interface.endpoint(handle).get();
        let mut lane = Lane {
            interface: pair.interface,
            raw,
            limits: LaneLimits::from_module(&slot.attr),
            owned: true,
        };
        match slot.limits(&raw) {
            Ok(limits) => lane.limits = limits,
            Err(error) => {
                lane.close();
                return Err(error);
            }
        }
        self.take_lane(lane);
        Ok(lane)
    }

    fn take_lane(&self, lane: Lane) {
        if self.lanes.add(lane) {
            self.tell_of_lanes();
        }
    }

    /// Returns the lane for puts, gets and atomics over an interface. If the interface needs the target's progress, the lane leads
    /// to the peer's service worker, if there is one that serves the interface.
    pub(crate) fn memory_lane(&self, pair: ModulePair) -> Result<Lane, Error> {
        let service = if self.needs_progress(pair.interface) { self.service()? } else { None };
        if let Some(service) = service {
            if let Some(pair) = self.pair_of(&service, &pair) {
                self.reaches_memory.set(true);
                return service.lane(pair);
            }
        }
        self.lane(pair)
    }

    /// Checks whether a module completes puts, gets and atomics only while the target makes progress.
    pub(super) fn needs_progress(&self, interface: usize) -> bool {
        self.shared.interfaces[interface].attr.caps & caps::PASSIVE_TARGET == 0
    }

    /// Handles the end of a circuit of this endpoint. If the circuit carried only puts and gets, the operations in flight on it
    /// have failed, and later ones use the other lanes; see [`EndpointState::attempt_native`].
    pub(crate) fn circuit_failed(&self, interface: usize, error: &Error) {
        self.shared.ops.borrow_mut().explain(self.index, error);
        if self.route.message().is_none_or(|pair| pair.interface != interface) {
            self.users().iter().for_each(|user| user.lost_lanes(self, Some(interface), error));
            let ended = self.shared.with_ops(|ops| ops.fail_posted(self.index, interface, error));
            self.hold(ended);
            // Flush and fence need not check the ended lane any more.
            self.lanes.leave_circuit(interface);
            return;
        }
        let stood = self.has_lane(interface);
        match self.state.get() {
            // Nothing was sent yet, so queued messages may use the next lane.
            State::New if !stood => self.worker.make_busy(self),
            _ => self.fail(error.clone()),
        }
    }

    /// Releases this endpoint's use of a circuit over an interface. `false` if the endpoint is usable, if pointers lead to memory
    /// mapped through the circuit, or if a packer runs.
    pub(crate) fn leave_circuit(&self, interface: usize) -> bool {
        let keys = self.live_keys();
        let points = keys.iter().any(|key| key.points_into(interface));
        if self.is_alive() || points || self.packs() {
            return false;
        }
        for key in keys {
            key.retire(interface, false);
        }
        self.lanes.leave_circuit(interface);
        true
    }

    /// Holds the memory of operations that have ended on this endpoint and that providers may still access.
    pub(crate) fn hold(&self, unfinished: Vec<Unfinished<LocalBuffer>>) {
        for op in unfinished {
            let through = self.through(op.interface());
            self.shared.hold(op, through);
        }
    }

    /// Returns the connections that an operation of this endpoint posted to an interface may have used.
    pub(super) fn through(&self, interface: usize) -> Vec<Through> {
        let mut through = Vec::new();
        self.each_way(|endpoint| match self.worker.circuit_over(endpoint, interface) {
            Some(circuit) => through.push(Through::Circuit(circuit)),
            None if endpoint.has_lane(interface) => through.push(Through::Endpoint(endpoint.id)),
            None => {}
        });
        if through.is_empty() {
            through.push(Through::Endpoint(self.id));
        }
        through
    }
}
