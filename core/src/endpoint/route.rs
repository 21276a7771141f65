//! The interfaces that lead to a peer, chosen once per endpoint from the properties of both sides.

use super::unreachable;
use crate::address::{Candidate, WorkerAddress};
use crate::config::vars;
use crate::explain::Record;
use crate::lanes::{LaneTarget, PeerModule, lanes};
use crate::rank::{ModuleRef, Role};
use crate::setup::Core;
use crate::shared::Shared;
use crate::{Error, Status};
use std::cell::{Cell, RefCell};

/// A local interface, and the peer's candidate to which it leads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModulePair {
    pub(crate) interface: usize,
    pub(crate) candidate: usize,
}

/// The lanes to one peer.
pub(crate) struct Route {
    /// The message lanes, best first.
    messages: Vec<ModulePair>,
    /// The index of the message lane in use: a later one if earlier ones could not be opened.
    chosen: Cell<usize>,
    /// The interfaces over which the peer did not answer.
    silent: RefCell<Vec<usize>>,
    /// The lanes for put, get and atomics, best first.
    pub(crate) memory: Vec<ModulePair>,
    /// The interfaces to memory that are slower than messages for small puts and gets, each with the maximum length of these
    /// operations.
    small: Vec<(usize, usize)>,
    /// The message interface whose costs were compared with those of the interfaces in `small`.
    small_over: Option<usize>,
    /// Whether the message lane could not be opened for small operations. A later message may try to open the lane again.
    small_off: Cell<bool>,
    /// The composition of the other roles, as text.
    pub(crate) composed: String,
    /// The decisions, and their reasons.
    pub(crate) records: Vec<Record>,
}

fn peer_module(candidate: &Candidate) -> PeerModule {
    let at = ModuleRef::new(&candidate.provider, &candidate.domain, &candidate.module);
    PeerModule { at, priority: candidate.priority }
}

