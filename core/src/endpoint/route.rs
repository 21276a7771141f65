//! Which interfaces lead to a peer, decided once per endpoint from both sides' facts.

use super::{Inner, Lane, State, unreachable};
use crate::address::{Candidate, WorkerAddress};
use crate::config::vars;
use crate::explain::Record;
use crate::op::held::{Through, Unfinished};
use crate::rank::{ModuleRef, Role};
use crate::reach::{PeerModule, Via, lanes};
use crate::registry::abi::RawEndpoint;
use crate::setup::Core;
use crate::shared::Shared;
use crate::{Error, Status};
use std::cell::Cell;
use std::rc::Weak;
use tieline_plugin_api::caps;

/// An interface of ours, and the peer's candidate that it reaches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) interface: usize,
    pub(crate) candidate: usize,
}

/// The ways to one peer.
pub(crate) struct Route {
    /// Message lanes, best first.
    messages: Vec<Way>,
    /// The one that is used: a later one when those before could not be opened.
    chosen: Cell<usize>,
    /// Lanes for put, get and atomics, best first.
    pub(crate) memory: Vec<Way>,
    /// What was composed besides messages, in words.
    pub(crate) composed: String,
    /// What was decided, and why.
    pub(crate) records: Vec<Record>,
}

fn peer_module(candidate: &Candidate) -> PeerModule {
    let at = ModuleRef::new(&candidate.provider, &candidate.domain, &candidate.module);
    PeerModule { at, priority: candidate.priority }
}

impl Route {
    /// Asks every interface of the worker whether it reaches the peer, and puts the ones that do in order. `wires` says by what
    /// an interface can be connected to one of the peer's candidates, or why not.
    pub(crate) fn choose(
        shared: &Shared,
        peer: &WorkerAddress,
        wires: impl Fn(usize, usize) -> Result<Option<ModuleRef>, String>,
    ) -> Route {
        let theirs: Vec<PeerModule> = peer.party.candidates.iter().map(peer_module).collect();
        let mut wired: Vec<(ModuleRef, ModuleRef)> = Vec::new();
        let reach = |at: &ModuleRef, there: &PeerModule| {
            let slot = shared.interface(at).ok_or("it could not be opened on this worker")?;
            let index = theirs.iter().position(|t| t == there).unwrap_or(0);
            let address = &peer.party.candidates[index].address;
            if let Some(error) = &*shared.interfaces[slot].out_of_use.borrow() {
                return Err(error.to_string());
            }
            shared.interfaces[slot].interface.reachable(address).map_err(|e| e.to_string())?;
            if shared.interfaces[slot].to_endpoint {
                let by = wires(slot, index)?;
                wired.extend(by.map(|by| (at.clone(), by)));
            }
            Ok(())
        };
        let mut lanes = lanes(&peer.label(), &shared.core.composition, &theirs, reach);
        let composed = lanes.compose(&peer.label(), &wired);
        let ways = |role: Role| {
            lanes.of(role).iter().filter_map(|lane| match &lane.via {
                Via::Module(at, candidate) => {
                    Some(Way { interface: shared.interface(at)?, candidate: *candidate })
                }
                Via::Messages => None,
            })
        };
        let messages = ways(Role::Message).collect();
        let mut memory: Vec<Way> = ways(Role::Rma).collect();
        for way in ways(Role::Atomic) {
            if !memory.iter().any(|known| known.interface == way.interface) {
                memory.push(way);
            }
        }
        Route { messages, chosen: Cell::new(0), memory, composed, records: lanes.records }
    }

    /// One way alone, for messages.
    pub(crate) fn only(way: Way) -> Route {
        Route {
            messages: vec![way],
            chosen: Cell::new(0),
            memory: Vec::new(),
            composed: String::new(),
            records: Vec::new(),
        }
    }

    /// Puts the ways last, among their like, that failed lately, and of them the one that failed last.
    pub(crate) fn put_last(&mut self, avoided_until: impl Fn(&Way) -> u64) {
        self.messages.sort_by_key(&avoided_until);
        self.memory.sort_by_key(&avoided_until);
    }

    /// The message lane.
    pub(crate) fn message(&self) -> Option<Way> {
        self.messages.get(self.chosen.get()).copied()
    }

    /// Turns to the next message lane; false when there is none.
    fn next_message(&self) -> bool {
        let next = self.chosen.get() + 1;
        if next < self.messages.len() {
            self.chosen.set(next);
        }
        next < self.messages.len()
    }

    /// The error for a peer that no message module reaches.
    pub(crate) fn unreachable(&self, core: &Core, peer: &WorkerAddress) -> Error {
        let theirs: Vec<(&str, &str)> = peer
            .party
            .candidates
            .iter()
            .map(|there| (there.provider.as_str(), there.module.as_str()))
            .collect();
        let decided: Vec<&Record> = core.decisions().collect();
        let connect = core.config.selection(vars::CONNECT);
        let connects = |name: &str| connect.as_ref().is_ok_and(|list| list.asks_for(name));
        let why = unreachable::why(&self.records, &decided, &theirs, connects);
        Error::new(
            Status::Unreachable,
            format!("no usable path to {}", peer.label()),
            why,
            "`tieline info --why` shows what was found and why it is not used",
        )
    }
}

