//! The lanes of an endpoint: opened on first use, and left when what they go over ends.

use super::{Inner, Lane, ModulePair, State};
use crate::interface::LaneLimits;
use crate::op::held::{Through, Unfinished};
use crate::proto::emulate::PUT_NOTIFY_HEAD;
use crate::registry::abi::RawEndpoint;
use crate::{Error, Status};
use std::rc::Weak;
use tieline_plugin_api::caps;

impl Inner {
    /// Opens the message lane. `Again`: it is being formed, or the provider asks for progress first.
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
                    // Nothing was sent yet: what is queued may take the next lane.
                    let path = self.message_path();
                    // Who did not answer what carries a device's addresses does not hear that device's messages.
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

    /// Whether messages may be sent now that something small could go by: their lane is open, and nothing waits. Where it is not open
    /// it is opened, for which nothing waits either; what keeps it from that is told once, and changes nothing of which lane messages
    /// take.
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
                    let note = format!("{path}: {error}; small puts and gets do without messages");
                    self.shared.core.note(note);
                }
                false
            }
        }
    }

    /// Messages go over this lane from now on.
    fn take_message_lane(&self, lane: Lane) -> Result<(), Error> {
        if self.state.get() != State::New {
            // Whoever carries datagrams may have made progress meanwhile.
            return self.check_alive();
        }
        self.message.set(lane.raw);
        self.max_short.set(lane.limits.max_short);
        self.max_packed.set(lane.limits.max_packed);
        self.max_zcopy.set(lane.limits.max_zcopy);
        // What was queued while the lane could not be opened goes first.
        let waiting = self.queue_len() > 0;
        self.state.set(if waiting { State::Queueing } else { self.ready() });
        self.route.set_small(true);
        self.refresh_keys();
        Ok(())
    }

    /// The message lane is another one, or what it carries is known better: so is what goes by it instead of by a lane to memory.
    pub(super) fn refresh_keys(&self) {
        if !self.route.has_small() {
            return;
        }
        let keys: Vec<_> = self.keys.borrow().iter().filter_map(Weak::upgrade).collect();
        keys.iter().for_each(|key| key.update_fast_path());
    }

    /// The longest put or get that goes by a message although this interface leads to the memory: one message each way. 0: none.
    pub(super) fn small(&self, interface: usize) -> usize {
        self.route.small(interface).min(self.max_packed.get().saturating_sub(PUT_NOTIFY_HEAD))
    }

    /// Opens the message lane where it is not open; `false`: it is being formed. What keeps it from being opened ends the
    /// endpoint.
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

    /// The lane over an interface, opened on first use.
    pub(crate) fn lane(&self, pair: ModulePair) -> Result<Lane, Error> {
        if let Some(lane) = self.lanes.borrow().iter().find(|l| l.interface == pair.interface) {
            return Ok(*lane);
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
        // The endpoint closes it with its lanes.
        let raw = slot.interface.endpoint(handle).get();
        let mut lane = Lane {
            interface: pair.interface,
            raw,
            limits: LaneLimits::of_module(&slot.attr),
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
        let count = {
            let mut lanes = self.lanes.borrow_mut();
            lanes.push(lane);
            lanes.len()
        };
        if count == 1 {
            self.tell_of_lanes();
        }
    }

    /// The lane for puts, gets and atomics over an interface. What needs the target's progress goes to the
    /// peer's service worker, when it has one.
    pub(crate) fn memory_lane(&self, pair: ModulePair) -> Result<Lane, Error> {
        if self.shared.interfaces[pair.interface].attr.caps & caps::PASSIVE_TARGET == 0 {
            if let Some(control) = self.control()? {
                if let Some(pair) = self.pair_of(&control, &pair) {
                    control.reaches_memory.set(true);
                    return control.lane(pair);
                }
            }
        }
        self.lane(pair)
    }

    /// Whether a lane for memory is this endpoint's own, and not one to the peer's service worker.
    pub(super) fn is_own(&self, interface: usize, raw: &RawEndpoint) -> bool {
        let is = |lane: &Lane| lane.interface == interface && lane.raw.is(raw);
        self.lanes.borrow().iter().any(is)
    }

    /// The lane of the endpoint to the peer's service worker over the same interface, where that is the one that serves.
    pub(super) fn pair_of(&self, control: &Inner, pair: &ModulePair) -> Option<ModulePair> {
        let slot = &self.shared.interfaces[pair.interface];
        let same = |other: &&ModulePair| {
            slot.attr.caps & caps::PASSIVE_TARGET == 0 && other.interface == pair.interface
        };
        control.route.memory.iter().find(same).copied()
    }

    /// A circuit that this endpoint used is finished. Where it carried only puts and gets, what was under way on it
    /// has failed, and what follows takes the other lanes; see [`Inner::attempt_native`].
    pub(crate) fn circuit_failed(&self, interface: usize, error: &Error) {
        self.shared.ops.borrow_mut().explain(self.index, error);
        if self.route.message().is_none_or(|pair| pair.interface != interface) {
            self.lost_for_its_user(Some(interface), error);
            let ended = self.shared.with_ops(|ops| ops.fail_posted(self.index, interface, error));
            self.hold(ended);
            // Flush and fence have no more to ask of it.
            self.lanes.borrow_mut().retain(|lane| lane.owned || lane.interface != interface);
            return;
        }
        let stood = self.lanes.borrow().iter().any(|lane| lane.interface == interface);
        match self.state.get() {
            // Nothing was sent yet: what is queued may take the next lane.
            State::New if !stood => self.worker.make_busy(self),
            _ => self.fail(error.clone()),
        }
    }

    /// Lets go of what this endpoint has of a circuit over an interface; false where it is alive, where keys of other
    /// endpoints go through it, while pointers lead to what it has mapped, or while it packs.
    pub(crate) fn leave_circuit(&self, interface: usize) -> bool {
        let keys: Vec<_> = self.keys.borrow().iter().filter_map(Weak::upgrade).collect();
        let points = keys.iter().any(|key| key.points_into(interface));
        if self.is_alive() || self.reaches_memory.get() || points || self.packs() {
            return false;
        }
        for key in keys {
            key.retire(interface, false);
        }
        self.lanes.borrow_mut().retain(|lane| lane.owned || lane.interface != interface);
        true
    }

    /// Keeps the memory of operations that have ended here and that providers still have.
    pub(crate) fn hold(&self, unfinished: Vec<Unfinished>) {
        for op in unfinished {
            let through = self.through(op.interface());
            self.shared.hold(op, through);
        }
    }

    /// What an operation of this endpoint may have gone through that was posted to an interface.
    pub(super) fn through(&self, interface: usize) -> Vec<Through> {
        let mut through = Vec::new();
        let mut add = |endpoint: &Inner| match self.worker.circuit_over(endpoint, interface) {
            Some(circuit) => through.push(Through::Circuit(circuit)),
            None if endpoint.has_lane(interface) => through.push(Through::Endpoint(endpoint.id)),
            None => {}
        };
        add(self);
        self.open_control().iter().chain(self.past_controls.borrow().iter()).for_each(|c| add(c));
        if through.is_empty() {
            through.push(Through::Endpoint(self.id));
        }
        through
    }
}
