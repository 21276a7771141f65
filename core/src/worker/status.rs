//! The state that a worker publishes: to the program (`Worker::status`) and to other processes ([`crate::live`]).

use super::shown::Standing;
use super::{Counters, Worker, WorkerState};
use crate::endpoint::{EndpointState, short};
use crate::interface::InterfaceSlot;
use crate::live::{
    InterfaceStatus, MOST_SHOWN, MOST_TEXT, Page, WorkerStatus, cut, now_ns, thread_id,
};
use crate::op::Id;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

/// The minimum intervals between two published texts in ns: while the worker polls, and before sleeps.
const POLLING: u64 = 100_000_000;
const SLEEPING: u64 = 1_000_000;
/// The number of polls of the kernel between two reads of the clock.
const CLOCK: u64 = 64;
/// The maximum number of endpoints examined for one text. Endpoints that wait are examined first, so that all of them are included
/// except in very large jobs.
const LOOKS: usize = 512;

impl WorkerState {
    /// Publishes the state, if it is due, when the kernel is polled for events. `seldom`: the next poll of the kernel is some time
    /// away.
    #[inline]
    pub(super) fn show_poll(&self, seldom: bool) {
        let shown = &self.shown;
        let Some(page) = &shown.page else { return };
        let polls = shown.polls.get() + 1;
        shown.polls.set(polls);
        page.polled(polls, self.shared.ops.borrow().open_count());
        if seldom || polls % CLOCK == 0 {
            let now = now_ns();
            if shown.due_in(now, POLLING) == 0 {
                self.show(page, now);
            }
        }
    }

    /// Publishes the beginning of a sleep: the worker's own, or the application's on the worker's descriptor. Returns the time
    /// until a new text may be written, if it is not due yet.
    pub(super) fn show_sleep(&self, armed: bool) -> Option<Duration> {
        let page = self.shown.page.as_ref()?;
        let now = now_ns();
        let left = self.shown.due_in(now, SLEEPING);
        if left > 0 && self.shared.ops.borrow().open_count() == 0 {
            // The operations in the last text have ended, and during this sleep nothing might request another text.
            let polls = self.shown.polls.get() + 1;
            self.shown.polls.set(polls);
            page.polled(polls, 0);
        }
        page.sleeps(now, armed);
        if left > 0 {
            return Some(Duration::from_nanos(left));
        }
        self.show(page, now);
        None
    }

    /// Publishes the first text.
    pub(super) fn show_first(&self) {
        if let Some(page) = &self.shown.page {
            self.show(page, now_ns());
        }
    }

    /// Returns the time after which an application that is about to sleep on the descriptor has to call again, so that its state
    /// can be published.
    pub(super) fn show_soon(&self) -> Option<Duration> {
        let _ = self.shown.page.as_ref()?;
        let left = self.shown.due_in(now_ns(), SLEEPING);
        let waits = || self.shared.ops.borrow().open_count() > 0 || !self.busy.borrow().is_empty();
        (left > 0 && waits()).then(|| Duration::from_nanos(left))
    }

    /// Publishes the state when a sleep has lasted until the text was due.
    pub(super) fn show_longer_sleep(&self) {
        if let Some(page) = &self.shown.page {
            self.show(page, now_ns());
        }
    }

    /// Publishes the end of a sleep. The code that follows may run for a long time.
    pub(super) fn show_awake(&self) {
        if let Some(page) = &self.shown.page {
            page.awakes();
        }
    }

    /// Publishes that a waiting call has stopped spinning.
    pub(super) fn show_wait(&self) {
        if let Some(page) = self.shown.page.as_ref().filter(|_| self.shown.waiting.get() == 0) {
            let now = now_ns();
            self.shown.waiting.set(now);
            page.waits(now);
        }
    }

    /// Publishes that a waiting call returns.
    pub(super) fn show_return(&self) {
        if self.shown.waiting.take() != 0 {
            if let Some(page) = &self.shown.page {
                page.waits(0);
                page.polled(self.shown.polls.get(), self.shared.ops.borrow().open_count());
            }
        }
    }

    /// Releases the page of a closed worker.
    pub(super) fn show_nothing(&self) {
        if let Some(page) = &self.shown.page {
            page.give_back();
        }
    }

    #[cold]
    fn show(&self, page: &Page, now: u64) {
        self.shown.written.set(now);
        if let Some(text) = self.status(Some(MOST_SHOWN), now).fit(MOST_TEXT) {
            let _ = page.write(&text, now);
        }
        self.shown.took.set(now_ns().saturating_sub(now));
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
        // The sort is stable: endpoints that do not wait stay in the order in which they were opened.
        endpoints.sort_by_key(|e| std::cmp::Reverse(e.waits.as_ref().map(|waits| waits.ms)));
        let shown = most.unwrap_or(usize::MAX).min(endpoints.len());
        let more_endpoints = left_out + endpoints.len() - shown;
        endpoints.truncate(shown);
        let forming = self
            .forming(most.unwrap_or(usize::MAX), |circuit| standing(Standing::Circuit(circuit)));
        let ops = self.shared.ops.borrow();
        let status = WorkerStatus {
            worker: short(&self.shared.id),
            service: self.shown.service,
            thread: thread_id(),
            polls: self.shown.polls.get(),
            pending: ops.open_count(),
            untaken: ops.untaken(),
            owed: self.owed.len(),
            peers: self.peers.borrow().len(),
            endpoints,
            more_endpoints,
            forming,
            interfaces: self.shared.interfaces.iter().map(interface).collect(),
            counters: self.counted().named(),
            ..WorkerStatus::default()
        };
        *self.shown.since.borrow_mut() = since;
        status
    }

    /// Returns the endpoints to examine, those with queued or open operations first, and the total number of endpoints.
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
        (found, endpoints.len())
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
        // The pattern has no `..`, so that the compiler reports a new counter that is missing here.
        let Counters {
            unknown_ids,
            malformed,
            emulated,
            assisted_chunks,
            connections,
            failed_connections,
            wireup_retransmissions,
            wireup_rejections,
        } = *self;
        let all = [
            ("unknown_ids", unknown_ids),
            ("malformed", malformed),
            ("emulated", emulated),
            ("assisted_chunks", assisted_chunks),
            ("connections", connections),
            ("failed_connections", failed_connections),
            ("wireup_retransmissions", wireup_retransmissions),
            ("wireup_rejections", wireup_rejections),
        ];
        let counted = all.into_iter().filter(|(_, n)| *n > 0);
        counted.map(|(name, n)| (name.to_owned(), n)).collect()
    }
}

fn interface(slot: &InterfaceSlot) -> InterfaceStatus {
    // A failed provider's functions are not called.
    let works = slot.out_of_use.borrow().is_none() && !slot.provider.poisoned();
    let memory = works.then(|| slot.interface.memory()).flatten();
    let used = memory.as_ref();
    let bytes = used.map_or(0, |m| m.base_bytes.saturating_add(m.peer_bytes));
    InterfaceStatus {
        path: slot.path.clone(),
        peers: used.map_or(0, |m| m.peers),
        bytes,
        out_of_use: slot.out_of_use.borrow().as_ref().map(|error| cut(&error.to_string())),
    }
}