impl Inner {
    /// Opens the message lane. `Again`: it is being formed, or the provider asks for progress first.
    pub(crate) fn open_message_lane(&self) -> Result<(), Error> {
        let (way, raw) = loop {
            let way = self
                .route
                .message()
                .ok_or_else(|| self.route.unreachable(&self.shared.core, &self.address))?;
            match self.lane(way) {
                Ok(raw) => break (way, raw),
                Err(error) if error.status() == Status::Again => return Err(error),
                Err(error) => {
                    // Nothing was sent yet: what is queued may take the next lane.
                    let path = self.message_path();
                    if !self.route.next_message() {
                        return Err(error);
                    }
                    let now = self.message_path();
                    self.shared.core.note(format!("{path}: {error}; from now on: {now}"));
                }
            }
        };
        if self.state.get() != State::New {
            // Whoever carries datagrams may have made progress meanwhile.
            return self.check_alive();
        }
        let attr = &self.shared.interfaces[way.interface].attr;
        self.message.set(raw);
        self.max_short.set(attr.max_short);
        self.max_packed.set(attr.max_packed);
        // What was queued while the lane could not be opened goes first.
        let waiting = self.queue_len() > 0;
        self.state.set(if waiting { State::Queueing } else { State::Ready });
        Ok(())
    }

    /// The lane over an interface, opened on first use.
    pub(crate) fn lane(&self, way: Way) -> Result<RawEndpoint, Error> {
        if let Some(lane) = self.lanes.borrow().iter().find(|l| l.interface == way.interface) {
            return Ok(lane.raw);
        }
        self.check_alive()?;
        let slot = &self.shared.interfaces[way.interface];
        if let Some(error) = &*slot.out_of_use.borrow() {
            return Err(error.clone());
        }
        if slot.to_endpoint {
            let raw = self.worker.clone().wire(self, way)?;
            self.lanes.borrow_mut().push(Lane { interface: way.interface, raw, owned: false });
            return Ok(raw);
        }
        let address = &self.address.party.candidates[way.candidate].address;
        let identity = self.worker.identity()?;
        let handle = slot.interface.connect(address, &identity, self.id.raw())?;
        let raw = slot.interface.endpoint(handle);
        self.lanes.borrow_mut().push(Lane { interface: way.interface, raw, owned: true });
        Ok(raw)
    }

    /// The lane for puts, gets and atomics over an interface. What needs the target's progress goes to the
    /// peer's service worker, when it has one.
    pub(crate) fn memory_lane(&self, way: Way) -> Result<RawEndpoint, Error> {
        if self.shared.interfaces[way.interface].attr.caps & caps::PASSIVE_TARGET == 0 {
            if let Some(control) = self.control()? {
                if let Some(way) = self.way_of(&control, &way) {
                    control.reaches_memory.set(true);
                    return control.lane(way);
                }
            }
        }
        self.lane(way)
    }

    /// The way of the endpoint to the peer's service worker over the same interface, where that is the one that serves.
    pub(super) fn way_of(&self, control: &Inner, way: &Way) -> Option<Way> {
        let slot = &self.shared.interfaces[way.interface];
        let same = |other: &&Way| {
            slot.attr.caps & caps::PASSIVE_TARGET == 0 && other.interface == way.interface
        };
        control.route.memory.iter().find(same).copied()
    }

    /// A line that this endpoint used is finished. Where it carried only puts and gets, what was under way on it
    /// has failed, and what follows takes the other lanes; see [`Inner::attempt_native`].
    pub(crate) fn line_failed(&self, interface: usize, error: &Error) {
        self.shared.ops.borrow_mut().explain(self.index, error);
        if self.route.message().is_none_or(|way| way.interface != interface) {
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

    /// Lets go of what this endpoint has of a line over an interface; false where it is alive, where keys of other
    /// endpoints go through it, or while it packs.
    pub(crate) fn leave_line(&self, interface: usize) -> bool {
        if self.is_alive() || self.reaches_memory.get() || self.packs() {
            return false;
        }
        let keys: Vec<_> = self.keys.borrow().iter().filter_map(Weak::upgrade).collect();
        for key in keys {
            key.retire(interface, false);
        }
        self.lanes.borrow_mut().retain(|lane| lane.owned || lane.interface != interface);
        true
    }

    /// Keeps the memory of operations that have ended here and that providers still have.
    pub(super) fn hold(&self, unfinished: Vec<Unfinished>) {
        for op in unfinished {
            let through = self.through(op.interface());
            self.shared.hold(op, through);
        }
    }

    /// What an operation of this endpoint may have gone through that was posted to an interface.
    pub(super) fn through(&self, interface: usize) -> Vec<Through> {
        let mut through = Vec::new();
        let mut add = |endpoint: &Inner| match self.worker.line_over(endpoint, interface) {
            Some(line) => through.push(Through::Line(line)),
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
