//! Which interfaces lead to a peer, decided once per endpoint from both sides' facts.

use super::{Inner, Lane, State};
use crate::address::{Candidate, WorkerAddress};
use crate::explain::{Record, Verdict};
use crate::registry::abi::RawEndpoint;
use crate::worker::InterfaceSlot;
use crate::{Error, Status};
use tieline_plugin_api::caps;

/// The ways to one peer: indices into the worker's interfaces.
pub(crate) struct Route {
    /// The message lane.
    pub(crate) message: Option<usize>,
    /// Lanes for put, get and atomics, best first.
    pub(crate) memory: Vec<usize>,
    /// What was decided, and why.
    pub(crate) records: Vec<Record>,
}

impl Route {
    /// Chooses among the worker's interfaces, which are in rank order.
    pub(crate) fn choose(interfaces: &[InterfaceSlot], peer: &WorkerAddress) -> Route {
        let mut route = Route { message: None, memory: Vec::new(), records: Vec::new() };
        for (index, slot) in interfaces.iter().enumerate() {
            let verdict = match slot.candidate(&peer.candidates) {
                None => Verdict::Unreachable {
                    because: "the peer does not have this module open".into(),
                },
                Some(candidate) => match slot.interface.reachable(&candidate.address) {
                    Err(failure) => Verdict::Unreachable { because: failure.to_string() },
                    Ok(()) => route.take(index, slot, interfaces),
                },
            };
            let mut record =
                Record::module(&slot.provider.name, &slot.domain, &slot.module, verdict);
            record.peer = Some(peer.label());
            route.records.push(record);
        }
        route
    }

    fn take(&mut self, index: usize, slot: &InterfaceSlot, all: &[InterfaceSlot]) -> Verdict {
        let mut roles = Vec::new();
        if slot.roles.message {
            if self.message.is_none() {
                self.message = Some(index);
                roles.push("message".to_string());
            }
        }
        if slot.roles.memory {
            self.memory.push(index);
            let own = slot.attr.caps & caps::OWN_MEMORY_ONLY != 0;
            let memory = if own { "allocated memory" } else { "any registered memory" };
            roles.push(format!("RMA ({memory})"));
            if slot.attr.caps & caps::ATOMICS != 0 {
                roles.push(format!("atomic ({memory})"));
            }
        }
        if roles.is_empty() {
            let winner = self.message.map_or(String::new(), |i| all[i].path.clone());
            return Verdict::OutrankedBy { winner, rule: "rank of the message module".into() };
        }
        let because = format!("both sides have it, and it is reachable; rank {}", index + 1);
        Verdict::ChosenFor { roles, because }
    }

    /// The error for a peer that no message module reaches.
    pub(crate) fn unreachable(&self, peer: &WorkerAddress) -> Error {
        let why: Vec<String> = self
            .records
            .iter()
            .filter_map(|r| match &r.verdict {
                Verdict::Unreachable { because } => Some(format!(
                    "{}/{}: {because}",
                    r.domain.as_deref().unwrap_or(&r.provider),
                    r.module.as_deref().unwrap_or("")
                )),
                _ => None,
            })
            .collect();
        let why = if why.is_empty() {
            "this context has no module that carries messages".to_string()
        } else {
            why.join("; ")
        };
        Error::new(
            Status::Unreachable,
            format!("no usable path to {}", peer.label()),
            why,
            "`tieline info --why` shows what was found and why it is not used",
        )
    }
}

impl InterfaceSlot {
    /// The peer's candidate for the same module; the device may be another one.
    pub(crate) fn candidate<'a>(&self, candidates: &'a [Candidate]) -> Option<&'a Candidate> {
        candidates.iter().find(|c| c.provider == self.provider.name && c.module == self.module)
    }
}

impl Inner {
    /// Opens the message lane. `Again`: the provider asks for progress first.
    pub(crate) fn open_message_lane(&self) -> Result<(), Error> {
        let interface = self.route.message.ok_or_else(|| self.route.unreachable(&self.address))?;
        let raw = self.lane(interface)?;
        let attr = &self.worker.interfaces[interface].attr;
        self.message.set(raw);
        self.max_short.set(attr.max_short);
        self.max_packed.set(attr.max_packed);
        self.state.set(State::Ready);
        Ok(())
    }

    /// The lane over an interface, opened on first use.
    pub(crate) fn lane(&self, interface: usize) -> Result<RawEndpoint, Error> {
        if let Some(lane) = self.lanes.borrow().iter().find(|l| l.interface == interface) {
            return Ok(lane.raw);
        }
        let slot = &self.worker.interfaces[interface];
        let candidate = slot.candidate(&self.address.candidates).ok_or_else(|| {
            Error::new(Status::Unreachable, "the peer does not have this module", "", "")
        })?;
        let identity = self.worker.identity()?;
        let handle = slot.interface.connect(&candidate.address, &identity, self.index as u64)?;
        let raw = slot.interface.endpoint(handle);
        self.lanes.borrow_mut().push(Lane { interface, raw });
        Ok(raw)
    }
}
