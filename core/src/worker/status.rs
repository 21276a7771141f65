//! The state that a worker publishes: to the program (`Worker::status`) and to other processes ([`crate::live`]).

use super::shown::Standing;
use super::{Counters, Worker, WorkerState};
use crate::endpoint::EndpointState;
use crate::interface::InterfaceSlot;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;
use tieline_explain::live::{now_ns, thread_id};
use tieline_explain::snapshot::{InterfaceStatus, MOST_SHOWN, WorkerStatus, cut, short};
use tieline_order::Id;

/// The maximum number of endpoints examined for one text. Endpoints that wait are examined first, so that all of them are included
/// unless very many wait.
const LOOKS: usize = 512;

impl WorkerState {
    /// Publishes the state, if it is due, when the interfaces that need a system call are polled. `seldom`: the next such poll is
    /// some time away.
    #[inline]
    pub(super) fn show_poll(&self, seldom: bool) {
        if self.shown.publisher.polled(|| self.open_count(), seldom) {
            self.show();
        }
    }

    /// Publishes the beginning of a sleep: the worker's own, or the application's on the worker's descriptor. Returns the time
    /// until a new text may be written, if it is not due yet.
    pub(super) fn show_sleep(&self, armed: bool) -> Option<Duration> {
        let left = self.shown.publisher.sleeps(|| self.open_count(), armed)?;
        if left.is_zero() {
            self.show();
        }
        Some(left).filter(|left| !left.is_zero())
    }

    /// Returns the time after which an application that is about to sleep on the descriptor has to call again, so that its state
    /// can be published.
    pub(super) fn show_soon(&self) -> Option<Duration> {
        let waits = || self.open_count() > 0 || !self.busy.borrow().is_empty();
        self.shown.publisher.not_due_for().filter(|_| waits())
    }

    /// Publishes that a waiting call returns.
    pub(super) fn show_return(&self) {
        self.shown.publisher.returns(|| self.open_count());
    }

    /// Publishes a text: the first one, one that is due, or one after a sleep has lasted until it was due.
    #[cold]
    pub(super) fn show(&self) {
        self.shown.publisher.show(|now| self.status(Some(MOST_SHOWN), now));
    }

    fn open_count(&self) -> usize {
        self.shared.ops.borrow().open_count()
    }

    /// Collects the state. `most`: the maximum number of endpoints, which also bounds the time; endpoints that wait are included
    /// first.
    fn status(&self, most: Option<usize>, now: u64) -> WorkerStatus {
        let mut since = HashMap::new();
        let mut standing = |what: Standing| {
            let known = self.shown.since.borrow().get(&what).copied().unwrap_or(now);
            let _ = since.insert(what, known);
            now.saturating_sub(known) / 1_000_000
        };
        let mut endpoints = Vec::new();
        let (looked_at, all) = self.endpoints_to_show(most.map(|_| LOOKS));
        let left_out = all.saturating_sub(looked_at.len());
        for endpoint in looked_at {
            let (mut status, oldest): (_, Option<Id>) = endpoint.status();
            if let Some(waits) = &mut status.waits {
                waits.ms = standing(match oldest {
                    Some(id) => Standing::Operation(endpoint.id.raw(), id.raw()),
                    None => Standing::Answers(endpoint.id.raw()),
                });
            }
            endpoints.push(status);
        }
        // The sort is stable: endpoints that do not wait keep their order.
        endpoints.sort_by_key(|e| std::cmp::Reverse(e.waits.as_ref().map(|waits| waits.ms)));
        let shown = most.unwrap_or(usize::MAX).min(endpoints.len());
        let more_endpoints = left_out + endpoints.len() - shown;
        endpoints.truncate(shown);
        let forming = self
            .forming(most.unwrap_or(usize::MAX), |circuit| standing(Standing::Circuit(circuit)));
        let ops = self.shared.ops.borrow();
        let mut status = WorkerStatus::default();
        status.worker = short(&self.shared.id);
        status.service = self.shown.service;
        status.thread = thread_id();
        status.polls = self.shown.publisher.polls();
        status.pending = ops.open_count();
        status.untaken = ops.completed_count();
        status.owed = self.owed.len();
        status.peers = self.peers.borrow().len();
        status.endpoints = endpoints;
        status.more_endpoints = more_endpoints;
        status.forming = forming;
        status.interfaces = self.shared.interfaces.iter().map(interface).collect();
        status.counters = self.counted().named();
        *self.shown.since.borrow_mut() = since;
        status
    }

    /// Returns the endpoints to examine, the busy ones and those with open operations first, and the total number of endpoints.
    fn endpoints_to_show(&self, most: Option<usize>) -> (Vec<Rc<EndpointState>>, usize) {
        let most = most.unwrap_or(usize::MAX);
        let mut found: Vec<Rc<EndpointState>> =
            self.busy.borrow().iter().take(most / 2).cloned().collect();
        let mut known: HashSet<usize> = found.iter().map(|endpoint| endpoint.index).collect();
        let endpoints = self.endpoints.borrow();
        let ops = self.shared.ops.borrow();
        let waits = ops.owners_with_open_operations().filter_map(|index| endpoints.at(index));
        let ids = waits.take(most).chain(endpoints.ids().take(most));
        for endpoint in ids.filter_map(|id| endpoints.cold(id)?.upgrade()) {
            if found.len() < most && known.insert(endpoint.index) {
                found.push(endpoint);
            }
        }
        (found, endpoints.count())
    }

    /// Returns the worker's counters.
    pub(super) fn counted(&self) -> Counters {
        let mut counters = self.counters.get();
        self.wiring.count(&mut counters);
        counters
    }
}

impl Worker {
    /// Returns the worker's state: every endpoint with its queue and the reason why its oldest operation waits, connections being
    /// established, open interfaces, and counters. From another process, `tieline info --pid` shows the last state that the worker
    /// has published ([`crate::live`]), which contains a limited number of endpoints.
    ///
    /// The call examines every endpoint, so its cost grows with their number. The time that an operation has waited is measured
    /// from the first examination that found it waiting, by this call or by the published state.
    ///
    /// In a forked child the result is empty: the worker belongs to the parent.
    #[must_use]
    pub fn status(&self) -> WorkerStatus {
        if !self.inner.shared.same_process() {
            return WorkerStatus::default();
        }
        self.inner.status(None, now_ns())
    }
}

impl Counters {
    /// Returns the counters that are not 0, by name.
    fn named(&self) -> BTreeMap<String, u64> {
        tieline_explain::counted!(
            *self,
            Counters {
                unknown_ids,
                malformed,
                emulated,
                assisted_chunks,
                connections,
                failed_connections,
                wireup_retransmissions,
                wireup_rejections,
            }
        )
    }
}

fn interface(slot: &InterfaceSlot) -> InterfaceStatus {
    // A failed provider's functions are not called.
    let works = slot.out_of_use.borrow().is_none() && !slot.provider.poisoned();
    let memory = works.then(|| slot.interface.memory()).flatten();
    let used = memory.as_ref();
    let bytes = used.map_or(0, |m| m.base_bytes.saturating_add(m.peer_bytes));
    let mut status = InterfaceStatus::default();
    status.path.clone_from(&slot.path);
    status.peers = used.map_or(0, |m| m.peers);
    status.bytes = bytes;
    status.out_of_use = slot.out_of_use.borrow().as_ref().map(|error| cut(&error.to_string()));
    status
}