impl Route {
    /// Determines which interfaces of the worker reach the peer, and sorts these interfaces. `wires` returns the module by which an
    /// interface can be connected to a candidate of the peer, or the reason why it cannot.
    pub(crate) fn choose(
        shared: &Shared,
        peer: &WorkerAddress,
        wires: impl Fn(usize, usize) -> Result<Option<ModuleRef>, String>,
    ) -> Route {
        let theirs: Vec<PeerModule> = peer.entry.candidates.iter().map(peer_module).collect();
        let mut wired: Vec<(ModuleRef, ModuleRef)> = Vec::new();
        let reach = |at: &ModuleRef, there: &PeerModule| {
            let slot = shared.interface(at).ok_or("it could not be opened on this worker")?;
            let index = theirs.iter().position(|t| t == there).unwrap_or(0);
            let address = &peer.entry.candidates[index].address;
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
        if peer.polls_often && peer.service.is_none() {
            lanes.choose_small(&peer.label(), &shared.core.composition);
        }
        let composed = lanes.compose(&peer.label(), &wired);
        let ways = |role: Role| {
            lanes.of(role).iter().filter_map(|lane| match &lane.via {
                LaneTarget::Module(at, candidate) => {
                    Some(ModulePair { interface: shared.interface(at)?, candidate: *candidate })
                }
                LaneTarget::Messages => None,
            })
        };
        let messages: Vec<ModulePair> = ways(Role::Message).collect();
        let mut memory: Vec<ModulePair> = ways(Role::Rma).collect();
        for pair in ways(Role::Atomic) {
            if !memory.iter().any(|known| known.interface == pair.interface) {
                memory.push(pair);
            }
        }
        let small = lanes.rma.iter().filter_map(|lane| match &lane.via {
            LaneTarget::Module(at, _) => Some((shared.interface(at)?, lane.small)),
            LaneTarget::Messages => None,
        });
        let small: Vec<(usize, usize)> = small.filter(|(_, len)| *len > 0).collect();
        let small_over = messages.first().map(|pair| pair.interface);
        Route {
            messages,
            chosen: Cell::new(0),
            silent: RefCell::default(),
            memory,
            small,
            small_over,
            small_off: Cell::new(false),
            composed,
            records: lanes.records,
        }
    }

    /// Returns the length of the longest put or get that is sent as a message although this interface reaches the memory; 0: none.
    /// The result is 0 unless the peer has promised continuous progress and the message lane is the one whose costs were compared.
    pub(super) fn small(&self, interface: usize) -> usize {
        let known = self.small.iter().find(|(at, _)| *at == interface);
        let over = self.message().map(|pair| pair.interface);
        known
            .filter(|_| over == self.small_over && !self.small_off.get())
            .map_or(0, |(_, len)| *len)
    }

    /// Checks whether any interface has a nonzero limit for small operations.
    pub(super) fn has_small(&self) -> bool {
        !self.small.is_empty()
    }

    /// Records whether the message lane could be opened for small operations.
    pub(super) fn set_small(&self, on: bool) {
        self.small_off.set(!on);
    }

    /// Makes a route of a single message lane.
    pub(crate) fn only(pair: ModulePair) -> Route {
        Route {
            messages: vec![pair],
            chosen: Cell::new(0),
            silent: RefCell::default(),
            memory: Vec::new(),
            small: Vec::new(),
            small_over: None,
            small_off: Cell::new(false),
            composed: String::new(),
            records: Vec::new(),
        }
    }

    /// Sorts lanes that failed recently after the other lanes of the same role; the most recent failure is last.
    pub(crate) fn put_last(&mut self, avoided_until: impl Fn(&ModulePair) -> u64) {
        self.messages.sort_by_key(&avoided_until);
        self.memory.sort_by_key(&avoided_until);
    }

    /// Returns all message lanes, best first.
    pub(super) fn messages(&self) -> &[ModulePair] {
        &self.messages
    }

    /// Returns the message lane in use.
    pub(crate) fn message(&self) -> Option<ModulePair> {
        self.messages.get(self.chosen.get()).copied()
    }

    /// Records that the peer did not answer over the message lane.
    pub(super) fn is_silent(&self) {
        self.silent.borrow_mut().extend(self.message().map(|pair| pair.interface));
    }

    /// Selects the next possible message lane, skipping domains over which the peer did not answer. `false` if there is none.
    pub(super) fn next_message(&self, same_domain: impl Fn(usize, usize) -> bool) -> bool {
        let silent = self.silent.borrow();
        let may = |at: &usize| {
            let next = self.messages[*at].interface;
            !silent.iter().any(|known| same_domain(*known, next))
        };
        let next = (self.chosen.get() + 1..self.messages.len()).find(may);
        if let Some(next) = next {
            self.chosen.set(next);
        }
        next.is_some()
    }

    /// Makes the error for a peer that no message module reaches.
    pub(crate) fn unreachable(&self, core: &Core, peer: &WorkerAddress) -> Error {
        let why = self.hindered(core, peer, unreachable::why);
        Error::new(
            Status::Unreachable,
            format!("no usable path to {}", peer.label()),
            why,
            "`tieline info --why` shows what was found and why it is not used",
        )
    }

    /// Lists the modules that could serve the peer and do not, each with the reason; modules missing on this side precede the
    /// others.
    pub(crate) fn hindrances(&self, core: &Core, peer: &WorkerAddress) -> Vec<String> {
        self.hindered(core, peer, unreachable::hindrances)
    }

    fn hindered<R>(
        &self,
        core: &Core,
        peer: &WorkerAddress,
        say: impl Fn(&[Record], &[&Record], &[(&str, &str)], &unreachable::Asks<'_>) -> R,
    ) -> R {
        let theirs: Vec<(&str, &str)> = peer
            .entry
            .candidates
            .iter()
            .map(|there| (there.provider.as_str(), there.module.as_str()))
            .collect();
        let decided: Vec<&Record> = core.decisions().collect();
        let connect = core.config.selection(vars::CONNECT);
        let connects = |name: &str| connect.as_ref().is_ok_and(|list| list.asks_for(name));
        let providers = core.config.selection(vars::PROVIDERS);
        let named = |name: &str| providers.as_ref().is_ok_and(|list| list.asks_for(name));
        let asks = unreachable::Asks { connects: &connects, named: &named };
        say(&self.records, &decided, &theirs, &asks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a route with messages over these interfaces; puts of up to 512 bytes to the memory of interface 7 use the first
    /// message interface.
    fn route(interfaces: &[usize]) -> Route {
        let pair = |interface: &usize| ModulePair { interface: *interface, candidate: 0 };
        Route {
            messages: interfaces.iter().map(pair).collect(),
            memory: interfaces.iter().map(pair).collect(),
            small: vec![(7, 512)],
            small_over: interfaces.first().copied(),
            ..Route::only(pair(&0))
        }
    }

    fn now(route: &Route) -> Option<usize> {
        route.message().map(|pair| pair.interface)
    }

    /// Interfaces 0 and 1 belong to one domain, 2 and 3 to another.
    fn same(a: usize, b: usize) -> bool {
        a / 2 == b / 2
    }

    #[test]
    fn a_message_lane_gives_way_to_the_next_until_there_is_none() {
        let route = route(&[0, 1, 2]);
        assert_eq!(now(&route), Some(0));
        assert!(route.next_message(same) && now(&route) == Some(1));
        assert!(route.next_message(same) && now(&route) == Some(2));
        assert!(!route.next_message(same) && now(&route) == Some(2));
        assert_eq!(now(&self::route(&[])), None);
    }

    #[test]
    fn a_domain_over_which_the_peer_did_not_answer_is_passed_over() {
        let route = route(&[0, 1, 2, 3]);
        route.is_silent();
        assert!(route.next_message(same) && now(&route) == Some(2));
        route.is_silent();
        assert!(!route.next_message(same) && now(&route) == Some(2));
    }

    #[test]
    fn small_operations_use_messages_only_over_compared_open_lane() {
        let route = route(&[0, 2]);
        assert_eq!((route.small(7), route.small(8), route.has_small()), (512, 0, true));
        route.set_small(false);
        assert_eq!(route.small(7), 0);
        route.set_small(true);
        assert_eq!(route.small(7), 512);
        assert!(route.next_message(same));
        assert_eq!(route.small(7), 0, "another lane costs something else");
        assert!(!Route::only(ModulePair { interface: 7, candidate: 0 }).has_small());
    }

    #[test]
    fn recently_failed_lanes_are_tried_last() {
        let mut route = route(&[0, 1, 2, 3]);
        route.put_last(|pair| [9, 0, 5, 0][pair.interface]);
        let order =
            |pairs: &[ModulePair]| pairs.iter().map(|pair| pair.interface).collect::<Vec<_>>();
        assert_eq!(
            (order(route.messages()), order(&route.memory)),
            (vec![1, 3, 2, 0], vec![1, 3, 2, 0])
        );
    }
}
